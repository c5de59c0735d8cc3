"""`DataForm`, the static description of a dataset in a compiled program, and samples stored as pooled arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.data.preprocessing import Preprocessing
from jaxafl.options import UserError
from jaxafl.options.user_code import traced_method

Gather = Callable[[Any, Any, jax.Array], tuple[Any, jax.Array]]


@dataclasses.dataclass(frozen=True)
class DataForm:
    """Gathering, preprocessing and shapes of samples, equal for datasets that share a compiled program.

    Attributes:
        gather: traced function `(arrays, client, positions) -> (raw x [B, ...], y [B])`.
        preprocessing: augmentation, cast and normalisation of raw samples.
        structure: tree structure of a raw sample and its label.
        shapes: shape [1, ...] and dtype of each leaf of one sample.
    """

    gather: Gather
    preprocessing: Preprocessing
    structure: Any
    shapes: tuple[tuple[tuple[int, ...], np.dtype], ...]

    @property
    def example(self) -> tuple[Any, np.ndarray]:
        """A preprocessed sample `(x [1, ...], y [1])` of zeros, for shape inference."""
        x, y = jax.tree.unflatten(self.structure, [np.zeros(*one) for one in self.shapes])
        seen = jax.eval_shape(self.preprocessing.transform, x)
        return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), seen), y

    def fetch(
        self, arrays: Any, client: jax.Array | int, positions: jax.Array, keys: jax.Array
    ) -> tuple[Any, jax.Array]:
        """Returns preprocessed training samples of one client; traceable. See `FederatedData.fetch`."""
        x, y = self.gather(arrays, client, positions)
        if self.preprocessing.augment is not None:
            raw = x
            with traced_method("the preprocessing", "augment", "the key that it is given"):
                x = jax.vmap(self.preprocessing.augment)(raw, keys)
            before, after = kind_of_sample(raw), kind_of_sample(x)
            if before != after:  # `transform` would treat training and test samples differently
                raise UserError(
                    f"the augmentation turns raw samples {before} into {after}; expected the same shape and dtype. "
                    "Write .astype(x.dtype) at its end, or give the data as floats"
                )
        return self.preprocessing.transform(x), y


def kind_of_sample(x: Any) -> str:
    """Returns dtype and shape of one sample in words; `x` is a pytree of arrays `[n, ...]`, possibly traced."""
    return str(jax.tree.map(lambda leaf: f"{leaf.dtype}{[*leaf.shape[1:]]}", x)).replace("'", "")


def gather_stored(arrays: Any, client: jax.Array | int, positions: jax.Array) -> tuple[Any, jax.Array]:
    """Gathers raw samples of one client from pooled arrays: sample `index[offset[client] + position]`."""
    rows = jnp.take(arrays["index"], jnp.take(arrays["offset"], client, mode="clip") + positions, mode="clip")
    return jax.tree.map(lambda leaf: jnp.take(leaf, rows, axis=0, mode="clip"), (arrays["x"], arrays["y"]))


def stored_targets(gather: Any, arrays: Any) -> np.ndarray:
    """Returns all training targets of data with this gather and arrays, held-out ones too; none if not stored."""
    while (inner := getattr(gather, "gather", None)) is not None:  # `with_validation` wraps
        gather, arrays = inner, arrays["all"]
    return arrays["y"][arrays["index"]] if gather is gather_stored else np.zeros(0, np.int32)


def stored_rows(arrays: Any, counts: np.ndarray) -> np.ndarray:
    """Returns the rows of all clients' samples, int [sum counts], in arrays that `gather_stored` reads."""
    first = np.asarray(arrays["offset"], np.int64) - (np.cumsum(counts) - counts)
    return arrays["index"][np.repeat(first, counts) + np.arange(counts.sum())]


def client_arrays(x: Any, y: np.ndarray, clients: Sequence[Any]) -> tuple[dict[str, Any], np.ndarray]:
    """Builds the arrays that `gather_stored` reads, without copies or padding per client.

    Args:
        x: pooled raw samples `[n, ...]`, or a pytree of such arrays.
        y: targets `[n, ...]`.
        clients: for each client, the int rows of its samples in x and y. Rows that all clients share are stored once.

    Returns:
        `{"x", "y", "index" int32 [sum counts], "offset" int32 [N]}` and `counts` int64 `[N]`.

    Raises:
        ValueError: rows are no integers in 0 .. n - 1, or too many for int32 offsets.
    """
    shared = all(one is clients[0] for one in clients)
    rows = [np.asarray(one) for one in (clients[:1] if shared else clients)]
    wrong = [one for one in rows if one.ndim != 1 or (one.size and one.dtype.kind not in "iu")]
    if wrong:
        raise UserError(f"a partition gave the rows {wrong[0]!r:.60}; expected integers [n] for each client")
    counts = np.resize(np.array([len(one) for one in rows], np.int64), len(clients))
    offset = np.zeros_like(counts) if shared else np.cumsum(counts) - counts
    index = np.concatenate([np.zeros(0, np.int32), *rows])
    if len(index) >= 2**31:
        raise UserError(f"the clients hold {len(index)} samples together; expected at most {2**31 - 1}")
    if index.size and (index.min() < 0 or index.max() >= len(y)):
        raise UserError(f"a partition gave rows {index.min()} to {index.max()}; expected 0 to {len(y) - 1}")
    return {"x": x, "y": y, "index": index.astype(np.int32), "offset": offset.astype(np.int32)}, counts
