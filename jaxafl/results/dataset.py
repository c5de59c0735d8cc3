"""Result of a run: an `xarray.Dataset` with named axes and units, and every option of the run as an attribute."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.client import Client, traffic
from jaxafl.data import FederatedData
from jaxafl.engine.check import Parts
from jaxafl.engine.loop import Trained
from jaxafl.models.metrics import better_of, declared, metric_of
from jaxafl.options import options_of
from jaxafl.references import citation, version
from jaxafl.results.accessor import Privacy
from jaxafl.results.arrivals import masked, of_schedule
from jaxafl.results.clients import NAMES, of_population, with_samples
from jaxafl.results.failures import place_of

if TYPE_CHECKING:  # importing xarray here would slow down `import jaxafl`
    import xarray as xr

_LONG = 1000  # longer lists of numbers are not written out in attributes
_UNITS = dict.fromkeys(("time", "started_at", "arrived_at", "eval_time"), "s")
_UNITS |= dict.fromkeys(("eval_bytes", "bytes_up", "bytes_down"), "B")
_SETS = {
    "": "on the test set",
    "test_": "on each test set",
    "validation_": "on the validation set",
    "client_": "on the client's held-out samples",
    "personal_": "of the clients' models, each with its personal parameters, on their held-out samples",
}
_SETS |= {f"average_{name}": f"of the average of x_1 .. x_t {of}" for name, of in _SETS.items()}
_METRICS = {
    "loss": "mean loss",
    "accuracy": "share of samples classified correctly",
    "mae": "mean absolute error, in the unit of the targets,",
    "rmse": "root of the mean squared error, in the unit of the targets,",
    "confusion": "samples by label and predicted class",
}
_EVALUATED = {f"{start}{name}": f"{meaning} {of}" for name, meaning in _METRICS.items() for start, of in _SETS.items()}
_UNITS |= dict.fromkeys((name for name in _EVALUATED if name.endswith(("mae", "rmse"))), "unit of y")
_MEANINGS = {
    "step": "server step t; it makes version t + 1",
    "version": "version of the global model, 0 the initial one",
    "arrival": "slot among the arrivals of a server step",
    "evaluation": "index of the evaluated model",
    "eval_step": "server steps made by the evaluated model",
    "time": "simulated time of the server step, pauses of all clients included",
    "started_at": "simulated time at which the run started",
    "arrived_at": "simulated time at which the run arrived",
    "arrived": "true if an update arrived; otherwise indices are -1 and numbers are missing (NaN)",
    "step_arrivals": "updates that arrived at the server step",
    "step_staleness": "mean staleness of the arrivals of the server step",
    "step_loss": "mean local_loss of the arrivals of the server step",
    "eval_time": "simulated time of the evaluated model",
    "eval_updates": "client updates taken by the evaluated model",
    "eval_local_steps": "local steps of the updates taken by the evaluated model",
    "client_id": "index of the arriving client, -1 for none",
    "run_index": "index of the run among the client's",
    "staleness": "versions since the one that the update is measured against",
    "local_steps": "local steps planned for the run; executed local steps with charge='executed'",
    "multiplicity": "multiplicity of the update in the server step",
    "kind": "kind of the arrival in the protocol, -1 for none",
    "delta_norm": "Euclidean norm of the update as it arrived, before the server weighs it",
    "computed_delta_norm": "Euclidean norm of the update before upload and attack, of the parameters that are sent",
    "local_loss": "mean over the run's local steps of the mini-batch loss, each before its step, without regularisers",
    "server_rate": "learning rate of the server step, from the server's report or its option; 0 without arrivals",
    "local_accuracy": "accuracy of the client's own model, before it is merged, on its held-out samples",
    "drift": "Euclidean distance from the version that the update is measured against to x_t",
    "gradient_norm_squared": "squared norm of the full training gradient at x_t, before the step",
    "asynchronous_error": "norm of the full gradient at x_t minus the applied one, (x_t - x_(t+1)) / server_rate",
    "executed_local_steps": "executed local steps of the run, fewer than planned if it stopped early",
    "eval_bytes": "bytes sent, up and down, until the evaluated model",
    "bytes_up": "bytes that clients send in a server step",
    "bytes_down": "bytes that clients receive in a server step, including abandoned runs",
    "population": "index of the client",
    "attacker": "True for clients that attack",
    "participation": "arrivals of the client, each counted once",
    "mean_staleness": "mean staleness of the client's arrivals, each counted once",
    "client_name": "name of the client",
    "client_samples": "held-out samples on which the client is evaluated",
    "client_accuracy_error": "standard error of client_accuracy by client_samples, half of Wilson's score interval",
    "label": "class of the label",
    "predicted": "predicted class",
    "test_set": "name of the test set",
    **_EVALUATED,
}


def of_run(trained: Trained, parts: Mapping[str, Any], seed: int) -> xr.Dataset:
    """Returns the result of one run, with dimensions `step`, `arrival` and `evaluation`; nested attributes are JSON.

    Args:
        trained: the run.
        parts: `data`, `model`, `client`, `server`, `clock` and, if there is one, `attack` of the simulation.
        seed: the seed of the run.
    """
    import xarray as xr

    if not hasattr(xr.Dataset, "privacy"):
        xr.register_dataset_accessor("privacy")(Privacy)
    schedule, server, data, mask = trained.schedule, parts["server"], parts["data"], trained.schedule.mask
    variables = _variables(trained, parts["client"], data)
    if "attack" in parts:
        variables["attacker"] = "population", parts["attack"].mask(data.num_clients, seed)
    dataset = xr.Dataset(variables)
    if "client_loss" in variables:
        dataset = with_samples(dataset, data)
    coordinates: dict[str, Any] = {} if data.client_names is None else {NAMES: ("population", data.client_names)}
    for name, size in dataset.sizes.items():
        if name in _MEANINGS and name != "test_set":  # the meaning of a dimension that a record adds is not known
            coordinates[str(name)] = np.arange(size)
    executed = trained.records.get("executed_local_steps", schedule.local_steps)
    after = {
        "eval_step": np.arange(1, schedule.server_steps + 1),
        "eval_time": schedule.time,
        "eval_updates": mask.sum(axis=1).cumsum(),
        "eval_local_steps": np.where(mask, executed, 0).sum(axis=1).cumsum(),
        "eval_bytes": (dataset["bytes_up"].values + dataset["bytes_down"].values).cumsum(),
    }
    for name, values in after.items():
        coordinates[name] = "evaluation", np.insert(values, 0, 0)[trained.eval_step]
    if data.test_sets:
        coordinates["test_set"] = "test_set", list(data.test_sets)
    dataset = dataset.assign_coords(coordinates)
    meanings = _MEANINGS | dict(server.meanings) | dict(getattr(getattr(server, "aggregate", None), "meanings", {}))
    for name, variable in dataset.variables.items():
        meaning = meanings.get(str(name), f"`{name}` as {server.name} reports it")
        if str(name).startswith("observe_"):
            meaning = f"`{str(name).removeprefix('observe_')}` of the user's observe"
        variable.attrs |= {"units": _UNITS.get(str(name), "1"), "long_name": meaning}
    for name in trained.evaluations.keys() & dataset.variables.keys():
        of_set = metric_of(name, trained.metrics)
        if name not in meanings:
            kind = "mean of the metric" if of_set is None else "metric of all outputs,"
            dataset[name].attrs["long_name"] = f"{kind} `{name}` of {parts['model'].name}"
        if of_set is not None:
            dataset[name].attrs["units"] = of_set.unit
        if way := better_of(name, declared(parts["model"].better, trained.metrics)):
            dataset[name].attrs["better"] = way
    if kinds := schedule.kinds:
        dataset["kind"].attrs |= {"flag_values": list(range(len(kinds))), "flag_meanings": "; ".join(kinds)}
    attributes = _attributes(trained, parts, seed)
    dataset.attrs.update(zip(attributes, map(flat, attributes.values()), strict=True))
    return _with_finals(dataset)


def _with_finals(result: xr.Dataset) -> xr.Dataset:
    """Adds `final_<name>` for every evaluated quantity: its value at the last evaluation of the run.

    `final_time`, `final_step`, `final_updates`, `final_local_steps` and `final_bytes` are the point of this evaluation.
    Metrics of a failed run are NaN.
    """
    found = {}
    for name, values in result.variables.items():
        if "evaluation" in values.dims and name != "evaluation":
            kind, final = str(name).removeprefix("eval_"), values.isel(evaluation=-1)
            if kind == name and result.attrs["failed_step"] >= 0:
                final = final.where(False)
            meaning = f"{values.attrs.get('long_name', name)}, at the end of each run"
            found[f"final_{kind}"] = final.dims, final.values, values.attrs | {"long_name": meaning}
    return result.assign(found)


def _attributes(trained: Trained, parts: Mapping[str, Any], seed: int) -> dict[str, Any]:
    schedule, server, precision = trained.schedule, parts["server"], parts["model"].precision
    step, client = trained.failure or (-1, -1)
    found: dict[str, Any] = {"failed": place_of(step, client)} if trained.failure else {}
    taken = int(np.count_nonzero(np.bincount(schedule.per_arrival["run_id"])))
    found |= {
        "title": f"{server.name} on {parts['clock'].name}, {parts['data'].name}",
        "jaxafl_version": version(),
        "seed": int(seed),
        "precision": precision if precision != "float32" else str(jnp.result_type(float)),
        "eval_every": trained.eval_every,
        "server_steps": schedule.server_steps,
        "num_clients": parts["data"].num_clients,
        **options_of_parts(parts),
        "citation": citation(*parts.values()),
        "backend": jax.default_backend(),
        "failed_step": step,
        "failed_client": client,
        "runs_started": schedule.runs_started,
        "runs_never_consumed": schedule.runs_started - taken,
    }
    for name in ("runs_refused", "runs_stopped", "runs_lost", "starts_skipped"):
        if (count := int(getattr(schedule, name)[-1:].sum())) > 0:
            found[name] = count
    if parts["client"].remembers and not parts["clock"].takes_all:  # they changed what their clients keep
        found["runs_trained_untaken"] = len(schedule.unused.completed.client)
    if not trained.failure:
        measured = schedule.statistics()
        found |= {"staleness_mean": measured["staleness_mean"], "staleness_max": measured["staleness_max"]}
        for mean in ("mean", "median"):
            found[f"staleness_max_per_step_{mean}"] = measured[f"max_staleness_per_step_{mean}"]
    for name in filter(trained.records.__contains__, server.counters):
        found[f"count_{name}"] = int(trained.records[name].sum())
    if Parts(**parts).noise[0] is not None:
        from jaxafl.results.privacy.claims import mechanism_of

        mechanism = mechanism_of(Parts(**parts))._asdict()
        found["mechanism"] = mechanism | {"noise_multiplier": np.asarray(mechanism["noise_multiplier"]).tolist()}
    for name, seconds in trained.seconds.items():
        found[name] = round(seconds, 3)
    return found | dict(trained.notes)


def options_of_parts(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all options of `data`, `model`, `client`, `server`, `clock` and an `attack`, as plain values by part."""
    model = {"name": parts["model"].name} | dict(parts["model"].description)
    described = {"data": dict(parts["data"].description), "model": model}
    return plain(dict(parts) | dict.fromkeys(described)) | described


