"""Options of `jaxafl run` and `jaxafl sweep`, and of the constructors that the command line names.

The names are read first, because the other options depend on them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, NoReturn

import optax
from tyro.conf import arg

from jaxafl import callbacks
from jaxafl.callbacks.limits import parsed_limits
from jaxafl.cli.catalogue import REQUIRED, Constructor, Option, find, metrics_of_text, offered
from jaxafl.cli.expressions import parsed
from jaxafl.client import Client
from jaxafl.clock import constant
from jaxafl.models.model import Precision
from jaxafl.options import Part, UserError, did_you_mean

CONCURRENCY = 10  # default; all clients if there are fewer
Names = dict[str, Constructor]
_LOCAL_TRAINING: tuple[dict[str, Any], ...] = (  # the first that a server accepts is its default
    {"learning_rate": 0.05, "steps": 10, "batch_size": 32},
    {"learning_rate": 1.0, "steps": 1, "batch_size": 32},
    {"learning_rate": 1.0, "steps": 1, "batch_size": None},
    {"learning_rate": 1.0, "steps": 1, "batch_size": 32, "correction": "storm()"},
)
_PARTS = {  # part -> flags, kind, default name, help
    "data": (("--data", "--dataset"), "datasets", "femnist", "dataset"),
    "partition": (("--partition",), "partitions", "none", "split of a pooled dataset over clients"),
    "model": (("--model",), "models", "cnn_small", "network; by default one for the data"),
    "server": (("--server",), "servers", "fedavg", "algorithm; jaxafl list says on which clocks it runs"),
    "clock": (("--clock",), "clocks", "", "protocol: who trains when, and who arrives"),
    "client": (("--client.optimizer",), "optimisers", "sgd", "Optax optimiser of the clients; or MODULE:NAME"),
}
_NETWORKS = {"synthetic": "logistic", "shakespeare": "char_lstm", "glue": "bert"}  # defaults for others than images
_USUAL: dict[str, Any] = {"clock": {"durations": "uniform(1, 5)", "concurrency": None}, "partition": {"clients": 10}}
_ALL = f"M_c, clients in flight, at most N (by default {CONCURRENCY}, or all where there are fewer)"
_HELPS = {"clock": {"concurrency": _ALL}, "client": {"learning_rate": "η_l, the local learning rate"}}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Options of a run.

    Args:
        server_steps: server steps T; by default 200, or as many as a limit of time, updates or bytes takes
        until: limits that end a run, e.g. time=3600,updates=100000,bytes=1e9,accuracy=0.9 or epsilon=8,delta=1e-5
        eval_every: server steps between evaluations, 20 by default
        seed: seed of the initial model, the schedule and the mini-batches
        output: NetCDF file to write, e.g. result.nc
        plot: image of accuracy against simulated time to write, e.g. result.png
        progress: show a progress bar, in a log a line every half minute
        lanes: runs trained at once; changes speed, and results by float rounding at most
        chunk: lanes that advance together, a divisor of lanes; changes speed, and results by float rounding at most
        devices: devices of this process that share the work, a number or all; on a CPU the cores
        precision: precision of the model: float32, tf32 (GPUs) or bfloat16
        attack: clients that send forged updates, e.g. "sign_flip(clients=0.2)"; jaxafl list attacks
        data_dir: data directory; by default $JAXAFL_DATA_DIR, else that of TensorFlow Datasets
        download: download the files of the dataset if they are missing
        partition_seed: seed of the split of a pooled dataset over clients
        partition_quantiles: number of quantiles of a regression's targets that the partition takes for classes
        validation: share of every client's training samples that is held out as a validation set (0.1 for zeno)
        per_client: evaluate single clients too, on their test samples, or on what --validation holds out
        metrics: functions of labels and outputs of a whole set, e.g. f1=my_metrics:macro_f1,auc=my_metrics:auc
        stop_at: accuracy at which a run stops, or another metric and its target, e.g. validation_loss=0.5
        csv: table of the evaluations to write while it runs
        tensorboard: folder of event files for TensorBoard
        wandb: project of Weights & Biases to log to
        mlflow: experiment of MLflow to log to, in mlflow.db of the working folder
        folder: folder to save in, from which the same command, or jaxafl resume, goes on
        checkpoint_every: server steps between saves, or a time such as 30s or 5min
        cache: folder of compiled programs, which later commands read instead of compiling; must be trusted
    """

    server_steps: int | None = None
    until: str | None = None
    eval_every: int | None = None
    seed: int = 0
    output: pathlib.Path | None = None
    plot: pathlib.Path | None = None
    progress: bool = True
    lanes: int | None = None
    chunk: int | None = None
    devices: str | None = None
    precision: Precision = "float32"
    attack: Annotated[str | None, arg(metavar="EXPR")] = None
    data_dir: pathlib.Path | None = None
    download: bool = False
    partition_seed: int = 0
    partition_quantiles: int | None = None
    validation: float | None = None
    per_client: bool = False
    metrics: str | None = None
    stop_at: str | None = None
    csv: pathlib.Path | None = None
    tensorboard: pathlib.Path | None = None
    wandb: str | None = None
    mlflow: str | None = None
    folder: Annotated[pathlib.Path | None, arg(aliases=("--checkpoint",))] = None
    checkpoint_every: str = "30s"
    cache: pathlib.Path | None = None

    def recording(self) -> dict[str, Any]:
        """Returns the options of `Simulation.run` about callbacks, checkpoints, diagnostics and limits."""
        constructors = (
            ("csv", callbacks.Csv),
            ("tensorboard", callbacks.TensorBoard),
            ("wandb", callbacks.WandB),
            ("mlflow", callbacks.MLflow),
            ("stop_at", callbacks.StopAt.of_text),
        )
        given = [(getattr(self, name), constructor) for name, constructor in constructors]
        every = int(self.checkpoint_every) if self.checkpoint_every.isdigit() else self.checkpoint_every
        return {
            "callbacks": [constructor(value) for value, constructor in given if value is not None],
            "checkpoint_every": every,
            "diagnostics": ("per_client",) if self.per_client else (),
            "metrics": metrics_of_text(self.metrics) if self.metrics else None,
            "server_steps": 200 if self.server_steps is None and not self.until else self.server_steps,
            "until": parsed_limits(self.until) if self.until else None,
        }

    def placement(self) -> dict[str, Any]:
        """Returns the option `devices` of `Simulation.run`, if it is given."""
        if self.devices is None:
            return {}
        if self.devices != "all" and not self.devices.isdigit():
            raise UserError(f"--devices must be a number or all, got {self.devices!r}")
        return {"devices": int(self.devices) if self.devices.isdigit() else "all"}


