"""`jaxafl init`: a starter experiment."""

from __future__ import annotations

import importlib.resources
import pathlib

from tyro.conf import Positional

from jaxafl.options import UserError

_ENDING = ".template"


def init(folder: Positional[pathlib.Path]) -> int:
    """Write a starter experiment: a script with a server of one's own, a README, a Slurm file.

    Args:
        folder: a new folder, or an empty one
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; init needs the name of a new folder, or an empty one")
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty, and init writes over nothing; give the name of a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    starter = importlib.resources.files("jaxafl.cli").joinpath("starter")
    for template in sorted(starter.iterdir(), key=lambda one: one.name):
        file = folder / template.name.removesuffix(_ENDING)
        file.write_text(template.read_text("utf-8"), "utf-8")
        print(f"wrote {file}")
    print(f"\nNow: cd {folder} && python experiment.py --smoke")
    return 0
