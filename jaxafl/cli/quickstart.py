"""Comparison of `jaxafl quickstart`: five algorithms on ten writers of FEMNIST, some of them stragglers.

Every method trains the same network (AsyncFedED's with 8 and 16 channels) with the same clients: SGD with learning rate
0.05 and momentum 0.5 on mini-batches of 16, K = 10 local steps in a run. Each client has a fixed time per local step
between 0.1 and 1 s. With probability 0.2 a run hangs in addition, for up to the length of the longest run so far. All
ten clients always train (clients of FedAvg wait for the slowest of the round).

| method     | server                                             | a server step takes |
|------------|----------------------------------------------------|---------------------|
| FedAvg     | η = 1                                              | all 10 clients      |
| FedAsync   | α = 0.5, polynomial with a = 0.5                   | 1 arrival           |
| FedBuff    | η = 1                                              | M = 5 arrivals      |
| FADAS      | η = 0.003, β = (0.9, 0.99)                         | M = 5 arrivals      |
| AsyncFedED | λ = 0.5, ε = 1, γ̄ = 3, κ = 0.05, K at most 20      | 1 arrival           |

All methods have an equal total of local steps, T = budget / (K × arrivals per server step). AsyncFedED changes K, so a
first run finds the first T at which its runs reach the budget; it exceeds the budget by less than one local run.
"""

from __future__ import annotations

import importlib.resources
import pathlib
import shlex
from typing import Any

import numpy as np
from tyro.conf import Positional

from jaxafl import results
from jaxafl.cli.line import Run, prepared
from jaxafl.cli.show import show_result
from jaxafl.options import UserError
from jaxafl.results.curves import reach
from jaxafl.simulation import Simulation

_STEPS, _CLIENTS = 10, 10  # K, N
_EVALUATIONS = 30
_TARGET = 0.9  # share of the best accuracy of the weakest method
COMMON = f"""--data femnist --model cnn_asyncfeded --model.features 8 16
--client.learning-rate 0.05 --client.momentum 0.5 --client.steps {_STEPS} --client.batch-size 16
--clock.durations "uniform(1, 10, per='client') * constant(0.1, per='step') + suspension(0.2)" """
METHODS = {
    "FedAvg": "--server fedavg",
    "FedAsync": "--server fedasync --server.alpha 0.5 --server.staleness polynomial --server.exponent 0.5",
    "FedBuff": "--server fedbuff --clock.buffer 5",
    "FADAS": "--server fadas --server.learning-rate 0.003 --clock.buffer 5",
    "AsyncFedED": "--server asyncfeded --server.base-rate 0.5 --server.kappa 0.05 --server.max-steps 20",
}
"""Method -> options of `jaxafl run` beside those in `COMMON`."""


def init(folder: Positional[pathlib.Path]) -> None:
    """Write a starter experiment: a script with a server of one's own, and a Slurm file.

    Args:
        folder: a new folder, or an empty one
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not empty, and init writes over nothing; give the name of a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    for template in importlib.resources.files("jaxafl.cli").joinpath("starter").iterdir():
        file = folder / template.name.removesuffix(".template")
        file.write_text(template.read_text("utf-8"), "utf-8")
        print(f"wrote {file}")
    print(f"\nNow: cd {folder} && python experiment.py --smoke")


def quickstart(
    output_dir: pathlib.Path = pathlib.Path(), budget: int = 4000, seed: int = 0, progress: bool = True
) -> None:
    """Compare FedAvg, FedAsync, FedBuff, FADAS and AsyncFedED on ten FEMNIST writers with stragglers.

    Args:
        output_dir: folder for quickstart.png and the results, quickstart-FedAvg.nc and others
        budget: local steps of every method, all clients together
        seed: seed of the initial model, the schedules and the mini-batches
        progress: show progress bars
    """
    from jaxafl.plot import accuracy_vs_time

    if budget < 1 or budget % (_STEPS * _CLIENTS):
        raise UserError(f"quickstart: budget is {budget}; expected a positive multiple of {_STEPS * _CLIENTS}")
    image = results.check_path(output_dir / "quickstart.png")
    found = {}
    for name, words in METHODS.items():
        _, simulation, _ = prepared(quickstart, Run, shlex.split(f"{COMMON} {words}"))
        found[name] = _run(simulation, budget, seed, progress)
    show_result(found)
    target = np.floor(100 * _TARGET * min(float(run["accuracy"].max()) for run in found.values())) / 100
    for name, run in found.items():
        seconds, reached = reach(run, target, "accuracy", "time")
        when = f"after {seconds:.0f} s" if reached else "never"
        print(f"{name:<11} {int(run['local_steps'].sum())} local steps, {target:.0%} {when}")
        results.save(run, output_dir / f"quickstart-{name}.nc")
    print("One seed, untuned, equal local steps, best on the test set: not a ranking. Times are simulated.")
    accuracy_vs_time(found, path=image)
    print(f"wrote {image}, and the results as quickstart-*.nc beside it")


def _run(simulation: Simulation, budget: int, seed: int, progress: bool) -> Any:
    """Runs a method until its local steps reach the budget."""
    arrivals = getattr(simulation.clock, "buffer", _CLIENTS)
    server_steps = budget // (_STEPS * arrivals)
    how: dict[str, Any] = {"eval_every": max(1, server_steps // _EVALUATIONS), "seed": seed}
    if simulation.server.needs.replies:  # it changes K
        total = np.zeros(1)
        while total[-1] < budget:
            server_steps = int(1.1 * server_steps) + 1
            total = np.cumsum(simulation.run(server_steps, **how)["local_steps"].values.sum(axis=1))
        server_steps = int(np.argmax(total >= budget)) + 1
    return simulation.run(server_steps, progress=progress, **how)
