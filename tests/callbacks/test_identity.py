"""What makes a run the run that it is."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import jaxafl as afl
from jaxafl.callbacks.identity import identity
from jaxafl.device.content import content, renew_programs
from tests.callbacks.conftest import simulation


def scaled(factor: Any) -> Any:
    def scale(x: Any) -> Any:
        return factor * x

    return scale


class Scale:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, x: Any) -> Any:
        return self.factor * x

    def method(self, x: Any) -> Any:
        return self.factor * x


def test_functions_are_told_apart_by_what_they_do() -> None:
    pairs = [
        (scaled(1.0), scaled(2.0)),
        (scaled(np.ones(3)), scaled(np.zeros(3))),
        (jax.jit(scaled(1.0)), jax.jit(scaled(2.0))),
        (functools.partial(pow, 2), functools.partial(pow, 3)),
        (Scale(1.0), Scale(2.0)),
        (Scale(1.0).method, Scale(2.0).method),
        (lambda x, a=1: x, lambda x, a=2: x),
        (lambda x: x + 1, lambda x: x - 1),
    ]
    for one, other in pairs:
        assert content(one) != content(other)
        assert content(one) == content(one)
    assert content(scaled(1.0)) == content(scaled(1.0))


POWER = 1.0
TABLE: dict[str, Any] = {"power": 1.0, "steps": 10}
SETTINGS = types.SimpleNamespace(power=1.0, steps=10)
LOG: list[float] = []


class Constants:
    power = 1.0


def by_constant(tau: Any) -> Any:
    LOG.append(1.0)
    return tau**POWER


def by_helper(tau: Any) -> Any:
    def again() -> Any:
        return by_constant(tau)

    return again()


def by_entry(tau: Any) -> Any:
    return tau ** TABLE["power"]


def by_setting(tau: Any) -> Any:
    return tau**SETTINGS.power


def by_class(tau: Any) -> Any:
    return tau**Constants.power


class Power:
    factor = 1.0

    def __init__(self) -> None:
        self.power = 1.0

    def __call__(self, tau: Any) -> Any:
        return self.factor * by_constant(tau) ** self.power


class by_attribute(afl.server.Server):
    """Steps by a constant of its class, by static and by jitted methods."""

    rate = 1.0

    @staticmethod
    def scaled(x: Any) -> Any:
        return POWER * x


@pytest.mark.parametrize(
    ("function", "where", "name"),
    [
        (by_constant, sys.modules[__name__].__dict__, "POWER"),
        (by_helper, sys.modules[__name__].__dict__, "POWER"),
        (jax.jit(by_constant), sys.modules[__name__].__dict__, "POWER"),
        (by_entry, TABLE, "power"),
        (by_setting, SETTINGS.__dict__, "power"),
        (by_class, Constants, "power"),
        (by_attribute(), by_attribute, "rate"),
        (Power(), Power, "factor"),
        (Power(), sys.modules[__name__].__dict__, "POWER"),
        (by_attribute(), sys.modules[__name__].__dict__, "POWER"),
    ],
)
def test_a_constant_that_a_function_reads_belongs_to_it(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], where: Any, name: str
) -> None:
    before = content(function)
    monkeypatch.setitem(TABLE, "steps", 20)  # read by none of them
    monkeypatch.setattr(SETTINGS, "steps", 20)
    LOG.append(2.0)
    assert content(function) == before
    (monkeypatch.setitem if isinstance(where, dict) else monkeypatch.setattr)(where, name, 2.0)
    assert content(function) != before


def test_programs_with_a_constant_that_changed_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[None] = []
    monkeypatch.setattr("jaxafl.device.content.forget_programs", lambda: forgotten.append(None))
    parts = {"server": afl.server.fedasync(staleness=by_helper), "clock": afl.clock.constant(1.0)}
    renew_programs(parts)
    renew_programs(parts)
    assert not forgotten
    monkeypatch.setitem(globals(), "POWER", 2.0)
    renew_programs(parts)
    renew_programs(parts)
    assert len(forgotten) == 1
    power = Power()
    parts["server"] = afl.server.fedasync(staleness=power)
    renew_programs(parts)
    monkeypatch.setattr(Power, "factor", 2.0)
    renew_programs(parts)
    assert len(forgotten) == 2
    power.power = 3.0
    renew_programs(parts)
    renew_programs(parts)
    assert len(forgotten) == 3


def test_programs_with_a_closure_that_changed_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[None] = []
    monkeypatch.setattr("jaxafl.device.content.forget_programs", lambda: forgotten.append(None))
    table, powers, array, log, power = {"power": 1.0, "steps": 2}, [1.0], np.ones(2), [0.0], 1.0

    def helper(tau: Any) -> Any:
        return tau ** table["power"] + powers[0]

    def discount(tau: Any) -> Any:
        log.append(1.0)
        return helper(tau) * array[0] * sum(tau**one for one in (power,))

    parts = {"server": afl.server.fedasync(staleness=discount)}

    def is_noticed() -> bool:
        before = len(forgotten)
        renew_programs(parts)
        return len(forgotten) > before

    assert not is_noticed()
    log.append(2.0)  # a log that grows does not change a function
    table["steps"] = 3
    assert not is_noticed()
    table["power"] = 2.0
    assert is_noticed()
    powers[0] = 2.0
    assert is_noticed()
    array[0] = 2.0
    assert is_noticed()
    power = 2.0
    assert is_noticed() and not is_noticed()


def test_constants_of_one_name_in_two_modules_are_two() -> None:
    """One function calls another, of a module with a constant of the same name."""
    modules = [types.ModuleType("own_first"), types.ModuleType("own_second")]
    for module in modules:
        module.__dict__["RATE"] = 1.0
    exec("def inner(tau):\n    return RATE * tau", modules[1].__dict__)
    modules[0].__dict__["inner"] = modules[1].__dict__["inner"]
    exec("def outer(tau):\n    return RATE * inner(tau)", modules[0].__dict__)
    outer = modules[0].__dict__["outer"]
    before = content(outer)
    modules[1].__dict__["RATE"] = 2.0
    assert content(outer) != before


@pytest.mark.slow
def test_a_run_has_the_present_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = simulation().summary()
    parts["clock"] = afl.clock.free_running(concurrency=3, durations=afl.clock.uniform(1, 3))

    def by_power(tau: Any) -> Any:
        return 1 / (1 + tau) ** POWER

    sim = afl.Simulation(**parts | {"server": afl.server.fedasync(staleness=by_power)})
    first = sim.run(8, eval_every=8)
    monkeypatch.setitem(globals(), "POWER", 3.0)
    again, anew = sim.run(8, eval_every=8), afl.Simulation(**parts | {"server": afl.server.fedasync(exponent=3.0)})
    np.testing.assert_allclose(again.loss, anew.run(8, eval_every=8).loss, rtol=1e-5)
    assert abs(again.final_loss - first.final_loss) > 1e-4


def test_options_of_jax_belong_to_a_run_if_they_change_its_numbers() -> None:
    sim = simulation()
    usual = identity(sim.summary())
    with jax.threefry_partitionable(False), jax.default_matmul_precision("highest"), jax.log_compiles(False):
        changed = identity(sim.summary())
    added = {name: changed[name] for name in changed.keys() - usual.keys()}
    assert added == {"jax_threefry_partitionable": False, "jax_default_matmul_precision": "highest"}


@pytest.mark.slow
def test_steps_and_predictions_have_the_present_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    def scores(params: Any, batch: Any) -> Any:
        return POWER * batch.x @ params["w"]

    def loss(params: Any, batch: Any, key: Any) -> Any:
        return ((scores(params, batch) - 1) ** 2).mean(axis=-1)

    x = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
    data = afl.data.from_arrays(x, x[:, 0], np.arange(24) % 3, test_fraction=0.25)
    model = afl.models.from_functions(lambda key, batch: {"w": jax.numpy.ones((3, 2))}, loss, outputs=scores)
    clock = afl.clock.free_running(concurrency=3, durations=afl.clock.uniform(1, 3))
    sim = afl.Simulation(data, model, afl.Client(learning_rate=0.1, steps=1), afl.server.fedasync(), clock)

    def found() -> tuple[Any, Any]:
        state = sim.step(sim.init(0), 3)[0]
        return sim.evaluate(state)["loss"], sim.predict({"w": np.ones((3, 2), np.float32)}, x[:2])

    first = found()
    monkeypatch.setitem(globals(), "POWER", 3.0)
    second = found()
    np.testing.assert_allclose(second[0], sim.run(3, eval_every=3).final_loss, rtol=1e-5)
    np.testing.assert_allclose(second[1], 3 * first[1], rtol=1e-5)
    assert abs(second[0] - first[0]) > 1e-3


@pytest.mark.slow
def test_an_observed_value_has_the_present_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    sim, factor = simulation(), [1.0]

    def observe(params: Any) -> dict[str, Any]:
        return {"norm": POWER * factor[0] * sum(jax.numpy.square(leaf).sum() for leaf in jax.tree.leaves(params))}

    def last(of: Any) -> float:
        return float(of.observe_norm.values.reshape(-1)[-1])

    first = last(sim.run(4, observe=observe))
    monkeypatch.setitem(globals(), "POWER", 3.0)
    np.testing.assert_allclose(last(sim.run(4, observe=observe)), 3 * first, rtol=1e-5)
    factor[0] = 2.0
    np.testing.assert_allclose(last(afl.sweep(sim, {"seed": [0]}, 4, observe=observe)), 6 * first, rtol=1e-5)


def test_a_function_may_call_itself() -> None:
    def down(count: int) -> int:
        return count and down(count - 1)

    assert content(down)["name"].endswith("down")


def written(rule: Any, needed: Any) -> Any:
    """A server as a user's script has it before, or after, a change."""

    class mine(afl.server.Server):
        update = rule

        @property
        def needs(self) -> Any:
            return needed(self)

    class derived(mine):
        pass

    return mine(), derived()


