"""Interruptible calls of programs that contain a user-defined clock, which may never reach its next server step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.clock.contract import Workload
from jaxafl.clock.patience import call_interruptibly
from jaxafl.clock.schedules import one_step
from jaxafl.device import as_arrays, cpu, on_device, on_host
from jaxafl.device.key_leaves import unpack
from jaxafl.engine.problem import Problem
from jaxafl.engine.state import State


def patiently(problem: Problem, call: Callable[[], Any], state: State, steps: range) -> Any:
    """Calls a program whose clock is inside the training loop; Ctrl-C interrupts it. After some seconds, the clock is
    advanced step by step, to name a server step that it never reaches.

    Args:
        problem: the run.
        call: the call, which may donate the state.
        state: the state before the first server step.
        steps: the server steps.
    """
    clock, counts = problem.clock, problem.data.counts
    clock_state, planned = on_host(jax.tree.map(lambda leaf: leaf[0], (state.online.clock, state.online.next_steps)))
    unit = np.asarray(problem.client.steps_per_epoch(counts)) if problem.client.epochs is not None else 1

    def begin() -> Any:
        with jax.enable_x64(True), jax.default_device(cpu()):
            workload = Workload(on_device(np.asarray(planned * unit, np.int32)), len(counts))
            before = unpack(on_device(clock_state))
            one = one_step(as_arrays(clock, jnp.float64), workload, before)

        def step(state: Any) -> Any:
            with jax.enable_x64(True), jax.default_device(cpu()):
                return one(state)

        return before, step

    return call_interruptibly(call, begin, clock, len(counts), problem.seed, steps)
