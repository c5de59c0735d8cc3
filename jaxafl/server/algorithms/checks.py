"""Checks of clock and local training that several servers share."""

from __future__ import annotations

import numpy as np
import optax

from jaxafl.client import Client
from jaxafl.clock.contract import Clock
from jaxafl.options import shown


def check_gradients(server: str, client: Client, *, full_batch: bool) -> None:
    """Raises `ValueError` unless a run is one gradient: Δ = -∇f(x_s).

    Args:
        server: name of the algorithm, for messages.
        client: local training.
        full_batch: require the gradient of all the client's data.
    """
    changes = ("proximal", "rate_decay_per_run", "step_schedule", "run_schedule", "rate_schedule", "patience")
    unchanged = all(getattr(client, option) is None for option in changes)
    rate = client.hyperparameters.get("learning_rate")
    one = client.steps == 1 or (client.epochs == 1 and client.batch_size is None)
    sgd = client.optimizer is optax.sgd and set(client.hyperparameters) == {"learning_rate"}
    if not (sgd and unchanged and one):
        raise ValueError(
            f"{server} takes one gradient from every run: give Client(optax.sgd, learning_rate=1.0, steps=1"
            f"{', batch_size=None' if full_batch else ''}); the rate is the server's learning_rate"
        )
    if np.any(np.asarray(rate) != 1.0):
        raise ValueError(f"{server} has no local rate: give Client(learning_rate=1.0), not {shown(rate)}")
    if full_batch and client.batch_size is not None:
        raise ValueError(f"{server} takes full gradients: give Client(batch_size=None), not {client.batch_size}")


def check_everyone(server: str, clock: Clock, num_clients: int) -> None:
    """Raises `ValueError` unless every client is always in flight. `server`: its name, for messages."""
    if clock.in_flight(num_clients) != num_clients:
        raise ValueError(
            f"{server}: all clients train all the time: give free_running(concurrency={num_clients}), "
            f"not {clock.in_flight(num_clients)}"
        )
    clock = getattr(clock, "clock", clock)  # of `warm_up`
    late = [name for name in ("rate", "hours") if getattr(clock, name, None) is not None]
    if getattr(clock, "dispatch", "arrival") != "arrival" or getattr(clock, "before_step", False) or late:
        raise ValueError(
            f"{server}: a client that finishes starts again at once from the newest model: give "
            f"free_running(dispatch='arrival', before_step=False){''.join(f' without {name}' for name in late)}"
        )
