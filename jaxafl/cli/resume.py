"""The command `resume`, which continues a run, a sweep, a comparison or a search."""

from __future__ import annotations

import json
import os
import pathlib
import re

from tyro.conf import Positional

from jaxafl.callbacks.store import log_info
from jaxafl.cli.methods import compare, tune
from jaxafl.cli.simulate import COMMAND, run, sweep, without
from jaxafl.options import UserError


def resume(folder: Positional[pathlib.Path], server_steps: int | None = None, until: str | None = None) -> int:
    """Go on with an interrupted run, sweep, comparison or search, from its --folder, also further than it was to go.

    Args:
        folder: the folder
        server_steps: server steps T instead of those of the command
        until: limits instead of those of the command, e.g. time=3600,accuracy=0.9
    """
    file = folder / COMMAND
    if not file.is_file():
        raise UserError(
            f"{folder} is not the --folder of a run, sweep, comparison or search: there is no {COMMAND} in it. A "
            "folder of a call in Python goes on with the same call"
        )
    known = json.loads(file.read_text())
    place = str(folder.resolve())
    arguments = list(known["arguments"])
    if pathlib.Path(known["directory"]) != pathlib.Path.cwd():
        log_info(f"in {known['directory']}, where the command was given")
    os.chdir(known["directory"])
    changed = {"--server-steps": server_steps, "--until": until}
    given = {flag: str(value) for flag, value in changed.items() if value is not None}
    given["--folder"] = place  # the folder may have been moved
    replaced = {*given, "--checkpoint"}
    if re.search(r"\b(time|updates|bytes)\s*=", until or ""):  # such a limit ends the run instead
        replaced.add("--server-steps")
    arguments = without(arguments, *replaced)
    arguments += [word for pair in given.items() for word in pair]
    return {one.__name__: one for one in (run, sweep, compare, tune)}[known["command"]](arguments)
