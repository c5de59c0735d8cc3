"""Base class of local training and servers that use an Optax optimiser with hyperparameters."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxafl.options import Number, Part, Wrapped, as_array, check_keywords, check_number, in_order, kept, static
from jaxafl.options.user_code import traced_method

_BOUNDS: dict[str, dict[str, Any]] = {name: {"least": 0} for name in ("learning_rate", "momentum", "noise_multiplier")}
_BOUNDS |= {name: {"above": 0} for name in ("max_norm", "l2_norm_clip")}


class MadeOptimizer(Wrapped):
    """Constructor, without arguments, of a `GradientTransformation` that the user has made; its numbers are static."""

    def __init__(self, transformation: optax.GradientTransformation) -> None:
        super().__init__(transformation, "GradientTransformation")

    def __call__(self) -> optax.GradientTransformation:
        return self.content


class Optimised(Part):
    """Base of parts with an optimiser: an Optax constructor with its hyperparameters by name, or a made transformation.

    Keyword arguments that are no options of the part are passed to the constructor. Numbers can be swept; switches,
    functions and a made transformation are static. Missing or unknown arguments raise `TypeError` when the part is
    constructed.
    """

    derives = False

    optimizer: Callable[..., optax.GradientTransformation] = static(default=optax.sgd)
    hyperparameters: dict[str, Number] = dataclasses.field(default_factory=dict, kw_only=True)
    switches: tuple[tuple[str, Any], ...] = static(default=(), kw_only=True)

    def __init__(self, *args: Any, **options: Any) -> None:
        raise TypeError("Optimised is a base class: make a jaxafl.Client, or inherit from jaxafl.server.OptaxServer")

    def __init_subclass__(cls, init: bool = True) -> None:
        super().__init_subclass__(init=init)
        construct = cls.__init__
        fields = {field.name for field in dataclasses.fields(cls)}

        @functools.wraps(construct)
        def __init__(self: Any, *args: Any, **given: Any) -> None:
            more = {name: given.pop(name) for name in list(given) if name not in fields}
            present = given.get("hyperparameters")
            new = bool(more) or present is None  # other copies have them already
            if new:
                more = dict(given.pop("switches", ())) | given.pop("hyperparameters", {}) | more
            construct(self, *args, **given)
            if new:
                self._adopt(more, present or {})

        hidden = ("hyperparameters", "switches", "_attack", "_sizes")
        shown = [one for one in inspect.signature(construct).parameters.values() if one.name not in hidden]
        more = inspect.Parameter("hyperparameters", inspect.Parameter.VAR_KEYWORD)
        __init__.__signature__ = inspect.Signature([*shown, more])  # type: ignore[attr-defined]
        cls.__init__ = __init__  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.optimizer, optax.GradientTransformation):
            object.__setattr__(self, "optimizer", MadeOptimizer(self.optimizer))

    def make_optimizer(self, rate_factor: Any = 1.0, **more: Any) -> optax.GradientTransformation:
        """Builds the optimiser with its learning rate times a factor; `more`: further arguments of the constructor."""
        numbers = dict(self.hyperparameters)
        if "learning_rate" in numbers:
            numbers["learning_rate"] = numbers["learning_rate"] * rate_factor
        return self.optimizer(**numbers, **dict(self.switches), **more)

    def rate_at(self, step: Any, factor: Any = 1.0) -> Any:
        """Returns the learning rate of a step times a factor; 0 if the optimiser is made, and its rate not known."""
        given = {**dict(self.switches), **self.hyperparameters}.get("learning_rate", 0.0)
        return (given(step) if callable(given) else given) * factor

    @property
    def optimizer_name(self) -> str:
        """Name of the optimiser for messages."""
        return getattr(self.optimizer, "__name__", repr(self.optimizer))

    def check_hyperparameters(self, num_clients: int | None = None) -> None:
        """Raises `ValueError` or `TypeError` for invalid hyperparameters; `num_clients`: N if arrays [N] are valid."""
        each = {"per_client": num_clients is not None, "num_clients": num_clients}
        for name, value in (*self.hyperparameters.items(), *self.switches):
            number = name in self.hyperparameters or (name in _BOUNDS and not callable(value))
            if number and (value is not None or name == "learning_rate"):
                check_number(self.name, name, value, **_BOUNDS.get(name, {}), **each)

    def _adopt(self, given: dict[str, Any], present: Mapping[str, Any]) -> None:
        """Sets the hyperparameters and switches from the arguments that are no options of the part.

        Args:
            given: the arguments.
            present: the hyperparameters of the part that this one copies, whose names remain numbers.
        """
        known = inspect.signature(self.optimizer).parameters
        own = [*inspect.signature(type(self)).parameters][:-1]
        if not any(one.kind is one.VAR_KEYWORD for one in known.values()):
            check_keywords(f"{self.name}({self.optimizer_name})", given, [*own, *known])
        numbers, switches = dict(self.hyperparameters), {}
        for name, value in given.items():
            value = in_order(self.name, name, value)
            if type(value) in (list, tuple):
                usual = known[name].default if name in known else None
                free = name in present or usual is None
                if name in _BOUNDS or is_number(usual) or (free and all(map(is_number, value))):
                    value = as_array(self.name, name, value)
            if is_number(value) and not (type(value) is int and _is_whole(known.get(name))):
                numbers[name] = kept(value)
            else:
                switches[name] = value
        object.__setattr__(self, "hyperparameters", numbers)
        object.__setattr__(self, "switches", tuple(switches.items()))


def _is_whole(parameter: inspect.Parameter | None) -> bool:
    """Returns True if a constructor declares a whole number, which may fix shapes or control flow."""
    if parameter is None or parameter.annotation is parameter.empty:
        return parameter is not None and type(parameter.default) is int
    words = {*re.findall(r"\w+", str(parameter.annotation).partition("Callable")[0])}  # a schedule has its own types
    return "int" in words and not words & {"float", "ArrayLike", "Numeric", "ScalarOrSchedule"}


def is_number(value: Any) -> bool:
    """Returns True if a value is a number or an array of numbers, and thus a pytree leaf."""
    kinds = float | int | np.generic | np.ndarray | jax.Array
    return isinstance(value, kinds) and not isinstance(value, bool | np.bool_ | str)


def optimizer_step(
    name: str, optimizer: optax.GradientTransformation, gradient: Any, state: Any, params: Any, extra: Mapping[str, Any]
) -> tuple[Any, Any]:
    """Computes (updates, state) by `optimizer.update(gradient, state, params)`, with the extra arguments that it takes.

    Args:
        name: name of the optimiser, for a note on its errors.
        optimizer: Optax transformation.
        gradient, state, params: arguments of its `update`.
        extra: arguments of optimisers that evaluate the objective (`value`, `value_fn` ...).
    """
    update = optax.with_extra_args_support(optimizer).update
    takes = inspect.signature(update).parameters
    if inspect.Parameter.VAR_KEYWORD not in map(operator.attrgetter("kind"), takes.values()):
        extra = {one: value for one, value in extra.items() if one in takes}
    with traced_method(name, "update", "a field `rng_key` of its state"):
        return update(gradient, state, params, **extra)


def nodes_of(state: optax.OptState, kinds: type | tuple[type, ...]) -> list[Any]:
    """Returns the nodes of these types in an optimiser's state."""

    def is_one(node: Any) -> bool:
        return isinstance(node, kinds)

    return [*filter(is_one, jax.tree.leaves(state, is_leaf=is_one))]


