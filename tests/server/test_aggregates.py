"""Aggregates in the place of a server's mean, against expected values, slow references and properties."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxafl as afl
from jaxafl import aggregate
from jaxafl.server.aggregate.robust import krum_scores
from jaxafl.server.contract import Arrivals, Outcome
from tests.oracle import aggregate as oracle
from tests.problems import descent, observe_w

PLACES = afl.clock.uniform(1, 3)
STEPS = 8


def arrivals(times: Any, delta: Any = None, key: int = 0) -> Arrivals:
    times = jnp.asarray(times, jnp.int32)
    zero = jnp.zeros_like(times)
    real = jnp.result_type(float)
    return Arrivals(
        mask=times > 0,
        client=jnp.arange(len(times), dtype=jnp.int32),
        multiplicity=times,
        kind=zero,
        delta=delta,
        base=None,
        staleness=zero,
        samples=jnp.where(times > 0, 1, 0).astype(real),
        local_steps=zero,
        loss=zero.astype(real),
        step=jnp.int32(0),
        time=jnp.zeros((), real),
        key=jax.random.key(key),
    )


def combined(rule: Any, points: Any, times: Any = None, weights: Any = None, state: Any = None, key: int = 0) -> Any:
    """The direction and the state after one step, of points [A, d] over two leaves of the parameters."""
    points = jnp.asarray(points, jnp.result_type(float))
    tree = {"a": points[:, :1], "b": points[:, 1:].reshape(len(points), -1, 1)}
    times = jnp.ones(len(points), int) if times is None else jnp.asarray(times)
    weights = times / times.sum() if weights is None else weights
    state = rule.init(jax.tree.map(lambda leaf: leaf[0], tree)) if state is None else state
    found, state, info = rule.update(tree, jnp.asarray(weights, points.dtype), state, arrivals(times, tree, key))
    return jnp.concatenate([jnp.ravel(found["a"]), jnp.ravel(found["b"])]), state, info


LINE = np.array([0, 1, 2, 10, 3.0, 0])[:, None] * np.array([1, 0, 0])
"""Five points and a place of padding."""
EXPECTED = {
    "median": (aggregate.median(), 2),
    "trimmed": (aggregate.trimmed_mean(count=1), 2),
    "share": (aggregate.trimmed_mean(share=0.2), 2),
    "krum": (aggregate.krum(1), 1),
    "three": (aggregate.multi_krum(1, 3), 1),
    "four": (aggregate.multi_krum(1), 1.5),
    "near": (aggregate.centered_clip(1.0), 0.8),
    "far": (aggregate.centered_clip(100.0), 3.2),
    "clipped": (aggregate.private_mean(2.0), 1.4),
}


def test_expected_values() -> None:
    @jax.jit
    def directions(points: Any) -> Any:
        return {name: combined(rule, points, [1, 1, 1, 1, 1, 0])[0] for name, (rule, _) in EXPECTED.items()}

    found = directions(LINE)
    for name, (_, expected) in EXPECTED.items():
        np.testing.assert_allclose(found[name], [expected, 0, 0], atol=1e-6, err_msg=name)
    forged = np.where(LINE == 10, [np.nan, np.inf, -np.inf], 1)
    robust = ("median", "trimmed", "share", "krum", "three", "four")
    found = directions(forged)
    np.testing.assert_allclose([found[name] for name in robust], 1)


def test_expected_scores_and_iterations() -> None:
    @jax.jit
    def found(line: Any, three: Any) -> Any:
        steps = [combined(aggregate.geometric_median(count), three)[0][0] for count in range(1, 5)]
        return krum_scores(line, jnp.ones(5), jnp.float32(2)), jnp.stack(steps)

    scores, steps = found(LINE[:5], np.array([[0.0], [1.0], [10.0]]))
    np.testing.assert_allclose(scores, [5, 2, 2, 113, 5])
    np.testing.assert_allclose(steps, [2.42539, 1.62275, 1.19565, 1.03066], atol=1e-5)


def numbers(low: float, high: float) -> Any:
    """Multiples of 1/8, so that equal distances are equal in both computations."""
    return st.integers(int(8 * low), int(8 * high)).map(lambda value: value / 8)


@st.composite
def buffers(draw: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points [A, 3], multiplicities with at least one update, weights that are 0 for padding."""
    size = 6
    points = np.array(draw(st.lists(st.lists(numbers(-4, 4), min_size=3, max_size=3), min_size=size, max_size=size)))
    times = np.array(draw(st.lists(st.integers(0, 3), min_size=size, max_size=size).filter(any)))
    scale = np.array(draw(st.lists(st.integers(1, 4), min_size=size, max_size=size)))
    return np.where(times[:, None] > 0, points, 0), times, times * scale / times.sum() / 4


