"""Contents of values as JSON, by which folders tell runs apart."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxafl.options import options_of

_DEEPEST = 40  # a chain of Optax nests its numbers 20 containers deep; what lies deeper is not compared
_LONG = 1000  # length from which a list of numbers is hashed as an array


def content(node: Any, seen: tuple[int, ...] = ()) -> Any:
    """Returns a value as JSON: arrays by checksum, functions and classes by their source and what they hold.

    The numbers of a schedule of Optax, and the network of a model, are held in closures. Globals are not read.

    Args:
        node: the value.
        seen: the ids of its containers, which break cycles.
    """
    if isinstance(node, str | int | float | None):
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
        numbers = len(node) > _LONG and {*map(type, node)} <= {int, float}
        return inner(np.asarray(node)) if numbers else [inner(one) for one in node]
    if isinstance(node, set | frozenset):
        return sorted(str(inner(value)) for value in node)
    if isinstance(node, functools.partial):
        return {"name": "partial", "of": [inner(part) for part in (node.func, node.args, node.keywords)]}
    if isinstance(node, types.MethodType):
        return {"name": name, "of": [inner(node.__self__), inner(node.__func__)]}
    if isinstance(node, types.FunctionType):
        closed = [cell.cell_contents for cell in node.__closure__ or () if cell != types.CellType()]
        held = {"closed": inner(closed), "defaults": inner([node.__defaults__, node.__kwdefaults__])}
        return {"name": node.__qualname__, "source": source_of(node)} | held
    if hasattr(node, "__wrapped__"):  # decorators such as jax.jit have no state that identifies the function
        return inner(node.__wrapped__)
    if isinstance(node, type | types.BuiltinFunctionType | types.ModuleType):
        return name
    state = options_of(node, True) if dataclasses.is_dataclass(node) else {"state": getattr(node, "__dict__", {})}
    source = [source_of(kind) for kind in type(node).__mro__[:-1]]
    return {"name": name, "source": source} | {key: inner(value) for key, value in state.items()}


@functools.cache
def source_of(written: Any) -> str:
    """Returns the checksum of the source of a function or class; of one without a file, such as in a shell, its name.

    Globals and closures do not count.
    """
    try:
        return f"{zlib.crc32(inspect.getsource(inspect.unwrap(written)).encode()):08x}"
    except (OSError, TypeError):
        return str(getattr(written, "__qualname__", type(written).__qualname__))
