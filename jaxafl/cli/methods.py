"""Commands about several methods: `compare` and `tune`."""

from __future__ import annotations

import dataclasses
import pathlib
import shlex
import warnings
from typing import Annotated, Any, Literal

from tyro.conf import UseAppendAction, arg

from jaxafl.cli.build import as_paths, make_simulation
from jaxafl.cli.options import Run, current_arguments, values_of
from jaxafl.cli.report import point
from jaxafl.cli.simulate import Command, make_devices, parsed, without
from jaxafl.options import UserError, user_errors
from jaxafl.sweep import compare as compare_methods
from jaxafl.sweep import tune as tune_options

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
        names, options, _ = parsed(compare, Compare, current_arguments(common))  # --help ends here
        raise UserError(f"compare needs methods: {_METHOD}")
    for written in values_of(arguments, "--method"):
        name, equals, own = written.partition("=")
        if not (name.strip() and equals) or name in methods:
            raise UserError(f"--method {written!r}: {_METHOD}, each name once")
        with user_errors(f"method {name}"):
            names, given[name], _ = parsed(compare, Compare, current_arguments([*common, *shlex.split(own)]))
            methods[name] = make_simulation(names, given[name], {})
    options = given[name]
    with user_errors():
        _check_common(given)
        settings = _settings(options, compare, arguments)
        settings["server_steps"] = {one: its.recording()["server_steps"] for one, its in given.items()}
        settings["eval_every"] = {one: its.eval_every for one, its in given.items()}
        found = compare_methods(methods, options.seeds, settings.pop("server_steps"), **settings)
        found = dataclasses.replace(found, at=point(options.at)) if options.at else found
        targets = [float(target) for target in options.targets.split(",")] if options.targets else ()
        how = {"metrics": options.metric, "targets": targets, "spread": options.spread}
        print(found.table(options.table, reference=options.reference or next(iter(methods)), **how))
        if options.plot:
            found.plot(metric=options.metric, path=options.plot)
            print(f"wrote {options.plot}")
    return 0


def tune(arguments: list[str]) -> int:
    """Choose options on the validation set: `--validation 0.2 --axis client.learning_rate=0.01,0.03,0.1`."""
    make_devices(arguments)
    names, options, axes = parsed(tune, Tune, current_arguments(arguments))
    if options.validation is None:
        raise UserError("tune chooses on samples that are neither trained on nor tested on: give --validation 0.2")
    with user_errors(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*widen the grid")  # `print(tuned)` says it
        simulation = make_simulation(names, options, axes)
        settings = _settings(options, tune, arguments)
        how = {"seeds": options.seeds, "rungs": options.rungs}
        tuned = tune_options(simulation, as_paths(axes, names, simulation), options.metric, **how, **settings)
    print(tuned)
    flags = " ".join(f"--{path.replace('_', '-')} {value}" for path, value in tuned.best.items())
    print(f"in jaxafl run: {flags}")
    return 0


def _check_common(given: dict[str, Any]) -> None:
    """Raises `UserError` if methods differ in an option of all runs, given the options of each method."""
    for name in [one.name for one in dataclasses.fields(Compare) if one.name not in _PER_METHOD]:
        values = {method: getattr(options, name) for method, options in given.items()}
        if len(set(values.values())) > 1:
            listed = ", ".join(f"{value} for {method}" for method, value in values.items())
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"compare: {flag} is {listed}; expected one value for all. Give {flag} outside --method")


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
