"""The contract between model and simulator."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxafl.models.metrics import Better, check_better
from jaxafl.options import Summarised, UserError, check_choice, shown

Array: TypeAlias = jax.Array
Key: TypeAlias = jax.Array
Params: TypeAlias = Any
State: TypeAlias = Any
Precision: TypeAlias = Literal["float32", "tf32", "bfloat16"]
"""Precision of a model's computation, see `Model.at`."""
_predicting: contextvars.ContextVar[bool] = contextvars.ContextVar("predicting", default=False)
_watched: contextvars.ContextVar[tuple[Array, list[int]] | None] = contextvars.ContextVar("watched", default=None)
_PRODUCTS = {"float32": "float32", "tf32": "tensorfloat32", "bfloat16": "default"}


class Batch(NamedTuple):
    """Mini-batch of one client.

    Attributes:
        x: preprocessed inputs [B, ...], an array or a pytree of arrays.
        y: targets [B, ...]: integer labels or floats.
        mask: bool [B]; False marks the padding of a partial batch, which must not influence any result.
    """

    x: Array
    y: Array
    mask: Array


class Outputs(NamedTuple):
    """Loss and metrics of a batch per example; the simulator computes masked means.

    Attributes:
        loss: float [B].
        metrics: name -> [B]; each becomes a variable of the result. Figures show `"accuracy"`. The direction in which a
            metric is better is known by its name, or declared with the model (`better`).
        squares: name -> [B]; each becomes a metric, the square root of the mean: `{"rmse": (prediction - y) ** 2}`.
        logarithms: name -> [B]; each becomes a metric, e to the power of the mean: `{"perplexity": loss}`.
    """

    loss: Array
    metrics: dict[str, Array]
    squares: dict[str, Array] = {}  # never changed in place
    logarithms: dict[str, Array] = {}

    @property
    def values(self) -> dict[str, Array]:
        """The values of all metrics by name, [B] each."""
        return {**self.metrics, **self.squares, **self.logarithms}


Init = Callable[[Key, Batch], tuple[Params, State]]
Apply = Callable[[Params, State, Batch, Key, bool], tuple[Outputs, State]]


