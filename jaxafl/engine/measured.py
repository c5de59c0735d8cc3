"""Mixin of `Simulation`: predictions of trained models, and the checked records of runs."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxafl.client import Client, Traffic, traffic
from jaxafl.client.attack import Attack
from jaxafl.clock import Clock
from jaxafl.clock.privacy import Mechanism
from jaxafl.data.federated import FederatedData
from jaxafl.data.test_sets import like_samples
from jaxafl.device import on_host
from jaxafl.engine.check import Parts, check_observe, mechanism_of
from jaxafl.engine.diagnostics import check_diagnostics
from jaxafl.engine.evaluate import BATCH
from jaxafl.engine.problem import Recording
from jaxafl.engine.recorded import check_metrics, metrics_of
from jaxafl.engine.state import example_batch
from jaxafl.models.model import Model
from jaxafl.options import Summarised, UserError, shown
from jaxafl.references import citation


class Measured(Summarised):
    """Mixin of `Simulation`: predictions of trained models, and the checked records of runs."""

    data: FederatedData
    model: Model
    precision: Any
    client: Client
    clock: Clock
    server: Any
    attack: Attack | None

    def citation(self) -> str:
        """Returns BibTeX for jaxafl and for everything that a run of this simulation uses."""
        return citation(*self.summary().values())

    def parts(self) -> Parts:
        """Returns the parts as a run has them, for the checks."""
        return Parts(**self.summary() | {"clock": self.clock_of_run()})

    def attack_of_run(self, seed: int) -> Attack | None:
        """Returns the attack with the attackers that a seed draws."""
        if self.attack is None:
            return None
        found: Any = self.attack.prepare(self.data.num_clients, self.data.num_classes, seed)
        if not isinstance(found, Attack):
            raise UserError(f"`prepare` of the attack {self.attack.name} must return the attack, got {shown(found)}")
        return found

    def predict(self, trained: Any, x: Any) -> Any:
        """Returns what the network returns for raw samples, e.g. logits [n, C], in NumPy arrays.

        Args:
            trained: the result of `train`, a state of `init` or `step`, or parameters (`models.load_parameters`) of a
                model without non-trainable state.
            x: raw samples [n, ...], as in `data.x_test`. They are preprocessed as in evaluation.

        Raises:
            ValueError: samples or parameters have other shapes than those of the simulation, or the model has no
                outputs (`from_functions` without `outputs`).
        """
        model = self.model.at(self.precision)
        params, state = _parameters_of(trained)
        form = self._form()
        if _shapes(params) != _shapes(form[0]):
            raise UserError(f"predict: the parameters are not those of {model.name}; expected {_shapes(form[0])}")
        if _shapes(state) != _shapes(form[1]):
            raise UserError(f"predict: {model.name} needs its non-trainable state; pass the result of train")
        samples = like_samples("predict", x, self.data.x_test)
        count = len(jax.tree.leaves(samples)[0])
        size = min(BATCH, count)
        parts = []
        for start in range(0, count, size):
            rows = np.minimum(np.arange(start, start + size), count - 1)
            inputs = self.data.preprocess(jax.tree.map(lambda leaf, rows=rows: leaf[rows], samples))
            parts.append(on_host(model.outputs(params, inputs, state)))
        return jax.tree.map(lambda *pieces: np.concatenate(pieces)[:count], *parts)

    def clock_of_run(self) -> Clock:
        """Returns the clock for the data, the model and the local training."""
        return self.clock.prepare(self.data.counts, self.traffic)

    def mechanism(self) -> Mechanism:
        """Returns the noise of a checked simulation, and the reason why no privacy can be claimed, if there is one."""
        return mechanism_of(self.data, self.model, self.client, self.server, self.clock, self.attack)

    def traffic(self) -> Traffic:
        """Returns the bytes of an update and of a model that are sent."""
        return traffic(self.client, *self._form())

    def _form(self) -> Any:
        """Returns the shapes of parameters and non-trainable state."""
        model = self.model.at(self.precision)
        return jax.eval_shape(lambda: model.init(jax.random.key(0), example_batch(self.data.form)))

    def evaluates_own(self, recording: Recording) -> bool:
        """Returns True if models of clients are evaluated on their held-out samples."""
        held_out = self.data.test_clients is not None or self.data.validation is not None
        return "local_accuracy" in recording.diagnostics or (self.client.personal is not None and held_out)

    def recording(self, observe: Any = None, diagnostics: Any = (), metrics: Any = None) -> Recording:
        """Returns the checked records of a run."""
        if observe is not None:
            check_observe(observe, self.parts())
        names = check_diagnostics(diagnostics, self.server)
        if "local_accuracy" in names and (self.client.upload is not None or self.attack is not None):
            cause = "an attack" if self.client.upload is None else "Client(upload=...)"
            raise UserError(f"run: local_accuracy is that of x_s + Δ, and {cause} changes Δ. Leave one out")
        unknown = [name for name in ("local_accuracy", "gradient_norm", "asynchronous_error") if name in names]
        if self.client.personal is not None and unknown:
            raise UserError(f"run: {unknown[0]} is not known for Client(personal=...). Leave one out")
        if self.client.personal is not None and metrics and "per_client" in names:
            raise UserError("run: metrics of whole sets per client do not see personal parameters. Leave one out")
        if {"per_client", "local_accuracy"} & {*names}:
            _ = self.data.owners  # raises if no client has held-out samples
        model = self.model.at(self.precision)
        if "local_accuracy" in names and "accuracy" not in metrics_of(model, self.data):
            raise UserError(f"run: local_accuracy needs the metric accuracy, which {model.name} does not record")
        return Recording(observe, names, check_metrics(metrics, model, self.data))


def _parameters_of(trained: Any) -> tuple[Any, Any]:
    """Returns parameters and non-trainable state."""
    if hasattr(trained, "model_state"):
        return trained.params, trained.model_state
    return tuple(trained.run.model[:2]) if hasattr(trained, "run") else (trained, {})


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    return {jax.tree_util.keystr(path): np.shape(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
