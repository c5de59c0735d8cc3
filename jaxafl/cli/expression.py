"""Durations written on the command line, e.g. `uniform(1, 5, per="client") * 2 + suspension(0.1)`."""

from __future__ import annotations

import ast
import inspect
from typing import Any

from jaxafl.cli import catalogue
from jaxafl.clock import constant
from jaxafl.clock.durations import Duration

_LONGEST = 2000


def parse_durations(text: str) -> Duration:
    """The duration that an expression describes, without evaluating anything but it.

    Allowed are numbers, the durations of `jaxafl.clock` with numbers, strings and lists as arguments, `+`, `*` and
    parentheses.

    Args:
        text: the expression.

    Raises:
        ValueError: it is anything else.
    """
    if len(text) > _LONGEST:
        raise ValueError(
            f"durations: an expression of {len(text)} characters is too long (at most {_LONGEST}); use Python instead"
        )
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        value = _value(tree)
    except SyntaxError as error:
        raise ValueError(
            f"durations {text!r} is not an expression: {error.msg}; e.g. 'uniform(1, 5) + suspension(0.1)'"
        ) from error
    except (RecursionError, MemoryError) as error:
        raise ValueError(f"durations {text[:40]!r}... is nested too deeply") from error
    return constant(value) if isinstance(value, int | float) else value


def _value(node: ast.expr) -> Any:
    """A number or a duration."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
        left, right = _value(node.left), _value(node.right)
        return left + right if isinstance(node.op, ast.Add) else left * right
    if isinstance(node, ast.Call):
        return _call(node)
    if _is_number(node):
        return ast.literal_eval(node)
    raise ValueError(
        f"durations: {ast.unparse(node)!r} is not allowed; write numbers, + and *, and any of "
        f"{', '.join(catalogue.durations())}"
    )


def _call(node: ast.Call) -> Any:
    known = catalogue.durations()
    if not isinstance(node.func, ast.Name) or node.func.id not in known:
        raise ValueError(f"durations: there is no {ast.unparse(node.func)!r}; choose from {', '.join(known)}")
    name, function = node.func.id, known[node.func.id].call
    if any(keyword.arg is None for keyword in node.keywords):
        raise ValueError(f"durations: ** is not allowed in {ast.unparse(node)!r}")
    arguments = [_argument(value) for value in node.args]
    keywords = {str(keyword.arg): _argument(keyword.value) for keyword in node.keywords}
    try:
        inspect.signature(function).bind(*arguments, **keywords)
    except TypeError as error:
        options = ", ".join(inspect.signature(function).parameters)
        raise ValueError(f"durations: {ast.unparse(node)!r}: {error}; it is {name}({options})") from error
    return function(*arguments, **keywords)


def _argument(node: ast.expr) -> Any:
    if _is_number(node) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bool)):
        return ast.literal_eval(node)
    if isinstance(node, ast.List | ast.Tuple):
        return [_argument(element) for element in node.elts]
    raise ValueError(
        f"durations: {ast.unparse(node)!r} is not allowed as an argument; write numbers, strings or lists of them"
    )


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)
