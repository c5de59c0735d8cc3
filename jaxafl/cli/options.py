"""The typed options of `jaxafl run` and `jaxafl sweep`: those of the constructors that the command line names."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Any, Literal

from tyro.conf import UseAppendAction, arg

from jaxafl.cli import catalogue, defaults
from jaxafl.cli.catalogue import REQUIRED, Constructor, Option
from jaxafl.cli.names import Chosen

_FROM_PYTHON = ("data_dir", "optimizer")  # given by options of their own

Field = tuple[str, Any, Any]  # name, type, default


def options_type(names: Chosen, sweep: bool = False, axes: Collection[str] = ()) -> type:
    """A dataclass for tyro with the options of one command line.

    Its fields `<part>_name` hold names, its fields `<part>` the options of what was named; the rest is as in
    `Simulation.run`.

    Args:
        names: the constructors.
        sweep: whether there are axes.
        axes: their names; they give options that are required otherwise.
    """
    parts = {name: getattr(names, name) for name in ("data", "partition", "model", "server", "clock")}
    groups = [
        _group(part, f"{made.name}: {made.summary}", _options(part, made, axes), names)
        for part, made in parts.items()
        if made
    ]
    client = _group("client", f"local training with {names.optimizer.name}", _client_options(names), names)
    fields = [*_run_fields(sweep), *_name_fields(names), *groups, client]
    return dataclasses.make_dataclass(
        "Options",
        [(name, kind, dataclasses.field(default=default)) for name, kind, default in fields],
        kw_only=True,
        frozen=True,
    )


def _run_fields(sweep: bool) -> list[Field]:
    """What `Simulation.run` takes, and where the results go."""
    axis = (
        "what varies: seed=0:5 (0 to 4), or an option of server, client or clock, server.lam=1,3,5; repeat it for a "
        "grid. Values are numbers, words, none, true, false, lists [1,2], durations and names of optimisers"
    )
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
        alias = _alias(part, option.name, names)
        details = arg(
            help=option.help.replace("`", ""),
            aliases=(alias,) if alias else None,
            metavar="EXPR" if option.expression else _choices(option),
        )
        default = {} if option.default is REQUIRED else {"default": option.default}
        fields.append((option.name, _annotated(option.type, details), dataclasses.field(**default)))
    made = dataclasses.make_dataclass(f"{part.title()}Options", fields, kw_only=True, frozen=True)
    made.__doc__ = summary
    complete = all(field.default is not dataclasses.MISSING for field in dataclasses.fields(made))
    return part, made, made() if complete else dataclasses.MISSING


def _choices(option: Option) -> str | None:
    """`{a,b}` of an option whose help names its values, as `"a"`."""
    named = list(dict.fromkeys(re.findall(r'`"(\w+)"`', option.help)))
    if option.type not in (str, str | None) or len(named) < 2 or option.default not in (None, REQUIRED, *named):
        return None
    return f"{{{','.join((['None'] if option.default is None else []) + named)}}}"


def _alias(part: str, option: str, names: Chosen) -> str | None:
    """Short names: `--durations`, and `--clients` of whatever makes the clients."""
    if (part, option) == ("clock", "durations"):
        return "--durations"
    makes_clients = "partition" if names.partition else "data"
    return "--clients" if (part, option) == (makes_clients, "clients") else None


def _options(part: str, constructor: Constructor, axes: Collection[str]) -> list[Option]:
    """The options of a part, with the defaults of the command line; what an axis gives is not required."""
    options = [defaults.of(part, option) for option in constructor.options if option.name not in _FROM_PYTHON]
    return [
        option._replace(type=option.type | None, default=None)
        if option.default is REQUIRED and f"{part}.{option.name}" in axes
        else option
        for option in options
    ]


def _client_options(names: Chosen) -> list[Option]:
    """The optimiser's name, its numbers, and what `Client` takes beside them."""
    from jaxafl.client import Client

    optimizer = names.optimizer
    named = Option("optimizer", _one_of(catalogue.optimizers()), optimizer.name, "Optax optimiser of the clients")
    every = {option.name: option for option in (named, *optimizer.options, *catalogue.describe(Client).options)}
    usual = defaults.local_training(names.server)
    steps = usual.pop("steps")
    for name, default in usual.items():
        every[name] = every[name]._replace(default=default)
    helps = {
        "steps": f"K, local steps of a run ({steps}, unless epochs are given)",
        "learning_rate": "η_l, the local learning rate",
    }
    for option in optimizer.options:
        if option.name == "weight_decay":  # `Client` hands it to an optimiser that has one
            helps["weight_decay"] = f"{option.help} (by default {option.default:g}, that of {optimizer.name})"
    return [option._replace(help=helps.get(option.name, option.help)) for option in every.values()]
