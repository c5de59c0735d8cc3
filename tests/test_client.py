"""Local training against its reference: optimisers, penalties, schedules, epochs, mini-batches, accumulation."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import xarray as xr

from jaxafl import server
from jaxafl.client import Client, batches
from jaxafl.clock import constant, synchronous
from jaxafl.device.keys import Purpose, per_client, per_run, purpose_key, seed_key
from tests.oracle import server as oracle
from tests.oracle.client import LocalTraining as OracleTraining
from tests.problems import START, assert_same, descent, drawn, quadratic, record, reference, simulate
from tests.variants import slow_but

STEPS = 8
SIZES = (4, 1, 7, 3, 5, 2)
SEED = 12

SHARED = {"momentum": 0.5, "proximal": 0.2, "weight_decay": 0.1}
# name: (the package's options, the reference's) of full-batch training, and what `check` is told
FULL_BATCH: dict[str, tuple[dict[str, Any], ...]] = {
    "momentum": ({"momentum": 0.6}, {"momentum": 0.6}),
    "nesterov": ({"momentum": 0.6, "nesterov": True}, {"momentum": 0.6, "nesterov": True}),
    "proximal": ({"proximal": 0.7}, {"proximal": 0.7}),
    "weight decay": ({"weight_decay": 0.3, "momentum": 0.5}, {"weight_decay": 0.3, "momentum": 0.5}),
    "run decay": ({"rate_decay_per_run": 0.8}, {"run_decay": 0.8}),
    "step schedule": ({"step_schedule": lambda step: 1 / (1.0 + step)}, {"step_multipliers": (1, 1 / 2, 1 / 3, 1 / 4)}),
    "run schedule": ({"run_schedule": lambda run: 0.9**run}, {"run_decay": 0.9}),
    "adam": (
        {"optimizer": optax.adam, "b1": 0.8, "b2": 0.95, "eps": 1e-6},
        {"optimizer": "adam", "b1": 0.8, "b2": 0.95, "eps": 1e-6},
    ),
    "epochs": ({"steps": None, "epochs": 4}, {}),
    "steps": ({"steps": (PER_CLIENT := [3, 1, 5, 2, 4, 1])}, {}, {"local_steps": PER_CLIENT.__getitem__}),
    "all": (
        SHARED | {"rate_decay_per_run": 0.95, "step_schedule": lambda step: 0.5**step},
        SHARED | {"run_decay": 0.95, "step_multipliers": (1, 0.5, 0.25, 0.125)},
        {"wide": False},
    ),
}


def check(
    client: Any, training: Any, batches: Any = None, wide: bool = True, local_steps: Any = None, **options: Any
) -> xr.Dataset:
    """FedBuff with everyone in flight; the reference is told every run's number of steps and its batches."""
    problem = quadratic(sizes=SIZES)
    recorded = record(1, 6, STEPS, "ties", concurrency=6, buffer=2)
    steps = recorded.oracle(STEPS)
    if local_steps is not None:
        new = dataclasses.replace
        told = [[new(one, local_steps=local_steps(one.client)) for one in step.arrivals] for step in steps]
        steps = [new(step, arrivals=tuple(arrivals)) for step, arrivals in zip(steps, told, strict=True)]
    assert max(arrival.run for step in steps for arrival in step.arrivals) >= 2
    with jax.enable_x64(wide):
        result = simulate(problem, server.fedbuff(0.8, "none"), recorded.clock(), STEPS, client, seed=SEED, **options)
        expected = reference(problem, oracle.FedBuff(eta=0.8), steps, training, batches=batches)
    assert_same(result, expected, 1e-9 if wide else 1e-5)
    return result


@pytest.mark.parametrize("name", slow_but(FULL_BATCH, "nesterov"))
def test_full_batch_training(name: str) -> None:
    mine, theirs, *how = FULL_BATCH[name]
    client = Client(**{"optimizer": optax.sgd, "learning_rate": 0.2, "steps": 4, "batch_size": None} | mine)
    check(client, OracleTraining(learning_rate=0.2, steps=4, **theirs), **dict(*how))


def batch_key() -> Any:
    return purpose_key(seed_key(SEED), Purpose.BATCH)


def drawn_batches(sizes: int | list[int]) -> Any:
    """The indices that the package draws with replacement for a run, as many as the batches of its client have."""

    def batches(client: int, run: int, local_steps: int) -> list[list[int]]:
        key = per_run(batch_key(), jnp.int32(client), jnp.int32(run))
        count, size = jnp.int32(SIZES[client]), sizes if isinstance(sizes, int) else sizes[client]
        return [np.asarray(drawn(key, jnp.int32(k), size, count)).tolist() for k in range(local_steps)]

    return batches


