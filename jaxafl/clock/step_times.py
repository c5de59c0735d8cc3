"""The distribution of a client's time per local step, for algorithms that need its expectations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.clock.durations import Distribution, Recorded, Run, stream_keys
from jaxafl.keys import seed_key

_POINTS = 4096


def step_times(durations: Any, num_clients: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Seconds that do not depend on the local steps, and seconds per local step, of every client.

    Args:
        durations: of a run.
        num_clients: N.
        seed: of the run, whose clients' own speeds are meant.

    Returns:
        Two float64 arrays [N, R] of equally likely values: R = 1 where they do not vary from run to run; the midpoints
        of R equal parts of the distribution function where one distribution is drawn; the recorded runs; R draws
        otherwise.
    """
    if isinstance(durations, Recorded):
        times = np.asarray(durations.times, np.float64)
        return (np.zeros_like(times), times) if durations.per == "step" else (times, np.zeros_like(times))
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        if isinstance(durations, Distribution) and durations.per != "client":
            shares = (jnp.arange(_POINTS, dtype=jnp.float64) + 0.5) / _POINTS
            values = {
                name: jnp.broadcast_to(jnp.asarray(value, jnp.float64), (num_clients,))[:, None]
                for name, value in durations.parameters.items()
            }
            drawn = np.asarray(durations.quantile(shares[None, :], **values))
            return (np.zeros_like(drawn), drawn) if durations.per == "step" else (drawn, np.zeros_like(drawn))
        prepared = durations.prepare(stream_keys(seed_key(seed), durations), num_clients)
        clients = jnp.arange(num_clients, dtype=jnp.int32)

        def lasting(client: Any, run: Any, steps: int) -> Any:
            drawn = durations.draw(prepared, Run(client, run, jnp.int32(steps), jnp.float64(0)))
            return drawn.work + drawn.hang

        def table(runs: int) -> tuple[np.ndarray, np.ndarray]:
            grid = jax.vmap(jax.vmap(lasting, (None, 0, None)), (0, None, None))
            order = jnp.arange(runs, dtype=jnp.int32)
            latency = np.asarray(grid(clients, order, 0))
            return latency, np.asarray(grid(clients, order, 1)) - latency

        latency, per_step = table(2)
        if (latency[:, 0] == latency[:, 1]).all() and (per_step[:, 0] == per_step[:, 1]).all():
            return latency[:, :1], per_step[:, :1]
        latency, per_step = table(_POINTS)
    if not (np.isfinite(latency) & np.isfinite(per_step)).all():
        raise ValueError("the expectations of a sum or product with recorded durations are unknown: give a normaliser")
    return latency, per_step
