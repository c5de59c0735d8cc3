"""AsyncFedED's setting (section 6 and appendix B): three datasets, ten clients some of which hang, five methods."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax

import jaxafl as afl
from experiments.suite import Cell, Measure, Values
from experiments.suite.experiment import Array

CLIENTS, FIRST_STEPS, DECAY, LIMIT = 10, 10, 0.995, 300.0
METHODS = ("AsyncFedED", "FedAsync constant", "FedAsync hinge", "FedAvg", "FedProx")
CHANCES = tuple(tenth / 10 for tenth in range(10))  # P
INSTANTS = np.arange(1.0, LIMIT + 1)  # seconds at which runs are looked at
SCALES = {
    "smoke": "logistic regression, an LSTM of width 4 on noise for Shakespeare; clients 50 times slower",
    "cpu": "FEMNIST by convolutions of 8 and 16 channels on batches of 10; Shakespeare by one LSTM layer of 32, 500 "
    "test windows, clients three times slower; Synthetic-1-1 as at the paper's scale",
    "paper": "10 clients, 300 simulated seconds, the published hyper-parameters",
}
FEW_CHANCES = (0.0, 0.5, 0.9)  # at the scale of a CPU
FEW = SCALES | {"cpu": f"{SCALES['cpu']}; P = 0, 0.5 and 0.9 only"}
REASONS = {
    "cpu": "small networks on FEMNIST and Shakespeare, and a fleet of our own choice; AsyncFedED's model swings on "
    "Shakespeare, where an update counts 0.4 (median of η) while those of nine other clients are under way",
    "paper": "fleet, widths and batches are our own choice",
}
NOTE = (
    "Unpublished, and fixed here: a local step takes 0.1 s times a client's U(1, 5), a model 0.1 s ± 10 % each way; "
    "two hidden layers of 200 on Synthetic-1-1, convolutions of 32 and 64 channels on FEMNIST, LEAF's two LSTM "
    "layers of 256, started as PyTorch's are, on Shakespeare; batches of 32 (Shakespeare 10); the rate decays per "
    "run (Shakespeare: per local step, which its rate of 1 needs); momentum begins anew with every run; hinge's α is "
    "0.5; K <= 100 (Shakespeare 40; at the paper's scale the one run of AsyncFedED that was tried there, P = 0, seed "
    "0, stopped being finite at server step 110). Synchronous methods wait for all ten clients. Seeds vary fleet, "
    "initial model and mini-batches, not the data. Runs are looked at every second. Numbers are published in figures "
    "only."
)


class Task(NamedTuple):
    """What the paper found best on a dataset; a, b are hinge's."""

    rate: float
    mu: float
    alpha: float
    a: float
    b: float
    lam: float
    lam_over_eps: float
    target: float
    kappa: float


TASKS = {
    "Synthetic-1-1": Task(0.01, 0.1, 0.1, 5.0, 5.0, 5.0, 1.0, 3.0, 1.0),
    "FEMNIST": Task(0.01, 1.0, 0.5, 0.5, 0.5, 1.0, 1.0, 3.0, 0.05),
    "Shakespeare": Task(1.0, 0.01, 0.1, 15.0, 15.0, 5.0, 0.5, 3.0, 1.0),
}


@functools.lru_cache(4)
def parts(name: str, scale: str) -> tuple[afl.data.FederatedData, afl.models.Model, int]:
    """Data (always the same ten clients), model and batch size."""
    smoke = scale == "smoke"
    if name == "Synthetic-1-1":
        return afl.data.synthetic(1, 1, CLIENTS), afl.models.logistic(10) if smoke else afl.models.mlp(10), 32
    if name == "FEMNIST":
        wide = {"cpu": (8, 16), "paper": (32, 64)}
        model = afl.models.logistic(62) if smoke else afl.models.cnn_asyncfeded(62, wide[scale])
        return afl.data.femnist(CLIENTS), model, 10 if scale == "cpu" else 32
    if smoke:
        x, y = (np.random.default_rng(0).integers(0, 80, shape) for shape in ((400, 80), 400))
        data = afl.data.from_arrays(x, y, np.arange(400) % CLIENTS, test_fraction=0.1, num_classes=80)
    else:
        data = afl.data.shakespeare(CLIENTS, test_samples=500 if scale == "cpu" else None)
    hidden, layers = {"smoke": (4, 1), "cpu": (32, 1), "paper": (256, 2)}[scale]
    return data, afl.models.char_lstm(hidden=hidden, layers=layers, initialisation="torch"), 10


def server_of(method: str, task: Task, max_steps: int) -> afl.server.Server:
    """A method with its options."""
    if method == "AsyncFedED":
        how = {"target_staleness": task.target, "kappa": task.kappa, "max_steps": max_steps}
        return afl.server.asyncfeded(base_rate=task.lam, eps=task.lam / task.lam_over_eps, **how)
    if method == "FedAsync constant":
        return afl.server.fedasync(task.alpha, staleness="constant")
    if method == "FedAsync hinge":
        return afl.server.fedasync(0.5, staleness="hinge", exponent=task.a, threshold=task.b)
    return afl.server.fedavg()


