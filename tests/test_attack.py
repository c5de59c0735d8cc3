"""Attacks: what the server receives from attackers, who they are, and what cannot be."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import jaxafl as afl
from jaxafl import attack
from jaxafl.client.attack.colluding import supporters_z
from jaxafl.client.upload import Sent
from jaxafl.data import from_arrays
from tests.test_upload import STEPS, simulation, still, vectors, waiting

PLACES = afl.clock.uniform(1, 3)
WHO = [1, 4]


def attacked(given: Any, *parts: Any, **options: Any) -> afl.Simulation:
    return dataclasses.replace(simulation(*parts, **options), attack=given)


def of_attackers(result: Any) -> np.ndarray:
    return np.isin(result.client_id.values, WHO)


@pytest.fixture(scope="module")
def honest() -> Any:
    return simulation().run(STEPS, seed=3)


@pytest.mark.parametrize(
    ("given", "factor"),
    [
        (attack.sign_flip(2.0, clients=WHO), -2),
        pytest.param(attack.scaled(5.0, clients=WHO), 5, marks=pytest.mark.slow),
    ],
    ids=["sign_flip", "scaled"],
)
def test_attackers_send_multiples_of_their_updates(given: Any, factor: float, honest: Any) -> None:
    result = attacked(given).run(STEPS, seed=3)
    expected = np.where(of_attackers(honest)[..., None], factor, 1) * vectors(honest)
    np.testing.assert_allclose(vectors(result), expected, rtol=1e-6)
    np.testing.assert_allclose(result.delta_norm, np.linalg.norm(expected, axis=-1), rtol=1e-6)
    np.testing.assert_allclose(result.computed_delta_norm, honest.delta_norm, rtol=1e-6)
    assert "computed_delta_norm" not in honest
    assert result.attacker.values.nonzero()[0].tolist() == WHO


@pytest.mark.slow
def test_an_attack_comes_after_the_upload_whatever_the_lanes_and_takings() -> None:
    clip = afl.upload.clip_by_global_norm(0.1)
    given = attack.gaussian(2.0, added=True, clients=WHO)
    clipped = simulation(clip).run(STEPS, seed=3)
    first = attacked(given, clip).run(STEPS, seed=3)
    added = vectors(first) - vectors(clipped)
    np.testing.assert_allclose(added[~of_attackers(first)], 0, atol=1e-7)
    assert np.std(added[of_attackers(first)]) == pytest.approx(2, rel=0.4)
    np.testing.assert_allclose(vectors(attacked(given, clip).run(STEPS, seed=3, lanes=4)), vectors(first), rtol=1e-6)
    np.testing.assert_allclose(vectors(attacked(given, clip, waiting()).run(STEPS, seed=3)), vectors(first), rtol=1e-5)
    again = attacked(given, clip, clock=afl.clock.bernoulli(1.0, 0.3)).run(STEPS, seed=3)
    runs = again.run_index.values
    same = (runs[1:] == runs[:-1]) & (runs[1:] >= 0) & of_attackers(again)[1:]
    assert same.any()
    np.testing.assert_array_equal(vectors(again)[1:][same], vectors(again)[:-1][same])


def test_forged_vectors_have_the_moments_of_the_formulas() -> None:
    v = jnp.asarray([3.0, 4.0, 0.0, 0.0])

    def draws(given: Any, seed: int = 0) -> np.ndarray:
        part = dataclasses.replace(given.prepare(3, 10, seed), clients=jnp.bool_(True))
        keys = jax.vmap(jax.random.key)(jnp.arange(3000))
        zero = jnp.int32(0)
        return np.asarray(jax.vmap(lambda key: part.sent(v, Sent(zero, zero, zero, zero, key)))(keys))

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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alie", "ipm"])
def test_colluding_attackers_see_the_honest_arrivals_of_their_step(name: str) -> None:
    clock = afl.clock.free_running(concurrency=6, buffer=5, durations=PLACES)
    given = attack.alie(clients=WHO) if name == "alie" else attack.ipm(0.5, clients=WHO)
    plain = simulation(clock=clock).run(STEPS, seed=3)
    result = attacked(given, clock=clock).run(STEPS, seed=3)
    numbers = set()
    for before, after, lies in zip(vectors(plain), vectors(result), of_attackers(plain), strict=True):
        seen, count = before[~lies].astype(float), int(lies.sum())
        numbers.add(count)
        supporters = max(5 // 2 + 1 - count, 1)
        z = norm.ppf((5 - count - supporters) / (5 - count))
        forged = seen.mean(0) - z * seen.std(0, ddof=1) if name == "alie" else -0.5 * seen.mean(0)
        np.testing.assert_allclose(after, np.where(lies[:, None], forged, before), rtol=2e-5, atol=1e-6)
    assert {1, 2} <= numbers


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alie", "ipm"])
@pytest.mark.parametrize("clock", ["single", "buffer", "windows"])
def test_colluding_attackers_know_what_was_delivered(name: str, clock: str, tmp_path: Any) -> None:
    how: dict[str, Any] = dict(single={}, buffer={"buffer": 5}, windows={"period": 1.0})[clock]
    protocol = afl.clock.free_running(concurrency=6, durations=PLACES, **how)
    who: dict[str, Any] = dict(knowledge="delivered", clients=WHO)
    given = attack.alie(**who) if name == "alie" else attack.ipm(0.5, **who)
    plain = simulation(clock=protocol).run(STEPS, seed=3)
    result = attacked(given, clock=protocol).run(STEPS, seed=3)
    rows: dict[int, np.ndarray] = {}
    lied = 0
    for before, after, clients in zip(vectors(plain), vectors(result), plain.client_id.values, strict=True):
        real = np.flatnonzero(clients >= 0)
        rows |= {int(clients[place]): before[place].astype(float) for place in real if clients[place] not in WHO}
        for place in real:
            expected = before[place]
            if clients[place] in WHO and rows:
                seen, n = np.stack([*rows.values()]), len(rows) + 2
                supporters = max(n // 2 + 1 - 2, 1)
                z = norm.ppf(np.clip((len(rows) - supporters) / len(rows), 1e-6, 1 - 1e-6))
                sd = seen.std(0, ddof=1) if len(rows) > 1 else 0
                expected = seen.mean(0) - z * sd if name == "alie" else -0.5 * seen.mean(0)
                lied += 1
            np.testing.assert_allclose(after[place], expected, rtol=2e-5, atol=2e-6)
    assert lied > 1
    for lanes in (1, 4):
        again = attacked(given, clock=protocol).run(STEPS, seed=3, lanes=lanes)
        np.testing.assert_allclose(vectors(again), vectors(result), rtol=1e-5, atol=1e-6)
    many = afl.sweep(attacked(given, clock=protocol), {"seed": [5, 3]}, STEPS)
    np.testing.assert_allclose(many.delta_norm.sel(seed=3), result.delta_norm, rtol=1e-5, atol=1e-6)
    attacked(given, clock=protocol).run(3, seed=3, folder=tmp_path)
    kept = attacked(given, clock=protocol).run(STEPS, seed=3, folder=tmp_path)
    np.testing.assert_array_equal(kept.delta_norm, result.delta_norm)


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


@pytest.mark.slow
def test_a_checkpoint_belongs_to_its_attack(tmp_path: Any) -> None:
    attacked(attack.sign_flip(clients=WHO)).run(4, folder=tmp_path)
    with pytest.raises(ValueError, match="attack"):
        attacked(attack.sign_flip(clients=[1])).run(6, folder=tmp_path)
    with pytest.raises(ValueError, match="attack"):
        simulation().run(6, folder=tmp_path)


@pytest.mark.slow
def test_kardam_rejects_forged_arrivals_more_often() -> None:
    clock = afl.clock.free_running(concurrency=6, durations=PLACES)
    server = afl.server.kardam(0.2)
    found = attacked(attack.random_vector(20.0, clients=[2]), server=server, clock=clock).run(200, seed=1)
    lies = found.client_id.values[:, 0] == 2
    rejected = found.rejected.values.astype(bool)
    assert found.attrs["count_rejected"] == rejected.sum()
    assert rejected[lies].mean() > 0.5 > 0.4 > rejected[~lies].mean()  # with quantile 2/3, a third of the honest


class misspelled(attack.Attack):
    def forged(self, delta: Any, sent: Any) -> Any:
        return -delta


class unknowing(attack.Attack):
    knowledge = "deliverd"

    def collude(self, deltas: Any, honest: Any, attackers: Any) -> Any:
        return -(honest @ deltas)


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


@pytest.mark.parametrize("returned", [lambda delta: delta[:2], lambda delta: delta.sum(), lambda delta: None])
def test_a_forged_update_is_as_large_as_an_honest_one(returned: Any) -> None:
    class mine(attack.Attack):
        def forge(self, delta: Any, sent: Any) -> Any:
            return returned(delta)

    none = jnp.int32(0)
    with pytest.raises(ValueError, match=r"`forge` of the attack mine must return float32\[3\], as it was given"):
        mine(clients=[1]).sent({"w": jnp.ones(3)}, Sent(none, none, none, none, jax.random.key(0)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *(
            (attack.sign_flip(clients=who), "clients=.* names no attackers among 6 clients")
            for who in (1.5, 1, True, [6], list(range(7)), [1, 1], [0.5, 1], [True], 0.05)
        ),
        (attack.gaussian(-1.0, clients=0.5), "std must be >= 0"),
        (misspelled(clients=0.5), r"misspelled has none of the methods forge\(delta, sent\)"),
        (unknowing(clients=0.5), "knowledge must be one of 'step', 'delivered', got 'deliverd'; did you mean"),
    ],
)
def test_an_attack_that_cannot_be_is_an_error_before_compilation(given: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        attacked(given).check()


class lost(attack.sign_flip):
    def prepare(self, num_clients: int, num_classes: int | None, seed: int) -> Any:
        super().prepare(num_clients, num_classes, seed)


def test_attacks_without_effect_and_diagnostics_that_they_break_are_refused() -> None:
    with pytest.raises(ValueError, match="`prepare` of the attack lost must return the attack, got None"):
        attacked(lost(clients=0.5)).run(2)
    with pytest.raises(ValueError, match="brings one arrival per step"):
        attacked(attack.alie(clients=0.5), clock=afl.clock.free_running(concurrency=2, durations=PLACES)).check()
    regression = from_arrays(
        np.ones((4, 1), np.float32), np.ones(4, np.float32), [0, 0, 1, 1], x_test=np.ones((1, 1)), y_test=np.ones(1)
    )
    with pytest.raises(ValueError, match="no classes"):
        attack.label_flip(clients=0.5).check(2, regression.num_classes, 1)
    with pytest.raises(ValueError, match="an attack changes Δ"):
        attacked(attack.sign_flip(clients=0.5)).run(2, diagnostics="local_accuracy")


@pytest.mark.slow
@pytest.mark.parametrize("clients", [0.5, [0, 2]])
def test_reports_and_files_keep_the_attack(clients: Any, tmp_path: Any) -> None:
    result = attacked(attack.sign_flip(clients=clients), server=still()).run(2, save=str(tmp_path / "one.nc"))
    assert '"name": "sign_flip"' in afl.load(tmp_path / "one.nc").attrs["attack"]
    assert "RSA" in result.citation
    afl.plot.report({"one": result}, tmp_path / "one.html")
    assert "attack=afl.attack.sign_flip(clients=" in (tmp_path / "one.html").read_text()
