"""The papers' tables and figures: whole, and runnable in small."""

from __future__ import annotations

import functools
import importlib
import pathlib
import sys

import numpy as np
import pytest

import jaxafl as afl

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from experiments.__main__ import experiments  # noqa: E402
from experiments.suite import (  # noqa: E402
    Cell,
    Claim,
    Experiment,
    Values,
    main,
    more_than,
    report,
    running,
    sooner,
    time_to,
)
from experiments.suite.experiment import with_own  # noqa: E402

EXPERIMENTS = experiments()
NAMES = sorted(EXPERIMENTS)


@pytest.mark.parametrize("name", NAMES)
def test_tables_are_whole(name: str) -> None:
    """All names of methods and columns are those that are run, and what is claimed can be computed."""
    one = EXPERIMENTS[name]
    rows = {*one.methods, *one.contrasts}
    assert set(one.published) <= set(one.measures) and "smoke" in one.scales and "paper" in one.scales
    for columns in one.published.values():
        assert set(columns) <= set(one.columns)
        assert all(set(found) <= rows for found in columns.values())
    rng = np.random.default_rng(0)
    found = {(m, row, column): rng.normal(size=3) for m in one.measures for row in rows for column in one.columns}
    for claim in one.claims:
        assert np.shape(claim.of(Values(found, next(iter(one.measures))))) == (3,), claim.text
    for scale in one.scales:
        assert one.client_steps(scale) >= 0
    assert importlib.import_module(f"experiments.{name}").__doc__


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_table_runs_in_small(name: str, tmp_path: pathlib.Path) -> None:
    one = EXPERIMENTS[name]
    how = ["--folder", str(tmp_path), "--columns", one.columns[0], "--methods", *one.methods[:2]]
    main.main(one, how, f"experiments.{name}")
    stem = name.replace(".", "_")
    text = (tmp_path / f"{stem}.md").read_text()
    assert one.title in text and (tmp_path / f"{stem}.nc").exists()
    found = running.xr.load_dataset(tmp_path / f"{stem}.nc")
    assert (found.state.sel(row=list(one.methods[:2]), column=one.columns[0]) == "run").all()


def small(found: dict[str, float]) -> Experiment:
    """Two methods whose runs are replaced by schedules."""

    def cell(method: str, column: str, scale: str) -> Cell:
        if column == "absent":
            return Cell(missing, 3, 0)
        return Cell(lambda: simulation(), 3, 0)

    def missing() -> afl.Simulation:
        raise FileNotFoundError("no such data")

    measure = running.Measure(lambda made: np.asarray([found["a"] + one.time[-1] for one in made]), " s", 1)
    return Experiment(
        title="A table", family="small", cell=cell, methods=["a", "b"], columns=["one", "absent"],
        measures={"time": measure}, scales={"smoke": "nothing", "paper": "all"},
        published={"time": {"one": {"a": (3.0, 1.0), "b": 100.0}}}, contrasts={"a - b": ("a", "b")},
        claims=[Claim("a takes time", lambda v: v("a", "one")), Claim("a takes longer", lambda v: v("a", "absent"))],
        seeds=4,
    )  # fmt: skip


def test_gaps_bounds_and_targets(tmp_path: pathlib.Path) -> None:
    """A table without all cells, a published number that is only a bound, times to the target of a cell with axes."""
    axes = {("server.alpha",): [(0.25,), (0.5,)]}

    def cell(method: str, column: str, scale: str) -> Cell | None:
        return Cell(simulation, 3, 3, axes=axes, target=0.25) if column == method else None

    measure = time_to()._replace(of=lambda runs: time_to().of(runs)[:, 0])
    one = Experiment(
        title="A table", family="gaps", cell=cell, methods=["a", "b"], columns=["a", "c"], measures={"time": measure},
        scales={"smoke": "", "paper": ""}, published={"time": {"a": {"a": more_than(9)}}},
    )  # fmt: skip
    assert one.client_steps("paper") == 3
    found = running.run(
        one, "gaps", "paper", methods=["a", "b"], columns=["a", "c"], seeds=2, folder=tmp_path, own={}
    )  # fmt: skip
    assert (found.state == "run").sum() == 1 and found.value.sel(row="a", column="a").notnull().all()
    assert "| a | a | > 9 |" in report.markdown(one, "experiments.small.table", found)


def test_times_are_compared_where_some_are_infinite() -> None:
    one, other = np.asarray([1, np.inf, np.inf, 2, np.nan]), np.asarray([3, 2, np.inf, np.inf, 1])
    np.testing.assert_array_equal(sooner(one, other), [0.5, -1, 0, 1, np.nan])


@functools.cache
def simulation() -> afl.Simulation:
    import optax

    data = afl.data.from_arrays(np.ones((12, 2), np.float32), np.arange(12) % 2, np.arange(12) % 4, test_fraction=0.34)
    clock = afl.clock.free_running(concurrency=2, durations=afl.clock.uniform(1, 2))
    client = afl.Client(optax.sgd, learning_rate=0.1, steps=1, batch_size=2)
    return afl.Simulation(data, afl.models.logistic(2), client, afl.server.fedasync(0.5), clock)


def test_results_are_kept_compared_and_shown(tmp_path: pathlib.Path) -> None:
    """Also those of an earlier call; what has no data says so."""
    found = {"a": 0.0}
    one, how = small(found), {"folder": tmp_path, "own": {}, "seeds": 4, "columns": ["one", "absent"]}
    first = running.run(one, "small", "paper", methods=["a"], **how)
    times = [simulation().schedule(3, seed).time[-1] for seed in range(4)]
    np.testing.assert_allclose(first.value.sel(measure="time", row="a", column="one"), times)
    found["a"] = 1.0
    both = running.run(one, "small", "paper", methods=["b"], **how)
    np.testing.assert_allclose(both.value.sel(row="a", column="one").values[0], times)
    np.testing.assert_allclose(both.value.sel(row="a - b", column="one").values[0], -1.0)
    assert str(both.state.sel(row="b", column="absent").values) == "not run: no data"
    text = report.markdown(one, "experiments.small.table", both)
    z = (np.mean(times) - 3) / np.hypot(1.0, np.std(times, ddof=1))
    assert f"| one | a | 3 ± 1 s | {np.mean(times):.1f} ± {np.std(times, ddof=1):.1f} s | {z:+.1f} |" in text
    assert "| absent | b |  | not run: no data |  |" in text
    assert "- a takes time: holds (mean" in text and "- a takes longer: not run" in text
    assert running.run(one, "small", "paper", methods=[], **(how | {"seeds": 2})).value.isnull().all()


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([1.0, 1.1, 0.9], "holds"),
        ([-1.0, -1.1, -0.9], "does not hold"),
        ([1.0, -1.0, 0.1], "not decided by these seeds"),
        ([2.0, 2.0], "holds"),
        ([0.0, 0.0], "not decided by these seeds"),
        ([2.0], "not decided by 1 seed"),
    ],
)
def test_verdicts(numbers: list[float], said: str) -> None:
    assert report.verdict(np.asarray(numbers)).startswith(said)


def test_a_method_of_ones_own() -> None:
    """A server, what makes one, or what changes a simulation."""
    cell, server = Cell(simulation, 3, 3), afl.server.fedasync(0.25)
    for own in (server, lambda: server, lambda sim: server):
        made = with_own(cell, own).make()
        assert made.server is server and made.data is simulation().data
    assert with_own(cell, lambda sim: sim).make() is simulation()
