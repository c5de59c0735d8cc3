"""Servers against forged updates that need more than the updates: Zeno++ and μ²-SGD, against slow NumPy loops."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxafl as afl
from jaxafl import correction
from jaxafl.device.keys import Purpose, drawing_key, jax_key, per_run, per_step, purpose_key, seed_key
from jaxafl.engine.evaluate import _SAMPLES
from jaxafl.server.algorithms.mu2 import weighted_geometric_median, weighted_median
from tests.problems import START, descent, drawn, observe_w, quadratic

STEPS, SEED, BATCH = 20, 3, 2
TIMES = afl.clock.uniform(1, 3)
CLOCK = afl.clock.free_running(concurrency=4, durations=TIMES)
HELD_OUT = quadratic().data.with_validation(0.4)


def validation() -> tuple[np.ndarray, np.ndarray]:
    """Curvatures and centres of the validation set, [V, 3]."""
    held, gather = HELD_OUT.validation, HELD_OUT.gather.gather
    rows = [gather(HELD_OUT.arrays["all"], c, np.array([p]))[0][0] for c, p in zip(*held, strict=True)]
    return tuple(np.split(np.asarray(rows, float), 2, axis=1))


def kept(client: int) -> tuple[np.ndarray, np.ndarray]:
    rows, _ = HELD_OUT.gather(HELD_OUT.arrays, client, np.arange(HELD_OUT.counts[client]))
    return tuple(np.split(np.asarray(rows, float), 2, axis=1))


def zeno_sim(server: Any, **options: Any) -> afl.Simulation:
    client = afl.Client(learning_rate=1.0, steps=1, batch_size=None)
    attack = afl.attack.sign_flip(3.0, clients=[1, 4])
    return afl.Simulation(HELD_OUT, quadratic().model, client, server, CLOCK, attack=attack, **options)


def zeno_loop(server: Any, schedule: Any) -> tuple[np.ndarray, list[int]]:
    """x_0 .. x_T and the rejections by the authors' code."""
    (a, c), models, rejected = validation(), [np.array(START)], []
    for step, client in enumerate(schedule.client[:, 0]):
        x, start = models[-1], models[schedule.version[step, 0]]
        if step % server.every == 0:
            rows = np.arange(len(a))
            if server.batch_size is not None:
                key = jax_key(per_step(purpose_key(seed_key(SEED), Purpose.BATCH), jnp.int32(step)))
                key = drawing_key(jax.random.fold_in(key, _SAMPLES))
                rows = np.asarray(jax.random.randint(key, (server.batch_size,), 0, len(a), jnp.int32))
            of_server = (a[rows] * (x - c[rows])).mean(0)
        own, center = kept(client)
        g = (own * (start - center)).mean(0) * (-3 if client in (1, 4) else 1)
        scaled = g * np.linalg.norm(of_server) / np.linalg.norm(g)
        norm = np.linalg.norm(g if server.penalised == "sent" else scaled)
        score = server.learning_rate * (of_server @ scaled + server.slack) - server.penalty * norm**2
        rejected.append(int(score < 0))
        models.append(x - server.learning_rate * scaled if score >= 0 else x)
    return np.stack(models), rejected


