"""A clock of one's own that makes what cannot happen is told at which server step, before anything is trained."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxafl as afl
from jaxafl.clock import Delivery, Runs, ServerStep, Verdict, rules
from jaxafl.engine import windows
from tests.clock.test_contract import MADE
from tests.extensions.clock import in_turns
from tests.variants import slow_but

STALE = Delivery.STALE


def steps(**changed: tuple[Any, Any]) -> tuple[ServerStep, np.ndarray]:
    """Three server steps of two arrivals each, but for `name=(index, value)`."""
    ids = np.arange(6, dtype=np.int32).reshape(3, 2)
    client, run = ids % 3, ids // 3
    arrived = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    version = np.array([[0, 0], [0, 1], [1, 2]], np.int32)
    zero, one = np.zeros((3, 2), np.int32), np.ones((3, 2), np.int32)
    runs = Runs(client, run, ids, version, 4 * one, arrived - 1, arrived, version)
    step = ServerStep(arrived[:, 1].copy(), np.ones((3, 2), bool), runs, one, zero)
    begun = np.array([4, 5, 6], np.int32)
    values = {**runs._asdict(), **step._asdict(), "runs_begun": begun}
    for name, (index, value) in changed.items():
        values[name] = values[name].copy()
        values[name][index] = value
    runs = Runs(**{name: values[name] for name in Runs._fields})
    return ServerStep(**{**{name: values[name] for name in ServerStep._fields}, "runs": runs}), values["runs_begun"]


def check(delivers: Delivery = STALE, **changed: tuple[Any, Any]) -> None:
    class told(in_turns):
        pass

    told.delivers = delivers
    rules.check_steps(told(), 3, *steps(**changed))


def test_unusual_but_possible_schedules_are_accepted() -> None:
    check()
    check(STALE | Delivery.EMPTY, mask=(1, False), client=((1, 0), 99))  # what is no arrival means nothing
    check(STALE | Delivery.PARTIAL, local_steps=((0, 0), 0))
    check(STALE | Delivery.MULTIPLE, multiplicity=((0, 0), 3))
    check(STALE | Delivery.REPEATED, run_id=((2, 0), 1), client=((2, 0), 1), run=((2, 0), 0))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"time": (1, np.nan)}, r"server step 1 has time=nan; times are finite"),
        ({"time": (1, 1.5)}, r"server step 1 has time=1\.5; .*none is before that of the step before"),
        ({"runs_begun": (2, 3)}, r"server step 2 has runs_begun=3; `starts.count` never falls"),
        ({"mask": (1, False)}, r"server step 1 has arrivals=0; .*Delivery\.EMPTY"),
        ({"client": ((1, 1), 3)}, r"server step 1, entry 1 has client=3; clients are 0\.\.2"),
        ({"client": ((1, 1), -1)}, r"server step 1, entry 1 has client=-1"),
        ({"version": ((0, 1), -1)}, r"server step 0, entry 1 has version=-1; a version is 0\.\.t"),
        ({"version": ((1, 0), 2)}, r"server step 1, entry 0 has version=2; .*x_t is the newest"),
        ({"reference": ((1, 0), 2)}, r"server step 1, entry 0 has reference=2"),
        ({"local_steps": ((2, 1), 0)}, r"server step 2, entry 1 has local_steps=0; .*Delivery\.PARTIAL"),
        ({"started": ((2, 1), 6.5)}, r"server step 2, entry 1 has started=6\.5, arrived=6\.0, time=6\.0; 0 <= started"),
        ({"arrived": ((0, 0), 2.5)}, r"server step 0, entry 0 has started=0\.0, arrived=2\.5, time=2\.0"),
        ({"arrived": ((0, 0), np.nan)}, r"server step 0, entry 0 has started=0\.0, arrived=nan"),
        ({"run": ((0, 0), -1)}, r"run=-1; a client's runs are numbered from 0"),
        ({"run_id": ((0, 0), 4)}, r"run_id=4, runs_begun=4; runs are numbered from 0 as they start"),
        ({"run_id": ((2, 1), 0)}, r"server step 2, entry 1 has run_id=0; .*Delivery\.REPEATED"),
        ({"run": ((2, 1), 0)}, r"server step 2, entry 1 has run_id=5, client=2, run=0; two arrivals of one run_id"),
        ({"multiplicity": ((0, 0), 0)}, r"multiplicity=0; .*at least once"),
        ({"multiplicity": ((0, 0), 2)}, r"multiplicity=2; .*Delivery\.MULTIPLE"),
        ({"kind": ((0, 1), 1)}, r"server step 0, entry 1 has kind=1; .*0\.\.0"),
    ],
)
def test_impossible_schedules_raise(changed: dict[str, tuple[Any, Any]], words: str) -> None:
    with pytest.raises(ValueError, match=f"the clock told makes no schedule: .*{words}"):
        check(**changed)


def test_arrivals_that_the_clock_does_not_declare_raise() -> None:
    with pytest.raises(
        ValueError, match=r"server step 1, entry 0 has version=0; versions before x_t need Delivery\.STALE"
    ):
        check(Delivery.NONE)
    with pytest.raises(ValueError, match=r"server step 1, entry 0 has client=2, entry=0; by Delivery\.BY_CLIENT"):
        check(STALE | Delivery.BY_CLIENT)
    with pytest.raises(ValueError, match="run_id=1, client=1, run=1; two arrivals of one run_id"):
        check(STALE | Delivery.REPEATED, run_id=((2, 0), 1), client=((2, 0), 1))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"time": (2, 3.5), "arrived": (2, 3.0), "started": (2, 2.5)},
            r"server step 2 has time=3\.5; .*none is before",
        ),
        ({"runs_begun": (2, 4)}, r"server step 2 has runs_begun=4; `starts.count` never falls"),
        ({"run_id": ((2, 1), 0)}, r"server step 2, entry 1 has run_id=0; .*Delivery\.REPEATED"),
        ({"run": ((2, 1), 0)}, r"server step 2, entry 1 has run_id=5, client=2, run=0; two arrivals of one run_id"),
    ],
)
def test_steps_that_contradict_earlier_ones_raise(changed: dict[str, tuple[Any, Any]], words: str) -> None:
    class told(in_turns):
        delivers = STALE

    made, begun = steps(**changed)
    pieces = [jax.tree.map(lambda leaf, part=part: leaf[part], (made, begun)) for part in (slice(2), slice(2, 3))]
    for again in (False, True):  # the last of them is made again, from where the one before has ended
        earlier = rules.Earlier()
        rules.check_steps(told(), 3, *pieces[0], 0, earlier)
        if again:
            whole, counts = steps()
            rules.check_steps(told(), 3, *jax.tree.map(lambda leaf: leaf[2:], (whole, counts)), 2, earlier)
        with pytest.raises(ValueError, match=f"the clock told makes no schedule: .*{words}"):
            rules.check_steps(told(), 3, *pieces[1], 2, earlier)


def test_a_clock_may_return_plain_numbers() -> None:
    class second(in_turns):
        def next(self, state: Any, workload: Any) -> Any:
            after, step = super().next(state, workload)
            return after, step._replace(time=1e9, multiplicity=np.ones(1, int))

    assert (afl.clock.schedule(second(), 4, 1, 3).time == 1e9).all()


class early(in_turns):
    """Takes the model of the next server step."""

    def next(self, state: Any, workload: Any) -> Any:
        after, step = super().next(state, workload)
        return after, step._replace(runs=step.runs._replace(version=step.runs.version + (state.version == 6) * 9))


def test_a_simulation_says_so_before_it_trains() -> None:
    data = afl.data.synthetic(1, 1, clients=4, max_size=40)
    client = afl.Client(steps=1, batch_size=4, learning_rate=0.1)
    sim = afl.Simulation(data, afl.models.logistic(10), client, afl.server.fedbuff(), early())
    with pytest.raises(ValueError, match="the clock early makes no schedule: server step 6, entry 0 has version="):
        sim.run(8)


class back(afl.clock.free_running):
    """Its time goes back once."""

    def next(self, state: Any, workload: Any) -> Any:
        after, step = super().next(state, workload)
        earlier = jnp.where(state.version == 4, 1e-3, 1.0)
        shown = {name: getattr(step.runs, name) * earlier for name in ("started", "arrived")}
        return after, step._replace(time=step.time * earlier, runs=step.runs._replace(**shown))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["planned", "online"])
def test_a_simulation_says_so_of_steps_that_are_made_piece_after_piece(way: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(windows, "WINDOW_ARRIVALS", 4)
    monkeypatch.setattr(windows, "_TURNOVERS", 0)
    data = afl.data.synthetic(1, 1, clients=4, max_size=40)
    client = afl.Client(steps=1, batch_size=4, learning_rate=0.1)
    server = afl.server.asyncfeded(kappa=1.0) if way == "online" else afl.server.fedasync()
    clock = back(concurrency=2, durations=afl.clock.uniform(1, 2))
    sim = afl.Simulation(data, afl.models.logistic(10), client, server, clock)
    with pytest.raises(ValueError, match=r"the clock back makes no schedule: server step 4 has time=.*none is before"):
        sim.run(16, eval_every=4)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda state, step: None, r"\(state, ServerStep\), it returned \(NoneType\)"),
        (lambda state, step: (state, step.runs), r"\(state, ServerStep\), it returned \(State, Runs\)"),
        (lambda state, step: (state.last, step), "a state with a field `starts`"),
        (lambda state, step: (state, step._replace(mask=jnp.ones(3, bool))), r"`mask` as bool of shape \(1,\)"),
        (lambda state, step: (state, step._replace(time=jnp.int32(1))), r"`time` as float64 of shape \(\)"),
        (
            lambda state, step: (state, step._replace(runs=step.runs._replace(client=jnp.zeros(1)))),
            r"`client` as integer of shape \(1,\) \(capacity 1\), it is float64 of shape \(1,\)",
        ),
    ],
)
def test_a_wrong_return_value_of_next_raises(made: Any, words: str) -> None:
    class odd(in_turns):
        def next(self, state: Any, workload: Any) -> Any:
            return made(*super().next(state, workload))

    with pytest.raises(ValueError, match=rf"the clock odd: next\(state, workload\) must return {words}"):
        afl.clock.schedule(odd(), 4, 1, 3)


def test_the_state_of_a_clock_may_hold_repeated_arrays_keys_and_numbers() -> None:
    """An array twice, an option, the key and a typed key, a plain number: the state's memory is used again."""

    class State(NamedTuple):
        inner: Any
        starts: Any
        rest: Any

    class holding(in_turns):
        def init(self, key: Any, num_clients: int) -> Any:
            state = super().init(key, num_clients)
            return State(
                state, state.starts, (state.last, self.seconds, self.seconds, key, key, jax.random.key(3), 1.5)
            )

        def next(self, state: Any, workload: Any) -> Any:
            inner, step = super().next(state.inner, workload)
            return state._replace(inner=inner, starts=inner.starts), step

        def held(self, state: Any) -> Any:
            return super().held(state.inner)

    clock, plain = holding(seconds=2.0), in_turns(seconds=2.0)
    for _ in range(2):
        np.testing.assert_array_equal(afl.clock.schedule(clock, 4, 1, 9).time, afl.clock.schedule(plain, 4, 1, 9).time)


