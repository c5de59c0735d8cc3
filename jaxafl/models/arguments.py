"""Checks of the arguments of constructors of models."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterable
from typing import Literal, ParamSpec

from jaxafl.models.model import Model
from jaxafl.options import check_choice, check_keywords, check_whole

P = ParamSpec("P")


def checked(make: Callable[P, Model]) -> Callable[P, Model]:
    """Decorates a constructor of models with checks of its arguments.

    Arguments annotated as `int` must be whole numbers >= 1, and those annotated as `Literal` one of its values. Errors
    name the model, the option and the value.
    """
    signature = inspect.signature(make)

    @functools.wraps(make)
    def construct(*args: P.args, **kwargs: P.kwargs) -> Model:
        check_keywords(make.__name__, kwargs, signature.parameters)
        try:
            given, kinds = signature.bind(*args, **kwargs), typing.get_type_hints(make)
        except TypeError as error:
            raise TypeError(f"{make.__name__}: {error}; its options are {', '.join(signature.parameters)}") from None
        for name, value in given.arguments.items():
            if kinds[name] is int:
                given.arguments[name] = check_whole(make.__name__, name, value)
            elif typing.get_origin(kinds[name]) is Literal:
                check_choice(make.__name__, name, value, typing.get_args(kinds[name]))
        return make(*given.args, **given.kwargs)

    return construct


def check_widths(owner: str, name: str, value: Iterable[int], needed: str, length: int | None = None) -> tuple:
    """Checks a list of whole numbers >= 1, of length `length` if given, and returns it as a tuple.

    Args:
        owner, name: the constructor and the option, for the message.
        value: the given list.
        needed: description of the expected value, for the message.
        length: the required length; `None` allows any.
    """
    widths = tuple(value) if isinstance(value, Iterable) else None
    if widths is None or length not in (None, len(widths)):
        raise ValueError(f"{owner}: {name} must be {needed}, got {value!r}")
    return tuple(check_whole(owner, name, width) for width in widths)