def takes_examples(state: optax.OptState) -> bool:
    """Returns True if an optimiser with this state takes gradients of single samples, [B, ...]."""
    return bool(nodes_of(state, optax.contrib.DifferentiallyPrivateAggregateState))


def objective_arguments(total: Callable[[Any], tuple[Any, Any]], value: Any, gradient: Any) -> dict[str, Any]:
    """Returns the arguments of optimisers that evaluate the objective: Polyak's step, L-BFGS, SAM, Sophia.

    Args:
        total: function from parameters to the objective of the mini-batch and its gradient.
        value, gradient: objective and gradient at the current parameters.
    """

    @jax.custom_vjp  # JAX cannot differentiate the loop over micro-batches in reverse mode
    def objective(params: Any) -> Any:
        return total(params)[0]

    objective.defvjp(total, lambda found, change: (jax.tree.map(lambda g: jnp.asarray(change, g.dtype) * g, found),))

    def value_fn(params: Any, grad_fn: Any = None, obj_fn: Any = None) -> Any:
        return objective(params)  # a line search refuses arguments that its function does not name

    gradient_of = {"grad_fn": lambda params, *_: total(params)[1], "obj_fn": objective}
    return {"value": value, "grad": gradient, "value_fn": value_fn, **gradient_of}


def dp_sgd(
    learning_rate: optax.ScalarOrSchedule,
    max_norm: Number,
    noise_multiplier: Number,
    momentum: Number | None = None,
    nesterov: bool = False,
) -> optax.GradientTransformation:
    """Builds SGD on clipped gradients of single samples with Gaussian noise, the optimiser of private local steps.

    A local step is one of SGD on (1/B) (Σ_b g_b min(1, C / ‖g_b‖) + N(0, (zC)² I)) with the gradients g_b of the B
    samples of a mini-batch. B is the batch size, also of a smaller batch at the end of an epoch. The noise is drawn for
    every local step of every run. The gradients of all B samples are in memory at once.

    Any Optax optimiser that begins with `optax.contrib.differentially_private_aggregate` works in the same way.

    Args:
        learning_rate: η, a number or an Optax schedule of local steps.
        max_norm: clipping norm C > 0 of the gradient of a sample.
        noise_multiplier: z ≥ 0, standard deviation of the noise over C.
        momentum: β in [0, 1), with m ← βm + gradient; `None` for no momentum.
        nesterov: use Nesterov's momentum.

    References:
        Abadi et al. (2016), "Deep learning with differential privacy", CCS, Algorithm 1.

    Examples:
        >>> import jaxafl as afl
        >>> options = {"learning_rate": 0.1, "max_norm": 1.0, "noise_multiplier": 1.1}
        >>> afl.Client(afl.client.dp_sgd, **options, steps=10, batch_size=16).hyperparameters
        {'learning_rate': 0.1, 'max_norm': 1.0, 'noise_multiplier': 1.1}
    """
    aggregate = optax.contrib.differentially_private_aggregate(max_norm, noise_multiplier, key=0)  # replaced per run
    return optax.chain(aggregate, optax.sgd(learning_rate, momentum, nesterov))
