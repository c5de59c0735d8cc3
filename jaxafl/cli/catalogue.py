"""Constructors that a command line can name, of datasets, partitions, models, servers and clocks, with their options.

Nothing is registered: the package's constructors are found by the methods of the objects that they make. A user's
constructor is named `package.module:name`. Options are read from signature, fields and docstring.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import os
import sys
import types
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

import docstring_parser
import jax.typing
import numpy.typing
import optax

from jaxafl.client import Client
from jaxafl.models import Metric
from jaxafl.options import Bounds, UserError, bounds_of, did_you_mean, types_of
from jaxafl.options.checks import MOST
from jaxafl.server import Needs

REQUIRED = dataclasses.MISSING
KINDS = {  # kind -> package, and methods, one of which every object of the kind has
    "datasets": ("jaxafl.data", ("fetch", "partition")),
    "partitions": ("jaxafl.data.partition", ("split",)),
    "models": ("jaxafl.models", ("bound",)),
    "servers": ("jaxafl.server", ("update",)),
    "presets": ("jaxafl.presets", ("server",)),
    "clocks": ("jaxafl.clock", ("next",)),
    "durations": ("jaxafl.clock", ("draw",)),
    "uploads": ("jaxafl.client.upload", ("apply",)),
    "corrections": ("jaxafl.client.correction", ("finish",)),
    "aggregates": ("jaxafl.server.aggregate", ("least_arrivals",)),
    "attacks": ("jaxafl.client.attack", ("forge",)),
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
_ANSWERS |= {"fedvarp": "remembered"}
_ARRAYS = (jax.typing.ArrayLike, numpy.typing.ArrayLike)  # types without a form on a command line
_SUPPLIED = ("data_dir", "num_classes")  # given by --data-dir and by the data, so not options of a part
_OPTIMIZERS = (optax.sgd, optax.adam, optax.adamw, optax.amsgrad, optax.adagrad, optax.rmsprop, optax.yogi, optax.lion)
_PROXIMAL = "FedProx: `fedavg` with Client(proximal=mu), which adds μ (x - x_s) to every local gradient."
# name of a type, in order of preference -> its type on a command line; `None` for arrays, which only expressions give
_TYPES: dict[str, Any] = {
    "Duration": str,
    "Clock": str,
    "Upload": str,
    "Correction": str,
    "Aggregate": str,
    "Literal": typing.Literal,
    "float": int | float,
    "int": int,
}
_TYPES |= {"str": str, "bool": bool, "Sequence": tuple, "tuple": tuple, "ndarray": None}
_WORDS = {"Literal": "str", "Sequence": "list", "tuple": "list", "ndarray": "array"}


class Option(NamedTuple):
    """Option of a constructor."""

    name: str
    type: str  # in words; a "duration" is written as an expression
    default: Any  # REQUIRED if there is none
    allowed: str  # values or bounds, in words
    help: str
    typed: Any  # type on a command line


class Constructor(NamedTuple):
    """Constructor of a part of a simulation."""

    name: str
    call: Callable[..., Any]
    summary: str
    options: tuple[Option, ...]
    clocks: tuple[str, ...] = ()  # for a server: the shipped clocks that it runs on

    @property
    def question(self) -> str:
        """Key of `QUESTIONS` for a server or a preset, from its requirements and clocks."""
        needs = getattr(self.call, "needs", None)
        if isinstance(needs, Needs) and (needs.client_rows or needs.client_models):
            return "remembered"
        if self.name in _ANSWERS:
            return _ANSWERS[self.name]
        fresh = "synchronous" in self.clocks and "free_running" not in self.clocks
        return "waits" if fresh else "tolerated"


@functools.cache
def offered(kind: str) -> dict[str, Constructor]:
    """Returns the constructors of a kind by name; `kind` is a key of `KINDS`, "optimisers" or "local training"."""
    if kind in ("optimisers", "local training"):
        return {call.__name__: describe(call) for call in (_OPTIMIZERS if kind == "optimisers" else [Client])}
    module = importlib.import_module(KINDS[kind][0])
    every = [getattr(module, name) for name in sorted(module.__all__) if name.islower()]
    found = {call.__name__: describe(call, kind == "durations") for call in every if _makes(call, kind)}
    if kind == "servers":  # FedProx is FedAvg with another client
        mu = Option("mu", "float", 0.01, ">= 0, also one per client", "μ of the proximal term.", int | float)
        options = (*found["fedavg"].options, mu)
        found["fedprox"] = found["fedavg"]._replace(name="fedprox", summary=_PROXIMAL, options=options)
    return dict(sorted(found.items()))


def find(name: str, kind: str) -> Constructor:
    """Returns the constructor with a name, or a user's `package.module:name`, also from the current directory.

    Raises:
        UserError: the name is unknown, or of a constructor of something else.
        ImportError: the module was not found.
    """
    what = kind.removesuffix("s")
    place, colon, _ = name.partition(":")
    if not (place and colon):
        if kind == "servers" and name in offered("presets"):
            written = " ".join((inspect.getdoc(offered("presets")[name].call) or "").split())
            line = written.partition("In a shell: `")[2].partition("`")[0]
            raise UserError(f"{name} is a server on a certain clock; write {line}")
        if name not in offered(kind):
            close = did_you_mean(name, offered(kind))
            known = f"{', '.join(offered(kind))}, or name your own as package.module:name"
            raise UserError(f"there is no {what} {name!r}{f'{close} Choose' if close else '; choose'} from {known}")
        return offered(kind)[name]
    call = _imported(name, what)
    if isinstance(call, type) and kind in KINDS and not _makes(call, kind):
        raise UserError(f"{name} is no {what}: it has no method {' or '.join(KINDS[kind][1])}")
    return describe(call)._replace(name=name)


def metrics_of_text(text: str) -> dict[str, Any]:
    """Returns the metrics of whole sets that `--metrics NAME=MODULE:FUNCTION,...` names."""
    found = {}
    for one in text.split(","):
        name, equals, place = one.strip().partition("=")
        if not (name and equals and all(place.partition(":"))) or name in found:
            raise UserError(
                f"--metrics {text!r}: expected NAME=MODULE:FUNCTION,..., each name once, e.g. f1=my_metrics:macro_f1"
            )
        found[name] = _imported(place, "metric")
    return found


def _imported(name: str, what: str) -> Any:
    """Imports a user's `package.module:name`, also from the current directory."""
    place, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    call = getattr(importlib.import_module(place), attribute, None)
    if not (callable(call) or isinstance(call, Metric)):
        raise UserError(f"there is no {what} {name!r}: the module {place} has no class or function {attribute!r}")
    return call


