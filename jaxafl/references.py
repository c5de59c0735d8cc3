"""The publications behind what a run uses, as BibTeX."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import itertools
import pathlib
from collections.abc import Iterator
from typing import Any

_JAXAFL = """@software{jaxafl,
  title = {jaxafl: a JAX-accelerated, vectorised simulator of asynchronous federated learning}
}"""

BIBTEX: dict[str, str] = {
    entry.partition("{")[2].partition(",")[0]: entry
    for entry in pathlib.Path(__file__).with_suffix(".bib").read_text("utf-8").strip().split("\n\n")
}
"""The entries of `references.bib` by their keys."""


@functools.cache
def version() -> str:
    """The version of the installed package."""
    try:
        return importlib.metadata.version("jaxafl")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return "unknown"


def citation(*parts: Any) -> str:
    """BibTeX of jaxafl and of the publications that parts, and the dataclasses that they hold, name in `references`:
    keys of `BIBTEX`, or entries of their own."""
    keys = dict.fromkeys(itertools.chain.from_iterable(map(_keys, parts)))
    return "\n\n".join([_JAXAFL, *map(BIBTEX.get, keys, keys)])


def _keys(node: Any) -> Iterator[str]:
    yield from getattr(node, "references", ())
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        for field in dataclasses.fields(node):
            yield from _keys(getattr(node, field.name))
