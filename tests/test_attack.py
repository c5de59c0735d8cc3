"""Attacks: what the server receives from attackers, who they are, and what cannot be."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import jaxafl as afl
from jaxafl import attack
from jaxafl.client.attack.colluding import supporters_z
from jaxafl.data import from_arrays
from tests.test_upload import SENT, STEPS, check_repeated, drawn, simulation, still, vectors, waiting

PLACES = afl.clock.uniform(1, 3)
WHO = [1, 4]


def attacked(given: Any, *parts: Any, **options: Any) -> afl.Simulation:
    return dataclasses.replace(simulation(*parts, **options), attack=given)


def of_attackers(result: Any) -> np.ndarray:
    return np.isin(result.client_id.values, WHO)


@pytest.fixture(scope="module")
def honest() -> Any:
    return simulation().run(STEPS, seed=3)


@pytest.mark.parametrize(("name", "factor"), [("sign_flip", -2), pytest.param("scaled", 2, marks=pytest.mark.slow)])
def test_attackers_send_multiples_of_their_updates(name: str, factor: float, honest: Any) -> None:
    given = getattr(attack, name)(2.0, clients=WHO)
    result = attacked(given).run(STEPS, seed=3)
    expected = np.where(of_attackers(honest)[..., None], factor, 1) * vectors(honest)
    np.testing.assert_allclose(vectors(result), expected, rtol=1e-6)
    np.testing.assert_allclose(result.delta_norm, np.linalg.norm(expected, axis=-1), rtol=1e-6)
    np.testing.assert_allclose(result.computed_delta_norm, honest.delta_norm, rtol=1e-6)
    assert "computed_delta_norm" not in honest
    assert result.attacker.values.nonzero()[0].tolist() == WHO


@pytest.mark.slow
def test_an_attack_comes_after_the_upload_whatever_the_takings() -> None:
    clip = afl.upload.clip_by_global_norm(0.1)
    given = attack.gaussian(2.0, added=True, clients=WHO)
    clipped = simulation(clip).run(STEPS, seed=3)
    first = attacked(given, clip).run(STEPS, seed=3)
    added = vectors(first) - vectors(clipped)
    np.testing.assert_allclose(added[~of_attackers(first)], 0, atol=1e-7)
    assert np.std(added[of_attackers(first)]) == pytest.approx(2, rel=0.4)
    np.testing.assert_allclose(vectors(attacked(given, clip, waiting()).run(STEPS, seed=3)), vectors(first), rtol=1e-5)
    check_repeated(attacked(given, clip, clock=afl.clock.bernoulli(1.0, 0.3)), WHO)


def test_forged_vectors_have_the_moments_of_the_formulas() -> None:
    v = jnp.asarray([3.0, 4.0, 0.0, 0.0])

    def draws(given: Any, seed: int = 0) -> np.ndarray:
        part = dataclasses.replace(given.prepare(3, 10, seed), clients=jnp.bool_(True))
        return drawn(lambda sent: part.sent(v, sent), 3000)

    who = {"clients": [0]}
    np.testing.assert_allclose(np.cov(draws(attack.gaussian(0.5, **who)).T), 0.25 * np.eye(4), atol=0.03)
    disturbed = draws(attack.random_disturbance(0.2, **who)) - np.asarray(v)
    np.testing.assert_allclose(np.cov(disturbed.T), np.eye(4), atol=0.1)
    found = draws(attack.random_vector(7.0, **who))
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 7, rtol=1e-5)
    np.testing.assert_allclose(found.mean(0), 0, atol=0.3)
    fixed = draws(attack.fixed_vector(7.0, **who))
    np.testing.assert_allclose(np.linalg.norm(fixed[0]), 7, rtol=1e-5)
    assert (fixed == fixed[0]).all()
    assert not np.isclose(draws(attack.fixed_vector(7.0, **who), seed=1)[0], fixed[0]).any()


def test_expected_z() -> None:
    found = [float(supporters_z(jnp.float32(n - m), jnp.float32(m))) for n, m in ((25, 5), (50, 12), (10, 2))]
    np.testing.assert_allclose(found, [0.253347, 0.336038, 0], atol=1e-5)


KNOWLEDGE = [("step", {"buffer": 5}), *(("delivered", how) for how in ({}, {"buffer": 5}, {"period": 1.0}))]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alie", "ipm"])
@pytest.mark.parametrize(("knowledge", "how"), KNOWLEDGE)
def test_colluding_attackers_know(name: str, knowledge: str, how: dict[str, Any]) -> None:
    """The honest arrivals of their step, or the latest delivered update of each honest client."""
    protocol = afl.clock.free_running(concurrency=6, durations=PLACES, **how)
    who: dict[str, Any] = dict(knowledge=knowledge, clients=WHO)
    given = attack.alie(**who) if name == "alie" else attack.ipm(0.5, **who)
    plain = simulation(clock=protocol).run(STEPS, seed=3)
    result = attacked(given, clock=protocol).run(STEPS, seed=3)
    known: dict[int, np.ndarray] = {}
    numbers = []
    for before, after, clients in zip(vectors(plain), vectors(result), plain.client_id.values, strict=True):
        honest = np.flatnonzero((clients >= 0) & ~np.isin(clients, WHO))
        liars = np.flatnonzero(np.isin(clients, WHO))
        of_step = {int(place): before[place].astype(float) for place in honest}
        known |= {int(clients[place]): row for place, row in of_step.items()}
        seen = [*(of_step if knowledge == "step" else known).values()]
        forged = before[liars]
        if seen:
            m = len(liars) if knowledge == "step" else len(WHO)
            supporters = max((len(seen) + m) // 2 + 1 - m, 1)
            z = norm.ppf(np.clip((len(seen) - supporters) / len(seen), 1e-6, 1 - 1e-6))
            sd = np.std(seen, axis=0, ddof=1) if len(seen) > 1 else 0
            forged = np.mean(seen, axis=0) - z * sd if name == "alie" else -0.5 * np.mean(seen, axis=0)
            numbers.append(len(liars))
        np.testing.assert_allclose(after[honest], before[honest], rtol=2e-5, atol=2e-6)
        np.testing.assert_allclose(after[liars], np.broadcast_to(forged, after[liars].shape), rtol=2e-5, atol=2e-6)
    assert sum(numbers) > 1 and ({1, 2} <= {*numbers} or how != {"buffer": 5})


def test_members_with_and_without_a_number_of_the_attack_share_no_program() -> None:
    how = dict(clients=WHO, knowledge="delivered")
    single = [attacked(attack.alie(z, **how)).run(STEPS).delta_norm.values for z in (None, 3.0)]
    norms = afl.sweep(attacked(attack.alie(**how)), {"attack.z": [None, 3.0]}, STEPS).delta_norm.values
    assert not np.allclose(*single)
    np.testing.assert_allclose(norms, single, rtol=1e-6)


def test_without_honest_arrivals_colluding_attackers_send_their_own() -> None:
    everybody = attacked(attack.ipm(clients=1.0)).run(STEPS, seed=3)
    np.testing.assert_array_equal(vectors(everybody), vectors(simulation().run(STEPS, seed=3)))


def labelled(flipped: list[int]) -> Any:
    rng = np.random.default_rng(0)
    owners = np.repeat(np.arange(5), 8)
    y = rng.integers(0, 4, 40).astype(np.int32)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    return from_arrays(x, np.where(np.isin(owners, flipped), 3 - y, y), owners, x_test=x, y_test=y, name="labelled")


@pytest.mark.slow
def test_label_flip_trains_on_flipped_labels() -> None:
    def run(data: Any, given: Any = None) -> Any:
        client = afl.Client(learning_rate=0.5, steps=3, batch_size=4)
        clock = afl.clock.free_running(concurrency=3, buffer=2, durations=PLACES)
        parts = (data, afl.models.logistic(4), client, afl.server.fedbuff(), clock)
        return afl.Simulation(*parts, attack=given).run(STEPS, seed=1)

    result = run(labelled([]), attack.label_flip(clients=WHO))
    expected = run(labelled(WHO))
    np.testing.assert_allclose(result.delta_norm, expected.delta_norm, rtol=1e-5)
    np.testing.assert_allclose(result.loss, expected.loss, rtol=1e-5)
    assert not np.allclose(result.delta_norm, run(labelled([])).delta_norm)


def test_label_flip_leaves_padding_alone() -> None:
    """So do the labels of an attack of one's own."""

    class next_label(attack.Attack):
        def label(self, y: Any) -> Any:
            return (y + 1) % self.classes

    for one, flipped in ((attack.label_flip, [[3, 0, -1], [1, -7, -1]]), (next_label, [[1, 0, -1], [3, -7, -1]])):
        prepared = dataclasses.replace(one(clients=[0]).prepare(3, 4, 0), clients=True)
        assert prepared.labels(jnp.array([[0, 3, -1], [2, -7, -1]])).tolist() == flipped


