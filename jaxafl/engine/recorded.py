"""Names of the records of models, `observe` and servers, checked before compilation."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import jax

from jaxafl.data.federated import FederatedData
from jaxafl.engine.problem import Recording
from jaxafl.engine.state import example_batch
from jaxafl.models.metrics import CONFUSION, Better, Metric, better_of, check_better, checked_metrics, declared
from jaxafl.models.model import Model, predictions_of
from jaxafl.options import UserError, check_name

_VARIABLES = """
    step arrival evaluation version population client run run_index run_id reference time started arrived staleness
    local_steps multiplicity kind bytes_up bytes_down participation mean_staleness loss accuracy local_loss
    delta_norm computed_delta_norm server_rate executed_local_steps drift gradient_norm_squared asynchronous_error
    held_out_client clients started_at arrived_at step_arrivals step_staleness step_loss
    confusion label predicted test_set local_accuracy attacker
"""
_ATTRIBUTES = """
    title jaxafl_version seed precision server_steps num_clients data model server clock citation backend
    failed_step failed_client runs_started runs_never_consumed runs_trained_untaken staleness_max
    staleness_max_per_step_mean
    staleness_max_per_step_median staleness_mean stopped until_time resumed methods prepare_seconds compile_seconds
    run_seconds wall_seconds eval_every failed mechanism attack runs_refused runs_stopped runs_lost starts_skipped
    checkpoints_not_saved
"""
_SWEEPS = """
    simulation local_training together sample member method methods configuration rung sweep member_error
    server_steps_made data_options model_options client_options server_options clock_options attack_options
"""
_TRACKERS = "simulated_seconds options seconds"
_TAKEN = frozenset(f"{_VARIABLES} {_ATTRIBUTES} {_SWEEPS} {_TRACKERS}".split())
_BEGINNINGS = (
    "eval_",
    "average_",
    "personal_",
    "observe_",
    "validation_",
    "client_",
    "clients_",
    "count_",
    "final_",
    "together_",
)

_metrics: weakref.WeakKeyDictionary[Model, tuple[str, ...]] = weakref.WeakKeyDictionary()


def metrics_of(model: Model, data: FederatedData) -> tuple[str, ...]:
    """Returns the names of a model's metrics, `loss` last; the gate knows them, else the model is traced."""
    if model not in _metrics:

        def outputs(frozen: Any) -> Any:
            key, batch = jax.random.key(0), example_batch(data.form)
            params, state = model.init(key, batch)
            found = model.bound(frozen)(params, state, batch, key, False)[0]
            return {**found.metrics, **found.squares}

        held = model.held(jax.eval_shape(lambda: example_batch(data.form)))
        remember_metrics(model, data, jax.eval_shape(outputs, held))
    return _metrics[model]


def remember_metrics(model: Model, data: FederatedData, names: Iterable[str]) -> None:
    """Checks the names of a model's metrics, and keeps them for `metrics_of`."""
    names = (*names, "loss")
    check_names(f"the model {model.name} records the metric {{}}", names, allowed=("accuracy", "loss"))
    check_better(f"the model {model.name}", model.better, names)
    clashing = [name for name in names if name.startswith("test_")]
    if data.test_sets and clashing:
        raise UserError(f"the metric {clashing[0]!r} of {model.name} has a name of metrics of test sets; rename it")
    _metrics[model] = names


def evaluated(model: Model, data: FederatedData, recording: Recording, personal: bool) -> dict[str, Better | None]:
    """Returns the metrics of a run's evaluations, and the way in which each is better; None if that is not known."""
    sets = ("", "validation_") if data.validation is not None else ("",)
    of_sets = dict(recording.metrics)
    better = declared(model.better, of_sets)
    names = (*metrics_of(model, data), *(name for name in of_sets if name != CONFUSION))
    found = {f"{prefix}{name}": better_of(name, better) for prefix in sets for name in names}
    if "average" in recording.diagnostics:
        found |= {f"average_{name}": way for name, way in found.items()}
    if personal and (data.test_clients is not None or data.validation is not None):
        found |= {f"personal_{name}": better_of(name, better) for name in metrics_of(model, data)}
    return found


def check_metrics(metrics: Any, model: Model, data: FederatedData) -> tuple[tuple[str, Metric], ...]:
    """Returns the checked metrics of whole sets by name.

    Raises:
        ValueError, TypeError: a name cannot stand in a result, a metric is no function, or the model has no outputs.
    """
    found = checked_metrics(metrics)
    if found:
        check_names("run: metrics has {}", found, allowed=("accuracy", CONFUSION), others=metrics_of(model, data))
        batch = jax.eval_shape(lambda: example_batch(data.form))

        def outputs(frozen: Any) -> Any:
            key, batch = jax.random.key(0), example_batch(data.form)
            return predictions_of(model.name, model.bound(frozen), *model.init(key, batch), batch, key, False)

        jax.eval_shape(outputs, model.held(batch))
    return tuple(found.items())


def check_observed(seen: Mapping[str, Any]) -> None:
    """Raises `ValueError` for names of `observe` that cannot stand in a result; `seen`: their shapes."""
    check_names("observe returns {}", seen, prefix="observe_")
    axes = {f"{name}_{axis}": name for name, value in seen.items() for axis in range(len(value.shape))}
    for clash in axes.keys() & seen.keys():
        raise UserError(
            f"observe returns {clash!r}, and {axes[clash]!r} has axes, of which one gets the same name in results: "
            f"call it otherwise, e.g. {clash.replace('_', '')!r}"
        )


def check_recorded(server: str, names: Iterable[str], model: Model | None) -> None:
    """Raises `ValueError` for diagnostics of a server that cannot stand in a result beside the model's metrics."""
    metrics = () if model is None else _metrics.get(model, ())
    check_names(
        f"the server {server} records {{}} in the `info` of its Outcome",
        names,
        allowed=("server_rate",),
        others=metrics,
    )


def check_names(
    about: str,
    names: Iterable[Any],
    prefix: str = "",
    allowed: Iterable[str] = (),
    others: Iterable[str] = (),
) -> None:
    """Raises `ValueError` for a name that a variable of a result cannot have.

    Args:
        about: the message's beginning, with the name in the place of `{}`.
        names: as the user gave them.
        prefix: that results put before them.
        allowed: names that results give the same meaning.
        others: names of other variables of the same results.
    """
    taken = frozenset() if prefix else _TAKEN.difference(allowed) | set(others)
    before: dict[str, str] = {}
    for name in names:
        check_name(about, name, taken, () if prefix else _BEGINNINGS, prefix)
        if (other := before.setdefault(name.casefold(), name)) != name:
            raise UserError(
                f"{about.format(repr(name))}, and {other!r}, which differs in upper and lower case only; rename one"
            )
