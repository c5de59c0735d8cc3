"""Metrics of whole sets: functions of all labels and outputs, which the host computes at evaluations."""

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
from jaxafl.device.keys import jax_key
from jaxafl.engine.evaluate import BATCH, sets_of, with_test_sets
from jaxafl.engine.problem import DeviceData, Problem, Program
from jaxafl.engine.state import Version
from jaxafl.models.metrics import CONFUSION
from jaxafl.models.model import Batch, predictions_of

Array = jax.Array


class SetMetrics:
    """Metrics of the models of an execution, computed from the labels and outputs of each set."""

    def __init__(self, problem: Problem, members: int, program: Program, device: DeviceData) -> None:
        """Takes the metrics of a recording.

        Args:
            problem: of one of the runs.
            members: P.
            program: static arguments of the evaluation.
            device: data on the device.
        """
        self.metrics = dict(problem.recording.metrics)
        self.members = members
        self.program = program
        self.device = device
        self.owners = problem.data.owners if "per_client" in problem.recording.diagnostics else None
        self.warned: set[str] = set()

    def __call__(self, model: Version) -> dict[str, np.ndarray]:
        """Returns name -> [P, ...]; of single clients (`client_...`) [P, clients, ...].

        Args:
            model: of all members, each leaf [P, ...].
        """
        if not self.metrics:
            return {}
        found: dict[str, list[np.ndarray]] = {}
        for prefix in sets_of(self.program.data, self.device):
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
    batch = Batch(program.data.preprocess(raw), labels, rows < count)
    params, state = jax.tree.map(lambda leaf: leaf[member], model[:2])
    apply, key = program.model.bound(device.frozen), jax_key((jnp.uint32(0), jnp.uint32(0)))
    return labels, predictions_of(program.model.name, apply, params, state, batch, key, False)
