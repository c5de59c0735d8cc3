"""The examples of both READMEs run as they stand and do what is said of them; their tables name what is there."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl.references import BIBTEX
from tests.blocks import blocks_of, run_shell
from tests.blocks import run_python as run
from tests.variants import slow_but

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
ENGINE = (ROOT / "jaxafl" / "README.md").read_text(encoding="utf-8")
BLOCKS, ENGINE_BLOCKS = (
    [block.text for block in blocks_of(page) if block.language == "python"]
    for page in (ROOT / "README.md", ROOT / "jaxafl" / "README.md")
)


def defining(name: str, blocks: list[str]) -> str:
    """The example that defines a class."""
    (block,) = (block for block in blocks if f"class {name}" in block)
    return block


def data() -> afl.data.FederatedData:
    return afl.data.synthetic(1.0, 1.0, clients=8, max_size=50)


def client() -> Any:
    return afl.Client(optax.sgd, learning_rate=0.01, steps=2, batch_size=5)


@pytest.mark.parametrize("block", slow_but(range(len(BLOCKS)), 0))
def test_example_runs(
    block: int, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = run(BLOCKS[block])
    assert capsys.readouterr().out.strip()
    written = re.findall(r'(?:save=|path=|save\(\w+, |Csv\(|checkpoint=|folder=)"([\w.]+)"', BLOCKS[block])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(written)
    if "median_buff" in names:
        assert all(BIBTEX[key] in names["sim"].citation() for key in names["median_buff"].references)


@pytest.mark.slow
def test_commands_run(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the main job and of the tests, which begin with an environment, are what CI runs."""
    monkeypatch.chdir(tmp_path)
    for block in blocks_of(ROOT / "README.md"):
        if block.language == "bash" and "venv" not in block.text:
            assert run_shell(block.text) == []


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 2
    assert any("save=" in block for block in BLOCKS)


