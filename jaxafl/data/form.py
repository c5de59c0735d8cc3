"""`DataForm`: the static description of a dataset in a compiled program, without samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxafl.data.preprocessing import Preprocessing
from jaxafl.options import UserError

Gather = Callable[[Any, Any, jax.Array], tuple[Any, jax.Array]]


@dataclasses.dataclass(frozen=True)
class DataForm:
    """Gathering, preprocessing and shapes of samples, equal for datasets that share a compiled program.

    Attributes:
        gather: traced function `(arrays, client, positions) -> (raw x [B, ...], y [B])`.
        preprocessing: augmentation, cast and normalisation of raw samples.
        structure: tree structure of a raw sample and its label.
        shapes: shape and dtype of each leaf, without the batch axis.
    """

    gather: Gather
    preprocessing: Preprocessing
    structure: Any
    shapes: tuple[tuple[tuple[int, ...], np.dtype], ...]

    @property
    def example(self) -> tuple[Any, np.ndarray]:
        """A preprocessed sample `(x [1, ...], y [1])` of zeros, for shape inference."""
        raw = [np.zeros((1, *shape), dtype) for shape, dtype in self.shapes]
        x, y = jax.tree.unflatten(self.structure, raw)
        seen = jax.eval_shape(self.preprocess, x)
        return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), seen), y

    def fetch(
        self, arrays: Any, client: jax.Array | int, positions: jax.Array, keys: jax.Array
    ) -> tuple[Any, jax.Array]:
        """Returns preprocessed training samples of one client; traceable. See `FederatedData.fetch`."""
        x, y = self.gather(arrays, client, positions)
        if self.preprocessing.augment is not None:
            raw, x = x, jax.vmap(self.preprocessing.augment)(x, keys)
            before, after = kind_of_sample(raw), kind_of_sample(x)
            if before != after:  # `transform` would treat training and test samples differently
                raise UserError(
                    f"the augmentation turns raw samples {before} into {after}; expected the same shape and dtype. "
                    "Write .astype(x.dtype) at its end, or give the data as floats"
                )
        return self.preprocess(x), y

    def preprocess(self, x: Any) -> Any:
        """Casts and normalises a raw batch as `fetch` does, without augmentation; traceable."""
        return self.preprocessing.transform(x)


def kind_of_sample(x: Any) -> str:
    """Returns dtype and shape of one sample in words; `x` is a pytree of arrays `[n, ...]`, possibly traced."""

    def one(leaf: Any) -> str:
        return f"{leaf.dtype if hasattr(leaf, 'dtype') else np.asarray(leaf).dtype}{[*np.shape(leaf)[1:]]}"

    return str(jax.tree.map(one, x)).replace("'", "")
