"""Figures: what they show, that they are saved, and that they need no display."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure

from jaxafl import clock, plot
from jaxafl.clock import schedule as compute_schedule
from jaxafl.options import UserError

FIGURES = [plot.accuracy_vs_time, plot.accuracy_vs_steps, plot.comparison, plot.staleness_histogram, plot.timeline]


def result(steps: int = 12, clients: int = 4, *, offset: float = 0.0, stretch: float = 1.0) -> xr.Dataset:
    """A small result: client t % N arrives at step t, after a run of two seconds."""
    time = stretch * np.arange(1.0, steps + 1)
    evaluated = np.arange(0, steps + 1, 3)
    column = (("step", "arrival"),)
    return xr.Dataset(
        {
            "time": (("step",), time),
            "client_id": (*column, np.arange(steps)[:, None] % clients),
            "run_index": (*column, np.arange(steps)[:, None] // clients),
            "staleness": (*column, np.minimum(np.arange(steps), 3)[:, None]),
            "started_at": (*column, np.maximum(time - 2, 0)[:, None]),
            "arrived_at": (*column, time[:, None]),
            "accuracy": (("evaluation",), offset + 0.5 * evaluated / steps),
        },
        {
            "eval_time": (("evaluation",), np.concatenate([[0.0], time])[evaluated]),
            "eval_step": (("evaluation",), evaluated),
        },
        {"title": "fedasync on free_running, toy"},
    )


def grid() -> xr.Dataset:
    """Two values of α, three seeds whose evaluations come at different times."""
    rows = []
    for offset in (0.0, 0.2):
        seeds = [result(offset=offset + 0.01 * seed, stretch=1 + 0.1 * seed) for seed in range(3)]
        rows.append(xr.concat(seeds, dim="seed"))
    return xr.concat(rows, dim="server.alpha").assign_coords({"seed": [0, 1, 2], "server.alpha": [0.2, 0.5]})


@pytest.mark.parametrize("draw", FIGURES)
@pytest.mark.parametrize(
    "results",
    [result(), pytest.param({"a": result(), "b": result(20)}, marks=pytest.mark.slow), grid()],
    ids=["one", "dict", "sweep"],
)
def test_every_figure_of_every_form_of_results_is_saved_with_labelled_axes(draw, results, tmp_path):
    path = tmp_path / "figure.png"
    figure = draw(results, path=path)
    assert isinstance(figure, Figure)
    assert path.stat().st_size > 5000
    assert figure._repr_png_().startswith(b"\x89PNG")  # which a notebook shows
    panels = [ax for ax in figure.axes if ax.get_title() or ax.get_xlabel() or ax.get_label() != "<colorbar>"]
    assert all(ax.get_ylabel() for ax in panels)
    assert any("(s)" in ax.get_xlabel() or "steps" in ax.get_xlabel() for ax in panels)


def test_seeds_become_one_mean_line_with_a_band_and_other_axes_a_line_each():
    ax = plot.accuracy_vs_steps(grid()).axes[0]
    assert [line.get_label() for line in ax.lines] == ["server.alpha=0.2", "server.alpha=0.5"]
    assert len(ax.collections) == 2
    np.testing.assert_allclose(ax.lines[0].get_ydata()[[0, -1]], [1.0, 51.0])  # the mean of offsets 0, 1 and 2 %
    assert "3 seeds" in ax.get_legend().get_title().get_text()


@pytest.mark.parametrize("draw", [plot.accuracy_vs_time, plot.accuracy_vs_bytes, plot.comparison])
def test_a_cross_is_where_a_run_failed(draw):
    """Also where it made no step, so that there is no line."""
    made = result().assign_attrs(failed_step=0).assign_coords(eval_bytes=("evaluation", np.arange(5.0)))
    made["accuracy"][1:] = np.nan
    ax = draw(made).axes[0]
    line, cross = ax.lines
    assert cross.get_marker() == "x" and cross.get_xdata().tolist() == [0.0] == line.get_xdata().tolist()
    assert ax.get_legend().get_texts()[1].get_text() == "failed at server step 0"
    swept = grid().assign(failed_step=(("server.alpha", "seed"), [[-1, -1, -1], [5, -1, 7]]))
    swept = swept.assign_coords(eval_bytes=swept.eval_time)
    crosses = [line for line in draw(swept).axes[0].lines if line.get_marker() == "x"]
    assert [cross.get_label() for cross in crosses] == ["server.alpha=0.5: 2 of 3 failed"]


def test_the_timeline_has_a_bar_for_every_run_from_start_to_arrival():
    made = result()
    columns = (made[name].values[:, 0] for name in ("started_at", "arrived_at", "client_id"))
    np.testing.assert_allclose(spans(plot.timeline(made).axes[0].collections[0]), sorted(zip(*columns, strict=True)))


def spans(bars):
    """Left and right ends and rows of the bars of a collection, sorted."""
    corners = [path.vertices for path in bars.get_paths()]
    return sorted((c[:, 0].min(), c[:, 0].max(), round(c[:, 1].mean())) for c in corners)


@pytest.mark.slow
def test_the_timeline_hatches_hangs_and_waits():
    table = np.asarray([[1.0, 2.0], [3.0, 1.0]])
    rounds = compute_schedule(clock.trace(clock.synchronous, durations=table), 2, 1, 2, 0)
    ax = plot.timeline(rounds).axes[0]
    assert spans(ax.collections[-2]) == [(1.0, 3.0, 0), (4.0, 5.0, 1)]  # the faster client of each round waits
    hanging = clock.free_running(concurrency=2, durations=clock.constant(2.0) + clock.suspension(0.5))
    schedule = compute_schedule(hanging, 2, 1, 20, 0)
    late = schedule.arrived - schedule.started > 2.0
    found = spans(plot.timeline(schedule).axes[0].collections[-2])
    expected = sorted(zip(schedule.started[late] + 2, schedule.arrived[late], schedule.client[late], strict=True))
    assert 0 < late.sum() < 20
    np.testing.assert_allclose(found, expected)
    nights = clock.constant(2.0) + clock.available(12, 24, day=24.0)
    schedule = compute_schedule(clock.free_running(1, durations=nights), 1, 1, 1)
    assert spans(plot.timeline(schedule).axes[0].collections[-2]) == [(0, 12, 0)]


SLOW = clock.constant(np.array([1, 2.5]))


def ringmaster(how: str) -> clock.Clock:
    return clock.free_running(concurrency=2, durations=SLOW, max_staleness=2, on_bound=how)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        pytest.param(ringmaster("stop"), [(0, 2), (2, 4)], marks=pytest.mark.slow),  # stopped again after the last step
        pytest.param(ringmaster("refuse"), [(0, 2.5), (2.5, 5)], marks=pytest.mark.slow),
        (clock.synchronous(cohort=1, extra=1, durations=SLOW), [(t, t + 1) for t in range(6)]),
    ],
)
def test_the_timeline_crosses_refused_and_stopped_runs(made, expected):
    """The slow client's runs, by hand, while the fast one steps at 1, 2, ... 6 s."""
    schedule = compute_schedule(made, 2, 1, 6)
    assert schedule.time.tolist() == [1, 2, 3, 4, 5, 6]
    ax = plot.timeline(schedule).axes[0]
    (crossed,) = [bars for bars in ax.collections if bars.get_hatch() == "xxxx"]
    assert spans(crossed) == [(*span, 1) for span in expected]  # of client 1
    assert "crossed: refused, stopped or lost" in ax.get_xlabel() and "without" not in ax.get_title()


