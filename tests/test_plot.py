"""Figures: what they show, that they are saved, and that they need no display."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from matplotlib import colormaps
from matplotlib.figure import Figure

from jaxafl import clock, plot
from jaxafl.clock.schedules import schedule as compute_schedule
from jaxafl.options import UserError
from jaxafl.results.members import members

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


def test_accuracy_is_drawn_in_percent_against_seconds_and_steps():
    made = result()
    for draw, against in ((plot.accuracy_vs_time, "eval_time"), (plot.accuracy_vs_steps, "eval_step")):
        (line,) = draw(made).axes[0].lines
        np.testing.assert_allclose(line.get_xdata(), made[against])
        np.testing.assert_allclose(line.get_ydata(), 100 * made["accuracy"])


def test_seeds_become_one_mean_line_with_a_band_and_other_axes_a_line_each():
    ax = plot.accuracy_vs_steps(grid()).axes[0]
    assert [line.get_label() for line in ax.lines] == ["server.alpha=0.2", "server.alpha=0.5"]
    assert len(ax.collections) == 2
    np.testing.assert_allclose(ax.lines[0].get_ydata()[[0, -1]], [1.0, 51.0])  # the mean of offsets 0, 1 and 2 %
    assert "3 seeds" in ax.get_legend().get_title().get_text()


def test_where_lines_have_unlike_numbers_of_seeds_each_says_its_own():
    ax = plot.accuracy_vs_time({"x": grid(), "y": result()}).axes[0]
    assert [line.get_label() for line in ax.lines] == [
        "x, server.alpha=0.2 (3 seeds)",
        "x, server.alpha=0.5 (3 seeds)",
        "y (1 seed)",
    ]
    assert ax.get_legend().get_title().get_text() == "mean ± std over seeds"


def test_the_mean_over_time_stays_within_what_all_seeds_cover():
    ax = plot.accuracy_vs_time(grid()).axes[0]
    assert ax.lines[0].get_xdata().max() == pytest.approx(12.0)  # the shortest of 12, 13.2 and 14.4 s


def test_evaluations_that_a_failed_run_did_not_reach_are_left_out():
    made = result()
    made["accuracy"][-2:] = np.nan
    (line,) = plot.accuracy_vs_time(made).axes[0].lines
    assert len(line.get_xdata()) == len(made["accuracy"]) - 2


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


def test_the_histogram_counts_arrivals_only():
    made = result()
    made["staleness"] = made["staleness"].where(made["step"] < made.sizes["step"] - 4)
    bars = plot.staleness_histogram(made).axes[0].patches
    assert [round(bar.get_height(), 1) for bar in bars] == [12.5, 12.5, 12.5, 62.5]


def test_the_histogram_of_large_staleness_has_few_bars_that_add_up():
    made = result(1000)
    made["staleness"][:, 0] = np.arange(1000)
    bars = plot.staleness_histogram(made).axes[0].patches
    assert len(bars) <= 40
    assert sum(bar.get_height() for bar in bars) == pytest.approx(100)


def test_the_timeline_has_a_bar_for_every_run_from_start_to_arrival():
    made = result()
    bars = plot.timeline(made).axes[0].collections[0]
    spans = sorted((path.vertices[:, 0].min(), path.vertices[:, 0].max()) for path in bars.get_paths())
    expected = sorted(zip(made["started_at"].values[:, 0], made["arrived_at"].values[:, 0], strict=True))
    np.testing.assert_allclose(spans, expected)


def spans(bars):
    """Left and right ends and rows of the bars of a collection, sorted."""
    corners = [path.vertices for path in bars.get_paths()]
    return sorted((c[:, 0].min(), c[:, 0].max(), round(c[:, 1].mean())) for c in corners)


@pytest.mark.slow
def test_the_timeline_shows_runs_in_flight_at_the_end_as_a_longer_schedule_has_them():
    protocol = clock.free_running(concurrency=3, buffer=2, durations=clock.uniform(1, 5, per="client"))
    short, long = (compute_schedule(protocol, 5, 5, steps, 1) for steps in (6, 30))
    end = short.time[-1]
    flying = long.mask & (long.started < end) & (long.arrived > end)
    ax = plot.timeline(short).axes[0]
    expected = sorted(zip(long.started[flying], np.full(flying.sum(), end), long.client[flying], strict=True))
    np.testing.assert_allclose(spans(ax.collections[-1]), expected)
    assert "faded" in ax.get_xlabel() and len(ax.get_yticklabels()) == 5


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


def ringmaster(how: str) -> clock.Clock:
    durations = clock.constant(np.array([1, 2.5]))
    return clock.free_running(concurrency=2, durations=durations, max_staleness=2, on_bound=how)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        pytest.param(ringmaster("stop"), [(0, 2), (2, 4)], marks=pytest.mark.slow),  # stopped again after the last step
        pytest.param(ringmaster("refuse"), [(0, 2.5), (2.5, 5)], marks=pytest.mark.slow),
        (
            clock.synchronous(cohort=1, extra=1, durations=clock.constant(np.array([1, 2.5]))),
            [(t, t + 1) for t in range(6)],
        ),
    ],
)
def test_the_timeline_crosses_refused_and_stopped_runs(made, expected):
    """The slow client's runs, by hand, while the fast one steps at 1, 2, ... 6 s."""
    schedule = compute_schedule(made, 2, 1, 6)
    assert schedule.time.tolist() == [1, 2, 3, 4, 5, 6]
    ax = plot.timeline(schedule).axes[0]
    (crossed,) = [bars for bars in ax.collections if bars.get_hatch() == "xxxx"]
    spans = [(path.vertices[:, 0].min(), path.vertices[:, 0].max()) for path in crossed.get_paths()]
    assert spans == expected
    assert all(0.5 < path.vertices[:, 1].mean() < 1.5 for path in crossed.get_paths())  # of client 1
    assert "crossed: refused, stopped or lost" in ax.get_xlabel() and "without" not in ax.get_title()


