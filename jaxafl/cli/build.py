"""Construction of a simulation, the axes of a sweep and durations from the options of a command line.

Axes are written as `--axis server.base_rate=1,3,5 --axis seed=0:5`, durations as expressions.
"""

from __future__ import annotations

import ast
import inspect
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxafl.cli.catalogue import Constructor, find, offered
from jaxafl.cli.files import read_numbers
from jaxafl.cli.options import CONCURRENCY, Names, chooser, is_given, local_training, values_of
from jaxafl.client import Client
from jaxafl.clock import Clock, Duration, constant
from jaxafl.data import Dataset
from jaxafl.options import UserError
from jaxafl.simulation import Simulation
from jaxafl.sweep.axes import PARTS, replace_at

Axes = dict[str, list[Any]]
_FORM = "write NAME=VALUE,VALUE,... or NAME=FIRST:STOP, e.g. server.base_rate=1,3,5 or seed=0:5"
_WORDS = {"none": "None", "true": "True", "false": "False"}
_LONGEST = 2000
_MOST_ENTRIES = 1_000_000
_OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_POOLED = "is one pooled dataset: split it over clients, e.g. --partition iid --clients 10"
_SPLIT = "comes with its own clients and takes no --partition; --data.clients says how many"


def make_simulation(names: Names, options: Any, axes: Mapping[str, Sequence[Any]] | None = None) -> Simulation:
    """Builds the simulation that the options describe, with the first value of every axis.

    Args:
        names: the constructors.
        options: an instance of `options_type(..., names, axes)`.
        axes: name -> values.

    Raises:
        ValueError, TypeError, FileNotFoundError: an option is invalid, or the data was not found.
    """
    axes = axes or {}
    values = {part: dict(vars(getattr(options, part))) for part in names}
    for name, column in axes.items():
        part, _, option = name.partition(".")
        if option in values.get(part, ()):
            values[part][option] = next((value for value in column if value is not None), None)
    for part, constructor in names.items():
        for name in durations_of(constructor):
            written = values[part][name]
            values[part][name] = None if written is None else parse_durations(str(written))
    if names["server"].name == "fedprox":
        if values["client"]["proximal"] is not None:
            given = values["client"]["proximal"]
            raise UserError(f"fedprox takes its μ as --server.mu {given}; --client.proximal is for the other servers")
        values["client"]["proximal"] = values["server"].pop("mu")
    pooled = data = _called(names["data"], values["data"], data_dir=options.data_dir, download=options.download)
    test: Any = "per_client" if options.per_client and options.validation is None else "shared"
    if isinstance(pooled, Dataset) and "partition" in names:
        split = names["partition"].call(**values["partition"])
        how: Any = {"seed": options.partition_seed, "quantiles": options.partition_quantiles}
        data = pooled.partition(split, **how, test=test)
    elif isinstance(pooled, Dataset):
        raise UserError(f"{names['data'].name} {_POOLED}")
    elif "partition" in names:
        raise UserError(f"{names['data'].name} {_SPLIT}")
    if options.validation is not None:
        data = data.with_validation(options.validation)
    if values["clock"].get("concurrency", 0) is None and values["clock"].get("rate") is None:
        values["clock"]["concurrency"] = min(CONCURRENCY, data.num_clients)
    if values["clock"].get("buffer", 0) is None and values["clock"].get("period") is None:
        of_paper: int = getattr(names["server"].call, "buffer", 1)
        values["clock"]["buffer"] = min(of_paper, values["clock"].get("concurrency") or of_paper)
    takes = inspect.signature(names["model"].call).parameters.get("num_classes")
    if data.num_classes is None and takes is not None and takes.default is takes.empty:
        raise UserError(
            f"{names['model'].name} is a model of classes, but the targets of {names['data'].name} are real numbers; "
            "give a model of your own with the loss of a regression, --model mypackage.mymodule:my_model"
        )
    model = _called(names["model"], values["model"], num_classes=data.num_classes, data_dir=options.data_dir)
    client = _client(names, values["client"], axes)
    server, clock = (names[part].call(**values[part]) for part in ("server", "clock"))
    return Simulation(data, model, client, server, clock, options.precision)