def test_mini_batches_drawn_with_replacement() -> None:
    client = Client(optax.sgd, learning_rate=0.2, momentum=0.5, steps=4, batch_size=3)
    check(client, OracleTraining(learning_rate=0.2, momentum=0.5, steps=4), batches=drawn_batches(3))


compiled_shuffle = jax.jit(batches.shuffled)


def shuffle(key: Any, epoch: int, count: int) -> list[int]:
    ranks = jnp.arange(max(SIZES), dtype=jnp.int32)
    return np.asarray(compiled_shuffle(key, jnp.int32(epoch), ranks, jnp.int32(count))).tolist()[:count]


def cut(order: list[int], size: int) -> list[list[int]]:
    """Batches of `size`, the last one smaller where it does not divide."""
    return [order[first : first + size] for first in range(0, len(order), size)]


@pytest.mark.slow
@pytest.mark.parametrize("steps", [4, [3, 1, 5, 2, 4, 1]])
def test_epochs_go_on_from_run_to_run(steps: Any) -> None:
    """sampling="epochs": the batches of a client's runs, joined, are those of its shuffled epochs one after another."""

    def per_run_steps(client: int) -> int:
        return steps if isinstance(steps, int) else steps[client]

    def batches(client: int, run: int, local_steps: int) -> list[list[int]]:
        return whole[client][run * per_run_steps(client) :][:local_steps]

    whole = []
    for who, count in enumerate(SIZES):
        key = per_client(batch_key(), jnp.int32(who))
        whole.append([batch for epoch in range(30) for batch in cut(shuffle(key, epoch, count), 2)])
    client = Client(optax.sgd, learning_rate=0.2, steps=steps, batch_size=2, sampling="epochs")
    check(client, OracleTraining(learning_rate=0.2), batches=batches, local_steps=per_run_steps)


@pytest.mark.slow
@pytest.mark.parametrize("batches", [{"batch_size": None}, {"batch_size": 5, "sampling": "epochs"}])
def test_a_batch_accumulated_over_pieces_is_one_batch(batches: dict[str, Any]) -> None:
    options: dict[str, Any] = {"learning_rate": 0.2, "momentum": 0.5, "steps": 3} | batches
    problem = quadratic(sizes=SIZES)
    clock = record(2, 6, STEPS, "real", concurrency=6, buffer=2).clock()
    with jax.enable_x64(True):
        pieces, whole = (
            simulate(problem, server.fedbuff(0.8, "none"), clock, STEPS, Client(micro_batch=piece, **options)).observe_w
            for piece in (2, 16)
        )
    np.testing.assert_allclose(pieces, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_weight_decay_is_the_optimisers_own_where_it_has_one() -> None:
    """One step of AdamW from a known point; an optimiser without one gets w · x in its gradient."""
    options = {"learning_rate": 0.1, "steps": 1, "batch_size": None}
    clients = [Client(optax.adamw, weight_decay=decay, **options) for decay in (0.5, 0.0)]
    assert clients[0].weight_decay is None
    rounds = {"server": server.fedavg(), "clock": synchronous(durations=constant(1))}
    decayed, plain = (descent(client=client, **rounds).train(1).params["w"] for client in clients)
    start = np.asarray(START, np.float32)
    np.testing.assert_allclose(np.asarray(decayed), np.asarray(plain) - 0.1 * 0.5 * start, rtol=1e-5)


def test_replaced_options_of_the_optimiser_take_effect() -> None:
    """`dataclasses.replace` passes the present hyperparameters beside them."""
    client = Client(learning_rate=0.1, momentum=0.5, steps=2)
    assert dataclasses.replace(client, learning_rate=0.3).hyperparameters == {"learning_rate": 0.3, "momentum": 0.5}
    assert dataclasses.replace(client, steps=3).hyperparameters == client.hyperparameters
    scheduled = dataclasses.replace(client, learning_rate=optax.constant_schedule(0.2), nesterov=True)
    assert scheduled.hyperparameters == {"momentum": 0.5}
    assert [*dict(scheduled.switches)] == ["learning_rate", "nesterov"]
    again = dataclasses.replace(scheduled, learning_rate=0.4)
    assert again.hyperparameters == {"learning_rate": 0.4, "momentum": 0.5} and again.switches == (("nesterov", True),)
    each = Client(lambda rate: optax.sgd(rate), rate=np.ones(2), steps=2)
    np.testing.assert_array_equal(dataclasses.replace(each, rate=[0.1, 0.2]).hyperparameters["rate"], [0.1, 0.2])
    fedopt = dataclasses.replace(server.fedopt(optax.adam, 1.0, b1=0.8), b1=0.5, learning_rate=0.5)
    assert (fedopt.hyperparameters, fedopt.learning_rate) == ({"b1": 0.5}, 0.5)
    with pytest.raises(TypeError, match="learning_rate"):
        dataclasses.replace(Client(optax.sgd(0.1), steps=1), learning_rate=0.3)
