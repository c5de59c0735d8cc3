"""Command lines: the options of a command, the parts that it names, and the simulation and axes they describe."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import pathlib
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import tyro
from tyro.conf import UseAppendAction, arg
from tyro.constructors import PrimitiveConstructorSpec

from jaxafl import callbacks
from jaxafl.callbacks.limits import parsed_limits
from jaxafl.cli.catalogue import REQUIRED, Constructor, Option, find, imported, offered
from jaxafl.cli.expressions import NONE, read
from jaxafl.client import Client
from jaxafl.client.attack import Attack
from jaxafl.clock import uniform
from jaxafl.data import Dataset
from jaxafl.models.model import Precision
from jaxafl.options import UserError, kinds_of, shown
from jaxafl.simulation import Simulation
from jaxafl.sweep.executors.pools import dask_executor, process_pool, slurm_executor

_PARTS = {  # part -> flag, kind, default name, help
    "data": ("data", "datasets", "femnist", "dataset"),
    "partition": ("partition", "partitions", "none", "split of a pooled dataset over clients, or none"),
    "model": ("model", "models", "cnn_small", "network; by default one for the data"),
    "server": ("server", "servers", "fedavg", "algorithm; jaxafl list says on which clocks it runs"),
    "clock": ("clock", "clocks", "", "protocol: who trains when, and who arrives"),
    "client": ("client.optimizer", "optimisers", "sgd", "Optax optimiser of the clients"),
}
# defaults for others than images, by the name of the data or its first word
_NETWORKS = {
    "synthetic": "logistic",
    "shakespeare": "char_lstm",
    "glue": "bert",
    "shakespeare_plays": "decoder",
}
_REQUIRED = {"durations": uniform(1, 5), "clients": 10}  # defaults of options that have none
_MORE = """

Options depend on the data, model, server and clock that the command line names (see jaxafl list).

A file gives a number per client: --client.learning-rate @rates.npy, also in an --axis.

