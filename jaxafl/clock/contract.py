"""Contract of clocks: the base class `Clock`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

import jax
import numpy as np

from jaxafl.clock.delivery import STARTS, Delivery
from jaxafl.clock.durations.duration import ByOptions, with_size
from jaxafl.options import Part

if TYPE_CHECKING:
    from jaxafl.clock.fleet import Fleet, Steps

__all__ = ["STARTS", "ByOptions", "Clock", "Delivery", "Recording"]

Recording: TypeAlias = jax.Array | np.ndarray | None


class Clock(Part):
    """Base of clocks: who trains when, and who arrives. A subclass defines `steps`.

    Its options are its fields (see `jaxafl.options`), among them usually `durations`, the duration of a run in
    simulated seconds. Without durations a run ends when a server step takes it.

    Attributes:
        delivers: properties of the arrivals. Every schedule is compared with those that its arrivals show.
        kinds: meanings of the kinds of arrivals, if there are several.
        order_free: True if durations change arrival times, but not which runs arrive at which step.
        takes_all: True if a server step takes every run that a client completes.
        chooses_steps: True if the clock chooses the local steps of every run.
    """

    delivers: ClassVar[Delivery] = Delivery.NONE
    kinds: ClassVar[tuple[str, ...]] = ()
    order_free: ClassVar[bool] = False
    takes_all: ClassVar[bool] = False
    chooses_steps: ClassVar[bool] = False

    def steps(self, fleet: Fleet) -> Steps:
        """Yields the server steps, without end: `replies = yield fleet.step(runs)`.

        The server's replies, client -> local steps of its runs that start after the step, come back from the yield. A
        clock need not read them: the fleet hears them before the end of a run depends on one. It gets no model values.

        Args:
            fleet: the clients, see `jaxafl.clock.Fleet`.
        """
        raise NotImplementedError(
            f"the clock {self.name} has no generator steps(fleet), such as `for run in fleet.arrivals(): yield "
            "fleet.step([run])`"
        )

    def arrivals(self, num_clients: int) -> int | None:
        """Returns the number of arrivals of every server step, or `None` if it may vary.

        Servers that need a fixed number ask for it, and every step is compared with it. With `Delivery.EMPTY` it is
        that of the steps that have arrivals.
        """
        return None

    def in_flight(self, num_clients: int) -> int:
        """Returns the largest number of runs in flight at once."""
        return num_clients

    def check(self, num_clients: int) -> None:
        """Raises `ValueError` for options that contradict each other; single options are checked before."""

    def prepare(self, counts: np.ndarray, size: Callable[[], tuple[int, int]]) -> Self:
        """Returns the clock of a run with sample counts n_i, int [N], and `size()` bytes sent, up and down.

        The sample counts are the weights of clocks with `select="samples"`.
        """
        prepared: Any = with_size(self, size)
        for name, one in vars(self).items():
            if isinstance(one, Clock):
                prepared = dataclasses.replace(prepared, **{name: one.prepare(counts, size)})
        if getattr(self, "weights", ...) is None and getattr(self, "select", "") == "samples":
            return dataclasses.replace(prepared, weights=np.asarray(counts, np.float64), select="uniform")
        return prepared

    @property
    def composed(self) -> Any:
        """Rules that the clock follows, `jaxafl.clock.free_running.Rules`; `None` if it is not composed of them.

        Who asks about a rule asks here: options and objects may say the same.
        """
        return None

    @property
    def pause(self) -> float:
        """Simulated seconds per server step in which no client computes, as the clock's `durations` say."""
        durations = getattr(self, "durations", None)
        return 0.0 if durations is None else float(durations.pause)
