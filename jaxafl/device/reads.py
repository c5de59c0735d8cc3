"""Values outside a function that it reads by name: constants of its module, and functions that it calls."""

from __future__ import annotations

import dataclasses
import dis
import functools
import inspect
import pathlib
import random
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

_MISSING = object()
_BETWEEN = ("CACHE", "COPY", "PUSH_NULL", "EXTENDED_ARG", "NOT_TAKEN")  # instructions that say nothing about a name
_NAMES = {"LOAD_GLOBAL": "name", "LOAD_NAME": "name", "LOAD_DEREF": "cell"}
_WRITING = ("add", "append", "clear", "extend", "setdefault", "update")  # a log that grows does not change a function
_VALUES = (bool, int, float, complex, str, bytes, None.__class__, np.generic, np.ndarray, jax.Array)
_CONTAINERS = (list, tuple, set, frozenset, Mapping, functools.partial)
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
INSTALLED = (*map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), str(pathlib.Path(__file__).parents[1]))


def globals_read(function: types.FunctionType, cells: bool = False) -> dict[str, Any]:
    """Returns the global values that a function reads, itself and in functions that it calls: expression -> value.

    An expression is as long as its value is certain: `RATE`, `settings.rate`, `TABLE['rate']`. Functions are among the
    values; what they read is, too. Installed packages are not searched: fingerprints have their versions.

    Args:
        function: the function.
        cells: if True, also what it reads of variables of functions around it.
    """
    found: dict[str, Any] = {}
    waiting, met = [function], {id(function)}
    for one in waiting:
        if is_installed(one.__globals__.get("__name__")):
            continue
        inside = closed(one) if cells else {}
        for path in _paths(one.__code__):
            name, value = _value(inside if path[0][0] == "cell" else one.__globals__, path)
            value = inspect.unwrap(value) if _attribute(value, "__wrapped__") else value
            if isinstance(value, types.FunctionType) and id(value) not in met:
                met.add(id(value))
                waiting.append(value)
            if _counts(value):
                if name in found and found[name] is not value:  # of another module or function
                    name = f"{one.__module__}.{one.__qualname__}: {name}"
                found[name] = value
    return found


