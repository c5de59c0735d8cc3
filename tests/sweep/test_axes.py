"""Axes that are no grid of single options: options that vary together, samples, whole simulations."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import scipy.stats

import jaxafl as afl
from tests.callbacks.test_identity import Patience
from tests.sweep.conftest import simulation

STEPS, EVERY = 6, 3


@pytest.mark.slow
def test_options_of_schedules_that_vary_together() -> None:
    """A static one and one of the clock: the result of every row is that of its own run."""
    sim = simulation()
    found = afl.sweep(
        sim, {("clock.buffer", "clock.durations.high"): [(1, 5), (2, 5), (2, 9)]}, STEPS, eval_every=EVERY
    )
    for place, (buffer, high) in enumerate([(1, 5), (2, 5), (2, 9)]):
        clock = afl.clock.free_running(concurrency=4, buffer=buffer, durations=afl.clock.uniform(1, high))
        alone = dataclasses.replace(sim, clock=clock).run(STEPS, eval_every=EVERY)
        member = found.isel(together=place)
        np.testing.assert_array_equal(member.time.values, alone.time.values)
        np.testing.assert_allclose(member.loss.values, alone.loss.values, rtol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("several", [list, dict])
def test_whole_simulations(several: Any) -> None:
    first = simulation()
    second = dataclasses.replace(first, server=afl.server.fedasync(0.5))
    given = [first, second] if several is list else {"a": first, "b": second}
    found = afl.sweep(given, {"seed": [1]}, STEPS, eval_every=EVERY)
    names = ["fedbuff on free_running", "fedasync on free_running"] if several is list else ["a", "b"]
    assert found.accuracy.dims == ("simulation", "seed", "evaluation")
    assert found.simulation.values.tolist() == names
    alone = second.run(STEPS, eval_every=EVERY, seed=1)
    np.testing.assert_array_equal(found.loss.values[1, 0], alone.loss.values)
    assert afl.sweep(given, {}, STEPS, eval_every=EVERY).accuracy.dims == ("simulation", "evaluation")


@pytest.mark.parametrize("method", ["sobol", "halton", "latin", "random"])
def test_samples_follow_their_distributions(method: Any) -> None:
    rates = scipy.stats.loguniform(1e-3, 1)
    wanted = {"client.learning_rate": rates, "clock.buffer": scipy.stats.randint(1, 4), "server.mode": ["a", "b"]}
    drawn = afl.sample(16, wanted, seed=3, method=method)
    ((paths, rows),) = drawn.items()
    assert paths == tuple(wanted) and len(rows) == 16
    columns = list(zip(*rows, strict=True))
    assert all(1e-3 <= rate <= 1 for rate in columns[0]) and len(set(columns[0])) == 16
    assert set(columns[1]) == {1, 2, 3} and all(type(value) is int for value in columns[1])
    assert set(columns[2]) == {"a", "b"}
    assert rows == afl.sample(16, wanted, seed=3, method=method)[paths]
    assert rows != afl.sample(16, wanted, seed=4, method=method)[paths]
    if method != "random":  # each quarter of the quantiles has its share of the sample
        counts = np.histogram(rates.cdf(columns[0]), [0, 0.25, 0.5, 0.75, 1])[0]
        assert counts.tolist() == [4, 4, 4, 4] or (method == "halton" and counts.min() >= 3)


@pytest.mark.slow
def test_a_sample_is_an_axis() -> None:
    drawn = afl.sample(4, {"server.learning_rate": scipy.stats.uniform(0.1, 0.9)})
    (rows,) = drawn.values()
    found = afl.sweep(simulation(), drawn | {"seed": [0, 1]}, STEPS, eval_every=EVERY)
    assert found.accuracy.dims == ("sample", "seed", "evaluation")
    assert found["server.learning_rate"].values.tolist() == [rate for (rate,) in rows]


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({("server.learning_rate", "seed"): [(1, 2, 3)]}, "needs 2 values in each place"),
        ({("server.learning_rate", "seed"): [(1, 2)], "seed": [1]}, "overlap"),
        ({(): [()]}, "a sweep axis is .seed. or begins with"),
        ({("server.learning_rate", "data.x"): [(1, 2)]}, "no option 'x' in the path 'data.x'"),
    ],
)
def test_bad_axes(axes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        afl.sweep(simulation(), axes, STEPS)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ((0, {"seed": [1]}), ValueError, "n must be at least 1"),
        ((4, {}), TypeError, "path -> distribution"),
        ((4, {"seed": 3}), TypeError, "needs a distribution"),
        ((4, {"seed": [1]}, -1), ValueError, "seed"),
    ],
)
def test_bad_samples(arguments: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        afl.sample(*arguments)


@pytest.mark.slow
def test_a_folder_keeps_the_callbacks_of_ones_own_that_end_its_members(tmp_path: Any) -> None:
    how = dict(axes={"seed": [0]}, server_steps=STEPS, eval_every=EVERY, folder=tmp_path / "sweep")
    ended = afl.sweep(simulation(), **how, callbacks=Patience(2))
    again = afl.sweep(simulation(), **how, callbacks=[Patience(2), afl.callbacks.Csv(tmp_path / "log.csv")])
    assert ended.sizes["evaluation"] == again.sizes["evaluation"] == 2
    for others in ((), Patience(1)):
        with pytest.raises(ValueError, match=r"run\.stops was \[\{.*Patience"):
            afl.sweep(simulation(), **how, callbacks=others)
