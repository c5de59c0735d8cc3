"""Which constructors a command line names. They decide which other options there are, so they are read first."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxafl.cli import catalogue
from jaxafl.cli.catalogue import Constructor

_USUAL_CLOCKS = ("free_running", "synchronous")  # asynchronous where the server is
_DATA_FLAGS = ("--data", "--dataset")


class Chosen(NamedTuple):
    """The constructors that a command line names."""

    data: Constructor
    partition: Constructor | None
    model: Constructor
    optimizer: Constructor
    server: Constructor
    clock: Constructor


def chosen(arguments: Sequence[str], axes: Mapping[str, Sequence[Any]] | None = None) -> Chosen:
    """Reads the names.

    Args:
        arguments: the command line.
        axes: of a sweep, path -> values; the optimisers can be an axis.

    Raises:
        ValueError: there is nothing of that name.
    """
    optimizer = str((axes or {}).get("client.optimizer", ["sgd"])[0])
    server = _named(arguments, ("--server",), "server", catalogue.servers(), "fedavg")
    return Chosen(
        data=_named(arguments, _DATA_FLAGS, "dataset", catalogue.datasets(), "femnist"),
        partition=_partition(arguments),
        model=_named(arguments, ("--model",), "model", catalogue.models(), "cnn_small"),
        optimizer=_named(arguments, ("--client.optimizer",), "optimiser", catalogue.optimizers(), optimizer),
        server=server,
        clock=_named(arguments, ("--clock",), "clock", catalogue.clocks(), _usual_clock(server)),
    )


def find(name: str, what: str, known: dict[str, Constructor]) -> Constructor:
    """The constructor of a name (`ValueError` where there is none)."""
    if name not in known:
        raise ValueError(f"there is no {what} {name!r}; choose from {', '.join(known)}")
    return known[name]


def program(command: str, arguments: Sequence[str], names: Chosen) -> str:
    """The command with the names that were given, and the clock that follows from the server: what shows their help."""
    parts = {
        "--data": (names.data, _DATA_FLAGS),
        "--partition": (names.partition, ("--partition",)),
        "--model": (names.model, ("--model",)),
        "--client.optimizer": (names.optimizer, ("--client.optimizer",)),
        "--server": (names.server, ("--server",)),
        "--clock": (names.clock, ("--server", "--clock")),
    }
    given = [f"{flag} {made.name}" for flag, (made, flags) in parts.items() if made and is_given(arguments, *flags)]
    return " ".join([f"jaxafl {command}", *given])


def is_given(arguments: Sequence[str], *flags: str) -> bool:
    """Whether any of these flags is on the command line, with hyphens or underscores."""
    return any(argument.partition("=")[0].replace("_", "-") in flags for argument in arguments)


def values_of(arguments: Sequence[str], *flags: str) -> list[str]:
    """The values of a flag in the order given, each written `--flag value` or `--flag=value`."""
    found = []
    for argument, following in itertools.pairwise([*arguments, ""]):
        flag, equals, rest = argument.partition("=")
        if flag in flags:
            found.append(rest if equals else following)
    return found


def _partition(arguments: Sequence[str]) -> Constructor | None:
    name = (values_of(arguments, "--partition") or ["none"])[-1]
    return None if name == "none" else find(name, "partition", catalogue.partitions())


def _usual_clock(server: Constructor) -> str:
    available = catalogue.clocks()
    usual = [name for name in _USUAL_CLOCKS if name in server.clocks]
    return (usual or [name for name in server.clocks if name in available] or sorted(available))[0]


def _named(
    arguments: Sequence[str], flags: tuple[str, ...], what: str, known: dict[str, Constructor], default: str
) -> Constructor:
    return find((values_of(arguments, *flags) or [default])[-1], what, known)
