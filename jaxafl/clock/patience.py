"""Calls of user-defined clocks, which may never return: Ctrl-C works, and the cause is reported."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.clock.contract import Clock, Runs
from jaxafl.clock.durations.duration import Duration
from jaxafl.clock.durations.runs import Run, draw_of, prepared_of, stream_keys
from jaxafl.device import float64_on_cpu
from jaxafl.device.keys import seed_key
from jaxafl.options import UserError

SECONDS = 10.0  # after which a missing server step is examined


class _Call(threading.Thread):
    """Call of a function in a daemon thread, so that the main thread receives Ctrl-C."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.function = function
        self.error: BaseException | None = None
        self.result: Any = None
        self.start()

    def run(self) -> None:
        try:
            result = self.function()
            pause = 1e-4
            # `jax.block_until_ready` aborts the process if it still waits when the interpreter exits
            while not all(leaf.is_ready() for leaf in jax.tree.leaves(result) if hasattr(leaf, "is_ready")):
                time.sleep(pause)
                pause = min(2 * pause, 0.01)
            self.result = result
        except BaseException as error:
            self.error = error

    def wait(self, seconds: float) -> bool:
        """Returns True if the call ends within `seconds`; re-raises the exception of a failed call."""
        end = time.monotonic() + seconds
        while self.is_alive() and time.monotonic() < end:
            self.join(0.1)
        if self.error is not None:
            raise self.error
        return not self.is_alive()


def call_interruptibly(
    compute: Callable[[], Any], begin: Callable[[], Any], clock: Clock, num_clients: int, seed: int, steps: range
) -> Any:
    """Returns `compute()`, which computes server steps of a user-defined clock.

    Args:
        compute: computes all server steps.
        begin: () -> the state before the first server step, and a function (state) -> (state, server steps [1, ...],
            ...) that computes a single one, to find the one that never returns.
        clock, num_clients, seed: clock, N and seed of the schedule.
        steps: indices of the server steps.

    Raises:
        ValueError: a server step takes longer than `SECONDS`. The message names a run whose duration explains it.
    """
    call = _Call(compute)
    runs = np.zeros(num_clients, int)
    if call.wait(SECONDS):
        return call.result

    def see(tree: Any) -> None:
        for seen in jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, Runs)):
            if isinstance(seen, Runs):
                np.maximum.at(runs, np.ravel(np.clip(seen.client, 0, num_clients - 1)), np.ravel(seen.run))

    state, one = begin()
    see(state)
    for step in steps:
        if not call.is_alive():
            break
        single = _Call(lambda state=state: one(state))  # type: ignore[misc]
        if not single.wait(SECONDS):
            raise UserError(
                f"the clock {clock.name} does not come to server step {step}: it has computed for {SECONDS:g} s. "
                f"{_why(clock, num_clients, seed, runs)}. Its loop cannot be stopped: restart Python"
            )
        state = single.result[0]
        see(single.result[:2])
    while not call.wait(SECONDS):  # the clock is not the cause: wait without limit
        pass
    return call.result


def _why(clock: Clock, num_clients: int, seed: int, runs: np.ndarray) -> str:
    """Describes the first run, among those that may have begun, without a finite duration above 0.

    Args:
        clock, num_clients, seed: clock, N and seed of the schedule.
        runs: int [N], last known run of each client.
    """
    client, run = (np.concatenate(each) for each in zip(*_begun(runs), strict=True))
    words = (
        (np.isnan, "no duration (NaN)"),
        (lambda drawn: drawn < 0, "a negative duration"),
        (np.isinf, "an infinite duration"),
        (lambda drawn: drawn == 0, "a duration of 0, in which no time passes"),
    )
    with float64_on_cpu():
        for durations in (value for value in vars(clock).values() if isinstance(value, Duration)):
            prepared = prepared_of(durations, stream_keys(seed_key(seed), durations), num_clients)

            def lasting(client: Any, run: Any, durations: Any = durations, prepared: Any = prepared) -> Any:
                return sum(draw_of(durations, prepared, Run(client, run, jnp.int32(1), jnp.float64(0), jnp.float64(0))))

            drawn = np.asarray(jax.vmap(lasting)(jnp.asarray(client, jnp.int32), jnp.asarray(run, jnp.int32)))
            for is_so, what in words:
                if (found := np.flatnonzero(is_so(drawn))).size:
                    return f"Run {run[found[0]]} of client {client[found[0]]} has {what}"
    return "All runs up to there have durations above 0: look at the loops of its `next`"


def _begun(runs: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(np.full(last + 2, client), np.arange(last + 2)) for client, last in enumerate(runs)]
