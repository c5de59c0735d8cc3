"""Checks of model options."""

from __future__ import annotations

import operator
from typing import Any


def check_positive(name: str, value: Any) -> None:
    """Raises `ValueError` unless `value` is a whole number >= 1."""
    try:
        valid = operator.index(value) >= 1 and not isinstance(value, bool)
    except TypeError:
        valid = False
    if not valid:
        raise ValueError(f"{name} must be a whole number >= 1, got {value!r}")