def closed(function: types.FunctionType) -> dict[str, Any]:
    """Returns the variables of functions around a function that it reads; those without a value yet are left out."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells if cell != types.CellType()}


def written_in(parts: Any) -> Iterator[Any]:
    """Yields the functions, classes and objects in the parts of a simulation whose code is the user's.

    Args:
        parts: the parts, in any container; options, closures, methods and attributes are searched, too.
    """
    for one in _reached(parts):
        kind = one if isinstance(one, types.FunctionType | type) else type(one)
        if not is_installed(kind.__module__):
            yield one


def generators_in(parts: Any) -> list[Any]:
    """Returns the generators of random numbers on the host, and the module `random`, that code of the user names.

    Args:
        parts: as of `written_in`.
    """
    found = {}
    for one in _reached(parts):
        named = _named(one) if isinstance(one, types.FunctionType) else [one]
        for value in (getattr(value, "__self__", value) if callable(value) else value for value in named):
            if value is random or isinstance(value, _GENERATORS):
                found[id(value)] = value
    return [*found.values()]


def numbers_in(parts: Any) -> dict[tuple[int, str], tuple[str, float]]:
    """Returns the numbers that code of the user reads, and those in attributes of its objects, by name.

    Args:
        parts: as of `written_in`.

    Returns:
        (`id` of the function or object, expression) -> (its name with the expression, the number).
    """
    found: dict[tuple[int, str], tuple[str, float]] = {}
    for one in written_in(parts):
        if isinstance(one, types.FunctionType):
            read = globals_read(one, cells=True)
        else:
            read = _attribute(one, "__dict__") or {}
        name = getattr(one, "__qualname__", type(one).__qualname__).rpartition("<locals>.")[2]
        found |= {(id(one), key): (f"{key} of {name}", value) for key, value in read.items() if _is_number(value)}
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _named(function: types.FunctionType) -> list[Any]:
    """Returns the global values that a function names, itself and in functions that it calls."""
    read = [function, *(one for one in globals_read(function).values() if isinstance(one, types.FunctionType))]
    users = [one for one in read if not is_installed(one.__globals__.get("__name__"))]
    return [one.__globals__.get(path[0][1]) for one in users for path in _paths(one.__code__)]


def _reached(parts: Any) -> Iterator[Any]:
    """Yields all values in the parts of a simulation but numbers, texts, arrays and modules."""
    waiting, met = [parts], {}  # the values are kept, else another object could get the id of a freed one
    while waiting:
        one = waiting.pop()
        if id(one) in met or isinstance(one, (*_VALUES, types.ModuleType)):
            continue
        met[id(one)] = one
        yield one
        if isinstance(one, types.FunctionType):
            waiting += [*closed(one).values(), one.__defaults__, one.__kwdefaults__]
        elif isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, list | tuple | set | frozenset):
            waiting += one
        elif isinstance(one, functools.partial):
            waiting += [one.func, one.args, one.keywords]
        elif isinstance(one, types.MethodType | staticmethod | classmethod):
            waiting += [getattr(one, "__self__", None), one.__func__]
        elif isinstance(one, property | functools.cached_property):
            waiting.append(getattr(one, "fget", None) or getattr(one, "func", None))
        elif isinstance(one, type):
            waiting += [dict(vars(base)) for base in one.__mro__ if not is_installed(base.__module__)]
        else:
            waiting += [_attribute(one, "__dict__"), _attribute(one, "__wrapped__"), type(one)]


def _attribute(value: Any, name: str) -> Any:
    try:
        return getattr(value, name, None)
    except Exception:  # of a user's `__getattr__`
        return None


def _counts(value: Any) -> bool:
    if isinstance(value, types.FunctionType):
        return not is_installed(value.__module__) or bool(value.__closure__)
    if isinstance(value, type | types.ModuleType):
        return False
    known = isinstance(value, (*_VALUES, *_CONTAINERS)) or dataclasses.is_dataclass(value)
    return known or not is_installed(type(value).__module__)


def _paths(code: types.CodeType) -> Iterator[list[tuple[str, Any]]]:
    """Yields the expressions that begin with a name outside, as steps ("name" | "cell" | "attribute" | "entry", key).

    A "name" is global, and a "cell" is a variable of a function around.
    """
    every = [one for one in dis.get_instructions(code) if one.opname not in _BETWEEN]
    for place, first in enumerate(every):
        if first.opname not in _NAMES:
            continue
        path, rest = [(_NAMES[first.opname], first.argval)], every[place + 1 :]
        while rest:
            if rest[0].opname in ("LOAD_ATTR", "LOAD_METHOD"):
                path, rest = [*path, ("attribute", rest[0].argval)], rest[1:]
            elif len(rest) > 1 and (rest[1].opname == "BINARY_SUBSCR" or rest[1].argrepr == "[]"):
                if not rest[0].opname.startswith(("LOAD_CONST", "LOAD_SMALL_INT")):
                    break
                path, rest = [*path, ("entry", rest[0].argval)], rest[2:]
            else:
                break
        yield path
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _paths(inner)


def _value(names: Mapping[str, Any], path: list[tuple[str, Any]]) -> tuple[str, Any]:
    """Returns the longest part of an expression whose value is stored, and the value; nothing is called for it."""
    text, value = path[0][1], names.get(path[0][1], types)  # builtins are a module, too: none counts
    for kind, key in path[1:]:
        if kind == "entry":
            inner = value.get(key, _MISSING) if type(value) is dict else _MISSING
        elif isinstance(value, types.ModuleType) and is_installed(value.__name__):
            return text, value
        elif key in _WRITING and isinstance(value, _CONTAINERS):
            return text, types
        else:
            inner = inspect.getattr_static(value, key, _MISSING)
            is_stored = isinstance(value, type | types.ModuleType) or key in getattr(value, "__dict__", {})
            inner = getattr(inner, "__func__", inner) if is_stored else _MISSING
        if inner is _MISSING:
            break
        text, value = f"{text}.{key}" if kind == "attribute" else f"{text}[{key!r}]", inner
    return text, value


@functools.cache
def is_installed(module: str | None) -> bool:
    """Returns True if a module is part of Python, of jaxafl or of an installed package."""
    top = (module or "").partition(".")[0]
    if top in sys.stdlib_module_names and top != "__main__":
        return True
    place = getattr(sys.modules.get(module or ""), "__file__", None)
    return place is not None and place.startswith(INSTALLED)
