"""Any network as a `Model`: a Flax Linen module, a Flax NNX module, or a pair of plain functions.

In all three the loss and the metrics of padded examples (`batch.mask` False) come out as exactly 0 and carry no
gradient.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from flax import linen

from jaxafl.device.keys import drawing_key
from jaxafl.models.metrics import Better
from jaxafl.models.model import Array, Batch, Init, Key, Model, Outputs, Params, State, softmax_cross_entropy
from jaxafl.options import named

Loss: TypeAlias = Callable[[Any, Batch], Outputs | Array]
NNXRngs: TypeAlias = Any
"""An `nnx.Rngs`; NNX is imported where it is used, because that takes a fifth of the time of `import jaxafl`."""
NNXModule: TypeAlias = Any
"""An `nnx.Module`."""
NNXState: TypeAlias = Any
"""An `nnx.State`."""


@named
def from_linen(
    module: linen.Module,
    loss: Loss = softmax_cross_entropy,
    name: str | None = None,
    references: tuple[str, ...] = (),
    better: Mapping[str, Better] = types.MappingProxyType({}),
) -> Model:
    """A Flax Linen module as a model.

    The collection `params` is trained; every other collection that `module.init` makes (`batch_stats`, ...) is the
    state, updated in training and left alone in evaluation. The module is called as `module(x)`, with `train=` (bool)
    and `mask=` (bool [B]) added if its `__call__` names them; a module that normalises over the batch should take
    `mask` and leave padding out of its statistics. Dropout draws from the random stream `"dropout"`.

    Args:
        module: the network; maps inputs [B, ...] to predictions [B, ...].
        loss: `(predictions, batch) -> Outputs` or a loss per example [B], which alone records no accuracy.
        name: the name in results, by default the module's class name.
        references: see `Model`.
        better: metric -> `"higher"` or `"lower"`, for those whose name does not say it, see `Model`.

    Returns:
        The model.

    Raises:
        TypeError: `module` is not a Linen module, or its `__call__` requires arguments other than the input,
            `train` and `mask`.
    """
    if not isinstance(module, linen.Module):
        raise TypeError(f"from_linen needs a flax.linen.Module instance, got {_what(module)}")
    accepted = _accepted_keywords(type(module).__call__, type(module).__name__)

    @jax.jit  # which leaves out the forward pass of module.init
    def make(key: Key, batch: Batch) -> tuple[Params, State]:
        rngs = dict(zip(("params", "dropout"), jax.random.split(key), strict=True))
        variables = dict(module.init(rngs, batch.x, **_keywords(accepted, batch, False)))
        return variables.pop("params", {}), variables

    def apply(params: Params, state: State, batch: Batch, key: Key, train: bool) -> tuple[Outputs, State]:
        variables, keywords = {"params": params, **state}, _keywords(accepted, batch, train)
        changing = list(state) if train else []
        predictions, new = module.apply(
            variables, batch.x, rngs={"dropout": drawing_key(key)}, mutable=changing, **keywords
        )
        return per_example(loss(predictions, batch), batch), {**state, **new}

    network = type(module).__name__
    description = {"network": network} | {
        option.name: _jsonable(getattr(module, option.name))
        for option in dataclasses.fields(module)
        if option.name not in ("parent", "name")
    }
    init, masked = tried(make, apply), "mask" in accepted
    return Model(name or network, init, apply, description, sees_mask=masked, references=references, better=better)


@named
def from_nnx(
    make_module: Callable[[NNXRngs], NNXModule],
    loss: Loss = softmax_cross_entropy,
    name: str | None = None,
    better: Mapping[str, Better] = types.MappingProxyType({}),
) -> Model:
    """A Flax NNX module as a model.

    Variables of type `nnx.Param` are trained, all others (`nnx.BatchStat`, ...) are the state. Random streams are no
    state: they are made anew from the key of each call. `module.train()` or `module.eval()` sets the mode, and
    `train=` and `mask=` are passed if `__call__` names them.

    Args:
        make_module: makes the network from its random streams, e.g. `lambda rngs: nnx.Linear(784, 10, rngs=rngs)`.
        loss: `(predictions, batch) -> Outputs` or a loss per example [B], which alone records no accuracy.
        name: the name in results, by default the module's class name.
        better: metric -> `"higher"` or `"lower"`, for those whose name does not say it, see `Model`.

    Returns:
        The model; `params` and `state` are nested dicts.

    Raises:
        TypeError: `make_module` does not return an NNX module, or its `__call__` requires arguments other than
            the input, `train` and `mask`.
    """
    from flax import nnx

    blueprint = nnx.eval_shape(lambda: make_module(nnx.Rngs(0)))
    if not isinstance(blueprint, nnx.Module):
        raise TypeError(f"from_nnx needs a function that makes an nnx.Module, got one that makes {_what(blueprint)}")
    accepted = _accepted_keywords(type(blueprint).__call__, type(blueprint).__name__)
    graph, *shapes = nnx.split(blueprint, nnx.Param, nnx.RngState, ...)
    params_shape, streams_shape, state_shape = shapes

    @jax.jit
    def make(key: Key, batch: Batch) -> tuple[Params, State]:
        made = make_module(nnx.Rngs(key))
        params, _, state = nnx.state(made, nnx.Param, nnx.RngState, ...)
        return nnx.to_pure_dict(params), nnx.to_pure_dict(state)

    def apply(params: Params, state: State, batch: Batch, key: Key, train: bool) -> tuple[Outputs, State]:
        streams = _fresh_streams(streams_shape, key)
        module = nnx.merge(graph, _filled(params_shape, params), streams, _filled(state_shape, state))
        module.train() if train else module.eval()
        predictions = module(batch.x, **_keywords(accepted, batch, train))
        outputs = per_example(loss(predictions, batch), batch)
        if train:
            state = nnx.to_pure_dict(nnx.state(module, nnx.Not(nnx.Any(nnx.Param, nnx.RngState, nnx.Intermediate))))
        return outputs, state

    network = type(blueprint).__name__
    masked = "mask" in accepted or not jax.tree.leaves(nnx.state(blueprint, nnx.BatchStat))
    return Model(name or network, tried(make, apply), apply, {"network": network}, sees_mask=masked, better=better)


@named
def from_functions(
    init: Callable[[Key, Batch], Params],
    loss: Callable[[Params, Batch, Key], Outputs | Array],
    name: str | None = None,
    better: Mapping[str, Better] = types.MappingProxyType({}),
) -> Model:
    """A pair of plain functions as a model without state.

    Args:
        init: `(key, batch) -> params`, any pytree of float arrays.
        loss: `(params, batch, key) ->` a loss per example [B], or `Outputs` with metrics; the same in training and
            evaluation. A loss alone records no accuracy: return `softmax_cross_entropy(logits, batch)`, or
            `Outputs(loss, {"accuracy": correct})` with `correct` [B].
        name: the name in results, by default that of `loss`.
        better: metric -> `"higher"` or `"lower"`, for those whose name does not say it, see `Model`.

    Returns:
        The model.
    """
    for role, function in (("init", init), ("loss", loss)):
        if not callable(function):
            raise TypeError(f"from_functions needs a function as {role}, got {_what(function)}")

    def apply(params: Params, state: State, batch: Batch, key: Key, train: bool) -> tuple[Outputs, State]:
        return per_example(loss(params, batch, key), batch), state

    network = getattr(loss, "__name__", type(loss).__name__)
    with_state = tried(lambda key, batch: (init(key, batch), {}), apply)
    return Model(name or network, with_state, apply, {"network": network}, better=better)


def tried(make: Init, apply: Callable[..., tuple[Outputs, State]], *frozen: Any) -> Init:
    """`make`, whose result is tried on the batch, so that what does not go together is an error there."""

    def init(key: Key, batch: Batch) -> tuple[Params, State]:
        params, state = make(key, batch)
        jax.eval_shape(lambda *frozen: apply(params, state, batch, key, False, *frozen), *frozen)
        return params, state

    return init


def per_example(result: Outputs | Array, batch: Batch) -> Outputs:
    """Checks the shapes and takes the padding out."""
    outputs = result if isinstance(result, Outputs) else Outputs(result, {})
    for role, values in {"loss": outputs.loss, **outputs.metrics}.items():
        if values.shape != batch.mask.shape:
            raise ValueError(
                f"a model gives its {role} per example, of shape {batch.mask.shape} for this batch, "
                f"got {values.shape}; do not average over the batch"
            )
    return jax.tree.map(lambda values: jnp.where(batch.mask, values, jnp.zeros_like(values)), outputs)


def _accepted_keywords(call: Callable[..., Any], network: str) -> frozenset[str]:
    """Which of `train` and `mask` a network takes; the first two parameters are `self` and the input."""
    parameters = list(inspect.signature(call).parameters.values())[2:]
    for parameter in parameters:
        variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if parameter.default is parameter.empty and not variadic and parameter.name not in ("train", "mask"):
            raise TypeError(
                f"{network}.__call__ requires {parameter.name!r}; a model is called with its input, "
                "train= and mask= only: give it a default or wrap the module"
            )
    return frozenset(parameter.name for parameter in parameters) & {"train", "mask"}


def _keywords(accepted: frozenset[str], batch: Batch, train: bool) -> dict[str, Any]:
    return {name: value for name, value in (("train", train), ("mask", batch.mask)) if name in accepted}


def _fresh_streams(shapes: NNXState, key: Key) -> NNXState:
    """Random streams of a module, all counters at zero and every stream keyed from `key`."""
    from flax import nnx

    def start(index: int, variable: Any) -> Any:
        if isinstance(variable, nnx.RngKey):
            return variable.replace(jax.random.fold_in(key, index))
        return variable.replace(jnp.zeros(variable.shape, variable.dtype))

    flat = enumerate(nnx.to_flat_state(shapes))
    return nnx.from_flat_state([(path, start(index, variable)) for index, (path, variable) in flat])


def _filled(shapes: NNXState, values: Any) -> NNXState:
    """The module state of the structure of `shapes` with the arrays of a nested dict."""
    from flax import nnx

    filled = jax.tree.map(lambda leaf: leaf, shapes)
    nnx.replace_by_pure_dict(filled, values)
    return filled


def _what(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def _jsonable(value: Any) -> Any:
    """An option as JSON: numbers, strings and sequences as they are, anything else by its name."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    return getattr(value, "__qualname__", type(value).__name__)