def test_a_share_is_drawn_with_the_seed_and_larger_ones_include_smaller() -> None:
    def who(share: float, seed: int) -> set[int]:
        return {*attack.sign_flip(clients=share).mask(50, seed).nonzero()[0].tolist()}

    assert [len(who(share, 1)) for share in (0.0, 0.1, 0.3, 1.0)] == [0, 5, 15, 50]
    assert who(0.1, 1) < who(0.3, 1)
    assert len({frozenset(who(0.1, seed)) for seed in (*range(20), 2**40)}) == 21
    mask = np.arange(50) < 3
    assert (attack.sign_flip(clients=mask).mask(50, 0) == mask).all()
    attack.sign_flip(clients=0).check(50, None, 1)  # a share as 0.0
    with pytest.raises(ValueError, match="clients=1 names no attackers"):
        afl.sweep(attacked(attack.sign_flip(clients=0.0)), {"attack.clients": [0, 0.5, 1]}, 4)


@pytest.mark.slow
def test_shares_are_an_axis_of_sweeps_beside_defences() -> None:
    clock = afl.clock.free_running(concurrency=6, buffer=5, durations=PLACES)
    sim = attacked(attack.sign_flip(clients=0.0), server=afl.server.fedbuff(), clock=clock)
    axes = {"attack.clients": [0.0, 0.4], "server.aggregate": [None, afl.aggregate.median()]}
    swept = afl.sweep(sim, axes, 4, seed=3)
    assert swept.attacker.sel({"server.aggregate": "None"}).sum("population").values.tolist() == [0, 2]
    one = dataclasses.replace(
        sim, attack=attack.sign_flip(clients=0.4), server=afl.server.fedbuff(aggregate=afl.aggregate.median())
    )
    np.testing.assert_allclose(swept.loss[1, 1], one.run(4, seed=3).loss, rtol=1e-6)


