"""The papers' tables and figures: whole, and runnable in small."""

from __future__ import annotations

import dataclasses
import importlib
import pathlib
import re
import sys

import numpy as np
import pytest
import xarray as xr

import jaxafl as afl

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from experiments.__main__ import experiments, page  # noqa: E402
from experiments.asyncfeded import setting  # noqa: E402
from experiments.optimal import setting as solved  # noqa: E402
from experiments.suite import (  # noqa: E402
    Cell,
    Claim,
    Experiment,
    Values,
    command,
    last,
    main,
    report,
    running,
    sooner,
    time_to,
)
from experiments.tables import heterogeneous  # noqa: E402
from tests.problems import classifier  # noqa: E402
from tests.variants import slow_but  # noqa: E402

EXPERIMENTS = experiments()
NAMES = sorted(EXPERIMENTS)


@pytest.mark.parametrize("name", NAMES)
def test_the_names_in_a_table_are_those_of_its_runs(name: str) -> None:
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
    for names in (one.methods, one.columns):
        assert len({running._plain(name) for name in names}) == len(names), "runs would share a folder"
    assert one.client_steps("smoke") >= 0
    assert importlib.import_module(f"experiments.{name}").__doc__
    assert one.title[:20] in command._parser(one, name).format_help()


def test_the_page_is_that_of_the_results() -> None:
    """`python -m experiments --page` was called after the last run."""
    assert (ROOT / "experiments" / "README.md").read_text(encoding="utf-8") == page(EXPERIMENTS)


def test_the_clock_of_fadas_replays_the_released_simulators_draws() -> None:
    """The paper's τ_max, and the mean and median over steps of the largest staleness."""
    one = EXPERIMENTS["fadas.clock"]
    cell = one.cell(one.methods[1], one.columns[0], "paper")
    found = cell.make().schedule(cell.lengths()[0]).statistics()
    names = ("staleness_max", "max_staleness_per_step_mean", "max_staleness_per_step_median", "time")
    np.testing.assert_allclose([found[name] for name in names], (127, 10.888, 6.0, 3214.84), atol=0.005)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Where tables of one family find each other's runs."""
    return tmp_path_factory.mktemp("tables")


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in NAMES])
def test_a_table_runs_in_small(name: str, shared: pathlib.Path) -> None:
    """The first and the last method of its first column. All tables take five minutes on two cores."""
    one = EXPERIMENTS[name]
    there = [method for method in one.methods if one.cell(method, one.columns[0], "smoke")]
    methods = list(dict.fromkeys([there[0], there[-1]]))
    main(one, ["--folder", str(shared), "--columns", one.columns[0], "--methods", *methods], f"experiments.{name}")
    stem = name.replace(".", "_")
    path = running.path_of(shared, stem, "smoke", 1)
    assert one.title in path.with_suffix(".md").read_text()
    found = running.xr.load_dataset(path)
    assert (found.state.sel(row=methods, column=one.columns[0]) == "run").all()


def small(found: dict[str, float]) -> Experiment:
    """Two methods whose runs are replaced by schedules."""

    def cell(method: str, column: str, scale: str) -> Cell:
        if column == "absent":
            return Cell(missing, 3, 0)
        return Cell(classifier, 3, 0)

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


def test_times_are_compared_where_some_are_infinite() -> None:
    one, other = np.asarray([1, np.inf, np.inf, 2, np.nan]), np.asarray([3, 2, np.inf, np.inf, 1])
    np.testing.assert_allclose(sooner(one, other), [0.5, -1, 0, 1, np.nan], atol=1e-15)


