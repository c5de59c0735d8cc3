"""AsyncFedED, Figure 1: four clients with Griewank's function about centres of their own; a model of two numbers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxafl as afl
from experiments.asyncfeded.setting import DECAY, FIRST_STEPS, LIMIT, METHODS, Task, seen, server_of
from experiments.suite import Cell, Claim, Experiment, Measure, main

CENTRES = np.asarray([[1, 1], [-1, 1], [-1, -1], [1, -1]], np.float32)
SECONDS = (0.5, 0.75, 1.0, 2.5)  # of a local step, a client each: one is late
TASK = Task(rate=0.1, mu=0.1, alpha=0.5, a=0.5, b=0.5, lam=1.0, lam_over_eps=1.0, target=3.0, kappa=1.0)
LAST, MEAN = "loss after 300 s", "mean loss over 300 s"


def griewank(z: jax.Array) -> jax.Array:
    """1 + Σ z_i² / 4000 - Π cos(z_i / √i), of [..., 2]."""
    return 1 + jnp.sum(z**2, -1) / 4000 - jnp.prod(jnp.cos(z / jnp.sqrt(jnp.arange(1.0, 3.0))), -1)


MODEL = afl.models.from_functions(
    init=lambda key, batch: jax.random.uniform(key, (2,), minval=-3.0, maxval=3.0),
    loss=lambda place, batch, key: griewank(place - batch.x),
    name="griewank",
)


def cell(method: str, column: str, scale: str) -> Cell:
    """The test set is the four centres, so that its loss is what the clients minimise together."""
    labels, pace, synchronous = np.arange(4), 5.0 if scale == "smoke" else 1.0, method in ("FedAvg", "FedProx")

    def make() -> afl.Simulation:
        proximal = {"proximal": TASK.mu} if method == "FedProx" else {}
        options = {"momentum": 0.5, "rate_decay_per_run": DECAY, "steps": FIRST_STEPS, "batch_size": 1, **proximal}
        durations = afl.clock.constant(pace * np.asarray(SECONDS), per="step")
        return afl.Simulation(
            data=afl.data.from_arrays(CENTRES, labels, labels, x_test=CENTRES, y_test=labels),
            model=MODEL,
            client=afl.Client(optax.sgd, learning_rate=TASK.rate, **options),
            server=server_of(method, TASK, 100),
            clock=afl.clock.synchronous(durations=durations)
            if synchronous
            else afl.clock.free_running(concurrency=4, durations=durations),
        )

    worked = sum(LIMIT / (pace * (max(SECONDS) if synchronous else one)) for one in SECONDS)
    most = worked if method == "AsyncFedED" else worked / FIRST_STEPS
    stop = (afl.callbacks.StopAfter(simulated=LIMIT),)
    return Cell(make, int(most) + 8, int(worked), callbacks=stop, expected_steps=int(worked / FIRST_STEPS))


EXPERIMENT = Experiment(
    title="AsyncFedED, Figure 1: four clients on Griewank's function",
    family="asyncfeded_figure1",
    cell=cell,
    methods=METHODS,
    columns=["four clients"],
    measures={
        LAST: Measure(lambda runs: seen(runs, "loss", np.inf)[:, -1], digits=4),
        MEAN: Measure(lambda runs: seen(runs, "loss", np.inf).mean(-1), digits=4),
    },
    scales={"smoke": "clients five times slower", "cpu": "as at the paper's scale", "paper": "300 simulated seconds"},
    claims=[
        Claim(
            f"AsyncFedED has a smaller {measure} than {method}",
            lambda v, m=method, by=measure: v(m, "four clients", by) - v("AsyncFedED", "four clients", by),
        )
        for measure in (LAST, MEAN)
        for method in METHODS[1:]
    ],
    seeds=10,
    curve=("loss", "eval_time"),
    note="All but the function and the four clients is of our own choice: centres (±1, ±1), so that the common loss is "
    "least at 0 (0.5897), x_0 ~ U(-3, 3)², local steps of 0.5, 0.75, 1 and 2.5 s, a rate of 0.1 with the momentum and "
    "decay of the other figures, λ = 1, λ/ε = 1, γ̄ = 3, κ = 1, α = 0.5, a = b = 0.5, μ = 0.1. Seeds vary x_0.",
)

if __name__ == "__main__":
    main(EXPERIMENT)
