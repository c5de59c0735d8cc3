"""Defaults of the command line where Python has none, or where a server cannot work with the usual ones."""

from __future__ import annotations

from typing import Any

from jaxafl.cli.catalogue import REQUIRED, Constructor, Option

CONCURRENCY = 10  # or all clients where there are fewer
_CLIENTS = 10
_DURATIONS = "uniform(1, 5)"
_LOCAL_TRAINING = (  # in order of preference: usual training, one mini-batch gradient, one full gradient
    {"learning_rate": 0.05, "steps": 10, "batch_size": 32},
    {"learning_rate": 1.0, "steps": 1, "batch_size": 32},
    {"learning_rate": 1.0, "steps": 1, "batch_size": None},
)


def of(part: str, option: Option) -> Option:
    """An option of a part with the default of the command line."""
    if option.default is not REQUIRED:
        return option
    if (part, option.name) == ("clock", "concurrency"):
        text = f"{option.help.rstrip('.')} (by default {CONCURRENCY}, or all where there are fewer)"
        return option._replace(type=int | None, default=None, help=text)
    known = {("clock", "durations"): _DURATIONS, ("partition", "clients"): _CLIENTS}
    return option._replace(default=known.get((part, option.name), REQUIRED))


def local_training(server: Constructor) -> dict[str, Any]:
    """Learning rate, local steps and batch size: the first of `_LOCAL_TRAINING` that the server's own check accepts."""
    import optax

    from jaxafl.client import Client
    from jaxafl.clock import constant, free_running

    clock = free_running(concurrency=1, durations=constant(1.0))
    for numbers in _LOCAL_TRAINING:
        try:
            server.call().check(clock, Client(optax.sgd, **numbers), 1)
        except ValueError:
            continue
        return dict(numbers)
    return dict(_LOCAL_TRAINING[0])