def _variables(trained: Trained, client: Client, data: FederatedData) -> dict[str, Any]:
    schedule, mask, clients = trained.schedule, trained.schedule.mask, trained.schedule.num_clients
    variables: dict[str, Any] = {"time": ("step", schedule.time.copy())}  # members may have one schedule
    # Trained parameters and non-trainable state are sent in the precision in which they are kept: up with every
    # arrival, refused and lost ones included, and down with every run that starts, stopped ones included.
    size = traffic(client, trained.params, trained.model_state)
    up = mask.sum(axis=1) + np.diff(schedule.runs_refused + schedule.runs_lost, prepend=0)
    variables["bytes_up"] = "step", up * np.int64(size.up)
    variables["bytes_down"] = "step", np.diff(schedule.runs_begun, prepend=0) * np.int64(size.down)
    arrived = schedule.client[mask]
    counts = np.bincount(arrived, minlength=clients).astype(np.int32)
    total = np.bincount(arrived, schedule.staleness[mask], clients)
    mean = total / np.where(counts > 0, counts, np.nan)
    variables |= {"participation": ("population", counts), "mean_staleness": ("population", mean.astype(np.float32))}
    variables |= of_schedule(schedule, trained.records.get("local_loss"))
    for name, values in trained.records.items():
        if jnp.issubdtype(values.dtype, jnp.floating):  # no file holds bfloat16
            values = values.astype(np.promote_types(values.dtype, np.float32), copy=False)
        of_version = name.startswith("observe_")
        dims: tuple[str, ...] = ("version",) if of_version else ("step",)
        if values.shape[1:] == mask.shape[1:] and not of_version:
            dims = ("step", "arrival")
            values = masked(values, mask)
        dims += tuple(f"{name}_{axis}" for axis in range(values.ndim - len(dims)))
        variables[name] = dims, values
    for name, values in trained.evaluations.items():
        if metric_of(name, trained.metrics) is None or not np.isnan(values).all():  # else its function always failed
            of_sets = bool(data.test_sets) and name.removeprefix("average_").startswith("test_")
            part = "test_set" if of_sets else "population"
            dims = ("evaluation", *[part] * (values.ndim in (2, 4)), *["label", "predicted"] * (values.ndim > 2))
            variables[name] = dims, of_population(values, data) if "population" in dims else values
    return variables


def plain(node: Any) -> Any:
    """Returns a description of a part and its contents as plain values, which JSON can hold."""
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        name = getattr(node, "name", None)
        return {"name": name if isinstance(name, str) else type(node).__name__} | plain(options_of(node))
    if isinstance(node, dict):
        return dict(zip(map(str, node), map(plain, node.values()), strict=True))
    if isinstance(node, list | tuple):
        if len(node) > _LONG and {*map(type, node)} <= {int, float}:
            return f"array[{len(node)}]"
        return [*map(plain, node)]
    if isinstance(node, np.ndarray | np.generic | jax.Array):
        array = np.asarray(node)
        return array.tolist() if array.size <= 64 else f"array{list(array.shape)}"
    if callable(node):
        return getattr(node, "__name__", type(node).__name__)
    return node


def flat(value: Any) -> Any:
    """Returns a value that NetCDF can hold as an attribute; nested values as JSON."""
    value = plain(value)
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return value
    return json.dumps(value, default=str)
