"""Command lines: the options of a command, the parts that it names, and the simulation and axes they describe.

Options depend on the data, model, server and clock that the command line names (see jaxafl list).

A file gives a number per client: --client.learning-rate @rates.npy, also in an --axis.

FILE.py before the options takes the place of all parts: it defines simulation, a jaxafl.Simulation.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import os
import pathlib
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from tyro.conf import UseAppendAction, arg, create_mutex_group
from tyro.constructors import PrimitiveConstructorSpec

from jaxafl import callbacks
from jaxafl.callbacks.limits import parsed_limits
from jaxafl.cli.catalogue import REQUIRED, Constructor, Option, find, imported, offered
from jaxafl.cli.expressions import read
from jaxafl.client import Client
from jaxafl.client.attack import Attack
from jaxafl.clock import at_step, uniform
from jaxafl.data import Dataset
from jaxafl.device.hardware import make_cpu_devices
from jaxafl.models.model import Precision
from jaxafl.options import UserError, kinds_of, shown, user_errors
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
_NETWORKS = {"synthetic": "logistic", "shakespeare": "char_lstm", "glue": "bert", "shakespeare_plays": "decoder"}
_REQUIRED = {"durations": uniform(1, 5), "clients": 10}  # defaults of options that have none
Chosen = dict[str, Constructor]  # by part
# The docstring of this module ends the help of every command.
_MORE = str(__doc__).partition("\n")[2]


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


def accepted(call: Callable[..., Any], values: dict[str, Any]) -> dict[str, Any]:
    """Returns those of some values that are arguments of a function."""
    return {name: values[name] for name in inspect.signature(call).parameters if name in values}


def numbers(text: str) -> tuple[float | None, ...]:
    """Returns the numbers of a text, `None` where there is nothing between commas."""
    return tuple(float(one) if one else None for one in text.split(","))


_Attack = Annotated[Any, written(lambda text: read(text, Attack | None), "EXPR")]
_One: Any = create_mutex_group(required=False)
_Axis = UseAppendAction[Annotated[tuple[str, ...], arg(metavar="NAME=VALUES")]]


@dataclasses.dataclass
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
        """Returns the options of `Simulation.run` and `sweep`; `compare` and `tune` have them but the seed."""
        given = accepted(Simulation.run, vars(self))
        given["callbacks"] = [one for one in vars(self).values() if isinstance(one, callbacks.Callback)]
        given["diagnostics"] = ("per_client",) if self.per_client else ()
        if self.server_steps is None and not self.until:
            given["server_steps"] = 200
        return given


@dataclasses.dataclass
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


@dataclasses.dataclass
class Run(Shared):
    """Options of a run.

    Args:
        seed: seed of the initial model, the schedule and the mini-batches
        save: NetCDF file to write, e.g. result.nc
        csv: table of the evaluations to write while it runs
    """

    seed: int = 0
    save: Annotated[pathlib.Path | None, arg(name="output")] = None
    csv: Annotated[Any, written(callbacks.Csv, "FILE")] = None


@dataclasses.dataclass
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
    workers: Annotated[int | None, _One] = None
    dask: Annotated[str | None, _One] = None
    slurm: Annotated[str | None, _One] = None
    plan: bool = False

    def settings(self) -> dict[str, Any]:
        """Returns the options of `jaxafl.sweep`."""
        slurm = partial(slurm_executor, logs=pathlib.Path(self.folder or ".") / "slurm")
        made: dict[str, Any] = {"workers": process_pool, "dask": dask_executor, "slurm": slurm}
        chosen = [make(getattr(self, name)) for name, make in made.items() if getattr(self, name) is not None]
        return super().settings() | {"executor": next(iter(chosen), None)}


@dataclasses.dataclass
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


@dataclasses.dataclass
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


def prepared(command: Any, kind: type[Shared], arguments: Sequence[str]) -> tuple[Any, Simulation, dict[str, Any]]:
    """Returns the options of a command line, its simulation with the first value of every axis, and its axes.

    Args:
        command: the function of the command, with its description.
        kind: the options of the command.
        arguments: the command line.

    Raises:
        UserError: a name is unknown, an axis is malformed, an option is invalid, or the data was not found.
        SystemExit: the option parser has printed the help, or what is wrong.
    """
    file, *rest = arguments if arguments and arguments[0].endswith(".py") else ["", *arguments]
    axes, given = _axes(rest), dict(flags_of(rest))
    make_cpu_devices(given.get("--devices", ""))  # before JAX looks for devices
    if "--workers" in given:  # otherwise this process reserves the GPU memory that its workers need
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    given |= {flag_of(path): texts[0] for path, texts in axes.items()}
    names = {} if file else _chosen(given)
    known = {f"{part}.{option.name}": option for part in names for option in _options_of(part, names)}
    varied: dict[str, list[Any]] = {}
    for path, texts in axes.items():
        hint = int if path == "seed" else known[path].hint if path in known else Any
        with user_errors(f"--axis {path}"):
            varied[path] = [read(text, hint) for text in texts]
        if path in known:  # `None` may leave out what the other values need
            first = next((one for one in varied[path] if one is not None), None)
            known[path] = known[path]._replace(default=first)
        if path == "client.optimizer":
            varied[path] = [find(text, "optimisers").call for text in texts]
    options: Any = tyro.cli(
        _options_type(kind, names, known),
        prog=f"jaxafl {command.__name__}",
        description=f"{command.__doc__}\n{_MORE}",
        args=rest,
    )
    with user_errors():
        simulation = _built(options, names, given) if names else _imported(pathlib.Path(file).resolve())
    return options, simulation, varied


def flags_of(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the flags of a command line with the words that follow them, `--flag value` or `--flag=value`."""
    every = itertools.pairwise([*arguments, ""])
    pairs = [(*one.partition("="), following) for one, following in every if one.startswith("--")]
    return [(flag.replace("_", "-"), value if equals else following) for flag, equals, value, following in pairs]


