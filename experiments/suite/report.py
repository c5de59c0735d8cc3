"""Tables in Markdown of what was measured, beside what was published."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from scipy import stats

from experiments.suite.experiment import Claim, Experiment, Values
from experiments.suite.running import NO_DATA, figures
from jaxafl.study.paired import summary


def verdict(numbers: np.ndarray, unit: str = "") -> str:
    """Whether numbers, one per seed, are above 0: by Student's t at 5 % (two-sided); by a sign test where all are the
    same number, whose spread the seeds do not show. The unit follows the mean. A seed that never got there is infinite;
    then all count by their signs."""
    numbers = numbers[~np.isnan(numbers)]
    if np.isinf(numbers).any():
        numbers, unit = np.sign(numbers), " of the signs"
    mean, count = numbers.mean() if len(numbers) else np.nan, len(numbers)
    if count < 2:
        return f"not decided by {count} seed{'s' * (count != 1)} ({mean:.3g}{unit})"
    alike = np.ptp(numbers) <= 1e-9 * abs(mean)  # t would divide by what rounding leaves
    t, p = (np.nan, 0.5 ** (count - 1) if mean else 1.0) if alike else stats.ttest_1samp(numbers, 0.0)
    word = "not decided by these seeds" if p > 0.05 else "holds" if mean > 0 else "does not hold"
    if alike:
        test = f", sign test p = {p:.2g}" if mean and p > 0.001 else ""
        return f"{word} ({mean:.3g}{unit} for all {count} seeds{test})"
    return f"{word} (mean {mean:.3g}{unit}, t = {t:.2f}, p = {p:.2g}, {count} seeds)"


def claimed(experiment: Experiment, results: xr.Dataset) -> Iterator[tuple[Claim, str]]:
    """Every claim with its verdict."""
    found = {
        (measure, method, column): results.value.sel(measure=measure, row=method, column=column).values
        for measure in experiment.measures
        for method in results.row.values
        for column in experiment.columns
    }
    for claim in experiment.claims:
        values = Values(found, next(iter(experiment.measures)))
        numbers = np.asarray(claim.of(values), float)
        yield (
            claim,
            verdict(numbers, claim.unit) if not np.isnan(numbers).all() else _missing(experiment, results, values),
        )


def _missing(experiment: Experiment, results: xr.Dataset, values: Values) -> str:
    """Why a claim has no numbers: a cell that it reads was not run, or has no data here, or has no number."""
    cells = {(one, column) for method, column in values.read for one in experiment.contrasts.get(method, (method,))}
    states = {NO_DATA if c in experiment.no_data else str(results.state.sel(row=m, column=c).item()) for m, c in cells}
    return next((state for state in (NO_DATA, "not run") if state in states), "not decided (no number at this scale)")


def own_methods(experiment: Experiment, results: xr.Dataset) -> list[str]:
    """Lines about the user's methods: with which options they ran, and what they differ by from the table's methods in
    the first measure, paired by seed, with Student's t interval."""
    ran = json.loads(results.attrs.get("own", "{}"))
    measure, one = next(iter(experiment.measures.items()))
    lines = []
    for own in [str(row) for row in results.row.values if row not in {*experiment.methods, *experiment.contrasts}]:
        for text, columns in ran.get(own, {}).items():
            lines.append(f"- {own} ran as {text} ({', '.join(columns)})")
        for column in results.column.values:
            for method in experiment.methods:
                pair = [results.value.sel(measure=measure, row=row, column=column).values for row in (own, method)]
                numbers = pair[0] - pair[1]
                if not np.isfinite(numbers).all():
                    continue
                found = summary(numbers)
                interval = f" [{found.low:+.3g}, {found.high:+.3g}]" if len(numbers) > 1 else ""
                seeds = f"{len(numbers)} seed{'s' * (len(numbers) > 1)}"
                unit = " points" if one.unit == " %" else one.unit  # a difference of percentages is not relative
                lines.append(
                    f"- {own} minus {method}, {column}: {found.mean:+.3g}{interval}{unit} ({seeds}, {measure})"
                )
    note = "Differences are paired by seed, with 95 % intervals of Student's t."
    return ["", note, "", *lines] if lines else []


def deviation(values: np.ndarray, published: float, error: float) -> float:
    """(ours - published) / the joint error bar: the root of the sum of both variances; NaN where it is unknown, or a
    seed did not reach what is timed."""
    values = values[~np.isnan(values)]
    if len(values) < 2 or np.isinf(values).any() or not np.isfinite(published) or np.isinf(error):
        return np.nan
    own = values.std(ddof=1) if np.ptp(values) > 0 else 0.0  # without what rounding leaves of it
    joint = np.hypot(error, own) if np.isfinite(error) else own * np.sqrt(1 + 1 / len(values))
    return float((values.mean() - published) / joint) if joint > 0 else np.nan


