"""Objects from the expressions of a command line, such as durations and uploads, without evaluating other code."""

from __future__ import annotations

import ast
import inspect
import operator
import re
from typing import Any

from jaxafl.cli.catalogue import Constructor, find, offered
from jaxafl.client.attack import Attack
from jaxafl.client.correction import Correction
from jaxafl.client.upload import Upload
from jaxafl.clock import Clock, Duration, constant
from jaxafl.options import UserError, did_you_mean
from jaxafl.server.aggregate import Aggregate

EXPRESSIONS = {
    "duration": "durations",
    "clock": "durations",
    "upload": "uploads",
    "correction": "corrections",
    "aggregate": "aggregates",
    "attack": "attacks",
}
"""Kind of an expression by the type of the option that takes it."""
_EXAMPLES = {
    "durations": "uniform(1, 5) + suspension(0.1)",
    "uploads": "chain(clip_by_global_norm(1.0), top_k(share=0.01))",
    "corrections": "feddyn(0.1)",
    "aggregates": "trimmed_mean(share=0.1)",
    "attacks": "sign_flip(clients=0.2)",
}
_TYPES: dict[str, type] = {
    "uploads": Upload,
    "corrections": Correction,
    "aggregates": Aggregate,
    "attacks": Attack,
}
_LONGEST = 2000
_MOST_ENTRIES = 1_000_000
_OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def parsed(text: str, kind: str = "durations") -> Any:
    """Builds the object of an expression.

    Allowed are numbers, the durations of `jaxafl.clock`, uploads, corrections, aggregates and attacks of the modules
    that are called so, and those of users (`package.module:name`). Arguments are numbers (also `inf`), strings, `True`,
    `False`, `None`, lists and each other, with `+`, `*` and parentheses. Numbers can also be subtracted and divided, a
    duration divided by a number, and lists joined and repeated: `uniform([1] * 5 + [3] * 5, 5)`.

    Args:
        text: the expression, such as `uniform(1, 5, per="client") * 2 + suspension(0.1)`.
        kind: "durations" (or clocks), "uploads", "corrections", "aggregates" or "attacks".

    Raises:
        UserError: the text is another expression, or none.
    """
    if len(text) > _LONGEST:
        raise UserError(f"{kind}: {len(text)} characters are too long (at most {_LONGEST}); use Python instead")
    try:
        value = _value(ast.parse(re.sub(r"(\w):(\w+\()", r"\1.\2", text.strip()), mode="eval").body, kind)
    except SyntaxError as error:
        raise UserError(f"{kind} {text!r} is not an expression: {error.msg}; e.g. {_EXAMPLES[kind]!r}") from error
    except (RecursionError, MemoryError) as error:
        raise UserError(f"{kind} {text[:40]!r}... is nested too deeply") from error
    if kind in _TYPES:
        if not isinstance(value, _TYPES[kind]):
            raise UserError(f"{kind} {text!r} is no {kind.removesuffix('s')}; e.g. {_EXAMPLES[kind]!r}")
        return value
    return value if isinstance(value, Duration | Clock) else constant(value)


def _named(name: str, keywords: list[ast.keyword], kind: str) -> Constructor | None:
    """Returns the constructor with a name, or that of `module.name`; `None` if there is none."""
    if not re.fullmatch(r"[\w.]+", name) or not all(one.arg for one in keywords):
        return None
    if "." not in name:
        return offered(kind).get(name) or (offered("clocks").get(name) if kind == "durations" else None)
    found = find(":".join(name.rsplit(".", 1)), kind)
    return found if isinstance(found.call, type) else None


def _value(node: ast.expr, kind: str, term: bool = True) -> Any:
    """Returns the value of an expression: an object or a number, or if not `term`, another argument of an object."""
    match node:
        case ast.Constant(value=bool() | str() | None) if not term:
            return node.value
        case ast.Name(id="nan" | "inf"):  # the option that gets the number says if it is allowed
            return float(node.id)
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=(ast.Constant(value=int() | float()) | ast.Name("nan" | "inf")) as one):
            return -_value(one, kind)
        case ast.List(elts=elements) | ast.Tuple(elts=elements) if not term:
            return [_value(element, kind, term=False) for element in elements]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _computed(node, kind, _value(left, kind, term), _value(right, kind, term))
        case ast.Call(func=called) if found := _named(ast.unparse(called), node.keywords, kind):
            arguments = [_value(argument, kind, term=False) for argument in node.args]
            given = {str(one.arg): _value(one.value, kind, term=False) for one in node.keywords}
            try:
                inspect.signature(found.call).bind(*arguments, **given)
            except TypeError as error:
                options = ", ".join(option.name for option in found.options)
                raise UserError(f"{kind}: {ast.unparse(node)!r}: {error}; it is {found.name}({options})") from error
            return found.call(*arguments, **given)
    numbers = "numbers, + - * /, and " * (kind == "durations") if term else "numbers, 'text', True, None, [lists], and "
    where = "" if term else " as an argument"
    name = ast.unparse(node.func if isinstance(node, ast.Call) else node)
    bare = name in offered(kind) and not isinstance(node, ast.Call)
    meant = f"; did you mean {name}(...)?" if bare else did_you_mean(name, offered(kind))
    known = f"{' Write' if meant else '; write'} {numbers}any of {', '.join(offered(kind))}"
    raise UserError(f"{kind}: {ast.unparse(node)!r} is not allowed{where}{meant}{known}")


def _computed(node: ast.BinOp, kind: str, left: Any, right: Any) -> Any:
    """Returns the result of an operation on durations (+, *, / by a number), numbers, or lists ([1] * 5 + [3] * 5)."""
    repeated = isinstance(node.op, ast.Mult) and any(isinstance(one, list) for one in (left, right))
    entries, times = (left, right) if isinstance(left, list) else (right, left)
    if repeated and isinstance(times, int) and len(entries) * times > _MOST_ENTRIES:
        raise UserError(f"{kind}: {ast.unparse(node)!r} is too long; at most {_MOST_ENTRIES:,} entries")
    try:
        return _OPERATORS[type(node.op)](left, right)
    except (TypeError, ArithmeticError) as error:
        problem = f"{kind}: {ast.unparse(node)!r} cannot be computed ({error})"
        raise UserError(f"{problem}; durations take +, * and / by a number, numbers also -") from error
