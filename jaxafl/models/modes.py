"""The two modes of a network, training and evaluation, with the flags of networks and their values."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

TRAINING = (
    *("train", "training", "is_training", "is_train", "train_mode", "training_mode"),
    *("enable_dropout", "update_stats"),
)
EVALUATION = (
    *("deterministic", "inference", "use_running_average", "is_inference", "inference_mode", "is_deterministic"),
    *("eval", "evaluate", "evaluation", "is_eval", "is_evaluation", "eval_mode", "test", "testing", "is_test"),
    "disable_dropout",
)
UNKNOWN = inspect.Parameter.empty


def by_convention(name: str, train: bool) -> bool | None:
    """Returns the value of a flag with a known name, or `None` for any other name."""
    return train if name in TRAINING else not train if name in EVALUATION else None


def is_flag(parameter: inspect.Parameter) -> bool:
    """Returns True if a parameter has a known name, and no default other than None, True or False."""
    default = parameter.default
    known = by_convention(parameter.name, True) is not None
    return known and (default is UNKNOWN or default is None or isinstance(default, bool))


@dataclass(frozen=True)
class Modes:
    """User's values of flags for the two modes.

    A name that the network takes, as an argument of its call or as an attribute, addresses only the network. Any other
    name addresses every submodule that takes it. `path/name` addresses the submodules at a path, in which `*` matches
    anything.

    Attributes:
        owner: the adapter, for messages.
        network: the name of the network.
        training, evaluation: name -> value.
        reserved: the names that address only the network.
        used: the names that have had an effect, filled in while the network is traced.
    """

    owner: str
    network: str
    training: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    reserved: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)

    @classmethod
    def checked(cls, owner: str, training: Any, evaluation: Any, network: str) -> Modes:
        """Constructs modes from the two options of an adapter, either of which may be `None`."""
        for name, given in (("training", training), ("evaluation", evaluation)):
            if given is not None and not (isinstance(given, Mapping) and all(isinstance(key, str) for key in given)):
                raise TypeError(
                    f"{owner}: {name} must be a dict of what the network is given in that mode, such as "
                    f"{{'deterministic': {name == 'evaluation'}}}, got {given!r}"
                )
        return cls(owner, network, dict(training or {}), dict(evaluation or {}))

    def given(self, train: bool) -> Mapping[str, Any]:
        """Returns the user's values for a mode."""
        return self.training if train else self.evaluation

    @property
    def names(self) -> set[str]:
        """Names of all given values, without paths."""
        return {key.rpartition("/")[2] for key in (*self.training, *self.evaluation)}

    def nested(self, path: str, name: str, train: bool) -> Any:
        """Returns the user's value for a flag of a submodule, or `UNKNOWN`."""
        for key, value in self.given(train).items():
            if key not in self.reserved and (key == name or fnmatch.fnmatchcase(f"{path}/{name}", key)):
                self.used.add(key)
                return value
        return UNKNOWN

    def with_still(self, layers: Iterable[str]) -> Modes:
        """Returns modes in which layers use running statistics in training; values of the user are kept."""
        frozen = {f"{path}/use_running_average": True for path in layers}
        return dataclasses.replace(self, training={**self.training, **frozen}) if frozen else self

    def check_used(self, flags: Iterable[str]) -> None:
        """Raises `TypeError` for a name that no part of the network takes; `flags` are the flags of its parts."""
        for key in (*self.training, *self.evaluation):
            if key not in self.reserved | self.used:
                near = difflib.get_close_matches(key, list(flags), 1)
                raise TypeError(
                    f"{self.owner}: no part of {self.network} takes {key!r}, which is given for one of its modes"
                    + (f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(sorted(flags)) or 'no flags'}")
                )


def mode_arguments(
    call: Callable[..., Any], modes: Modes, first: int, also: tuple[str, ...] = ()
) -> dict[str, inspect.Parameter]:
    """Returns the parameters of a call whose values depend on the mode, and those in `also`.

    Args:
        call: the function, unbound.
        modes: the user's values; the names of the parameters are added to `modes.reserved`.
        first: number of parameters that are passed by position.
        also: further names that the caller passes.

    Raises:
        TypeError: the call requires another argument.
    """
    try:
        parameters = list(inspect.signature(call).parameters.values())[first:]
    except ValueError:  # raised for a function that is not written in Python
        return {}
    found: dict[str, inspect.Parameter] = {}
    for parameter in parameters:
        name = parameter.name
        kind = parameter.kind
        if kind is parameter.VAR_KEYWORD and not getattr(call, "__qualname__", "").startswith("Sequential."):
            found |= {key: parameter.replace(name=key) for key in modes.names if "/" not in key and key not in found}
        if kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        modes_that_say = (name in modes.training) + (name in modes.evaluation)
        if name in also or is_flag(parameter) or modes_that_say == 2:
            found[name] = parameter
        elif parameter.default is UNKNOWN:
            raise TypeError(
                f"{modes.owner}: {modes.network} requires {name!r}, whose value in training and in evaluation is not "
                f"known: give training={{{name!r}: ...}} and evaluation={{{name!r}: ...}} beside the network, or it a "
                f"default (known are the input, mask, {', '.join(TRAINING[:3])}, {', '.join(EVALUATION[:3])} ...)"
            )
        elif modes_that_say:
            found[name] = parameter
    modes.reserved.update(found)
    return found


def keywords(arguments: Mapping[str, inspect.Parameter], modes: Modes, train: bool, **also: Any) -> dict[str, Any]:
    """Returns the arguments of a call in a mode: the user's values, else those in `also`, else by convention."""
    found = {}
    for name in arguments:
        value = modes.given(train).get(name, also.get(name, by_convention(name, train)))
        if name in modes.given(train) or value is not None:
            found[name] = value
    return found
