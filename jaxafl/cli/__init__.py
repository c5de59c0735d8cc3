"""The command line: `jaxafl run | sweep | resume | gather | list | plot | quickstart`, with the names of the Python
interface.

The first line of a command's docstring is its line in the help, the `Args` are the help of its options.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json as json_format
import os
import pathlib
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import jax
import tyro
from tyro.conf import Positional, arg

from jaxafl import results
from jaxafl.callbacks import Interrupted
from jaxafl.callbacks.store import check_folder
from jaxafl.cli import tables
from jaxafl.cli.build import as_paths, make_simulation, read_axes
from jaxafl.cli.options import Run, Sweep, chosen, is_given, options_type, program, refuse, values_of
from jaxafl.device import keep_programs
from jaxafl.device.keys import seed_key
from jaxafl.options import UserError, user_errors
from jaxafl.references import version
from jaxafl.sweep import gather as gather_sweep
from jaxafl.sweep import outlook
from jaxafl.sweep import sweep as run_sweep
from jaxafl.sweep.axes import axes_of

_Several = arg(metavar="RESULT.nc [RESULT.nc ...]", help_behavior_hint="(one or more)")
_Files = Positional[Annotated[tuple[pathlib.Path, ...], _Several]]
_Image = Annotated[pathlib.Path, arg(metavar="IMAGE")]
_COMMAND = "command.json"
_Kind = Literal[  # those of `jaxafl.plot`
    "accuracy_vs_bytes",
    "accuracy_vs_participation",
    "accuracy_vs_steps",
    "accuracy_vs_time",
    "client_spread",
    "comparison",
    "staleness_histogram",
    "timeline",
]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        argv: the arguments; by default those of the process.

    Returns:
        The exit code: 0, 1 for a run whose parameters stopped being finite, 2 for a mistake of the user's (stderr says
        which), 128 and the number of the signal for an interruption (130: Ctrl-C). Anything else is a bug, and raised.
    """
    name, *arguments = [*(sys.argv[1:] if argv is None else argv)] or [""]
    if name in ("", "-h", "--help"):
        print(_usage(), file=sys.stdout if name else sys.stderr)
        return 0 if name else 2
    if name == "--version":
        print(f"jaxafl {version()}")
        return 0
    try:
        if name not in COMMANDS:
            raise UserError(f"there is no command {name!r}; choose from {', '.join(COMMANDS)}")
        if name in ("run", "sweep"):
            # what results are made of takes a third of a second to import, meanwhile
            threading.Thread(target=importlib.import_module, args=("xarray",), daemon=True).start()
            return COMMANDS[name](arguments)
        return tyro.cli(COMMANDS[name], prog=f"jaxafl {name}", args=arguments)
    except SystemExit as ended:  # of the option parser, which has said why
        return int(ended.code or 0)
    except Interrupted as ended:
        print(f"jaxafl: {ended}", file=sys.stderr)
        return 128 + ended.signal
    except KeyboardInterrupt:
        print("jaxafl: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `jaxafl list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (UserError, OSError, MemoryError, ImportError) as error:
        print(f"jaxafl: error: {str(error).strip()}", file=sys.stderr)
        return 2


def run(arguments: list[str]) -> int:
    """Simulate one configuration and report accuracy, simulated time and staleness."""
    return _simulate(run, Run, arguments)


def sweep(arguments: list[str]) -> int:
    """Simulate a grid of configurations: `--axis server.alpha=0.2,0.5 --axis seed=0:5`."""
    return _simulate(sweep, Sweep, arguments)


def list_names(json: bool = False, markdown: bool = False) -> int:
    """List datasets, partitions, models, servers (and their clocks), clocks and durations, with their options.

    Args:
        json: as JSON, with the type, default, allowed values and help of every option
        markdown: the same as a page of tables
    """
    if json:
        print(json_format.dumps(tables.as_json(), indent=2, ensure_ascii=False, default=repr))
    elif markdown:
        print(tables.as_markdown())
    else:
        tables.show_list()
    return 0


def gather(folder: Positional[pathlib.Path], output: pathlib.Path | None = None) -> int:
    """Show how far the members of a sweep are, from its folder, while it runs or afterwards.

    Args:
        folder: that of `jaxafl sweep --folder`
        output: NetCDF file to write with the members that are finished
    """
    with user_errors():
        found = gather_sweep(folder)
        results.check_path(output)
    tables.show_progress(found)
    if output is not None:
        results.save(found.load(), output)
        print(f"wrote {output}")
    return 0


def plot_results(files: _Files, output: _Image, kind: _Kind = "accuracy_vs_time") -> int:
    """Draw results: accuracy against simulated time or server steps, staleness, or who trained when.

    Args:
        files: result files (NetCDF)
        output: image to write; its ending sets the format
        kind: what is drawn
    """
    from jaxafl import plot as figures

    if not files:
        raise UserError("plot needs at least one result file, e.g. jaxafl plot result.nc --output result.png")
    with user_errors():
        loaded = [results.load(file) for file in files]
    short = len({file.stem for file in files}) == len(files)
    named = {file.stem if short else str(file): result for file, result in zip(files, loaded, strict=True)}
    getattr(figures, kind)(loaded[0] if len(loaded) == 1 else named, path=output)
    print(f"wrote {output}")
    return 0


def compare(output_dir: pathlib.Path = pathlib.Path(), budget: int = 4000, seed: int = 0, progress: bool = True) -> int:
    """Compare FedAvg, FedAsync, FedBuff, FADAS and AsyncFedED on ten FEMNIST writers with stragglers.

    Args:
        output_dir: folder for quickstart.nc and quickstart.png
        budget: local steps of every method, all clients together
        seed: seed of the initial model, the schedules and the mini-batches
        progress: show progress bars
    """
    from jaxafl.cli.quickstart import report

    report(output_dir, budget, seed, progress)
    return 0


def resume(folder: Positional[pathlib.Path]) -> int:
    """Go on with an interrupted run or sweep, from the folder of its --checkpoint.

    Args:
        folder: the folder
    """
    file = folder / _COMMAND
    if not file.is_file():
        raise UserError(f"{folder} is not the folder of a --checkpoint: there is no {_COMMAND} in it")
    known = json_format.loads(file.read_text())
    place, arguments = str(folder.resolve()), list(known["arguments"])
    os.chdir(known["directory"])
    for number, argument in enumerate(arguments):  # the folder may have been moved
        if argument == "--checkpoint":
            arguments[number + 1] = place
        elif argument.startswith("--checkpoint="):
            arguments[number] = f"--checkpoint={place}"
    return COMMANDS[known["command"]](arguments)


COMMANDS: dict[str, Any] = dict(
    run=run, sweep=sweep, resume=resume, gather=gather, list=list_names, plot=plot_results, quickstart=compare
)


def _usage() -> str:
    wrap = functools.partial(textwrap.fill, width=80, break_on_hyphens=False)
    lines = [
        wrap(f"  {name:<11} {(command.__doc__ or '').splitlines()[0]}", subsequent_indent=" " * 14).replace("`", "")
        for name, command in COMMANDS.items()
    ]
    head = "usage: jaxafl COMMAND [options]\n       jaxafl --version\n\nSimulates asynchronous federated learning.\n"
    more = "jaxafl COMMAND --help shows the options of a command; those of run and sweep depend on the names, e.g."
    return "\n".join([head, *lines, "", wrap(more), "jaxafl run --server fadas --clock free_running --help"])


def _simulate(command: Callable[..., int], kind: type[Run], arguments: Sequence[str]) -> int:
    """Runs what the options describe; the exit code is 1 where every run failed."""
    from jaxafl.plot.canvas import check_image_path

    _make_devices(arguments)
    axes = read_axes(arguments) if kind is Sweep else {}
    names = chosen(arguments, axes)
    more = "\n\nOptions depend on the data, model, server and clock that the command line names (see jaxafl list)."
    options: Any
    options, unknown = tyro.cli(
        options_type(kind, names, axes),
        prog=program(command.__name__, arguments, names),
        description=f"{command.__doc__}{more}".replace("`", ""),
        args=arguments,
        return_unknown_args=True,
    )
    if unknown:
        refuse(unknown, names, options)
    if kind is Sweep and not axes:
        raise UserError("a sweep needs at least one --axis, e.g. --axis server.lam=1,3,5 --axis seed=0:5")
    with user_errors():
        check_image_path(options.plot)
        if options.cache is not None:
            keep_programs(check_folder("cache", options.cache))
        simulation = make_simulation(names, options, axes)
        varied = as_paths(axes, names, simulation) | ({} if "seed" in axes else {"seed": [options.seed]})
        for axis in axes_of(simulation, varied)[1]:
            for seed in axis.column("seed") if axis.name == "seed" else ():
                seed_key(seed)
        if not axes:
            simulation.check()
    how = {name: getattr(options, name) for name in ("server_steps", "eval_every", "lanes", "chunk", "progress")}
    with user_errors():
        how |= {"save": options.output, **options.watching()}
        how |= options.where()
        _remember(options.checkpoint, command.__name__, arguments)
    if axes:
        if options.plan:
            tables.show_outlook(outlook(simulation, varied, **options.timing()))
            return 0
        result = run_sweep(simulation, varied, folder=options.checkpoint, **how)
    else:
        result = simulation.run(seed=options.seed, checkpoint=options.checkpoint, **how)
    tables.show_result(result)
    print(f"wrote {options.output}" if options.output else "the result is not saved; --output result.nc would")
    if options.plot:
        from jaxafl.plot import accuracy_vs_time

        accuracy_vs_time(result, path=options.plot)
        print(f"wrote {options.plot}")
    failed, runs = tables.failures(result)
    if failed:
        print(f"jaxafl: {failed}", file=sys.stderr)
    return 1 if runs == 0 else 0


def _make_devices(arguments: Sequence[str]) -> None:
    """Before JAX looks for devices: those of a CPU are as many as one asks for, and the parent of workers must not
    reserve the memory of a GPU."""
    asked = ["", *values_of(arguments, "--devices")][-1]
    if asked == "all" or asked.isdigit():
        with contextlib.suppress(RuntimeError):  # of a process that has its devices already
            jax.config.update("jax_num_cpu_devices", int(asked) if asked.isdigit() else os.cpu_count() or 1)
    if is_given(arguments, "--workers"):
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def _remember(folder: pathlib.Path | None, command: str, arguments: Sequence[str]) -> None:
    """What `jaxafl resume` needs to know, unless the folder holds something already."""
    if folder is None:
        return
    file = check_folder("--checkpoint", folder) / _COMMAND
    if file.exists() and any(one.name != _COMMAND for one in file.parent.iterdir()):
        return
    known = {"command": command, "arguments": list(arguments), "directory": os.getcwd()}
    unfinished = file.with_suffix(".part")
    unfinished.write_text(json_format.dumps(known))
    unfinished.replace(file)
