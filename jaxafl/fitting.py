"""Whether a model fits the data that it is to be trained on, found out by tracing before anything is compiled."""

from __future__ import annotations

import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.client import LocalTraining
from jaxafl.data.federated import FederatedData
from jaxafl.models.model import Batch, Model
from jaxafl.state import example_batch

_states: weakref.WeakKeyDictionary[Model, weakref.WeakKeyDictionary[FederatedData, Any]] = weakref.WeakKeyDictionary()
_BATCH = 2


def check_model(model: Model, data: FederatedData, client: LocalTraining) -> None:
    """Raises `ValueError` for a model that cannot be trained on such samples, or that would learn from padding."""
    traced = _states.setdefault(model, weakref.WeakKeyDictionary())
    if data not in traced:
        _check_sizes(model, data)
        traced[data] = _state_of(model, data)
    if not model.sees_mask and jax.tree.leaves(traced[data]) and _pads(client, data.counts):
        raise ValueError(
            f"the network of {model.name} keeps state from batch to batch (batch statistics?) and takes no mask, so "
            "that it would count the padding of local epochs and full batches. Let its __call__ take `mask` (bool [B]) "
            "and leave padding out, as jaxafl.models.BatchNorm does, or train with steps=... and a batch_size"
        )


def _check_sizes(model: Model, data: FederatedData) -> None:
    outputs = model.description.get("num_classes")
    if isinstance(outputs, int) and outputs < data.num_classes:
        raise ValueError(
            f"the model {model.name} tells {outputs} classes apart, but {data.name} has {data.num_classes}: make it "
            f"with num_classes={data.num_classes}"
        )
    known, used = model.description.get("vocab_size"), data.description.get("vocabulary")
    if known is not None and used is not None and used > known:
        raise ValueError(
            f"the model {model.name} knows {known} tokens, but {data.name} was tokenised with a vocabulary of {used}: "
            "give both the same checkpoint"
        )


def _state_of(model: Model, data: FederatedData) -> Any:
    """Shapes of the model's state, from tracing a step of training."""
    example = example_batch(data)

    def step(arrays: Any, frozen: Any, client: Any, positions: Any, key: Any) -> Any:
        params, state = model.init(key, example)
        x, y = data.fetch(arrays, client, positions, jax.random.split(key, _BATCH))
        if _described(x) != _described(example.x):
            raise ValueError(f"training samples are {_described(x)}, test samples {_described(example.x)}")
        _, new = model.bound(frozen)(params, state, Batch(x, y, jnp.ones(_BATCH, bool)), key, True)
        if _described(new, 0) != _described(state, 0):
            raise ValueError(f"training turns its state {_described(state, 0)} into {_described(new, 0)}")
        return state

    integer = jax.ShapeDtypeStruct((), jnp.int32)
    positions = jax.ShapeDtypeStruct((_BATCH,), jnp.int32)
    try:
        return jax.eval_shape(step, data.arrays, model.frozen, integer, positions, jax.random.key(0))
    except Exception as error:  # whatever a network says of inputs that are not for it
        raise ValueError(
            f"the model {model.name} cannot be made for the samples of {data.name}, {_described(example.x)}: {error}"
        ) from error


def _described(tree: Any, batch_axes: int = 1) -> str:
    shapes = jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape[batch_axes:])}", tree)
    return str(shapes).replace("'", "")


def _pads(client: LocalTraining, counts: np.ndarray) -> bool:
    """Whether some mini-batches are filled up with padding."""
    size, piece = client.batch_size, client.micro_batch
    if size is None:
        return True
    partial = (client.epochs is not None or client.sampling == "epochs") and bool(np.any(counts % size))
    return partial or (piece is not None and size > piece and size % piece > 0)
