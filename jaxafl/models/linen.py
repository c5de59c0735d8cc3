"""Models from Flax Linen modules."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
from flax import linen

from jaxafl.device.keys import drawing_key
from jaxafl.models.frozen import Frozen, with_frozen
from jaxafl.models.functions import by_convention, check_used, inputs_of, is_flag, key_of, keywords, signature
from jaxafl.models.losses import Loss, as_loss, softmax_cross_entropy
from jaxafl.models.metrics import Better
from jaxafl.models.model import Batch, Key, Model, Outputs, Params, State, judged
from jaxafl.options import named, shown


@named
def from_linen(
    module: linen.Module,
    loss: Loss | str = softmax_cross_entropy,
    name: str | None = None,
    references: tuple[str, ...] = (),
    better: Mapping[str, Better] = types.MappingProxyType({}),
    *,
    training: dict[str, Any] | None = None,
    evaluation: dict[str, Any] | None = None,
    frozen: Frozen = None,
) -> Model:
    """Converts a Flax Linen module to a model.

    The collection `params` is trained. All other collections of `module.init` (`batch_stats`, ...) are the state,
    updated in training and unchanged in evaluation.

    The module is called as `module(x)`, or by name if x is a dict of its arguments (`__call__(self, image, table)`),
    with the flags that its call or its attributes declare. Flags such as `train`,
    `training` and `is_training` are True in training; `deterministic`, `inference` and `use_running_average` are True
    in evaluation. A flag that a submodule requires but does not receive gets its value too. A module with
    state that takes `mask` (bool [B]) receives `Batch.mask`, to exclude padding from its statistics. Random streams
    (`make_rng`) of all names are provided, with new keys in each call. As in a training loop of Flax, a layer whose
    flag the network sets to a constant keeps it.

    Args:
        module: the network; maps inputs [B, ...] to predictions [B, ...].
        loss: a name (`"softmax_cross_entropy"`, `"next_token"`, `"sigmoid_cross_entropy"`, `"squared_error"`,
            `"absolute_error"`, `"huber"`, `"log_cosh"`), a loss of Optax (`optax.hinge_loss`), or a function
            `(predictions, batch) -> Outputs`, or a loss per example [B], which records no metrics. Those of a
            regression record `mae` and `rmse`, in the unit of the targets. Losses are means over the targets of an
            example.
        name: the name in results, by default the module's class name.
        references: see `Model`.
        better: metric -> `"higher"` or `"lower"`, for metrics with other names than `Model` lists.
        training, evaluation: name -> value of arguments or attributes in one mode; they override the values by name.
            If the module does not take a name, all submodules that take it receive the value.
            `"block/*/deterministic"` addresses the submodules at that path.
        frozen: selection of parameters that are neither trained nor sent: a function from the path of a parameter to
            True, such as `lambda path: path.startswith("encoder/")`, or to the frozen value, an array. Other frozen
            values are those of `initialised`, else drawn under one key for all seeds. They are stored once, in
            `Model.frozen`. If all parameters of a layer are frozen, its batch statistics are too: they are neither
            updated nor sent, and training normalises by them.

    Returns:
        The model.

    Raises:
        TypeError: `module` is not a Linen module.
        ValueError: there is no loss of this name.
    """
    if not isinstance(module, linen.Module):
        raise TypeError(f"from_linen: got {shown(module)}; expected an instance of a flax.linen.Module")
    network, call = type(module).__name__, type(module).__call__
    loss_of = as_loss("from_linen", loss)
    given = {True: dict(training or {}), False: dict(evaluation or {})}
    takes = signature(call).parameters

    @contextmanager
    def in_mode(
        train: bool, batch: Batch, stateful: bool, still: tuple[str, ...] = ()
    ) -> Iterator[tuple[linen.Module, dict[str, Any]]]:
        """Yields the network and the keywords of its call; submodules that it calls get their flags."""
        values = given[train]
        changes = _of_network(module, values, train, takes)
        needed = "mask" in takes and takes["mask"].default is takes["mask"].empty
        also = {"mask": batch.mask} if needed or stateful else {}
        passed = keywords(call, values, train, **also)
        twice = [one for one in passed if one in changes and (one not in takes or takes[one].default is None)]
        passed = {one: value for one, value in passed.items() if one not in twice}
        nested = {key: value for key, value in values.items() if key not in changes and key not in passed}
        used: set[str] = set()
        fixed = {f"{path}/use_running_average": True for path in still} if train else {}
        with linen.intercept_methods(_with_flags({**nested, **fixed}, train, used)):
            yield module.clone(**changes) if changes else module, passed
        check_used("from_linen", network, nested, used)

    @jax.jit  # removes the forward pass of module.init, whose result is not used
    def make(key: Key, batch: Batch) -> tuple[Params, State]:
        rngs = dict(zip(("params", "dropout"), jax.random.split(key), strict=True))
        with in_mode(False, batch, True) as (net, passed):
            inputs, by_name = inputs_of(call, batch.x)
            variables = dict(net.init(rngs, *inputs, **passed | by_name))
        return variables.pop("params", {}), variables

    def apply(
        params: Params, state: State, batch: Batch, key: Key, train: bool, still: tuple[str, ...] = ()
    ) -> tuple[Outputs, State]:
        rngs = {"params": jax.random.fold_in(key, 1), "dropout": drawing_key(key)}  # "params" serves other names too
        mutable = list(state) if train or given[False] else []
        with in_mode(train, batch, bool(jax.tree.leaves(state)), still) as (net, passed):
            inputs, by_name = inputs_of(call, batch.x)
            passed = {"rngs": rngs, "mutable": mutable} | passed | by_name
            predictions, new = net.apply({"params": params, **state}, *inputs, **passed)
        outputs = judged(loss_of, predictions, batch)
        return outputs, {**state, **new} if train else state

    description = {"network": network, **{name: _jsonable(getattr(module, name)) for name in _fields(module)}}
    description |= {"loss": loss} if isinstance(loss, str) else {}
    sees_mask = "mask" in takes and "mask" not in given[True]
    model = Model(name or network, make, apply, description, None, sees_mask, references, better=better)
    return with_frozen("from_linen", model, frozen, True)


def _of_network(
    module: linen.Module, values: Mapping[str, Any], train: bool, takes: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the network's attributes that depend on the mode; an attribute `None` leaves its flag to the call."""
    changes = {}
    for name in _fields(module):
        before, usual = getattr(module, name), by_convention(name, train)
        is_open = usual is not None and (before is None or isinstance(before, bool))
        if (name in values or is_open) and not (name in takes and before is None):
            changes[name] = values.get(name, usual)
    return changes


