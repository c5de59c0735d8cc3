"""Contents of values as JSON, by which parts of simulations are told apart, and programs that outlive a change."""

from __future__ import annotations

import dataclasses
import functools
import types
import weakref
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from jaxafl.device.compilation import forget_programs
from jaxafl.device.reads import closed, globals_read, is_installed, written_in
from jaxafl.options import are_plain, options_of

_DEEPEST = 40  # a chain of Optax nests its numbers 20 containers deep; what lies deeper is not compared
_LONG = 1000  # length from which a list of numbers is hashed as an array


def content(node: Any, seen: tuple[int, ...] = ()) -> Any:
    """Returns a value as JSON: arrays by checksum, functions by their bytecode, closure and defaults.

    Args:
        node: the value.
        seen: the ids of its containers, which break cycles.
    """
    if isinstance(node, str | int | float | bool | None.__class__):
        return node
    if isinstance(node, np.ndarray | np.generic | jax.Array):
        array = np.ascontiguousarray(node)
        sum_ = zlib.crc32(array.reshape(-1).view(np.uint8).data) if array.size else 0
        return array.item() if np.ndim(node) == 0 else f"{array.dtype}{list(array.shape)} {sum_:08x}"
    name = str(getattr(node, "__qualname__", None) or getattr(node, "name", None) or type(node).__qualname__)
    if id(node) in seen or len(seen) > _DEEPEST:
        return name
    inner = functools.partial(content, seen=(*seen, id(node)))
    if isinstance(node, Mapping):
        return {str(key): inner(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return (
            inner(np.asarray(node))
            if len(node) > _LONG and are_plain(node, int, float)
            else [inner(one) for one in node]
        )
    if isinstance(node, set | frozenset):
        return sorted(str(inner(value)) for value in node)
    is_part = dataclasses.is_dataclass(node) and not isinstance(node, type)
    methods = _methods(type(node)) if is_part or not is_installed(type(node).__module__) else {}
    written = {"methods": inner(methods)} if methods else {}
    if is_part:
        return {"name": name} | written | {option: inner(value) for option, value in options_of(node).items()}
    if isinstance(node, functools.partial):
        return {"name": "partial", "of": [inner(part) for part in (node.func, node.args, node.keywords)]}
    if isinstance(node, types.MethodType):
        return {"name": name, "of": [inner(node.__self__), inner(node.__func__)]}
    if isinstance(node, types.FunctionType):
        return _function(node, inner) | ({"globals": read} if (read := _globals(node, inner)) else {})
    if hasattr(node, "__wrapped__"):  # decorators such as jax.jit have no state that identifies the function
        return inner(node.__wrapped__)
    if isinstance(node, type | types.BuiltinFunctionType | types.ModuleType):
        return name
    return {"name": name, "state": inner(getattr(node, "__dict__", {}))} | written


def content_of_class(kind: type) -> Any:
    """Returns the methods, properties and constants of a class and its bases outside jaxafl as JSON."""
    return content(_methods(kind))


_known: dict[int, str] = {}
"""Values that the user's functions, classes and objects read, by `id`, until these are freed."""


def renew_programs(parts: Any) -> None:
    """Forgets all compiled programs if a value that code of the user reads has changed since the last call.

    A program has such values as constants: globals, closures, constants of classes, attributes. Without this, a run
    after `RATE = 0.5` would have the earlier rate.

    Args:
        parts: the parts of a simulation.
    """
    changed = False
    for one in written_in(parts):
        function = isinstance(one, types.FunctionType)
        if isinstance(one, type):
            state = _members(one, lambda module: not is_installed(module))
        else:
            state = getattr(one, "__dict__", {})
        now = repr(_globals(one, content, cells=True) if function else _tried(state, content))
        changed |= _known.get(id(one), now) != now
        if id(one) not in _known:
            try:
                weakref.finalize(one, _known.pop, id(one), None).atexit = False
            except TypeError:  # a value, as a named tuple, which cannot change
                continue
        _known[id(one)] = now
    if changed:
        forget_programs()


def _function(node: types.FunctionType, inner: Callable[[Any], Any]) -> dict[str, Any]:
    code = {"name": node.__qualname__, "code": f"{zlib.crc32(_code(node.__code__)):08x}"}
    return code | {
        "closed": inner([*closed(node).values()]),
        "defaults": inner([node.__defaults__, node.__kwdefaults__]),
    }


def _globals(node: types.FunctionType, inner: Callable[[Any], Any], cells: bool = False) -> dict[str, Any]:
    """Returns what a function reads; functions among it without what they read, which is there already.

    Args:
        node: the function.
        inner: `content` of the values.
        cells: if True, closures are read as globals are, expression by expression.
    """

    def described(one: Any) -> Any:
        if not isinstance(one, types.FunctionType):
            return _tried(one, inner)
        found = _function(one, (lambda _: None) if cells else inner)
        return found | {"defaults": inner([one.__defaults__, one.__kwdefaults__])}

    found = {name: described(one) for name, one in globals_read(node, cells).items()}
    return found | ({"defaults": inner([node.__defaults__, node.__kwdefaults__])} if cells else {})


def _tried(node: Any, inner: Callable[[Any], Any]) -> Any:
    """Returns the content of a value, of which only the type counts if it cannot be read."""
    try:
        return inner(node)
    except Exception:  # whatever a user's `__getattr__` raises
        return type(node).__qualname__


def _methods(kind: type) -> dict[str, Any]:
    return _members(kind, lambda module: module.partition(".")[0] not in ("jaxafl", "builtins"))


def _members(kind: type, counts: Callable[[str], bool]) -> dict[str, Any]:
    """Returns the methods, properties and constants that a class has from bases whose module `counts` accepts."""
    classes = [one for one in reversed(kind.__mro__) if counts(one.__module__)]
    members = {name: member for one in classes for name, member in vars(one).items()}
    left_out = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    left_out |= {name for name in members if name.startswith("__") and name != "__call__"}
    found = {name: _behind(member) for name, member in members.items() if name not in left_out}
    kept = types.FunctionType | bool | int | float | str | tuple | list | np.ndarray | jax.Array
    return {name: member for name, member in found.items() if isinstance(member, kept)}


def _behind(member: Any) -> Any:
    """Returns the function of a property or of a static, class, cached or jitted method, and anything else as it is."""
    names = ("fget", "__func__", "func", "__wrapped__")
    return next((getattr(member, name) for name in names if hasattr(member, name)), member)


def _code(code: types.CodeType) -> bytes:
    """Returns bytecode, names and constants. Sets are sorted, since their order differs between processes."""
    parts = []
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            parts.append(_code(one))
        else:
            parts.append(repr(sorted(map(repr, one)) if isinstance(one, frozenset) else one).encode())
    return code.co_code + repr(code.co_names).encode() + b"".join(parts)
