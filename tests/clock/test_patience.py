"""A loop without end of a clock of one's own is interrupted or told why; in a process that ends with it."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest

import jaxafl as afl
from jaxafl.clock import patience

AHEAD = """
import os, signal, sys, threading
from typing import Any, NamedTuple
import jax, jax.numpy as jnp
from jaxafl import clock as clocks
from jaxafl.clock import patience

value, seconds = float(sys.argv[1]), float(sys.argv[2])
patience.SECONDS = seconds

class State(NamedTuple):
    now: Any
    version: Any
    starts: Any

class third(clocks.Duration):
    def draw(self, prepared, run):
        return clocks.worked(jnp.where(run.run == 2, value, 1.5))

class own(clocks.Clock):
    durations: clocks.Duration = third()
    delivers = clocks.Delivery.STALE

    def capacity(self, num_clients):
        return 1

    def init(self, key, num_clients):
        return State(jnp.float64(0), jnp.int32(0), clocks.no_starts(self.durations, key, num_clients))

    def next(self, state, workload):
        steps = workload.local_steps(jnp.int32(0), state.version).astype(jnp.int32)
        run = clocks.Run(jnp.int32(0), state.version, steps, state.starts.longest, state.now)
        arrives = state.now + self.durations.draw(state.starts.prepared, run).work
        now = jax.lax.while_loop(lambda now: ~(now > state.now), lambda now: arrives, state.now)
        columns = (0, state.version, state.version, state.version, steps, state.now, now)
        step = clocks.ServerStep(now, jnp.ones(1, bool), clocks.Runs(*(jnp.asarray(one)[None] for one in columns)))
        return State(now, state.version + 1, state.starts._replace(count=state.starts.count + 1)), step

print(clocks.schedule(own(), 1, 1, 2).time.tolist())
if seconds > 100:
    threading.Timer(5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    clocks.schedule(own(), 1, 1, 5)
except (ValueError, KeyboardInterrupt) as error:
    print(type(error).__name__, error)
"""


ONLINE = """
import os, signal, sys, threading
import jax, jax.numpy as jnp
import jaxafl as afl
from jaxafl.clock import patience

value, seconds = float(sys.argv[1]), float(sys.argv[2])
patience.SECONDS = seconds

class third(afl.clock.Duration):
    def draw(self, prepared, run):
        return afl.clock.worked(jnp.where(run.run == 2, value, 1.5))

class own(afl.clock.free_running):
    def next(self, state, workload):
        after, step = super().next(state, workload)
        run = afl.clock.Run(jnp.int32(0), state.version, jnp.int32(1), state.starts.longest, state.now)
        lasts = self.durations.draw(state.starts.prepared, run).work
        waited = jax.lax.while_loop(lambda waited: ~(waited > 0), lambda waited: lasts, 0.0 * lasts)
        return after, step._replace(time=step.time + 0 * waited)

problem = afl.theory.quadratic(clients=1)
client = afl.Client(learning_rate=0.1, steps=2, batch_size=None)
clock = own(concurrency=1, durations=third())
sim = afl.Simulation(problem.data, problem.model, client, afl.server.asyncfeded(), clock)
print(sim.run(2, eval_every=2).time.values.tolist())
if seconds > 100:
    for wait in (8, 9):
        threading.Timer(wait, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    sim.run(5, eval_every=5)
except (ValueError, KeyboardInterrupt) as error:
    print(type(error).__name__, error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "value", "seconds", "words"),
    [
        (AHEAD, "nan", 2, "come to server step 2: it has computed for 2 s. Run 2 of client 0 has no duration (NaN)"),
        (AHEAD, "-1", 2, "Run 2 of client 0 has a negative duration"),
        (AHEAD, "0", 2, "Run 2 of client 0 has a duration of 0"),
        (AHEAD, "nan", 1000, "KeyboardInterrupt"),
        (ONLINE, "nan", 2, "come to server step 2: it has computed for 2 s. Run 2 of client 0 has no duration (NaN)"),
        (ONLINE, "-1", 2, "Run 2 of client 0 has a negative duration"),
        (ONLINE, "nan", 1000, "KeyboardInterrupt"),
    ],
)
def test_a_loop_without_end_is_explained_or_interrupted(program: str, value: str, seconds: int, words: str) -> None:
    command = [sys.executable, "-c", program, value, str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    first, last = done.stdout.splitlines()
    assert first == "[1.5, 3.0]" and words in last


def test_what_takes_long_for_other_reasons_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "SECONDS", 0.2)
    alone: list[int] = []

    def begin() -> Any:
        return 0, lambda state: alone.append(state) or (state + 1,)

    def compute() -> int:
        time.sleep(1)
        return 7

    found = patience.call_interruptibly(compute, begin, afl.clock.synchronous(), 2, 0, range(4, 7))
    assert found == 7 and alone == [0, 1, 2]
