"""Models from Flax NNX modules."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from jaxafl.models.adapters import Loss, check_loss, check_takes, outputs_of, tried, what
from jaxafl.models.frozen import Frozen, described, split_off, still_statistics
from jaxafl.models.metrics import Better
from jaxafl.models.model import Batch, Key, Model, Outputs, Params, State, softmax_cross_entropy
from jaxafl.models.modes import UNKNOWN, Modes, by_convention, keywords, mode_arguments
from jaxafl.models.unreached import MASK, Part, Parts, changed, check_reached, dropout_rate, probed
from jaxafl.options import named

NNXRngs: TypeAlias = Any
"""An `nnx.Rngs`; functions import NNX themselves, because it would slow down `import jaxafl`."""
NNXModule: TypeAlias = Any
"""An `nnx.Module`."""
NNXState: TypeAlias = Any
"""An `nnx.State`."""


@named
def from_nnx(
    make_module: Callable[[NNXRngs], NNXModule],
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
        The model; `params` and `state` are nested dicts. Its `init` raises `ValueError` if training would never apply a
        dropout or never update batch statistics, or if evaluation would.

    Raises:
        TypeError: `make_module` does not return an NNX module, or its `__call__` requires arguments with unknown
            values.
    """
    from flax import nnx

    if isinstance(make_module, nnx.Module):
        raise TypeError(
            f"from_nnx: got {what(make_module)} that is made already; give a function that makes it, such as "
            f"lambda rngs: {type(make_module).__name__}(..., rngs=rngs), so that every seed has its own parameters"
        )
    check_takes("from_nnx", "make_module", make_module, ("rngs",))
    blueprint = nnx.eval_shape(lambda: make_module(nnx.Rngs(0)))
    if not isinstance(blueprint, nnx.Module):
        raise TypeError(f"from_nnx needs a function that makes an nnx.Module, got one that makes {what(blueprint)}")
    network = type(blueprint).__name__
    loss_of = check_loss("from_nnx", loss)
    modes = Modes.checked("from_nnx", training, evaluation, network)
    arguments = mode_arguments(type(blueprint).__call__, modes, 2, ("mask", "rngs"))
    graph, *shapes = nnx.split(blueprint, nnx.Param, nnx.RngState, ...)
    params_shape, streams_shape, state_shape = shapes
    needs_mask = "mask" in arguments and (jax.tree.leaves(state_shape) or arguments["mask"].default is UNKNOWN)

    @jax.jit
    def make(key: Key, batch: Batch) -> tuple[Params, State]:
        module = make_module(nnx.Rngs(key))
        params, _, state = nnx.state(module, nnx.Param, nnx.RngState, ...)
        return nnx.to_pure_dict(params), nnx.to_pure_dict(state)

    def predicted(
        params: Params,
        state: State,
        batch: Batch,
        key: Key,
        train: bool,
        parts: Parts | None = None,
        modes: Modes = modes,
    ) -> tuple[Any, State]:
        streams = _fresh_streams(streams_shape, key)
        module = nnx.merge(graph, _filled(params_shape, params), streams, _filled(state_shape, state))
        module.train() if train else module.eval()
        _set_attributes(module, modes, train)
        given: dict[str, Any] = {"mask": batch.mask} if needs_mask else {}
        if "rngs" in arguments:
            given["rngs"] = nnx.Rngs(key)
        before = None if parts is None else _counts(module, given.get("rngs"))
        predictions = module(batch.x, **keywords(arguments, modes, train, **given))
        if parts is not None:
            _note(parts, module, before, arguments, modes, train)
        found = nnx.state(module, nnx.Not(nnx.Any(nnx.Param, nnx.RngState, nnx.Intermediate)))
        return predictions, nnx.to_pure_dict(found)

    def apply(
        params: Params, state: State, batch: Batch, key: Key, train: bool, still: tuple[str, ...] = ()
    ) -> tuple[Outputs, State]:
        predictions, new = predicted(params, state, batch, key, train, modes=modes.with_still(still))
        return outputs_of(loss_of, predictions, batch), new if train else state

    def check(params: Params, state: State, batch: Batch) -> None:
        flags: set[str] = set()
        kinds = nnx.to_flat_state(nnx.state(blueprint, nnx.BatchStat))
        known = {"/".join(map(str, path)) for path, _ in kinds}
        known -= still_statistics(params, state, frozen, "from_nnx", False)
        for train in (True, False):
            parts: Parts = {}

            def new_state(
                state: State, params: Params, batch: Batch, key: Key, train: bool = train, parts: Parts = parts
            ) -> State:
                return predicted(params, state, batch, key, train, parts)[1]

            key = jax.eval_shape(lambda: jax.random.key(0))
            try:
                found = changed(new_state, state, params, probed(batch), key)
            except (TypeError, ValueError) as error:
                if needs_mask and "mask" not in modes.given(train):
                    error.add_note(MASK)
                raise
            statistics = {path: to for path, to in found.items() if path in known}
            check_reached(modes, train, parts, statistics, lambda path, flag, value: _advised(network, flag))
            flags |= {flag for part in parts.values() for flag in part.flags}
        modes.check_used(flags)

    sees_mask = "mask" in arguments and "mask" not in modes.training
    sees_mask = sees_mask or not jax.tree.leaves(nnx.state(blueprint, nnx.BatchStat))
    init: Any = make
    applied, held = apply, None
    description = {"network": network, **({"loss": loss} if isinstance(loss, str) else {})}
    if frozen is not None:
        init, applied, held = split_off(make, apply, frozen, "from_nnx")
        description["frozen"] = described(frozen)
    init = tried(init, applied, held, (make, check), loss_of)
    return Model(name or network, init, applied, description, held, sees_mask, better=better)


