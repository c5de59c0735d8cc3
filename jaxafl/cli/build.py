"""From the options of a command line to a simulation."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Collection
from typing import Any

from jaxafl.cli import defaults
from jaxafl.cli.expression import parse_durations
from jaxafl.cli.names import Chosen
from jaxafl.client import Client, LocalTraining
from jaxafl.data import Dataset, FederatedData
from jaxafl.simulation import Simulation


def make_simulation(names: Chosen, options: Any, axes: Collection[str] = ()) -> Simulation:
    """The simulation that the options describe.

    Args:
        names: the constructors.
        options: an instance of `options_type(names, ...)`.
        axes: the names of what varies.

    Raises:
        ValueError, TypeError, FileNotFoundError: an option cannot work, or the data is not there.
    """
    server, proximal = _values(options, "server"), None
    if names.server.name == "fedprox":
        proximal = server.pop("mu")
    client = make_client(names, options, proximal, axes)
    data = make_data(names, options)
    return Simulation(
        data=data,
        model=_make_model(names, options, data),
        client=client,
        server=names.server.call(**server),
        clock=_make_clock(names, options, data),
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


def make_client(names: Chosen, options: Any, proximal: float | None, axes: Collection[str]) -> LocalTraining:
    """Local training; options that the command line leaves out (`None`) are not given to the optimiser, and where the
    optimiser varies, neither are those that are as the first one has them."""
    values = _values(options, "client")
    del values["optimizer"]
    if proximal is not None:
        if values["proximal"] is not None:
            raise ValueError("fedprox takes its μ as --server.mu; --client.proximal is for the other servers")
        values["proximal"] = proximal
    if values["steps"] is None and values["epochs"] is None:
        values["steps"] = defaults.local_training(names.server)["steps"]
    for option in names.optimizer.options:
        usual = "client.optimizer" in axes and values[option.name] == option.default
        if values[option.name] is None or (usual and f"client.{option.name}" not in axes):
            del values[option.name]
    return Client(names.optimizer.call, **values)


def _make_clock(names: Chosen, options: Any, data: FederatedData) -> Any:
    clock = _values(options, "clock")
    for option in names.clock.options:
        if option.expression and clock[option.name] is not None:
            clock[option.name] = parse_durations(str(clock[option.name]))
    if "concurrency" in clock and clock["concurrency"] is None:
        clock["concurrency"] = min(defaults.CONCURRENCY, data.num_clients)
    return names.clock.call(**clock)


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
