"""Energy and carbon of a schedule, client by client, before anything is trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxafl.clock.delivery import Delivery
from jaxafl.clock.options import fail_if
from jaxafl.options import UserError, as_numbers, check_number, shown

if TYPE_CHECKING:
    import xarray as xr

_JOULES = 3.6e6  # of a kilowatt-hour


def energy_of(
    schedule: Any, watts: Any, idle_watts: Any, joule_per_byte: Any, intensity: Any, period: float | None, size: Any
) -> xr.Dataset:
    """Computes what `Schedule.energy` returns; `size`: bytes of an upload and of a download."""
    import xarray as xr  # it is slow to import

    clients, end = schedule.num_clients, float(schedule.time[-1])
    watts = _per_client("watts", watts, clients)
    idle_watts = _per_client("idle_watts", idle_watts, clients)
    per_byte = _per_client("joule_per_byte", joule_per_byte, clients)
    so_far, at = _intensity(intensity, period, clients, end)
    check_number("energy", "size", size, least=0, per_client=True)
    if np.shape(size) != (2,):
        raise UserError(f"energy: size={shown(size)}; expected the bytes of an upload and of a download, (up, down)")
    # an update may be taken several times
    _, first, takings = np.unique(schedule.of_arrivals("run_id"), return_index=True, return_counts=True)
    unused = schedule.unused
    taken = [schedule.of_arrivals(name)[first] for name in ("client", "started", "arrived", "work")]
    others = unused.client, unused.started, unused.ended, unused.work
    client, started, ended, work = map(np.concatenate, zip(taken, others, strict=True))
    if np.isnan(work).any():
        raise UserError(
            f"energy: runs of the clock {schedule.protocol} have no duration; expected a clock with durations"
        )
    flies = np.append(np.zeros(len(first), bool), unused.reason == "flying")  # these are cut already
    late = np.where(flies, 0, np.fmax(ended - end, 0))
    ended = np.fmin(ended, end)  # on a shared link nobody knows the end of a run in flight
    work = np.maximum(work - late, 0) if schedule.waits else np.clip(end - started, 0, work)
    pulled = schedule.source is not None and Delivery.PULLED in schedule.source.clock.delivers
    sent = ("refused", "lost") if pulled else ("refused", "lost", "waiting")
    uploads = np.concatenate([takings, np.isin(unused.reason, sent) & (unused.ended <= end)])
    transferred = np.float64(size[1]) + uploads * np.float64(size[0])
    begins = ended - work if schedule.waits else started

    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(client, values, clients)

    busy, moved = total(work), per_byte * total(transferred)
    if (busy > (1 + 1e-9) * end).any():
        raise UserError(f"energy: client {busy.argmax()} is at work for longer than {end:g} s: it has runs at one time")
    joules = watts * busy + idle_watts * (end - busy) + moved
    everyone = np.arange(clients)
    weighted = total(so_far(client, begins + work) - so_far(client, begins))
    idle = so_far(everyone, np.full(clients, end)) - weighted
    grams = watts * weighted + idle_watts * idle + per_byte * total(transferred * at(client, ended))
    found = {"busy_seconds": (busy, "s"), "joules": (joules, "J"), "grams": (grams / _JOULES, "g")}
    variables = {name: ("population", one, {"units": unit}) for name, (one, unit) in found.items()}
    return xr.Dataset(variables, attrs={"seconds": end})


def _per_client(name: str, value: Any, clients: int) -> np.ndarray:
    check_number("energy", name, value, least=0, per_client=True, num_clients=clients)
    return np.broadcast_to(as_numbers("energy", name, value), (clients,))


def _intensity(given: Any, period: float | None, clients: int, end: float) -> tuple[Callable[..., Any], ...]:
    """Returns the functions (client, time) -> integral of the intensity up to the time, and the intensity at it."""
    edges, values = given if isinstance(given, tuple) and len(given) == 2 else ([0.0], [given])
    if period is not None:
        check_number("energy", "period", period, above=0)
    times, table = as_numbers("energy", "intensity", edges), as_numbers("energy", "intensity", values)
    if times.ndim != 1 or not table.size or table.shape not in ((table.size,), (len(np.atleast_1d(table)), clients)):
        raise UserError(
            f"energy: intensity={shown(given)}; expected a number, one per client, or (times, values), with values [K] "
            f"or [K, {clients}]"
        )
    more = len(times) == len(table) + 1
    table = np.broadcast_to(table.reshape(len(table), -1), (len(table), clients))
    last = period or (times[-1] if more else max(end, times[-1]) + 1)
    until = f"intensity ends at {times[-1]:g} s"
    off = period is not None and (last < times[-1] or (more and last > times[-1]))
    rising = times[0] == 0 and (np.diff(times) > 0).all() and np.isfinite(times[-1])
    fail_if("energy", [
        (not ((table >= 0) & (table < np.inf)).all(), f"intensity has the values {shown(table.ravel().tolist())}; "
         "expected finite ones of at least 0"),
        (not (more or len(times) == len(table)), f"intensity has {len(times)} times and {len(table)} values; expected "
         "as many, or one time more, the end of the last value"),
        (not rising, f"intensity has the times {shown(times.tolist())}; expected finite, rising ones from 0 on"),
        (off, f"{until} and has the period {last:g} s; expected the end of its last value"),
        (period is None and last < end, f"{until}, and the schedule at {end:g} s; expected a later end, or a period"),
    ])  # fmt: skip
    times = np.append(times[: len(table)], last)
    areas = np.concatenate([np.zeros((1, clients)), np.cumsum(table * np.diff(times)[:, None], 0)])

    def place(time: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        laps, phase = np.divmod(time, last) if period else (np.zeros_like(time), time)
        return laps, phase, np.clip(np.searchsorted(times, phase, side="right") - 1, 0, len(table) - 1)

    def so_far(client: np.ndarray, time: np.ndarray) -> np.ndarray:
        laps, phase, row = place(time)
        return laps * areas[-1, client] + areas[row, client] + (phase - times[row]) * table[row, client]

    return so_far, lambda client, time: table[place(time)[2], client]
