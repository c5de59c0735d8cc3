"""Privacy of clients against closed forms, a slow count of participations, published numbers, and dp-accounting."""

from __future__ import annotations

import collections
import dataclasses
import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

import jaxafl as afl
from jaxafl import upload
from jaxafl.clock.accounts.contract import Mechanism
from jaxafl.server import Outcome, Server
from tests.problems import Normalised, classifier, descent, quadratic
from tests.variants import slow_but

DELTA = 1e-5
NOISY = upload.chain(upload.clip_by_global_norm(0.5), upload.add_noise(2.0))


def gaussian(mu: float, delta: float = DELTA) -> float:
    """ε of the analytic Gaussian mechanism, by another solver."""

    def excess(epsilon: float) -> float:
        return norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - delta

    return brentq(excess, 0, 100, xtol=1e-12) if mu and excess(0) > 0 else 0.0


def simulation(part: Any = NOISY, server: Any = None, clock: Any = None, **options: Any) -> afl.Simulation:
    client = {"learning_rate": 0.1, "steps": 2, "batch_size": 1, "upload": part} | options
    clock = clock or afl.clock.free_running(concurrency=4, buffer=2, durations=afl.clock.uniform(1, 3))
    return descent(client=afl.Client(**client), server=server or afl.server.fedbuff(), clock=clock)


