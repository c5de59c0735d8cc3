"""The two modes of a network, training and evaluation: the flags that networks take, and the values they are given."""

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
    """The value of a flag of a known name; `None` for any other name."""
    return train if name in TRAINING else not train if name in EVALUATION else None


def is_flag(parameter: inspect.Parameter) -> bool:
    """If a parameter of a call has a known name, and no default that is something else than a flag."""
    default = parameter.default
    known = by_convention(parameter.name, True) is not None
    return known and (default is UNKNOWN or default is None or isinstance(default, bool))


@dataclass(frozen=True)
class Modes:
    """Values that a user gives for the two modes.

    A name that the network itself takes, as an argument of its call or as an attribute, is for it alone. Any other name
    is for every submodule that takes it. `path/name` is for the submodules at that path, in which `*` stands for
    anything.

    Attributes:
        owner: the adapter, for messages.
        network: the name of the network.
        training, evaluation: name -> value.
        own: the names that are for the network itself.
        used: the names that have had an effect, filled in while the network is traced.
    """

    owner: str
    network: str
    training: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    own: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)

    @classmethod
    def checked(cls, owner: str, training: Any, evaluation: Any, network: str) -> Modes:
        """The two options of an adapter, either of which may be `None`."""
        for name, given in (("training", training), ("evaluation", evaluation)):
            if given is not None and not (isinstance(given, Mapping) and all(isinstance(key, str) for key in given)):
                raise TypeError(
                    f"{owner}: {name} must be a dict of what the network is given in that mode, such as "
                    f"{{'deterministic': {name == 'evaluation'}}}, got {given!r}"
                )
        return cls(owner, network, dict(training or {}), dict(evaluation or {}))

    def given(self, train: bool) -> Mapping[str, Any]:
        """Values that the user gives for a mode."""
        return self.training if train else self.evaluation

    @property
    def names(self) -> set[str]:
        """The names of all values that are given, without paths."""
        return {key.rpartition("/")[2] for key in (*self.training, *self.evaluation)}

    def nested(self, path: str, name: str, train: bool) -> Any:
        """Value that the user gives for a flag of a submodule; `UNKNOWN` where it is nothing."""
        for key, value in self.given(train).items():
            if key not in self.own and (key == name or fnmatch.fnmatchcase(f"{path}/{name}", key)):
                self.used.add(key)
                return value
        return UNKNOWN

    def with_still(self, layers: Iterable[str]) -> Modes:
        """Returns modes in which layers use running statistics in training, unless the user says otherwise."""
        frozen = {f"{path}/use_running_average": True for path in layers}
        return dataclasses.replace(self, training={**self.training, **frozen}) if frozen else self

    def check_used(self, flags: Iterable[str]) -> None:
        """Raises `TypeError` for a name that no part of the network takes; `flags` are those that it has."""
        for key in (*self.training, *self.evaluation):
            if key not in self.own | self.used:
                near = difflib.get_close_matches(key, list(flags), 1)
                raise TypeError(
                    f"{self.owner}: no part of {self.network} takes {key!r}, which is given for one of its modes"
                    + (f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(sorted(flags)) or 'no flags'}")
                )


def told_arguments(
    call: Callable[..., Any], modes: Modes, first: int, also: tuple[str, ...] = ()
) -> dict[str, inspect.Parameter]:
    """The parameters of a call that a mode decides, and those in `also`.

    Args:
        call: the function, unbound.
        modes: what the user says of them; the names of parameters are added to `modes.own`.
        first: parameters before this one are given by position.
        also: further names that are given.

    Raises:
        TypeError: it requires something else.
    """
    try:
        parameters = list(inspect.signature(call).parameters.values())[first:]
    except ValueError:  # of a function that is not written in Python
        return {}
    told: dict[str, inspect.Parameter] = {}
    for parameter in parameters:
        name, kind = parameter.name, parameter.kind
        if kind is parameter.VAR_KEYWORD and not getattr(call, "__qualname__", "").startswith("Sequential."):
            told |= {key: parameter.replace(name=key) for key in modes.names if "/" not in key and key not in told}
        if kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        modes_that_say = (name in modes.training) + (name in modes.evaluation)
        if name in also or is_flag(parameter) or modes_that_say == 2:
            told[name] = parameter
        elif parameter.default is UNKNOWN:
            raise TypeError(
                f"{modes.owner}: {modes.network} requires {name!r}, whose value in training and in evaluation is not "
                f"known: give training={{{name!r}: ...}} and evaluation={{{name!r}: ...}} beside the network, or it a "
                f"default (known are the input, mask, {', '.join(TRAINING[:3])}, {', '.join(EVALUATION[:3])} ...)"
            )
        elif modes_that_say:
            told[name] = parameter
    modes.own.update(told)
    return told


def keywords(told: Mapping[str, inspect.Parameter], modes: Modes, train: bool, **also: Any) -> dict[str, Any]:
    """The arguments of a call in a mode: what the user says, what is in `also`, or what their names say."""
    found = {}
    for name in told:
        value = modes.given(train).get(name, also.get(name, by_convention(name, train)))
        if name in modes.given(train) or value is not None:
            found[name] = value
    return found
