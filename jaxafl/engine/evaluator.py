"""The evaluation of the models of an execution: compiled means of metrics, and metrics of whole sets on the host."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.data.form import kind_of_sample
from jaxafl.data.held_out import Owners
from jaxafl.device import compiled, on_device, on_host
from jaxafl.engine.devices import on_first_device
from jaxafl.engine.evaluate import BATCH, PerClient, evaluate_personal, evaluated_batch, sets_of, with_test_sets
from jaxafl.engine.members import evaluate_members
from jaxafl.engine.problem import DeviceData, Problem, Program
from jaxafl.engine.state import State, Version
from jaxafl.models.metrics import CONFUSION
from jaxafl.models.model import predictions_of

Array = jax.Array


class Evaluator:
    """Metrics of the models of all members; a run over several devices evaluates on the first.

    Attributes:
        seconds: seconds of compilation.
    """

    def __init__(self, problem: Problem, members: int, device: DeviceData, model: Version) -> None:
        """Compiles the evaluation.

        Args:
            problem: of one of the members.
            members: P.
            device: data on the devices.
            model: of all members, each leaf [P, ...].
        """
        self.mesh, self.program, of_test = problem.mesh, problem.program(), True
        self.device: DeviceData = on_first_device(
            self.mesh, device if device.validation is not None else device._replace(arrays=None)
        )
        self.clients, self.own, self.owners = None, None, None
        self.members, self.metrics, self.warned = members, dict(problem.recording.metrics), set[str]()
        if "per_client" in self.program.recording.diagnostics:
            self.owners = owners = problem.data.owners
            of_test, self.clients = owners.of_test, PerClient(*on_device((owners.owner, owners.samples)))
        if problem.client.personal is not None and device.owned is not None:
            self.own = on_device(np.asarray(problem.data.owners.clients, np.int32))
        given = self.device, self.clients, on_first_device(self.mesh, model)
        self.compiled, self.seconds = compiled(evaluate_members, (self.program, of_test), given)

    def of_state(self, state: State) -> dict[str, np.ndarray]:
        """Returns metrics of the models, each [P], of single clients [P, C]; `average_...` of the mean of versions."""
        found = self.of_model(state.model)
        if self.own is not None:
            single = self.owners is not None
            own = on_first_device(self.mesh, (state.memory.tree.personal, state.model))
            arguments = self.device, self.own, *own
            found |= on_host(compiled(evaluate_personal, (self.program, single), arguments)[0](*arguments))
        if state.average is not None:
            average = self.of_model(state.model._replace(params=state.average))
            found |= {f"average_{name}": values for name, values in average.items()}
        return found

    def of_model(self, model: Version) -> dict[str, np.ndarray]:
        """Returns metrics of models, each leaf [P, ...]."""
        local = on_first_device(self.mesh, model)
        return on_host(self.compiled(self.device, self.clients, local)) | self._of_sets(local)

    def _of_sets(self, model: Version) -> dict[str, np.ndarray]:
        """Returns the metrics of whole sets, name -> [P, ...]; of single clients (`client_...`) [P, clients, ...]."""
        found: dict[str, list[np.ndarray]] = {}
        for prefix in sets_of(self.program.data, self.device) if self.metrics else ():
            for member in range(self.members):
                labels, outputs = self._outputs(prefix, model, member)
                for name in self.metrics:
                    found.setdefault(f"{prefix}{name}", []).append(self._value(prefix, name, labels, outputs))
                    if self.owners is not None and prefix == ("" if self.owners.of_test else "validation_"):
                        parts = _of_clients(self.owners, labels, outputs)
                        each = np.stack([self._value("client_", name, *part) for part in parts])
                        found.setdefault(f"client_{name}", []).append(each)
        stacked = {name: np.stack(values) for name, values in found.items()}
        return with_test_sets(stacked, len(self.device.tests), functools.partial(np.stack, axis=1))

    def _outputs(self, prefix: str, model: Version, member: int) -> tuple[np.ndarray, Any]:
        """Returns labels [n, ...] and outputs [n, ...] of a set, computed in batches."""
        count, _ = sets_of(self.program.data, self.device)[prefix]
        place, size = on_device(np.int32(member)), min(BATCH, count)
        parts = []
        for start in range(0, count, size):
            arguments = (self.device, model, place, on_device(np.int32(start)))
            parts.append(on_host(compiled(batch_outputs, (self.program, prefix, size), arguments)[0](*arguments)))
        labels, outputs = jax.tree.map(lambda *pieces: np.concatenate(pieces)[:count], *parts)
        for leaf in jax.tree.leaves((labels, outputs)):
            leaf.flags.writeable = False  # a metric that writes would change the input of the next one
        return labels, outputs

    def _value(self, prefix: str, name: str, labels: np.ndarray, outputs: Any) -> np.ndarray:
        """Returns a metric, NaN with a warning if its function raises or returns something else than a number."""
        classes = outputs.shape[-1] if name == CONFUSION and hasattr(outputs, "shape") else 0
        shape = (classes, classes) if classes else ()
        try:
            found = self.metrics[name].function(labels, outputs)
            value = np.asarray(found, float)
            known = prefix == "client_" or not np.isnan(value).any()  # one client's may be undefined: AUC of one class
            if value.shape == shape and found is not None and known:
                return value
            got = f"an array of shape {value.shape}" if value.shape != shape else "NaN" if found is not None else "None"
            problem = f"returned {got}; expected {f'shape {shape}' if shape else 'a number'}"
        except Exception as error:
            problem = f"raised {type(error).__name__}: {str(error).strip()[:300]}"
        if name not in self.warned:
            self.warned.add(name)
            shapes = kind_of_sample(outputs)
            warnings.warn(
                f"run: the metric {prefix + name!r} {problem}, so its value is missing; a metric without any value is "
                f"left out of the result. Outputs are {shapes} per sample; metrics of classes take outputs.argmax(-1)",
                stacklevel=2,
            )
        return np.full(shape, np.nan)


def _of_clients(owners: Owners, labels: np.ndarray, outputs: Any) -> Iterator[tuple[np.ndarray, Any]]:
    """Yields the labels and outputs of the samples of each client."""
    rows = np.split(np.argsort(owners.owner, kind="stable"), np.cumsum(owners.samples))[:-1]
    return ((labels[one], jax.tree.map(lambda leaf, one=one: leaf[one], outputs)) for one in rows)


def batch_outputs(
    program: Program, prefix: str, size: int, device: DeviceData, model: Version, member: Array, start: Array
) -> tuple[Array, Any]:
    """Returns labels and outputs of consecutive samples of a set; those after its end are repetitions of the last.

    Args:
        program, prefix, size: static; the prefix names the set, see `sets_of`.
        device: the data.
        model: of all members, each leaf [P, ...].
        member: index of the member.
        start: the first sample.
    """
    count, fetch = sets_of(program.data, device)[prefix]
    rows = start + jnp.arange(size, dtype=jnp.int32)
    raw, labels = fetch(jnp.minimum(rows, count - 1))
    params, state = jax.tree.map(lambda leaf: leaf[member], model[:2])
    apply, (batch, key) = program.model.bound(device.frozen), evaluated_batch(program, raw, labels, rows < count)
    return labels, predictions_of(program.model.name, apply, params, state, batch, key, False)