def describe(call: Any, arrays: bool = False) -> Constructor:
    """Describes a constructor by signature, fields and docstring, without options that a command line cannot give.

    Args:
        call: the constructor.
        arrays: include options that are arrays.
    """
    options = []
    helps = _helps(call)
    plain_class = isinstance(call, type) and not hasattr(call, "is_part")
    hints = types_of(vars(call).get("__init__", call) if plain_class else call)
    bounds = {field.name: bounds_of(field) for field in dataclasses.fields(call)} if hasattr(call, "is_part") else {}
    for name, parameter in inspect.signature(call).parameters.items():
        kind, typed = _typed(hints.get(name, parameter.annotation), parameter.default)
        supplied = name in _SUPPLIED or (name, typed) == ("download", bool)  # --download; a clock's is a probability
        if kind and (arrays or (typed is not None and not supplied)):
            default = REQUIRED if parameter.default is parameter.empty else parameter.default
            allowed = _allowed(kind, typed, bounds.get(name, Bounds()))
            options.append(Option(name, kind, default, allowed, helps.get(name, ""), typed))
    doc = inspect.getdoc(call) or ""
    summary = "" if doc.startswith(f"{call.__name__}(") else " ".join(doc.partition("\n\n")[0].split())
    return Constructor(call.__name__, call, summary, tuple(options), tuple(sorted(getattr(call, "clocks", ()))))


def _makes(call: Any, kind: str) -> bool:
    """Returns True if a constructor makes an object of a kind, and a command line can give its required options."""
    returned = call if isinstance(call, type) else types_of(call).get("return")
    if not isinstance(returned, type) or not any(hasattr(returned, method) for method in KINDS[kind][1]):
        return False
    every = inspect.signature(call).parameters.values() if returned is not call else ()
    needed = [types_of(call).get(one.name) for one in every if one.default is one.empty]
    return all(_typed(hint, None)[0] and hint not in _ARRAYS for hint in needed)


def _helps(call: Any) -> dict[str, str]:
    """Returns the `Args` of the docstring by name, including those of base classes."""
    found: dict[str, str] = {}
    for documented in reversed(call.__mro__) if isinstance(call, type) else [call]:
        with contextlib.suppress(docstring_parser.ParseError):
            parsed = docstring_parser.parse(documented.__doc__ or "", docstring_parser.DocstringStyle.GOOGLE)
            found |= {one.arg_name: " ".join((one.description or "").split()) for one in parsed.params}
    return found


def _typed(annotation: Any, default: Any) -> tuple[str, Any]:
    """Returns a type in words ("" if a command line cannot give it), and the type on a command line."""
    annotation = type(default) if annotation is inspect.Parameter.empty else annotation
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    parts = {getattr(part, "__name__", ""): part for part in (typing.get_args(annotation) if union else [annotation])}
    name = next((name for name in _TYPES if name in parts), "")
    typed: Any = parts[name] if name in ("Literal", "tuple") else _TYPES.get(name)
    if name == "Sequence":
        typed = tuple[(*typing.get_args(parts[name]), ...)]  # type: ignore[misc]
    word = _WORDS.get(name, name.lower())
    if name == "Literal" and "int" in parts:
        word, typed = "int | str", int | typed
    return (f"{word} | None", typed | None) if typed and "NoneType" in parts else (word, typed)


def _allowed(kind: str, typed: Any, bounds: Bounds) -> str:
    """Returns values or bounds in words."""
    for literal in (typed, *typing.get_args(typed)):
        if typing.get_origin(literal) is typing.Literal:
            return ", ".join(typing.get_args(literal))
    words = [f"{sign} {limit:g}" for sign, limit in bounds.limits().items() if limit != MOST]
    words += ["also one per client"] if bounds.per_client else []
    return ", ".join(words) if kind.startswith(("int", "float")) else ""
