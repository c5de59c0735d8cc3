"""From the options of a command line to a simulation."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from typing import Any

from jaxafl.cli.expression import parse_durations
from jaxafl.cli.options import Chosen
from jaxafl.client import Client, LocalTraining
from jaxafl.data import Dataset, FederatedData
from jaxafl.simulation import Simulation

_STEPS = 10


def make_simulation(names: Chosen, options: Any) -> Simulation:
    """The simulation that the options describe.

    Args:
        names: the constructors.
        options: an instance of `options_type(names, ...)`.

    Raises:
        ValueError, TypeError, FileNotFoundError: an option cannot work, or the data is not there.
    """
    clock = _values(options, "clock")
    for option in names.clock.options:
        if option.expression and clock[option.name] is not None:
            clock[option.name] = parse_durations(clock[option.name])
    server, proximal = _values(options, "server"), None
    if names.server.name == "fedprox":
        proximal = server.pop("mu")
    client = make_client(names, options, proximal)
    data = make_data(names, options)
    return Simulation(
        data=data,
        model=_make_model(names, options, data),
        client=client,
        server=names.server.call(**server),
        clock=names.clock.call(**clock),
    )


def make_data(names: Chosen, options: Any) -> FederatedData:
    """The dataset, split over clients."""
    data = names.data.call(**_values(options, "data"), **_where(names.data.call, options))
    if isinstance(data, Dataset):
        if names.partition is None:
            raise ValueError(
                f"{names.data.name} is one pooled dataset: split it over clients, e.g. --partition iid --clients 10"
            )
        return data.partition(names.partition.call(**_values(options, "partition")), seed=options.partition_seed)
    if names.partition is not None:
        raise ValueError(
            f"{names.data.name} comes with its own clients and takes no --partition; --data.clients says how many"
        )
    return data


def make_client(names: Chosen, options: Any, proximal: float | None) -> LocalTraining:
    """Local training; options that the command line leaves out (`None`) are not given to the optimiser."""
    values = _values(options, "client")
    del values["optimizer"]
    if proximal is not None:
        if values["proximal"] is not None:
            raise ValueError("fedprox takes its μ as --server.mu; --client.proximal is for the other servers")
        values["proximal"] = proximal
    if values["steps"] is None and values["epochs"] is None:
        values["steps"] = _STEPS
    options_of_optimizer = {option.name for option in names.optimizer.options}
    kept = {name: value for name, value in values.items() if value is not None or name not in options_of_optimizer}
    return Client(names.optimizer.call, **kept)


def parse_axis(text: str) -> tuple[str, list[Any]]:
    """The name and values of `server.lam=1,3,5` or `seed=0:5` (0, 1, 2, 3, 4).

    Raises:
        ValueError: it has another form, or no values.
    """
    name, equals, values = text.partition("=")
    name, form = name.strip(), "write NAME=VALUE,VALUE,... or NAME=FIRST:STOP, e.g. server.lam=1,3,5 or seed=0:5"
    if not (name and equals and values.strip()):
        raise ValueError(f"--axis {text!r}: {form}")
    if ":" not in values:
        return name, [_literal(value.strip()) for value in values.split(",")]
    try:
        found = list(range(*(int(part) for part in values.split(":"))))
    except (ValueError, TypeError) as error:
        raise ValueError(f"--axis {text!r}: a range needs whole numbers; {form}") from error
    if not found:
        raise ValueError(f"--axis {text!r}: the range is empty; {form}")
    return name, found


def _make_model(names: Chosen, options: Any, data: FederatedData) -> Any:
    classes = {"num_classes": data.num_classes} if _takes(names.model.call, "num_classes") else {}
    return names.model.call(**classes, **_values(options, "model"), **_where(names.model.call, options))


def _where(function: Any, options: Any) -> dict[str, Any]:
    """The data directory, for what takes one."""
    return {"data_dir": options.data_dir} if options.data_dir is not None and _takes(function, "data_dir") else {}


def _values(options: Any, part: str) -> dict[str, Any]:
    group = getattr(options, part, None)
    return {} if group is None else {field.name: getattr(group, field.name) for field in dataclasses.fields(group)}


def _takes(function: Any, name: str) -> bool:
    return name in inspect.signature(function).parameters


def _literal(text: str) -> Any:
    """A number, True, False or None as Python writes it; anything else is a string."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return value if value is None or isinstance(value, int | float) else text
