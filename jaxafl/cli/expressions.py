"""Values of options from their text: numbers, words, files, and expressions such as `uniform(1, 5) + suspension(0.1)`.

An expression is read by `ast` and never evaluated as code: its names are the parts in `__all__` of the modules below.
"""

from __future__ import annotations

import ast
import contextlib
import operator
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxafl import clock
from jaxafl.cli.catalogue import imported, parts_of, public
from jaxafl.client import attack, correction, upload
from jaxafl.options import UserError, did_you_mean, kinds_of
from jaxafl.server import aggregate

NONE = ("none", "null", "None")
_WORDS = {"true": True, "false": False, "inf": np.inf, "nan": np.nan}
_NAMES = public(clock, upload, correction, aggregate, attack)
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.BitOr: operator.or_,
}


def read(text: str, hint: Any = Any) -> Any:
    """Returns the value of an option, or of an axis.

    Args:
        text: a number, a word, a list `[1, 2]`, an expression, `none`, or `@FILE` with a number per client.
        hint: the option's type; by default the text alone decides.

    Raises:
        UserError: the text is no such value.
    """
    members, _, choices = kinds_of(hint)
    if text in NONE and (hint is Any or type(None) in members or None in choices):
        return None
    if text in choices or str in members:
        return text
    if text.startswith("@"):
        try:
            return np.load(text[1:], allow_pickle=False)
        except (OSError, ValueError) as error:
            raise UserError(f"{text} cannot be read: {error}; expected an array of NumPy (.npy)") from error
    if parts := parts_of(hint):
        return parsed(text, *parts)
    with contextlib.suppress(ValueError, SyntaxError):
        return _WORDS[text.lower()] if text.lower() in _WORDS else ast.literal_eval(text)
    if hint is Any or choices:  # the part says which words it takes
        return text
    raise UserError(f"{text!r} is not a number; expected numbers such as 0.1, 1e-3 or 5")


def parsed(text: str, *made: type) -> Any:
    """Builds the part of an expression.

    Allowed are the parts of the package by name, those of users as `package.module:name(...)`, numbers (also `inf`),
    strings, `True`, `False`, `None`, lists, parentheses, and `+`, `-`, `*`, `/` and `|`, as in Python.

    Args:
        text: the expression, such as `uniform(1, 5, per="client") * 2 + suspension(0.1)`.
        *made: the classes of which it must be; a number is also a constant duration.

    Raises:
        UserError: the text is another expression, or none.
    """
    try:
        value = _value(ast.parse(re.sub(r"(\w):(\w+\()", r"\1.\2", text.strip()), mode="eval").body)
    except (SyntaxError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, MemoryError) as error:
        raise UserError(f"{text[:80]!r}: {error}") from error
    if clock.Duration in made and isinstance(value, int | float):
        return clock.constant(value)
    if not isinstance(value, made):
        raise UserError(f"{text!r} is no {made[0].__name__.lower()}; jaxafl list shows them")
    return value


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=int() | float() | str() | None):
            return node.value
        case ast.Name(id="inf" | "nan"):  # the option that gets the number says if it is allowed
            return float(node.id)
        case ast.UnaryOp(op=ast.USub()):
            return -_value(node.operand)
        case ast.List() | ast.Tuple():
            return [_value(one) for one in node.elts]
        case ast.BinOp() if type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
        case ast.Call():
            keywords = {str(one.arg): _value(one.value) for one in node.keywords}
            return _named(ast.unparse(node.func))(*map(_value, node.args), **keywords)
    raise UserError(
        f"{ast.unparse(node)!r} is not allowed; expected numbers, parts such as uniform(1, 5), + - * / and |"
    )


def _named(name: str) -> Callable[..., Any]:
    """Returns the part with a name, or a user's class `module.name`."""
    call = imported(":".join(name.rsplit(".", 1))) if "." in name else _NAMES.get(name)
    if call is None or (call not in _NAMES.values() and not isinstance(call, type)):
        raise UserError(f"there is no {name!r}{did_you_mean(name, _NAMES) or ';'} Choose from {', '.join(_NAMES)}")
    return call
