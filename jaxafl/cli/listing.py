"""`jaxafl list`: everything that the command line can name."""

from __future__ import annotations

import typing
from typing import Any

from rich.console import Console
from rich.markup import escape

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
    """Prints a heading per kind and two or three lines per entry."""
    console = Console()
    for kind, find in _KINDS.items():
        console.rule(f"[bold]{kind}", align="left")
        for one in find().values():
            console.print(f"[bold]{one.name}[/bold]  {escape(one.summary)}", highlight=False)
            options = ", ".join(_written(option) for option in one.options)
            if options:
                console.print(f"    [dim]{escape(options)}[/dim]", highlight=False)
            if one.clocks:
                console.print(f"    [dim]runs on {', '.join(_available(one))}[/dim]", highlight=False)


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