FILE.py before the options takes the place of all parts: it defines simulation, a jaxafl.Simulation."""


def written(convert: Callable[[str], Any], metavar: str) -> PrimitiveConstructorSpec[Any]:
    """Returns the rule of an option whose text is converted by a function."""
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: convert(words[0]),
        is_instance=lambda value: True,
        str_from_instance=lambda value: ["none" if value is None else str(value)],
    )


def _metrics(text: str) -> dict[str, Any]:
    """Returns the metrics of whole sets of `NAME=MODULE:FUNCTION,...`."""
    return {name.strip(): imported(place) for name, _, place in (one.partition("=") for one in text.split(","))}


def numbers(text: str) -> tuple[float | None, ...]:
    """Returns the numbers of a text, `None` where there is nothing between commas."""
    return tuple(float(one) if one else None for one in text.split(","))


_Axis = UseAppendAction[Annotated[tuple[str, ...], arg(metavar="NAME=VALUES")]]
_Attack = Annotated[Any, written(lambda text: read(text, Attack | None), "EXPR")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shared:
    """Options of all commands that run simulations.

    Args:
        server_steps: server steps T; by default 200, or as many as a limit of time, updates or bytes takes
        until: limits that end a run, e.g. time=3600,updates=100000,bytes=1e9,accuracy=0.9 or epsilon=8,delta=1e-5
        eval_every: server steps between evaluations, 20 by default
        progress: show a progress bar, in a log a line every half minute
        lanes: runs trained at once; changes speed, and results by float rounding at most
        chunk: lanes that advance together, a divisor of lanes; changes speed, and results by float rounding at most
        devices: devices of this process that share the work, a number or all; on a CPU the cores
        metrics: functions of labels and outputs of a whole set, e.g. f1=my_metrics:macro_f1,auc=my_metrics:auc
        per_client: evaluate single clients too, on their test samples, or on what --validation holds out
        tensorboard: folder of event files for TensorBoard
        wandb: project of Weights & Biases to log to
        mlflow: experiment of MLflow to log to, in mlflow.db of the working folder
        folder: folder to save in, from which the same command, or jaxafl resume, goes on
        checkpoint_every: server steps between saves, or a time such as 30s or 5min
        cache: folder of compiled programs, which later commands read instead of compiling; must be trusted
    """

    server_steps: int | None = None
    until: Annotated[Any, written(parsed_limits, "NAME=NUMBER,...")] = None
    eval_every: int | None = None
    progress: bool = True
    lanes: int | None = None
    chunk: int | None = None
    devices: Literal["all"] | int | None = None
    metrics: Annotated[Any, written(_metrics, "NAME=MODULE:FUNCTION,...")] = None
    per_client: bool = False
    tensorboard: Annotated[Any, written(callbacks.TensorBoard, "FOLDER")] = None
    wandb: Annotated[Any, written(callbacks.WandB, "PROJECT")] = None
    mlflow: Annotated[Any, written(callbacks.MLflow, "EXPERIMENT")] = None
    folder: pathlib.Path | None = None
    checkpoint_every: int | str = "30s"
    cache: pathlib.Path | None = None

    def settings(self) -> dict[str, Any]:
        """Returns the options of `Simulation.run`, `sweep`, `compare` and `tune` but the seeds and the axes."""
        same = ("until", "eval_every", "lanes", "chunk", "devices", "progress", "metrics", "folder", "checkpoint_every")
        watching = [getattr(self, name, None) for name in ("csv", "tensorboard", "wandb", "mlflow")]
        given = {name: getattr(self, name) for name in same}
        given["callbacks"] = [one for one in watching if one is not None]
        given["diagnostics"] = ("per_client",) if self.per_client else ()
        return given | {"server_steps": 200 if self.server_steps is None and not self.until else self.server_steps}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Built:
    """Options of a simulation beside those of its parts.

    Args:
        precision: precision of the model: float32, tf32 (GPUs) or bfloat16
        attack: clients that send forged updates, e.g. "sign_flip(clients=0.2)"; jaxafl list attacks
        data_dir: data directory; by default $JAXAFL_DATA_DIR, else that of TensorFlow Datasets
        download: download the files of the dataset if they are missing
        partition_seed: seed of the split of a pooled dataset over clients
        partition_quantiles: number of quantiles of a regression's targets that the partition takes for classes
        validation: share of every client's training samples that is held out as a validation set (0.1 for zeno)
    """

    precision: Precision = "float32"
    attack: _Attack = None
    data_dir: pathlib.Path | None = None
    download: bool = False
    partition_seed: int = 0
    partition_quantiles: int | None = None
    validation: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run(Shared):
    """Options of a run.

    Args:
        seed: seed of the initial model, the schedule and the mini-batches
        output: NetCDF file to write, e.g. result.nc
        csv: table of the evaluations to write while it runs
    """

    seed: int = 0
    output: pathlib.Path | None = None
    csv: Annotated[Any, written(callbacks.Csv, "FILE")] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep(Run):
    """Options of a sweep.

    Args:
        axis: values of the seed, seed=0:5 (0 to 4), or of an option of server, client or clock, server.base_rate=1,3,5;
            repeat it for a grid. Values are numbers, words, none, true, false, lists [1,2], durations and names of
            optimisers
        workers: processes of this machine that run at once, each with its share of cores and GPUs; needs folder
        dask: address of a Dask scheduler whose workers run the sweep; needs folder
        slurm: parameters of jobs that run it, e.g. partition=gpu,gpus_per_node=1,timeout_min=240; needs folder
        plan: only print programs, batches, memory and an estimate of the time
    """

    axis: _Axis = ()
    workers: int | None = None
    dask: str | None = None
    slurm: str | None = None
    plan: bool = False

    def settings(self) -> dict[str, Any]:
        """Returns the options of `jaxafl.sweep`."""
        slurm = partial(slurm_executor, logs=pathlib.Path(self.folder or ".") / "slurm")
        made: dict[str, Any] = {"workers": process_pool, "dask": dask_executor, "slurm": slurm}
        given = [name for name in made if getattr(self, name) is not None]
        if len(given) > 1:
            raise UserError(f"--{given[0]} and --{given[1]} do not go together: give one of them")
        return super().settings() | {"executor": made[given[0]](getattr(self, given[0])) if given else None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compare(Shared):
    """Options of a comparison.

    Args:
        method: name and options of a method, e.g. FedBuff="--server fedbuff --clock.buffer 5"; repeat it. Others are
            compared with the first
        seeds: number of seeds 0, 1, ... of every method
        targets: accuracies, or values of the metric, to which the times are shown, e.g. 0.6,0.7
        metric: metric of the table
    """

    method: UseAppendAction[Annotated[tuple[str, ...], arg(metavar='NAME="OPTIONS"')]] = ()
    seeds: int = 6
    targets: Annotated[Any, written(numbers, "NUMBER,...")] = ()
    metric: str = "accuracy"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tune(Shared):
    """Options of a search.

    Args:
        axis: values of an option, e.g. client.learning_rate=0.01,0.03,0.1; repeat it for a grid
        seeds: number of seeds 1000, 1001, ... of every configuration
        metric: metric on the validation set, which --validation holds out
        rungs: number of rungs of successive halving; 1 is a grid search
    """

    axis: _Axis = ()
    seeds: int = 1
    metric: str = "accuracy"
    rungs: int | None = None


class Line(NamedTuple):
    """A parsed command line."""

    options: Any  # of the command, and in fields by part those of the parts
    names: dict[str, Constructor]  # by part; the optimiser as "client", no "partition" if there is none
    axes: dict[str, list[str]]  # name -> texts of the values
    given: dict[str, str]  # flag -> text
    file: str  # FILE.py, or ""


def parse(command: Any, kind: type[Shared], arguments: Sequence[str]) -> Line:
    """Parses a command line.

    Args:
        command: the function of the command, with its description.
        kind: the options of the command.
        arguments: the command line.

    Raises:
        UserError: a name is unknown, or an axis is malformed.
        SystemExit: the option parser has printed the help, or what is wrong.
    """
    file, *rest = arguments if arguments and arguments[0].endswith(".py") else ["", *arguments]
    axes = _axes(rest)
    for name, texts in axes.items() if not file else ():
        rest.append(flag_of(name, next((one for one in texts if one not in NONE), "none")))
    given = dict(flags_of(rest))
    names = {} if file else _chosen(given)
    options: Any = tyro.cli(
        _options_type(kind, names),
        prog=f"jaxafl {command.__name__}",
        description=command.__doc__ + _MORE,
        args=[*filter(None, rest)],
    )
    return Line(options, names, axes, given, file)


def flags_of(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the flags of a command line with the words that follow them, `--flag value` or `--flag=value`."""
    every = itertools.pairwise([*arguments, ""])
    pairs = [(*one.partition("="), following) for one, following in every if one.startswith("--")]
    return [(flag.replace("_", "-"), value if equals else following) for flag, equals, value, following in pairs]