RULES = {
    "median": (aggregate.median(), lambda: oracle.median),
    "trimmed count": (aggregate.trimmed_mean(count=2), lambda: oracle.trimmed_mean(lambda total: 2)),
    "trimmed share": (aggregate.trimmed_mean(share=0.3), lambda: oracle.trimmed_mean(lambda total: 3 * total // 10)),
    "krum": (aggregate.krum(1), lambda: oracle.krum(1, lambda total: 1)),
    "multi": (aggregate.multi_krum(2, 3), lambda: oracle.krum(2, lambda total: 3)),
    "most": (aggregate.multi_krum(1), lambda: oracle.krum(1, lambda total: max(total - 1, 1))),
    "geometric": (aggregate.geometric_median(3, 1e-2), lambda: oracle.geometric_median(3, 1e-2)),
    "centered": (aggregate.centered_clip(1.5, 2), lambda: oracle.CenteredClip(1.5, 2, 3)),
    "private": (aggregate.private_mean(1.5), lambda: oracle.clipped_mean(1.5)),
}


@functools.cache
def in_two_steps() -> Any:
    """Compiled directions of two steps, by name of the rule."""

    def both(first: Any, second: Any) -> Any:
        found = {}
        for name, (rule, _) in RULES.items():
            one, state, _ = combined(rule, *first)
            found[name] = one, combined(rule, *second, state)[0]
        return found

    return jax.jit(both)


@pytest.mark.slow
@settings(max_examples=60)
@given(buffers(), buffers())
def test_rules_are_those_of_a_list_with_repetitions(first: Any, second: Any) -> None:
    with jax.enable_x64(True):
        found = jax.device_get(in_two_steps()(first, second))
    for name, (_, theirs) in RULES.items():
        slow = theirs()
        for direction, (points, times, weights) in zip(found[name], (first, second), strict=True):
            listed = [(p, w / m) for p, m, w in zip(points, times, weights, strict=True) for _ in range(m)]
            expected = slow(*map(list, zip(*listed, strict=True)))
            np.testing.assert_allclose(direction, expected, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("name", ["median", "trimmed", "krum", "near"])
def test_updates_of_16_bits_have_the_same_centre(name: str) -> None:
    rule, expected = EXPECTED[name]
    tree = {"w": jnp.asarray(LINE, jnp.bfloat16)}
    times = jnp.array([1, 1, 1, 1, 1, 0])
    state = rule.init({"w": tree["w"][0]})
    found, _, _ = jax.jit(rule.update)(tree, times / 5, state, arrivals(times, tree))
    assert float(found["w"][0]) == pytest.approx(expected, rel=1e-2)


@pytest.mark.slow
def test_a_large_buffer_has_the_same_ranks() -> None:
    points = np.random.default_rng(0).integers(-9, 9, (80, 3)) / 8
    times = np.arange(80) % 3
    found = combined(aggregate.median(), points, times)[0]
    np.testing.assert_allclose(found, np.median(np.repeat(points, times, axis=0), axis=0), rtol=1e-6)


@pytest.mark.slow
def test_noise_has_the_standard_deviation_of_the_mean_and_differs_by_step() -> None:
    rule = aggregate.private_mean(2.0, 3.0)
    points = np.zeros((4, 2000))
    times = [1, 2, 0, 2]
    found = np.stack([combined(rule, points, times, key=key)[0] for key in range(4)])
    np.testing.assert_allclose(np.std(found, axis=1), 3 * 2 / 5, rtol=0.05)
    assert np.abs(np.corrcoef(found) - np.eye(4)).max() < 0.08
    moving = aggregate.private_mean(2.0, 3.0, quantile=0.5, count_noise=2.0)
    multiplier = (3.0**-2 - 4.0**-2) ** -0.5
    assert np.std(combined(moving, points, times)[0]) == pytest.approx(multiplier * 2 / 5, rel=0.05)


def test_the_clip_norm_follows_its_quantile() -> None:
    rule = aggregate.private_mean(1.0, 0.0, quantile=0.75, adaptation_rate=0.2, count_noise=1e-6)
    points = np.arange(1, 9)[:, None] / 10
    state = None
    norms = []
    step = jax.jit(functools.partial(combined, rule))
    for _ in range(60):
        _, state, info = step(points, state=state)
        norms.append(float(info["clip_norm"]))
    assert norms[:2] == [1.0, pytest.approx(np.exp(-0.2 * 0.25))]
    assert 0.5 < norms[-1] < 0.7
    noisy = dataclasses.replace(rule, count_noise=2.0)
    step = jax.jit(functools.partial(combined, noisy))
    shift = [np.log(step(points, key=key)[1]) / -0.2 - 0.25 for key in range(200)]
    assert np.std(shift) == pytest.approx(2 / 8, rel=0.2)


def simulation(server: Any, clock: Any = None) -> afl.Simulation:
    clock = clock or afl.clock.free_running(concurrency=6, buffer=5, durations=PLACES)
    return descent(client=afl.Client(learning_rate=0.1, steps=2, batch_size=1), server=server, clock=clock)


class seen(aggregate.median):
    """The median, which also records the updates."""

    def update(self, deltas: Any, weights: Any, state: Any, arrivals: Any) -> Any:
        found, state, _ = super().update(deltas, weights, state, arrivals)
        columns = {f"delta_{place}": deltas["w"][:, place] for place in range(3)}
        return found, state, {**columns, "weight": weights}


def test_a_server_adds_the_median_times_the_mean_discount() -> None:
    result = simulation(afl.server.fedbuff(0.7, aggregate=seen())).run(STEPS, observe=observe_w, seed=2)
    delta = np.stack([result[f"delta_{place}"] for place in range(3)], -1)
    discount = 1 / np.sqrt(1 + result.staleness.values)
    np.testing.assert_allclose(result.weight, discount / 5, rtol=1e-6)
    moved = 0.7 * discount.mean(1)[:, None] * np.median(delta, axis=1)
    np.testing.assert_allclose(np.diff(result.observe_w, axis=0), moved, atol=1e-6)
    assert (discount < 1).any()


@pytest.mark.slow
def test_steps_without_arrivals_add_no_noise_and_partial_ones_divide_by_their_number() -> None:
    clock = afl.clock.free_running(concurrency=4, period=0.4, durations=PLACES)
    noise = aggregate.private_mean(1e-3, 1e6)
    result = simulation(afl.server.fedbuff(aggregate=noise), clock).run(60, observe=observe_w)
    moved, count = np.diff(result.observe_w, axis=0), (result.client_id.values >= 0).sum(1)
    assert (moved[count == 0] == 0).all()
    assert {0, 1, 2} <= {*count}
    for arrived in (1, 2):
        assert np.std(moved[count == arrived]) == pytest.approx(1e3 / arrived, rel=0.35)


@pytest.mark.slow
def test_numbers_are_swept_and_the_state_is_kept_in_checkpoints(tmp_path: Any) -> None:
    sim = simulation(afl.server.fedopt(optax.adam, 0.1, aggregate=aggregate.centered_clip(0.05)))
    swept = afl.sweep(sim, {"server.aggregate.radius": [0.05, 0.2]}, STEPS, observe=observe_w)
    full = sim.run(STEPS, observe=observe_w)
    np.testing.assert_allclose(swept.observe_w[0], full.observe_w, rtol=1e-5)
    assert not np.allclose(swept.observe_w[1], full.observe_w)
    sim.run(4, observe=observe_w, folder=tmp_path)
    resumed = sim.run(STEPS, observe=observe_w, folder=tmp_path)
    np.testing.assert_array_equal(resumed.observe_w, full.observe_w)
    assert "Learning from History" in full.citation


PRIVATE = aggregate.private_mean(1.0)


@pytest.mark.parametrize(
    ("server", "option"),
    [
        (lambda: afl.server.fedbuff(aggregate=aggregate.krum(2)), "at least 7"),
        (lambda: afl.server.fedbuff(aggregate=aggregate.multi_krum(1, 6)), "at least 6"),
        (lambda: afl.server.fedbuff(aggregate=aggregate.trimmed_mean(count=3)), "at least 7"),
        (lambda: afl.server.fedbuff(aggregate=aggregate.trimmed_mean(share=0.1)), "at least 10"),
        (lambda: afl.server.basgd(aggregate=aggregate.trimmed_mean(share=0.4)), "buffers"),
        (lambda: afl.server.fedbuff(aggregate=aggregate.trimmed_mean()), "trimmed_mean"),
        (lambda: afl.server.fedbuff(aggregate=aggregate.trimmed_mean(share=0.5)), "share"),
        (lambda: afl.server.fedbuff(aggregate=aggregate.private_mean(0.0)), "max_norm"),
        (lambda: afl.server.fedbuff(aggregate=aggregate.private_mean(1.0, quantile=0.5)), "count_noise"),
        (
            lambda: afl.server.fedbuff(aggregate=aggregate.private_mean(1, 2, quantile=0.5, count_noise=1)),
            "count_noise",
        ),
        (lambda: afl.server.fedbuff(weights="samples", aggregate=PRIVATE), "fedbuff"),
        (lambda: afl.server.fedbuff(reduce="sum", aggregate=PRIVATE), "1 / M"),
        (lambda: afl.server.malenia(aggregate=PRIVATE), "malenia"),
        (lambda: afl.server.basgd(aggregate=PRIVATE), "basgd"),
        (
            lambda: afl.server.fedbuff(staleness=lambda tau: jnp.where(tau == 1, 10.0, 1.0), aggregate=PRIVATE),
            "fedbuff",
        ),
    ],
)
def test_an_aggregate_that_cannot_be_is_an_error_before_compilation(server: Any, option: str) -> None:
    with pytest.raises((ValueError, TypeError), match=option):
        simulation(server()).check()


def test_a_centre_has_the_form_of_the_parameters() -> None:
    class mine(aggregate.Center):
        def center(self, points: Any, times: Any, weights: Any, state: Any) -> Any:
            return points.mean(), state, {}

    with pytest.raises((ValueError, TypeError)) as raised:
        simulation(afl.server.fedbuff(aggregate=mine())).run(2)
    assert "mine" in "".join([str(raised.value), *getattr(raised.value, "__notes__", [])])


class own_update(afl.server.fedbuff):
    """A server with an `update` that may change updates."""

    def update(self, params: Any, state: Any, arrivals: Any) -> Outcome:
        return super().update(params, state, arrivals)


class of_single_updates(own_update):
    """The same `update`, which is said to pass on single updates."""

    bounded = True


def test_bounded_weights_get_noise() -> None:
    noise = aggregate.private_mean(1.0, 1.0)
    for rule in ("none", "polynomial", "hinge", "exponential"):
        simulation(afl.server.fedbuff(staleness=rule, aggregate=noise)).check()
    of_runs = afl.clock.sampled(drawn=3, durations=PLACES)
    simulation(afl.server.defedavg_niid(aggregate=noise), of_runs).check()
    simulation(of_single_updates(aggregate=noise)).check()
    with pytest.raises(ValueError, match="own_update may combine updates"):
        simulation(own_update(aggregate=noise)).check()


@pytest.mark.parametrize("server", [afl.server.fedbuff(staleness="none"), afl.server.malenia(), afl.server.basgd()])
def test_one_clipped_update_moves_the_direction_by_its_share_of_the_noise(server: Any) -> None:
    """The largest effect of an update of norm C is C / M where noise is accepted, and larger where it is refused."""
    given = arrivals([1, 1, 1, 1])._replace(client=jnp.array([0, 0, 2, 1]))
    server = dataclasses.replace(server, learning_rate=1.0, aggregate=aggregate.private_mean(1.0))

    @jax.jit
    def moved(which: Any) -> Any:
        delta = jnp.zeros((4, 1)).at[which].set(4.0)
        params = {"w": jnp.zeros(1)}
        after = server.update(params, server.init(params, jnp.ones(4)), given._replace(delta={"w": delta})).params
        return after["w"][0]

    largest = max(float(moved(which)) for which in range(4))
    assert (largest > 0.25 + 1e-6) == (server.name != "fedbuff")


class unfinite(afl.attack.Attack):
    def forge(self, delta: Any, sent: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), delta)


@pytest.mark.parametrize(
    "rule", [afl.aggregate.centered_clip(1.0), afl.aggregate.geometric_median(), afl.aggregate.krum()]
)
def test_an_update_that_is_not_finite_reaches_no_centre_and_no_other_buffer(rule: Any) -> None:
    """Client 1 is in one buffer of basgd."""
    durations = afl.clock.uniform(1, 9, per="client")
    problem = afl.theory.quadratic(clients=9, dimension=4)
    for server, clock in (
        (afl.server.fedbuff(0.1, aggregate=rule), afl.clock.synchronous(durations=durations)),
        (afl.server.basgd(0.1, buffers=5, aggregate=rule), afl.clock.every_buffer(buffers=5, durations=durations)),
    ):
        client = afl.Client(learning_rate=1.0, steps=1, batch_size=None)
        sim = afl.Simulation(problem.data, problem.model, client, server, clock, attack=unfinite(clients=[1]))
        result = sim.run(8, eval_every=8)
        assert result.attrs["failed_step"] == -1 and result.loss[-1] < result.loss[0]