ZENO = {
    "whole": afl.server.zeno(0.2, 0.001, batch_size=None),
    "batches": afl.server.zeno(0.2, 0.03, slack=0.2, batch_size=3, every=4),
    "scaled": afl.server.zeno(0.2, 0.05, slack=0.1, every=2, batch_size=300, penalised="scaled"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ZENO)
def test_zeno_is_its_algorithm(name: str) -> None:
    sim = zeno_sim(ZENO[name])
    want, rejected = zeno_loop(sim.server, sim.schedule(STEPS, seed=SEED))
    with jax.enable_x64(True):
        found = sim.run(STEPS, seed=SEED, observe=observe_w)
    np.testing.assert_allclose(found.observe_w, want, rtol=1e-9, atol=1e-9)
    assert found.rejected.values.tolist() == rejected and 0 < sum(rejected) < STEPS
    assert found.attrs["count_rejected"] == sum(rejected)


def test_zeno_says_what_it_needs() -> None:
    sim = zeno_sim(afl.server.zeno())
    with pytest.raises(ValueError, match="validation set"):
        dataclasses.replace(sim, data=quadratic().data).check()
    for option in ("every", "batch_size"):
        with pytest.raises(ValueError, match=option):
            dataclasses.replace(sim, server=afl.server.zeno(**{option: 0})).check()


@pytest.mark.slow
def test_zeno_ignores_what_clients_freeze_and_survives_updates_of_zero() -> None:
    """A frozen parameter counts neither in ‖g_r‖ nor in the score; ‖g‖ = 0 gives no NaN."""
    client = afl.Client(learning_rate=1.0, steps=1, batch_size=None, personal=lambda path: path == "b")
    model = afl.models.from_functions(
        lambda key, batch: {"w": jnp.zeros(3), "b": jnp.ones(1)},
        lambda p, batch, key: ((p["w"] - batch.x[:, 3:]) ** 2).sum(1) * p["b"] + 9 * p["b"],
        "two",
    )
    server = afl.server.zeno(0.1, 0.0, batch_size=None)
    sim = afl.Simulation(HELD_OUT, model, client, server, CLOCK, attack=afl.attack.scaled(0.0, clients=[0]))
    found = sim.run(STEPS, observe=lambda params: {"w": params["w"], "b": params["b"]})
    assert np.isfinite(found.observe_w).all() and (found.observe_b == 1).all()
    who = found.client_id.values[:, 0]
    moved = np.linalg.norm(np.diff(found.observe_w, axis=0), axis=1)
    _, centers = validation()
    size = 2 * np.linalg.norm(found.observe_w[:-1] - centers.mean(0), axis=1)
    passes = (found.rejected.values == 0) & (who != 0)
    np.testing.assert_allclose(moved[passes], 0.1 * size[passes], rtol=1e-5)
    assert (moved[who == 0] == 0).all() and (who == 0).any()


def client_of(part: Any, batch_size: int | None = None, rate: float = 1.0) -> afl.Client:
    return afl.Client(learning_rate=rate, steps=1, batch_size=batch_size, correction=part)


def momenta(part: Any, schedule: Any, models: list[np.ndarray], batch_size: int | None) -> Any:
    """Yields the client and the d_i of every arrival; `models` grows while it is read."""
    own: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for step, client in enumerate(schedule.client[:, 0]):
        x, run = models[schedule.version[step, 0]], schedule.run[step, 0]
        one, rows = quadratic().clients[client], slice(None)
        if batch_size is not None:
            key = per_run(purpose_key(seed_key(SEED), Purpose.BATCH), jnp.int32(client), jnp.int32(run))
            rows = np.asarray(drawn(key, jnp.int32(0), batch_size, jnp.int32(one.num_samples)))
        d, before = own.get(client, (np.zeros(3), None))
        if isinstance(part, correction.local_momentum):
            d = (1 - part.momentum) * one.gradient(x, rows) + part.momentum * d
        else:
            more = 0 if before is None else (1 - part.beta) * (d - one.gradient(before, rows))
            d = one.gradient(x, rows) + more
        own[client] = d, x
        yield client, d


def mu2_loop(server: Any, part: Any, schedule: Any, batch_size: int | None, factor: float = 1.0) -> np.ndarray:
    models, w, rows, times = [np.array(START)], np.array(START), np.zeros((6, 3)), np.zeros(6)
    for client, d in momenta(part, schedule, models, batch_size):
        rows[client] = d * (factor if client == 2 else 1)
        times[client] += 1
        if server.center == "median":
            v = np.zeros(3)
            for j in range(3):
                total = 0.0
                for i in np.argsort(rows[:, j], kind="stable"):
                    total += times[i]
                    if total / times.sum() > 0.5:
                        v[j] = rows[i, j]
                        break
        else:
            v = np.zeros(3)
            for _ in range(3):
                apart = np.linalg.norm(rows - v, axis=1)
                at = (times > 0) & (apart < 1e-12)  # the limit: v stays at a point with weight
                pulls = np.where(at, 1.0, 0.0 if at.any() else times / np.where(apart > 0, apart, 1))
                v = pulls @ rows / pulls.sum()
        w = w - server.learning_rate * v
        models.append(server.mix * w + (1 - server.mix) * models[-1])
    return np.stack(models)


MU2 = {
    "median": (afl.server.mu2(0.2, 0.3), 0.25, BATCH),
    "geometric": (afl.server.mu2(0.1, 0.5, center="geometric_median"), 0.4, None),
    "plain": (afl.server.mu2(0.1, 1.0), 1.0, BATCH),
}


@pytest.mark.slow
def test_weighted_medians_by_hand() -> None:
    points, weights = jnp.array([[3.0, 0.0], [1.0, 5.0], [2.0, 5.0]]), jnp.array([2.0, 1.0, 1.0])
    np.testing.assert_array_equal(weighted_median(points, weights), [3, 5])  # half of all does not exceed half
    np.testing.assert_array_equal(weighted_median(points, jnp.array([2.0, 4.0, 3.0])), [2, 5])
    np.testing.assert_array_equal(weighted_median(points, jnp.array([1.0, 0.0, 0.0])), [3, 0])
    many = jnp.tile(points, (30, 1))  # more than are compared one by one
    np.testing.assert_array_equal(weighted_median(many, jnp.tile(weights, 30)), [3, 5])
    line, center = np.array([2.0, 1.0, 9.0]), 0.0
    for _ in range(3):
        pulls = np.array([0.5, 0.5, 0.0]) / abs(line - center)
        center = float(pulls @ line / pulls.sum())
    found = weighted_geometric_median(jnp.asarray(line)[:, None], jnp.array([0.5, 0.5, 0.0]))
    np.testing.assert_allclose(found, [center], rtol=1e-6)
    single = weighted_geometric_median(points, jnp.array([0.0, 1.0, 0.0]))
    np.testing.assert_allclose(single, [1, 5], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", MU2)
def test_mu2_is_its_algorithm(name: str) -> None:
    server, beta, batch_size = MU2[name]
    part = correction.storm(beta)
    forged = afl.attack.sign_flip(4.0, clients=[2])
    sim = descent(client=client_of(part, batch_size), server=server, clock=CLOCK, attack=forged)
    schedule = sim.schedule(STEPS, seed=SEED)
    with jax.enable_x64(True):
        found = sim.run(STEPS, seed=SEED, observe=observe_w, lanes=4)
        want = mu2_loop(server, part, schedule, batch_size, -4.0)
    np.testing.assert_allclose(found.observe_w, want, rtol=1e-9, atol=1e-9)
    assert found.times.values[-1] == (schedule.client[:, 0] == schedule.client[-1, 0]).sum()


@pytest.mark.slow
@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_local_momentum_is_its_formula(rate: float) -> None:
    part = correction.local_momentum(0.7)
    server = afl.server.asysg(0.2) if rate == 1 else afl.server.fedbuff(0.2, "none")
    sim = descent(client=client_of(part, BATCH, rate), server=server, clock=CLOCK)
    schedule, models = sim.schedule(STEPS, seed=SEED), [np.array(START)]
    with jax.enable_x64(True):
        found = sim.run(STEPS, seed=SEED, observe=observe_w).observe_w.values
        for _, d in momenta(part, schedule, models, BATCH):
            models.append(models[-1] - 0.2 * rate * d)
    np.testing.assert_allclose(found, np.stack(models), rtol=1e-9, atol=1e-9)


def test_momenta_and_mu2_say_what_they_need() -> None:
    cases: list[tuple[str, Any, afl.Client]] = [
        ("mu2", afl.server.mu2(), client_of(None)),
        ("mu2", afl.server.mu2(), client_of(correction.storm(), rate=0.5)),
    ]
    for part in (correction.storm(), correction.local_momentum()):
        cases.append((part.name, afl.server.fedbuff(), dataclasses.replace(client_of(part), steps=2)))
        moving = afl.Client(learning_rate=1.0, momentum=0.5, steps=1, correction=part)
        cases.append((part.name, afl.server.fedbuff(), moving))
    for named, server, client in cases:
        with pytest.raises(ValueError, match=named):
            descent(client=client, server=server, clock=CLOCK).check()
