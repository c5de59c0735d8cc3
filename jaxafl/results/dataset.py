"""What a run returns: an `xarray.Dataset` with named axes, units, and every option of the run in its attributes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.client import Client, sent_bytes
from jaxafl.engine.loop import Trained
from jaxafl.models.metrics import better_of
from jaxafl.options import are_plain, options_of
from jaxafl.references import citation, version
from jaxafl.results.arrivals import by_step, masked, of_schedule
from jaxafl.results.clients import with_clients
from jaxafl.results.failures import place_of
from jaxafl.results.points import with_finals

if TYPE_CHECKING:  # xarray takes a third of a second to import, so it is when a result is made
    import xarray as xr

_LONG = 1000  # numbers one by one
_MEANINGS = {
    "step": ("1", "server step t; it makes version t + 1"),
    "version": ("1", "version of the global model, 0 the initial one"),
    "arrival": ("1", "place among the arrivals of a server step"),
    "evaluation": ("1", "index of the evaluated model"),
    "eval_step": ("1", "server steps made by the evaluated model"),
    "time": ("s", "simulated time of the server step, pauses of all clients included"),
    "started_at": ("s", "simulated time at which the run started"),
    "arrived_at": ("s", "simulated time at which the run arrived"),
    "arrived": ("1", "true where an update arrived; where none did, indices are -1 and numbers are missing (NaN)"),
    "step_arrivals": ("1", "updates that arrived at the server step"),
    "step_staleness": ("1", "mean staleness of the arrivals of the server step"),
    "step_loss": ("1", "mean local_loss of the arrivals of the server step"),
    "eval_time": ("s", "simulated time of the evaluated model"),
    "eval_updates": ("1", "client updates taken by the evaluated model"),
    "eval_local_steps": ("1", "local steps made by the updates that the evaluated model has taken"),
    "client": ("1", "index of the client that arrived, -1 for none"),
    "run_index": ("1", "index of the run among the client's"),
    "staleness": ("1", "versions made since the one that the update is measured against"),
    "local_steps": ("1", "local steps planned for the run, or made where their time is charged (charge='executed')"),
    "multiplicity": ("1", "how many times the update counts in the server step"),
    "kind": ("1", "what the protocol says of the arrival, -1 for none"),
    "delta_norm": ("1", "Euclidean norm of the update as it arrived, before the server weighs it"),
    "local_loss": (
        "1",
        "mean over the run's local steps of the mini-batch loss, each before its step, without regularisers",
    ),
    "loss": ("1", "mean test loss"),
    "accuracy": ("1", "share of test samples classified correctly"),
    "server_rate": (
        "1",
        "learning rate of the server step: as the server reports it, else its option; 0 where nothing arrived",
    ),
    "drift": ("1", "Euclidean distance from the version that the update is measured against to x_t"),
    "gradient_norm_squared": ("1", "squared norm of the full training gradient at x_t, before the step"),
    "asynchronous_error": (
        "1",
        "norm of the full gradient at x_t minus the applied one, (x_t - x_(t+1)) / server_rate",
    ),
    "average_loss": ("1", "mean test loss of the average of all versions"),
    "average_accuracy": ("1", "share of test samples that the average of all versions classifies correctly"),
    "executed_local_steps": ("1", "local steps that the run made, fewer than planned where it stopped early"),
    "eval_bytes": ("B", "bytes sent, up and down, before the evaluated model was made"),
    "bytes_up": ("B", "bytes that clients send in a server step"),
    "bytes_down": ("B", "bytes that clients receive in a server step, those of runs that are abandoned too"),
    "population": ("1", "index of the client"),
    "participation": ("1", "arrivals of the client, each counted once"),
    "mean_staleness": ("1", "mean staleness of the client's arrivals, each counted once"),
    "client_name": ("1", "name of the client"),
    "client_samples": ("1", "held-out samples on which the client is evaluated"),
    "client_loss": ("1", "mean loss on the client's held-out samples"),
    "client_accuracy": ("1", "share of the client's held-out samples classified correctly"),
    "validation_loss": ("1", "mean loss on the validation set"),
    "validation_accuracy": ("1", "share of validation samples classified correctly"),
}


def of_run(trained: Trained, parts: Mapping[str, Any], seed: int) -> xr.Dataset:
    """The result of one run, with dimensions `step`, `arrival` and `evaluation`; nested attributes are JSON.

    Args:
        trained: the run.
        parts: `data`, `model`, `client`, `server` and `clock` of the simulation.
        seed: of the run.
    """
    import xarray as xr

    made, records, server = trained.schedule, trained.records, parts["server"]
    dataset = with_clients(xr.Dataset(_variables(trained, parts["client"])), parts["data"])
    # the dimensions that a record adds have no coordinates
    indices = {str(name): np.arange(size) for name, size in dataset.sizes.items() if name in _MEANINGS}
    dataset = dataset.assign_coords(indices | _coordinates(trained, dataset))
    meanings = _MEANINGS | {name: ("1", meaning) for name, meaning in server.meanings.items()}
    for name, variable in dataset.variables.items():
        units, meaning = meanings.get(str(name), ("1", f"`{name}` as {server.name} reports it"))
        if str(name).startswith("observe_"):
            meaning = f"`{str(name).removeprefix('observe_')}` of the user's observe"
        variable.attrs |= {"units": units, "long_name": meaning}
    for name in trained.evaluations:
        if name not in meanings:
            dataset[name].attrs["long_name"] = f"mean of the metric `{name}` of {parts['model'].name}"
        if way := better_of(name, parts["model"].better):
            dataset[name].attrs["better"] = way
    if made.kinds:
        dataset["kind"].attrs |= {"flag_values": list(range(len(made.kinds))), "flag_meanings": "; ".join(made.kinds)}
    precision = parts["model"].precision
    attributes: dict[str, Any] = {"failed": place_of(*trained.failure)} if trained.failure else {}
    attributes |= {
        "title": f"{server.name} on {parts['clock'].name}, {parts['data'].name}",
        "jaxafl_version": version(),
        "seed": int(seed),
        "precision": precision if precision != "float32" else str(jnp.result_type(float)),
        "eval_every": trained.eval_every,
        "server_steps": made.server_steps,
        "num_clients": parts["data"].num_clients,
        **options_of_parts(parts),
        "citation": citation(*parts.values()),
        "backend": jax.default_backend(),
        "failed_step": trained.failure[0] if trained.failure else -1,
        "failed_client": trained.failure[1] if trained.failure else -1,
        "runs_started": made.runs_started,
        "runs_never_consumed": made.runs_started - len(np.unique(made.run_id[made.mask])),
    }
    if not trained.failure:
        found = made.statistics()
        attributes |= {name: found[name] for name in ("staleness_mean", "staleness_max")}
        for mean in ("mean", "median"):
            attributes[f"staleness_max_per_step_{mean}"] = found[f"max_staleness_per_step_{mean}"]
    attributes |= {f"count_{name}": int(records[name].sum()) for name in server.counters if name in records}
    attributes |= {name: round(value, 3) for name, value in trained.seconds.items()} | dict(trained.notes)
    dataset.attrs |= {name: flat(value) for name, value in attributes.items()}
    return with_finals(dataset)


def options_of_parts(parts: Mapping[str, Any]) -> dict[str, Any]:
    """All options of `data`, `model`, `client`, `server` and `clock`."""
    own = {name: plain(parts[name]) for name in ("client", "server", "clock")}
    model = {"name": parts["model"].name} | dict(parts["model"].description)
    return {"data": dict(parts["data"].description), "model": model, **own}


def _variables(trained: Trained, client: Client) -> dict[str, Any]:
    made, mask = trained.schedule, trained.schedule.mask
    variables: dict[str, Any] = {"time": (("step",), made.time)}
    variables |= {name: (("step",), values) for name, values in bytes_sent(trained, client).items()}
    taken = made.client[mask]
    arrivals = np.bincount(taken, minlength=made.num_clients).astype(np.int32)
    total = np.bincount(taken, made.staleness[mask], made.num_clients)
    mean = np.divide(total, arrivals, out=np.full(made.num_clients, np.nan), where=arrivals > 0)
    variables |= {"participation": ("population", arrivals), "mean_staleness": ("population", mean.astype(np.float32))}
    variables |= of_schedule(made) | by_step(made, trained.records.get("local_loss"))
    for name, values in trained.records.items():
        of_version = name.startswith("observe_")
        dims: tuple[str, ...] = ("version",) if of_version else ("step",)
        if values.shape[1:] == mask.shape[1:] and not of_version:
            dims = ("step", "arrival")
            values = masked(values, mask)
        extra = tuple(f"{name}_{axis}" for axis in range(values.ndim - len(dims)))
        variables[name] = ((*dims, *extra), values)
    for name, values in trained.evaluations.items():
        variables[name] = (("evaluation", "held_out_client")[: values.ndim], values)
    return variables


def bytes_sent(trained: Trained, client: Client) -> dict[str, np.ndarray]:
    """Bytes of every server step, int64 [T]: parameters that are trained, and non-trainable state, in the precision in
    which they are kept; up with every arrival, down with every run that starts, those that are abandoned too. What the
    client's optimiser freezes, so that its updates are zero, is sent neither up nor down."""
    made, size = trained.schedule, sent_bytes(client, trained.params, trained.model_state)
    begun = np.diff(made.runs_begun, prepend=0)
    return {"bytes_up": made.mask.sum(axis=1) * np.int64(size), "bytes_down": begun * np.int64(size)}


