"""Lists all tables and figures, runs them, and writes the page of their results.

python -m experiments --list                      # a line each: client steps at the paper's scale
python -m experiments --scale smoke               # all of them, in small
python -m experiments --scale cpu fadas defedavg  # those of some papers, one after another; a second call goes on
python -m experiments --page                      # writes experiments/README.md from the results
"""

from __future__ import annotations

import argparse
import importlib
import pathlib
import pkgutil
import time

from experiments.suite import command as suite
from experiments.suite import report, running
from experiments.suite.experiment import SCALES, Experiment

HERE = pathlib.Path(__file__).resolve().parent
PAPERS = ("asyncfeded", "audg_psurdg", "nonconvex", "fadas", "defedavg")


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
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--scale", choices=SCALES)
    parser.add_argument("--seeds", type=int)
    given = parser.parse_args()
    chosen = {
        name: one
        for name, one in experiments().items()
        if not given.names or any(name == wanted or name.startswith(f"{wanted}.") for wanted in given.names)
    }
    if given.scale:
        for name, one in chosen.items():
            if given.scale in one.scales:
                begun = time.perf_counter()
                more = ["--seeds", str(given.seeds)] if given.seeds else []
                suite.main(one, ["--scale", given.scale, *more], f"experiments.{name}")
                print(f"{name}: {time.perf_counter() - begun:.0f} s", flush=True)
    elif given.page:
        (HERE / "README.md").write_text(page(chosen), encoding="utf-8")
    elif given.list:
        for name, one in chosen.items():
            print(f"{name:36} {one.client_steps('paper'):>15,} client steps a seed  {one.title}")
    else:
        parser.print_help()


def page(chosen: dict[str, Experiment]) -> str:
    """Everything that was run, and the names of what was not."""
    sections = []
    for name, one in chosen.items():
        path = suite.RESULTS / f"{name.replace('.', '_')}.md"
        if path.exists():
            text = path.read_text(encoding="utf-8")
        else:
            nothing = running.empty(one, "paper", one.methods, one.seeds)
            text = report.markdown(one, f"experiments.{name}", nothing)
        picture = f"\n![{one.title}](results/{path.stem}.png)\n" if path.with_suffix(".png").exists() else ""
        sections.append((one, text + picture))
    preface = (HERE / "preface.md").read_text(encoding="utf-8")
    return "\n".join([preface, report.contents(sections), *(text for _, text in sections)])


if __name__ == "__main__":
    main()