def cell_of(method: str, name: str, chance: float, scale: str, steps: int = FIRST_STEPS, **own: float) -> Cell:
    """What is run for a method on a dataset.

    Args:
        method: of `METHODS`.
        name: of `TASKS`.
        chance: P, of a run to hang.
        scale: of `SCALES`.
        steps: K_0.
        own: fields of the `Task` in the place of the published ones.
    """
    task, recurrent, synchronous = TASKS[name]._replace(**own), name == "Shakespeare", method in ("FedAvg", "FedProx")
    pace = {"smoke": 50.0, "cpu": 3.0 if recurrent else 1.0, "paper": 1.0}[scale]
    step, transfer = 0.1 * pace, 0.1 * pace  # seconds, of a client with 1 of U(1, 5), and one way

    def make() -> afl.Simulation:
        data, model, batch = parts(name, scale)
        decay = {"rate_decay_per_run": DECAY}
        if recurrent:
            decay = {
                "rate_decay_per_run": DECAY**FIRST_STEPS,
                "step_schedule": decayed,
            }  # a run before counts as K_0 steps
        if method == "FedProx":
            decay["proximal"] = task.mu
        durations = (
            afl.clock.uniform(1, 5, per="client") * afl.clock.constant(step, per="step")
            + afl.clock.transmission(bytes=transfer, speed=1.0)
            + afl.clock.suspension(chance)
        )
        return afl.Simulation(
            data=data,
            model=model,
            client=afl.Client(optax.sgd, learning_rate=task.rate, momentum=0.5, steps=steps, batch_size=batch, **decay),
            server=server_of(method, task, 40 if recurrent else 100),
            clock=afl.clock.synchronous(durations=durations)
            if synchronous
            else afl.clock.free_running(concurrency=CLIENTS, durations=durations),
        )

    shortest = 1 if method == "AsyncFedED" else steps  # local steps of a run
    at_once = 1 if synchronous else CLIENTS
    most = 1.5 * at_once * LIMIT / (shortest * step + 2 * transfer)  # server steps, were all clients the fastest
    worked = CLIENTS * LIMIT / step * (0.2 if synchronous else 0.35)  # local steps, as U(1, 5) has it
    every = 1 if synchronous else 5 if method == "AsyncFedED" else 10
    return Cell(
        make, int(most), int(worked), every, callbacks=(afl.callbacks.StopAfter(simulated=LIMIT),),
        expected_steps=int(worked * at_once / steps / CLIENTS),
    )  # fmt: skip


def decayed(step: Any) -> Any:
    """0.995 to the power of the local step."""
    return DECAY ** jnp.asarray(step, float)


def seen(runs: Any, variable: str = "accuracy", lost: float = 0.0) -> Array:
    """A variable at the last evaluation before every instant [seeds, 300]; `lost` once a model is not finite."""
    values, when = runs[variable].values, np.broadcast_to(runs["eval_time"].values, runs[variable].shape)
    known = np.isfinite(values) & np.isfinite(when)
    place = (known[:, None, :] & (when[:, None, :] <= INSTANTS[:, None])).sum(-1) - 1
    ended = np.where(known, when, 0.0).max(-1)
    return np.where(ended[:, None] >= INSTANTS, np.take_along_axis(values, place, -1), lost)


def _soon(runs: Any) -> Array:
    found = seen(runs)
    return INSTANTS[(found >= 0.9 * found.max(-1, keepdims=True)).argmax(-1)]


BEST, SOON, MEAN = "best accuracy within 300 s", "time to 90 % of the best", "mean accuracy over 300 s"
MEASURES = {
    BEST: Measure(lambda runs: 100 * seen(runs).max(-1), " %"),
    SOON: Measure(_soon, " s", 0),
    MEAN: Measure(lambda runs: 100 * seen(runs).mean(-1), " %"),
}


def column(name: str, chance: float) -> str:
    """The name of a column."""
    return f"{name}, P = {chance}"


def over(columns: Sequence[str], of: Callable[[str], Array]) -> Array:
    """The mean over the columns that were run, a number per seed."""
    found = [values for values in map(of, columns) if np.isfinite(values).all()]
    return np.mean(found, axis=0) if found else np.full(1, np.nan)


def slope(v: Values, method: str, name: str) -> Array:
    """By how many points the best accuracy rises with P from 0 to 1, a number per seed: least squares over the columns
    that were run."""
    found = {chance: v(method, column(name, chance), BEST) for chance in CHANCES}
    found = {chance: values for chance, values in found.items() if np.isfinite(values).all()}
    return np.polyfit(list(found), np.stack(list(found.values())), 1)[0] if len(found) > 1 else np.full(1, np.nan)
