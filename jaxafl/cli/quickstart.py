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

import json
import pathlib
import textwrap

import numpy as np
import optax
import xarray as xr
from rich.console import Console
from rich.table import Column, Table

from jaxafl import clock, data, models, results, server
from jaxafl.cli.tables import numbers_table
from jaxafl.client import Client
from jaxafl.data import FederatedData
from jaxafl.models.metrics import reaches
from jaxafl.options import UserError
from jaxafl.plot import accuracy_vs_time
from jaxafl.plot.canvas import check_image_path
from jaxafl.simulation import Simulation
from jaxafl.sweep.assemble import concatenated

BUDGET = 4000  # local steps of each method
_STEPS = 10  # K
_CLIENTS = 10
_BUFFER = 5
_EVALUATIONS = 30
_TARGET = 0.9  # fraction of the best accuracy of the weakest method


def quickstart(seed: int = 0, budget: int = BUDGET, progress: bool = False) -> dict[str, xr.Dataset]:
    """Runs the five methods.

    Args:
        seed: seed of the initial model, the schedules and the mini-batches.
        budget: local steps of each method over all clients, a multiple of 100, so that all server steps are full.
        progress: show progress bars.

    Returns:
        The results by method, in the order of the table above.

    Raises:
        ValueError: the budget is not a positive multiple of 100.
    """
    round_of_all = _STEPS * _CLIENTS
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1 or budget % round_of_all:
        raise UserError(
            f"budget must be a positive multiple of {round_of_all} local steps, one run of each client; got {budget!r}"
        )
    found = {}
    for name, simulation in _methods(data.femnist(_CLIENTS)).items():
        server_steps = budget // (_STEPS * simulation.clock.capacity(_CLIENTS))
        every = max(1, server_steps // _EVALUATIONS)
        if simulation.server.needs.replies:
            server_steps = _steps_to_budget(simulation, budget, seed, every)
        found[name] = simulation.run(server_steps, eval_every=every, seed=seed, progress=progress)
    return found


def report(folder: pathlib.Path, budget: int, seed: int, progress: bool) -> None:
    """Runs the comparison, prints its table, and writes `quickstart.nc` and `quickstart.png`.

    Args:
        folder: folder of the files.
        budget: see `quickstart`.
        seed: see `quickstart`.
        progress: show progress bars.

    Raises:
        FileNotFoundError, PermissionError: the files cannot be written; raised before anything runs.
        ValueError: see `quickstart`.
    """
    file = results.check_result_path(folder / "quickstart.nc")
    image = check_image_path(folder / "quickstart.png")
    found = quickstart(seed, budget, progress)
    console = Console()
    console.print(table(found))
    console.print(options(_methods(data.femnist(_CLIENTS))), markup=False, highlight=False)
    if file is not None:
        results.save(joined(found), file)
    accuracy_vs_time(found, path=image)
    print(f"wrote {file} and {image}")


def table(found: dict[str, xr.Dataset]) -> Table:
    """Returns the comparison as a table with a row per method, and the share of the majority class.

    The common target is 90 % of the best accuracy of the weakest method, rounded down to a whole percent.

    Args:
        found: results of `quickstart`.
    """
    target = np.floor(100 * _TARGET * min(float(run["accuracy"].max()) for run in found.values())) / 100
    title = "Ten writers of FEMNIST with stragglers"
    reach = f"time to\n{100 * target:.0f} %"
    columns = ("best\naccuracy", reach, "simulated\ntime", "staleness\nmean / max", "local\nsteps", "updates\nper s")
    shown = numbers_table(title, [Column("method", no_wrap=True)], columns, pad_edge=False, collapse_padding=True)
    for name, run in found.items():
        reached = np.flatnonzero(reaches(run["accuracy"].values, target, falling=False))
        stale = run["staleness"].values[run["staleness"].values >= 0]
        shown.add_row(
            name,
            f"{100 * float(run['accuracy'].max()):.1f} %",
            f"{float(run['eval_time'][reached[0]]):.0f} s" if len(reached) else "never",
            f"{float(run['time'][-1]):.0f} s",
            f"{stale.mean():.1f} / {stale.max():.0f}",
            str(int(run["local_steps"].sum())),
            f"{len(stale) / run.attrs['run_seconds']:.0f}",
        )
    shown.add_section()
    shown.add_row("majority class", f"{100 * majority_share(data.femnist(_CLIENTS)):.1f} %")
    shown.caption = (
        "One seed, untuned, equal local steps, best on the test set: not a ranking.\n"
        "Times are simulated; updates per s are this machine's, without compiling."
    )
    return shown


def options(methods: dict[str, Simulation]) -> str:
    """Returns a line per method with its server, and lines with the client and the durations of all methods."""
    lines = [
        f"{name:<11} {one.server}, {one.clock.name}, {arrivals} arrival{'s' * (arrivals > 1)} per server step"
        for name, one in methods.items()
        for arrivals in [one.clock.capacity(_CLIENTS)]
    ]
    first = next(iter(methods.values()))
    lines += [f"{'clients':<11} {first.client}", f"{'durations':<11} {vars(first.clock)['durations']}"]
    return "\n".join(textwrap.fill(line, 79, subsequent_indent=12 * " ", break_on_hyphens=False) for line in lines)


def joined(found: dict[str, xr.Dataset]) -> xr.Dataset:
    """Returns the results in one dataset with a leading dimension `method`; shorter results are padded.

    Args:
        found: results by method.

    Returns:
        The dataset. Its attribute `methods` holds the attributes of the results, as JSON.
    """
    plain = [run.reset_coords(["eval_step", "eval_time", "eval_updates", "eval_local_steps"]) for run in found.values()]
    combined = concatenated(plain, "method").assign_coords(method=list(found))
    attributes = {name: run.attrs for name, run in found.items()}
    combined.attrs = {"title": "jaxafl quickstart", "methods": json.dumps(attributes, default=str)}
    return combined


def majority_share(dataset: FederatedData) -> float:
    """Returns the accuracy of always predicting the most frequent class of the test set."""
    labels = np.asarray(dataset.test_arrays()[1])
    return float(np.bincount(labels).max() / len(labels))


def _methods(dataset: FederatedData) -> dict[str, Simulation]:
    model = models.cnn_asyncfeded(dataset.num_classes or 1, features=(8, 16))
    client = Client(optax.sgd, learning_rate=0.05, momentum=0.5, steps=_STEPS, batch_size=16)
    speeds = clock.uniform(1, 10, per="client") * clock.constant(0.1, per="step") + clock.suspension(0.2)
    rounds = clock.synchronous(durations=speeds)
    each = clock.free_running(concurrency=_CLIENTS, durations=speeds)
    buffered = clock.free_running(concurrency=_CLIENTS, buffer=_BUFFER, durations=speeds)
    asyncfeded = server.asyncfeded(base_rate=0.5, eps=1.0, target_staleness=3.0, kappa=0.05, max_steps=2 * _STEPS)
    methods = {
        "FedAvg": (server.fedavg(), rounds),
        "FedAsync": (server.fedasync(0.5, "polynomial", exponent=0.5), each),
        "FedBuff": (server.fedbuff(), buffered),
        "FADAS": (server.fadas(0.003), buffered),
        "AsyncFedED": (asyncfeded, each),
    }
    return {name: Simulation(dataset, model, client, *parts) for name, parts in methods.items()}


def _steps_to_budget(simulation: Simulation, budget: int, seed: int, every: int) -> int:
    """Returns the first number of server steps with `budget` local steps, for a server that changes K."""
    server_steps = 3 * budget // (2 * _STEPS)
    while True:
        result = simulation.run(server_steps, eval_every=every, seed=seed)
        total = np.cumsum(result["local_steps"].values.sum(axis=1))
        if total[-1] >= budget:
            return int(np.argmax(total >= budget)) + 1
        server_steps = int(1.1 * server_steps * budget / total[-1]) + 1
