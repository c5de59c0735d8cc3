"""The examples in docstrings print what they say."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import pkgutil

import pytest

import jaxafl

HAS_TORCH = importlib.util.find_spec("torchax") is not None
NAMES = ["jaxafl", *(one.name for one in pkgutil.walk_packages(jaxafl.__path__, "jaxafl."))]
FOUND = {
    test.name: test
    for name in NAMES
    if HAS_TORCH or "torch" not in name
    for test in doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name))
    if test.examples
}
SLOW = {"jaxafl", "Duration", "timeline", "tidy", "at", "compare", "sweep", "tune"}  # which compile several programs


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[pytest.mark.slow] * (one.rpartition(".")[2] in SLOW)) for one in FOUND]
)
def test_example_prints_what_it_says(name: str) -> None:
    shown: list[str] = []
    doctest.DocTestRunner(verbose=False).run(FOUND[name], out=shown.append, clear_globs=False)
    assert not shown, "".join(shown)


def test_what_a_user_begins_with_has_an_example() -> None:
    begun_with = (jaxafl.Client, jaxafl.sweep, jaxafl.compare, jaxafl.tune, jaxafl.data.from_arrays)
    assert {"jaxafl", *(f"{one.__module__}.{one.__name__}" for one in begun_with)} <= set(FOUND)