def _modules(module: NNXModule) -> list[tuple[str, NNXModule]]:
    from flax import nnx

    return [("/".join(map(str, path)), one) for path, one in nnx.iter_graph(module) if isinstance(one, nnx.Module)]


def _set_attributes(module: NNXModule, modes: Modes, train: bool) -> None:
    """Sets attributes of submodules that depend on the mode, beyond those that `train` and `eval` set."""
    for path, part in _modules(module):
        for name, value in list(vars(part).items()):
            said = modes.nested(path, name, train)
            if said is not UNKNOWN:
                setattr(part, name, said)
            elif by_convention(name, train) is not None and (value is None or isinstance(value, bool)):
                setattr(part, name, by_convention(name, train))


def _counts(module: NNXModule, rngs: NNXRngs | None) -> dict[int | None, list[Any]]:
    """Returns the counters of the random streams below every module, and under `None` those passed to the call."""
    from flax import nnx

    below: dict[int | None, Any] = {id(part): nnx.iter_graph(part) for _, part in _modules(module)}
    below[None] = () if rngs is None else nnx.iter_graph(rngs)
    return {
        one: [(leaf, leaf.get_value()) for _, leaf in graph if isinstance(leaf, nnx.RngCount)]
        for one, graph in below.items()
    }


def _note(parts: Parts, module: NNXModule, before: Any, arguments: Any, modes: Modes, train: bool) -> None:
    elsewhere = train and any(leaf.get_value() is not was for leaf, was in before[None])  # the drawing part is unknown
    for path, part in _modules(module):
        flags = {name: value for name, value in vars(part).items() if by_convention(name, True) is not None}
        if not path:
            passed = keywords(arguments, modes, train)
            flags |= {name: passed.get(name) for name in arguments if by_convention(name, True) is not None}
        streams = before.get(id(part), [])
        draws = sum(leaf.get_value() is not was for leaf, was in streams)
        rate = dropout_rate(type(part).__name__, vars(part)) if streams else None
        leaf = rate is not None and not any(
            dropout_rate(type(other).__name__, vars(other)) for below, other in _modules(part) if below
        )
        parts[path] = Part(type(part).__name__, flags, rate, draws + elsewhere, draws if leaf else 0)


def _advised(network: str, flag: str) -> str:
    """Returns the advice for a flag of a module that a mode does not reach."""
    return (
        f"Let the call of {network} take train or deterministic and pass it on, or leave {flag} out where the module "
        f"is called, so that train() and eval() set it; where it is meant as it is, give from_nnx {flag!r} in both "
        "training and evaluation"
    )


def _fresh_streams(shapes: NNXState, key: Key) -> NNXState:
    """Constructs the random streams of a module, with all counters at zero and keys derived from `key`."""
    from flax import nnx

    def start(index: int, variable: Any) -> Any:
        if isinstance(variable, nnx.RngKey):
            stream = jax.random.fold_in(key, index)
            return variable.replace(jax.random.split(stream, variable.shape) if variable.shape else stream)
        return variable.replace(jnp.zeros(variable.shape, variable.dtype))

    flat = enumerate(nnx.to_flat_state(shapes))
    return nnx.from_flat_state([(path, start(index, variable)) for index, (path, variable) in flat])


def _filled(shapes: NNXState, values: Any) -> NNXState:
    """Returns a module state with the structure of `shapes` and the arrays of a nested dict."""
    from flax import nnx

    filled = jax.tree.map(lambda leaf: leaf, shapes)
    nnx.replace_by_pure_dict(filled, values)
    return filled
