"""Lazy variables of a sweep, read from the members' files on first use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np
from xarray.backends import BackendArray
from xarray.core import indexing

from jaxafl.results import MISSING
from jaxafl.sweep.folder import Contents, SweepFolder


def stacked(kept: SweepFolder, name: str, contents: Sequence[Contents | None], *shapes: tuple[int, ...]) -> Any:
    """Returns a lazy array for xarray with the values of a variable of all members.

    Args:
        kept: folder of the sweep.
        name: name of the variable.
        contents: contents of all members; `None` for unfinished ones.
        *shapes: shape of the sweep, and the largest shape of the variable.
    """
    return indexing.LazilyIndexedArray(_Stacked(kept, name, contents, *shapes))


class _Stacked(BackendArray):
    """A variable of all members, with the axes of the sweep as leading dimensions."""

    def __init__(
        self,
        kept: SweepFolder,
        name: str,
        contents: Sequence[Contents | None],
        shape: tuple[int, ...],
        inner: tuple[int, ...],
    ) -> None:
        """
        Args:
            kept: folder of the sweep.
            name: name of the variable.
            contents: contents of all members; `None` for unfinished ones.
            shape: shape of the sweep.
            inner: the largest shape of the variable.
        """
        self.kept = kept
        self.name = name
        self.contents = contents
        self.grid = shape
        self.inner = inner
        self.shape = (*shape, *inner)
        present = [found for found in contents if found is not None and name in found.variables]
        complete = len(present) == len(contents) and all(found.shape_of(name) == inner for found in present)
        dtype = np.result_type(*(found.variables[name][1] for found in present))
        fill = MISSING.get(name, np.nan)
        self.dtype = dtype if complete or dtype.kind == "f" or not np.isnan(fill) else np.dtype(float)
        self.fill = 0 if complete else fill

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.BASIC, self._read)

    def _read(self, key: tuple[Any, ...]) -> Any:
        outer = key[: len(self.grid)]
        inner = key[len(self.grid) :]
        places = np.arange(len(self.contents)).reshape(self.grid)[outer]
        chosen = np.empty((*np.shape(places), *np.broadcast_to(0, self.inner)[inner].shape), self.dtype)
        for index in np.ndindex(np.shape(places)):
            chosen[index] = self._member(int(places[index]))[inner]
        return chosen

    def _member(self, place: int) -> np.ndarray:
        values = np.full(self.inner, self.fill, self.dtype)
        found = self.contents[place]
        if found is not None and self.name in found.variables:
            with h5py.File(self.kept.file(place)) as file:
                values[tuple(map(slice, found.shape_of(self.name)))] = file[self.name][()]
        return values