@dataclass(frozen=True, eq=False, repr=False)
class Model(Summarised):
    """Model of a simulation, constructed by `from_linen`, `from_nnx`, `from_torch` or `from_functions`.

    Equality and hash are by identity, so that a model can be a static argument of a compiled function.

    Attributes:
        name: the name in results and tables.
        init: `(key, batch) -> (params, state)`. Of `batch`, an example batch (B = 1), only shapes and dtypes matter.
            `params` is the pytree that is trained and federated. `state` is the pytree of everything else that the
            model carries from step to step (running statistics), or `{}`. Python floats of the result become arrays,
            and float32 becomes float64 with `jax_enable_x64`. Parameters of fewer bits become float32, in which they
            are trained and averaged; `apply` gets them in their own type.
        apply: `(params, state, batch, key, train) -> (Outputs, state)`. `key` feeds dropout and the like; `train` is a
            Python bool. A model with `frozen` arrays takes them as its last argument.
        description: options of the model that can be written as JSON, for result files.
        frozen: pytree of numpy arrays that are neither trained nor federated (a pretrained base), or a function of an
            example batch that returns it, see `held`. One copy on the device serves all clients; ring and updates do
            not contain it. `None` if nothing is frozen.
        sees_mask: True if the state (batch statistics) excludes the padding that `Batch.mask` marks. If False, training
            with padding is refused.
        references: citations for a run with this model: keys of `jaxafl.references.BIBTEX`, or BibTeX entries.
        precision: precision of the computation, see `at`.
        better: metric -> `"higher"` or `"lower"`, whichever is better. Names with the words `accuracy`, `f1`, `auc`,
            `loss`, `error`, `perplexity` ... need no entry, see `jaxafl.models.metrics`.
    """

    name: str
    init: Init
    apply: Callable[..., tuple[Outputs, State]]
    description: dict[str, Any] = field(default_factory=dict)
    frozen: Any = None
    sees_mask: bool = True
    references: tuple[str, ...] = ()
    precision: Precision = "float32"
    better: Mapping[str, Better] = field(default_factory=dict)
    _others: dict[str, Model] = field(default_factory=dict, init=False)
    _held: dict[str, Any] = field(default_factory=dict, init=False)
    # types of parameters with fewer than 32 bits, by path, once `init` was traced; models made of this one share it
    _low: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_better(self.name, self.better)
        init, name, low = self.init, self.name, self._low

        def widened(path: Any, leaf: Array) -> Array:
            if not jnp.issubdtype(leaf.dtype, jnp.floating) or leaf.dtype.itemsize >= 4:
                return leaf
            low[path_of(path)] = leaf.dtype
            return _widened(leaf)

        @functools.wraps(init)
        def init_in_floats(key: Key, batch: Batch) -> tuple[Params, State]:
            with noted(name):
                params, state = jax.tree.map(_in_precision, init(key, batch))
                return jax.tree.map_with_path(widened, params), state

        object.__setattr__(self, "init", init_in_floats)

    def as_made(self, params: Params) -> Params:
        """Returns parameters in the types that the network gave them, such as bfloat16; traceable."""
        if not self._low:
            return params
        return jax.tree.map_with_path(lambda path, leaf: leaf.astype(self._low.get(path_of(path), leaf.dtype)), params)

    def held(self, batch: Batch) -> Any:
        """Returns the frozen arrays for samples with the shapes of `batch`, cached; for a batch of shapes, shapes."""
        if not callable(self.frozen):
            return self.frozen
        if isinstance(jax.tree.leaves(batch)[0], jax.ShapeDtypeStruct):
            return jax.eval_shape(self.frozen, batch)
        form = f"{jnp.result_type(float)} {jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), batch)}"
        if form not in self._held:
            self._held[form] = jax.tree.map(np.asarray, self.frozen(batch))
        return self._held[form]

    def at(self, precision: Precision) -> Model:
        """Returns this model in another precision, cached.

        Args:
            precision: `"float32"`; `"tf32"`: products of numbers rounded to 10 bits of mantissa, on GPUs that have it;
                `"bfloat16"`: parameters, frozen arrays and inputs are rounded to bfloat16, and the network computes in
                it. Exceptions are the parts that layers keep in float32 (statistics of normalisation, cells of an
                LSTM, softmax, loss). Training, sending, averaging and storing always use float32.

        Raises:
            ValueError: `precision` has another value, the device has no TF32, or this model is already rounded.
        """
        check_choice("Simulation", "precision", precision, typing.get_args(Precision))
        if precision == "tf32" and jax.default_backend() != "gpu":
            raise UserError(f'precision="tf32" is of NVIDIA GPUs, JAX computes on {jax.default_backend()}')
        if precision == self.precision:
            return self
        if self.precision != "float32":
            raise UserError(f"the model {self.name} was rounded to {self.precision}; take the one that it was made of")
        if precision not in self._others:
            frozen = self.frozen
            if precision == "bfloat16":
                frozen = (lambda batch: _rounded(self.frozen(batch))) if callable(frozen) else _rounded(frozen)
            described = {**self.description, "precision": precision}
            self._others[precision] = dataclasses.replace(
                self, description=described, frozen=frozen, precision=precision
            )
        return self._others[precision]

    def bound(self, frozen: Any) -> Apply:
        """Returns `apply` in the model's precision with its last argument bound to `frozen`.

        Args:
            frozen: the arrays of `self.frozen` on the device, or their tracers.
        """
        more = () if self.frozen is None else (frozen,)
        products = None if jax.default_backend() == "cpu" else _PRODUCTS[self.precision]
        low, name = self.precision == "bfloat16", self.name

        def apply(params: Params, state: State, batch: Batch, key: Key, train: bool) -> tuple[Outputs, State]:
            params = self.as_made(params)
            if low:
                params, batch = _rounded(params), batch._replace(x=_rounded(batch.x))
            with jax.default_matmul_precision(products), noted(name):
                outputs, new = self.apply(params, state, batch, key, train, *more)
            if isinstance(outputs, Outputs):  # a sum of thousands of numbers of 8 or 16 bits is wrong
                wide = jnp.result_type(float)  # a loss that is complex stays so, and JAX refuses its gradient
                outputs = jax.tree.map(lambda value: jnp.asarray(value, jnp.result_type(value, wide)), outputs)
            if low:
                new = jax.tree.map(lambda new, old: new.astype(old.dtype), new, state)
            return outputs, new

        return apply

    def outputs(self, params: Params, x: Any, state: State = types.MappingProxyType({})) -> Any:
        """Returns what the network returns for inputs in evaluation, e.g. logits [B, C].

        Args:
            params: trained parameters.
            x: preprocessed inputs [B, ...], as the network takes them. `Simulation.predict` takes raw samples.
            state: non-trainable state, such as `Trained.model_state`, if the model has any.

        Raises:
            ValueError: the model computes its loss without predictions (`from_functions` without `outputs`).
        """
        count = len(jax.tree.leaves(x)[0])
        inputs = Batch(x, jnp.zeros(count, jnp.int32), jnp.ones(count, bool))
        held = self.held(jax.tree.map(lambda leaf: leaf[:1], inputs))
        return self._outputs(params, dict(state), inputs, held)

    @functools.cached_property
    def _outputs(self) -> Callable[[Params, State, Batch, Any], Any]:
        key = jax.random.key(0, impl="threefry2x32")

        def outputs(params: Params, state: State, batch: Batch, held: Any) -> Any:
            jax.eval_shape(self.init, key, batch)  # so that `as_made` knows the types
            return predictions_of(self.name, self.bound(held), params, state, batch, key, False)

        return jax.jit(outputs)

    def summary(self) -> dict[str, Any]:
        """Returns the name, the options and the number of frozen values, by name."""
        frozen = 0 if callable(self.frozen) else sum(leaf.size for leaf in jax.tree.leaves(self.frozen))
        return {"name": self.name, **({"frozen": frozen} if frozen else {}), **self.description}


