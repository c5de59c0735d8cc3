"""Logs for MLflow."""

from __future__ import annotations

import re
import threading
import time
from typing import Any

from flax.traverse_util import flatten_dict

from jaxafl.callbacks.base import Chunk, Run, Tracker, error_of, name_of, required, scalars_of

_LONGEST = 500  # characters of a parameter, which every version of MLflow accepts
_creating = threading.Lock()  # without it, two members of a sweep would create one experiment twice


class MLflow(Tracker):
    """Logs every evaluation to MLflow.

    Metrics, staleness, norms of the updates and simulated time (`simulated_seconds`) are logged by server step, options
    as parameters such as `client.learning_rate`, and the citation as a tag. Every run and every member of a sweep is a
    run of the experiment. A resumed run is a new one, with the evaluations from its checkpoint on.

    Args:
        experiment: name of the experiment; created if it does not exist.
        uri: tracking server or database, by default a file in the working folder: `mlflow ui --backend-store-uri
            sqlite:///mlflow.db` shows it.
        **tags: tags of the runs.

    Raises:
        ImportError: mlflow is not installed; the extra `mlflow` brings it.
    """

    def __init__(self, experiment: str, uri: str = "sqlite:///mlflow.db", **tags: str) -> None:
        self.experiment = experiment
        self.uri = uri
        self.tags = tags
        self.module = required("mlflow", "mlflow", "the callback MLflow")

    def begin(self, run: Run) -> None:
        options = {"seed": run.seed, **run.member, **run.options}
        with _creating:
            self.client = self.module.MlflowClient(self.uri)
            known = self.client.get_experiment_by_name(self.experiment)
            folder = known.experiment_id if known else self.client.create_experiment(self.experiment)
        tags = {"citation": run.citation, **self.tags}
        name = name_of(run) or run.name
        self.run_id = self.client.create_run(folder, tags=tags, run_name=name).info.run_id
        entities = self.module.entities
        flat = flatten_dict(options, sep=".")
        parameters = [entities.Param(_key(name), str(value)[:_LONGEST]) for name, value in flat.items()]
        for start in range(0, len(parameters), 100):  # more are refused in one call
            self.client.log_batch(self.run_id, params=parameters[start : start + 100])

    def chunk(self, chunk: Chunk) -> None:
        now, values = int(1000 * time.time()), {**scalars_of(chunk), "simulated_seconds": chunk.time}
        metrics = [self.module.entities.Metric(_key(name), value, now, chunk.stop) for name, value in values.items()]
        self.client.log_batch(self.run_id, metrics=metrics)

    def end(self, result: Any) -> None:
        error = error_of(result)
        failed = "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        self.client.set_terminated(self.run_id, failed if error or result is None else "FINISHED")


def _key(name: str) -> str:
    """Returns a name in the characters that MLflow allows."""
    return re.sub(r"[^\w\-. :/]", "_", name)
