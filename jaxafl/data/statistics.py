"""Statistics of a partition as numbers and a table; traversal of all samples."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import jax
import numpy as np

from jaxafl.data.form import Gather
from jaxafl.device import compiled, on_device
from jaxafl.options import Summarised

Evaluate: TypeAlias = Callable[[Any, jax.Array, jax.Array], Any]

_BLOCK = 128  # samples of one client that are evaluated together; per-client work is repeated for each block
_CALL = 32_768  # samples of a compiled call
_BEYOND = 2**40  # a block that no client has


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PartitionStatistics(Summarised):
    """Sizes and label histograms of a federated dataset.

    A sample that several clients hold (`iid_shared`) counts once for each of them.

    Attributes:
        name: name of the dataset.
        sizes: int64 `[N]`, training samples of each client.
        histogram: int32 `[N, C]`, training samples of each client and class (or quantile of the targets).
        names: str `[N]`, names of the clients; `None` if they have none.
        quantiles: True if columns of `histogram` are quantiles of the targets, False if they are classes.
    """

    name: str
    sizes: np.ndarray
    histogram: np.ndarray
    names: np.ndarray | None = None
    quantiles: bool = False

    @property
    def distances(self) -> np.ndarray:
        """Total-variation distance `1/2 sum_c |p_k(c) - p(c)|` of each client's labels to all labels, `[N]`.

        `p_k` is the label distribution of client k, and `p` that of all samples. The value is 0 if they are equal, and
        always below 1.
        """
        everyone = self.histogram.sum(0, dtype=np.int64) / self.sizes.sum()
        return 0.5 * np.abs(self.histogram / self.sizes[:, None] - everyone).sum(1)

    @property
    def heterogeneity(self) -> float:
        """Mean over clients of `distances`: 0 for identical label distributions."""
        return float(self.distances.mean())

    @property
    def classes(self) -> np.ndarray:
        """Number of classes (or quantiles) that each client holds, int64 `[N]`."""
        return (self.histogram > 0).sum(1)

    @property
    def _columns(self) -> str:
        return "quantiles" if self.quantiles else "classes"

    def summary(self) -> dict[str, Any]:
        """Returns clients, samples, spread of sizes and classes, and heterogeneity by name."""
        low, middle, high = np.quantile(self.sizes, [0, 0.5, 1])
        return {
            "name": self.name,
            "clients": len(self.sizes),
            "samples": int(self.sizes.sum()),
            "per_client": f"{low:.0f} to {high:.0f} (median {middle:g})",
            f"{self._columns}_per_client": f"{self.classes.min()} to {self.classes.max()}",
            "heterogeneity": round(self.heterogeneity, 3),
        }

    def table(self) -> Any:
        """Returns a table of pandas, a row per client: samples, classes, distance, and the samples of each class."""
        import xarray

        columns = {"samples": self.sizes, self._columns: self.classes, "distance": self.distances}
        columns |= {str(label): column for label, column in enumerate(self.histogram.T)}
        names = np.arange(len(self.sizes)) if self.names is None else self.names
        by_client = {name: ("client", column) for name, column in columns.items()}
        return xarray.Dataset(by_client, {"client": names}).to_dataframe()

    def __str__(self) -> str:
        return f"{self!r}\n{self.table().to_string(max_rows=20, max_cols=13, float_format='{:.3f}'.format)}"


@functools.lru_cache(maxsize=16)
def labels_only(gather: Gather) -> Evaluate:
    """Returns a function of the labels that `gather` returns; cached, because each new function would compile again."""
    return lambda arrays, client, positions: gather(arrays, client, positions)[1]


def traverse(
    evaluate: Evaluate, arrays: Any, starts: np.ndarray, stops: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, Any]]:
    """Evaluates a traceable function at the positions `starts[k] <= p < stops[k]` of every client k, in order.

    Args:
        evaluate: traceable `(arrays, client int32 scalar, positions int32 [B]) -> pytree with leading axis B`; compiled
            once per function and shapes of `arrays`.
        arrays: first argument of `evaluate`, a pytree of arrays.
        starts: int64 `[N]`, first position of each client.
        stops: int64 `[N]`, one past the last position of each client.

    Yields:
        `(client [m], position [m], values)` as numpy arrays, with values a pytree of arrays `[m, ...]`.
    """
    arrays, lanes_of_call = on_device(arrays), _CALL // _BLOCK
    blocks = np.maximum(-(-(stops - starts) // _BLOCK), 0)
    client = np.repeat(np.arange(len(blocks), dtype=np.int32), blocks)
    first = np.arange(len(client)) - np.repeat(np.cumsum(blocks) - blocks, blocks)
    # The last call is padded with blocks beyond the end of client 0; another shape would compile again.
    padding = (0, -len(client) % lanes_of_call)
    client, first = np.pad(client, padding), np.pad(first, padding, constant_values=_BEYOND)
    for lanes, block in zip(client.reshape(-1, lanes_of_call, 1), first.reshape(-1, lanes_of_call, 1), strict=True):
        position = starts[lanes] + block * _BLOCK + np.arange(_BLOCK)
        wanted = position < stops[lanes]
        arguments = (arrays, *on_device((lanes[:, 0], np.where(wanted, position, 0).astype(np.int32))))
        values = compiled(_blocks, (evaluate,), arguments)[0](*arguments)
        keep = jax.tree.map(lambda leaf, wanted=wanted: np.asarray(leaf)[wanted], values)
        yield np.broadcast_to(lanes, wanted.shape)[wanted], position[wanted], keep


def _blocks(evaluate: Evaluate, arrays: Any, client: jax.Array, positions: jax.Array) -> Any:
    return jax.vmap(evaluate, in_axes=(None, 0, 0))(arrays, client, positions)