def _axes(arguments: Sequence[str]) -> dict[str, list[str]]:
    """Returns name -> texts of the axes of a command line: `server.base_rate=1,3,5`, `seed=0:5` (0 to 4).

    Raises:
        UserError: an axis has another form, is given twice, or varies an option that is given too.
    """
    axes: dict[str, list[str]] = {}
    flags = flags_of(arguments)
    for text in [value for flag, value in flags if flag == "--axis"]:
        name, _, values = text.partition("=")
        name = name.strip().replace("-", "_")
        span = re.fullmatch(r"\s*(-?\d+):(-?\d+)\s*", values)
        texts = [*map(str, range(*map(int, span.groups())))] if span else _split(values)
        if not name or not texts or "" in texts:
            form = "NAME=VALUE,VALUE,... or NAME=FIRST:STOP, e.g. server.base_rate=1,3,5 or seed=0:5"
            raise UserError(f"--axis {text!r} lacks a name or a value; expected {form}")
        flag = f"--{name.replace('_', '-')}"
        if name in axes or flag in dict(flags):
            raise UserError(f"--axis {name} is given twice, or beside {flag}; give all of its values in one axis")
        axes[name] = texts
    return axes


def _split(text: str) -> list[str]:
    """Splits a text at the commas outside brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        parts += [""] if character == "," and not depth else []
        parts[-1] += "" if character == "," and not depth else character
    return [part.strip() for part in parts]


def flag_of(name: str, text: str) -> str:
    """Returns the flag of a part's option with a value; "" if an axis has another name, such as `seed`."""
    part, _, option = name.replace("_", "-").partition(".")
    if "." in option or part not in _PARTS:
        return ""
    switch = {"true": "", "false": "no-"}.get(text.lower())
    return f"--{part}.{option}={text}" if switch is None else f"--{part}.{switch}{option}"


