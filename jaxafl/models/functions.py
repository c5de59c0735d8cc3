"""Models from a pair of plain functions, and the keywords of functions and networks in training and evaluation."""

from __future__ import annotations

import fnmatch
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jaxafl.models.frozen import Frozen, with_frozen
from jaxafl.models.metrics import Better
from jaxafl.models.model import Array, Batch, Key, Model, Outputs, Params, State, scored
from jaxafl.options import UserError, did_you_mean, named

TRAINING = ("train", "training", "is_training")
EVALUATION = ("deterministic", "inference", "use_running_average")
signature = functools.lru_cache(1024)(inspect.signature)


@named
def from_functions(
    init: Callable[[Key, Batch], Params],
    loss: Callable[..., Outputs | Array],
    name: str | None = None,
    better: Mapping[str, Better] = types.MappingProxyType({}),
    *,
    frozen: Frozen = None,
    outputs: Callable[[Params, Batch], Any] | None = None,
) -> Model:
    """Converts a pair of plain functions to a model without state.

    Args:
        init: `(key, batch) -> params`, any pytree of float arrays or numbers.
        loss: `(params, batch, key) ->` a loss per example [B], or `Outputs` with metrics. If it has an argument `train`
            (or `deterministic` ..., see `from_linen`), this is True in training. A bare loss records no accuracy:
            return `softmax_cross_entropy(logits, batch)`, or `Outputs(loss, {"accuracy": correct})` with `correct` [B].
        name: the name in results; by default the name of `loss`.
        better: metric -> `"higher"` or `"lower"`, for metrics with other names than `Model` lists.
        frozen: selection of parameters that are neither trained nor sent, see `from_linen`; may include integers.
        outputs: `(params, batch) ->` predictions [B, ...] of `batch.x`, for `Model.outputs` and metrics of whole sets.

    Returns:
        The model.
    """
    network = getattr(loss, "__name__", type(loss).__name__)
    flags = {train: keywords(loss, {}, train) for train in (False, True)}

    def make(key: Key, batch: Batch) -> tuple[Params, State]:
        return init(key, batch), {}

    def apply(params: Params, state: State, batch: Batch, key: Key, train: bool) -> tuple[Outputs, State]:
        predict = None if outputs is None else lambda: outputs(params, batch)
        return scored(functools.partial(loss, params, batch, key, **flags[train]), batch, predict), state

    model = Model(name or network, make, apply, {"network": network}, better=better)
    return with_frozen("from_functions", model, frozen)


def by_convention(name: str, train: bool) -> bool | None:
    """Returns the value of a flag with a known name, or `None` for any other name."""
    return train if name in TRAINING else not train if name in EVALUATION else None


def is_flag(parameter: inspect.Parameter) -> bool:
    """Returns True if a parameter has a known name, and no default other than None, True or False."""
    default = parameter.default
    known = by_convention(parameter.name, True) is not None
    return known and (default is parameter.empty or default is None or isinstance(default, bool))


def keywords(call: Callable[..., Any], given: Mapping[str, Any], train: bool, **also: Any) -> dict[str, Any]:
    """Returns the keywords of a call in a mode: the user's values, else those in `also`, else flags by convention."""
    found: dict[str, Any] = {}
    for name, parameter in signature(call).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD and not call.__qualname__.startswith("Sequential."):
            found |= {key: value for key, value in given.items() if "/" not in key}
        elif name in given or name in also:
            found[name] = given.get(name, also.get(name))
        elif is_flag(parameter):
            found[name] = by_convention(name, train)
    return found


def inputs_of(call: Callable[..., Any], x: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns positional arguments and keywords for inputs: by name if they are a dict of arguments of the call."""
    if isinstance(x, Mapping) and x.keys() <= signature(call).parameters.keys():
        return (), dict(x)
    return (x,), {}


def key_of(given: Mapping[str, Any], path: str, name: str) -> str | None:
    """Returns the key, a name or a pattern of paths, by which the user gives a flag of a submodule; or `None`."""
    return next((key for key in given if key == name or fnmatch.fnmatchcase(f"{path}/{name}", key)), None)


def check_used(owner: str, network: str, given: Iterable[str], used: Iterable[str]) -> None:
    """Raises `ValueError` for a given name that no part of the network takes."""
    if unused := sorted({*given} - {*used}):
        raise UserError(
            f"{owner}: {unused[0]!r} is given for a mode of {network}, no part of which takes it"
            f"{did_you_mean(unused[0], (*TRAINING, *EVALUATION))}"
        )
