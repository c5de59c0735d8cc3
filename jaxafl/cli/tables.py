"""Output of the command line: the list of `jaxafl list`, and the tables of `jaxafl run`, `sweep` and `gather`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from jaxafl.cli.catalogue import KINDS, QUESTIONS, REQUIRED, Constructor, Option, offered
from jaxafl.results.arrivals import discarded_runs
from jaxafl.results.curves import failed_steps, falls, has_failed
from jaxafl.sweep import Outlook

if TYPE_CHECKING:
    import xarray as xr

_COLUMNS = ("best\naccuracy", "last\naccuracy", "simulated\ntime", "staleness\nmean / max")
_SHOWN = 5  # further limits are only counted
_DOCUMENT = """# Options

This page lists all parts for `jaxafl run` and `jaxafl sweep`, with their options. `jaxafl list --markdown` writes it
from the fields and docstrings of the package. Numbers can be swept (`--axis`). A file has a number per
client: `--client.learning-rate @rates.npy`.
"""


def as_json() -> dict[str, list[dict[str, Any]]]:
    """Returns kind -> entries with name, summary, options (name, type, required, default, allowed, help) and clocks."""
    listed: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for kind, entries in listed.items():
        for one in offered(kind).values():
            clocks = {"clocks": list(one.clocks), "question": one.question} if kind == "servers" else {}
            options = [_plain(option) for option in one.options]
            entries.append({"name": one.name, "summary": one.summary, "options": options} | clocks)
    return listed


def _plain(option: Option) -> dict[str, Any]:
    required = option.default is REQUIRED
    found = option._asdict() | {"required": required, "default": None if required else option.default}
    return {name: value for name, value in found.items() if name != "typed"}


def as_markdown() -> str:
    """Returns the constructors of all kinds, and local training, as a page of tables in Markdown."""
    lines = [_DOCUMENT]
    for kind in (*KINDS, "local training"):
        lines.append(f"## {kind.capitalize()}\n")
        for one in offered(kind).values():
            lines.append(f"### {one.name}\n\n{one.summary}\n")
            lines += [f"Runs on {', '.join(f'`{clock}`' for clock in one.clocks)}.\n"] if one.clocks else []
            rows = [(f"`{o.name}`", o.type, _default(o), o.allowed, o.help) for o in one.options]
            head = [("option", "type", "default", "allowed", "help"), ("---",) * 5] if rows else []
            lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in head + rows]
            lines += [""] if rows else []
    return "\n".join(lines).rstrip()


def _default(option: Option) -> str:
    return "required" if option.default is REQUIRED else f"`{option.default!r}`"


def show_list(*kinds: str) -> None:
    """Prints the parts of some kinds (of all by default), with summary, options, and the clocks of servers."""
    console = Console()
    width = max(len(name) for kind in KINDS for name in offered(kind))
    for kind in kinds or KINDS:
        console.print(f"\n[bold underline]{kind}[/]")
        for title, entries in _groups(kind).items():
            console.print(f"\n[italic]{title}[/]\n" if title else "", end="", highlight=False)
            table = Table.grid(padding=(0, 2))
            table.add_column(style="bold", width=width, no_wrap=True)
            table.add_column()
            for one in entries:
                options = (o.name if o.default is REQUIRED else f"{o.name}={o.default!r}" for o in one.options)
                dim = [", ".join(options), f"runs on {', '.join(one.clocks)}" if one.clocks else ""]
                lines = [escape(one.summary.replace("`", "")), *(f"[dim]{escape(line)}[/dim]" for line in dim if line)]
                table.add_row(one.name, "\n".join(lines))
            console.print(table, highlight=False)


def _groups(kind: str) -> dict[str, list[Constructor]]:
    """Returns the entries of a kind by question; of kinds without questions all under no title."""
    every = list(offered(kind).values())
    if kind not in ("servers", "presets"):
        return {"": every}
    found = {title: [one for one in every if one.question == key] for key, title in QUESTIONS.items()}
    return {title: entries for title, entries in found.items() if entries}


def show_result(result: xr.Dataset) -> None:
    """Prints a row for each member of a result, its numbers averaged over seeds."""
    from jaxafl.results.members import heading, members

    metric = "accuracy" if "accuracy" in result.variables else "loss"
    found = members(result, metric, "staleness", "time")
    columns = [title.replace("accuracy", metric) for title in _COLUMNS]
    seeds = len(found[0].runs)
    any_failed = any(has_failed(run) for member in found for run in member.runs)
    axes = list(found[0].place)
    swept = [Column(re.sub(r"[._]", r"\g<0>\n", axis), no_wrap=True, justify="right") for axis in axes] or [Column("")]
    table = numbers_table(heading(result), swept, [*columns, "failed"] if any_failed else columns)
    table.caption = f"mean ± std of {seeds} seeds" if seeds > 1 else None
    for member in found:
        values = [member.place[axis].removeprefix(f"{axis}=") for axis in axes]
        table.add_row(
            *(values or [member.name]), *_numbers(member.runs, metric), *([_failed(member.runs)] if any_failed else [])
        )
    console = Console()
    console.print(table)
    for line in [*limits_reached(result), *wasted_runs(result)]:
        console.print(line, markup=False, highlight=False)


def limits_reached(result: xr.Dataset) -> list[str]:
    """Returns a line per limit that ended runs, with the number of these runs; the most frequent ones."""
    known = result["stopped"].values.ravel() if "stopped" in result.variables else [result.attrs.get("stopped", "")]
    limits = Counter(limit for limit in map(str, known) if limit not in ("None", "nan", ""))
    frequent = limits.most_common(_SHOWN)
    rest = limits.total() - sum(count for _, count in frequent)
    share = " ({} of {} runs)" if len(known) > 1 else ""
    lines = [f"ended by a limit: {limit}{share.format(count, len(known))}" for limit, count in frequent]
    return lines + [f"and {rest} more runs"] * (rest > 0)


def wasted_runs(result: xr.Dataset) -> list[str]:
    """Returns a line with the numbers of refused, stopped and lost runs, means over members; none without them."""
    counts = {name: discarded_runs(result, name) for name in ("refused", "stopped", "lost")}
    listed = ", ".join(f"{count:,.6g} {name}" for name, count in counts.items() if count)
    return [f"runs that no server step took: {listed}"] if listed else []


def show_outlook(found: Outlook) -> None:
    """Prints the estimated programs, batches, memory and time of a sweep."""
    table = Table.grid(padding=(0, 2))
    several = f" of up to {found.together} members that advance together" if found.together > 1 else ""
    table.add_row("members", f"{found.members}")
    table.add_row("programs to compile", f"{found.programs}, of {found.compile_seconds:.1f} s each")
    table.add_row("batches", f"{found.batches}{several}, {found.devices} at once")
    table.add_row("memory of a batch", f"{found.bytes / 2**20:,.1f} MiB, without the memory of local steps")
    table.add_row("server steps take", f"about {_span(found.seconds)}, without evaluations")
    Console().print(table, highlight=False)


def _span(seconds: float) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def show_progress(found: xr.Dataset) -> None:
    """Prints how far the members of a sweep are, and the errors of failed members."""
    done = found["server_steps_made"]
    steps = int(done.attrs["server_steps"])
    console = Console()
    finished = np.isfinite(found["final_time"].values)
    console.print(f"{int(finished.sum())} of {done.size} members are finished", highlight=False)
    for place in np.ndindex(done.shape):
        if done.values[place] and not finished[place]:
            console.print(f"{_member(done, place)}: {done.values[place]} of {steps} server steps", highlight=False)
        if "member_error" in found and (error := str(found["member_error"].values[place])):
            console.print(f"{_member(done, place)}: {error.splitlines()[0]}", highlight=False)


def _member(values: xr.DataArray, place: tuple[int, ...]) -> str:
    return ", ".join(f"{name}={values[name].values[at]}" for name, at in zip(values.dims, place, strict=True))


def numbers_table(title: str, first: Sequence[Column], columns: Sequence[str], **style: Any) -> Table:
    """Returns a table without rows: first columns of names, and right-aligned columns of numbers."""
    numbers = (Column(header, justify="right", no_wrap=True) for header in columns)
    return Table(*first, *numbers, title=title, box=SIMPLE_HEAD, **style)


def _failed(runs: Sequence[xr.Dataset]) -> str:
    steps = [int(step) for step in map(failed_steps, runs) if step >= 0]
    if not steps:
        return "-"
    return f"{len(steps)} of {len(runs)}" if len(runs) > 1 else f"at step {steps[0]}"


def _numbers(runs: Sequence[xr.Dataset], metric: str) -> list[str]:
    """Returns the numbers of a row over the runs that have not failed; over all runs if all have."""
    runs = [run for run in runs if not has_failed(run)] or runs
    found = [run[metric].values[np.isfinite(run[metric].values)] for run in runs]
    best = min if falls(runs, metric) else max
    time = [run["time"].values[np.isfinite(run["time"].values)] for run in runs]
    staleness = np.concatenate([run["staleness"].values[run["staleness"].values >= 0] for run in runs])
    mean = f"{np.mean([values[-1] if len(values) else 0.0 for values in time]):.1f} s"  # 0 without a server step
    stale = f"{staleness.mean():.2f} / {staleness.max():.0f}" if len(staleness) else "no arrivals"
    text = _percent if metric == "accuracy" else _shown
    return [text([best(values) for values in found]), text([values[-1] for values in found]), mean, stale]


def _shown(values: list[float]) -> str:
    spread = f" ± {np.std(values, ddof=1):.2g}" if len(values) > 1 else ""
    return f"{np.mean(values):.4g}{spread}"


def _percent(shares: list[float]) -> str:
    spread = f" ± {100 * np.std(shares, ddof=1):.1f}" if len(shares) > 1 else ""
    return f"{100 * np.mean(shares):.1f}{spread} %"