# clock, N, T, how, z, δ, ε by PLD of pfl 0.6.0 (with dp-accounting 0.6.0)
OTHERS: dict[str, tuple[Any, int, int, Any, float, float, float]] = {
    "all": (afl.clock.synchronous(), 6, 16, "participation", 4.0, 1e-5, 4.377178163381338),
    "free": (
        afl.clock.free_running(concurrency=4, durations=afl.clock.constant([1.0, 2.0, 4.0, 8.0])),
        4, 60, "participation", 6.0, 1e-5, 4.089234426571574,
    ),
    "a tenth": (afl.clock.synchronous(cohort=10), 100, 200, "sampled", 2.0, 1e-6, 3.805876176822905),
    "one": (afl.clock.synchronous(cohort=1), 100, 1000, "sampled", 1.0, 1e-5, 1.828243645591767),
    "buffers": (
        afl.clock.free_running(concurrency=8, buffer=2, durations=afl.clock.uniform(1, 3)),
        8, 50, "sampled", 3.0, 1e-5, 2.627883144816718,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", slow_but(OTHERS, "all"))
def test_epsilons_are_those_of_pfl(name: str) -> None:
    clock, clients, steps, how, z, delta, of_pfl = OTHERS[name]
    schedule = afl.clock.schedule(clock, clients, local_steps=1, server_steps=steps)
    if how == "sampled":
        pytest.importorskip("dp_accounting")
    assert schedule.privacy(z, delta=delta, how=how).max_epsilon[-1].item() == pytest.approx(of_pfl, rel=1e-6)


CLOCKS = {
    "free running": afl.clock.free_running(concurrency=4, buffer=3, durations=afl.clock.uniform(1, 9)),
    "with multiplicity": afl.clock.sampled(drawn=3, durations=afl.clock.uniform(1, 3)),
    "taken again": afl.clock.bernoulli(0.8, 0.3),
}


@pytest.mark.parametrize("name", slow_but(CLOCKS, "with multiplicity"))
def test_sensitivities_are_those_of_a_slow_count(name: str) -> None:
    clients, steps, z = 6, 13, 4.0
    schedule = afl.clock.schedule(CLOCKS[name], clients, local_steps=1, server_steps=steps)
    arrivals = [
        [(c, r, m) for c, r, m, one in zip(*row, strict=True) if one]
        for row in zip(schedule.client, schedule.run, schedule.multiplicity, schedule.mask, strict=True)
    ]
    times = np.zeros((steps, clients))
    for step, row in enumerate(arrivals):
        for c, _, m in row:
            times[step, c] += m
    largest = [max((times[: step + 1] ** 2).sum(0)) for step in range(steps)]
    found = schedule.privacy(z, delta=DELTA)
    np.testing.assert_allclose(found.sensitivity, np.sqrt((times**2).sum(0)) / z)
    np.testing.assert_allclose(found.max_epsilon, [gaussian(np.sqrt(s) / z) for s in largest], rtol=1e-9)
    np.testing.assert_allclose(found.epsilon, [gaussian(s) for s in found.sensitivity.values], rtol=1e-9)
    tree = np.zeros((steps, clients))
    for length in (1, 2, 4, 8):
        for end in range(length, steps + 1, length):
            tree[end - 1] += times[end - length : end].sum(0) ** 2
    found = schedule.privacy(z, delta=DELTA, how="tree")
    np.testing.assert_allclose(found.sensitivity, np.sqrt(tree.sum(0)) / z)
    worst = tree.cumsum(0).max(1)
    np.testing.assert_allclose(found.max_epsilon, [gaussian(np.sqrt(s) / z) for s in worst], rtol=1e-9)
    sent: dict[int, set[int]] = collections.defaultdict(set)
    for row in arrivals:
        for c, r, _ in row:
            sent[c].add(r)
    at_clients = dataclasses.replace(schedule, mechanism=lambda: Mechanism(at="client"))
    found = at_clients.privacy(np.linspace(1, 2, clients), delta=DELTA)
    runs = np.array([len(sent[client]) for client in range(clients)])
    np.testing.assert_allclose(found.sensitivity, np.sqrt(runs) / np.linspace(1, 2, clients))
    assert found.max_epsilon[-1] == pytest.approx(found.epsilon.max())


def test_kept_updates_are_released_in_every_step_after_the_first_arrival() -> None:
    schedule = simulation(None, afl.server.mifa(), afl.clock.bernoulli(0.3)).schedule(20)
    first = [int(np.argmax((schedule.mask & (schedule.client == c)).any(1))) for c in range(schedule.num_clients)]
    found = schedule.privacy(4.0, delta=DELTA)
    np.testing.assert_allclose(found.sensitivity, np.sqrt(20 - np.array(first)) / 4)
    assert found.max_epsilon[-1] == pytest.approx(gaussian(np.sqrt(20 - min(first)) / 4))


@pytest.mark.slow
def test_a_result_has_the_privacy_of_its_schedule_and_ends_at_an_epsilon(tmp_path: Any) -> None:
    sim = simulation()
    ahead = sim.schedule(12, seed=3).privacy(delta=DELTA)
    assert (ahead.noise_multiplier, ahead.noise) == (4.0, "at the client")
    result = sim.run(12, seed=3)
    afl.save(result, tmp_path / "r.nc")
    for one in (result, afl.load(tmp_path / "r.nc")):
        assert one.privacy(delta=DELTA).identical(ahead)
    curve = ahead.max_epsilon.values
    limit = (curve[5] + curve[curve > curve[5]].min()) / 2
    ended = sim.run(until={"epsilon": limit, "delta": DELTA}, seed=3)
    assert ended.sizes["step"] == (curve <= limit).sum()
    assert ended.privacy(delta=DELTA).max_epsilon[-1] <= limit
    assert ended.attrs["stopped"] == f"until epsilon {limit:g}"


@pytest.mark.slow
def test_sweeps_plots_and_reports_have_the_privacy_of_each_run(tmp_path: Any) -> None:
    sim = simulation()
    ahead = sim.schedule(12, seed=3).privacy(delta=DELTA)
    limit = float(ahead.max_epsilon[8])
    path = "client.upload.add_noise.std"
    swept = afl.sweep(sim, {path: [2.0, 3.0]}, until={"epsilon": limit, "delta": DELTA}, seed=3)
    steps = [int(np.isfinite(swept.time.sel({path: std})).sum()) for std in (2.0, 3.0)]
    assert steps[0] < steps[1]
    for std in (2.0, 3.0):
        assert swept.sel({path: std}).privacy(delta=DELTA).max_epsilon[-1] <= limit
    result = sim.run(12, seed=3)
    figure = afl.plot.epsilon_vs_time({"ahead": ahead, "run": result.privacy(delta=DELTA)}, path=tmp_path / "e.png")
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_ydata(), ahead.max_epsilon)
    with pytest.raises(ValueError, match="δ differs"):
        afl.plot.epsilon_vs_time({"a": ahead, "b": sim.schedule(3).privacy(delta=1e-6)})
    text = afl.plot.report(result, tmp_path / "r.html").read_text()
    assert f"{ahead.max_epsilon[-1].item():,.4g}" in text and "and not private" in text
    with pytest.raises(ValueError, match=r"ended by .*, which may depend on data"):
        sim.run(12, until={"loss": 1e9}, eval_every=1).privacy(delta=DELTA)
    with pytest.raises(ValueError, match="the run had no noise"):
        simulation(None).run(2).privacy(delta=DELTA)
    with pytest.raises(ValueError, match="choose one by"):
        swept.privacy(delta=DELTA)


PER_STEP = afl.clock.uniform(1, 3, per="step")


TWO_EPOCHS = {"steps": None, "epochs": 2}


def running(**options: Any) -> afl.clock.Clock:
    return afl.clock.free_running(**{"concurrency": 4, "buffer": 2, "durations": afl.clock.uniform(1, 3)} | options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("clock", "options", "refused"),
    [
        (running(durations=PER_STEP), {}, ""),
        (running(durations=PER_STEP), {"batch_size": None} | TWO_EPOCHS, ""),  # one step per epoch
        (running(), TWO_EPOCHS, ""),
        (running(durations=1 + PER_STEP), TWO_EPOCHS, "epochs"),
        (running(durations=PER_STEP + afl.clock.link(up=1e3)), TWO_EPOCHS, "local steps"),
        (running(select="samples"), {}, "sample counts"),
        (running(weights=quadratic().data.counts / 7), {}, "sample counts"),
        (running(weights=np.arange(1, 7.0)), {}, ""),
        (running(select=afl.clock.by_weight(quadratic().data.counts)), {}, "sample counts"),
        (afl.clock.bernoulli(upload=quadratic().data.counts / 7), {}, "sample counts"),
        (afl.clock.synchronous(durations=PER_STEP), TWO_EPOCHS, "or their times depend"),
        (afl.clock.warm_up(afl.clock.synchronous(cohort=2, select="samples")), {}, "draws clients by"),
    ],
)
def test_participations_that_depend_on_sample_counts_have_no_epsilon(clock: Any, options: Any, refused: str) -> None:
    sim = simulation(None, clock=clock, **options)
    if not refused:
        assert sim.schedule(3).privacy(1.0, delta=DELTA).max_epsilon[-1] > 0
        return
    with pytest.raises(ValueError, match=refused):
        sim.schedule(3).privacy(1.0, delta=DELTA)
    with pytest.raises(ValueError, match=refused):
        sim.run(until={"epsilon": 3, "delta": DELTA})


def test_a_sum_of_noisy_updates_costs_nothing_more() -> None:
    corrected, plain = (simulation(correction=one).schedule(3) for one in (afl.correction.feddyn(0.1), None))
    np.testing.assert_array_equal(corrected.privacy(delta=DELTA).epsilon, plain.privacy(delta=DELTA).epsilon)


class by_samples(afl.correction.feddyn):
    """FedDyn with a sum that is weighted by sample counts."""

    def serve(self, shared: Any, params: Any, messages: Any, arrivals: Any, num_clients: int) -> Any:
        weighted = jnp.tensordot(arrivals.samples, arrivals.delta["w"], 1)
        return {"w": shared["w"] - weighted}, params


class by_loss(Server):
    """Weighs updates by their losses."""

    def update(self, params: Any, state: Any, arrivals: Any) -> Outcome:
        step = jnp.sum(arrivals.loss[:, None] * arrivals.delta["w"], 0)
        return Outcome({"w": params["w"] + step}, state, {})


class louder(afl.server.fedbuff):
    """Weighs updates five times."""

    def discounted(self, arrivals: Any, weights: Any) -> Any:
        return 5 * weights


class times_samples(upload.Upload):
    def apply(self, delta: Any, sent: Any) -> Any:
        return jax.tree.map(lambda leaf: sent.samples * leaf, delta)


def held_out() -> afl.Simulation:
    sim = simulation(server=afl.server.zeno(), clock=running(buffer=1), steps=1, learning_rate=1.0)
    return dataclasses.replace(sim, data=sim.data.with_validation(0.4))


ONE: dict[str, Any] = {"delta": DELTA, "noise_multiplier": 1.0}
MIFA = afl.server.mifa(), afl.clock.bernoulli(0.3)
BASGD = afl.server.basgd(aggregate=None), afl.clock.every_buffer(durations=afl.clock.uniform(1, 3))
FAVANO = afl.server.favano(), afl.clock.interrupting(period=1.0, contacted=2, durations=afl.clock.uniform(1, 3))
LOSES = afl.clock.free_running(4, durations=afl.clock.uniform(1, 3), lost=0.5)
CLIP = upload.clip_by_global_norm(1.0)
PLATEAU = optax.chain(optax.contrib.reduce_on_plateau(patience=4), optax.sgd(0.5))
# simulation, arguments of `privacy`, what the message names
REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (simulation, {"delta": 1.0}, "delta"),
    (simulation, {"delta": DELTA, "noise_multiplier": 2.0}, "4.0"),
    (lambda: simulation(upload.chain(NOISY, times_samples())), {"delta": DELTA}, "noise"),
    (lambda: simulation(upload.chain(NOISY, t=optax.trace(0.9)), clock=LOSES), {"delta": DELTA}, "memory"),
    (simulation, {"delta": DELTA, "how": "sampled"}, "every client adds its noise"),
    (lambda: simulation(None), {"delta": DELTA}, "no noise"),
    (lambda: simulation(upload.add_noise(1.0)), {"delta": DELTA}, "clipping norm"),
    (lambda: simulation(None), {"delta": DELTA, "noise_multiplier": 0.0}, "noise_multiplier"),
    (lambda: simulation(upload.chain(CLIP, upload.add_noise(0.0))), {"delta": DELTA}, "deviation"),
    (lambda: simulation(None, *MIFA), ONE | {"how": "tree"}, "last update"),
    (lambda: simulation(None, afl.server.fedbuff(weights="samples")), ONE, "sample counts"),
    (lambda: simulation(None, correction=afl.correction.scaffold()), ONE, "without noise"),
    (lambda: dataclasses.replace(simulation(None), attack=afl.attack.ipm(clients=0.2)), ONE, "honest updates"),
    (lambda: simulation(None, afl.server.fedbuff(reduce="sum")), ONE, "1 / M"),
    (lambda: simulation(None, afl.server.fedbuff(aggregate=afl.aggregate.median())), ONE, "median"),
    (lambda: simulation(None, *BASGD), ONE, "basgd"),
    (lambda: simulation(None, *FAVANO), ONE, "favano"),  # it weighs some updates more than 1 / M
    (lambda: simulation(None, afl.server.fedasync()), ONE, "fedasync"),
    (lambda: simulation(None, by_loss()), ONE, "by_loss|losses"),
    (lambda: simulation(None, louder()), ONE, "louder may combine"),
    (lambda: simulation(server=afl.server.fedopt(optax.polyak_sgd())), {"delta": DELTA}, "losses"),
    (lambda: simulation(server=afl.server.fedopt(PLATEAU)), {"delta": DELTA}, "losses"),
    (lambda: simulation(None, afl.server.ca2fl()), ONE, "ca2fl may combine updates, or kept"),
    (lambda: simulation(None, correction=afl.correction.feddyn(0.1)), ONE, "feddyn"),
    (lambda: simulation(correction=by_samples(0.1)), {"delta": DELTA}, "by_samples"),
    (lambda: classifier(model=afl.models.from_linen(Normalised())), ONE, r"batch statistics\) without noise"),
    (held_out, {"delta": DELTA}, "zeno computes gradients on the validation set"),
]


