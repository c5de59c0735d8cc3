"""Clocks and rules of one's own, clocks that are wrong, the composition of `free_running`, and replies of a server."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jaxafl import clock as c
from jaxafl.clock import Delivery, Fleet, Live
from jaxafl.clock.schedule import cut, joined
from jaxafl.options import Number, number, static
from jaxafl.server import Needs, Outcome, Server
from tests.problems import descent

CLIENTS = 5
TIMES = c.uniform(1, 5)
COLUMNS = (*c.LocalRun._fields, "kind", "multiplicity")


def assert_equal(found: c.Schedule, wanted: c.Schedule) -> None:
    for name in COLUMNS:
        np.testing.assert_array_equal(found.of_arrivals(name), wanted.of_arrivals(name), err_msg=name)
    for name in ("time", "taken", "runs_begun", "runs_refused", "runs_stopped"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), err_msg=name)


class half(c.Clock):
    """Steps when half of the clients have arrived, and stops the others.

    Args:
        durations: duration of a run in simulated seconds.
    """

    durations: c.Duration = dataclasses.field(kw_only=True)

    delivers = Delivery.STALE

    def steps(self, fleet: Fleet) -> Any:
        taken = []
        for runs in fleet.instants():
            for run in runs:
                taken.append(run)
                if len(taken) == fleet.num_clients // 2:
                    yield fleet.step(taken)
                    taken = []
            fleet.stop_up_to(fleet.version - 1)


def test_a_clock_of_ones_own() -> None:
    found = c.schedule(half(durations=TIMES), 10, 1, 20)
    assert found.protocol == "half" and (found.taken == 5).all() and found.runs_stopped[-1] > 20
    shipped = c.free_running(concurrency=10, buffer=5, max_staleness=1, on_bound="stop", durations=TIMES)
    assert_equal(found, c.schedule(shipped, 10, 1, 20))


class wrong(c.Clock):
    """A clock that makes one mistake at server step 3.

    Args:
        what: the mistake.
        durations: duration of a run in simulated seconds.
    """

    what: str = ""
    durations: c.Duration = dataclasses.field(default=TIMES, kw_only=True)

    delivers = Delivery.STALE
    kinds = ("one", "two")

    def arrivals(self, num_clients: int) -> int | None:
        return 1 if self.what == "two arrivals" else None

    def steps(self, fleet: Fleet) -> Any:
        taken: list[Any] = []
        for run in fleet.arrivals():
            taken.append(run)
            given: dict[str, Any] = {}
            if fleet.version == 3:
                if self.what == "the end":
                    return
                if self.what == "a future version":
                    fleet.start(run.client, version=5)
                if self.what == "a busy client":
                    fleet.start(next(fleet.flying()).client)
                given = {
                    "time back": {"time": 0.1},
                    "never": {"time": np.inf},
                    "a kind": {"kinds": [2]},
                    "a count": {"counts": [2]},
                    "two counts": {"counts": [1, 1]},
                    "half a count": {"counts": [0.5]},
                    "a column": {"score": 1.0},
                }.get(self.what, {})
                if self.what == "dropped twice":
                    fleet.discard(run)
                    fleet.discard(run)
                if self.what == "stopped late":
                    fleet.stop(run)
            if self.what == "a short column":
                given["score"] = [1.0] * min(1 + fleet.version % 4, 2)
            if self.what == "a known column":
                given["work"] = [1.0]
            if fleet.version == 3 and self.what == "back":
                fleet.now -= 10
            runs = [run]
            if fleet.version == 3 and self.what == "a run twice":
                runs = [taken[0]]
            if fleet.version == 3 and self.what in ("two arrivals", "none"):
                runs = [] if self.what == "none" else [run, run]
            yield runs if fleet.version == 3 and self.what == "a list" else fleet.step(runs, **given)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("the end", "ends before server step 3"),
        ("a future version", "server step 3 starts client . from version 5; expected 0 to 3"),
        ("a busy client", "server step 3 starts client ., whose run . lasts until .*idle"),
        ("time back", "server step 3 is at 0.1 s"),
        ("never", "server step 3 waits"),
        ("a kind", "server step 3 has kind=2"),
        ("a count", "server step 3 has multiplicity=2 .* Delivery.MULTIPLE"),
        ("two counts", r"server step 3 has the kinds or counts \[1, 1\]; expected 1 whole"),
        ("a list", r"yields \[LocalRun.*Write yield fleet.step"),
        ("half a count", r"server step 3 has the kinds or counts \[0.5\]"),
        ("a column", "server step 3 has columns of the sizes {'score': .*those of the first step"),
        ("dropped twice", "server step 3 discards run .* which was taken or discarded before"),
        ("stopped late", "server step 3 stops run .* which has ended"),
        ("back", "server step 3 is at -.*times that do not fall"),
        ("a run twice", "server step 3 takes run .* Delivery.REPEATED"),
        ("two arrivals", "server step 3 has 2 arrivals; expected the 1"),
        ("none", "server step 3 has no arrivals; expected some, or Delivery.EMPTY"),
    ],
)
def test_a_mistake_of_a_clock_is_named_with_its_server_step(what: str, words: str) -> None:
    assert c.schedule(wrong(what), CLIENTS, 1, 3).server_steps == 3
    with pytest.raises(ValueError, match=f"the clock wrong.*{words}"):
        c.schedule(wrong(what), CLIENTS, 1, 6)


@pytest.mark.parametrize(
    ("what", "words"), [("a short column", "server step 1 has columns"), ("a known column", "work")]
)
def test_columns_of_a_clock_fit_its_arrivals(what: str, words: str) -> None:
    with pytest.raises(ValueError, match=f"the clock wrong.*{words}"):
        c.schedule(wrong(what), CLIENTS, 1, 6)


class busy(c.Clock):
    """A server step of client 0 takes the server five seconds.

    Args:
        durations: duration of a run in simulated seconds.
    """

    durations: c.Duration = dataclasses.field(kw_only=True)

    delivers = Delivery.STALE | Delivery.CONTINUOUS

    def steps(self, fleet: Fleet) -> Any:
        for run in fleet.arrivals():
            yield fleet.step([run], time=fleet.now + 5.0 * (run.client == 0))


def test_runs_that_end_while_the_server_is_busy_wait_for_it() -> None:
    found = c.schedule(busy(durations=c.constant([1.0, 2.0, 3.0])), 3, 1, 6)
    assert found.time.tolist() == [6, 6, 6, 12, 12, 12] and found.arrived[:, 0].tolist() == [1, 2, 3, 7, 8, 9]
    assert found.started[:, 0].tolist() == [0, 0, 0, 6, 6, 6] and found.version[3:, 0].tolist() == [1, 2, 3]


class threes(c.Clock):
    """Steps with three arrivals, each with a loop of its own.

    Args:
        durations: duration of a run in simulated seconds.
    """

    durations: c.Duration = dataclasses.field(kw_only=True)

    delivers = Delivery.STALE | Delivery.CONTINUOUS | Delivery.SEVERAL

    def steps(self, fleet: Fleet) -> Any:
        while True:
            taken = []
            for run in fleet.arrivals():
                taken.append(run)
                if len(taken) == 3:
                    break
            yield fleet.step(taken)


def test_a_loop_that_is_left_within_an_instant_leaves_the_rest_to_the_next() -> None:
    found = c.schedule(threes(durations=c.constant(1.0)), 4, 1, 4)  # all four arrive at 1, 2 and 3 s
    assert found.client.tolist() == [[0, 1, 2], [3, 0, 1], [2, 3, 0], [1, 2, 3]] and found.time.tolist() == [1, 2, 3, 3]


def test_what_a_clock_does_not_declare_is_found() -> None:
    class undeclared(half):
        """Declares nothing."""

        delivers = Delivery.NONE

    with pytest.raises(ValueError, match=r"undeclared makes no schedule.*version=.*Delivery.STALE"):
        c.schedule(undeclared(durations=c.constant(np.arange(1.0, 6.0))), CLIENTS, 1, 9)


def test_a_clock_without_a_generator_is_shown_one() -> None:
    class earlier(c.Clock):
        """Of the traced kind."""

    with pytest.raises(NotImplementedError, match=r"the clock earlier .* steps\(fleet\).*yield fleet\.step"):
        c.schedule(earlier(), CLIENTS, 1, 2)


class columns(half):
    """Gives a column per step and one per run."""

    delivers = Delivery.STALE | Delivery.CONTINUOUS

    def steps(self, fleet: Fleet) -> Any:
        for run in fleet.arrivals():
            yield fleet.step([run], region=[run.client % 2], tier=fleet.version % 3)


class reading(Server):
    """Records the columns of the clock."""

    def update(self, params: Any, state: Any, arrivals: Any) -> Outcome:
        return Outcome(params, state, {f"own_{name}": value for name, value in arrivals.columns.items()})


def test_columns_of_a_clock_reach_the_schedule_and_the_server() -> None:
    sim = descent(server=reading(), clock=columns(durations=TIMES))
    result, found = sim.run(9), sim.schedule(9).columns
    regions = result.client_id.values[:, 0] % 2
    assert result.own_region.values[:, 0].tolist() == found.pop("region").tolist() == regions.tolist()
    assert result.own_tier.values.tolist() == found.pop("tier").tolist() == [0, 1, 2] * 3 and not found


COMPOSED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "buffer": ({"buffer": 3}, {"closes": c.after(3)}),
    "windows": ({"period": 2.0, "windows": "poisson"}, {"closes": c.every(2.0, "poisson")}),
    "both": ({"period": 2.0, "buffer": 2}, {"closes": c.after(2) | c.every(2.0)}),
    "stop": ({"max_staleness": "sqrt", "on_bound": "stop"}, {"bound": c.stop("sqrt")}),
    "refuse": ({"max_staleness": 2}, {"bound": c.refuse(2)}),
    "wait": ({"max_staleness": 1, "on_bound": "wait", "buffer": 2}, {"bound": c.wait(1), "closes": c.after(2)}),
    "step": (
        {"dispatch": "step", "start_skew": True, "buffer": 2},
        {"begins": c.at_step(skew=True), "closes": c.after(2)},
    ),
    "before": ({"before_step": True, "buffer": 2}, {"begins": c.before_step(), "closes": c.after(2)}),
    "rate": ({"rate": 2.0}, {"begins": c.at_rate(2.0)}),
    "weights": ({"weights": np.arange(1.0, 6.0)}, {"select": c.by_weight(tuple(np.arange(1.0, 6.0)))}),
    "hours": ({"hours": c.available(8, 20, day=20.0)}, {"select": c.within(c.available(8, 20, day=20.0))}),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_objects_and_options_make_the_same_clock(name: str) -> None:
    options, objects = COMPOSED[name]
    clocks = [c.free_running(concurrency=3, durations=TIMES, **given) for given in (options, objects)]
    assert_equal(*(c.schedule(one, CLIENTS, 2, 60, 3) for one in clocks))
    assert clocks[0].delivers == clocks[1].delivers and clocks[0].takes_all == clocks[1].takes_all
    assert clocks[0].arrivals(CLIENTS) == clocks[1].arrivals(CLIENTS)


class when_waited(c.Closes):
    """A server step once the first arrival is some seconds old.

    Args:
        seconds: the age.
    """

    seconds: Number = number(above=0)

    def full(self, taken: Any) -> bool:
        return taken[-1].arrived - taken[0].arrived >= self.seconds if taken else False


class by_parity(c.Bound):
    """Refuses runs with an odd number.

    Args:
        of: 2.
    """

    of: int = static(default=2)

    def refuses(self, fleet: Fleet, run: Any) -> bool:
        return run.run % self.of == 1


class fewest_samples(c.Selects):
    """Draws client 0 or 1."""

    def begin(self, fleet: Fleet, most_busy: int) -> Any:
        idle = fleet.idle = {0, 1}
        return lambda ended: idle.pop()


def test_rules_of_ones_own_are_as_good_as_shipped_ones() -> None:
    made = c.free_running(4, when_waited(1.5), bound=by_parity(), durations=TIMES)
    assert not made.takes_all
    by_samples = type("by_n", (c.by_samples,), {})  # a subclass counts samples, too
    assert descent(clock=c.free_running(1, select=by_samples(), durations=TIMES)).clock.select == "samples"
    chosen = descent(clock=c.free_running(1, select=fewest_samples(), durations=TIMES)).schedule(9)
    assert {*chosen.of_arrivals("client").tolist()} <= {0, 1}
    found = c.schedule(made, CLIENTS, 1, 40)
    first = np.cumsum(found.taken) - found.taken
    waited = found.time - found.of_arrivals("arrived")[first]
    assert (waited >= 1.5).all() and made.arrivals(CLIENTS) is None
    assert (found.of_arrivals("run") % 2 == 0).all() and found.runs_refused[-1] > 20
    assert repr(made).startswith("free_running(concurrency=4, closes=when_waited(seconds=1.5), durations=")


def test_replies_change_the_next_start_of_a_client() -> None:
    made = c.free_running(concurrency=4, durations=c.constant(1.0) + c.constant(0.5, per="step"))
    live, told = Live(made, 4, 2), {client: 2 for client in range(4)}
    steps = [live.next()]
    for index in range(20):
        (run,) = steps[-1].runs
        told[run.client] = 1 + index % 5
        steps.append(live.next({run.client: told[run.client]}))
        assert all(one.local_steps == told[one.client] for one in live.fleet.flying() if one.run_id > 3 + index)
    found = live.collect(steps)
    lasted = found.of_arrivals("arrived") - found.of_arrivals("started")
    np.testing.assert_allclose(lasted, 1 + 0.5 * found.of_arrivals("local_steps"))
    with pytest.raises(ValueError, match=r"replied .* with 0 local steps for client 1"):
        live.next({1: 0})


EACH_STEP = c.uniform(1, 5) * c.constant(0.3, per="step")


class reads_replies(c.free_running):
    """The clock `free_running`, which reads every reply before it goes on."""

    def steps(self, fleet: Fleet) -> c.fleet.Steps:
        made, replies = super().steps(fleet), None
        while True:
            replies = yield made.send(replies)
            assert replies is not None and min(dict(replies).values()) >= 1


class replies(Server):
    """Replies with 1 to 15 local steps, by the number of the server step."""

    needs = Needs(replies=True)

    def update(self, params: Any, state: Any, arrivals: Any) -> Outcome:
        return Outcome(params, state, next_steps=jnp.full_like(arrivals.client, 1 + 7 * arrivals.step % 15))


class throttling(c.Duration):
    """A second per local step, and three from the eleventh on."""

    def draw(self, prepared: Any, run: c.Run) -> c.Draw:
        return c.worked(run.local_steps + 2.0 * jnp.maximum(run.local_steps - 10, 0))


@pytest.mark.parametrize("options", [{"buffer": 3}, {"bound": c.stop(4)}, {"begins": c.grace(1.0, close="last")}])
@pytest.mark.parametrize("times", [c.constant(1.0, per="step"), throttling(), EACH_STEP, EACH_STEP + c.suspension(0.2)])
def test_a_clock_goes_on_without_the_replies_that_it_does_not_need(times: c.Duration, options: dict[str, Any]) -> None:
    how = {"concurrency": 6, "durations": times, **options}
    found, wanted = (descent(server=replies(), clock=kind(**how)).run(60) for kind in (c.free_running, reads_replies))
    assert found.equals(wanted)
    if isinstance(times, throttling):
        seconds = found.local_steps + 2 * np.fmax(found.local_steps - 10, 0)
        np.testing.assert_allclose(found.arrived_at - found.started_at, seconds)


SEVERAL = [
    c.free_running(concurrency=3, buffer=2, lost=0.2, durations=TIMES),
    c.stale_rounds(participants=2, max_staleness=3, durations=TIMES),
    c.sampled(drawn=2, durations=c.mac_network(17.0, 2.2)),
    c.ringleader(durations=TIMES),
    c.warm_up(c.free_running(concurrency=CLIENTS, before_step=True, buffer=2, durations=TIMES)),
    c.bernoulli(0.4, 0.5),
]


@pytest.mark.parametrize("made", SEVERAL, ids=lambda made: made.name)
def test_parts_of_a_schedule_are_those_of_the_whole(made: c.Clock) -> None:
    """Steps that are advanced in pieces, joined, cut, or the first of more; and the versions that later pieces need."""
    whole, live = c.schedule(made, CLIENTS, 1, 60, 2), Live(made, CLIENTS, 1, 2)
    pieces = [live.advance(count) for count in (1, 25, 34)]
    assert_equal(joined(pieces), whole)
    assert_equal(joined([cut(whole, 0, 20), cut(whole, 20, 60)]), whole)
    assert_equal(cut(c.schedule(made, CLIENTS, 1, 80, 2), 0, 60), whole)
    for piece in pieces[:2]:
        end = piece.start + piece.server_steps
        later = cut(whole, end, 60)
        needed = {*later.of_arrivals("version").tolist(), *later.of_arrivals("reference").tolist()}
        assert {version for version in needed if version < end} <= {*piece.held}


@pytest.mark.parametrize("made", SEVERAL, ids=lambda made: made.name)
def test_every_run_is_taken_dropped_or_in_flight(made: c.Clock) -> None:
    found = c.schedule(made, CLIENTS, 1, 60, 2)
    runs = {*found.of_arrivals("run_id").tolist(), *found.unused.run_id.tolist()}
    waits = {"sampled": CLIENTS, "ringleader": CLIENTS}.get(made.name, made.in_flight(CLIENTS))
    assert runs <= {*range(found.runs_started)} and found.runs_started - len(runs) <= waits
    assert not {*found.of_arrivals("run_id").tolist()} & {*found.unused.run_id.tolist()}
    np.testing.assert_array_equal(found.runs_lost[-1], (found.unused.reason == "lost").sum())


def test_one_row_of_local_steps_is_that_of_every_client() -> None:
    made = c.free_running(concurrency=3, durations=c.uniform(1, 5, per="step"))
    one, all_alike = (c.schedule(made, CLIENTS, np.array(rows), 30) for rows in ([[2, 1, 3]], [[2, 1, 3]] * CLIENTS))
    assert_equal(dataclasses.replace(one, source=None), dataclasses.replace(all_alike, source=None))
