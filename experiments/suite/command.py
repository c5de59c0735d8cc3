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
from jaxafl.device.hardware import make_cpu_devices
from jaxafl.options import UserError
from jaxafl.readers.replacing import replacing

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results"


def main(experiment: Experiment, arguments: list[str] | None = None, name: str | None = None) -> float:
    """Runs a table, writes its results as `.nc`, `.md` and, for a figure, `.png`, and prints the table.

    Args:
        experiment: what is run.
        arguments: by default those of the process.
        name: of the files, to which scale and seeds are added; by default from the module that is run.

    Returns:
        The seconds that the runs took, or with `--dry-run` will take.
    """
    module = name or sys.modules["__main__"].__spec__.name  # type: ignore[union-attr]
    stem = stem_of(module)
    parser = _parser(experiment, module)
    given = parser.parse_args(arguments)
    if given.seeds is not None and given.seeds < 1:
        parser.error(f"--seeds must be at least 1, got {given.seeds}")
    seeds = given.seeds or experiment.seeds_at(given.scale)
    columns = given.columns or experiment.columns_at(given.scale)
    folder = given.folder or (pathlib.Path("smoke") if given.scale == "smoke" else RESULTS)
    try:
        own = named(given.method, [*experiment.methods, *experiment.contrasts])
        if given.dry_run:
            found, seconds = running.estimate(experiment, given.scale, given.methods, columns, seeds)
            print(f"{experiment.title}\n{experiment.scales[given.scale]}\n{found}", flush=True)
            return seconds
        results = running.run(
            experiment, stem, given.scale, methods=given.methods, seeds=seeds, folder=folder, own=own,
            columns=columns, devices=given.devices,
        )  # fmt: skip
    except UserError as error:
        parser.error(str(error))
    text = report.markdown(experiment, module, results.assign_attrs(specs=given.method))
    path = running.path_of(folder, stem, given.scale, seeds, own)
    with replacing(path.with_suffix(".md")) as half:
        half.write_text(text, encoding="utf-8")
    if "curve" in results or experiment.against:
        with replacing(path.with_suffix(".png")) as half:
            report.draw(experiment, results, half)
    print(text)
    return float(results.seconds.sum())


def stem_of(module: str) -> str:
    """The first part of the names of a table's files."""
    return module.removeprefix("experiments.").replace(".", "_")


def _parser(experiment: Experiment, module: str) -> argparse.ArgumentParser:
    said = "; ".join(f"{scale}: {what}" for scale, what in experiment.scales.items())
    about = f"{experiment.title}. {experiment.note}"
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    parser.add_argument("--scale", choices=[one for one in SCALES if one in experiment.scales], default="smoke",
                        help=said.replace("%", "%%"))  # fmt: skip
    parser.add_argument("--methods", nargs="+", choices=experiment.methods, default=list(experiment.methods),
                        metavar="NAME", help=f"by default all of: {_quoted(experiment.methods)}")  # fmt: skip
    parser.add_argument("--columns", nargs="+", choices=experiment.columns, metavar="NAME",
                        help=f"by default those of the scale; of: {_quoted(experiment.columns)}")  # fmt: skip
    parser.add_argument("--method", action="append", default=[], metavar="MODULE:NAME",
                        help="a method of your own: a server or its class, a function that makes one, or one that "
                        "takes the simulation of a method of the table and returns another; it is run first, and the "
                        "files get its name")  # fmt: skip
    usual = ", ".join(f"{experiment.seeds_at(scale)} at {scale} scale" for scale in experiment.scales)
    parser.add_argument("--seeds", type=int, help=f"how many; by default {usual}")
    parser.add_argument("--folder", type=pathlib.Path, help="for results and, below runs, what has been run; a second "
                        "call goes on where the first was ended")  # fmt: skip
    parser.add_argument("--devices", type=make_cpu_devices, help='devices that work at once: "all" or a number')
    parser.add_argument("--dry-run", action="store_true", help="time the first steps and estimate the whole")
    return parser


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names).replace("%", "%%")


def named(specs: Sequence[str], taken: Sequence[str]) -> dict[str, Any]:
    """name -> what `module:name` names; modules of the working directory are found.

    Raises:
        UserError: there is none, or its name is that of another method.
    """
    found: dict[str, Any] = {}
    sys.path.insert(0, "")
    for spec in specs:
        module, _, name = spec.partition(":")
        if not (module and name):
            raise UserError(f"--method is written module:name, got {spec!r}")
        if name in found or name in taken:
            raise UserError(f"--method {spec}: there is another method {name}; give yours another name")
        try:
            found[name] = getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            raise UserError(f"--method {spec}: {error}; modules are looked for here and where Python does") from error
        except AttributeError as error:
            raise UserError(f"--method {spec}: {error}") from error
    return found
