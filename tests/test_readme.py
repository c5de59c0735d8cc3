"""The READMEs: examples run as they stand, their claims hold, and tables name what the package has."""

from __future__ import annotations

import ast
import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl.cli.catalogue import offered
from jaxafl.references import BIBTEX
from tests.blocks import blocks_of
from tests.blocks import run_python as run

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
ENGINE = (ROOT / "jaxafl" / "README.md").read_text(encoding="utf-8")
SERVERS = ROOT / "docs" / "howto" / "own_server.md"
LINES = re.findall(r"^\| [^|]+ \| `([^|]+)` \| (.+) \|$", README, re.M)  # of the table of what can be done


def python_of(page: pathlib.Path) -> list[str]:
    """Returns the Python blocks of a page."""
    return [block.text for block in blocks_of(page) if block.language == "python"]


ENGINE_BLOCKS = python_of(ROOT / "jaxafl" / "README.md")


def defining(name: str, blocks: list[str]) -> str:
    """The example that defines a class."""
    (block,) = (block for block in blocks if f"class {name}" in block)
    return block


def data() -> afl.data.FederatedData:
    return afl.data.synthetic(1.0, 1.0, clients=8, max_size=50)


def client() -> Any:
    return afl.Client(optax.sgd, learning_rate=0.01, steps=2, batch_size=5)


@pytest.mark.slow
def test_the_example_of_the_readme_prints_the_accuracies_it_names(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = python_of(ROOT / "README.md")
    run(block)
    first, *_, last = capsys.readouterr().out.strip(" []\n").split()
    named = re.search(r"# (\S+) to (\S+)$", block, re.M)
    assert named is not None
    assert (round(float(first), 2), round(float(last), 2)) == tuple(map(float, named.groups()))


@pytest.mark.parametrize("page", ["README.md", "docs/why.md"])
def test_the_numbers_of_algorithms_and_protocols_are_hardly_too_small(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = [int(number) for number in re.findall(r"(\d+) algorithms and (\d+) protocols", text)[0]]
    counts = [len(offered("servers")) + len(offered("presets")), len(offered("clocks"))]
    assert all(0 <= count - number < 4 for count, number in zip(counts, named, strict=True)), counts


def test_the_readme_is_two_screens_with_two_commands() -> None:
    assert len(README.splitlines()) <= 120
    main_job, tests = (block for block in blocks_of(ROOT / "README.md") if block.language != "python")
    assert main_job.text.strip().endswith(".venv/bin/jaxafl quickstart")
    assert tests.text.strip().endswith(".venv/bin/python -m pytest")


def test_every_line_of_the_table_of_the_readme_is_code_and_has_a_link() -> None:
    assert len(LINES) > 15
    for code, links in LINES:
        assert "](" in links, code
        if code.startswith(("python -m", "jaxafl ")):
            continue
        tree = ast.parse(code if code.startswith(("class ", "afl.", "sim.")) else f"dict({code})")
        for node in (node for node in ast.walk(tree) if isinstance(node, ast.Attribute)):
            if re.fullmatch(r"afl(\.\w+)+", name := ast.unparse(node)):
                assert eval(name, {"afl": afl}) is not None


@pytest.mark.parametrize("part", ["server", "clock", "durations"])
def test_parts_in_the_table_of_the_readme_can_be_constructed(part: str) -> None:
    codes = [code for code, _ in LINES if code.startswith(f"{part}=")]
    assert codes
    for code in codes:
        assert eval(f"dict({code})", {"afl": afl, "optax": optax})[part] is not None


@pytest.mark.slow
def test_the_median_of_the_example_leaves_out_padding() -> None:
    """Where clients are drawn with replacement, the entries of a client after its first are padding."""
    imports, definition = python_of(SERVERS)[0].partition("\nclass ")[0], defining("median_buff", python_of(SERVERS))
    median_buff = run(definition.partition("\nsim = ")[0], run(imports))["median_buff"]
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
    assert all(BIBTEX[key] in sim.citation() for key in median_buff.references)
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


def test_the_engine_page_names_every_server() -> None:
    from jaxafl import server

    names = [name for name in server.__all__ if name.islower() and callable(getattr(server, name))]
    constructors = [name for name in names if "References" in (getattr(server, name).__doc__ or "")]
    assert constructors
    assert [name for name in constructors if f"`{name}`" not in ENGINE] == []


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