@pytest.mark.slow
def test_timelines_that_are_compared_share_an_axis_and_until_ends_it():
    two = {
        n: compute_schedule(clock.free_running(concurrency=2, durations=clock.constant(n)), 4, 1, 8, 0) for n in (1, 3)
    }
    axes = [ax for ax in plot.timeline({str(n): one for n, one in two.items()}).axes if ax.get_ylabel() == "client"]
    assert [ax.get_xlim() for ax in axes] == [(0, 12.0)] * 2
    ax = plot.timeline(two[3], until=5.0).axes[0]
    assert ax.get_xlim() == (0, 5.0) and "first 5 of 12 s" in ax.get_title()
    for limit in ("until", "max_clients", "max_runs"):
        with pytest.raises(ValueError, match=f"timeline: {limit} must be"):
            plot.timeline(two[3], **{limit: 0})


def test_a_timeline_may_end_before_its_clients_start():
    made = compute_schedule(clock.free_running(concurrency=1, durations=clock.constant(1)), 4, 1, 8, 0)
    first = made.client.ravel()[0]
    assert first != 0  # the only client that is shown
    assert not plot.timeline(made, max_clients=1, until=0.5).axes[0].collections[0].get_paths()


@pytest.mark.slow
def test_the_timeline_of_thousands_of_clients_shows_some_and_says_so():
    protocol = clock.free_running(concurrency=200, buffer=20, durations=clock.uniform(1, 5))
    schedule = compute_schedule(protocol, 2000, 5, 200, 0)
    ax = plot.timeline(schedule, max_clients=30, max_runs=20).axes[0]
    assert "30 of 2000 clients, evenly spaced" in ax.get_title() and "first" in ax.get_title()
    assert len(ax.collections[0].get_paths()) <= 20


@pytest.mark.parametrize("worst", [0, 1, 3])
def test_the_colours_of_the_timeline_are_the_levels_of_staleness_there_are(worst):
    made = result()
    made["staleness"][:] = np.minimum(made["staleness"], worst)
    figure = plot.timeline(made)
    bars, bar = figure.axes[0].collections[0], figure.axes[1]
    assert [label.get_text() for label in bar.get_yticklabels()] == [str(level) for level in range(worst + 1)]
    assert bar.get_ylim() == (-0.5, worst + 0.5)
    shades = bars.to_rgba(np.arange(worst + 1))
    assert len({tuple(shade) for shade in shades}) == worst + 1
    assert tuple(shades[0]) == colormaps["viridis_r"](0)  # fresh is pale, whatever else there is


def test_a_run_that_is_offered_again_is_drawn_once():
    made = result(4)
    made["client_id"][:], made["run_index"][:] = 0, 0
    assert len(plot.timeline(made).axes[0].collections[0].get_paths()) == 1


@pytest.mark.parametrize("draw", FIGURES)
def test_figures_draw_into_given_axes(draw):
    ax = Figure().subplots()
    assert draw(result(), ax=ax) is ax.get_figure()
    assert ax.get_ylabel()


def test_axes_have_the_limits_that_are_given(tmp_path):
    for draw in (plot.accuracy_vs_time, plot.accuracy_vs_steps, plot.comparison):
        ax = draw(result(), metric="accuracy", xlim=(2, 5), ylim=(None, 80)).axes[0]
        assert ax.get_xlim() == (2, 5) and ax.get_ylim() == (draw(result()).axes[0].get_ylim()[0], 80)
    for wrong in ((5, 2), (1, 1), 3, (1, 2, 3), (0, np.inf)):
        with pytest.raises(ValueError, match="are not limits of an axis; expected"):
            plot.accuracy_vs_time(result(), xlim=wrong)
    held_out = result().rename(accuracy="validation_accuracy")
    assert (
        plot.accuracy_vs_time(held_out, metric="validation_accuracy").axes[0].get_ylabel() == "validation accuracy (%)"
    )
    with pytest.raises(ValueError, match=r"has no acuracy; it has accuracy; did you mean 'accuracy'") as error:
        plot.accuracy_vs_time(result(), metric="acuracy")
    assert "staleness" not in str(error.value) and "final_loss" not in str(error.value)


