"""Ids of clients, integers or strings, converted to numbers and names."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jaxafl.options import UserError, as_array

_KINDS = {"strings": str, "integers": int | np.integer, "bytes": bytes}


def check_ids(name: str, client_ids: ArrayLike, what: str = "client_ids") -> tuple[np.ndarray, np.ndarray]:
    """Returns the client of each sample, numbered in sorted order of the ids, and the ids as names, str [N].

    Raises:
        TypeError: ids are neither integers nor strings (None and NaN are neither), or both.
    """
    ids = as_array(name, what, client_ids)
    if ids.ndim == 1 and len(ids) and (ids.dtype == object or not hasattr(client_ids, "__array__")):
        entries = np.empty(len(ids), object)
        entries[:] = list(client_ids)  # type: ignore[arg-type]  # NumPy would merge 1 and "1"
        _check_entries(f"{name}: {what}", entries)
        ids = ids if ids.dtype.kind in "iu" else entries
    elif ids.dtype.kind not in "iuUST":
        floats = f"; whole numbers become integers by {what}.astype(int)" if ids.dtype.kind == "f" else ""
        if ids.dtype.kind == "f" and np.isnan(ids).any():
            floats = f", with {np.isnan(ids).sum()} missing; leave out samples without a client, or name one for them"
        raise TypeError(f"{name}: {what} must be integers or strings, one per sample; got dtype {ids.dtype}{floats}")
    known, numbers = np.unique(ids, return_inverse=True)
    return numbers.reshape(ids.shape), np.array([_name(one) for one in known.tolist()], np.str_)


def _check_entries(what: str, entries: np.ndarray) -> None:
    """Raises `TypeError` unless all ids have one type."""
    first: dict[str, int] = {}
    for place, entry in enumerate(entries):
        kind = next((kind for kind, known in _KINDS.items() if isinstance(entry, known)), None)
        if kind is None or isinstance(entry, bool):
            raise TypeError(f"{what} must be integers or strings, all of one kind; entry {place} is {entry!r}")
        first.setdefault(kind, place)
    if len(first) > 1:
        both = " and ".join(f"{kind} (entry {place} is {entries[place]!r})" for kind, place in first.items())
        raise TypeError(
            f"{what} must be integers or strings, all of one kind; got both: {both}; write for example "
            "[str(one) for one in ids]"
        )


def _name(one: str | int | bytes) -> str:
    text = one.decode("utf-8", "backslashreplace") if isinstance(one, bytes) else str(one)
    return text.replace("\0", "\\0")  # NumPy drops trailing null characters


def check_names(name: str, names: Any, num_clients: int) -> np.ndarray:
    """Returns the names of the clients as an array, str [N].

    Raises:
        ValueError: their number is not N, or two are equal.
    """
    found = np.asarray(names, np.str_)
    if found.shape != (num_clients,):
        raise UserError(f"{name}: client_names need a name per client; got shape {found.shape} for {num_clients}")
    known, times = np.unique(found, return_counts=True)
    if len(known) < num_clients:
        raise UserError(
            f"{name}: client_names must differ; {times.max()} clients are called {str(known[times.argmax()])!r}"
        )
    return found
