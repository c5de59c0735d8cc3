"""What can be named on the command line: the public constructors of the packages, with their options.

Nothing is registered. A constructor is a public function of a package whose return type is of the right kind, and its
signature and docstring say the rest; a new server is therefore offered as soon as its package's `__init__` names it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

REQUIRED = inspect.Parameter.empty
_SCALARS = (float, int, str, bool)
_NUMBER = int | float  # a whole number stays one


class Option(NamedTuple):
    """One option of a constructor."""

    name: str
    type: Any  # as typed on a command line; an expression for durations is a str
    default: Any  # REQUIRED where there is none
    help: str
    expression: bool = False  # a duration


class Constructor(NamedTuple):
    """A function that makes a dataset, a partition, a model, a server, a clock or a duration."""

    name: str
    call: Callable[..., Any]
    summary: str
    options: tuple[Option, ...]
    clocks: tuple[str, ...] = ()  # of a server: the clocks that it runs on


def datasets() -> dict[str, Constructor]:
    """Those that need nothing but a data directory."""
    from jaxafl.data import Dataset, FederatedData

    found = _constructors("jaxafl.data", lambda made: issubclass(made, Dataset | FederatedData))
    return {name: one for name, one in found.items() if all(option.default is not REQUIRED for option in one.options)}


def partitions() -> dict[str, Constructor]:
    """Ways to split a pooled dataset over clients."""
    return _constructors("jaxafl.data.partition", lambda made: hasattr(made, "split"))


def models() -> dict[str, Constructor]:
    """Networks; the number of classes comes from the data."""
    from jaxafl.models import Model

    found = _constructors("jaxafl.models", lambda made: issubclass(made, Model))
    return {
        name: one._replace(options=tuple(o for o in one.options if o.name != "num_classes"))
        for name, one in found.items()
    }


def servers() -> dict[str, Constructor]:
    """Algorithms, and FedProx, which is FedAvg with another client."""
    found = _constructors("jaxafl.server", lambda made: hasattr(made, "update") and hasattr(made, "clocks"))
    prox = found["fedavg"]._replace(
        name="fedprox",
        summary="FedProx: `fedavg` with Client(proximal=mu), which adds μ (x - x_s) to every local gradient.",
        options=(*found["fedavg"].options, Option("mu", float, 0.01, "μ >= 0 of the proximal term.")),
    )
    return dict(sorted((found | {"fedprox": prox}).items()))


def clocks() -> dict[str, Constructor]:
    """Protocols."""
    return _constructors("jaxafl.clock", lambda made: hasattr(made, "next") and hasattr(made, "ring_slots"))


def durations() -> dict[str, Constructor]:
    """The terms of a duration."""
    return _constructors("jaxafl.clock", lambda made: hasattr(made, "draw"))


def optimizers() -> dict[str, Constructor]:
    """Local optimisers of Optax, as offered on the command line."""
    import optax

    named = (optax.sgd, optax.adam, optax.adamw, optax.amsgrad, optax.adagrad, optax.rmsprop, optax.yogi, optax.lion)
    return {function.__name__: describe(function) for function in named}


def describe(function: Callable[..., Any], server_class: Any = None) -> Constructor:
    """A constructor as its signature and docstring describe it, without options that only Python can give."""
    helps = _argument_help(function)
    options = []
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        kind = _command_line_type(parameter.annotation, parameter.default)
        if kind is not None:
            expression = _is_duration(parameter.annotation)
            options.append(Option(parameter.name, kind, parameter.default, helps.get(parameter.name, ""), expression))
    clocks = tuple(sorted(getattr(server_class, "clocks", ())))
    return Constructor(function.__name__, function, _summary(function), tuple(options), clocks)


@functools.cache
def _constructors(module: str, wanted: Callable[[type], bool]) -> dict[str, Constructor]:
    found = {}
    for name, function in sorted(vars(importlib.import_module(module)).items()):
        if name.startswith("_") or not name.islower() or not inspect.isfunction(function):
            continue
        try:
            signature = inspect.signature(function, eval_str=True)
        except NameError:  # its types are imported for type checkers only
            continue
        made = signature.return_annotation
        required = [one for one in signature.parameters.values() if one.default is REQUIRED]
        typable = all(_command_line_type(one.annotation, one.default) is not None for one in required)
        if isinstance(made, type) and wanted(made) and typable:
            found[name] = describe(function, made)
    return found


def _command_line_type(annotation: Any, default: Any) -> Any:
    """The type as typed on a command line, or `None` for an option that only Python can give."""
    if _is_duration(annotation):
        return str
    if annotation in (Any, REQUIRED):
        if isinstance(default, str | bool | float):
            return type(default)
        return _NUMBER | None if default is None else _NUMBER
    if annotation in _SCALARS or typing.get_origin(annotation) is typing.Literal:
        return annotation
    parts = typing.get_args(annotation)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        scalar = next((kind for kind in _SCALARS if kind in parts), None)
        return scalar if scalar is None or type(None) not in parts else scalar | None
    if typing.get_origin(annotation) in (list, tuple, Sequence) and all(part in (*_SCALARS, ...) for part in parts):
        return tuple[parts] if len(parts) > 1 else tuple[parts[0], ...]  # type: ignore[valid-type]
    return None


def _is_duration(annotation: Any) -> bool:
    from jaxafl.clock.durations import Duration

    return Duration in (annotation, *typing.get_args(annotation))


def _summary(function: Callable[..., Any]) -> str:
    """The first sentence or paragraph of the docstring, in one line."""
    return " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())


def _argument_help(function: Callable[..., Any]) -> dict[str, str]:
    """The `Args:` section of a Google-style docstring."""
    helps: dict[str, str] = {}
    lines = iter((inspect.getdoc(function) or "").splitlines())
    for line in lines:
        if line.strip() == "Args:":
            break
    indent, current = None, ""
    for line in lines:
        depth = len(line) - len(line.lstrip())
        if not line.strip() or not depth:
            if depth or not line.strip():
                continue
            break
        indent = depth if indent is None else indent
        name, colon, text = line.strip().partition(":")
        if depth == indent and colon:
            current = name.strip("*` ")
            helps[current] = text.strip()
        elif current:
            helps[current] += " " + line.strip()
    return helps
