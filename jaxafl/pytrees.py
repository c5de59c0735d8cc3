"""Frozen dataclasses that are JAX pytrees: numbers are leaves, everything marked `static()` fixes shapes or control
flow."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.checks import as_array

T = TypeVar("T")


def static(default: Any = dataclasses.MISSING, **kwargs: Any) -> Any:
    """A field that is part of the program: a change of its value compiles a new one."""
    return dataclasses.field(default=default, metadata={"static": True}, **kwargs)


@dataclass_transform(frozen_default=True, field_specifiers=(static, dataclasses.field))
def pytree(cls: type[T]) -> type[T]:
    """Class decorator: a frozen dataclass registered as a pytree."""
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))


def is_static(node: Any, name: str) -> bool:
    """Whether a field of a `pytree` dataclass is static (raises `KeyError` where there is no such field)."""
    fields = {field.name: field for field in dataclasses.fields(node)}
    return bool(fields[name].metadata.get("static", False))


def leaf(value: Any, owner: str, name: str) -> Any:
    """A number as it is; a list or tuple of numbers as an array, so that it is one leaf (`owner` and `name` say in an
    error what it is)."""
    return as_array(owner, name, value) if isinstance(value, list | tuple) else value


def as_arrays(tree: Any, dtype: Any) -> Any:
    """Every numeric leaf as an array: floats in `dtype`, integers in int32 (in `dtype` where one does not fit), so that
    no leaf depends on x64 being enabled."""

    def convert(leaf: Any) -> Any:
        kind = np.asarray(leaf).dtype.kind if not isinstance(leaf, jax.Array) else leaf.dtype.kind
        if kind not in "fiub":
            raise TypeError(f"{leaf!r} is not a number: mark the field that holds it with jaxafl.pytrees.static()")
        if kind in "iu" and np.size(leaf) and max(int(np.max(leaf)), -int(np.min(leaf))) > np.iinfo(np.int32).max:
            kind = "f"
        return jnp.asarray(leaf, {"f": dtype, "i": jnp.int32, "u": jnp.uint32, "b": jnp.bool_}[kind])

    return jax.tree.map(convert, tree)


def plain(node: Any) -> Any:
    """A JSON-able description of a dataclass and what it holds, for the attributes of a result; without jaxafl's own
    private functions, which follow from the name of the dataclass."""
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        name = getattr(node, "name", None)
        own = {"name": name if isinstance(name, str) else type(node).__name__}
        held = {field.name: getattr(node, field.name) for field in dataclasses.fields(node)}
        return own | {name: plain(value) for name, value in held.items() if not _is_internal(value)}
    if isinstance(node, dict):
        return {str(key): plain(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [plain(value) for value in node]
    if isinstance(node, np.ndarray | jax.Array):
        array = np.asarray(node)
        return array.tolist() if array.size <= 64 else f"array{list(array.shape)}"
    if isinstance(node, np.generic):
        return node.item()
    if callable(node):
        return getattr(node, "__name__", type(node).__name__)
    return node


def _is_internal(value: Any) -> bool:
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    return callable(value) and f"{module}".startswith("jaxafl.") and f"{name}".startswith("_")