def _client(names: Names, values: dict[str, Any], axes: Mapping[str, Any]) -> Client:
    """Builds the `Client`. The optimiser is not given options that are `None` or its defaults."""
    del values["optimizer"]
    if values["steps"] is None and values["epochs"] is None:
        values["steps"] = local_training(names["server"])["steps"]
    for option in names["client"].options:
        given = values[option.name]
        usual = not isinstance(given, np.ndarray) and given == option.default
        if given is None or (usual and f"client.{option.name}" not in axes):
            del values[option.name]
    return Client(names["client"].call, **values)


def _called(constructor: Constructor, values: dict[str, Any], **further: Any) -> Any:
    """Calls a constructor with its options, and with the further values that it accepts."""
    accepted = inspect.signature(constructor.call).parameters
    values = values | {name: given for name, given in further.items() if name in accepted and given}
    return constructor.call(**values)


def durations_of(constructor: Constructor) -> list[str]:
    """Returns the names of a constructor's options that are written as expressions."""
    return [option.name for option in constructor.options if option.type.startswith(("duration", "clock"))]


def read_axes(arguments: Sequence[str]) -> Axes:
    """Parses the axes of a command line to name -> values.

    Raises:
        UserError: an axis has another form, is given twice, or varies an option that is given too.
    """
    axes: Axes = {}
    for name, values in map(parse_axis, values_of(arguments, "--axis")):
        if name in axes:
            raise UserError(f"--axis {name} is given twice; write all of its values in one")
        flag = f"--{name.replace('_', '-')}"
        if is_given(arguments, flag):
            raise UserError(f"{flag} is given beside --axis {name}, which sets it; leave one of them out")
        axes[name] = values
    return axes


def parse_axis(text: str) -> tuple[str, list[Any]]:
    """Returns name and values of an axis: `server.base_rate=1,3,5`, `seed=0:5` (0 to 4) or `client.steps=[1,2],[2,2]`.

    Raises:
        UserError: the axis has another form, or a value is empty.
    """
    name, equals, values = text.partition("=")
    name = name.strip().replace("-", "_")
    if not (name and equals and values.strip()):
        raise UserError(f"--axis {text!r}: {_FORM}")
    written = [value.strip() for value in _split(values)]
    if "" in written:
        raise UserError(f"--axis {text!r}: there is an empty value beside a comma; {_FORM}")
    if ":" not in values:
        return name, [_axis_value(name, value) for value in written]
    try:
        found = list(range(*map(int, values.split(":"))))
    except (ValueError, TypeError) as error:
        raise UserError(f"--axis {text!r}: a range needs whole numbers; {_FORM}") from error
    if not found:
        raise UserError(f"--axis {text!r}: the range is empty; {_FORM}")
    return name, found


def as_paths(axes: Axes, names: Names, simulation: Simulation) -> Axes:
    """Returns the axes of `jaxafl.sweep`: by paths in the simulation, with names and durations resolved.

    Raises:
        UserError: an option or a name is unknown.
    """
    resolved: Axes = {}
    for name, values in axes.items():
        if name in PARTS:
            raise UserError(
                f"--axis {name}: an axis varies an option, such as {name}.NAME; sweep over seeds once for each {name}, "
                "with an --output of its own, and `jaxafl report` puts the files side by side"
            )
        path = "client.proximal" if (names["server"].name, name) == ("fedprox", "server.mu") else name
        resolved[path] = [_resolved(name, value, names, simulation) for value in values]
        part, _, option = path.partition(".")
        for value in resolved[path] if part in PARTS and option else []:
            try:
                replace_at(simulation, path, value)
            except (ValueError, TypeError) as error:
                raise UserError(f"--axis {name}: {error}. T{chooser(part, names)[1:]}") from error
    return resolved


def _resolved(name: str, value: Any, names: Names, simulation: Simulation) -> Any:
    part, _, option = name.partition(".")
    if name == "client.optimizer":
        optimizer = find(str(value), "optimisers")
        unknown = set(simulation.client.hyperparameters) - {option.name for option in optimizer.options}
        if unknown:
            raise UserError(f"--axis {name}: {value} has no option {', '.join(sorted(unknown))}")
        return optimizer.call
    return parse_durations(str(value)) if part in names and option in durations_of(names[part]) else value


def _split(text: str) -> list[str]:
    """Splits a text at the commas outside brackets."""
    parts = [""]
    depth = 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        parts += [""] if character == "," and not depth else []
        parts[-1] += "" if character == "," and not depth else character
    return parts


