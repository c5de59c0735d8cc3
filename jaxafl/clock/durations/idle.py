"""Seconds of local runs in which the client does not compute."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.clock.durations.runs import Run, draw_of, prepared_of, reads, stream_keys
from jaxafl.clock.tables import Schedule
from jaxafl.device import float64_on_cpu
from jaxafl.device.keys import seed_key

Array = jax.Array
_ROUNDING = 1e-9  # a smaller fraction of a run is no wait


def idle_seconds(schedule: Schedule) -> np.ndarray:
    """Computes the seconds between start and arrival of each run in which its client hangs or waits, float64 [T, A].

    Zero for clocks without durations, for parts of a schedule, and for durations whose work depends on earlier runs.
    """
    found = np.zeros(schedule.mask.shape)
    durations = getattr(schedule.source.clock, "durations", None) if schedule.source else None
    if schedule.source is None or durations is None or reads(durations, schedule.num_clients)["longest"][0]:
        return found
    mask = schedule.mask
    with float64_on_cpu():
        prepared = prepared_of(durations, stream_keys(seed_key(schedule.source.seed), durations), schedule.num_clients)

        @functools.partial(jax.jit)
        @jax.vmap
        def work(client: Array, run: Array, local_steps: Array, started: Array) -> Array:
            return draw_of(durations, prepared, Run(client, run, local_steps, jnp.float64(0), started)).work

        columns = (schedule.client, schedule.run, schedule.local_steps, schedule.started)
        computing = np.asarray(work(*(column[mask] for column in columns)))
    lasted = schedule.arrived[mask] - schedule.started[mask]
    idle = lasted - computing
    found[mask] = np.where(idle > _ROUNDING * lasted, idle, 0.0)
    return found
