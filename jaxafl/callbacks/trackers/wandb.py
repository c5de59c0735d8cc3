"""Logs for Weights & Biases."""

from __future__ import annotations

import json
from typing import Any

from jaxafl.callbacks.base import Chunk, Run, Tracker, error_of, name_of, required, scalars_of
from jaxafl.options import UserError


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
