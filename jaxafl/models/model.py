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
    """One mini-batch of one client.

    Attributes:
        x: preprocessed inputs [B, ...]: an array, or a pytree of them.
        y: labels [B, ...].
        mask: bool [B]; False marks the padding of a partial batch, which must influence nothing.
    """

    x: Array
    y: Array
    mask: Array


class Outputs(NamedTuple):
    """What a model says of a batch, per example: the simulator takes the masked means.

    Attributes:
        loss: float [B].
        metrics: name -> [B]; each becomes a variable of the result. `"accuracy"` is what figures show.
    """

    loss: Array
    metrics: dict[str, Array]


Apply = Callable[[Params, State, Batch, Key, bool], tuple[Outputs, State]]


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
            Python bool. A model with `frozen` arrays takes them as its last argument.
        frozen: pytree of numpy arrays that are neither trained nor federated (a pretrained base): one copy on the
            device serves all clients, and none is in the ring or in an update. `None` where there is none.
        sees_mask: whether state (batch statistics) leaves out the padding that `Batch.mask` marks; where it does not,
            training that pads is refused.
        references: what a run with this model should cite: keys of `jaxafl.references.BIBTEX`, or BibTeX entries.
        description: options of the model that can be written as JSON, for result files.
    """

    name: str
    init: Callable[[Key, Batch], tuple[Params, State]]
    apply: Callable[..., tuple[Outputs, State]]
    description: dict[str, Any] = field(default_factory=dict)
    frozen: Any = None
    sees_mask: bool = True
    references: tuple[str, ...] = ()

    def bound(self, frozen: Any) -> Apply:
        """`apply` without its last argument, which is `frozen`: `self.frozen`, placed on the device or traced."""
        if self.frozen is None:
            return self.apply
        return lambda params, state, batch, key, train: self.apply(params, state, batch, key, train, frozen)