@pytest.mark.slow
def test_the_median_of_the_example_leaves_out_who_did_not_arrive() -> None:
    """Where clients are drawn with replacement, the entries of a client after its first are padding."""
    definition = defining("median_buff", BLOCKS).partition("\nsim = ")[0]
    median_buff = run(definition)["median_buff"]
    seen: list[tuple[np.ndarray, ...]] = []

    class Watched(median_buff):
        def update(self, params: Any, state: Any, arrivals: Any) -> Any:
            made = super().update(params, state, arrivals)
            flat = [jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)]) for tree in (params, made.params)]
            count = arrivals.mask.shape[0]
            delta = jnp.concatenate([leaf.reshape(count, -1) for leaf in jax.tree.leaves(arrivals.delta)], axis=1)
            jax.debug.callback(lambda *values: seen.append(values), arrivals.mask, delta, *flat, ordered=True)
            return made

    cohorts = afl.clock.synchronous(cohort=6, replacement=True, durations=afl.clock.constant(1.0))
    sim = afl.Simulation(data(), afl.models.logistic(num_classes=10), client(), Watched(learning_rate=0.5), cohorts)
    schedule = sim.schedule(8, seed=3)
    sim.train(8, seed=3)
    jax.effects_barrier()
    arrived = schedule.mask.sum(axis=1)
    assert len(seen) == 8 and arrived.min() < 5 and len(set(arrived % 2)) == 2
    for step, (mask, delta, before, after) in enumerate(map(np.asarray, values) for values in seen):
        np.testing.assert_array_equal(mask, schedule.mask[step])
        expected = before + 0.5 * np.median(delta[mask], axis=0)
        np.testing.assert_allclose(after, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_the_clock_of_the_engine_page_runs_fedavg_as_it_is() -> None:
    deadline = run(defining("deadline", ENGINE_BLOCKS))["deadline"]
    model, protocol = afl.models.logistic(num_classes=10), deadline(durations=afl.clock.uniform(1, 5), seconds=2.0)
    assert protocol.name == "deadline"
    simulation = afl.Simulation(data(), model, client(), afl.server.fedavg(), protocol)
    made = simulation.run(20, eval_every=20)
    assert np.isfinite(made.loss).all()
    lasted = np.diff(made.time.values, prepend=0)
    usual = afl.clock.schedule(afl.clock.synchronous(durations=afl.clock.uniform(1, 5)), len(data().counts), 1, 20)
    takes = usual.arrived - usual.started
    end = np.clip(2.0, takes.min(axis=1), takes.max(axis=1))
    np.testing.assert_allclose(lasted, end)
    np.testing.assert_array_equal(made.staleness.values >= 0, takes <= end[:, None] + 1e-9)
    assert 0.1 < (takes > end[:, None] + 1e-9).mean() < 0.9  # some are late
    with pytest.raises(ValueError, match=r"fedasync does not run on the clock deadline.*stale"):
        afl.Simulation(data(), model, client(), afl.server.fedasync(), protocol).check()
    with pytest.raises(ValueError, match="deadline: seconds must be > 0, got 0"):
        afl.Simulation(data(), model, client(), afl.server.fedavg(), deadline(seconds=0)).check()


@pytest.mark.slow
def test_the_duration_of_the_engine_page_is_a_weibull_that_composes() -> None:
    names = run(defining("weibull", ENGINE_BLOCKS))
    weibull = names["weibull"](scale=2.0, shape=1.5)

    def times(durations: Any) -> np.ndarray:
        protocol = afl.clock.synchronous(durations=durations)
        made = afl.Simulation(data(), afl.models.logistic(num_classes=10), client(), afl.server.fedavg(), protocol)
        schedule = made.schedule(500)
        return schedule.arrived - schedule.started

    drawn = times(weibull)
    for level in (0.1, 0.5, 0.9):  # the distribution function at its own quantiles, 4,000 draws
        assert np.mean(drawn < 2.0 * (-np.log1p(-level)) ** (1 / 1.5)) == pytest.approx(level, abs=0.025)
    for composed in (
        0.5 + weibull,
        weibull + 0.5,
        weibull + afl.clock.constant(0.5),
        afl.clock.constant(0.5) + weibull,
    ):
        np.testing.assert_allclose(times(composed).mean(), drawn.mean() + 0.5, atol=0.1)
    np.testing.assert_allclose(times(2 * weibull), 2 * times(afl.clock.constant(1.0) * weibull), atol=1e-9)
    assert times(names["durations"]).min() >= 0.5
    with pytest.raises(ValueError, match="weibull"):
        times(names["weibull"](scale=2.0, shape=0.0))


def test_every_server_is_named() -> None:
    from jaxafl import server

    names = [name for name in server.__all__ if name.islower() and callable(getattr(server, name))]
    constructors = [name for name in names if "References" in (getattr(server, name).__doc__ or "")]
    assert constructors
    assert [name for name in constructors if f"`{name}`" not in README] == []


def test_every_file_of_the_engine_is_named() -> None:
    files = ENGINE.partition("## Files")[2]
    package = ROOT / "jaxafl"
    expected = [path.name for path in package.glob("*.py") if path.name != "__init__.py"]
    expected += [f"{path.parent.name}/" for path in package.glob("*/__init__.py")]
    assert len(expected) > 15
    assert [name for name in expected if name not in files] == []
    assert [name for name in re.findall(r"\w+\.py", files) if not (package / name).exists()] == []


def test_every_experiment_is_named() -> None:
    assert "](experiments/README.md)" in README
    measured = (ROOT / "experiments" / "benchmarks" / "README.md").read_text(encoding="utf-8")
    scripts = [path.name for path in (ROOT / "experiments" / "benchmarks").glob("*.py")]
    helpers = {"machine.py", "peers_fedjax.py", "peers_torch.py"}
    assert scripts and {name for name in scripts if f"`{name}" not in measured} <= helpers
