"""Commands about several methods: `compare` and `tune`."""

from __future__ import annotations

import dataclasses
import pathlib
import shlex
import warnings
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from tyro.conf import UseAppendAction, arg

from jaxafl.callbacks.base import check_metric
from jaxafl.callbacks.stopping import check_target
from jaxafl.cli.build import Axes, as_paths, make_simulation
from jaxafl.cli.options import Run, values_of
from jaxafl.cli.report import point
from jaxafl.cli.simulate import Command, make_devices, parsed, without
from jaxafl.models.metrics import falls
from jaxafl.options import UserError, check_choice, user_errors
from jaxafl.results.curves import check_at
from jaxafl.simulation import Simulation
from jaxafl.study import compare as compare_methods
from jaxafl.study import tune as tune_options

_PER_METHOD = {"server_steps", "eval_every", "precision", "attack", "data_dir", "download", "validation"}
_PER_METHOD |= {"partition_seed", "partition_quantiles"}  # methods may differ in these, or the data are compared
_SEEDS = {"compare": "they are 0, 1, ...", "tune": "they are 1000, 1001, ..."}
_METHOD = 'write --method NAME="--server fedbuff --clock.buffer 5", with the options in which the methods differ'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Several(Run):
    """Options of commands about several runs.

    Args:
        output: refused; --folder keeps all runs, which jaxafl report, gather and resume read
        csv: refused, as --output
        seed: refused; --seeds says how many
    """

    output: pathlib.Path | None = None
    csv: pathlib.Path | None = None
    seed: int | None = None  # type: ignore[assignment]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compare(Several):
    """Options of a comparison.

    Args:
        method: name and options of a method, e.g. FedBuff="--server fedbuff --clock.buffer 5"; repeat it
        seeds: number of seeds 0, 1, ... of every method
        reference: method that the others are compared with; by default the first
        targets: accuracies, or values of the metric, to which the times are shown, e.g. 0.6,0.7
        metric: metric of the table
        at: point of the comparison, e.g. time=200; by default the limit of time, or the end
        spread: standard deviations over seeds, or intervals
        table: format of the table
    """

    method: UseAppendAction[Annotated[tuple[str, ...], arg(metavar='NAME="OPTIONS"')]] = ()
    seeds: int = 6
    reference: str | None = None
    targets: str | None = None
    metric: str = "accuracy"
    at: str | None = None
    spread: Literal["std", "interval"] = "std"
    table: Literal["markdown", "latex"] = "markdown"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tune(Several):
    """Options of a search.

    Args:
        axis: values of an option, e.g. client.learning_rate=0.01,0.03,0.1; repeat it for a grid
        seeds: number of seeds 1000, 1001, ... of every configuration
        metric: metric on the validation set, which --validation holds out
        rungs: number of rungs of successive halving; 1 is a grid search
    """

    axis: UseAppendAction[Annotated[tuple[str, ...], arg(metavar="NAME=VALUES")]] = ()
    seeds: int = 1
    metric: str = "accuracy"
    rungs: int | None = None


def compare(arguments: list[str]) -> int:
    """Compare methods on the same seeds, with paired differences: `--method FedBuff="--server fedbuff" --seeds 6`."""
    make_devices(arguments)
    common = without(arguments, "--method")
    methods: dict[str, Any] = {}
    given: dict[str, Any] = {}
    if not values_of(arguments, "--method"):
        names, options, _ = parsed(compare, Compare, common)  # --help ends here
        raise UserError(f"compare needs methods: {_METHOD}")
    for written in values_of(arguments, "--method"):
        name, equals, own = written.partition("=")
        if not (name.strip() and equals) or name in methods:
            raise UserError(f"--method {written!r}: {_METHOD}, each name once")
        with user_errors(f"method {name}"):
            names, given[name], _ = parsed(compare, Compare, [*common, *shlex.split(own)])
            methods[name] = make_simulation(names, given[name], {})
    options = given[name]
    with user_errors():
        _check_common(given)
        targets = _check_table(options, methods)
        settings = _settings(options, compare, arguments)
        settings["server_steps"] = {one: its.recording()["server_steps"] for one, its in given.items()}
        settings["eval_every"] = {one: its.eval_every for one, its in given.items()}
        found = compare_methods(methods, options.seeds, settings.pop("server_steps"), **settings)
        found = dataclasses.replace(found, at=point(options.at)) if options.at else found
        how = {"metrics": options.metric, "targets": targets, "spread": options.spread}
        print(found.table(options.table, reference=options.reference or next(iter(methods)), **how))
        if options.plot:
            found.plot(metric=options.metric, path=options.plot)
            print(f"wrote {options.plot}")
    return 0