@pytest.mark.parametrize("draw", FIGURES)
def test_figures_draw_into_given_axes(draw):
    ax = Figure().subplots()
    assert draw(result(), ax=ax) is ax.get_figure()
    assert ax.get_ylabel()


SILENT = result().assign(staleness=(("step", "arrival"), np.full((12, 1), -1)))


@pytest.mark.parametrize(
    ("draw", "error", "word"),
    [
        (lambda: plot.accuracy_vs_time(result().drop_vars("accuracy")), ValueError, "accuracy"),
        (lambda: plot.accuracy_vs_time(result(), path="figure.doc"), ValueError, "png"),
        (lambda: plot.timeline({"a": result(), "b": result()}, ax=Figure().subplots()), ValueError, "fit"),
        (lambda: plot.staleness_histogram(SILENT), ValueError, "nobody arrived"),
    ],
)
def test_a_result_that_cannot_be_drawn_is_an_error_that_says_why(draw, error, word):
    with pytest.raises(error, match=word):
        draw()


def test_a_line_of_one_point_is_a_marker():
    lines = plot.accuracy_vs_time(result().isel(evaluation=slice(1))).axes[0].lines
    assert [line.get_marker() for line in lines] == ["o"]


def test_a_comparison_goes_on_to_the_limit_of_time_that_ended_its_runs():
    ended = {name: result(stretch=stretch).assign_attrs(until_time=40.0) for name, stretch in (("a", 1.0), ("b", 1.5))}
    for line, one in zip(plot.comparison(ended).axes[0].lines, ended.values(), strict=True):
        assert line.get_xdata()[-1] == 40 > one.eval_time[-1]
        assert line.get_ydata()[-1] == pytest.approx(100 * one.accuracy[-1].item())
    steps = plot.comparison(ended, axis="server_steps").axes[0].lines[0]
    assert steps.get_xdata()[-1] == ended["a"].eval_step[-1]


@pytest.mark.parametrize("draw", FIGURES)
def test_figures_of_an_unfinished_sweep_show_what_is_finished(draw):
    made = grid().reset_coords(["eval_time"])
    runs = xr.DataArray([[True, True, False], [False] * 3], dims=("server.alpha", "seed"))
    part = made.where(runs).set_coords("eval_time")
    part["client_id"] = part.client_id.fillna(-1).astype(int)
    figure = draw(part)
    texts = [text.get_text() for text in figure.findobj(lambda one: hasattr(one, "get_text"))]
    assert draw is plot.timeline or any("4 of 6 runs are not finished" in text for text in texts)
    assert not any("0.5" in text and "alpha" in text for text in texts)
    with pytest.raises(UserError, match="there is no run to plot: none is finished"):
        draw(part.isel({"server.alpha": 1}))
