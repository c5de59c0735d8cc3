"""Variables of all members of a sweep, whose values are read from the members' files when they are used."""

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
    """The values of a variable of all members, for xarray.

    Args:
        kept: the folder.
        name: of the variable.
        contents: of all members.
        *shapes: of the sweep, and the largest of the variable.
    """
    return indexing.LazilyIndexedArray(_Stacked(kept, name, contents, *shapes))


class _Stacked(BackendArray):
    """A variable of all members, with the axes of the sweep in front."""

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
            kept: the folder.
            name: of the variable.
            contents: of all members.
            shape: of the sweep.
            inner: the largest shape of the variable.
        """
        self.kept, self.name, self.contents, self.grid, self.inner = kept, name, contents, shape, inner
        self.shape = (*shape, *inner)
        there = [found for found in contents if found is not None and name in found.variables]
        whole = len(there) == len(contents) and all(found.shape_of(name) == inner for found in there)
        dtype = np.result_type(*(found.variables[name][1] for found in there))
        fill = MISSING.get(name, np.nan)
        self.dtype = dtype if whole or dtype.kind == "f" or not np.isnan(fill) else np.dtype(float)
        self.fill = 0 if whole else fill

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.BASIC, self._read)

    def _read(self, key: tuple[Any, ...]) -> Any:
        outer, inner = key[: len(self.grid)], key[len(self.grid) :]
        places = np.arange(len(self.contents)).reshape(self.grid)[outer]
        chosen = np.empty((*np.shape(places), *np.broadcast_to(0, self.inner)[inner].shape), self.dtype)
        for index in np.ndindex(np.shape(places)):
            chosen[index] = self._member(int(places[index]))[inner]
        return chosen

    def _member(self, place: int) -> np.ndarray:
        values, found = np.full(self.inner, self.fill, self.dtype), self.contents[place]
        if found is not None and self.name in found.variables:
            with h5py.File(self.kept.file(place)) as file:
                values[tuple(map(slice, found.shape_of(self.name)))] = file[self.name][()]
        return values
