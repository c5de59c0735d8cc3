"""The command line of a table or figure."""

from __future__ import annotations

import argparse
import importlib
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from experiments.suite import report, running
from experiments.suite.experiment import SCALES, Experiment
from jaxafl.device import make_cpu_devices

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results"


def main(experiment: Experiment, arguments: list[str] | None = None, name: str | None = None) -> None:
    """Runs a table, writes `<name>.nc`, `<name>.md` and, for a figure, `<name>.png`, and prints the table.

    Args:
        experiment: what is run.
        arguments: by default those of the process.
        name: of the files; by default from the module that is run.
    """
    module = name or sys.modules["__main__"].__spec__.name  # type: ignore[union-attr]
    stem = module.removeprefix("experiments.").replace(".", "_")
    given = _parser(experiment, module).parse_args(arguments)
    seeds = given.seeds or experiment.seeds_at(given.scale)
    columns = given.columns or experiment.columns_at(given.scale)
    if given.dry_run:
        found = running.estimate(experiment, given.scale, given.methods, columns, seeds)
        print(f"{experiment.title}\n{experiment.scales[given.scale]}\n{found}")
        return
    own = {spec.partition(":")[2]: loaded(spec) for spec in given.method}
    folder = given.folder or (pathlib.Path("smoke") if given.scale == "smoke" else RESULTS)
    results = running.run(
        experiment, stem, given.scale, methods=given.methods, seeds=seeds, folder=folder, own=own,
        columns=columns, devices=given.devices,
    )  # fmt: skip
    text = report.markdown(experiment, module, results)
    (folder / f"{stem}.md").write_text(text, encoding="utf-8")
    if "curve" in results or experiment.against:
        report.draw(experiment, results, folder / f"{stem}.png")
    print(text)


def _parser(experiment: Experiment, module: str) -> argparse.ArgumentParser:
    said = "; ".join(f"{scale}: {what}" for scale, what in experiment.scales.items())
    about = f"{experiment.title}. {experiment.note}"
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about.replace("%", "%%"))
    parser.add_argument("--scale", choices=[one for one in SCALES if one in experiment.scales], default="smoke",
                        help=said.replace("%", "%%"))  # fmt: skip
    parser.add_argument("--methods", nargs="+", choices=experiment.methods, default=list(experiment.methods),
                        metavar="NAME", help=f"by default all of: {_quoted(experiment.methods)}")  # fmt: skip
    parser.add_argument("--columns", nargs="+", choices=experiment.columns, metavar="NAME",
                        help=f"by default those of the scale; of: {_quoted(experiment.columns)}")  # fmt: skip
    parser.add_argument("--method", action="append", default=[], metavar="MODULE:NAME",
                        help="a method of your own: a server, a function that makes one, or one that takes the "
                        "simulation of a method of the table and returns another")  # fmt: skip
    usual = ", ".join(f"{experiment.seeds_at(scale)} at {scale} scale" for scale in experiment.scales)
    parser.add_argument("--seeds", type=int, help=f"how many; by default {usual}")
    parser.add_argument("--folder", type=pathlib.Path, help="for results and, below runs, what has been run; a second "
                        "call goes on where the first was ended")  # fmt: skip
    parser.add_argument("--devices", type=make_cpu_devices, help='devices that work at once: "all" or a number')
    parser.add_argument("--dry-run", action="store_true", help="time the first steps and estimate the whole")
    return parser


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names).replace("%", "%%")


def loaded(spec: str) -> Any:
    """What `module:name` names; modules of the working directory are found."""
    module, _, name = spec.partition(":")
    if not name:
        raise SystemExit(f"--method is written module:name, got {spec!r}")
    sys.path.insert(0, "")
    return getattr(importlib.import_module(module), name)
