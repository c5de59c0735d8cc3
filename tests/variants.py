"""Which variants of a test are in the default run."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest


def slow_but(names: Collection[Any], *quick: Any) -> list[Any]:
    """The parameters `names` of a test; all but `quick` are marked slow."""
    assert set(quick) <= set(names), set(quick) - set(names)
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]
