"""Checks of a class of the user's against the base class: types of attributes, and arguments of methods."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
from collections.abc import Mapping
from typing import Any

from jaxafl.options.checks import UserError, shown

_KINDS: dict[type, tuple[Any, str]] = {
    bool: (bool, "True or False"),
    int: (int, "a whole number"),
    float: ((int, float), "a number"),
    str: (str, "a text"),
    tuple: ((tuple, list), "a tuple of texts, such as ('a',)"),
    dict: (Mapping, "a dict of name -> value"),
}


def check_overrides(cls: type[Any]) -> None:
    """Raises `UserError` for attributes and methods of a class that do not fit those of its base class.

    Args:
        cls: the class. Attributes with `ClassVar` have a type; methods take the arguments that the base class names.
    """
    for name, value in vars(cls).items():
        bases = [base for base in cls.__mro__[1:] if name in vars(base) and base.__module__.startswith("jaxafl.")]
        if not bases or name.startswith("_") or isinstance(value, dataclasses.Field):
            continue
        usual = vars(bases[-1])[name]
        if str(inspect.get_annotations(bases[-1]).get(name)).startswith("ClassVar"):
            _check_type(cls, name, value, type(usual))
        elif isinstance(usual, property):
            typed = usual.fget.__annotations__.get("return")
            kinds = [kind for kind in _KINDS if kind.__name__ == typed]
            if isinstance(value, types.FunctionType):
                raise UserError(f"the class {cls.__name__}: {name} must be a property; write @property above it")
            _check_type(cls, name, value, *kinds)
        elif isinstance(usual, types.FunctionType):
            _check_arguments(cls, name, value, usual)


def _check_type(cls: type[Any], name: str, value: Any, usual: type = object) -> None:
    kind, words = _KINDS.get(usual, (object, ""))
    if issubclass(usual, enum.Flag):
        kind, members = usual, [str(one.name) for one in usual]
        words = f"{kind.__name__}.{members[0]}, another of {', '.join(members)}, or several joined by |"
    if not (hasattr(value, "__get__") or isinstance(value, kind)):
        raise UserError(f"the class {cls.__name__}: {name} must be {words}; got {shown(value)}")


def _check_arguments(cls: type[Any], name: str, method: Any, usual: types.FunctionType) -> None:
    if not callable(method) and not hasattr(method, "__get__"):
        raise UserError(f"the class {cls.__name__}: {name} must be a method; got {shown(method)}")
    if not isinstance(method, types.FunctionType):
        return
    given = [one.name for one in inspect.signature(usual).parameters.values() if one.default is one.empty]
    try:
        inspect.signature(method).bind(*given)
    except TypeError:
        takes = ", ".join([*inspect.signature(method).parameters][1:])
        raise UserError(
            f"the class {cls.__name__}: {name} is called as {name}({', '.join(given[1:])}); it takes ({takes})"
        ) from None
