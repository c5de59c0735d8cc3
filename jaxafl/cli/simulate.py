"""Commands that simulate: `run`, `sweep`, `compare`, `tune`, and `resume`."""

from __future__ import annotations

import json
import os
import pathlib
import shlex
import warnings
from collections.abc import Sequence
from typing import Any

from tyro.conf import Positional

from jaxafl import study
from jaxafl.callbacks.base import Callback, check_metric
from jaxafl.callbacks.limits import check_target
from jaxafl.callbacks.store import check_folder
from jaxafl.cli.line import Compare, Run, Sweep, Tune, accepted, flags_of, prepared
from jaxafl.cli.show import show_result
from jaxafl.device.compilation import keep_programs
from jaxafl.options import UserError, user_errors
from jaxafl.results.failures import failures
from jaxafl.simulation import Simulation
from jaxafl.sweep import outlook
from jaxafl.sweep import sweep as run_sweep
from jaxafl.sweep.axes import axes_of

COMMAND = "command.json"
_METHOD = 'write --method NAME="--server fedbuff --clock.buffer 5", with the options in which the methods differ'


def run(arguments: list[str]) -> int:
    """Simulate one configuration and report accuracy, simulated time and staleness."""
    options, simulation, _ = prepared(run, Run, arguments)
    with user_errors():
        simulation.check()
    return _report(simulation.run(**_settings(run, options, arguments)), options)


def sweep(arguments: list[str]) -> int:
    """Simulate a grid of configurations: --axis server.alpha=0.2,0.5 --axis seed=0:5."""
    options, simulation, axes = prepared(sweep, Sweep, arguments)
    with user_errors():
        axes_of(simulation, axes)
    axes.setdefault("seed", [options.seed])
    if options.plan and options.until:
        raise UserError("--plan estimates the time of --server-steps; leave --until out, which ends runs earlier")
    if options.plan:
        found = outlook(simulation, axes, workers=options.workers or 1, **accepted(outlook, options.settings()))
        print("\n".join(f"{name:<16} {number:,.6g}" for name, number in found._asdict().items()))
        return 0
    return _report(run_sweep(simulation, axes, **_settings(sweep, options, arguments)), options)


def compare(arguments: list[str]) -> None:
    """Compare methods on the same seeds, with paired differences: --method FedBuff="--server fedbuff" --seeds 6."""
    simulations: dict[str, Simulation] = {}
    each: dict[str, dict[str, Any]] = {"server_steps": {}, "eval_every": {}}  # in which methods may differ
    for text in [value for flag, value in flags_of(arguments) if flag == "--method"]:
        name, equals, own = text.partition("=")
        if not (name.strip() and equals) or name in simulations:
            raise UserError(f"--method {text!r}: {_METHOD}, each name once")
        for flag, _ in flags_of(shlex.split(own)):
            if (option := flag[2:].replace("-", "_")) not in each and hasattr(Compare, option):
                raise UserError(f"method {name}: {flag} is one for all methods; give it outside --method")
        with user_errors(f"method {name}"):
            options, one, _ = prepared(compare, Compare, [*arguments, *shlex.split(own)])
            given = options.settings()
            one.check()
            recorded = one.as_run(0, 1, one.recording(**accepted(one.recording, given)))
            check_metric("--metric", recorded, options.metric)
            for target in options.targets:
                check_target("--targets", options.metric, target)
        simulations[name] = one
        for option in each:
            each[option][name] = given[option]
    if not simulations:
        prepared(compare, Compare, arguments)  # --help ends here
        raise UserError(f"compare needs methods: {_METHOD}")
    with user_errors():
        found = study.compare(simulations, options.seeds, **_settings(compare, options, arguments) | each)
        print(found.table(metrics=options.metric, reference=next(iter(simulations)), targets=options.targets))


def tune(arguments: list[str]) -> None:
    """Choose options on the validation set: --validation 0.2 --axis client.learning_rate=0.01,0.03,0.1."""
    options, simulation, axes = prepared(tune, Tune, arguments)
    with user_errors(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*widen the grid")  # what is printed says it
        how = _settings(tune, options, arguments) | {"seeds": options.seeds, "rungs": options.rungs}
        print(study.tune(simulation, axes, options.metric, **how))


def resume(folder: Positional[pathlib.Path], server_steps: int | None = None) -> int | None:
    """Go on with an interrupted run, sweep, comparison or search, from its --folder, or extend a finished run.

    Args:
        folder: the folder
        server_steps: server steps T instead of those of the command
    """
    file = folder / COMMAND
    if not file.is_file():
        raise UserError(f"{folder} is not the --folder of a command; a call in Python is resumed by the same call")
    known = json.loads(file.read_text())
    arguments = [*known["arguments"], "--folder", str(folder.resolve())]  # the folder may have been moved
    if server_steps is not None:
        arguments += ["--server-steps", str(server_steps)]
    os.chdir(known["directory"])
    return SIMULATING[known["command"]](arguments)


SIMULATING: dict[str, Any] = {"run": run, "sweep": sweep, "compare": compare, "tune": tune}


def _settings(command: Any, options: Any, arguments: Sequence[str]) -> dict[str, Any]:
    """Returns the options of runs, after a check of the paths; writes the command into its folder."""
    if options.cache is not None:
        keep_programs(check_folder(options.cache))
    found = options.settings()
    if options.folder is not None:
        known = Command(options.folder, command.__name__, arguments)
        if command is not sweep:
            found["callbacks"].append(known)
    return found


def _report(result: Any, options: Any) -> int:
    """Prints a result; returns exit code 1 if every run failed, else 0."""
    show_result(result)
    print(f"wrote {options.save}" if options.save else "the result is not saved; --output result.nc would")
    return int(failures(result)[1] == 0)


class Command(Callback):
    """Writer of the arguments that `jaxafl resume` reads, into a new folder or when the run of the folder continues."""

    def __init__(self, folder: pathlib.Path, command: str, arguments: Sequence[str]) -> None:
        self.text = json.dumps({"command": command, "arguments": list(arguments), "directory": os.getcwd()})
        self.file = check_folder(folder) / COMMAND
        if not self.file.exists() or all(one.name == COMMAND for one in self.file.parent.iterdir()):
            self.begin()

    def begin(self, run: Any = None) -> None:
        self.file.write_text(self.text)
