"""`jaxafl list`: everything that the command line can name."""

from __future__ import annotations

import typing
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jaxafl.cli import catalogue
from jaxafl.cli.catalogue import REQUIRED, Constructor, Option

_KINDS = {
    "datasets": catalogue.datasets,
    "partitions": catalogue.partitions,
    "models": catalogue.models,
    "servers": catalogue.servers,
    "clocks": catalogue.clocks,
    "durations": catalogue.durations,
}


def as_json() -> dict[str, list[dict[str, Any]]]:
    """Kind -> entries with name, summary, options (name, type, required, default, help) and, for servers, clocks."""
    return {kind: [_entry(one, kind) for one in find().values()] for kind, find in _KINDS.items()}


def show() -> None:
    """Prints a table per kind: what it is, its options, and for servers the clocks."""
    console = Console()
    width = max(len(name) for find in _KINDS.values() for name in find())
    for kind, find in _KINDS.items():
        console.print(f"\n[bold underline]{kind}[/]")
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", width=width, no_wrap=True)
        table.add_column()
        for one in find().values():
            lines = [escape(one.summary)]
            lines += [f"[dim]{escape(', '.join(map(_written, one.options)))}[/dim]"] if one.options else []
            lines += [f"[dim]runs on {', '.join(_available(one))}[/dim]"] if one.clocks else []
            table.add_row(one.name, "\n".join(lines))
        console.print(table, highlight=False)


def _entry(one: Constructor, kind: str) -> dict[str, Any]:
    options = [
        {
            "name": option.name,
            "type": _type_name(option),
            "required": option.default is REQUIRED,
            "default": None if option.default is REQUIRED else option.default,
            "help": option.help,
        }
        for option in one.options
    ]
    entry: dict[str, Any] = {"name": one.name, "summary": one.summary, "options": options}
    return entry | ({"clocks": _available(one)} if kind == "servers" else {})


def _available(server: Constructor) -> list[str]:
    known = catalogue.clocks()
    return [clock for clock in server.clocks if clock in known]


def _written(option: Option) -> str:
    return option.name if option.default is REQUIRED else f"{option.name}={option.default!r}"


def _type_name(option: Option) -> str:
    if option.expression:
        return "duration"
    if typing.get_args(option.type) or not isinstance(option.type, type):
        return str(option.type)
    return option.type.__name__
