"""Lists all tables and figures, runs them, and writes the page that links their results.

python -m experiments --list                      # data, scales and times of each
python -m experiments --scale cpu --dry-run       # how long all of them take on this machine
python -m experiments --scale smoke               # all of them, in small
python -m experiments --scale cpu fadas defedavg  # those of some papers, one after another; a second call goes on
python -m experiments --page                      # writes experiments/README.md from the results
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import pathlib
import pkgutil
import re
import time

import numpy as np

from experiments.suite import command as suite
from experiments.suite import pages, report, running
from experiments.suite.experiment import SCALES, Experiment
from jaxafl.readers.replacing import replacing

HERE = pathlib.Path(__file__).resolve().parent
PAPERS = {
    "asyncfeded": "AsyncFedED",
    "audg_psurdg": "AUDG and PSURDG",
    "nonconvex": "AFL on non-convex objectives",
    "fadas": "FADAS",
    "defedavg": "DeFedAvg",
    "throttle": "THROTTLE",
    "optimal": "Study of times that theory predicts",
    "routing": "Study of tasks that queue at clients",
    "tables": "Study of clients that are forgotten",
    "uploads": "Study of bytes, privacy and attacks",
    "lowcomm": "Study of training that rarely communicates",
}
"""Package -> title."""


def experiments() -> dict[str, Experiment]:
    """Every table and figure, by the name of its module without `experiments.`."""
    found = {}
    for paper in PAPERS:
        for module in pkgutil.iter_modules([str(HERE / paper)]):
            loaded = importlib.import_module(f"experiments.{paper}.{module.name}")
            if hasattr(loaded, "EXPERIMENT"):
                found[f"{paper}.{module.name}"] = loaded.EXPERIMENT
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="papers, or tables such as fadas.table1; by default all")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true")
    what.add_argument("--page", action="store_true")
    what.add_argument("--scale", choices=SCALES)
    parser.add_argument("--seeds", type=int)
    parser.add_argument(
        "--dry-run", action="store_true", help="with --scale: only estimate the time of each and of all"
    )
    given = parser.parse_args()
    known = experiments()
    chosen = {
        name: one
        for name, one in known.items()
        if not given.names or any(name == wanted or name.startswith(f"{wanted}.") for wanted in given.names)
    }
    for wanted in given.names:
        if wanted not in known and wanted not in PAPERS:
            near = difflib.get_close_matches(wanted, [*known, *PAPERS], 3, 0.5)
            parser.error(f"there is no table {wanted}; {f'did you mean {near[0]}?' if near else '--list names them'}")
    if given.dry_run and not given.scale:
        parser.error("--dry-run needs --scale")
    if given.page and given.names:
        parser.error("--page writes the page of all tables; leave out the names")
    if given.scale:
        total = 0.0
        for name, one in chosen.items():
            if given.scale in one.scales:
                begun = time.perf_counter()
                more = ["--seeds", str(given.seeds)] if given.seeds else []
                more += ["--dry-run"] if given.dry_run else []
                seconds = suite.main(one, ["--scale", given.scale, *more], f"experiments.{name}")
                total += seconds
                taken = f"{running.minutes(seconds)}\n" if given.dry_run else f"{time.perf_counter() - begun:.0f} s"
                print(f"{name}: {taken}", flush=True)
        if given.dry_run:
            print(f"all: {running.minutes(total)} without evaluation and compilation; tables share runs")
    elif given.page:
        with replacing(HERE / "README.md") as half:
            half.write_text(page(chosen), encoding="utf-8")
    elif given.list:
        for name, one in chosen.items():
            print(listed(name, one), flush=True)
    else:
        parser.print_help()


def listed(name: str, one: Experiment) -> str:
    """Title, data, and the scales of a table with their times, at the pace of the largest result."""
    data = one.data_of("cpu" if "cpu" in one.scales else "paper")
    path, pace = _largest(one, suite.stem_of(name)), 0.0
    if path is not None:
        results = running.xr.load_dataset(path.with_suffix(".nc"))
        taken = results.seconds.where(results.state == "run")
        places = [(row, column) for row in one.methods for column in one.columns]
        known = [place for place in places if np.isfinite(taken.sel(row=place[0], column=place[1]).item())]
        cells = [one.cell(*place, results.attrs["scale"]) for place in known]
        steps = results.sizes["seed"] * sum(cell.client_steps for cell in cells if cell)
        pace = float(sum(taken.sel(row=row, column=column).item() for row, column in known)) / steps if steps else 0.0
    words = []
    for scale in one.scales:
        steps = one.seeds_at(scale) * one.client_steps(scale)
        time = running.minutes(steps * pace) if pace else f"{steps:,} local steps"
        words.append(f"{scale} ({time if steps else 'seconds'})")
    return f"{name}: {one.title}\n    data: {', '.join(data)}\n    scales: {', '.join(words)}"


def page(chosen: dict[str, Experiment]) -> str:
    """Returns the page of all papers and studies: what ran, what holds, and links to the results."""
    groups = _sections(chosen)
    packages = {title: package for package, title in PAPERS.items()}
    title, intro, rest = (HERE / "preface.md").read_text(encoding="utf-8").strip().split("\n\n", 2)
    lines = [title, "", intro, "", pages.overview(groups), rest, ""]
    for paper, sections in groups.items():
        stems = [stem for _, _, stem in sections if stem]
        lines += [f"## {paper}", "", pages.links(packages.get(paper, paper), stems), ""]
    return "\n".join(lines)


def details(results: str) -> dict[str, str]:
    """Returns the page of each paper or study with all its tables and figures, for the site.

    Args:
        results: the folder of the figures, as pages name it.
    """
    found = {}
    for package, title in PAPERS.items():
        mine = {name: one for name, one in experiments().items() if name.startswith(f"{package}.")}
        sections = []
        for one, text, stem in _sections(mine)[title]:
            drawn = stem and (suite.RESULTS / f"{stem}.png").exists()
            sections.append((one, f"{text}\n![{one.title}]({results}/{stem}.png)\n" if drawn else text))
        found[package] = pages.group(title, sections)
    return found


def _sections(chosen: dict[str, Experiment]) -> dict[str, list[tuple[Experiment, str, str]]]:
    """Returns paper -> its experiments, each with its text and the name of its largest result, or with no name."""
    groups: dict[str, list[tuple[Experiment, str, str]]] = {}
    for name, one in chosen.items():
        path = _largest(one, suite.stem_of(name))
        if path is not None:
            text = path.read_text(encoding="utf-8")
        else:
            nothing = running.empty(one, "paper", one.methods, one.seeds)
            text = report.markdown(one, f"experiments.{name}", nothing)
        package = name.partition(".")[0]
        groups.setdefault(PAPERS.get(package, package), []).append((one, text, path.stem if path else ""))
    return groups


def _largest(one: Experiment, stem: str) -> pathlib.Path | None:
    """The page of the results of a table for which clients have made the most local steps."""
    found = [
        path for path in suite.RESULTS.glob(f"{stem}_*.md") if re.fullmatch(rf"{stem}_[a-z]+_\d+_seeds?", path.stem)
    ]

    def work(path: pathlib.Path) -> tuple[int, int, int]:
        results = running.xr.load_dataset(path.with_suffix(".nc"))
        scale, seeds = results.attrs["scale"], results.sizes["seed"]
        places = [(method, column) for method in one.methods for column in one.columns]
        ran = [place for place in places if results.state.sel(row=place[0], column=place[1]) == "run"]
        cells = [one.cell(*place, scale) for place in ran]
        return seeds * sum(cell.client_steps for cell in cells if cell), SCALES.index(scale), seeds * len(ran)

    return max(found, key=work) if len(found) > 1 else next(iter(found), None)


if __name__ == "__main__":
    main()