def _coordinates(trained: Trained, dataset: xr.Dataset) -> dict[str, Any]:
    made = trained.schedule
    local_steps = np.where(made.mask, trained.records.get("executed_local_steps", made.local_steps), 0).sum(axis=1)
    taken = {
        "eval_step": np.arange(1, made.server_steps + 1),
        "eval_time": made.time,
        "eval_updates": made.mask.sum(axis=1).cumsum(),
        "eval_local_steps": local_steps.cumsum(),
        "eval_bytes": (dataset["bytes_up"].values + dataset["bytes_down"].values).cumsum(),
    }
    return {name: (("evaluation",), np.insert(values, 0, 0)[trained.eval_step]) for name, values in taken.items()}


def plain(node: Any) -> Any:
    """A description of a part, and of what it holds, that JSON can hold: for the attributes of a result."""
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        name = getattr(node, "name", None)
        own = {"name": name if isinstance(name, str) else type(node).__name__}
        return own | {option: plain(value) for option, value in options_of(node).items()}
    if isinstance(node, dict):
        return {str(key): plain(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return (
            f"array[{len(node)}]"
            if len(node) > _LONG and are_plain(node, int, float)
            else [plain(value) for value in node]
        )
    if isinstance(node, np.ndarray | np.generic | jax.Array):
        array = np.asarray(node)
        return array.tolist() if array.size <= 64 else f"array{list(array.shape)}"
    if callable(node):
        return getattr(node, "__name__", type(node).__name__)
    return node


def flat(value: Any) -> Any:
    """A value that NetCDF can hold as an attribute: nested ones as JSON."""
    value = plain(value)
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return value
    return json.dumps(value, default=str)
