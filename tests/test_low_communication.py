"""DiLoCo's family: lasting state of clients, Delayed Nesterov, grace windows and open slots, with values by hand."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl.clock import (
    after,
    available,
    constant,
    free_running,
    grace,
    interrupting,
    link,
    mac_network,
    open_slots,
    sampled,
    schedule,
    stop,
    synchronous,
    tiers,
)
from tests.problems import classifier, observe_w, points
from tests.server.test_by_hand import centred

INF = np.inf


def quadratics(centres, start, client, server, clock):
    problem = centred(centres, start)
    return afl.Simulation(problem.data, problem.model, client, server, clock)


def versions(steps, *parts):
    with jax.enable_x64(True):
        return quadratics(*parts).run(steps, observe=observe_w).observe_w.values[1:, 0]


def local(optimizer, rate, steps, reset="never", **more):
    return afl.Client(optimizer, learning_rate=rate, steps=steps, batch_size=None, reset=reset, **more)


def timed(*seconds, **how):
    return free_running(len(seconds), durations=constant(np.array(seconds)), **how)


PLAIN = afl.server.fedopt(optax.sgd, learning_rate=1.0, staleness="none")
EAGER = afl.server.delayed_nesterov(activation=0.6)
NOISE = afl.upload.clip_by_global_norm(1.0), afl.upload.add_noise(2.0)
INJECTED = optax.inject_hyperparams(optax.sgd)
OUTER = afl.presets.diloco(constant(1.0))


@pytest.mark.parametrize(
    ("centres", "start", "client", "expected"),
    [
        ((3,), 0, local(optax.adam, 0.1, 2), [0.1998972922, 0.3990864683, 0.5969363916, 0.7927588092]),
        ((0,), 1, local(optax.sgd, 0.1, 1, momentum=0.5), [0.9, 0.76, 0.614, 0.4796]),
        ((0,), 1, local(optax.sgd, 0.1, 1, "run", momentum=0.5), [0.9, 0.81, 0.729, 0.6561]),
    ],
)
def test_the_state_of_an_optimiser_lasts(centres, start, client, expected):
    np.testing.assert_allclose(versions(4, centres, start, client, PLAIN, synchronous()), expected, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "client",
    [
        dict(optimizer=optax.adamw, learning_rate=optax.cosine_decay_schedule(0.1, 12)),
        dict(optimizer=optax.contrib.muon, learning_rate=0.05),
        dict(optimizer=optax.sgd, learning_rate=0.05, momentum=0.9, nesterov=True),
    ],
)
def test_short_runs_in_turn_are_one_long_run(client):
    model = afl.models.from_linen(nn.Sequential([nn.Dense(4), nn.relu, nn.Dense(10)]))
    trained = []
    for steps, server_steps in ((3, 4), (12, 1)):
        one = afl.Client(**client, steps=steps, batch_size=None, reset="never")
        trained.append(afl.Simulation(points(1), model, one, PLAIN, synchronous()).train(server_steps).params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), *trained)


def test_diloco():
    first = versions(3, (0, 2), 0, local(optax.sgd, 0.5, 1), *OUTER)
    np.testing.assert_allclose(first, [0.665, 1.171275, 1.407499625], rtol=1e-12)
    kept = versions(4, (1, -1, 4), 0, local(optax.adam, 0.1, 2), *OUTER)
    np.testing.assert_allclose(kept, [0.0886338621, 0.2142964997, 0.3716194633, 0.5545363638], rtol=1e-8)


@pytest.mark.slow
def test_diloco_and_delayed_nesterov_with_states_that_last_and_not():
    adam = (1, -1, 4), 0
    fresh = versions(4, *adam, local(optax.adam, 0.1, 2, "run"), *OUTER)
    np.testing.assert_allclose(fresh, [0.0886338621, 0.2150068787, 0.3752928638, 0.5660047440], rtol=1e-8)
    late = afl.server.delayed_nesterov(1.0, 0.5, period=2)
    found = versions(6, (0, 3), 1, local(optax.sgd, 0.5, 1), late, timed(1.0, 2.5))
    expected = [0.75, 0.34375, 0.84375, 0.85546875, 0.6416015625, 0.342895507812]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    late = afl.server.delayed_nesterov(2.1, 0.9, period=3)
    for reset, last in (("never", 1.0408041596), ("run", 1.1158974843)):
        found = versions(9, *adam, local(optax.adam, 0.1, 2, reset), late, timed(1.0, 1.7, 2.9))
        assert found[-1] == pytest.approx(last, rel=1e-9)
    some, scheduled = (dataclasses.replace(late, activation=c) for c in (0.2, lambda step: jnp.where(step < 4, 0.2, 0)))
    both = [versions(9, *adam, local(optax.adam, 0.1, 2), server, timed(1.0, 1.7, 2.9)) for server in (some, scheduled)]
    assert (both[0][:4] == both[1][:4]).all() and (both[0][4:] != both[1][4:]).all()


@pytest.mark.parametrize(("c", "expected"), [(0.0, [0.5, 2.25, 3.75, 7.875]), (0.5, [0.5, 1.875, 3.75, 6.8125])])
def test_delayed_nesterov_by_hand(c, expected):
    server = afl.server.delayed_nesterov(1.0, 0.5, period=2, activation=c)
    optimizer, x = server.optimizer_of(1.0), 0.0
    state = optimizer.init(x)
    for update, after_it in zip((1.0, 2.0, 3.0, 4.0), expected, strict=True):
        step, state = optimizer.update(-update, state)
        x += step
        assert float(x) == pytest.approx(after_it)


@pytest.mark.parametrize(
    ("begins", "arrivals", "expected"),
    [
        (grace(0.5), [1, 1.3, 2.5, 2.7, 2.8, 3.8], [0.5, 1.5, 1.25, 4.25, 4.5, 2.75]),
        (grace(0.5, close="last"), [1, 1.3, 2.3, 2.6, 2.7, 3.7], [0.5, 1.5, 1.25, 1.5, 4.5, 2.75]),
        (grace(0.0), [1, 1.3, 2, 2.6, 2.7, 3], [0.5, 1.5, 1.75, 2, 5, 4.625]),
        (grace(INF), [1, 1.3, 2.7, 3.7, 4, 5.4], [0.5, 1.5, 4.5, 2.75, 1.5, 2.25]),
    ],
)
def test_grace_windows(begins, arrivals, expected):
    found = quadratics((1, 2, 6), 0, local(optax.sgd, 0.5, 1, "run"), PLAIN, timed(1.0, 1.3, 2.7, begins=begins))
    assert found.schedule(6).time.tolist() == pytest.approx(arrivals)
    np.testing.assert_allclose(found.run(6, observe=observe_w).observe_w[1:, 0], expected, rtol=1e-6)


def test_windows_within_hours_lie_between_single_starts_and_rounds():
    how = dict(durations=afl.clock.uniform(2000, 20000), select=afl.clock.within(available(22, 6, start=12)))
    rules = (afl.clock.at_arrival(), grace(0.0), grace(np.inf), open_slots(5))
    single, none, infinite, rounds = (schedule(free_running(5, begins=one, **how), 12, 1, 40) for one in rules)
    for found, wanted in ((none, single), (infinite, rounds)):
        np.testing.assert_array_equal(found.started, wanted.started)
        np.testing.assert_array_equal(found.client, wanted.client)


def test_a_window_does_not_wait_for_runs_that_are_stopped():
    """Clients 1 and 2 are stopped at 1.5, so the arrival of client 0 is the last of the window from 1 to 2."""
    clock = timed(1.5, 2.0, 2.0, 1.0, begins=grace(1.0, close="last"), bound=stop(2))
    found = schedule(clock, 4, 1, 6)
    assert found.started[:, 0].tolist() == [0, 0, 1.5, 1.5, 3, 3] and found.client[:, 0].tolist() == [3, 0] * 3


@pytest.mark.parametrize(
    ("slots", "times", "last"),
    [
        (1, [1.7, 2.9, 3.4, 4.3], [(0, 1), (3, 3)]),
        (2, [1.7, 2.9, 3.9, 4.9], [(3, 3), (0, 0)]),
        (3, [1.7, 3.9, 4.6, 5.8], [(0, 0), (2, 2)]),
        (4, [1.7, 4.3, 6.0, 8.6], [(2, 1), (3, 1)]),
    ],
)
def test_open_slots(slots, times, last):
    found = schedule(timed(1.0, 1.7, 2.9, 4.3, closes=after(2), begins=open_slots(slots)), 4, 1, 4, 0)
    assert found.time.tolist() == pytest.approx(times)
    assert [*zip(found.client[-1].tolist(), found.staleness[-1].tolist(), strict=True)] == last


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: schedule(timed(1.0, 2.0, begins=grace(-1.0)), 2, 1, 1), "window"),
        (lambda: schedule(timed(1.0, 2.0, begins=open_slots(3)), 2, 1, 1), "slots"),
        (lambda: afl.presets.halos_regions([0, 1], FOUR, bytes=1e6, bandwidths=[1.0]), "1 bandwidths for 2 regions"),
        (lambda: afl.presets.halos_regions([], FOUR, bytes=1e6), "4 bandwidths for 0 regions"),
        (lambda: tiers(regions=[[0, 1], [1, 2]], durations=FOUR), "regions"),
        (lambda: versions(1, (0, 1), 0, local(optax.sgd, 0.1, 1), EAGER, timed(1.0, 2.0)), "activation"),
        (lambda: halos_run(1, afl.server.halos(), TWO_REGIONS, correction=afl.correction.feddyn(0.1)), "feddyn"),
        (lambda: versions(1, (0, 1), 0, local(optax.contrib.prodigy, 0.1, 1), PLAIN, synchronous()), "reset"),
        (lambda: versions(1, (0, 1), 0, local(INJECTED, np.array([0.1, 0.2]), 1), PLAIN, synchronous()), "reset"),
        (
            lambda: versions(1, (0,) * 3, 0, local(INJECTED, np.array([0.1, 0.2, 0.1]), 1), PLAIN, synchronous()),
            "reset",
        ),
        (lambda: schedule(timed(1.0, 2.0, begins="grace(2)"), 2, 1, 1), "begins"),
        (lambda: afl.presets.fedat_tiers([1.0, np.nan], tiers=2), "times"),
    ],
)
def test_what_cannot_be_is_refused(make, name):
    with pytest.raises((ValueError, TypeError), match=name):
        make()


def test_energy_and_carbon_by_hand():
    found = schedule(synchronous(durations=constant([1.0, 2.5])), 2, 1, 2).energy(10, 2, 1e-6, size=(1e6, 1e6))
    assert found.busy_seconds.values.tolist() == [2, 5] and found.joules.values.tolist() == [30, 54]
    assert schedule(timed(1.0, 2.5), 2, 1, 7).energy(10, 2).busy_seconds.values.tolist() == [5, 5]
    long = schedule(synchronous(durations=constant(7200.0)), 1, 1, 3)
    steps = ((0, 3600), (100, 400))
    assert float(long.energy(1000, intensity=steps, period=7200).grams[0]) == pytest.approx(3 * 500)
    assert float(long.energy(1000, intensity=steps).grams[0]) == pytest.approx(100 + 400 * 5)
    # client 0 works from 1800 to 5400 s, and idles until client 1 ends; 200 W and 50 W
    durations = constant(np.array([3600.0, 7200.0])) * constant(1.0)
    one = schedule(synchronous(durations=durations), 2, 1, 1).energy(
        200, 50, intensity=((0, 1800, 5400), (100, 400, 250))
    )
    assert float(one.grams[0]) == pytest.approx((200 * (0.5 * 100 + 0.5 * 400) + 50 * (0.5 * 400 + 0.5 * 250)) / 1000)
    waits = schedule(timed(1.0, 1.0, 1.0), 3, 1, 4)  # at 2 s two runs have ended that no server step has taken
    assert waits.energy(1).busy_seconds.values.tolist() == [2, 2, 2] and waits.unused.reason.tolist() == ["waiting"] * 2
    queued = schedule(afl.clock.routed(tasks=6, durations=constant(1.0)), 2, 1, 3)  # every task has its model
    assert queued.energy(0, 0, 1.0, size=(0.0, 1.0)).joules.sum() == queued.runs_begun[-1]
    gap = dict(watts=1, intensity=((0, 3, 5), (1, 2)), period=6)
    wrong = [dict(watts=-1), dict(watts=1, intensity=((0, 60), (1,))), dict(watts=1, joule_per_byte=1), gap]
    wrong += [dict(gap, period=np.nan), dict(watts=1, intensity=np.inf)]
    wrong += [dict(watts=1, intensity=((0, end), (1,))) for end in (np.inf, np.nan)]
    for given in wrong:
        with pytest.raises(ValueError, match="energy"):
            long.energy(**given)


def test_energy_of_waits_pauses_shared_links_and_send_buffers():
    hours = available(22, 6, start=12)  # a run that starts at noon works from 22 to 23 o'clock
    one = schedule(free_running(1, durations=constant(3600.0) + hours), 1, 1, 1)
    assert one.energy(1000, intensity=((0, 36000), (400, 100))).grams.item() == pytest.approx(100)
    freeze = mac_network(mflop=0.0, megabytes=250.0, mbits=400.0)  # all clients stop for 10 s at each of 5 steps
    paused = schedule(free_running(2, durations=constant(np.array([1.0, 1000.0])) + freeze), 2, 1, 5)
    assert paused.energy(1).busy_seconds.values.tolist() == [5, 5]
    for shared in (link(up=8.0, bytes=8.0), link(shared=8.0, bytes=8.0)):
        rounds = schedule(synchronous(durations=constant(2.0) + shared), 1, 1, 3)
        assert rounds.energy(1).busy_seconds.item() == 12
    # both download up to 2 s, and upload for 1 s and 1 s; client 1 downloads again while client 0 works
    each = constant(np.array([1.0, 3.0])) + link(shared=8.0, bytes=8.0)
    flying = schedule(free_running(2, durations=each), 2, 1, 2)
    np.testing.assert_allclose(flying.energy(1).busy_seconds, flying.time[-1])
    touched = interrupting(period=4.0, contacted=1, durations=constant(1.0, per="step"))  # clients 1, 0 and 0
    assert schedule(touched, 3, 2, 3).energy(1).busy_seconds.values.tolist() == [4, 4, 2]
    drawn = sampled(drawn=1, durations=constant(np.array([1.0, 10.0])), sets=[[1], [1]])
    assert schedule(drawn, 2, 1, 2).energy(0, 0, 1, size=(8, 0)).joules.values.tolist() == [0, 16]


class seen(afl.server.halos):
    """Records y of every region."""

    def update(self, params, state, arrivals):
        found = super().update(params, state, arrivals)
        models = enumerate(found.state.regions.model["w"][:, 0])
        return found._replace(info={**found.info, **{f"y{i}": y for i, y in models}})


FOUR = constant(np.array([1.0, 1.63, 1.31, 2.17]))
TWO_REGIONS = tiers(regions=[0, 0, 1, 1], durations=FOUR, up=[0.53, 0.77], down=[0.41, 0.69], after=2)
ADDING = dict(learning_rate=1.0, momentum=0.0, period=1, regional_rate=1.0, regional_momentum=0.0, regional_period=1)


def halos_run(steps, server, clock, **client):
    """Returns the result, and x after the updates of regions."""
    with jax.enable_x64(True):
        sim = quadratics((1, 2, 4, 8), 0, local(optax.sgd, 0.5, 1, "run", **client), server, clock)
        result = sim.run(steps, observe=observe_w)
    return result, result.observe_w.values[1:, 0][result.event == 2]


def test_halos_with_plain_addition():
    result, x = halos_run(24, seen(**ADDING), TWO_REGIONS)
    for event, times in ((2, [2.16, 2.94, 3.79, 5.11]), (3, [2.57, 3.63, 4.2])):
        assert result.time.values[result.event == event][: len(times)].tolist() == pytest.approx(times)
        assert result.region.values[result.event == event].tolist()[: len(times)] == [0, 1, 0, 1][: len(times)]
    np.testing.assert_allclose(x[:4], [1.5, 7.5, 7.375, 6.875], rtol=1e-12)
    expected = [0.5, 1.5, 1.75, 1.6875, 1.3125, 1.5625, 1.40625, 2.8984375, 3.1171875, 2.9140625], [2, 6, 7, 7.125]
    for region, models in enumerate((expected[0], [*expected[1], 5.625, 6.625, 5.8125])):
        changes = (result.region == region) & (result.event != 2)
        np.testing.assert_allclose(result[f"y{region}"].values[changes][: len(models)], models, rtol=1e-12)
    clients, staleness = result.client_id.values[:, 0], result.regional_staleness.values
    assert staleness[clients == 1].tolist() == [1, 2, 1] and staleness[clients == 3].tolist() == [1, 2]


def test_halos_with_momentum_at_both_levels():
    result, x = halos_run(40, seen(0.3, 0.5, 2, 0.0, 0.4, 0.9, 2), TWO_REGIONS)
    expected = [0.0855, 0.64125, 0.72099, 1.346175, 1.4202753784, 1.6921743609, 1.9838076997, 2.2585889818]
    np.testing.assert_allclose(x, expected, rtol=1e-9)
    at_nine = int((result.time.values <= 9).sum()) - 1
    models = [float(result[name].values[at_nine]) for name in ("y0", "y1")]
    np.testing.assert_allclose(models, [1.9988907193, 7.2914632124], rtol=1e-9)


def test_halos_in_one_region_without_delays_is_asynchronous_local_sgd():
    _, x = halos_run(21, afl.server.halos(**ADDING, alpha=1.0), tiers(regions=[0] * 4, durations=FOUR, after=1))
    np.testing.assert_allclose(x, [0.5, 2.5, 3.5, 3.75, 7.75, 8.5, 7.125], rtol=1e-12)
    at_once = schedule(tiers(regions=[0, 0, 1, 1], durations=constant(1.0), after=100), 4, 1, 8)
    assert at_once.staleness.ravel().tolist() == [0, 1, 2, 3, 3, 3, 3, 3]  # each restarts from its own server step


X, Y = (1.125 + 4.5) / 2, 1.125 / 2  # by hand


def in_rounds(centres, server, clock, steps):
    """Returns time, and region, event and start version of every server step, and the evaluated models."""
    with jax.enable_x64(True):
        sim = quadratics(centres, 0, local(optax.sgd, 0.5, 1, "run"), server, clock)
        plan, result = sim.schedule(steps), sim.run(steps, observe=observe_w)
    rows = zip(plan.time, plan.region, plan.event, plan.version[:, 0], strict=True)
    listed = ", ".join(f"{time:g} {region}{event}{version}" for time, region, event, version in rows)
    return listed, result.observe_w[1:, 0]


def test_tiers_of_fedat_by_hand():
    """A round takes a tier from x to (x + c) / 2, with the means c = 1.5, 6 and 4 of its clients."""
    preset = afl.presets.fedat_tiers([1, 4, 2, 1.5, 5, 2.5], tiers=3)
    steps, x = in_rounds((1, 3, 4, 2, 5, 8), *preset, 7)
    assert preset.clock.regions == (0, 2, 1, 0, 2, 1)
    assert steps == "1.5 020, 2.5 120, 3 021, 4.5 023, 5 122, 5 220, 6 024"
    # with T = (1, 0, 0) the slowest tier has all the weight, and still the model x_0; with (2, 1, 0) it has 2 / 3
    np.testing.assert_allclose(x[:5], [0, 3 / 2, (3 + 2 * 0) / 3, 3 / 4, 2 * 3.75 / 5], rtol=1e-12)
    np.testing.assert_allclose(x[5], (1 * 1.25 + 2 * 3.75 + 3 * 2) / 6, rtol=1e-12)
    np.testing.assert_allclose(x[6], (1 * 1.125 + 2 * 3.75 + 4 * 2) / 7, rtol=1e-12)


@pytest.mark.parametrize(
    ("waits", "rows", "expected"),
    [
        # both regions go from x to x / 4 + 3 c / 4 in two rounds, with c = 1.5 and 6
        (True, "1.5 000, 2.5 100, 3.5 011, 6 122, 7.75 004, 9 104, 9.75 015, 12.5 126", 3 * [0] + 4 * [X] + [1.25 * X]),
        # the cloud takes the last models of both, 0 before the first
        (
            False,
            "1.5 000, 2.5 100, 3.5 021, 5.25 003, 6 122, 7.25 024, 9 006, 9 105",
            [0, 0, Y, Y, X] + 3 * [X + Y / 8],
        ),
    ],
)
def test_edge_servers_of_hierfavg_by_hand(waits, rows, expected):
    times = constant(np.array([1.0, 1.5, 2.0, 2.5]))
    made = afl.presets.hierfavg_edges([0, 0, 1, 1], times, up=[0.5, 1.0], down=[0.25, 0.5])
    steps, x = in_rounds((1, 2, 4, 8), made.server, dataclasses.replace(made.clock, waits=waits), 8)
    assert steps == rows
    np.testing.assert_allclose(x, expected, rtol=1e-12)


class serving(afl.server.Server):
    """Clients get x + 1, and x stays 0."""

    needs = afl.server.Needs(base=True)

    def update(self, params, state, arrivals):
        return afl.server.Outcome(params, state, {"start": arrivals.base["w"][0, 0]}, served={"w": params["w"] + 1})


def test_clients_get_the_served_model_and_after_an_empty_step_the_evaluated_one():
    clock = free_running(1, buffer=None, period=1.0, durations=constant(2.5))  # from versions 0, 2 and 5
    with jax.enable_x64(True):
        result = quadratics((1,), 0, local(optax.sgd, 0.5, 1, "run"), serving(), clock).run(8, observe=observe_w)
    assert result.start.values[[2, 4, 7]].tolist() == [0, 0, 1] and not result.observe_w.values.any()


def test_cohorts_of_regions():
    clock = afl.clock.regional_rounds(regions=[0] * 5 + [1] * 2, durations=constant(1.0), cohort=3)
    found = schedule(clock, 7, 1, 400)
    drawn = np.bincount(found.of_arrivals("client"), minlength=7)
    assert found.in_flight == 5 and found.taken.tolist() == [3, 2] * 200
    assert (np.abs(drawn[:5] - 120) < 25).all() and (drawn[5:] == 200).all()


def test_an_optimiser_without_a_state_may_last():
    first, same = (classifier(client=local(optax.sgd, 0.1, 2, reset)).run(5, lanes=3) for reset in ("run", "never"))
    assert (first.loss == same.loss).all()


LASTING = afl.Client(optax.adam, learning_rate=0.01, steps=3, batch_size=5, reset="never")
DELAYS = afl.clock.uniform(1, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "preset",
    [
        afl.presets.async_diloco(4, DELAYS, window=0.5),
        afl.presets.halos_regions([0, 0, 1, 1], DELAYS, bytes=1e8, bandwidths=[100, 0.5], after=3),
    ],
)
def test_lanes_members_and_resumed_runs_are_equal(preset, tmp_path):
    sim = classifier(client=LASTING, server=preset.server, clock=preset.clock)
    whole = sim.run(40)
    np.testing.assert_allclose(sim.run(40, lanes=3).loss, whole.loss, rtol=1e-5)
    swept = afl.sweep(sim, {"seed": [0, 1], "server.learning_rate": [sim.server.learning_rate, 1.5]}, 40)
    np.testing.assert_allclose(swept.loss[0, 0], whole.loss, rtol=1e-5)
    sim.run(17, folder=tmp_path / "run", checkpoint_every=3)
    np.testing.assert_array_equal(sim.run(40, folder=tmp_path / "run").delta_norm, whole.delta_norm)


def test_presets_have_the_steps_links_and_privacy_of_their_parts():
    assert afl.presets.dylu_steps(8, [0.232, 0.907, 0.828, 0.347]) == [2, 8, 7, 3]
    preset = afl.presets.halos_regions([0, 0, 1, 1], DELAYS, bytes=1e8, bandwidths=[100, 0.5], after=3)
    np.testing.assert_allclose(preset.clock.up, [0.008, 1.6])
    private = dataclasses.replace(LASTING, reset="run", upload=afl.upload.chain(*NOISE))
    sim = classifier(client=private, server=preset.server, clock=preset.clock)
    assert sim.schedule(40).privacy(delta=1e-5).max_epsilon[-1] > 0
