"""Models from Flax NNX modules."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from jaxafl.models.frozen import Frozen, with_frozen
from jaxafl.models.functions import by_convention, check_used, inputs_of, key_of, keywords, signature
from jaxafl.models.losses import Loss, as_loss, softmax_cross_entropy
from jaxafl.models.metrics import Better
from jaxafl.models.model import Batch, Key, Model, Outputs, Params, State, judged
from jaxafl.options import named, shown

NNX: TypeAlias = Any
"""An object of NNX; functions import it themselves, because it would slow down `import jaxafl`."""


@named
def from_nnx(
    make_module: Callable[[NNX], NNX],
    loss: Loss | str = softmax_cross_entropy,
    name: str | None = None,
    better: Mapping[str, Better] = types.MappingProxyType({}),
    *,
    training: dict[str, Any] | None = None,
    evaluation: dict[str, Any] | None = None,
    frozen: Frozen = None,
) -> Model:
    """Converts a Flax NNX module to a model.

    Variables of type `nnx.Param` are trained; all others (`nnx.BatchStat`, ...) are the state. Random streams are not
    part of the state: they are derived from the key of each call.

    The mode is set by `module.train()` or `module.eval()`, and by attributes of submodules such as `training`,
    `is_training` and `inference`, see `from_linen`. Flags in the signature of `__call__` are passed, and `rngs` (an
    `nnx.Rngs`). `mask` (bool [B], `Batch.mask`) is passed to a module with state.

    Args:
        make_module: constructs the network from random streams, e.g. `lambda rngs: nnx.Linear(784, 10, rngs=rngs)`.
        loss: a name such as `"squared_error"`, a loss of Optax, or a function `(predictions, batch) -> Outputs`, or a
            loss per example [B]; see `from_linen`.
        name: the name in results, by default the module's class name.
        better: metric -> `"higher"` or `"lower"`, for metrics with other names than `Model` lists.
        training, evaluation: name -> value of arguments or attributes in one mode, see `from_linen`. Arguments that one
            module passes to another are not changed.
        frozen: selection of parameters that are neither trained nor sent, see `from_linen`.

    Returns:
        The model; `params` and `state` are nested dicts.

    Raises:
        TypeError: `make_module` does not return an NNX module.
    """
    from flax import nnx

    blueprint = nnx.eval_shape(lambda: make_module(nnx.Rngs(0)))
    if not isinstance(blueprint, nnx.Module):
        raise TypeError(f"from_nnx: got {shown(make_module)}; expected a function that makes an nnx.Module from rngs")
    network, call = type(blueprint).__name__, type(blueprint).__call__
    loss_of = as_loss("from_nnx", loss)
    given = {True: dict(training or {}), False: dict(evaluation or {})}
    takes = signature(call).parameters
    graph, *shapes = nnx.split(blueprint, nnx.Param, nnx.RngState, ...)
    params_shape, streams_shape, state_shape = shapes
    needs_mask = "mask" in takes and (jax.tree.leaves(state_shape) or takes["mask"].default is takes["mask"].empty)

    @jax.jit
    def make(key: Key, batch: Batch) -> tuple[Params, State]:
        module = make_module(nnx.Rngs(key))
        params, _, state = nnx.state(module, nnx.Param, nnx.RngState, ...)
        return nnx.to_pure_dict(params), nnx.to_pure_dict(state)

    def apply(
        params: Params, state: State, batch: Batch, key: Key, train: bool, still: tuple[str, ...] = ()
    ) -> tuple[Outputs, State]:
        streams = _fresh_streams(streams_shape, key)
        module = nnx.merge(graph, _filled(params_shape, params), streams, _filled(state_shape, state))
        module.train() if train else module.eval()
        also: dict[str, Any] = {"mask": batch.mask} if needs_mask else {}
        if "rngs" in takes:
            also["rngs"] = nnx.Rngs(key)
        passed = keywords(call, given[train], train, **also)
        nested = {name: value for name, value in given[train].items() if name not in passed}
        fixed = {f"{path}/use_running_average": True for path in still} if train else {}
        check_used("from_nnx", network, nested, _set_flags(module, {**nested, **fixed}, train))
        inputs, by_name = inputs_of(call, batch.x)
        predictions = module(*inputs, **passed | by_name)
        outputs = judged(loss_of, predictions, batch)
        found = nnx.state(module, nnx.Not(nnx.Any(nnx.Param, nnx.RngState, nnx.Intermediate)))
        return outputs, nnx.to_pure_dict(found) if train else state

    sees_mask = "mask" in takes and "mask" not in given[True]
    sees_mask = sees_mask or not jax.tree.leaves(shapes[-1])  # the state may be computed from the batch
    description = {"network": network, **({"loss": loss} if isinstance(loss, str) else {})}
    model = Model(name or network, make, apply, description, None, sees_mask, better=better)
    return with_frozen("from_nnx", model, frozen)


def _set_flags(module: NNX, values: Mapping[str, Any], train: bool) -> set[str]:
    """Sets attributes of submodules to the user's values, else by convention; returns the keys with an effect."""
    from flax import nnx

    used = set()
    parts = [("/".join(map(str, path)), one) for path, one in nnx.iter_graph(module) if isinstance(one, nnx.Module)]
    for path, part in parts:
        for name, value in list(vars(part).items()):
            if (key := key_of(values, path, name)) is not None:
                used.add(key)
                setattr(part, name, values[key])
            elif by_convention(name, train) is not None and (value is None or isinstance(value, bool)):
                setattr(part, name, by_convention(name, train))
    return used


def _fresh_streams(shapes: NNX, key: Key) -> NNX:
    """Constructs the random streams of a module, with all counters at zero and keys derived from `key`."""
    from flax import nnx

    def start(index: int, variable: Any) -> Any:
        if isinstance(variable, nnx.RngKey):
            stream = jax.random.fold_in(key, index)
            return variable.replace(jax.random.split(stream, variable.shape) if variable.shape else stream)
        return variable.replace(jnp.zeros(variable.shape, variable.dtype))

    flat = enumerate(nnx.to_flat_state(shapes))
    return nnx.from_flat_state([(path, start(index, variable)) for index, (path, variable) in flat])


def _filled(shapes: NNX, values: Any) -> NNX:
    """Returns a module state with the structure of `shapes` and the arrays of a nested dict."""
    from flax import nnx

    filled = jax.tree.map(lambda leaf: leaf, shapes)
    nnx.replace_by_pure_dict(filled, values)
    return filled