def _with_flags(values: Mapping[str, Any], train: bool, used: set[str]) -> Callable[..., Any]:
    """Returns an interceptor of methods of Linen, which gives submodules their flags.

    The user's values replace those of the caller. A flag that neither the caller nor an attribute gives, for which Flax
    would raise an error, gets the value of its name.

    Args:
        values: name or path of a flag -> value.
        train: True for training, False for evaluation.
        used: set that receives the keys of `values` that have had an effect.
    """

    def intercepted(call: Callable[..., Any], args: Any, kwargs: Any, context: linen.module.InterceptorContext) -> Any:
        module, path = context.module, "/".join(map(str, context.module.path))
        method = signature(context.orig_method.func)  # type: ignore[attr-defined]
        bound, fields = method.bind_partial(module, *args, **kwargs), _fields(module)
        for name in dict.fromkeys((*fields, *method.parameters)):
            attribute, parameter = getattr(module, name) if name in fields else None, method.parameters.get(name)
            unset = attribute is None and bound.arguments.get(name) is None
            if path and (key := key_of(values, path, name)) is not None:
                used.add(key)
                if name in fields and (attribute is not None or parameter is None):
                    object.__setattr__(module, name, values[key])  # a copy that Flax has made for this call
                else:
                    bound.arguments[name] = values[key]
            elif unset and parameter and is_flag(parameter) and not isinstance(parameter.default, bool):
                bound.arguments[name] = by_convention(name, train)
        return call(*bound.args[1:], **bound.kwargs)

    return intercepted


def _fields(module: linen.Module) -> tuple[str, ...]:
    return tuple(one.name for one in dataclasses.fields(module) if one.name not in ("parent", "name"))


def _jsonable(value: Any) -> Any:
    """Converts an option to JSON: numbers, strings and sequences are kept, anything else becomes its name."""
    if isinstance(value, int | float | str | None):
        return value
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    return getattr(value, "__qualname__", type(value).__name__)