def _chosen(given: dict[str, str]) -> dict[str, Constructor]:
    """Returns the constructors that a command line names, by part."""
    names: dict[str, Constructor] = {}
    for part, (flag, kind, usual, _) in _PARTS.items():
        if part == "clock":  # asynchronous if the server is
            clocks = names["server"].clocks
            usual = next((name for name in ("free_running", "synchronous", *clocks) if name in clocks), "synchronous")
        elif part == "model":
            usual = _NETWORKS.get(names["data"].name) or _NETWORKS.get(names["data"].name.partition("_")[0], usual)
        if (name := given.get(f"--{flag}", usual)) != "none":
            names[part] = find(name, kind)
    return names


def _options_type(command: type[Shared], names: dict[str, Constructor]) -> type:
    """Builds a dataclass for tyro: options of a command, `<part>_name`, and by part the options of the constructors."""
    fields: list[Any] = []
    for part, (flag, kind, _, text) in _PARTS.items() if names else ():
        details = arg(name=flag, help=f"{text}; or MODULE:NAME", metavar=f"{{{','.join(offered(kind))}}}")
        fields.append((f"{part}_name", Annotated[str, details], names[part].name if part in names else "none"))
    for part, one in names.items():
        summary = f"local training with {one.name}" if part == "client" else f"{one.name}: {one.summary}"
        group = [_field(option) for option in options_of(part, names)]
        fields.append((part, dataclasses.make_dataclass(part, group, namespace={"__doc__": summary.replace("`", "")})))
    bases = (Built, command) if names else (command,)
    return dataclasses.make_dataclass("Options", fields, bases=bases, kw_only=True, frozen=True)


def _field(option: Option) -> tuple[str, Any, Any]:
    """Returns the field of an option for tyro."""
    field = dataclasses.field(kw_only=True, default=option.default)
    details = arg(help=option.help.replace("`", ""))
    if option.type in ("bool", "list"):
        return option.name, Annotated[option.hint, details], field
    choices = ",".join(map(str, kinds_of(option.hint).choices))
    metavar = option.type.upper().replace(" ", "").replace("STR", f"{{{choices}}}" if choices else "TEXT")
    return option.name, Annotated[Any, written(lambda text: read(text, option.hint), metavar), details], field


def options_of(part: str, names: dict[str, Constructor]) -> list[Option]:
    """Returns the options of a part, with the defaults of the command line."""
    every = {option.name: option for option in names[part].options}
    usual = {name: _REQUIRED.get(name, REQUIRED) for name, one in every.items() if one.default is REQUIRED}
    if part == "client":
        every |= {option.name: option for option in offered("local training")["Client"].options}
        usual = {"learning_rate": 0.05, "steps": 10} | names["server"].local
    elif part == "clock":
        of_paper = getattr(names["server"].call, "buffer", 1)
        usual |= {"concurrency": 10} | ({"buffer": of_paper} if of_paper > 1 else {})
    return [one._replace(default=usual.get(one.name, one.default)) for one in every.values()]


