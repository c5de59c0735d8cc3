"""Promises of a class about its methods, which a subclass that overrides these methods does not inherit."""

from __future__ import annotations

from typing import Any


def keeps_promise(cls: type[Any], promise: str, *methods: str) -> bool:
    """Returns True if no subclass of the class that states the promise overrides the methods.

    An overridden private method breaks the promise too, since the methods may call it.

    Args:
        cls: the class that has or inherits the promise.
        promise: name of a class attribute or property.
        *methods: names of the methods that the promise covers.
    """
    order = cls.__mro__
    stated = next((place for place, one in enumerate(order) if promise in vars(one)), len(order))
    inherited = {name for one in order[stated:] for name in vars(one)}

    def overrides(name: str) -> bool:
        return name in methods or (name[:1] == "_" != name[1:2] and name in inherited)

    return not any(overrides(name) for one in order[:stated] for name in vars(one))
