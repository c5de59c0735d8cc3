"""Steps that hand arrivals to the server without a version: a clock that takes three of them is a buffer of three."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxafl as afl
from jaxafl import clock as clocks
from jaxafl.clock import schedule as run_clock
from jaxafl.clock.contract import Workload
from jaxafl.clock.rules import check_next
from jaxafl.clock.versions import next_version
from jaxafl.device import as_arrays
from jaxafl.device.keys import seed_key
from jaxafl.options import static
from tests.problems import GD, observe_w, quadratic

DURATIONS = clocks.uniform(1, 5)
BUFFER = clocks.free_running(concurrency=4, durations=DURATIONS, buffer=3)


class by_three(clocks.free_running):
    """One arrival per step; every third one makes a version.

    Args:
        room: arrivals of a server step.
        wrong: return a number where True or False belongs.
    """

    room: int = static(default=3, kw_only=True)
    wrong: bool = static(default=False, kw_only=True)

    def capacity(self, num_clients: int) -> int:
        return self.room

    def next(self, state: Any, workload: Any) -> Any:
        after, step = super().next(state, workload)
        advances = after.ended % 3 == 0
        first = jax.tree.map(lambda column: column[:1], (step.mask, step.runs))
        after = after._replace(version=jnp.where(advances, after.version, state.version))
        return after, step._replace(mask=first[0], runs=first[1], advances=after.ended if self.wrong else advances)


EARLY = afl.Client(learning_rate=0.2, epochs=4, batch_size=None, patience=1, charge="executed")
THREE = by_three(concurrency=4, durations=DURATIONS)


@pytest.mark.slow
def test_versions_staleness_and_server_steps_do_not_count_them() -> None:
    found, expected = (run_clock(made, 6, 1, 30, 1) for made in (THREE, BUFFER))
    for name in ("time", "client", "run_id", "version", "staleness", "arrived", "runs_begun"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


@pytest.mark.slow
def test_steps_without_room_or_that_do_not_say_if_they_advance_are_refused() -> None:
    with pytest.raises(ValueError, match=r"server step 0 has arrivals=2; more arrive before .* larger capacity"):
        run_clock(by_three(concurrency=4, durations=DURATIONS, room=2), 6, 1, 3)
    with pytest.raises(ValueError, match=r"must return `advances` as bool of shape \(\)"):
        run_clock(by_three(concurrency=4, durations=DURATIONS, wrong=True), 6, 1, 3)


@pytest.mark.slow
def test_a_version_that_no_client_can_complete_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"all clients that are at work are gone .* at 2 simulated seconds"):
        run_clock(
            by_three(concurrency=6, room=9, durations=clocks.recorded([[1.0, 1.0, np.inf], *[[np.inf]] * 5])), 6, 1, 3
        )


def test_clocks_without_them_compile_to_the_same_program() -> None:
    with jax.enable_x64(True):
        state = as_arrays(BUFFER, jnp.float64).init(seed_key(0), 6)
        arguments = (state, Workload(jnp.int32(1), 6))

        def plain(state: Any, workload: Workload) -> Any:
            result = BUFFER.next(state, workload)
            check_next(BUFFER, 6, state, result)
            return result[0], result[1].complete()

        mine, theirs = (jax.make_jaxpr(one)(*arguments) for one in (functools.partial(next_version, BUFFER), plain))
    assert str(mine) == str(theirs)


@pytest.mark.slow
@pytest.mark.parametrize("client", [GD, EARLY], ids=["ahead", "inside the loop"])
def test_training_ahead_and_inside_the_loop(client: Any, tmp_path: Any) -> None:
    problem = quadratic()
    server = afl.server.fedbuff()
    mine, theirs = (afl.Simulation(problem.data, problem.model, client, server, made) for made in (THREE, BUFFER))
    options: dict[str, Any] = {"seed": 1, "eval_every": 5, "observe": observe_w}
    expected = theirs.run(20, **options)
    for result in (mine.run(20, **options), mine.run(20, lanes=3, **options)):
        for name in ("observe_w", "loss", "staleness", "eval_step"):
            np.testing.assert_allclose(result[name], expected[name], rtol=1e-6, err_msg=name)
    mine.run(10, checkpoint=tmp_path, **options)
    np.testing.assert_array_equal(mine.run(20, checkpoint=tmp_path, **options).loss, mine.run(20, **options).loss)
    swept = afl.sweep(mine, {"seed": [0, 1]}, 20, eval_every=5)
    np.testing.assert_allclose(swept.loss.sel(seed=1), expected.loss, rtol=1e-6)
    state, _ = mine.step(mine.init(1), 20)
    np.testing.assert_allclose(state.params["w"], expected.observe_w[-1], rtol=1e-6)
