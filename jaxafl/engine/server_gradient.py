"""Gradients that a server computes itself, on the validation set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxafl.client import Client, filled, shared_of
from jaxafl.device.keys import drawing_key
from jaxafl.engine.evaluate import gradient_sum, sets_of
from jaxafl.engine.problem import DeviceData, Program

Array = jax.Array
Tree = Any
_SAMPLES = 0xFFFFFFF4


def server_gradient(
    program: Program, device: DeviceData, client: Client, model_state: Tree, key: Array
) -> Callable[[Tree, int | None], Tree]:
    """Returns `Arrivals.validation_gradient` of a server step.

    Args:
        program, device: of the run.
        client: local training, of which frozen and personal parameters get the gradient 0.
        model_state: non-trainable state of the global model.
        key: of the server step.
    """
    count, fetch = sets_of(program.data, device)["validation_"]

    def gradient(params: Tree, batch_size: int | None = None) -> Tree:
        size = count if batch_size is None else batch_size
        rows = jnp.arange(count, dtype=jnp.int32)
        if batch_size is not None:
            rows = jax.random.randint(drawing_key(jax.random.fold_in(key, _SAMPLES)), (size,), 0, count, jnp.int32)
        zero, model = jax.tree.map(jnp.zeros_like, params), (params, model_state)
        found = gradient_sum(program, device.frozen, model, lambda at: fetch(rows[at]), size, zero, divisor=size)
        return filled(shared_of(client, found), zero)

    return gradient
