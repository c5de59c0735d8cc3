"""Base class of local training and servers that use an Optax optimiser with hyperparameters."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxafl.client.stepping import objective_arguments, optimizer_step
from jaxafl.options import (
    Bounds,
    Number,
    Part,
    UserError,
    Wrapped,
    as_array,
    check_number,
    did_you_mean,
    in_order,
    kept,
    static,
)

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

    optimizer: Callable[..., optax.GradientTransformation] = static(default=optax.sgd)
    hyperparameters: dict[str, Number] = dataclasses.field(
        default_factory=dict, kw_only=True, metadata={"bounds": Bounds(checked=False)}
    )
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
            construct(self, *args, **given)
            if "hyperparameters" not in given:  # copies and rebuilt pytrees have them already
                self._adopt(more)
            elif more:  # of `dataclasses.replace`, which passes the present ones, too
                present = dict(self.switches) | self.hyperparameters
                object.__setattr__(self, "hyperparameters", {})
                self._adopt(present | more)

        parameters = list(inspect.signature(construct).parameters.values())
        shown = [
            parameter
            for parameter in parameters
            if parameter.name not in ("hyperparameters", "switches", "_attack", "_sizes")
        ]
        more = inspect.Parameter("hyperparameters", inspect.Parameter.VAR_KEYWORD)
        __init__.__signature__ = inspect.Signature([*shown, more])  # type: ignore[attr-defined]
        cls.__init__ = __init__  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.optimizer, optax.GradientTransformation):
            object.__setattr__(self, "optimizer", MadeOptimizer(self.optimizer))
        numbers = {
            name: kept(as_array(self.name, name, value) if type(value) in (list, tuple) else value)  # values of a sweep
            for name, value in self.hyperparameters.items()
        }
        object.__setattr__(self, "hyperparameters", numbers)

    def make_optimizer(self, rate_factor: Any = 1.0, **more: Any) -> optax.GradientTransformationExtraArgs:
        """Builds the optimiser with its learning rate times a factor; `more`: further arguments of the constructor."""
        numbers = dict(self.hyperparameters)
        if "learning_rate" in numbers:
            numbers["learning_rate"] = numbers["learning_rate"] * rate_factor
        switches = {name: value.key if isinstance(value, GivenKey) else value for name, value in self.switches}
        made = self.optimizer(**numbers, **switches, **more)
        if not (hasattr(made, "init") and hasattr(made, "update")):
            raise UserError(
                f"{self.name}: optimizer must return an Optax transformation, with init and update, and "
                f"{self.optimizer_name} returned {made!r:.100}"
            )
        return optax.with_extra_args_support(cast(Any, made))

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
        for name, value in self.hyperparameters.items():
            check_number(self.name, name, value, **_BOUNDS.get(name, {}), **each)
        for name, value in self.switches:
            if name == "learning_rate" and not callable(value):
                raise TypeError(f"{self.name}: learning_rate must be a number or an Optax schedule, got {value!r}")
            if name in _BOUNDS and value is not None and not callable(value):
                check_number(self.name, name, value, **_BOUNDS[name], **each)

    def _problem(self, numbers: dict[str, Any], given: dict[str, Any]) -> str:
        """Returns the error of an optimiser step with these numbers traced and all else as given; empty if none."""
        fixed = {name: value.key if isinstance(value, GivenKey) else value for name, value in given.items()}
        fixed, numbers = ({name: _of_one_client(value) for name, value in table.items()} for table in (fixed, numbers))
        rate = {"learning_rate": getattr(self, "learning_rate", None)} if hasattr(self, "learning_rate") else {}

        def start(numbers: dict[str, Any]) -> Any:
            optimizer = self.optimizer(**(rate | fixed | numbers))
            zero = {"x": jnp.zeros(1)}
            extra = objective_arguments(lambda x: (jnp.sum(x["x"]), x), jnp.float32(0), zero)
            return optimizer_step("", optimizer, zero, optimizer.init(zero), zero, lambda: extra)[0]

        try:
            jax.eval_shape(start, numbers)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def _adopt(self, given: dict[str, Any]) -> None:
        """Sets the hyperparameters and switches from the arguments that are no options of the part."""
        if not callable(self.optimizer):
            raise TypeError(
                f"{self.name}: optimizer must be an Optax constructor such as optax.sgd, with its options by name, or "
                f"a made transformation such as optax.sgd(0.1), not {self.optimizer!r}"
            )
        if given and isinstance(self.optimizer, MadeOptimizer):
            raise TypeError(
                f"{self.name}: the optimiser is made already, and takes no {', '.join(given)}: give its constructor, "
                "such as optax.sgd, with its options by name"
            )
        known = inspect.signature(self.optimizer).parameters
        unknown = [name for name in given if name not in known]
        if unknown and not any(one.kind is one.VAR_KEYWORD for one in known.values()):
            own = [*inspect.signature(type(self)).parameters][:-1]
            close = did_you_mean(unknown[0], [*own, *known])
            raise TypeError(
                f"{self.optimizer_name} has no option {', '.join(unknown)}; it has {', '.join(known)}, and "
                f"{self.name} has {', '.join(own)}{close}"
            )
        by_name = [one for one in known.values() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
        known_names = {*given, *(field.name for field in dataclasses.fields(self))}
        missing = [one.name for one in by_name if one.default is one.empty and one.name not in known_names]
        if missing:
            raise TypeError(f"{self.name}: the optimiser needs {', '.join(missing)}")
        given = {name: given_key(name, in_order(self.name, name, value)) for name, value in given.items()}
        for name in [name for name, value in given.items() if type(value) in (list, tuple)]:
            usual = known[name].default if name in known else None
            if name in _BOUNDS or is_number(usual) or (usual is None and all(map(is_number, given[name]))):
                given[name] = as_array(self.name, name, given[name])
        numbers = {name: kept(value) for name, value in given.items() if is_number(value)}
        held = {name for name, value in numbers.items() if type(value) is not int or abs(value) >= 2**32}
        others = {name: value for name, value in numbers.items() if name in held or name == "learning_rate"}
        if len(others) < len(numbers):
            problem = self._problem(numbers, given)
            if problem and self._problem(others, given) != problem:
                numbers = others  # a traced length or period fails: it determines shapes or control flow
        object.__setattr__(self, "hyperparameters", self.hyperparameters | numbers)
        object.__setattr__(self, "switches", tuple((name, given[name]) for name in given if name not in numbers))


@dataclasses.dataclass(frozen=True)
class GivenKey:
    """PRNG key as a static option; each run derives keys from it.

    Attributes:
        words: words of the key data.
        kind: JAX's name of the generator.
    """

    words: tuple[int, ...]
    kind: str

    @property
    def key(self) -> jax.Array:
        """JAX key with these words."""
        return jax.random.wrap_key_data(jnp.asarray(self.words, jnp.uint32), impl=self.kind)


def given_key(name: str, value: Any) -> Any:
    """Converts a single PRNG key to a `GivenKey`; returns any other value unchanged.

    Raw uint32 keys are recognised by the option's name, which ends in key, rng or seed.
    """
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key) and not value.shape:
        return GivenKey(tuple(jax.random.key_data(value).tolist()), str(jax.random.key_impl(value)))
    raw = name.split("_")[-1] in ("key", "rng", "seed") and getattr(value, "dtype", None) == np.uint32
    kinds = {(2,): "threefry2x32", (4,): "rbg"}
    return GivenKey(tuple(value.tolist()), kinds[value.shape]) if raw and value.shape in kinds else value


def _of_one_client(value: Any) -> Any:
    """Returns the first entry of an array of one number per client; any other value unchanged."""
    return np.ravel(value)[0] if is_number(value) and np.size(value) > 1 else value


def is_number(value: Any) -> bool:
    """Returns True if a value is a number or an array of numbers, and thus a pytree leaf."""
    kinds = float | int | np.generic | np.ndarray | jax.Array
    return isinstance(value, kinds) and not isinstance(value, bool | np.bool_ | str)