def test_a_part_of_ones_own_that_is_written_anew_is_another_one() -> None:
    for one, other in zip(
        written(lambda self, params, state, arrivals: params, lambda self: 1),
        written(lambda self, params, state, arrivals: state, lambda self: 1),
        strict=True,
    ):
        assert content(one)["name"] == content(other)["name"]
        assert content(one) != content(other) and content(one) == content(one)
    needs_one, needs_two = (written(lambda self, *_: 1, lambda self, n=n: n)[0] for n in (1, 2))
    assert content(needs_one) != content(needs_two)
    assert "methods" not in content(afl.server.fedbuff()) and "methods" not in content(afl.clock.uniform(1, 5))


@pytest.mark.slow
def test_an_identity_is_equal_in_every_process() -> None:
    code = """
from jaxafl.device.content import content
print(content(lambda x: x in {"a", "b", "c", "d"}))
"""
    told = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1


def test_weights_that_a_model_closes_over_belong_to_it() -> None:
    sim = simulation()
    parts = sim.summary()

    def made(value: float) -> Any:
        weights = np.full((3, 2), value, np.float32)

        def start(key: Any, batch: Any) -> Any:
            return {"w": jax.numpy.asarray(weights)}

        def loss(params: Any, batch: Any, key: Any) -> Any:
            return afl.models.softmax_cross_entropy(batch.x @ params["w"], batch)

        return identity({**parts, "model": afl.models.from_functions(start, loss, "own")})

    assert made(1.0)["model"] == made(1.0)["model"] != made(2.0)["model"]


class Unreadable:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


UNREADABLE = Unreadable()


def by_unreadable(tau: Any) -> Any:
    return UNREADABLE, tau**POWER


def test_a_value_that_cannot_be_read_counts_by_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    before = content(by_unreadable)
    renew_programs({"server": afl.server.fedasync(staleness=by_unreadable)})
    assert content(by_unreadable) == before
    monkeypatch.setitem(globals(), "POWER", 2.0)
    assert content(by_unreadable) != before
