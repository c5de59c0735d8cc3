"""Checks of clock and local training that several servers share."""

from __future__ import annotations

import numpy as np
import optax

from jaxafl.client import Client
from jaxafl.clock.contract import Clock
from jaxafl.server.contract import Server


def check_gradients(server: str, client: Client, *, full_batch: bool) -> None:
    """Raises `ValueError` unless a run is one gradient: Δ = -∇f(x_s).

    Args:
        server: name of the algorithm, for messages.
        client: local training.
        full_batch: require the gradient of all the client's data.
    """
    changes = ("proximal", "rate_decay_per_run", "step_schedule", "run_schedule", "rate_schedule", "patience")
    unchanged = all(getattr(client, option) is None for option in changes)
    one = client.steps == 1 or (client.epochs == 1 and client.batch_size is None)
    sgd = client.optimizer is optax.sgd and set(client.hyperparameters) == {"learning_rate"}
    whole = client.batch_size is None or not full_batch
    if not (sgd and unchanged and one and whole and np.all(np.equal(client.hyperparameters["learning_rate"], 1))):
        more = ", batch_size=None), for full gradients" if full_batch else ")"
        raise ValueError(
            f"{server} takes one gradient from every run, and the rate is the server's: give Client(optax.sgd, "
            f"learning_rate=1.0, steps=1{more}; got {client}"
        )


def check_everyone(server: Server, clock: Clock, client: Client, num_clients: int) -> None:
    """Raises `ValueError` unless every client is always in flight; the `check` of servers that need this alone."""
    rules = clock.composed
    late = rules is not None and (rules.begins.name != "at_arrival" or rules.select.always)
    if late or clock.in_flight(num_clients) != num_clients:
        raise ValueError(
            f"{server.name}: all clients train all the time, and start again at once: give free_running(concurrency="
            f"{num_clients}, begins=at_arrival()) without hours; got {clock}"
        )
