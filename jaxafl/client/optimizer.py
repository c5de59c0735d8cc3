"""An Optax optimiser with its hyper-parameters, for local training and for servers."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

from jaxafl.options import Bounds, Number, Part, check_number, static


class Optimised(Part):
    """Base of parts with an optimiser: an Optax constructor, and its hyper-parameters by name.

    Whatever is given by name and is no option of the part itself goes to the constructor: numbers can be swept,
    switches and functions are static. A missing or unknown one is a `TypeError` when the part is made.
    """

    optimizer: Callable[..., optax.GradientTransformation] = static(default=optax.sgd)
    hyperparameters: dict[str, Number] = dataclasses.field(
        default_factory=dict, kw_only=True, metadata={"bounds": Bounds(checked=False)}
    )
    switches: tuple[tuple[str, Any], ...] = static(default=(), kw_only=True)

    def __init__(self, *args: Any, **options: Any) -> None:
        raise TypeError("Optimised is a base class")

    def __init_subclass__(cls, init: bool = True) -> None:
        super().__init_subclass__(init=init)
        make = cls.__init__
        own = {field.name for field in dataclasses.fields(cls)}

        @functools.wraps(make)
        def __init__(self: Any, *args: Any, **given: Any) -> None:
            more = {name: given.pop(name) for name in list(given) if name not in own}
            make(self, *args, **given)
            if "hyperparameters" not in given:  # else it is a copy, or made of a pytree
                self._adopt(more)

        parameters = list(inspect.signature(make).parameters.values())
        shown = [parameter for parameter in parameters if parameter.name not in ("hyperparameters", "switches")]
        more = inspect.Parameter("hyperparameters", inspect.Parameter.VAR_KEYWORD)
        __init__.__signature__ = inspect.Signature([*shown, more])  # type: ignore[attr-defined]
        cls.__init__ = __init__  # type: ignore[method-assign]

    def make_optimizer(self, rate_factor: Any = 1.0) -> optax.GradientTransformation:
        """The optimiser, its learning rate times a factor."""
        numbers = dict(self.hyperparameters)
        if "learning_rate" in numbers:
            numbers["learning_rate"] = numbers["learning_rate"] * rate_factor
        return self.optimizer(**numbers, **dict(self.switches))

    def check_hyperparameters(self) -> None:
        """Raises `ValueError` or `TypeError` for numbers that cannot work."""
        for name, value in self.hyperparameters.items():
            check_number(self.name, name, value, least=0 if name in ("learning_rate", "momentum") else None)
        for name, value in self.switches:
            if name == "learning_rate" and not callable(value):
                raise TypeError(f"{self.name}: learning_rate must be a number or an Optax schedule, got {value!r}")

    def _adopt(self, given: dict[str, Any]) -> None:
        """Takes what was given beside the part's own options."""
        if not callable(self.optimizer) or isinstance(self.optimizer, tuple):
            raise TypeError(
                f"{self.name}: optimizer must be an Optax constructor such as optax.sgd, not {self.optimizer!r}; "
                "give its options by name"
            )
        known = inspect.signature(self.optimizer).parameters
        unknown = [name for name in given if name not in known]
        if unknown and not any(one.kind is one.VAR_KEYWORD for one in known.values()):
            name = getattr(self.optimizer, "__name__", repr(self.optimizer))
            raise TypeError(f"{name} has no option {', '.join(unknown)}; it has {', '.join(known)}")
        by_name = [one for one in known.values() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
        there = {*given, *(field.name for field in dataclasses.fields(self))}
        missing = [one.name for one in by_name if one.default is one.empty and one.name not in there]
        if missing:
            raise TypeError(f"{self.name}: the optimiser needs {', '.join(missing)}")
        numbers = {name: value for name, value in given.items() if is_number(value)}
        object.__setattr__(self, "hyperparameters", self.hyperparameters | numbers)
        object.__setattr__(self, "switches", tuple((name, given[name]) for name in given if name not in numbers))


def is_number(value: Any) -> bool:
    """Whether an option is a number, or an array of numbers, and so a leaf."""
    kinds = float | int | np.generic | np.ndarray | jax.Array
    return isinstance(value, kinds) and not isinstance(value, bool | np.bool_ | str)
