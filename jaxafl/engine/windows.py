"""Windows of a run: server steps of about 10^5 arrivals that are scheduled and planned together.

A thread plans the next window while one is trained, so the first server step does not wait for the whole plan. At the
origin of a window the ring contains the versions that later server steps read, and no untaken update is trained. So a
run needs the memory of one window.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from jaxafl.clock import Schedule
from jaxafl.clock.discarded import advanced
from jaxafl.clock.schedules import Clockwork
from jaxafl.clock.tables import cut, joined
from jaxafl.device.buffers import shared_size
from jaxafl.engine.plan import ORIGIN, Origin, Plan

WINDOW_ARRIVALS = 10**5  # the last window has up to twice as many
_TURNOVERS = 4  # least ratio of the arrivals of a window to the runs in flight

MakePlan = Callable[[Schedule, Origin | None], Plan]


@dataclasses.dataclass(frozen=True, eq=False)
class Window:
    """Server steps that are planned together, with their schedule and their plan."""

    schedule: Schedule
    plan: Plan

    @property
    def stop(self) -> int:
        """The server step after the last of them."""
        return self.schedule.start + self.schedule.server_steps


def window_steps(in_flight: int, capacity: int, block: int) -> int:
    """Returns the number of server steps of a window, a multiple of `block`.

    Args:
        in_flight: maximum number of runs in flight.
        capacity: A.
        block: server steps between two evaluations of the loop predicate.
    """
    arrivals = max(WINDOW_ARRIVALS, _TURNOVERS * in_flight)
    return max(1, arrivals // max(1, capacity) // block) * block


class Windows:
    """The windows of a run; the origin of each is the end of the one before."""

    def __init__(
        self, source: Schedule | Clockwork, server_steps: int, size: int | None, make: MakePlan, untaken: bool = False
    ) -> None:
        """Takes the source of the schedule, and starts a thread if there are several windows.

        Args:
            source: the schedule, or the clock that computes it.
            server_steps: T.
            size: server steps of a window; `None`: one window.
            make: function (schedule, origin) -> plan.
            untaken: True if completed runs that no server step takes are listed, too.
        """
        self.untaken = untaken
        self.source, self.server_steps, self.make = source, server_steps, make
        self.size = server_steps if size is None or server_steps <= 2 * size else size
        self.known: list[Schedule] = []  # schedules that the clock has computed
        self.coming: Future[Window] | None = None
        self.thread = ThreadPoolExecutor(1, "window") if self.size < server_steps else None

    @property
    def rows(self) -> int:
        """Server steps that every window has room for."""
        return shared_size(self.server_steps) if self.size == self.server_steps else 2 * self.size

    def first(self, origin: Origin | None) -> Window:
        """Returns the window that begins at an origin; `None`: at the first server step."""
        start = origin.step if origin is not None else 0
        if start and isinstance(self.source, Clockwork):
            self.known.append(self._advance(self.source, start))
        return self._from(start, origin)

    def after(self, window: Window) -> Window:
        """Returns the window after `window`, and begins to plan the one after that."""
        found = self.coming.result() if self.coming is not None else self._next(window)
        self.coming = None
        self.prepare(found)
        return found

    def prepare(self, window: Window) -> None:
        """Begins to plan the window after `window`, in the thread."""
        if self.thread is not None and window.stop < self.server_steps:
            self.coming = self.thread.submit(self._next, window)

    def schedule(self, window: Window) -> Schedule:
        """Returns the schedule of all server steps up to the end of a window."""
        if isinstance(self.source, Schedule):
            return cut(self.source, 0, window.stop)
        pieces = [one for one in self.known if one.start < window.stop]
        if len(pieces) > 1:  # what is known stays one piece, which the thread does not read
            self.known[: len(pieces)] = pieces = [joined(pieces)]
        return pieces[0]

    def _next(self, window: Window) -> Window:
        return self._from(window.stop, Origin(window.stop, window.plan.kept))

    def _advance(self, clockwork: Clockwork, count: int) -> Schedule:
        return advanced(clockwork, count) if self.untaken else clockwork.advance(count)

    def _from(self, start: int, origin: Origin | None) -> Window:
        stop = self.server_steps if self.server_steps - start <= 2 * self.size else start + self.size
        if isinstance(self.source, Schedule):
            schedule = cut(self.source, start, stop)
        elif start == stop:  # the run has ended
            schedule = cut(self.known[-1], start, stop)
        else:
            schedule = self._advance(self.source, stop - start)
            self.known.append(schedule)
        # a run that ends with this window, and did not begin before it, keeps no more than the newest version
        whole = origin is None and stop == self.server_steps
        return Window(schedule, self.make(schedule, None if whole else origin or ORIGIN))