def test_a_result_that_cannot_be_drawn_is_an_error_that_says_why(tmp_path):
    with pytest.raises(TypeError, match=r"xarray\.Dataset"):
        plot.accuracy_vs_time([1, 2])
    with pytest.raises(ValueError, match="empty"):
        plot.timeline({})
    with pytest.raises(ValueError, match=r"no accuracy; .*afl\.models\.softmax_cross_entropy\(logits, batch\)"):
        plot.accuracy_vs_time(result().drop_vars("accuracy"))
    with pytest.raises(ValueError, match=r"must end in one of .*\.png"):
        plot.accuracy_vs_time(result(), path=tmp_path / "figure.doc")
    with pytest.raises(FileNotFoundError, match="no directory"):
        plot.accuracy_vs_time(result(), path=tmp_path / "absent" / "figure.png")
    with pytest.raises(ValueError, match="do not fit"):
        plot.timeline({"a": result(), "b": result()}, ax=Figure().subplots())
    with pytest.raises(ValueError, match="nobody arrived"):
        plot.timeline(result().isel(step=slice(0)))
    lines = plot.accuracy_vs_time(result().isel(evaluation=slice(1))).axes[0].lines
    assert [line.get_marker() for line in lines] == ["o"]  # a line of one point is none
    silent = result().assign(staleness=(("step", "arrival"), np.full((12, 1), -1)))
    with pytest.raises(ValueError, match="nobody arrived"):
        plot.staleness_histogram(silent)


def test_members_of_a_dict_of_sweeps_carry_both_names():
    names = [member.name for member in members({"x": grid(), "y": result()}, "accuracy")]
    assert names == ["x, server.alpha=0.2", "x, server.alpha=0.5", "y"]


def test_an_option_that_is_a_word_is_labelled_with_its_axis_and_a_whole_part_by_its_name():
    swept = xr.concat([result(), result()], dim="server.staleness")
    swept = swept.assign_coords({"server.staleness": ["constant", "polynomial"]})
    assert [member.name for member in members({"st": swept}, "accuracy")] == [
        "st, server.staleness=constant",
        "st, server.staleness=polynomial",
    ]
    swept = swept.rename({"server.staleness": "server"}).assign_coords(server=["fedasync", "fedbuff"])
    assert [member.name for member in members(swept, "accuracy")] == ["fedasync", "fedbuff"]


def test_more_lines_than_colours_still_differ():
    ax = plot.accuracy_vs_time({str(index): result(offset=index / 100) for index in range(12)}).axes[0]
    assert len({(str(line.get_color()), line.get_linestyle()) for line in ax.lines}) == 12


def test_a_comparison_goes_on_to_the_limit_of_time_that_ended_its_runs():
    ended = {name: result(stretch=stretch).assign_attrs(until_time=40.0) for name, stretch in (("a", 1.0), ("b", 1.5))}
    for line, one in zip(plot.comparison(ended).axes[0].lines, ended.values(), strict=True):
        assert line.get_xdata()[-1] == 40 > one.eval_time[-1]
        assert line.get_ydata()[-1] == pytest.approx(100 * one.accuracy[-1].item())
    steps = plot.comparison(ended, axis="server_steps").axes[0].lines[0]
    assert steps.get_xdata()[-1] == ended["a"].eval_step[-1]


def test_a_comparison_says_where_seeds_are_missing():
    def title(first, second):
        seeds = xr.concat([first, second], "seed").assign_coords(seed=[0, 1])
        return plot.comparison({"a": seeds}).axes[0].get_legend().get_title().get_text()

    assert title(result(), result(offset=0.01)) == "median, 25 to 75 % of seeds"
    assert title(result(), result(stretch=2.0)) == "median, 25 to 75 % of seeds\nwhere all seeds have run"


def test_a_timeline_shows_no_run_that_starts_after_its_end():
    made = clock.free_running(concurrency=2, durations=clock.constant([1.0, 1.5]))
    long, short = (compute_schedule(made, 2, 1, server_steps) for server_steps in (38, 12))
    ax = plot.timeline({"long": long, "short": short}, max_runs=4).axes[0]
    assert "first" in ax.get_title() and "faded" not in ax.get_xlabel()
    assert all(path.vertices[:, 0].max() < 5 for bars in ax.collections for path in bars.get_paths())


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
