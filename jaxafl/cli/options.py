"""The typed options of `jaxafl run` and `jaxafl sweep`: those of the constructors that the command line names."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

from tyro.conf import UseAppendAction, arg

from jaxafl.cli import catalogue
from jaxafl.cli.catalogue import REQUIRED, Constructor, Option

_FROM_PYTHON = ("data_dir", "optimizer")  # given by options of their own
_DEFAULTS = {"concurrency": 10, "durations": "uniform(1, 5)", "learning_rate": 0.05}  # where Python has none
_PARTITION_CLIENTS = 10


class Chosen(NamedTuple):
    """The constructors that a command line names."""

    data: Constructor
    partition: Constructor | None
    model: Constructor
    optimizer: Constructor
    server: Constructor
    clock: Constructor


def chosen(arguments: Sequence[str]) -> Chosen:
    """Reads the names, because they decide which other options there are.

    Raises:
        ValueError: there is nothing of that name.
    """
    server = _named(arguments, ("--server",), "server", catalogue.servers(), "fedavg")
    return Chosen(
        data=_named(arguments, ("--data", "--dataset"), "dataset", catalogue.datasets(), "femnist"),
        partition=_partition(arguments),
        model=_named(arguments, ("--model",), "model", catalogue.models(), "cnn_small"),
        optimizer=_named(arguments, ("--client.optimizer",), "optimiser", catalogue.optimizers(), "sgd"),
        server=server,
        clock=_named(arguments, ("--clock",), "clock", catalogue.clocks(), _usual_clock(server)),
    )


def options_type(names: Chosen, sweep: bool) -> type:
    """A dataclass for tyro with the options of one command line.

    Its fields `<part>_name` hold names, its fields `<part>` the options of what was named; the rest is as in `Simulation.run`.
    """
    runs = [
        ("server_steps", int, "server steps T", 200),
        ("eval_every", int | None, "server steps between evaluations; by default about 50 evaluations in all", None),
        ("data_dir", pathlib.Path | None, "data directory; by default $JAXAFL_DATA_DIR, else that of TensorFlow Datasets", None),
        ("output", pathlib.Path | None, "NetCDF file to write, e.g. result.nc", None),
        ("plot", pathlib.Path | None, "image of accuracy against simulated time to write, e.g. result.png", None),
        ("progress", bool, "show a progress bar", True),
    ]
    alone = [
        ("seed", int, "seed of the initial model, the schedule and the mini-batches", 0),
        ("partition_seed", int, "seed of the split of a pooled dataset over clients", 0),
        ("lanes", int | None, "runs trained at once; changes speed, never results", None),
        ("chunk", int | None, "lanes that advance together, a divisor of lanes; changes speed, never results", None),
    ]
    fields = [(name, Annotated[kind, arg(help=text)], default) for name, kind, text, default in runs + alone[: 3 if sweep else 4]]
    if sweep:
        text = "what varies: server.lam=1,3,5 or seed=0:5 (0 to 4); repeat it for a grid. Names as in Python, and seed"
        fields.insert(0, ("axis", UseAppendAction[Annotated[tuple[str, ...], arg(help=text, metavar="NAME=VALUES")]], ()))
    partitions = (*catalogue.partitions(), "none")
    fields += [
        _choice("data", tuple(catalogue.datasets()), names.data.name, "dataset", ("--dataset",)),
        _choice("partition", partitions, names.partition.name if names.partition else "none", "split of a pooled dataset over clients"),
        _choice("model", tuple(catalogue.models()), names.model.name, "network"),
        _choice("server", tuple(catalogue.servers()), names.server.name, "algorithm; `jaxafl list` says on which clocks it runs"),
        _choice("clock", tuple(catalogue.clocks()), names.clock.name, "protocol: who trains when, and who arrives"),
    ]
    groups = {"data": names.data, "partition": names.partition, "model": names.model, "server": names.server, "clock": names.clock}
    for part, constructor in groups.items():
        if constructor is not None and constructor.options:
            fields.append(_group(part, f"{constructor.name}: {constructor.summary}", _options(constructor), names))
    fields.append(_group("client", f"local training with {names.optimizer.name}", _client_options(names.optimizer), names))
    return dataclasses.make_dataclass(
        "Options", [(name, kind, dataclasses.field(default=default)) for name, kind, default in fields], kw_only=True, frozen=True
    )


def _choice(part: str, names: tuple[str, ...], default: str, text: str, aliases: tuple[str, ...] = ()) -> tuple[str, Any, str]:
    return f"{part}_name", Annotated[Literal[names], arg(name=part, help=text, aliases=aliases)], default


def _group(part: str, summary: str, options: Sequence[Option], names: Chosen) -> tuple[str, Any, Any]:
    """A field that holds the options of one part, `--<part>.<option>`."""
    fields = []
    for option in options:
        aliases = tuple(filter(None, [_alias(part, option.name, names)]))
        text = option.help.replace("`", "")
        default = option.default
        if default is REQUIRED:
            default = _PARTITION_CLIENTS if (part, option.name) == ("partition", "clients") else _DEFAULTS.get(option.name, REQUIRED)
        metavar = "EXPR" if option.expression else None
        kind = Annotated[option.type, arg(help=text, aliases=aliases, metavar=metavar)]
        fields.append((option.name, kind, dataclasses.field(**({} if default is REQUIRED else {"default": default}))))
    made = dataclasses.make_dataclass(f"{part.title()}Options", fields, kw_only=True, frozen=True)
    made.__doc__ = summary
    complete = all(field.default is not dataclasses.MISSING for field in dataclasses.fields(made))
    return part, made, made() if complete else dataclasses.MISSING


def _alias(part: str, option: str, names: Chosen) -> str | None:
    """Short names: `--durations`, and `--clients` of whatever makes the clients."""
    if (part, option) == ("clock", "durations"):
        return "--durations"
    makes_clients = "partition" if names.partition else "data"
    return "--clients" if (part, option) == (makes_clients, "clients") else None


def _options(constructor: Constructor) -> list[Option]:
    return [option for option in constructor.options if option.name not in _FROM_PYTHON]


def _client_options(optimizer: Constructor) -> list[Option]:
    """The optimiser's name, its numbers, and what `Client` takes beside them."""
    from jaxafl.client import Client

    own = _options(catalogue.describe(Client))
    taken = {option.name for option in own}
    chosen = Literal[tuple(catalogue.optimizers())]
    name = Option("optimizer", chosen, optimizer.name, "Optax optimiser of the clients")
    every = [name, *(option for option in optimizer.options if option.name not in taken), *own]
    helps = {"steps": "K, local steps of a run (10, unless epochs are given)", "learning_rate": "η_l, the local learning rate"}
    return [option._replace(help=helps.get(option.name, option.help)) for option in every]


def _partition(arguments: Sequence[str]) -> Constructor | None:
    known = catalogue.partitions()
    name = _last(arguments, ("--partition",), "none")
    return None if name == "none" else _find(name, "partition", known)


def _usual_clock(server: Constructor) -> str:
    available = catalogue.clocks()
    usual = [name for name in ("synchronous", "free_running") if name in server.clocks]
    return (usual or [name for name in server.clocks if name in available] or sorted(available))[0]


def _named(arguments: Sequence[str], flags: tuple[str, ...], what: str, known: dict[str, Constructor], default: str) -> Constructor:
    return _find(_last(arguments, flags, default), what, known)


def _find(name: str, what: str, known: dict[str, Constructor]) -> Constructor:
    if name not in known:
        raise ValueError(f"there is no {what} {name!r}; choose from {', '.join(known)}")
    return known[name]


def _last(arguments: Sequence[str], flags: tuple[str, ...], default: str) -> str:
    """The value of a flag, written `--flag value` or `--flag=value`; the last one counts."""
    value = default
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        flag, equals, rest = argument.partition("=")
        if flag in flags:
            value = rest if equals else following
    return value