def chosen(arguments: Sequence[str], axes: Mapping[str, Sequence[Any]] | None = None) -> Names:
    """Returns the constructors that a command line names, by part; the optimiser as "client", no "partition" if none.

    Args:
        arguments: the command line.
        axes: axes of a sweep, name -> values; the optimisers can be an axis.

    Raises:
        UserError: a name is unknown.
    """
    names: Names = {}
    for part, (flags, kind, usual, _) in _PARTS.items():
        if part == "clock":  # asynchronous if the server is
            clocks = names["server"].clocks
            usual = next((name for name in ("free_running", "synchronous", *clocks) if name in clocks), "synchronous")
        elif part == "model":
            usual = _NETWORKS.get(names["data"].name.partition("_")[0], usual)
        elif part == "client":
            usual = str((axes or {}).get("client.optimizer", [usual])[0])
        name = [usual, *values_of(arguments, *flags)][-1]
        if (part, name) != ("partition", "none"):
            names[part] = find(name, kind)
    return names


def program(command: str, arguments: Sequence[str], names: Names) -> str:
    """Returns the command with the given names, and the clock that follows from the server; it shows their help."""
    flags = {part: (*flags, "--server") if part == "clock" else flags for part, (flags, *_) in _PARTS.items()}
    given = [f"{flags[part][0]} {one.name}" for part, one in names.items() if is_given(arguments, *flags[part])]
    return " ".join([f"jaxafl {command}", *given])


def is_given(arguments: Sequence[str], *flags: str) -> bool:
    """Returns True if any of the flags is on the command line, with hyphens or underscores."""
    return any(argument.partition("=")[0].replace("_", "-") in flags for argument in arguments)


def values_of(arguments: Sequence[str], *flags: str) -> list[str]:
    """Returns the values of a flag in the given order, each written `--flag value` or `--flag=value`."""
    written = [(*one.partition("="), following) for one, following in itertools.pairwise([*arguments, ""])]
    return [value if equals else following for flag, equals, value, following in written if flag in flags]


def options_type(command: type[Run], names: Names, axes: Collection[str] = ()) -> type:
    """Builds a dataclass for tyro with the options of one command line.

    It has the options of the command, the names as `<part>_name`, and in fields `<part>` the options of the named
    constructors.

    Args:
        command: `Run` or `Sweep`.
        names: the constructors.
        axes: names of axes, whose options are not required.
    """
    fields: list[Any] = []
    for part, (flags, kind, usual, text) in _PARTS.items():
        if part != "client":
            known = ",".join([usual] * (usual == "none") + list(offered(kind)))
            details = arg(name=part, help=f"{text}; or MODULE:NAME", metavar=f"{{{known}}}", aliases=flags[1:])
            fields.append((f"{part}_name", Annotated[str, details], names[part].name if part in names else "none"))
    for part, one in names.items():
        summary = f"local training with {one.name}" if part == "client" else f"{one.name}: {one.summary}"
        options = [_field(part, option, names) for option in _options(part, names, axes)]
        group = dataclasses.make_dataclass(part, options, namespace={"__doc__": summary.replace("`", "")})
        fields.append((part, group))
    return dataclasses.make_dataclass("Options", fields, bases=(command,), kw_only=True, frozen=True)


