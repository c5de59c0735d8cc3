"""Construction of a simulation and of the axes of a sweep from the options of a command line.

Axes are written as `--axis server.base_rate=1,3,5 --axis seed=0:5`.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxafl.cli.catalogue import Constructor, find, offered
from jaxafl.cli.expressions import EXPRESSIONS, parsed
from jaxafl.cli.files import read_numbers
from jaxafl.cli.options import CONCURRENCY, Names, chooser, is_given, local_training, values_of
from jaxafl.client import Client
from jaxafl.data import Dataset
from jaxafl.options import UserError
from jaxafl.server import Needs
from jaxafl.simulation import Simulation
from jaxafl.sweep.axes import PARTS, replace_at

Axes = dict[str, list[Any]]
_FORM = "write NAME=VALUE,VALUE,... or NAME=FIRST:STOP, e.g. server.base_rate=1,3,5 or seed=0:5"
_WORDS = {"none": "None", "true": "True", "false": "False"}
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
            _check_kinds(name, column, names[part])
            values[part][option] = next((value for value in column if value is not None), None)
    for part, constructor in names.items():
        for name, kind in expressions_of(part, constructor).items():
            written = values[part][name]
            values[part][name] = None if written is None else parsed(str(written), kind)
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
    elif options.partition_seed or options.partition_quantiles:
        raise UserError(f"{names['data'].name} {_SPLIT}; leave --partition-seed and --partition-quantiles out")
    needs = getattr(names["server"].call, "needs", None)
    needed = 0.1 if isinstance(needs, Needs) and needs.validation else None
    if share := options.validation or needed:
        data = data.with_validation(share)
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
    attack = None if options.attack is None else parsed(options.attack, "attacks")
    return Simulation(data, model, client, server, clock, options.precision, attack)


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


def _check_kinds(axis: str, column: Sequence[Any], constructor: Constructor) -> None:
    """Raises `UserError` if an axis gives a word to an option that takes numbers only."""
    every = {one.name: one for one in (*offered("local training")["Client"].options, *constructor.options)}
    option = every.get(axis.partition(".")[2])
    words = [one for one in column if isinstance(one, str)] if option and "str" not in option.type else []
    if words and option and option.type.startswith(("int", "float")):
        raise UserError(f"--axis {axis}: {words[0]!r} is not a number; expected numbers such as 0.1, 1e-3 or 5")


def _called(constructor: Constructor, values: dict[str, Any], **further: Any) -> Any:
    """Calls a constructor with its options, and with the further values that it accepts."""
    accepted = inspect.signature(constructor.call).parameters
    values = values | {name: given for name, given in further.items() if name in accepted and given}
    return constructor.call(**values)


def expressions_of(part: str, constructor: Constructor) -> dict[str, str]:
    """Returns name -> kind of a part's options that are written as expressions."""
    options = offered("local training")["Client"].options if part == "client" else constructor.options
    kinds = {option.name: EXPRESSIONS.get(option.type.partition(" ")[0]) for option in options}
    return {name: kind for name, kind in kinds.items() if kind}


def read_axes(arguments: Sequence[str]) -> Axes:
    """Parses the axes of a command line to name -> values.

    Raises:
        UserError: an axis has another form, is given twice, or varies an option that is given too.
    """
    axes: Axes = {}
    for name, values in map(parse_axis, values_of(arguments, "--axis")):
        if name in axes:
            raise UserError(f"--axis {name} is given twice; write all of its values in one")
        flags = [f"--{name.replace('_', '-')}", *(["--durations"] if name == "clock.durations" else [])]
        for flag in flags:
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
    if ":" not in values or re.search(r"[A-Za-z_]\w*:[A-Za-z_]", values):  # a range, or package.module:name
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
                chosen = (
                    f". T{chooser(part, names)[1:]}"
                    if part in names
                    else "; --attack EXPR gives one" * (part == "attack" and simulation.attack is None)
                )
                raise UserError(f"--axis {name}: {error}{chosen}") from error
    return resolved


def _resolved(name: str, value: Any, names: Names, simulation: Simulation) -> Any:
    part, _, option = name.partition(".")
    if name == "client.optimizer":
        optimizer = find(str(value), "optimisers")
        unknown = set(simulation.client.hyperparameters) - {option.name for option in optimizer.options}
        if unknown:
            raise UserError(f"--axis {name}: {value} has no option {', '.join(sorted(unknown))}")
        return optimizer.call
    kind = expressions_of(part, names[part]).get(option) if part in names else None
    return parsed(str(value), kind) if kind and value is not None else value


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
