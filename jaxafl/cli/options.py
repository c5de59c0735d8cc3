"""The typed options of `jaxafl run` and `jaxafl sweep`: those of the constructors that the command line names."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from tyro.conf import UseAppendAction, arg

from jaxafl.cli import catalogue
from jaxafl.cli.catalogue import REQUIRED, Constructor, Option

_FROM_PYTHON = ("data_dir", "optimizer")  # given by options of their own
_DEFAULTS = {"concurrency": 10, "durations": "uniform(1, 5)", "learning_rate": 0.05}  # where Python has none
_PARTITION_CLIENTS = 10
_USUAL_CLOCKS: tuple[str, ...] = ("synchronous", "free_running")  # where a server runs on several

Field = tuple[str, Any, Any]  # name, type, default


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

    Its fields `<part>_name` hold names, its fields `<part>` the options of what was named; the rest is as in
    `Simulation.run`.
    """
    parts = {name: getattr(names, name) for name in ("data", "partition", "model", "server", "clock")}
    groups = [
        _group(part, f"{made.name}: {made.summary}", _options(made), names) for part, made in parts.items() if made
    ]
    client = _group("client", f"local training with {names.optimizer.name}", _client_options(names.optimizer), names)
    fields = [*_run_fields(sweep), *_name_fields(names), *groups, client]
    return dataclasses.make_dataclass(
        "Options",
        [(name, kind, dataclasses.field(default=default)) for name, kind, default in fields],
        kw_only=True,
        frozen=True,
    )


def _run_fields(sweep: bool) -> list[Field]:
    """What `Simulation.run` takes, and where the results go."""
    axis = "what varies: server.lam=1,3,5 or seed=0:5 (0 to 4); repeat it for a grid. Names as in Python, and seed"
    data_dir = "data directory; by default $JAXAFL_DATA_DIR, else that of TensorFlow Datasets"
    fields: list[Field] = [
        _field("server_steps", int, 200, "server steps T"),
        _field("eval_every", int | None, None, "server steps between evaluations; by default about 50 evaluations"),
        _field("seed", int, 0, "seed of the initial model, the schedule and the mini-batches"),
        _field("output", pathlib.Path | None, None, "NetCDF file to write, e.g. result.nc"),
        _field("plot", pathlib.Path | None, None, "image of accuracy against simulated time to write, e.g. result.png"),
        _field("progress", bool, True, "show a progress bar"),
        _field("lanes", int | None, None, "runs trained at once; changes speed, never results"),
        _field("data_dir", pathlib.Path | None, None, data_dir),
        _field("partition_seed", int, 0, "seed of the split of a pooled dataset over clients"),
    ]
    if sweep:
        kind: Any = UseAppendAction[Annotated[tuple[str, ...], arg(help=axis, metavar="NAME=VALUES")]]
        return [("axis", kind, ()), *fields]
    chunk = "lanes that advance together, a divisor of lanes; changes speed, never results"
    return [*fields, _field("chunk", int | None, None, chunk)]


def _name_fields(names: Chosen) -> list[Field]:
    """What is simulated, by name."""
    partition = names.partition.name if names.partition else "none"
    server = "algorithm; `jaxafl list` says on which clocks it runs"
    return [
        _choice("data", catalogue.datasets(), names.data.name, "dataset", aliases=("--dataset",)),
        _choice("partition", ("none", *catalogue.partitions()), partition, "split of a pooled dataset over clients"),
        _choice("model", catalogue.models(), names.model.name, "network"),
        _choice("server", catalogue.servers(), names.server.name, server),
        _choice("clock", catalogue.clocks(), names.clock.name, "protocol: who trains when, and who arrives"),
    ]


def _field(name: str, kind: Any, default: Any, text: str) -> Field:
    return name, _annotated(kind, arg(help=text)), default


def _choice(part: str, names: Iterable[str], default: str, text: str, aliases: tuple[str, ...] = ()) -> Field:
    return f"{part}_name", _annotated(_one_of(names), arg(name=part, help=text, aliases=aliases)), default


def _one_of(names: Iterable[str]) -> Any:
    return Literal[tuple(names)]


def _annotated(kind: Any, details: Any) -> Any:
    return Annotated[kind, details]


def _group(part: str, summary: str, options: Sequence[Option], names: Chosen) -> Field:
    """A field that holds the options of one part, `--<part>.<option>`."""
    fields: list[Any] = []
    for option in options:
        alias, default = _alias(part, option.name, names), _default(part, option)
        details = arg(
            help=option.help.replace("`", ""),
            aliases=(alias,) if alias else None,
            metavar="EXPR" if option.expression else None,
        )
        kind = _annotated(option.type, details)
        fields.append((option.name, kind, dataclasses.field(**({} if default is REQUIRED else {"default": default}))))
    made = dataclasses.make_dataclass(f"{part.title()}Options", fields, kw_only=True, frozen=True)
    made.__doc__ = summary
    complete = all(field.default is not dataclasses.MISSING for field in dataclasses.fields(made))
    return part, made, made() if complete else dataclasses.MISSING


def _default(part: str, option: Option) -> Any:
    """The default of the command line, which has some where Python has none."""
    if option.default is not REQUIRED:
        return option.default
    return (
        _PARTITION_CLIENTS if (part, option.name) == ("partition", "clients") else _DEFAULTS.get(option.name, REQUIRED)
    )


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
    name = Option("optimizer", _one_of(catalogue.optimizers()), optimizer.name, "Optax optimiser of the clients")
    every = [name, *(option for option in optimizer.options if option.name not in taken), *own]
    helps = {
        "steps": "K, local steps of a run (10, unless epochs are given)",
        "learning_rate": "η_l, the local learning rate",
    }
    return [option._replace(help=helps.get(option.name, option.help)) for option in every]


def _partition(arguments: Sequence[str]) -> Constructor | None:
    known = catalogue.partitions()
    name = _last(arguments, ("--partition",), "none")
    return None if name == "none" else _find(name, "partition", known)


def _usual_clock(server: Constructor) -> str:
    available = catalogue.clocks()
    usual = [name for name in _USUAL_CLOCKS if name in server.clocks]
    return (usual or [name for name in server.clocks if name in available] or sorted(available))[0]


def _named(
    arguments: Sequence[str], flags: tuple[str, ...], what: str, known: dict[str, Constructor], default: str
) -> Constructor:
    return _find(_last(arguments, flags, default), what, known)


def _find(name: str, what: str, known: dict[str, Constructor]) -> Constructor:
    if name not in known:
        raise ValueError(f"there is no {what} {name!r}; choose from {', '.join(known)}")
    return known[name]


def _last(arguments: Sequence[str], flags: tuple[str, ...], default: str) -> str:
    """The value of a flag, written `--flag value` or `--flag=value`; the last one counts."""
    value = default
    for argument, following in itertools.pairwise([*arguments, ""]):
        flag, equals, rest = argument.partition("=")
        if flag in flags:
            value = rest if equals else following
    return value