def _field(part: str, option: Option, names: Names) -> Any:
    """Returns the field `--<part>.<option>` for tyro, with its short name if it has one."""
    short = {"durations": "clock", "clients": "partition" if "partition" in names else "data"}
    listed = f"{{{option.allowed}}}" if option.typed is str and option.allowed else None
    metavar = "EXPR" if option.type.startswith(("duration", "clock", "upload", "correction", "aggregate")) else listed
    aliases = (f"--{option.name}",) if short.get(option.name) == part else None
    details = arg(help=option.help.replace("`", ""), aliases=aliases, metavar=metavar)
    default = repr(option.default) if isinstance(option.default, Part) else option.default
    return option.name, Annotated[option.typed, details], dataclasses.field(default=default, kw_only=True)


def _options(part: str, names: Names, axes: Collection[str]) -> list[Option]:
    """Returns the options of a part, with the defaults of the command line; options of axes are not required."""
    every = {option.name: option for option in names[part].options}
    helps = dict(_HELPS.get(part, {}))
    required = [name for name, option in every.items() if option.default is REQUIRED]
    usual = {name: None for name in required if f"{part}.{name}" in axes}
    usual |= {name: default for name, default in _USUAL.get(part, {}).items() if name in required}
    if part == "clock" and (of_paper := getattr(names["server"].call, "buffer", 1)) > 1:
        usual["buffer"] = None
        helps["buffer"] = f"M, arrivals per server step ({of_paper}, or M_c if that is less)"
    if part == "client":
        named = Option("optimizer", "str", names[part].name, ",".join(offered(_PARTS[part][1])), _PARTS[part][3], str)
        usual = local_training(names["server"])
        helps["steps"] = f"K, local steps of a run ({usual.pop('steps')}, unless epochs are given)"
        if decay := every.get("weight_decay"):  # `Client` hands it to an optimiser that has one
            helps["weight_decay"] = f"{decay.help} (by default {decay.default:g}, that of {names[part].name})"
        every = {"optimizer": named} | every | {one.name: one for one in offered("local training")["Client"].options}
    for name in usual.keys() & every.keys():
        typed = every[name].typed | None if usual[name] is None else every[name].typed
        every[name] = every[name]._replace(default=usual[name], typed=typed)
    return [option._replace(help=helps.get(name, option.help)) for name, option in every.items()]


def local_training(server: Constructor) -> dict[str, Any]:
    """Returns the first of `_LOCAL_TRAINING` that the server accepts."""
    clock = offered("clocks")["free_running"].call(concurrency=1, durations=constant(1.0))
    for numbers in _LOCAL_TRAINING:
        with contextlib.suppress(ValueError, TypeError):  # TypeError: a server with required options
            made = {name: parsed(one, "corrections") if name == "correction" else one for name, one in numbers.items()}
            server.call().check(clock, Client(optax.sgd, **made), 1)
            return dict(numbers)
    return dict(_LOCAL_TRAINING[0])


def refuse(unknown: Sequence[str], names: Names, options: Any) -> NoReturn:
    """Raises `UserError` for unknown arguments, with the known options.

    Args:
        unknown, options: the arguments, and the parsed rest of the command line.
        names: the constructors, which decide on the options.
    """
    flag = next((argument for argument in unknown if argument.startswith("--")), unknown[0]).partition("=")[0]
    part, dot, _ = flag.removeprefix("--").partition(".")
    if flag == "--axis":
        raise UserError("--axis is an option of `jaxafl sweep`; `jaxafl run` simulates one configuration: leave it out")
    if not flag.startswith("--"):
        raise UserError(f"{flag!r} is not an option, nor the value of one; --help lists all")
    if not (dot and part in _PARTS):
        near = did_you_mean("--output" if flag == "--save" else flag, _flags(options))  # `save` in Python
        raise UserError(f"there is no option {flag}{near or '; --help lists all'}")
    if part not in names:
        raise UserError(f"there is no option {flag}: no {part} is chosen; --{part} names one")
    known = _flags(getattr(options, part), f"{part}.")
    part_options = f"{chooser(part, names)}, which has {', '.join(known) or 'none'}"
    raise UserError(f"there is no option {flag}: {part_options}{did_you_mean(flag, known)}")


def chooser(part: str, names: Names) -> str:
    """Returns the chosen constructor of a part and the flag that chooses another, in words."""
    word = "optimiser" if part == "client" else part
    return f"the {word} is {names[part].name} ({_PARTS[part][0][0]} chooses another)"


def _flags(options: Any, prefix: str = "") -> list[str]:
    fields = dataclasses.fields(options)
    return [f"--{prefix}{field.name.removesuffix('_name')}".replace("_", "-") for field in fields]
