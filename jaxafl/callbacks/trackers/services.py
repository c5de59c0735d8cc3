"""Logs for services and programs that track experiments: MLflow, TensorBoard, and Weights & Biases."""

from __future__ import annotations

import json
import os
import re
import textwrap
import threading
import time
from typing import Any

from flax.traverse_util import flatten_dict

from jaxafl.callbacks.base import Chunk, Run, Tracker, error_of, name_of, scalars_of
from jaxafl.options import UserError, as_path, required

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
        now = int(1000 * time.time())
        values = {**scalars_of(chunk), "simulated_seconds": chunk.time}
        metrics = [self.module.entities.Metric(_key(name), value, now, chunk.stop) for name, value in values.items()]
        self.client.log_batch(self.run_id, metrics=metrics)

    def end(self, result: Any) -> None:
        error = error_of(result)
        failed = "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        self.client.set_terminated(self.run_id, failed if error or result is None else "FINISHED")


class TensorBoard(Tracker):
    """Writes event files for TensorBoard, without TensorFlow.

    Metrics, staleness, norms of the updates and simulated time are scalars by server step; options and citation are
    texts. Each member of a sweep has its own subfolder. A new run replaces the curves of an earlier one in its folder;
    a resumed run continues them.

    Args:
        folder: the folder of the event files.

    Raises:
        ImportError: tensorboardX is not installed; the extra `tensorboard` brings it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = as_path(folder)
        self.module = required("tensorboardX", "tensorboard", "the callback TensorBoard")

    def begin(self, run: Run) -> None:
        done = -1 if run.resumed is None else run.resumed
        options = json.dumps({"seed": run.seed, **run.options}, indent=2, default=str)
        suffix = f".{time.time_ns()}"  # else two runs within one second would write the same file
        place = str(self.folder / name_of(run))
        self.writer = self.module.SummaryWriter(place, filename_suffix=suffix, purge_step=done + 1)
        for name, text in {"options": options, "citation": run.citation}.items():
            self.writer.add_text(name, textwrap.indent(text, "    "), max(done, 0))

    def chunk(self, chunk: Chunk) -> None:
        for name, value in {**scalars_of(chunk), "simulated_seconds": chunk.time}.items():
            self.writer.add_scalar(name, value, chunk.stop)
        self.writer.flush()

    def end(self, result: Any) -> None:
        self.writer.close()


class WandB(Tracker):
    """Logs every evaluation to Weights & Biases.

    Metrics, staleness, norms of the updates and simulated time (`time`) are logged by server step. The members of a
    sweep are runs of one group.

    Args:
        project: project of Weights & Biases.
        **options: options of `wandb.init`, e.g. `mode="offline"`, `group`, or the `id` of a run to resume.

    Raises:
        ImportError: wandb is not installed; the extra `wandb` brings it.
        ValueError: (before compilation) `id` is given, but a sweep has several runs.
    """

    def __init__(self, project: str, **options: Any) -> None:
        self.options = {"project": project, **options}
        self.module = required("wandb", "wandb", "the callback WandB")

    def check(self, run: Run) -> None:
        if "id" in self.options and run.member:
            raise UserError(
                f"WandB(id={self.options['id']!r}) is of one run, but every member of a sweep is a run of its own: "
                "leave id out"
            )

    def begin(self, run: Run) -> None:
        config = {"seed": run.seed, "server_steps": run.server_steps, **run.member, **run.options}
        named = {
            "name": name_of(run) or run.name,
            "config": json.loads(json.dumps(config, default=str)),
        }
        if run.member:
            named |= {"group": run.name, "reinit": "create_new"}
        if "id" in self.options:
            named["resume"] = "allow"
        self.run = self.module.init(**named | self.options)
        self.run.summary["citation"] = run.citation

    def chunk(self, chunk: Chunk) -> None:
        self.run.log({**scalars_of(chunk), "time": chunk.time}, step=chunk.stop)

    def end(self, result: Any) -> None:
        self.run.finish(exit_code=int(result is None or error_of(result) is not None))


def _key(name: str) -> str:
    """Returns a name in the characters that MLflow allows."""
    return re.sub(r"[^\w\-. :/]", "_", name)
