"""The contract between a model and the simulator: make parameters and state; the loss and the metrics of a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax

Array = jax.Array
Key = jax.Array
Params = Any
State = Any


class Batch(NamedTuple):
    """One mini-batch of one client."""

    x: Array  # [B, ...] preprocessed inputs
    y: Array  # [B, ...] labels
    mask: Array  # bool [B]; False marks the padding of a partial batch, which must influence nothing


class Outputs(NamedTuple):
    """What a model says of a batch, per example: the simulator takes the masked means."""

    loss: Array  # float [B]
    metrics: dict[str, Array]  # each [B]


@dataclass(frozen=True, eq=False)
class Model:
    """A model that can be simulated; make one with `from_linen`, `from_nnx` or `from_functions`.

    Equality and hash are by identity, so that a model can be a static argument of a compiled function.

    Attributes:
        name: the name in results and tables.
        init: `(key, batch) -> (params, state)`. Of `batch`, an example batch (B = 1), only shapes and dtypes matter.
            `params` is the pytree that is trained and federated, `state` the pytree of everything else that the model
            carries from step to step (running statistics); `{}` where there is none.
        apply: `(params, state, batch, key, train) -> (Outputs, state)`. `key` feeds dropout and the like; `train` is a
            Python bool.
        description: options of the model that can be written as JSON, for result files.
    """

    name: str
    init: Callable[[Key, Batch], tuple[Params, State]]
    apply: Callable[[Params, State, Batch, Key, bool], tuple[Outputs, State]]
    description: dict[str, Any] = field(default_factory=dict)
