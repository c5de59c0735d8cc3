"""Options of `jaxafl sweep` in addition to those of `jaxafl run`."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from tyro.conf import UseAppendAction, arg

from jaxafl.callbacks.limits import Limited, limits_of
from jaxafl.cli.options import Run
from jaxafl.options import UserError
from jaxafl.sweep.executors import dask_executor, process_pool, slurm_executor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep(Run):
    """Options of a sweep.

    Args:
        axis: values of the seed, seed=0:5 (0 to 4), or of an option of server, client or clock, server.base_rate=1,3,5;
            repeat it for a grid. Values are numbers, words, none, true, false, lists [1,2], durations and names of
            optimisers
        workers: processes of this machine that run at once, each with its share of cores and GPUs; needs folder
        dask: address of a Dask scheduler whose workers run the sweep; needs folder
        slurm: parameters of jobs that run it, e.g. partition=gpu,gpus_per_node=1,timeout_min=240; needs folder
        plan: only print programs, batches, memory and an estimate of the time
    """

    axis: UseAppendAction[Annotated[tuple[str, ...], arg(metavar="NAME=VALUES")]] = ()
    workers: int | None = None
    dask: str | None = None
    slurm: str | None = None
    plan: bool = False

    def timing(self, simulation: Any) -> dict[str, Any]:
        """Returns the options of `outlook`; an exact limit gives the server steps with the seed of `--seed`."""
        given = {name: getattr(self, name) for name in ("eval_every", "lanes", "chunk")}
        asked = self.recording()
        steps, exact = asked["server_steps"], limits_of("--plan", asked["until"]).exact
        if exact or steps is None:
            if not exact:
                raise UserError(f"--plan: until {self.until} is only known in training; give --server-steps, too")
            steps = Limited.of("--plan", simulation, steps, exact, self.seed).without_training("--plan")
        return given | {"server_steps": steps, "workers": self.workers or 1} | super().placement()

    def placement(self) -> dict[str, Any]:
        """Returns the option `devices` or `executor` of `jaxafl.sweep`, if one is given."""
        given = [name for name in ("devices", "workers", "dask", "slurm") if getattr(self, name) is not None]
        if len(given) > 1:
            raise UserError(f"--{given[0]} and --{given[1]} do not go together: give one of them")
        if given in ([], ["devices"]):
            return super().placement()
        if self.folder is None:
            raise UserError(f"--{given[0]} needs --folder DIR, which all workers see: their results are left there")
        if self.workers is not None:
            return {"executor": process_pool(self.workers)}
        if self.dask is not None:
            return {"executor": dask_executor(self.dask)}
        return {"executor": slurm_executor(str(self.slurm), self.folder / "slurm")}
