"""The contract between a model and the simulator, the loss that most models use, and what their constructors share."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, ParamSpec, TypeAlias

import jax
import jax.numpy as jnp
import optax

from jaxafl.options import Summarised, check_choice, check_whole

Array: TypeAlias = jax.Array
Key: TypeAlias = jax.Array
Params: TypeAlias = Any
State: TypeAlias = Any
Precision: TypeAlias = Literal["float32", "bfloat16"]
P = ParamSpec("P")


class Batch(NamedTuple):
    """One mini-batch of one client.

    Attributes:
        x: preprocessed inputs [B, ...]: an array, or a pytree of them.
        y: labels [B, ...].
        mask: bool [B]; False marks the padding of a partial batch, which must influence nothing.
    """

    x: Array
    y: Array
    mask: Array


class Outputs(NamedTuple):
    """What a model says of a batch, per example: the simulator takes the masked means.

    Attributes:
        loss: float [B].
        metrics: name -> [B]; each becomes a variable of the result. `"accuracy"` is what figures show.
    """

    loss: Array
    metrics: dict[str, Array]


Init = Callable[[Key, Batch], tuple[Params, State]]
Apply = Callable[[Params, State, Batch, Key, bool], tuple[Outputs, State]]


@dataclass(frozen=True, eq=False, repr=False)
class Model(Summarised):
    """A model that can be simulated; make one with `from_linen`, `from_nnx` or `from_functions`.

    Equality and hash are by identity, so that a model can be a static argument of a compiled function.

    Attributes:
        name: the name in results and tables.
        init: `(key, batch) -> (params, state)`. Of `batch`, an example batch (B = 1), only shapes and dtypes matter.
            `params` is the pytree that is trained and federated, `state` the pytree of everything else that the model
            carries from step to step (running statistics); `{}` where there is none.
        apply: `(params, state, batch, key, train) -> (Outputs, state)`. `key` feeds dropout and the like; `train` is a
            Python bool. A model with `frozen` arrays takes them as its last argument.
        description: options of the model that can be written as JSON, for result files.
        frozen: pytree of numpy arrays that are neither trained nor federated (a pretrained base): one copy on the
            device serves all clients, and none is in the ring or in an update. `None` where there is none.
        sees_mask: whether state (batch statistics) leaves out the padding that `Batch.mask` marks; where it does not,
            training that pads is refused.
        references: what a run with this model should cite: keys of `jaxafl.references.BIBTEX`, or BibTeX entries.
    """

    name: str
    init: Init
    apply: Callable[..., tuple[Outputs, State]]
    description: dict[str, Any] = field(default_factory=dict)
    frozen: Any = None
    sees_mask: bool = True
    references: tuple[str, ...] = ()

    def bound(self, frozen: Any) -> Apply:
        """`apply` without its last argument, which is `frozen`: `self.frozen`, placed on the device or traced."""
        if self.frozen is None:
            return self.apply
        return lambda params, state, batch, key, train: self.apply(params, state, batch, key, train, frozen)

    def summary(self) -> dict[str, Any]:
        """Name, options and the number of frozen values, by name."""
        frozen = sum(leaf.size for leaf in jax.tree.leaves(self.frozen))
        return {"name": self.name, **({"frozen": frozen} if frozen else {}), **self.description}


def softmax_cross_entropy(logits: Array, batch: Batch) -> Outputs:
    """Cross-entropy of integer labels, -log softmax(logits)[y], and whether the largest logit is the label's.

    Where an example has several labels (a label per character of a sequence), its loss and accuracy are the means over
    them. A label outside [0, C) gives a loss of NaN rather than that of some other class.

    Args:
        logits: float [B, ..., C]; in a lower precision than float32 they are cast to it first.
        batch: `batch.y` holds integers [B, ...] in [0, C).

    Returns:
        `loss` [B] in nats and the metric `"accuracy"` [B].

    Raises:
        ValueError: the shapes of logits and labels do not go together.
        TypeError: the labels are not integers.
    """
    labels = batch.y
    if logits.ndim < 2 or labels.shape != logits.shape[:-1]:
        raise ValueError(
            f"cross-entropy needs labels of the shape of the logits without their last (class) axis, "
            f"got logits {logits.shape} and labels {labels.shape}"
        )
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise TypeError(
            f"cross-entropy needs integer labels, got {labels.dtype}; pass another loss for real-valued targets"
        )
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    # a negative label would count classes from the end
    labels = jnp.where(labels < 0, logits.shape[-1], labels)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    correct = (jnp.argmax(logits, axis=-1) == labels).astype(loss.dtype)
    return Outputs(_mean_per_example(loss), {"accuracy": _mean_per_example(correct)})


def _mean_per_example(values: Array) -> Array:
    return values.mean(axis=tuple(range(1, values.ndim)))


def compute_dtype(name: str) -> Any:
    """What a Flax layer takes as `dtype` for the precision of its computation; parameters are float32 either way.

    Args:
        name: `"float32"`, or `"bfloat16"` for half the memory traffic and the fast matrix units of an accelerator (on a
            CPU without bfloat16 units a step takes several times as long).

    Returns:
        `None` for float32 (layers then compute in the precision of their parameters), else `jnp.bfloat16`.
    """
    return jnp.bfloat16 if name == "bfloat16" else None


def checked(make: Callable[P, Model]) -> Callable[P, Model]:
    """Decorator of a constructor of models: arguments annotated as `int` must be whole numbers >= 1, those of a
    `Literal` one of its values (`TypeError` or `ValueError` with the model, the option and what was passed)."""
    signature = inspect.signature(make)

    @functools.wraps(make)
    def construct(*args: P.args, **kwargs: P.kwargs) -> Model:
        given, kinds = signature.bind(*args, **kwargs), typing.get_type_hints(make)
        for name, value in given.arguments.items():
            if kinds[name] is int:
                given.arguments[name] = check_whole(make.__name__, name, value)
            elif typing.get_origin(kinds[name]) is Literal:
                check_choice(make.__name__, name, value, typing.get_args(kinds[name]))
        return make(*given.args, **given.kwargs)

    return construct


def check_widths(owner: str, name: str, value: Iterable[int], needed: str, length: int | None = None) -> tuple:
    """A list of whole numbers >= 1, of `length` if given, as a tuple; `needed` says in the error what is expected.

    Args:
        owner, name: what the option belongs to, and which, for the message.
        value: what was passed.
        needed: what it must be.
        length: how many there must be.
    """
    widths = tuple(value) if isinstance(value, Iterable) else None
    if widths is None or length not in (None, len(widths)):
        raise ValueError(f"{owner}: {name} must be {needed}, got {value!r}")
    return tuple(check_whole(owner, name, width) for width in widths)