def make_simulation(line: Line) -> Simulation:
    """Builds the simulation of a command line, with the first value of every axis.

    Raises:
        ValueError, TypeError, FileNotFoundError: an option is invalid, or the data was not found.
    """
    if line.file:
        file = pathlib.Path(line.file).resolve()
        sys.path.insert(0, str(file.parent))
        found = imported(f"{file.stem}:simulation")
        if not isinstance(found, Simulation):
            raise UserError(f"{file.name}: simulation is {shown(found)}; expected a jaxafl.Simulation")
        return found
    names, options = line.names, line.options
    values = {part: dict(vars(getattr(options, part))) for part in names}
    data, needs = _data(line, values), getattr(names["server"].call, "needs", None)
    if share := options.validation or (0.1 if getattr(needs, "validation", False) is True else None):
        data = data.with_validation(share)
    model = _called(names["model"], values["model"], num_classes=data.num_classes, data_dir=options.data_dir)
    clock, client = _clock(line, values["clock"], data.num_clients), _client(line, values["client"])
    server = names["server"].call(**values["server"])
    return Simulation(data, model, client, server, clock, options.precision, options.attack)


def axes_of(line: Line) -> dict[str, list[Any]]:
    """Returns the axes of `jaxafl.sweep`: path -> values."""
    hints = {f"{part}.{option.name}": option.hint for part in line.names for option in options_of(part, line.names)}
    hints["seed"] = int
    axes = {name: [read(text, hints.get(name, Any)) for text in texts] for name, texts in line.axes.items()}
    if "client.optimizer" in axes:
        axes["client.optimizer"] = [find(name, "optimisers").call for name in axes["client.optimizer"]]
    return axes


def _data(line: Line, values: dict[str, Any]) -> Any:
    """Returns the data of clients."""
    options, names = line.options, line.names
    found = _called(names["data"], values["data"], data_dir=options.data_dir, download=options.download)
    if isinstance(found, Dataset):
        if "partition" not in names:
            raise UserError(f"{found.name} is a pooled dataset; add --partition iid --partition.clients 10, or another")
        test: Any = "per_client" if options.per_client and options.validation is None else "shared"
        split = names["partition"].call(**values["partition"])
        return found.partition(split, seed=options.partition_seed, quantiles=options.partition_quantiles, test=test)
    if "partition" in names or options.partition_seed or options.partition_quantiles:
        raise UserError(f"{found.name} has clients of its own; leave --partition and options that begin with it out")
    return found


def _clock(line: Line, values: dict[str, Any], clients: int) -> Any:
    """Returns the clock, with M_c at most N and M at most M_c where they are not given."""
    if "concurrency" in values and "--clock.concurrency" not in line.given:
        values["concurrency"] = None if values.get("rate") else min(values["concurrency"], clients)
    if "--clock.buffer" not in line.given and (usual := values.get("buffer")):
        values["buffer"] = None if values.get("period") else min(usual, values.get("concurrency") or usual)
    return line.names["clock"].call(**values)


def _client(line: Line, values: dict[str, Any]) -> Client:
    """Builds the local training. The optimiser is not given `None`, nor defaults that no axis varies."""
    if values["epochs"] is not None and "--client.steps" not in line.given:
        values["steps"] = None
    for name, _, default, *_ in line.names["client"].options:
        if values[name] is None or (f"client.{name}" not in line.axes and np.array_equal(values[name], default)):
            del values[name]
    return Client(line.names["client"].call, **values)


def _called(constructor: Constructor, values: dict[str, Any], **further: Any) -> Any:
    """Calls a constructor with its options, and with the further values that it accepts."""
    accepted = inspect.signature(constructor.call).parameters
    return constructor.call(**values | {name: one for name, one in further.items() if name in accepted and one})
