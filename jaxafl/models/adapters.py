"""Code that the adapters share; an adapter converts a network to a `Model`.

The loss and the metrics of padded examples (`batch.mask` False) are exactly 0 and have no gradient.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from jaxafl.models.losses import LOSSES, of_optax
from jaxafl.models.mixing import warn_of_mixing, warn_of_pairs
from jaxafl.models.model import Array, Batch, Init, Key, Outputs, Params, State
from jaxafl.models.predictions import predictions_of, scored
from jaxafl.options import UserError, check_choice, shown

Loss: TypeAlias = Callable[[Any, Batch], Outputs | Array]
Check: TypeAlias = Callable[[Params, State, Batch], None]


def tried(
    init: Init,
    apply: Callable[..., tuple[Outputs, State]],
    frozen: Any = None,
    check: tuple[Init, Check] | None = None,
    loss: Loss | None = None,
    pairs: bool = False,
) -> Init:
    """Returns `init` with a trial call of `apply`, so that a mismatch raises its error in `init`.

    Args:
        init, apply, frozen: fields of `Model`.
        check: an `init` of all parameters, including frozen ones, and a function that is called with their shapes, once
            for each form of the samples.
        loss: a loss of the user's, to be examined as often.
        pairs: True if the user's `apply` is to be examined instead.
    """
    checked: set[str] = set()

    def once(batch: Batch) -> bool:
        form = f"{jnp.result_type(float)} {jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), batch)}"
        if check is not None and form not in checked:
            make, examine = check
            params, state = jax.eval_shape(make, jax.eval_shape(lambda: jax.random.key(0)), batch)
            examine(params, state, batch)
        first = form not in checked
        checked.add(form)
        return first

    def losses(batch: Batch) -> Array:
        key = jax.random.key(0)
        held = () if frozen is None else (frozen(batch) if callable(frozen) else frozen,)
        return apply(*init(key, batch), batch, key, False, *held)[0].loss

    def init_and_try(key: Key, batch: Batch) -> tuple[Params, State]:
        first = once(batch)
        params, state = init(key, batch)
        held = () if frozen is None else (jax.eval_shape(lambda: frozen(batch) if callable(frozen) else frozen),)
        jax.eval_shape(lambda *held: apply(params, state, batch, key, False, *held), *held)
        if first and loss is not None and not any(loss is one for one in LOSSES.values()):
            given = (params, state, batch, key, False)
            warn_of_mixing(loss, jax.eval_shape(lambda *held: predictions_of("", apply, *given, *held), *held), batch)
        if first and pairs:
            warn_of_pairs(losses, batch)
        return params, state

    return init_and_try


def outputs_of(loss: Loss, predictions: Any, batch: Batch) -> Any:
    """Returns loss and metrics per example; within `Model.outputs`, the predictions."""
    return scored(lambda: per_example(lambda: loss(predictions, batch), batch, predictions), lambda: predictions)


def per_example(compute: Callable[[], Outputs | Array], batch: Batch, predictions: Any = None) -> Outputs:
    """Computes loss and metrics per example, with the values of padded examples set to 0.

    Args:
        compute: () -> loss, or loss and metrics.
        batch: the batch.
        predictions: array [B, ...], if it is known, for messages.

    Raises:
        ValueError, TypeError: the loss raises an error about shapes, or its values are not per example.
    """
    known = f"predictions {predictions.shape} and " if hasattr(predictions, "shape") else ""
    given = (
        f"the loss is given {known}targets {batch.y.shape}, samples first. Of a network with one output, "
        "predictions[..., 0] have no further axis"
    )
    try:
        result = compute()
    except (ValueError, TypeError, AssertionError) as error:
        if isinstance(error, UserError) or "shape" not in str(error).lower():
            raise
        raise ValueError(f"{str(error).rstrip('.')}; {given}") from error
    outputs = result if isinstance(result, Outputs) else Outputs(result, {})
    if not isinstance(outputs.metrics, Mapping):
        raise UserError(f"the metrics of Outputs are a dict of name -> values [B], got {shown(outputs.metrics)}")
    for role, values in {"loss": outputs.loss, **outputs.metrics, **outputs.squares}.items():
        if not hasattr(values, "shape"):
            raise UserError(
                f"a model gives its {role} per example, an array [B], got {_structure(values)}; with metrics, return "
                'jaxafl.models.Outputs(loss, {"accuracy": correct})'
            )
        if values.shape != batch.mask.shape:
            advice = given if values.ndim > 1 else "do not average over the batch"
            raise ValueError(
                f"a model gives its {role} per example, of shape {batch.mask.shape} for this batch, "
                f"got {values.shape}; {advice}"
            )
    return jax.tree.map(lambda values: jnp.where(batch.mask, values, jnp.zeros_like(values)), outputs)


def check_loss(owner: str, loss: Any) -> Loss:
    """Returns a loss as a function of predictions and batch.

    Args:
        owner: the adapter, for the message.
        loss: a name of `LOSSES`, a loss of Optax, or such a function.

    Raises:
        ValueError: there is no loss of this name.
        TypeError: the loss cannot be called as `loss(predictions, batch)`.
    """
    if isinstance(loss, str):
        check_choice(owner, "loss", loss, tuple(LOSSES))
        return LOSSES[loss]
    if not callable(loss):
        raise TypeError(
            f"{owner} needs a function as loss, (predictions, batch) -> a loss per example, or a name such as "
            f"'squared_error'; got {shown(loss)}"
        )
    if (of_batch := of_optax(loss)) is not None:
        check_takes(owner, "loss", loss, ("predictions", "targets"))
        return of_batch
    check_takes(owner, "loss", loss, ("predictions", "batch"))
    return loss


def check_takes(owner: str, role: str, function: Callable[..., Any], given: tuple[str, ...]) -> None:
    """Raises `TypeError` for a function that does not take the arguments `given` by position."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # raised for a function that is not written in Python
        return
    try:
        signature.bind_partial(*given)
    except TypeError:
        name = getattr(function, "__name__", what(function))
        takes = ", ".join(signature.parameters)
        raise TypeError(
            f"{owner}: {role} is called as {role}({', '.join(given)}), but {name} takes ({takes})"
            + ("; a batch has x, y and mask" if "batch" in given else "")
        ) from None


def what(value: Any) -> str:
    """Describes a value in a message: a class by its name, anything else by the name of its class."""
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def jsonable(value: Any) -> Any:
    """Converts an option to JSON: numbers, strings and sequences are kept, anything else becomes its name."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    return getattr(value, "__qualname__", type(value).__name__)


def _structure(value: Any) -> str:
    return f"a {type(value).__name__} of {len(value)}" if isinstance(value, tuple | list | dict) else shown(value)
