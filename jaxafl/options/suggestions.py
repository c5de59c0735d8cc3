"""Suggestions of similar names, for messages about unknown names."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def did_you_mean(given: object, known: Iterable[object]) -> str:
    """Returns `"; did you mean 'accuracy'?"` for similar known names, else `""`.

    Args:
        given: the unknown name.
        known: the known names.
    """
    names = {_plain(str(name)): str(name) for name in known}
    wanted = _plain(str(given))
    close = difflib.get_close_matches(wanted, names, n=1, cutoff=0.65)
    close = close or [name for name in names if min(len(wanted), len(name)) > 2 and (wanted in name or name in wanted)]
    close = close or [name for name, whole in names.items() if [*wanted] == [word[:1] for word in whole.split("_")]]
    meant = [names[name] if names[name].startswith("-") else repr(names[name]) for name in close[:2]]
    return f"; did you mean {' or '.join(meant)}?" if meant else ""


def named(function: Callable[P, T]) -> Callable[P, T]:
    """Decorates a function so that an unknown keyword raises `TypeError` with the known and similar ones."""
    signature = inspect.signature(function)
    known = [name for name, one in signature.parameters.items() if one.kind in _BY_NAME and name != "self"]
    owner = function.__qualname__.removesuffix(".__init__").rpartition("<locals>.")[2]
    for one in signature.parameters.values():
        if one.kind is one.VAR_KEYWORD:
            table = re.fullmatch(r"Unpack\[(\w+)\]", str(one.annotation))
            if table is None:
                return function
            known += function.__globals__[table[1]].__annotations__

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        if kwargs.keys() - known:
            check_keywords(owner, kwargs, known)
        return function(*args, **kwargs)

    return called


def all_named(cls: type[T]) -> type[T]:
    """Decorates the constructor and the public methods of a class with `named`."""
    for name, value in list(vars(cls).items()):
        if inspect.isfunction(value) and (name == "__init__" or not name.startswith("_")):
            setattr(cls, name, named(value))
    return cls


def check_keywords(owner: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raises `TypeError` for a keyword that is not known."""
    names = list(known)
    for name in given:
        if name not in names:
            listed = f"its options are {', '.join(names)}" if names else "it has none"
            raise TypeError(f"{owner}: there is no option {name!r}; {listed}{did_you_mean(name, names)}")


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").replace(" ", "_")
