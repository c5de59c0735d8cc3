"""Writes the pages of the reference: every public name, module by module."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import itertools
import pathlib
import sys
import typing
from types import ModuleType
from typing import Any

ROOMS = {
    "jaxafl": "The package",
    "jaxafl.clock": "Clocks and durations",
    "jaxafl.server": "Servers",
    "jaxafl.server.aggregate": "Aggregates",
    "jaxafl.presets": "Servers on their published clocks",
    "jaxafl.data": "Datasets and partitions",
    "jaxafl.models": "Models",
    "jaxafl.callbacks": "Callbacks",
    "jaxafl.plot": "Figures",
    "jaxafl.theory": "Theory",
    "jaxafl.client.upload": "Uploads",
    "jaxafl.client.correction": "Corrections",
    "jaxafl.client.attack": "Attacks",
    "jaxafl.client": "Local training",
    "jaxafl.results": "Results",
    "jaxafl.sweep": "Sweeps",
    "jaxafl.options": "Options",
    "jaxafl.device": "The device",
}
_PAPERS = (
    "staleness",
    "delayed_gradients",
    "fadas",
    "asyncfeded",
    "defedavg",
    "afl",
    "optimal_times",
    "queues",
)  # of jaxafl.theory
_BASES = ("Simulation", "Comparison", "Schedule", "FederatedData", "Dataset", "Partition", "PartitionStatistics")
_BASES += (
    "Server",
    "OptaxServer",
    "Rows",
    "Clock",
    "Events",
    "Duration",
    "Distribution",
    "Callback",
    "Model",
    "Quadratic",
    "Upload",
    "VectorUpload",
    "Correction",
    "Aggregate",
    "Center",
    "Attack",
)


def page_of(room: str, title: str) -> str:
    """Returns the page of a module: its docstring, a table of its names, and their documentation."""
    module = importlib.import_module(room)
    found = public(room)
    about = " ".join((module.__doc__ or "").strip().split("\n\n")[0].split())
    lines = [f"# {title}: `{room}`\n\n{about}\n", *_entries(room, found)]
    for paper in _PAPERS if room == "jaxafl.theory" else ():
        own = f"jaxafl.theory.{paper}"
        about = " ".join((importlib.import_module(own).__doc__ or "").strip().split("\n\n")[0].split())
        lines += [f"## `{own}`\n\n{about}\n", *_entries(own, public(own))]
    return "\n".join(lines)


def _entries(room: str, found: dict[str, Any]) -> list[str]:
    """Returns a table of the names and their documentation; a name of several modules is documented in the first."""
    shown, elsewhere, modules = [], [], []
    for name, value in found.items():
        if inspect.ismodule(value):
            own = value.__name__
            modules.append(f"[`{own}`]({own}.md)" if own in ROOMS else f"`{own}` (below)")
        elif (first := homes()[room, name]) != f"{room}.{name}":
            role = "class" if inspect.isclass(value) else "func"
            elsewhere.append(f"{{py:{role}}}`{first}`")
        else:
            shown.append(name)
    lines = [f"Modules: {', '.join(modules)}.\n"] if modules else []
    lines += [f"Also in this module: {', '.join(elsewhere)}.\n"] if elsewhere else []
    table = "\n".join(f"   {name}" for name in shown if _is_code(found[name]))
    lines += [f"```{{eval-rst}}\n.. currentmodule:: {room}\n\n.. autosummary::\n   :nosignatures:\n\n{table}\n"]
    for name in shown:
        value = found[name]
        if _is_code(value):
            lines.append(f".. auto{'class' if inspect.isclass(value) else 'function'}:: {name}")
            lines += ["   :members:"] if name in _BASES else []
        else:
            lines.append(f".. py:data:: {name}\n\n   {_docstring_of(room, name)}")
        lines.append("")
    return [*lines, "```\n"]


@functools.cache
def homes() -> dict[tuple[str, str], str]:
    """Returns the first module that has the object of each (module, name), as a dotted name."""
    places, first = {}, {}
    for room in rooms():
        for name, value in public(room).items():
            places[room, name] = first.setdefault(id(value) if _is_code(value) else (room, name), f"{room}.{name}")
    return places


def _docstring_of(room: str, name: str) -> str:
    """Returns the docstring below the assignment of a constant."""
    for module in [module for key, module in sorted(sys.modules.items()) if key.startswith(room)]:
        nodes = ast.parse(pathlib.Path(module.__file__ or "").read_text(encoding="utf-8")).body
        for node, after in itertools.pairwise(nodes):
            target = node.target if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [None])[0]
            if (
                getattr(target, "id", "") == name
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
            ):
                return " ".join(str(after.value.value).split())
    return "The version of the package." if name == "__version__" else ""


def public(room: str) -> dict[str, Any]:
    """Returns the public objects of a module by name."""
    module = importlib.import_module(room)
    every = getattr(module, "__all__", None) or [name for name in vars(module) if _is_own(module, name)]
    return {name: getattr(module, name) for name in every}


def rooms() -> list[str]:
    """Returns all documented modules; those of the papers share the page of `jaxafl.theory`."""
    return [*ROOMS, *(f"jaxafl.theory.{paper}" for paper in _PAPERS)]


def _is_code(value: Any) -> bool:
    """Returns True for a class or a function; a type alias counts as a constant."""
    return callable(value) and typing.get_origin(value) is None


def _is_own(module: ModuleType, name: str) -> bool:
    value = getattr(module, name)
    return not name.startswith("_") and getattr(value, "__module__", "") == module.__name__ and callable(value)
