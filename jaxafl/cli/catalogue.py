"""Constructors that a command line can name, with their options.

They are the public names of the package that make an object of a kind, and `package.module:name` of users. Options come
from signature, fields and docstring.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import os
import re
import sys
import typing
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import optax

from jaxafl import client, clock, data, models, presets, server
from jaxafl.client import attack, correction, upload
from jaxafl.options import Part, UserError, did_you_mean, kinds_of, types_of
from jaxafl.server import Needs, aggregate

REQUIRED = dataclasses.MISSING
_DOCUMENTED = re.compile(r"^( +)(\w+): (.*(?:\n\1 .*)*)", re.MULTILINE)
KINDS: dict[str, tuple[Any, Any]] = {  # kind -> module, and class of its objects
    "datasets": (data, data.Dataset | data.FederatedData),
    "partitions": (data, data.Partition),
    "models": (models, models.Model),
    "servers": (server, server.Server),
    "presets": (presets, presets.Preset),
    "clocks": (clock, clock.Clock),
    "durations": (clock, clock.Duration),
    "closes": (clock, clock.Closes),
    "bounds": (clock, clock.Bound),
    "begins": (clock, clock.Begins),
    "selects": (clock, clock.Selects),
    "uploads": (upload, upload.Upload),
    "corrections": (correction, correction.Correction),
    "aggregates": (aggregate, aggregate.Aggregate),
    "attacks": (attack, attack.Attack),
}
QUESTIONS = {
    "tolerated": "Which staleness is tolerated? Any: updates count as they come, or by their age",
    "waits": "Who waits? The server, for all clients of a round",
    "refused": "Who is refused? Updates that are too old or distant, and runs that a step stops",
    "remembered": "What is remembered? The last update or the model of every client",
}
"""Questions that group the servers and presets in lists, by a word for the answer."""
# picky_sgd refuses by itself, the others on their papers' clocks; a preset does not say what its server keeps
_ANSWERS = dict.fromkeys(("malenia", "throttle", "ringmaster", "rennala", "picky_sgd"), "refused")
_ANSWERS |= {"fedvarp": "remembered", "hierfavg": "waits", "hierfavg_edges": "waits"}
_OPTIMISERS = (optax.sgd, optax.adam, optax.adamw, optax.amsgrad, optax.adagrad, optax.rmsprop, optax.yogi, optax.lion)
_LISTED = {"optimisers": _OPTIMISERS, "local training": (client.Client,)}  # further kinds
_SUPPLIED = ("data_dir", "num_classes")  # by --data-dir and by the data
_WRITTEN = (float, int, str, bool, typing.Literal, tuple, Sequence)  # types that have a text
_PROXIMAL = "FedProx: `fedavg` with Client(proximal=mu), which adds μ (x - x_s) to every local gradient."


class Option(NamedTuple):
    """Option of a constructor."""

    name: str
    type: str  # in words
    default: Any  # REQUIRED if there is none
    help: str
    hint: Any  # annotation


class Constructor(NamedTuple):
    """Constructor of a part of a simulation."""

    name: str
    call: Callable[..., Any]
    summary: str
    options: tuple[Option, ...]
    clocks: tuple[str, ...] = ()  # for a server: the shipped clocks that it runs on
    local: dict[str, Any] = {}  # for a server: its defaults of local training

    @property
    def question(self) -> str:
        """Key of `QUESTIONS` for a server or a preset, from its requirements and clocks."""
        needs = getattr(self.call, "needs", None)
        if isinstance(needs, Needs) and (needs.client_rows or needs.client_models):
            return "remembered"
        fresh = "synchronous" in self.clocks and "free_running" not in self.clocks
        return _ANSWERS.get(self.name, "waits" if fresh else "tolerated")


@functools.cache
def offered(kind: str) -> dict[str, Constructor]:
    """Returns the constructors of a kind by name; `kind` is a key of `KINDS`, "optimisers" or "local training"."""
    if kind in _LISTED:
        return {call.__name__: describe(call) for call in _LISTED[kind]}
    module, made = KINDS[kind]
    found = {name: describe(call) for name, call in public(module).items() if _makes(call, made)}
    if kind == "servers":  # FedProx is FedAvg with another client
        found["fedprox"] = found["fedavg"]._replace(name="fedprox", summary=_PROXIMAL, local={"proximal": 0.01})
    return dict(sorted(found.items()))


def public(*modules: Any) -> dict[str, Callable[..., Any]]:
    """Returns what modules offer by name, without the types of annotations, whose names have capitals."""
    return {name: getattr(module, name) for module in modules for name in module.__all__ if name.islower()}


def find(name: str, kind: str) -> Constructor:
    """Returns the constructor with a name, or a user's `package.module:name`.

    Raises:
        UserError: the name is unknown.
        ImportError: the module was not found.
    """
    if ":" in name:
        return describe(imported(name))._replace(name=name)
    if kind == "servers" and name in offered("presets"):
        text = " ".join(str(offered("presets")[name].call.__doc__).split())
        way = text.partition("In a shell: `")[2].partition("`")[0]
        raise UserError(f"{name} is a server on a certain clock; write {way}")
    if name not in offered(kind):
        known = f"{', '.join(offered(kind))}, or package.module:name of your own"
        close = did_you_mean(name, offered(kind))
        raise UserError(f"there is no {kind.removesuffix('s')} {name!r}{close or ';'} Choose from {known}")
    return offered(kind)[name]


def imported(name: str) -> Any:
    """Imports `package.module:name`, also from the current directory."""
    place, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    found = getattr(importlib.import_module(place), attribute, None)
    if found is None:
        raise UserError(f"there is no {name!r}: the module {place} has no class or function {attribute!r}")
    return found


def describe(call: Any) -> Constructor:
    """Describes a constructor by signature, fields and docstring."""
    owners = reversed(call.__mro__) if isinstance(call, type) else [call]
    entries = [entry for owner in owners for entry in _DOCUMENTED.findall(inspect.getdoc(owner) or "")]
    helps = {name: " ".join(text.split()) for _, name, text in entries}  # those of base classes included
    hints, is_part = types_of(call), dataclasses.is_dataclass(call)
    options = []
    for name, parameter in inspect.signature(call).parameters.items():
        default = REQUIRED if parameter.default is parameter.empty else parameter.default
        hint = hints.get(name, float if default is REQUIRED else type(default))
        supplied = name in _SUPPLIED or (name, hint) == ("download", bool)  # a clock's `download` is a probability
        several = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if (_is_written(hint) or (default is REQUIRED and is_part)) and not supplied and not several:
            options.append(Option(name, _words(hint), default, helps.get(name, ""), hint))
    summary = " ".join((inspect.getdoc(call) or "").partition("\n\n")[0].split())
    clocks = tuple(sorted(getattr(call, "clocks", ())))
    local = getattr(call, "local", {})
    return Constructor(call.__name__, call, summary, tuple(options), clocks, local)


def parts_of(hint: Any) -> tuple[type, ...]:
    """Returns the kinds of parts in a union: those options are written as expressions."""
    every = tuple(made for _, made in KINDS.values() if isinstance(made, type) and issubclass(made, Part))
    return tuple(one for one in kinds_of(hint).members if isinstance(one, type) and issubclass(one, every))


def _words(hint: Any) -> str:
    """Returns a type in words."""
    members = kinds_of(hint).members
    names = {"Literal": "str", "Sequence": "list", "tuple": "list"}
    words = [names.get(one.__name__, one.__name__.lower()) for one in members if _is_written(one)] or ["list"]
    words = ["float"] if float in members else list(dict.fromkeys(words))
    return " | ".join([*words, *["None"] * (type(None) in members)])


def _is_written(hint: Any) -> bool:
    """Returns True if a command line can give values of a type: numbers, words, lists and parts."""
    kinds = kinds_of(hint).kinds
    return bool(parts_of(hint) or kinds & {*_WRITTEN}) and bytes not in kinds  # NumPy's `ArrayLike` has it


def _makes(call: Any, made: Any) -> bool:
    """Returns True if a constructor makes such an object, and a command line can give its required options."""
    if isinstance(call, type):
        return issubclass(call, made)
    given = {*_SUPPLIED, *(option.name for option in describe(call).options)}
    needed = {one.name for one in inspect.signature(call).parameters.values() if one.default is one.empty}
    returned = types_of(call).get("return")
    return needed <= given and isinstance(returned, type) and issubclass(returned, made)
