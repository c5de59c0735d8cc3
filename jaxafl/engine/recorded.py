"""Names of the metrics of a run, and of what servers and `observe` record, which are checked when they are traced."""

from __future__ import annotations

import itertools
import re
import weakref
from collections.abc import Iterable
from typing import Any

from jaxafl.data.federated import FederatedData
from jaxafl.engine.problem import Recording
from jaxafl.models.metrics import CONFUSION, Better, Metric, better_of, check_better, checked_metrics, declared
from jaxafl.models.model import Model
from jaxafl.options import UserError

_VARIABLES = """
    step arrival evaluation version population client run run_index run_id reference time started arrived staleness
    local_steps multiplicity kind bytes_up bytes_down participation mean_staleness loss accuracy local_loss
    delta_norm computed_delta_norm server_rate executed_local_steps drift gradient_norm_squared asynchronous_error
    client_id clients started_at arrived_at step_arrivals step_staleness step_loss confusion label predicted test_set
    local_accuracy attacker eval_step eval_time eval_updates eval_local_steps eval_bytes client_name client_samples
    client_accuracy_error seed simulation method sample member runs_started runs_refused runs_stopped runs_lost
    runs_never_consumed starts_skipped failed_step failed_client stopped member_error server_steps_made
    final_time final_step final_updates final_local_steps final_bytes
"""
_TAKEN = frozenset(_VARIABLES.split())
_SETS = ("average_", "client_", "final_", "personal_", "test_", "validation_")  # beginnings of evaluations of a metric

_metrics: weakref.WeakKeyDictionary[Model, tuple[str, ...]] = weakref.WeakKeyDictionary()


def remember_metrics(model: Model, names: Iterable[str]) -> None:
    """Checks the names of a model's metrics, and keeps them, `loss` last."""
    names = (*names, "loss")
    check_names(f"the model {model.name} records the metric {{}}", names, allowed=("accuracy", "loss"))
    check_better(f"the model {model.name}", model.better, names)
    _metrics[model] = names


def evaluated(model: Model, data: FederatedData, recording: Recording, personal: bool) -> dict[str, Better | None]:
    """Returns the metrics of a checked run, and the way in which each is better; None if that is not known."""
    sets = ("", "validation_") if data.validation is not None else ("",)
    of_sets = dict(recording.metrics)
    better = declared(model.better, of_sets)
    names = (*_metrics[model], *(name for name in of_sets if name != CONFUSION))
    found = {f"{prefix}{name}": better_of(name, better) for prefix in sets for name in names}
    if "average" in recording.diagnostics:
        found |= {f"average_{name}": way for name, way in found.items()}
    if personal and (data.test_clients is not None or data.validation is not None):
        found |= {f"personal_{name}": better_of(name, better) for name in _metrics[model]}
    return found


def check_metrics(metrics: Any, model: Model) -> tuple[tuple[str, Metric], ...]:
    """Returns the checked metrics of whole sets by name.

    Raises:
        ValueError, TypeError: a name has another meaning in a result, or a metric is no function.
    """
    found = checked_metrics(metrics)
    check_names("run: metrics has {}", found, allowed=("accuracy", CONFUSION), model=model)
    return tuple(found.items())


def check_names(about: str, names: Iterable[str], allowed: Iterable[str], model: Model | None = None) -> None:
    """Raises `ValueError` for a name that another variable of the same result has, or that NetCDF does not allow.

    Args:
        about: the message's beginning, with the name in the place of `{}`.
        names: as the user gave them.
        allowed: names that results give the same meaning.
        model: the model, whose metrics stand in the same results.
    """
    names, others = [*names], set[str]() if model is None else {*_metrics.get(model, ())}
    taken = _TAKEN.difference(allowed) | others | {*map("".join, itertools.product(_SETS, (*names, *others)))}
    for name in names:
        if name in taken or name.startswith("observe_") or not name.isidentifier():
            raise UserError(
                f"{about.format(repr(name))}, but results have this name for something else, or no file can hold it: "
                f"give it another one of letters, digits and _, such as own_{re.sub(r'[^a-zA-Z0-9]', '_', name)}"
            )