class misspelled(attack.Attack):
    def forged(self, delta: Any, sent: Any) -> Any:
        return -delta


class unknowing(attack.Attack):
    knowledge = "deliverd"

    def collude(self, deltas: Any, honest: Any, attackers: Any) -> Any:
        return -(honest @ deltas)


class beyond(attack.Attack):
    def label(self, y: Any) -> Any:
        return y + 1


class opposing(attack.Attack):
    """`ipm(1.0)`, without another word."""

    def collude(self, deltas: Any, honest: Any, attackers: Any) -> Any:
        return -(honest @ deltas) / jnp.maximum(honest.sum(), 1)


def test_an_attack_with_collude_colludes() -> None:
    assert opposing.colludes and attack.alie.colludes and not attack.sign_flip.colludes
    deltas, client, times = {"w": jnp.array([[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]])}, jnp.array([0, 2, 1]), jnp.ones(3)
    found = [
        one.prepare(3, None, 0).received(deltas, client, times, None)[0]["w"]
        for one in (opposing(clients=[1]), attack.ipm(1.0, clients=[1]))
    ]
    np.testing.assert_allclose(found, [[[1, 2], [3, 4], [-2, -3]]] * 2)


def test_a_forged_update_is_as_large_as_an_honest_one() -> None:
    class mine(attack.Attack):
        def forge(self, delta: Any, sent: Any) -> Any:
            return delta[:2]

    with pytest.raises(ValueError, match=r"`forge` of the attack mine must return float32\[3\], as it was given"):
        mine(clients=[1]).sent({"w": jnp.ones(3)}, SENT)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *((attack.sign_flip(clients=who), "clients") for who in (1.5, 1, [6], [1, 1], [0.5, 1], [True], 0.05)),
        (attack.gaussian(-1.0, clients=0.5), "std"),
        ("sign_flip", "attack"),
        (attack.sign_flip, "attack"),
        (misspelled(clients=0.5), r"misspelled.*forge\(delta, sent\)"),
        (unknowing(clients=0.5), "knowledge"),
    ],
)
def test_an_attack_that_cannot_be_is_an_error_before_compilation(given: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        attacked(given).run(2)


def test_attacks_without_effect_and_diagnostics_that_they_break_are_refused() -> None:
    with pytest.raises(ValueError, match="brings one arrival per step"):
        attacked(attack.alie(clients=0.5), clock=afl.clock.free_running(concurrency=2, durations=PLACES)).check()
    with pytest.raises(ValueError, match="no classes"):
        attack.label_flip(clients=0.5).check(2, None, 1)  # of a regression
    with pytest.raises(ValueError, match=r"`label` of the attack beyond turns the labels 0 .. 1 into \[1, 2\]"):
        beyond(clients=0.5).check(6, 2, 1)
    with pytest.raises(ValueError, match="an attack changes Δ"):
        attacked(attack.sign_flip(clients=0.5)).run(2, diagnostics="local_accuracy")


@pytest.mark.slow
def test_reports_and_files_keep_the_attack(tmp_path: Any) -> None:
    result = attacked(attack.sign_flip(clients=[0, 2]), server=still()).run(2, save=str(tmp_path / "one.nc"))
    assert '"name": "sign_flip"' in afl.load(tmp_path / "one.nc").attrs["attack"]
    assert "RSA" in result.citation
    afl.plot.report({"one": result}, tmp_path / "one.html")
    assert '<th scope="row">attack</th><td>sign_flip</td>' in (tmp_path / "one.html").read_text()
