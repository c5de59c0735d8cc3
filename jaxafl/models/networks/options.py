"""Checks of the options of networks, where they are constructed."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Literal, ParamSpec

from jaxafl.models.model import Model
from jaxafl.options import check_choice, check_whole, named

P = ParamSpec("P")


def checked(make: Callable[P, Model]) -> Callable[P, Model]:
    """Decorates a constructor of models with checks of its arguments.

    Arguments annotated as `int` must be whole numbers >= 1, and those annotated as `Literal` one of its values. Errors
    name the model, the option and the value.
    """
    signature = inspect.signature(make)

    @named
    @functools.wraps(make)
    def construct(*args: P.args, **kwargs: P.kwargs) -> Model:
        given, kinds = signature.bind_partial(*args, **kwargs), typing.get_type_hints(make)
        for name, value in given.arguments.items():
            if kinds[name] is int:
                given.arguments[name] = check_whole(make.__name__, name, value)
            elif typing.get_origin(kinds[name]) is Literal:
                check_choice(make.__name__, name, value, typing.get_args(kinds[name]))
        return make(*given.args, **given.kwargs)

    return construct
