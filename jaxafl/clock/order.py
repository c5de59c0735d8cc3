"""Tracing of clocks, to find if durations change the order of arrivals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxafl.clock.contract import Clock, ServerStep, Workload
from jaxafl.clock.durations.duration import Duration
from jaxafl.clock.durations.runs import reads
from jaxafl.clock.versions import next_version
from jaxafl.device import float64_on_cpu
from jaxafl.device.dependence import inputs_read
from jaxafl.device.keys import seed_key

_TIMES = ("time", "started", "arrived")  # fields of a server step that do not identify arrivals


def steps_change_order(clock: Clock, num_clients: int) -> bool:
    """Returns True if the arrivals of a server step may depend on the local steps of runs, and thus on durations.

    Args:
        clock: the clock.
        num_clients: N.
    """
    return _change(clock, num_clients, ("local_steps", *_TIMES))


def steps_change_times(clock: Clock, num_clients: int) -> bool:
    """Returns True if the arrivals of a server step or their times may depend on the local steps of runs.

    Args:
        clock: the clock, after `prepare`.
        num_clients: N.
    """
    protocol = getattr(clock, "clock", clock)  # of `warm_up`
    if type(protocol).__module__.startswith("jaxafl."):  # these read local steps only for durations
        durations = [value for value in vars(protocol).values() if isinstance(value, Duration)]
        if not any(any(reads(one, num_clients)["local_steps"]) for one in durations):
            return False
    return _change(clock, num_clients, ("local_steps",))


def _change(clock: Clock, num_clients: int, ignored: Sequence[str]) -> bool:
    """Returns True if fields of a server step, except the ignored ones, may depend on the local steps of runs."""

    def advance(steps: jax.Array, state: Any) -> tuple[Any, ServerStep]:
        return next_version(clock, state, Workload(steps, num_clients))

    with float64_on_cpu():
        state = jax.eval_shape(lambda: clock.init(seed_key(0), num_clients))
        steps = jax.ShapeDtypeStruct((num_clients,), jnp.int32)
        jaxpr, made = jax.make_jaxpr(advance, return_shape=True)(steps, state)
    wanted = [False] * len(jax.tree.leaves(state))
    identity = [str(path[-1]).strip(".") not in ignored for path, _ in jax.tree_util.tree_leaves_with_path(made[1])]
    while True:
        of_steps, *of_state = inputs_read(jaxpr.jaxpr, [*wanted, *identity])
        grown = [one or other for one, other in zip(wanted, of_state, strict=True)]
        if of_steps or grown == wanted:
            return of_steps
        wanted = grown