@pytest.mark.parametrize("name", slow_but(MADE, "bernoulli", "semi_async", "stale_rounds"))
def test_shipped_clocks_pass_the_checks_of_user_defined_ones(name: str) -> None:
    """As those of one's own that inherit from them are looked over."""
    shipped = MADE[name]
    own = type(name, (type(shipped),), {"__doc__": type(shipped).__doc__})
    made = afl.clock.schedule(own(**vars(shipped)), 5, 4, 60)
    np.testing.assert_array_equal(made.run_id, afl.clock.schedule(shipped, 5, 4, 60).run_id)


def _state(state: Any, step: ServerStep) -> Any:
    return state._replace(now=state.now.astype(jnp.float32)), step


def _time(state: Any, step: ServerStep) -> Any:
    return state, step._replace(time=step.time.astype(jnp.float32))


@pytest.mark.parametrize(
    ("changed", "words"),
    [(_state, r"state\.now was float64\[\], it is float32\[\]"), (_time, r"`time` as float64 .*it is float32")],
)
def test_the_state_keeps_its_form_and_time_is_float64(changed: Any, words: str) -> None:
    class own(afl.clock.synchronous):
        def next(self, state: Any, workload: Any) -> Any:
            return changed(*super().next(state, workload))

    with pytest.raises(ValueError, match=words):
        afl.clock.schedule(own(), 3, 1, 2)


