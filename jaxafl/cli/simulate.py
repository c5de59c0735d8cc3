"""Commands that simulate: `run`, `sweep`, `compare`, `tune`, and `resume`."""

from __future__ import annotations

import dataclasses
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
from jaxafl.cli.line import Compare, Line, Run, Shared, Sweep, Tune, axes_of, flags_of, make_simulation, parse
from jaxafl.cli.show import show_result
from jaxafl.device.compilation import keep_programs
from jaxafl.device.hardware import make_cpu_devices
from jaxafl.options import UserError, user_errors
from jaxafl.results.failures import failures
from jaxafl.simulation import Simulation
from jaxafl.sweep import outlook
from jaxafl.sweep import sweep as run_sweep
from jaxafl.sweep.axes import axes_of as sweep_axes

COMMAND = "command.json"
_PER_METHOD = ("server_steps", "eval_every")  # options of runs in which methods may differ
_METHOD = 'write --method NAME="--server fedbuff --clock.buffer 5", with the options in which the methods differ'


def run(arguments: list[str]) -> int:
    """Simulate one configuration and report accuracy, simulated time and staleness."""
    line, simulation = _prepared(run, Run, arguments)
    with user_errors():
        simulation.check()
    settings = _settings(run, line, arguments)
    return _report(line, simulation.run(seed=line.options.seed, save=line.options.output, **settings))


def sweep(arguments: list[str]) -> int:
    """Simulate a grid of configurations: --axis server.alpha=0.2,0.5 --axis seed=0:5."""
    line, simulation = _prepared(sweep, Sweep, arguments)
    options, axes = line.options, axes_of(line)
    with user_errors():
        sweep_axes(simulation, axes)
    axes.setdefault("seed", [options.seed])
    if options.plan:
        if options.until:
            raise UserError("--plan estimates the time of --server-steps; leave --until out, which ends runs earlier")
        given, of_plan = options.settings(), ("server_steps", "eval_every", "lanes", "chunk", "devices")
        found = outlook(simulation, axes, workers=options.workers or 1, **{name: given[name] for name in of_plan})
        print("\n".join(f"{name:<16} {number:,.6g}" for name, number in found._asdict().items()))
        return 0
    settings = _settings(sweep, line, arguments)
    return _report(line, run_sweep(simulation, axes, save=options.output, **settings))


def compare(arguments: list[str]) -> None:
    """Compare methods on the same seeds, with paired differences: --method FedBuff="--server fedbuff" --seeds 6."""
    common = {f"--{one.name.replace('_', '-')}" for one in dataclasses.fields(Compare) if one.name not in _PER_METHOD}
    made: dict[str, tuple[Line, Simulation]] = {}
    for text in [value for flag, value in flags_of(arguments) if flag == "--method"]:
        name, equals, own = text.partition("=")
        if not (name.strip() and equals) or name in made:
            raise UserError(f"--method {text!r}: {_METHOD}, each name once")
        if flags := [flag for flag, _ in flags_of(shlex.split(own)) if flag in common]:
            raise UserError(f"method {name}: {flags[0]} is one for all methods; give it outside --method")
        with user_errors(f"method {name}"):
            made[name] = line, one = _prepared(compare, Compare, [*arguments, *shlex.split(own)])
            options = line.options
            recording = one.recording(diagnostics=options.settings()["diagnostics"], metrics=options.metrics)
            check_metric("--metric", one.as_run(0, 1, recording), options.metric)
            for target in options.targets:
                check_target("--targets", options.metric, target)
    if not made:
        parse(compare, Compare, arguments)  # --help ends here
        raise UserError(f"compare needs methods: {_METHOD}")
    with user_errors():
        settings = _settings(compare, line, arguments)
        each = {name: line.options.settings() for name, (line, _) in made.items()}
        for key in _PER_METHOD:
            settings[key] = {name: one[key] for name, one in each.items()}
        simulations = {name: one for name, (_, one) in made.items()}
        found = study.compare(simulations, options.seeds, **settings)
        print(found.table(metrics=options.metric, reference=next(iter(made)), targets=options.targets))


def tune(arguments: list[str]) -> None:
    """Choose options on the validation set: --validation 0.2 --axis client.learning_rate=0.01,0.03,0.1."""
    line, simulation = _prepared(tune, Tune, arguments)
    options, axes = line.options, axes_of(line)
    with user_errors(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*widen the grid")  # what is printed says it
        how = _settings(tune, line, arguments) | {"seeds": options.seeds, "rungs": options.rungs}
        print(study.tune(simulation, axes, options.metric, **how))


def resume(folder: Positional[pathlib.Path], server_steps: int | None = None) -> int | None:
    """Go on with an interrupted run, sweep, comparison or search, from its --folder, or extend a finished run.

    Args:
        folder: the folder
        server_steps: server steps T instead of those of the command
    """
    file = folder / COMMAND
    if not file.is_file():
        way = "A folder of a call in Python goes on with the same call"
        raise UserError(f"{folder} is not the --folder of a command: there is no {COMMAND} in it. {way}")
    known = json.loads(file.read_text())
    arguments = [*known["arguments"], "--folder", str(folder.resolve())]  # the folder may have been moved
    if server_steps is not None:
        arguments += ["--server-steps", str(server_steps)]
    os.chdir(known["directory"])
    return SIMULATING[known["command"]](arguments)


SIMULATING: dict[str, Any] = {"run": run, "sweep": sweep, "compare": compare, "tune": tune}


def _prepared(command: Any, kind: type[Shared], arguments: Sequence[str]) -> tuple[Line, Simulation]:
    """Returns the parsed command line and its simulation, before JAX looks for devices."""
    given = dict(flags_of(arguments))
    make_cpu_devices(given.get("--devices", ""))
    if "--workers" in given:  # otherwise this process reserves the GPU memory that its workers need
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    line = parse(command, kind, arguments)
    with user_errors():
        return line, make_simulation(line)


def _settings(command: Any, line: Line, arguments: Sequence[str]) -> dict[str, Any]:
    """Returns the options of runs, after a check of the paths; writes the command into its folder."""
    options = line.options
    if options.cache is not None:
        keep_programs(check_folder(options.cache))
    found = options.settings()
    if options.folder is not None:
        known = Command(options.folder, command.__name__, arguments)
        if command is not sweep:
            found["callbacks"].append(known)
    return found


def _report(line: Line, result: Any) -> int:
    """Prints a result; returns exit code 1 if every run failed, else 0."""
    show_result(result)
    output = line.options.output
    print(f"wrote {output}" if output else "the result is not saved; --output result.nc would")
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
