"""Promises that a class makes about its methods: a subclass with methods of its own does not inherit them."""

from __future__ import annotations

from typing import Any


def keeps_promise(cls: type[Any], promise: str, *methods: str) -> bool:
    """True if no class overrides the methods below (in the order of inheritance) the one that states the promise.

    Private methods count as well where they override others, since the methods may call them.

    Args:
        cls: the class that has, or inherits, the promise.
        promise: name of a class attribute or property.
        *methods: names of the methods that it is about.
    """
    order = cls.__mro__
    stated = next((place for place, one in enumerate(order) if promise in vars(one)), len(order))
    inherited = {name for one in order[stated:] for name in vars(one)}

    def overrides(name: str) -> bool:
        return name in methods or (name[:1] == "_" != name[1:2] and name in inherited)

    return not any(overrides(name) for one in order[:stated] for name in vars(one))