def markdown(experiment: Experiment, module: str, results: xr.Dataset) -> str:
    """A table: published, ours, the difference; the claims; what was changed, what it cost."""
    lines = [f"## {experiment.title}", "", _told(experiment, module, results), ""]
    lines += [experiment.note, ""] if experiment.note else []
    scale = str(results.attrs["scale"])
    far = False
    for number, (measure, one) in enumerate(experiment.measures.items()):
        first = not number  # whose table also says what each row cost
        head = [
            f"| {measure} | | published | here | difference / joint error |{' seconds |' * first}",
            "|---|---|---|---|---|" + "---|" * first,
        ]
        rows = []
        for column in results.column.values:
            for method in results.row.values:
                place = {"measure": measure, "row": method, "column": column}
                published, error = float(results.published.sel(place)), float(results.published_error.sel(place))
                values = results.value.sel(place).values
                state = str(results.state.sel(row=method, column=column).values)
                lost = int(results.diverged.sel(row=method, column=column)) if "diverged" in results else 0
                here = figures(one, values, lost) or (NO_DATA if column in experiment.no_data else state)
                if method in experiment.contrasts and np.isnan(values).all():
                    here = "not run"
                here = "not at this scale" if here == "run" else here
                if here in ("not run", "not at this scale", *[NO_DATA] * (not first)) and np.isnan(published):
                    continue
                z = deviation(values, published, error)
                far |= bool(np.isfinite(z) and abs(z) > 2)
                bar = f" ± {error:g}" if np.isfinite(error) else ""
                least = "> " if np.isinf(error) else ""
                said = f"{least}{published:g}{bar}{one.unit}" if np.isfinite(published) else ""
                line = f"| {column} | {method} | {said} | {here} | {f'{z:+.1f}' if np.isfinite(z) else ''} |"
                taken = float(results.seconds.sel(row=method, column=column))
                rows.append(line + f" {f'{taken:.0f}' if np.isfinite(taken) else ''} |" * first)
        lines += [*head, *rows, ""] if rows else []
    if far or (experiment.reasons.get(scale) and (results.state == "run").any()):
        lines += [f"Why they differ: {experiment.reasons.get(scale, 'not known')}", ""]
    lines += [f"- {claim.text}: {found}" for claim, found in claimed(experiment, results)]
    lines += own_methods(experiment, results)
    return "\n".join([*lines, ""])


def _told(experiment: Experiment, module: str, results: xr.Dataset) -> str:
    """The command that makes these numbers, or would make all of the paper's; what is changed, what it cost."""
    scale, seeds = str(results.attrs["scale"]), results.sizes["seed"]
    ran, chosen = results.state.sel(row=list(experiment.methods)) == "run", ""
    for flag, dim, usual in (("columns", "column", experiment.columns_at(scale)), ("methods", "row", ran.row.values)):
        made = [name for name in ran[dim].values if ran.sel({dim: name}).any()]
        chosen += f" --{flag} " + " ".join(f'"{name}"' for name in made) if made and {*made} != {*usual} else ""
    chosen += "".join(f" --method {spec}" for spec in results.attrs.get("specs", ()))
    command = f"`python -m {module} --scale {scale} --seeds {seeds}{chosen}` · {experiment.scales[scale]} · "
    if not ran.any():
        return f"{command}not run"
    seconds = float(results.seconds.sum())
    cost = f"{seconds:.0f} s" if seconds < 6000 else f"{seconds / 3600:.1f} h"
    where = f"{cost} on {results.attrs['machine']}, jax {results.attrs['jax']}, {results.attrs['date']}"
    return f"{command}{seeds} seed{'s' * (seeds != 1)} · {where}"