def flag_of(path: str) -> str:
    """Returns the flag of an option such as `client.batch_size`."""
    return f"--{path.replace('_', '-')}"


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
        if name in axes or flag_of(name) in dict(flags):
            raise UserError(f"--axis {name} is given twice, or beside {flag_of(name)}; give all values in one axis")
        axes[name] = texts
    return axes


def _split(text: str) -> list[str]:
    """Splits a text at the commas outside brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _chosen(given: dict[str, str]) -> Chosen:
    """Returns the constructors that a command line names, by part."""
    names: Chosen = {}
    for part, (flag, kind, usual, _) in _PARTS.items():
        if part == "clock":  # asynchronous if the server is
            clocks = names["server"].clocks
            usual = next((name for name in ("free_running", "synchronous", *clocks) if name in clocks), "synchronous")
        elif part == "model":
            usual = _NETWORKS.get(names["data"].name) or _NETWORKS.get(names["data"].name.partition("_")[0], usual)
        if (name := given.get(f"--{flag}", usual)) != "none":
            names[part] = find(name, kind)
    return names


def _options_of(part: str, names: Chosen) -> list[Option]:
    """Returns the options of a part, with the defaults of the command line."""
    every = {option.name: option for option in names[part].options}
    usual = {name: _REQUIRED[name] for name, one in every.items() if one.default is REQUIRED and name in _REQUIRED}
    if part == "client":
        every |= {option.name: option for option in offered("local training")["Client"].options}
        usual = {"learning_rate": 0.05, "steps": 10} | names["server"].local
    elif part == "clock":
        of_paper = getattr(names["server"].call, "buffer", 1)
        usual |= {"concurrency": 10} | ({"buffer": of_paper} if of_paper > 1 else {})
    return [one._replace(default=usual.get(one.name, one.default)) for one in every.values()]


def _options_type(command: type[Shared], names: Chosen, known: dict[str, Option]) -> type:
    """Builds a dataclass for tyro: options of a command, `<part>_name`, and by part the options of the constructors."""
    fields: list[Any] = []
    for part, (flag, kind, _, text) in _PARTS.items() if names else ():
        details = arg(name=flag, help=f"{text}; or MODULE:NAME", metavar=f"{{{','.join(offered(kind))}}}")
        fields.append((f"{part}_name", Annotated[str, details], names[part].name if part in names else "none"))
    for part, one in names.items():
        summary = f"local training with {one.name}" if part == "client" else f"{one.name}: {one.summary}"
        group = [_field(option) for path, option in known.items() if path.startswith(f"{part}.")]
        fields.append((part, dataclasses.make_dataclass(part, group, namespace={"__doc__": summary.replace("`", "")})))
    bases = (Built, command) if names else (command,)
    return dataclasses.make_dataclass("Options", fields, bases=bases, kw_only=True)


def _field(option: Option) -> tuple[str, Any, Any]:
    """Returns the field of an option for tyro."""
    usual: dict[str, Any] = {} if option.default is REQUIRED else {"default_factory": lambda: option.default}
    field = dataclasses.field(kw_only=True, **usual)
    details = arg(help=option.help.replace("`", ""))
    if option.type in ("bool", "list"):
        return option.name, Annotated[option.hint, details], field
    choices = ",".join(map(str, kinds_of(option.hint).choices))
    metavar = option.type.upper().replace(" ", "").replace("STR", f"{{{choices}}}" if choices else "TEXT")
    return option.name, Annotated[Any, written(lambda text: read(text, option.hint), metavar), details], field


def _imported(file: pathlib.Path) -> Simulation:
    """Returns the simulation that a file defines."""
    sys.path.insert(0, str(file.parent))
    found = imported(f"{file.stem}:simulation")
    if not isinstance(found, Simulation):
        raise UserError(f"{file.name}: simulation is {shown(found)}; expected a jaxafl.Simulation")
    return found


def _built(options: Any, names: Chosen, given: dict[str, str]) -> Simulation:
    """Builds the simulation of parsed options.

    Raises:
        ValueError, TypeError, FileNotFoundError: an option is invalid, or the data was not found.
    """
    values = {part: dict(vars(getattr(options, part))) for part in names}
    data, needs = _data(options, names, values), getattr(names["server"].call, "needs", None)
    if share := options.validation or (0.1 if getattr(needs, "validation", False) is True else None):
        data = data.with_validation(share)
    model = _called(names["model"], values["model"], num_classes=data.num_classes, data_dir=options.data_dir)
    _fit(values, names, given, data.num_clients)
    client = Client(names["client"].call, **values["client"])
    clock, server = (names[part].call(**values[part]) for part in ("clock", "server"))
    return Simulation(data, model, client, server, clock, options.precision, options.attack)


def _data(options: Any, names: Chosen, values: dict[str, Any]) -> Any:
    """Returns the data of clients."""
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


def _fit(values: dict[str, Any], names: Chosen, given: dict[str, str], clients: int) -> None:
    """Changes what is not given.

    M_c is at most N, and M at most M_c where starts wait for steps. Windows have no M. The optimiser gets neither
    `None` nor defaults.
    """
    clock, client = values["clock"], values["client"]
    begins = clock.get("begins")
    if "concurrency" in clock and "--clock.concurrency" not in given:
        at_rate = clock.get("rate") or not getattr(begins, "by_arrival", True)
        clock["concurrency"] = None if at_rate else min(clock["concurrency"], clients)
    if "--clock.buffer" not in given and clock.get("buffer"):
        if clock.get("period") or clock.get("closes"):
            clock["buffer"] = None
        elif clock.get("dispatch") == "step" or isinstance(begins, at_step):  # more than M_c could never arrive
            clock["buffer"] = min(clock["buffer"], clock["concurrency"] or clients)
    if client["epochs"] is not None and "--client.steps" not in given:
        client["steps"] = None
    for name, _, default, *_ in names["client"].options:
        if client[name] is None or (flag_of(f"client.{name}") not in given and np.array_equal(client[name], default)):
            del client[name]


def _called(constructor: Constructor, values: dict[str, Any], **further: Any) -> Any:
    """Calls a constructor with its options, and with the further values that it accepts."""
    known = {name: one for name, one in further.items() if one}
    return constructor.call(**values | accepted(constructor.call, known))