def test_results_are_kept_compared_and_shown(tmp_path: pathlib.Path) -> None:
    """Also those of an earlier call; what has no data says so."""
    found = {"a": 0.0}
    one, how = small(found), {"folder": tmp_path, "own": {}, "seeds": 4, "columns": ["one", "absent"]}
    first = running.run(one, "small", "paper", methods=["a"], **how)
    times = [classifier().schedule(3, seed).time[-1] for seed in range(4)]
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
    assert "- a takes time: holds (mean" in text and "- a takes longer: not run: no data\n" in text
    nothing = running.empty(one, "paper", ["a", "b"], 4)
    assert [found for _, found in report.claimed(one, nothing)] == ["not run", "not run"]
    nothing.state[:] = "run"
    assert {found for _, found in report.claimed(one, nothing)} == {"not decided (no number at this scale)"}
    assert running.run(one, "small", "paper", methods=[], **(how | {"seeds": 2})).value.isnull().all()


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_results_are_not_replaced_by_smaller_ones(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of another scale, fewer seeds, some rows, data that is gone, a method of one's own, a call that fails."""
    one, how = small({"a": 0.0}), ["--folder", str(tmp_path)]
    main(one, [*how, "--scale", "paper"], "experiments.small.table")
    before = contents(tmp_path)
    assert before.keys() == {"small_table_paper_4_seeds.nc", "small_table_paper_4_seeds.md"}
    main(one, [*how, "--scale", "paper", "--seeds", "2"], "experiments.small.table")
    main(one, [*how, "--scale", "smoke", "--seeds", "4"], "experiments.small.table")
    main(one, [*how, "--scale", "paper", "--method", "tests.own_methods:doubled"], "experiments.small.table")
    with_own = tmp_path / "small_table_paper_4_seeds_with_doubled.md"
    assert "| one | doubled |" in with_own.read_text() and "| one | b |" in with_own.read_text()
    broken = dataclasses.replace(one, cell=lambda method, *place: one.cell(method, *place) if method == "a" else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(broken, [*how, "--scale", "paper"], "experiments.small.table")
    gone = dataclasses.replace(one, cell=lambda method, column, scale: one.cell(method, "absent", scale))
    main(gone, [*how, "--scale", "paper", "--methods", "b"], "experiments.small.table")
    after = contents(tmp_path)
    assert after["small_table_paper_4_seeds.md"] == before["small_table_paper_4_seeds.md"]
    assert not [name for name in after if ".part." in name]
    kept = running.xr.load_dataset(tmp_path / "small_table_paper_4_seeds.nc")
    assert kept.value.sel(row=["a", "b"], column="one").notnull().all()


@pytest.mark.parametrize("written", slow_but(["doubled", "Halving", "halving", "whole", "tuned"], "doubled", "tuned"))
def test_a_method_of_ones_own_is_run_first(written, tmp_path, capsys):
    """A class with options, a server, a function without required arguments, one of the table's simulation."""
    one, how = small({"a": 0.0}), ["--folder", str(tmp_path), "--columns", "one", "--seeds", "1"]
    main(one, [*how, "--method", f"tests.own_methods:{written}"], "experiments.small.table")
    said = capsys.readouterr().out
    assert said.splitlines()[0] == f"small_table: one, {written}" and f"| one | {written} |" in said
    assert re.search(rf"`python -m experiments.small.table .* --method tests.own_methods:{written}` ·", said)
    results = running.xr.load_dataset(tmp_path / f"small_table_smoke_1_seed_with_{written}.nc")
    own, base = (results.value.sel(row=row, column="one").values.item() for row in (written, "a"))
    assert f"- {written} minus a, one: {own - base:+.3g}" in said and "(1 seed, " in said
    assert f"- {written} ran as " in said and "Client(" in said


@pytest.mark.parametrize(
    ("written", "error"),
    [
        ("tests.own_methods:needs", "needs needs values of learning_rate, more"),
        ("doubled", "--method is written module:name, got 'doubled'"),
        ("tests.own_methods:a", "there is another method a"),
    ],
)
def test_an_invalid_method_raises_before_any_run(written, error, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(small({"a": 0.0}), ["--folder", str(tmp_path), "--method", written], "experiments.small.table")
    said = capsys.readouterr()
    assert error in said.err and "small_table: " not in said.out and list(tmp_path.iterdir()) == []


def runs_of(times: list[list[float]], values: list[list[float]]) -> running.xr.Dataset:
    """Runs of two seeds that were evaluated at times of their own."""
    dims = ("seed", "evaluation")
    return running.xr.Dataset({"accuracy": (dims, values)}, {"eval_time": (dims, times)})


def test_targets_are_reached_up_to_rounding_and_from_above_by_losses() -> None:
    places = {"eval_time": ("evaluation", [0.0, 1.0, 2.0])}
    accuracy = xr.Dataset({"accuracy": ("evaluation", np.float32([0.1, 7 / 10, 0.9]))}, places)
    assert time_to(0.7).of(accuracy) == 1.0
    assert time_to(0.5, "loss").of(xr.Dataset({"loss": ("evaluation", [0.9, 0.8, 0.5])}, places)) == 2.0


def test_curves_of_seeds_share_their_places() -> None:
    """Straight between evaluations; nothing after the last one of a seed."""
    made = runs_of([[0, 2, 4], [0, 1, np.nan]], [[0, 2, 4], [0, 3, np.nan]])
    blank = running.empty(small({"a": 0.0}), "paper", ["a"], 2)
    found = running.with_curve(blank, ("accuracy", "eval_time"), made, "a", "one", most=9)
    curve, along = (found[name].sel(row="a", column="one").values for name in ("curve", "curve_along"))
    np.testing.assert_allclose(along, np.tile(np.linspace(0, 4, 9), (2, 1)))
    np.testing.assert_allclose(curve[0], np.linspace(0, 4, 9))
    np.testing.assert_allclose(curve[1], [0, 1.5, 3, *[np.nan] * 6])


def test_the_last_evaluations_are_those_of_each_run() -> None:
    """Which may end before others; a run whose parameters stopped being finite has got nothing right."""
    made = runs_of([[0, 1, 2], [0, 1, np.nan], [0, 1, 2]], [[0.1, 0.5, 0.7], [0.2, 0.4, np.nan], [0.9, 0.9, np.nan]])
    made["failed_step"] = ("seed", [-1, -1, 7])
    np.testing.assert_allclose(last(of=2).of(made), [60, 30, 0])
    loss = made.rename(accuracy="loss")
    np.testing.assert_allclose(last("loss", of=2, factor=1.0).of(loss), [0.6, 0.3, np.inf])


def test_asyncfeded_looks_at_runs_every_second() -> None:
    """What was evaluated last holds; a model that is not finite any more gets nothing right."""
    made = runs_of([[0, 100, 301], [0, 150, np.nan]], [[0.1, 0.5, 0.9], [0.2, 0.4, np.nan]])
    found = setting.seen(made)
    np.testing.assert_allclose(found[0], [0.1] * 99 + [0.5] * 201)
    np.testing.assert_allclose(found[1], [0.2] * 149 + [0.4] + [0] * 150)
    measured = {name: one.of(made).tolist() for name, one in setting.MEASURES.items()}
    assert measured[setting.BEST] == [50, 40] and measured[setting.SOON] == [100, 150]


def test_a_quadratic_is_solved_between_two_server_steps() -> None:
    """When the mean over versions is the target; at once, or never."""
    squared = [[4.0, 2.0, 0.0], [3.0, 9.0, 9.0], [9.0, 9.0, 0.0], [9.0, np.nan, np.nan]]
    runs = running.xr.Dataset(
        {"observe_squared": (("seed", "version"), squared), "time": ("step", [1.0, 5.0])}, attrs={"target": 2.5}
    )
    np.testing.assert_allclose(solved.seconds(runs), [3.0, np.inf, np.inf, np.inf])
    np.testing.assert_allclose(solved.seconds(runs.assign_attrs(target=3.5)), [0.5, 0.0, np.inf, np.inf])


@pytest.mark.parametrize("together", [True, False])
def test_four_clients_have_classes_of_their_own(together: bool) -> None:
    """The first four, or every fifth; the data are the same, and no sample is lost."""
    labels = np.random.default_rng(1).permutation(np.arange(2000) % 10)
    parts = heterogeneous.two_groups(together).split(labels, None, np.random.default_rng(0))
    held = [set(labels[part]) for part in parts]
    holders = [0, 1, 2, 3] if together else [0, 5, 10, 15]
    assert [client for client, classes in enumerate(held) if classes <= {8, 9}] == holders
    assert all(not held[client] & {8, 9} for client in set(range(20)) - set(holders))
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(2000))
    other = heterogeneous.two_groups(not together).split(labels, None, np.random.default_rng(0))
    assert sorted(map(tuple, parts)) == sorted(map(tuple, other))


def test_a_rate_is_chosen_by_validation() -> None:
    """Not by test accuracy, nor where parameters stopped being finite; slow clients are the first four."""
    validation = np.array([[0.2, 0.6, 0.9], [0.4, 0.4, 0.9]])[..., None]
    clients = np.repeat([0.25, 0.75], [4, 16]) * np.ones((2, 3, 1, 1))
    dims = ("seed", "server.learning_rate", "evaluation")
    runs = running.xr.Dataset(
        {
            "validation_accuracy": (dims, validation),
            "accuracy": (dims, np.array([[0.9, 0.1, 0.5]] * 2)[..., None]),
            "client_accuracy": ((*dims, "population"), clients),
            "failed_step": (dims[:2], [[-1, -1, 3], [-1, -1, 3]]),
        },
        {"server.learning_rate": [0.1, 0.3, 1.0], "population": np.arange(20)},
    )
    found = heterogeneous.at_chosen(runs.transpose("server.learning_rate", ...))
    measures = (heterogeneous.RATE, heterogeneous.ON_SLOW, heterogeneous.ON_FAST, heterogeneous.ON_ALL)
    values = [heterogeneous.EXPERIMENT.measures[name].of(found) for name in measures]
    np.testing.assert_allclose(values, np.transpose([[0.3, 25.0, 75.0, 10.0]] * 2))


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([1.0, 1.1, 0.9], "holds"),
        ([-1.0, -1.1, -0.9], "does not hold"),
        ([1.0, -1.0, 0.1], "not decided by these seeds"),
        ([2.0] * 5, "not decided by these seeds (2 for all 5 seeds, sign test p = 0.062)"),
        ([2.0] * 6, "holds (2 for all 6 seeds, sign test p = 0.031)"),
        ([0.3, 0.1 + 0.2, 0.3], "not decided by these seeds (0.3 for all 3 seeds, sign test p = 0.25)"),
        ([0.0, 0.0], "not decided by these seeds (0 for all 2 seeds)"),
        ([2.0], "not decided by 1 seed"),
        ([101.0, 102.0, 103.0, -np.inf, -np.inf], "not decided by these seeds (mean 0.2"),
    ],
)
def test_a_verdict_says_if_the_claim_holds(numbers: list[float], said: str) -> None:
    assert report.verdict(np.asarray(numbers)).startswith(said)


def test_equal_numbers_have_no_error_of_their_own() -> None:
    same = np.full(200, 10.7869)
    assert np.isnan(report.deviation(same, 10.6, np.nan)) and np.isclose(report.deviation(same, 10.6, 0.1), 1.869)


def test_a_target_that_not_all_seeds_reach_has_no_mean() -> None:
    some = np.asarray([3.0, np.inf, 4.0])
    assert running.figures(running.Measure(lambda runs: some, " s"), some) == "reached by 2 of 3 seeds"
    assert running.figures(running.Measure(lambda runs: some, " s"), some, 1) == "1 of 3 seeds diverged"
    assert running.figures(running.Measure(lambda runs: some, " %"), np.zeros(1), 1) == "0.00 % (1 of 1 seed diverged)"
    assert np.isnan(report.deviation(some, 5.0, 1.0))