def draw(experiment: Experiment, results: xr.Dataset, path: pathlib.Path) -> None:
    """The curves of a figure, a panel per column: median over seeds, and the band of all seeds; then measures against
    numbers of the columns."""
    drawn = []
    if "curve" in results:
        drawn = [column for column in results.column.values if results.curve.sel(column=column).notnull().any()]
    panels = []
    if experiment.against:
        places = experiment.against[1].items()
        ran = {panel: None for column, (panel, _) in places if results.value.sel(column=column).notnull().any()}
        panels = [(panel, measure) for panel in ran for measure in experiment.shown or list(experiment.measures)[:1]]
    many = len(drawn) + len(panels)
    wide = max(1, min(3, many))
    high = max(1, -(-many // wide))
    figure, axes = plt.subplots(high, wide, figsize=(4.6 * wide, 3.4 * high), squeeze=False, layout="constrained")
    for axis in axes.flat[many:]:
        axis.remove()
    for axis, column in zip(axes.flat, drawn, strict=False):
        _draw_curves(axis, experiment, results, column)
    for axis, panel in zip(axes.flat[len(drawn) :], panels, strict=False):
        _draw_against(axis, experiment, results, *panel)
    if many:
        drawn_by = {
            name: line
            for axis in axes.flat[:many]
            for line, name in zip(*axis.get_legend_handles_labels(), strict=True)
        }  # a panel may have methods that the first one has not
        where, loc = (figure, "outside right upper") if len(drawn_by) > 8 else (axes.flat[0], "best")
        columns = -(-len(drawn_by) // (20 * high))
        where.legend(drawn_by.values(), drawn_by.keys(), fontsize=7, loc=loc, ncols=columns)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _draw_curves(axis: plt.Axes, experiment: Experiment, results: xr.Dataset, column: str) -> None:
    assert experiment.curve is not None
    logarithmic = experiment.curve[1] in ("megabytes_sent", "server_rate")  # they differ by powers of ten
    for number, method in enumerate(results.row.values):
        y, x = results.curve.sel(column=column, row=method), results.curve_along.sel(column=column, row=method)
        known = y.notnull().all("seed").values & x.notnull().all("seed").values
        known &= not logarithmic or (x > 0).all("seed").values
        if not known.any():
            continue
        colour, along = f"C{number % 10}", np.median(x.values[:, known], axis=0)
        low, middle, high = np.quantile(y.values[:, known], [0, 0.5, 1], axis=0)
        if experiment.curve[1] == "client":  # a histogram
            axis.bar(along, middle, yerr=[middle - low, high - middle], color=colour, alpha=0.7, label=method)
            continue
        # curves over rates coincide up to where a method diverges: dots lie on dashes, and dashes on lines
        turn = (number if experiment.curve[1] == "server_rate" else number // 10) % 3
        style = {"color": colour, "linewidth": 1.2 + 0.3 * turn, "zorder": 2 + turn}
        axis.plot(along, middle, ("-", "--", ":")[turn], label=method, **style)
        if len(results.row) <= 10:  # bands of more hide each other
            axis.fill_between(along, low, high, color=colour, alpha=0.15, lw=0)
    axis.set(title=column, xlabel=_axis(experiment.curve[1]), ylabel=_axis(experiment.curve[0]))
    if logarithmic:
        axis.set_xscale("log")
    if experiment.curve[1] == "server_rate":  # beyond its largest rate a method diverges
        start = np.nanmax(results.curve.sel(column=column, point=0).values)
        axis.set(yscale="log", ylim=(None, 10 * start))


def _draw_against(axis: plt.Axes, experiment: Experiment, results: xr.Dataset, panel: str, measure: str) -> None:
    """Mean and standard error over seeds; what was published dotted, what was predicted dashed."""
    assert experiment.against is not None
    label, places = experiment.against
    columns = [column for column, (own, _) in places.items() if own == panel]
    x = np.asarray([places[column][1] for column in columns])
    for number, method in enumerate(row for row in results.row.values if row not in experiment.contrasts):
        found = results.sel(measure=measure, row=method, column=columns)
        mean, known = found.value.mean("seed", skipna=False).values, found.value.notnull()
        error = np.nan_to_num((found.value.std("seed", ddof=1) / np.sqrt(known.sum("seed"))).values)
        there = np.isfinite(mean)
        style = {"color": f"C{number % 10}", "marker": "o", "markersize": 3, "linewidth": 1.2, "capsize": 2}
        axis.errorbar(x[there], mean[there], error[there], label=method, **style)
        if found.published.notnull().any():
            axis.plot(x, found.published.values, ":", color=f"C{number % 10}", label=f"{method}, published")
        if measure in experiment.predicted:
            theory = results.value.sel(measure=experiment.predicted[measure], row=method, column=columns).mean("seed")
            axis.plot(x, theory, "--", color=f"C{number % 10}", linewidth=0.8)
    unit = experiment.measures[measure].unit.strip(" ·")
    axis.set(title=panel, xlabel=label, ylabel=", ".join(filter(None, [measure, unit])))
    if experiment.predicted:
        axis.set_xscale("log")
    if experiment.predicted and np.isfinite(axis.dataLim.minpos[1]):  # values that are all 0 have no logarithm
        axis.set_yscale("log", nonpositive="mask")


def _axis(name: str) -> str:
    names = {"eval_time": "simulated seconds", "eval_step": "server steps", "eval_updates": "client updates"}
    return names.get(name, name.replace("_", " "))