def _axis_value(name: str, text: str) -> Any:
    """Returns a number, a list, True, False, None or the numbers of an `@FILE`; other texts are strings."""
    if text.startswith("@"):
        return read_numbers(text[1:], f"--axis {name}")
    try:
        value = ast.literal_eval(_WORDS.get(text.lower(), text))
    except (ValueError, SyntaxError):
        return text
    return value if isinstance(value, int | float | str | list | None) else text


def parse_durations(text: str) -> Duration | Clock:
    """Builds the duration of an expression, without evaluating other code.

    Allowed are numbers, the durations of `jaxafl.clock` and of users (`package.module:name`) with numbers, strings and
    lists as arguments, `+`, `*` and parentheses. Numbers can also be subtracted and divided, a duration divided by a
    number, and lists joined and repeated: `uniform([1] * 5 + [3] * 5, 5)`.

    Args:
        text: the expression, such as `uniform(1, 5, per="client") * 2 + suspension(0.1)`.

    Raises:
        UserError: the text is another expression, or none.
    """
    if len(text) > _LONGEST:
        raise UserError(f"durations: {len(text)} characters are too long (at most {_LONGEST}); use Python instead")
    try:
        value = _value(ast.parse(re.sub(r"(\w):(\w+\()", r"\1.\2", text.strip()), mode="eval").body)
        return value if isinstance(value, Duration | Clock) else constant(value)
    except SyntaxError as error:
        problem = f"is not an expression: {error.msg}; e.g. 'uniform(1, 5) + suspension(0.1)'"
        raise UserError(f"durations {text!r} {problem}") from error
    except (RecursionError, MemoryError) as error:
        raise UserError(f"durations {text[:40]!r}... is nested too deeply") from error


def _duration(name: str, keywords: list[ast.keyword]) -> Constructor | None:
    """Returns the duration or clock with a name, or the duration `module.name`; `None` if there is none."""
    if not re.fullmatch(r"[\w.]+", name) or not all(one.arg for one in keywords):
        return None
    if "." not in name:
        return offered("durations").get(name) or offered("clocks").get(name)
    found = find(":".join(name.rsplit(".", 1)), "durations")
    return found if isinstance(found.call, type) else None


def _value(node: ast.expr, term: bool = True) -> Any:
    """Returns the value of an expression: a duration or a number, or if not `term`, another argument of a duration."""
    match node:
        case ast.Constant(value=bool() | str()) if not term:
            return node.value
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.List(elts=elements) | ast.Tuple(elts=elements) if not term:
            return [_value(element, term=False) for element in elements]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _computed(node, _value(left, term), _value(right, term))
        case ast.Call(func=called) if found := _duration(ast.unparse(called), node.keywords):
            arguments = [_value(argument, term=False) for argument in node.args]
            given = {str(one.arg): _value(one.value, term=False) for one in node.keywords}
            try:
                inspect.signature(found.call).bind(*arguments, **given)
            except TypeError as error:
                options = ", ".join(option.name for option in found.options)
                raise UserError(f"durations: {ast.unparse(node)!r}: {error}; it is {found.name}({options})") from error
            return found.call(*arguments, **given)
    allowed = f"write numbers, + - * /, and any of {', '.join(offered('durations'))}"
    raise UserError(f"durations: {ast.unparse(node)!r} is not allowed; {allowed}")


def _computed(node: ast.BinOp, left: Any, right: Any) -> Any:
    """Returns the result of an operation on durations (+ and *), numbers, or lists ([1] * 5 + [3] * 5)."""
    if isinstance(node.op, ast.Div) and isinstance(left, Duration) and isinstance(right, int | float) and right:
        return left * (1 / right)
    repeated = isinstance(node.op, ast.Mult) and any(isinstance(one, list) for one in (left, right))
    entries, times = (left, right) if isinstance(left, list) else (right, left)
    if repeated and isinstance(times, int) and len(entries) * times > _MOST_ENTRIES:
        raise UserError(f"durations: {ast.unparse(node)!r} is too long; at most {_MOST_ENTRIES:,} entries")
    try:
        return _OPERATORS[type(node.op)](left, right)
    except (TypeError, ArithmeticError) as error:
        problem = f"durations: {ast.unparse(node)!r} cannot be computed ({error})"
        raise UserError(f"{problem}; durations take + and *, numbers also - and /") from error