class Predictions(NamedTuple):
    """Predictions of a batch, which `Model.apply` returns in the place of loss and metrics."""

    values: Any


@contextlib.contextmanager
def noted(model: str) -> Iterator[None]:
    """Adds the name of the model to errors of the network and its loss."""
    try:
        yield
    except Exception as error:
        error.add_note(f"raised in the model {model}, which JAX traces")
        raise


def scored(score: Callable[[], Outputs | Array], batch: Batch, predict: Callable[[], Any] | None) -> Any:
    """Returns loss and metrics per example, 0 for padding, without gradient; within `predictions_of`, the predictions.

    Args:
        score: () -> loss [B], or loss and metrics.
        batch: the batch.
        predict: () -> predictions; `None` if the model has none.

    Raises:
        ValueError: the loss or a metric does not have one value per example.
    """
    if predict is not None and _predicting.get():
        return Predictions(predict())
    found = score()
    outputs = found if isinstance(found, Outputs) else Outputs(found, {})
    for role, values in ({"loss": outputs.loss} | outputs.values).items():
        if getattr(values, "shape", None) != batch.mask.shape:
            raise UserError(
                f"model: its {role} is {shown(values)}; expected one value per example, an array of shape "
                f"{batch.mask.shape}. Do not average over the batch; with metrics, return "
                'jaxafl.models.Outputs(loss, {"accuracy": correct})'
            )
    return jax.tree.map(lambda values: jnp.where(batch.mask, values, jnp.zeros_like(values)), outputs)


def judged(loss: Callable[[Any, Batch], Outputs | Array], predictions: Any, batch: Batch) -> Any:
    """Returns what `scored` does for the loss of a network's predictions."""
    return scored(lambda: loss(predictions, batch), batch, lambda: predictions)


def predictions_of(name: str, apply: Callable[..., Any], *arguments: Any) -> Any:
    """Returns the predictions of a model, floats in the precision of JAX; traceable.

    Args:
        name: name of the model, for messages.
        apply: `Model.apply`, with the frozen arrays bound.
        arguments: arguments of `apply`.

    Raises:
        ValueError: the model computes its loss without predictions.
    """
    before = _predicting.set(True)
    try:
        found, _ = apply(*arguments)
    finally:
        _predicting.reset(before)
    if not isinstance(found, Predictions):
        raise UserError(
            f"the model {name} has no outputs, because its loss is all that it computes; construct it with "
            "from_linen, from_nnx or from_torch, or add from_functions(..., outputs=lambda params, batch: ...)"
        )
    return jax.tree.map(_widened, found.values)


@contextlib.contextmanager
def recorded_classes(labels: Array) -> Iterator[list[int]]:
    """Records, within the context, the numbers of classes C of all cross-entropies of one traced array of labels."""
    found: list[int] = []
    before = _watched.set((labels, found))
    try:
        yield found
    finally:
        _watched.reset(before)


def record_classes(labels: Array, count: int) -> None:
    """Appends the number of classes of a cross-entropy to the list of `recorded_classes`, if it watches the labels."""
    if (watched := _watched.get()) is not None and watched[0] is labels:
        watched[1].append(count)


def path_of(path: Any) -> str:
    """Joins a path in a pytree by `/`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _in_precision(leaf: Any) -> Any:
    """Converts a number to an array, and floats of 32 and 64 bits to the precision of JAX."""
    array = jnp.asarray(leaf)
    single = array.dtype in (jnp.float32, jnp.float64)
    return lax.convert_element_type(array, jnp.result_type(float)) if single else array


def _widened(leaf: Array) -> Array:
    return leaf.astype(jnp.result_type(float)) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf


def _rounded(tree: Any) -> Any:
    """Casts all floats of a tree to bfloat16."""
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)
