"""Commands that simulate: `run` and `sweep`."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import pathlib
import re
import sys
import threading
import typing
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any

import tyro

from jaxafl.callbacks.base import Callback
from jaxafl.callbacks.store import check_folder
from jaxafl.cli import tables
from jaxafl.cli.build import Axes, as_paths, make_simulation, read_axes
from jaxafl.cli.files import with_arrays, without_files
from jaxafl.cli.options import (
    Names,
    Run,
    chosen,
    is_given,
    options_type,
    program,
    refuse,
    values_of,
)
from jaxafl.cli.sweep_options import Sweep
from jaxafl.device import keep_programs, make_cpu_devices
from jaxafl.device.keys import seed_key
from jaxafl.options import UserError, user_errors
from jaxafl.readers.replacing import replacing
from jaxafl.results.failures import FailedRun, failures
from jaxafl.sweep import outlook
from jaxafl.sweep import sweep as run_sweep
from jaxafl.sweep.axes import axes_of

COMMAND = "command.json"
_WRITING = threading.Lock()


def run(arguments: list[str]) -> int:
    """Simulate one configuration and report accuracy, simulated time and staleness."""
    return _simulate(run, Run, arguments)


def sweep(arguments: list[str]) -> int:
    """Simulate a grid of configurations: `--axis server.alpha=0.2,0.5 --axis seed=0:5`."""
    return _simulate(sweep, Sweep, arguments)


def parsed(command: Callable[..., int], kind: type[Run], arguments: Sequence[str]) -> tuple[Names, Any, Axes]:
    """Parses a command line: the names of its parts, its options, and its axes if it has `--axis`.

    Args:
        command: the function of the command, with its description.
        kind: its options.
        arguments: the command line, with current names.
    """
    axes = read_axes(arguments) if "axis" in kind.__dataclass_fields__ else {}
    names = chosen(arguments, axes)
    plain, arrays = without_files(arguments, names)
    more = (
        "\n\nOptions depend on the data, model, server and clock that the command line names (see jaxafl list).\n\n"
        "A file gives a number per client: --client.learning-rate @rates.npy, also in an --axis."
    )
    options: Any
    offers = options_type(kind, names, axes)
    options, unknown = tyro.cli(
        offers,
        prog=program(command.__name__, arguments, names),
        description=f"{command.__doc__}{more}".replace("`", ""),
        args=_in_python(plain, _optional(offers)),
        return_unknown_args=True,
    )
    options = with_arrays(options, arrays)
    if unknown:
        refuse(unknown, names, options)
    if "axis" in kind.__dataclass_fields__ and not axes:
        raise UserError(f"{command.__name__} needs at least one --axis, e.g. --axis server.base_rate=1,3,5")
    with user_errors():
        _check_outputs(options)
        if options.plot:  # drawing takes a second to import
            from jaxafl.plot.canvas import check_image_path

            check_image_path(options.plot)
        if options.cache is not None:
            keep_programs(check_folder("cache", options.cache))
    return names, options, axes


def _optional(options: type, prefix: str = "--") -> set[str]:
    """Returns the flags of the options that may be `None`."""
    found: set[str] = set()
    for field in dataclasses.fields(options):
        if dataclasses.is_dataclass(field.type):
            found |= _optional(field.type, f"{prefix}{field.name}.")  # type: ignore[arg-type]
        typed, *details = typing.get_args(field.type) or (field.type,)
        if field.default is None or type(None) in typing.get_args(typed):
            aliases = [alias for one in details for alias in getattr(one, "aliases", None) or ()]
            found |= {flag.replace("_", "-") for flag in (prefix + field.name, *aliases)}
    return found


def _in_python(arguments: Sequence[str], optional: Collection[str]) -> list[str]:
    """Returns a command line with `None` for `none` and `null`, if they are values of the flags `optional`."""

    def flag_of(argument: str) -> str:
        return argument.partition("=")[0].replace("_", "-")

    given = [re.sub(r"=(none|null)$", "=None", one) if flag_of(one) in optional else one for one in arguments]
    pairs = itertools.pairwise(["", *given])
    return ["None" if one in ("none", "null") and flag_of(flag) in optional else one for flag, one in pairs]


def _simulate(command: Callable[..., int], kind: type[Run], arguments: Sequence[str]) -> int:
    """Runs the described configurations; returns exit code 1 if every run failed, else 0."""
    make_devices(arguments)
    names, options, axes = parsed(command, kind, arguments)
    with user_errors():
        simulation = make_simulation(names, options, axes)
        varied = as_paths(axes, names, simulation) | ({} if "seed" in axes else {"seed": [options.seed]})
        for axis in axes_of(simulation, varied)[1]:
            for seed in axis.column("seed") if axis.name == "seed" else ():
                seed_key(seed)
        if not axes:
            simulation.check()
    settings = {name: getattr(options, name) for name in ("eval_every", "lanes", "chunk", "progress")}
    with user_errors():
        settings |= {"save": options.output, **options.recording()}
        settings |= options.placement()
        known = Command(options.folder, command.__name__, arguments)
    if axes:
        if options.plan:
            tables.show_outlook(outlook(simulation, varied, **options.timing(simulation)))
            return 0
        execute = functools.partial(run_sweep, simulation, varied, folder=options.folder, **settings)
    else:
        settings["callbacks"] += [known] if options.folder else []
        execute = functools.partial(simulation.run, seed=options.seed, folder=options.folder, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FailedRun)  # failures are printed below the table
        result = execute()
    tables.show_result(result)
    wrote = f"wrote {result.encoding.get('source', options.output)}"
    print(wrote if options.output else "the result is not saved; --output result.nc would")
    if options.plot:
        from jaxafl.plot import accuracy_vs_time

        accuracy_vs_time(result, path=options.plot, metric="accuracy" if "accuracy" in result else "loss")
        print(f"wrote {options.plot}")
    failed, runs = failures(result)
    if failed:
        print(f"jaxafl: {failed}", file=sys.stderr)
    return 1 if runs == 0 else 0


def _check_outputs(options: Any) -> None:
    """Raises `UserError` if two outputs name the same file."""
    named: dict[pathlib.Path, str] = {}
    for name in ("output", "csv", "plot"):
        given = getattr(options, name)
        if given is not None and (other := named.setdefault(pathlib.Path(given).resolve(), name)) != name:
            raise UserError(f"--{other} and --{name} name the same file, {given}; give each its own")


def without(arguments: Sequence[str], *flags: str) -> list[str]:
    """Returns the arguments without some flags and their values, each written `--flag value` or `--flag=value`."""
    kept, skip = [], False
    for argument in arguments:
        flag, equals, _ = argument.partition("=")
        removed = not skip and flag.replace("_", "-") in flags
        if not skip and not removed:
            kept.append(argument)
        skip = removed and not equals
    return kept


def make_devices(arguments: Sequence[str]) -> None:
    """Configures devices. Must run before JAX looks for them."""
    make_cpu_devices(["", *values_of(arguments, "--devices")][-1])
    if is_given(arguments, "--workers"):  # otherwise this process reserves the GPU memory that its workers need
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


class Command(Callback):
    """Writer of the arguments that `jaxafl resume` reads, into a new folder or when the run of the folder continues."""

    def __init__(self, folder: pathlib.Path | None, command: str, arguments: Sequence[str]) -> None:
        self.known = {"command": command, "arguments": list(arguments), "directory": os.getcwd()}
        if folder is not None:
            self.file = check_folder("--folder", folder) / COMMAND
            if not self.file.exists() or all(one.name == COMMAND for one in self.file.parent.iterdir()):
                self.begin()

    def begin(self, run: Any = None) -> None:
        text = json.dumps(self.known)
        with _WRITING:  # members of a sweep begin in threads
            if not self.file.exists() or self.file.read_text() != text:
                with replacing(self.file) as unfinished:
                    unfinished.write_text(text)