def tune(arguments: list[str]) -> int:
    """Choose options on the validation set: `--validation 0.2 --axis client.learning_rate=0.01,0.03,0.1`."""
    make_devices(arguments)
    names, options, axes = parsed(tune, Tune, arguments)
    if options.validation is None:
        raise UserError("tune chooses on samples that are neither trained on nor tested on: give --validation 0.2")
    with user_errors(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*widen the grid")  # `print(tuned)` says it
        simulation = make_simulation(names, options, axes)
        settings = _settings(options, tune, arguments)
        how = {"seeds": options.seeds, "rungs": options.rungs}
        varied = as_paths(axes, names, simulation)
        tuned = tune_options(simulation, varied, options.metric, **how, **settings)
    print(tuned)
    print(f"in jaxafl run: {_flags(axes, varied, tuned.best)}")
    return 0


def _flags(axes: Axes, varied: Axes, best: Mapping[str, Any]) -> str:
    """Returns the best options as flags of `jaxafl run`, and in words those that have none.

    Args:
        axes: axis -> values as they were written.
        varied: path -> values, in the same order.
        best: path -> the best value.
    """
    flags, others = [], []
    for (name, written), (path, values) in zip(axes.items(), varied.items(), strict=True):
        number = isinstance(best[path], int | float)
        value = next(
            text
            for text, one in zip(written, values, strict=True)
            if one is best[path] or (number and one == best[path])
        )
        part, _, option = name.replace("_", "-").partition(".")
        if isinstance(value, list | np.ndarray) or "." in option or part == "attack":
            others.append(f"{name}={best[path]}")
        elif isinstance(value, bool):
            flags.append(f"--{part}.{'' if value else 'no-'}{option}")
        else:
            flags.append(f"--{part}.{option} {shlex.quote(str(value))}")
    return "; without a flag: ".join(filter(None, [" ".join(flags), ", ".join(others)]))


def _check_common(given: dict[str, Any]) -> None:
    """Raises `UserError` if methods differ in an option of all runs, given the options of each method."""
    for name in [one.name for one in dataclasses.fields(Compare) if one.name not in _PER_METHOD]:
        values = {method: getattr(options, name) for method, options in given.items()}
        if len(set(values.values())) > 1:
            listed = ", ".join(f"{value} for {method}" for method, value in values.items())
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"compare: {flag} is {listed}; expected one value for all. Give {flag} outside --method")


def _check_table(options: Any, methods: Mapping[str, Simulation]) -> list[float]:
    """Returns the targets of the table; raises `ValueError` for its options that cannot work, before anything runs."""
    check_at(point(options.at))
    if options.reference is not None:
        check_choice("compare", "reference", options.reference, tuple(methods))
    asked = {name: options.recording()[name] for name in ("diagnostics", "metrics")}
    for name, one in methods.items():
        with user_errors(f"method {name}"):
            run = one.as_run(0, 1, one.recording(**asked))
            check_metric("compare", run, options.metric)
            falls(options.metric, run.metrics, "compare")
    try:
        targets = [float(target) for target in options.targets.split(",")] if options.targets else []
    except ValueError as error:
        raise UserError(f"--targets are numbers, e.g. 0.6,0.7; got {options.targets!r}") from error
    for target in targets:
        check_target("--targets", options.metric, target)
    return targets


def _settings(options: Any, command: Any, arguments: list[str]) -> dict[str, Any]:
    """Returns the options of `jaxafl.compare` and `jaxafl.tune` that the command line gives."""
    if options.seed is not None:
        raise UserError(f"{command.__name__} takes no --seed; --seeds N says how many, and {_SEEDS[command.__name__]}")
    if options.output or options.csv:
        raise UserError(
            f"{command.__name__} writes no --output or --csv; --folder DIR keeps all runs, which jaxafl report, gather "
            "and resume read"
        )
    settings = {name: getattr(options, name) for name in ("eval_every", "lanes", "chunk", "progress")}
    settings |= options.recording() | options.placement()
    if options.folder:
        settings["callbacks"].append(Command(options.folder, command.__name__, arguments))
    return settings | {"folder": options.folder}