@pytest.mark.parametrize(("what", "given", "words"), REFUSED)
def test_what_cannot_be_claimed_is_an_error(what: Any, given: Any, words: str) -> None:
    schedule = what().schedule(3)
    with pytest.raises(ValueError, match=words):
        schedule.privacy(**given)


@pytest.mark.slow
def test_clocks_without_draws_are_labelled_optimistic_and_other_noise_is_read() -> None:
    schedule = simulation(None).schedule(3)
    if importlib.util.find_spec("dp_accounting"):
        assert "optimistic" in schedule.privacy(1.0, delta=DELTA, how="sampled").assumes
    sparse = upload.chain(
        upload.clip_by_global_norm(1.0), upload.top_k(count=2), upload.add_noise(3.0), upload.qsgd(levels=4)
    )
    assert simulation(sparse).mechanism().noise_multiplier == 3.0
    private = simulation(None, afl.server.fedbuff(aggregate=afl.aggregate.private_mean(1.0, 2.0)))
    assert (private.mechanism().noise_multiplier, private.mechanism().at) == (2.0, "server")
    found = private.schedule(5).privacy(delta=DELTA)
    np.testing.assert_array_equal(found.epsilon, simulation(None).schedule(5).privacy(2.0, delta=DELTA).epsilon)
    with pytest.raises(ValueError, match="adds independent noise in every step"):
        private.schedule(5).privacy(delta=DELTA, how="tree")
    after = upload.chain(upload.clip_by_global_norm(1.0), upload.qsgd(levels=4), upload.add_noise(3.0))
    assert simulation(after).mechanism().noise_multiplier is None
    assert simulation(upload.chain(NOISY, t=optax.trace(0.9))).mechanism().noise_multiplier == 4.0  # nothing is lost


def test_limits_of_epsilon_are_checked() -> None:
    for until, message in (
        ({"epsilon": 3}, "delta"),
        ({"epsilon": 1e-3, "delta": DELTA}, "the first server step exceeds it"),
        ({"epsilon": 3, "delta": DELTA, "accuracy": 0.5}, "a metric"),
    ):
        with pytest.raises(ValueError, match=message):
            simulation().run(until=until)
    with pytest.raises(ValueError, match="replies with local steps"):
        simulation(None, afl.server.asyncfeded(), running(buffer=1)).run(until={"epsilon": 3, "delta": DELTA})