def test_the_state_keeps_its_structure() -> None:
    class own(afl.clock.synchronous):
        def init(self, key: Any, num_clients: int) -> Any:
            state = super().init(key, num_clients)
            return state._replace(now=[state.now])

        def next(self, state: Any, workload: Any) -> Any:
            after, step = super().next(state._replace(now=state.now[0]), workload)
            return after._replace(now=(after.now,)), step

    with pytest.raises(ValueError, match=r"state of the same form as that of init: state was PyTreeDef"):
        afl.clock.schedule(own(), 3, 1, 2)


def test_init_and_held_of_ones_own_are_told_what_they_must_return() -> None:
    class without_state(afl.clock.synchronous):
        def init(self, key: Any, num_clients: int) -> Any:
            return None

    class without_versions(afl.clock.synchronous):
        def held(self, state: Any) -> Any:
            return None

    with pytest.raises(ValueError, match=r"init\(key, num_clients\) must return a state with a field `starts`"):
        afl.clock.schedule(without_state(), 3, 1, 2)
    with pytest.raises(ValueError, match=r"held\(state\) must return a list of arrays of integers, got None"):
        afl.clock.schedule(without_versions(), 3, 1, 2)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"arrives": lambda self, rules, event: rules > 2},
            r"arrives\(rules, event\) must return .*Verdict\(rules, clos",
        ),
        (
            {"arrives": lambda self, rules, event: Verdict(2.0 * rules, closes=True)},
            r"rules was int32\[\], it is float64",
        ),
        (
            {"arrives": lambda self, rules, event: Verdict(rules, closes=1 if rules > 2 else 0)},
            r"number .*, line \d+: `.*if",
        ),
        ({"capacity": lambda self, num_clients: 0}, r"own: capacity\(num_clients\) must be at least 1, got 0"),
        ({"in_flight": lambda self, num_clients: 0}, r"own: in_flight\(num_clients\) must be at least 1, got 0"),
    ],
)
def test_a_clock_of_events_is_told_what_its_methods_must_return(changed: dict[str, Any], words: str) -> None:
    methods = {
        "capacity": lambda self, num_clients: 2,
        "in_flight": lambda self, num_clients: num_clients,
        "begin": lambda self, key, num_clients: jnp.int32(2),
        "arrives": lambda self, rules, event: Verdict(rules, closes=event.taken + 1 == rules),
        "durations": dataclasses.field(kw_only=True),
        "__annotations__": {"durations": Any},
    }
    own: Any = type("own", (afl.clock.Events,), methods | changed)
    with pytest.raises(ValueError, match=words):
        afl.clock.schedule(own(durations=afl.clock.uniform(1, 2)), 3, 1, 2)
