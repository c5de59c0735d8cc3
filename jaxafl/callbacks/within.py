"""Callbacks of a sweep within several sweeps, such as the methods of a comparison."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from jaxafl.callbacks.base import Callback, Chunk, Run
from jaxafl.callbacks.stopping import ends_of


class Within(Callback):
    """A callback that adds the labels of its sweep to the members of the runs."""

    def __init__(self, callback: Any, labels: Mapping[str, Any]) -> None:
        """
        Args:
            callback: the wrapped callback.
            labels: axis -> label of the sweep.
        """
        self.callback = callback
        self.labels = dict(labels)
        self.targets = getattr(callback, "targets", {})
        self.limits_of_runs = ends_of(callback)

    def __copy__(self) -> Within:
        return Within(copy.copy(self.callback), self.labels)

    def check(self, run: Run) -> None:
        if hasattr(self.callback, "check"):
            self.callback.check(self._labelled(run))

    def begin(self, run: Run) -> None:
        self.callback.begin(self._labelled(run))

    def chunk(self, chunk: Chunk) -> str | bool | None:
        answer = self.callback.chunk(chunk._replace(run=self._labelled(chunk.run)))
        return type(self.callback).__name__ if answer is True else answer

    def end(self, result: Any) -> None:
        self.callback.end(result)

    def _labelled(self, run: Run) -> Run:
        return run._replace(member={**self.labels, **run.member})


def within(callbacks: Sequence[Any], **labels: Any) -> list[Callback]:
    """Returns callbacks that add the labels of one of several sweeps."""
    return [Within(one, labels) for one in callbacks]
