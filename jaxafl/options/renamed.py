"""Earlier names of options, which work for one more version with a `FutureWarning`."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

EARLIER: dict[str, Mapping[str, str]] = {}
"""Name of a part -> earlier name -> name of its options."""


def current_name(part: Any, name: str, stacklevel: int = 3) -> str:
    """Returns the name of an option of a part or its class; warns if an earlier name is given."""
    new = getattr(part, "renamed", {}).get(name, name)
    if new != name:
        message = f"{part.name}: the option {name!r} is now called {new!r}; the earlier name will be removed"
        warnings.warn(message, FutureWarning, stacklevel=stacklevel)
    return new


def current_names(part: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns named arguments of a constructor without earlier names.

    Raises:
        TypeError: an option is given by both names.
    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        new = current_name(part, name, stacklevel=4)
        if new in found or (new != name and new in given):
            raise TypeError(f"{part.name}: {name} and {new} are two names of one option; expected one. Give {new}")
        found[new] = value
    return found


def with_earlier_names(part: Any, construct: Callable[..., None]) -> Callable[..., None]:
    """Returns the constructor of a part, which also takes earlier names of its options."""

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **given: Any) -> None:
        construct(self, *args, **current_names(part, given))

    return __init__


def current_path(node: Any, path: str) -> str:
    """Returns a path to an option without earlier names; `node`: the simulation, or a part."""
    name, dot, rest = path.partition(".")
    name = current_name(node, name)
    child = getattr(node, name, None)
    return f"{name}.{current_path(child, rest)}" if dot else name


def current_options(saved: Any) -> Any:
    """Returns saved options, nested tables with the `name` of their part, without earlier names."""
    if isinstance(saved, list):
        return [current_options(value) for value in saved]
    if not isinstance(saved, dict):
        return saved
    earlier = EARLIER.get(str(saved.get("name")), {})
    return {earlier.get(name, name): current_options(value) for name, value in saved.items()}
