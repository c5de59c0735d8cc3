"""The callbacks of several sweeps, told of which one a run is a member."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from jaxafl.callbacks.base import Callback, Chunk, Run


class Within(Callback):
    """A callback of a sweep that is one of several, such as those of a comparison: its runs are members of all."""

    def __init__(self, callback: Any, labels: Mapping[str, Any]) -> None:
        """
        Args:
            callback: the callback that is told.
            labels: of the sweep among the several: axis -> label.
        """
        self.callback, self.labels = callback, dict(labels)
        self.targets = getattr(callback, "targets", {})

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
    """Returns callbacks for one of several sweeps."""
    return [Within(one, labels) for one in callbacks]
