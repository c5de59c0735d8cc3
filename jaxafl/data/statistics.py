"""Statistics of a partition as numbers, a table and a heat map; traversal of all samples."""

from __future__ import annotations

import dataclasses
import functools
import io
import pathlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np

from jaxafl.data.form import Gather
from jaxafl.device import compiled, on_device
from jaxafl.options import Summarised
from jaxafl.readers.replacing import replacing

if TYPE_CHECKING:  # imported at run time, they would slow down `import jaxafl.data`
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table

Evaluate: TypeAlias = Callable[[Any, jax.Array, jax.Array], Any]

_MAX_ROWS = 500
_NAMED = 60  # with more clients, the names at the heat map would overlap
BLOCK = 128
"""Maximum number of samples of one client that are evaluated together; per-client work is repeated for each block."""
_CALL = 32_768  # samples of a compiled call
_PIECE = 65_536  # clients whose distances are computed together, which bounds memory


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PartitionStatistics(Summarised):
    """Sizes and label histograms of a federated dataset.

    A sample that several clients hold (`iid_shared`) counts once for each of them.

    Attributes:
        name: name of the dataset.
        sizes: int64 `[N]`, training samples of each client.
        histogram: int32 `[n, C]`, training samples of each counted client and class (or quantile of the targets).
        counted: int `[n]`, the counted clients; `None` if all N are counted.
        names: str `[N]`, names of the clients; `None` if they have none.
        quantiles: True if columns of `histogram` are quantiles of the targets, False if they are classes.
    """

    name: str
    sizes: np.ndarray
    histogram: np.ndarray
    counted: np.ndarray | None = None
    names: np.ndarray | None = None
    quantiles: bool = False

    @property
    def clients(self) -> np.ndarray:
        """Clients with counted labels, int `[n]`."""
        return np.arange(len(self.sizes)) if self.counted is None else self.counted

    @property
    def distances(self) -> np.ndarray:
        """Total-variation distance `1/2 sum_c |p_k(c) - p(c)|` of each client's labels to all labels, `[n]`.

        `p_k` is the label distribution of client k, and `p` that of all counted samples. The value is 0 if they are
        equal, and always below 1.
        """
        sizes = self.histogram.sum(1, dtype=np.int64)
        everyone = self.histogram.sum(0, dtype=np.int64) / sizes.sum()
        pieces = np.array_split(np.arange(len(sizes)), -(-len(sizes) // _PIECE))
        return np.concatenate(
            [0.5 * np.abs(self.histogram[piece] / sizes[piece, None] - everyone).sum(1) for piece in pieces]
        )

    @property
    def heterogeneity(self) -> float:
        """Mean over clients of `distances`: 0 for identical label distributions."""
        return float(self.distances.mean())

    @property
    def classes(self) -> np.ndarray:
        """Number of classes (or quantiles) that each counted client holds, int64 `[n]`."""
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
        } | ({} if self.counted is None else {"labels_counted_of": f"{len(self.counted)} clients"})

    def table(self, max_rows: int = 20, max_classes: int = 10) -> Table:
        """Returns a rich table with one row per client.

        Args:
            max_rows: clients shown; the caption says how many are left out.
            max_classes: up to this number of classes, the table has a column for each. The number of classes that a
                client holds is always shown.

        Returns:
            The table, for `rich.print`; `str(statistics)` is its plain text below one line of numbers.
        """
        import rich.box
        import rich.table

        clients, distances, classes = self.clients, self.distances, self.classes
        shown = min(max_rows, len(clients))
        first = "" if self.counted is not None else "first "
        caption = None if shown == len(self.sizes) else f"{first}{shown} of {len(self.sizes)} clients"
        table = rich.table.Table(
            title=f"{self.name}, training samples", caption=caption, box=rich.box.SIMPLE_HEAD, pad_edge=False
        )
        table.padding = (0, 0)
        labels = range(self.histogram.shape[1] if self.histogram.shape[1] <= max_classes else 0)
        for column in ("client", "samples", self._columns, "distance", *map(str, labels)):
            table.add_column(column, justify="right")
        for place, client in enumerate(clients[:shown]):
            name = client if self.names is None else self.names[client]
            row = [name, self.sizes[client], classes[place], f"{distances[place]:.3f}"]
            table.add_row(*map(str, [*row, *self.histogram[place, : len(labels)]]))
        return table

    def __str__(self) -> str:
        import rich.console

        said = self.summary()
        held = f"{said[f'{self._columns}_per_client']} {self._columns}"
        line = (
            f"{self.name}: {said['clients']} clients, {said['samples']} training samples; per client "
            f"{said['per_client']}, {held}; mean distance to the global label "
            f"distribution {said['heterogeneity']:.3f}"
            + ("" if self.counted is None else f"; labels counted of {len(self.counted)} clients, a random choice")
        )
        text = io.StringIO()
        table = self.table()
        console = rich.console.Console(file=text, width=160, color_system=None)
        console.print(line, table, width=max(80, console.measure(table).maximum))
        return text.getvalue()


def heat_map(statistics: PartitionStatistics, path: str | pathlib.Path | None = None, ax: Axes | None = None) -> Figure:
    """Draws samples per client and class as a heat map, next to a bar chart of samples per client.

    Only counted clients are drawn. Colours are proportional to the square root of the number, so that small clients
    differ from empty ones. With more than 500 clients, a row is the mean of several neighbours; the title says of how
    many.

    Args:
        statistics: result of `FederatedData.statistics()`.
        path: file to save the figure to (the suffix sets the format); `None` saves nothing.
        ax: axes for the heat map, without the bar chart; `None` creates a new figure.

    Returns:
        The figure.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.ticker import EngFormatter, MaxNLocator

    from jaxafl.data.picture import Picture

    clients, classes = statistics.histogram.shape
    if ax is not None:
        figure = ax.get_figure(root=True)
        if figure is None:
            raise ValueError("ax belongs to no figure; make it with figure.subplots() or pass ax=None")
    else:
        figure = Picture(2.5 + min(0.3 * classes, 9) + 2, 1.5 + min(max(0.22 * clients, 2), 9))
        ax, bars = figure.subplots(1, 2, sharey=True, width_ratios=[4, 1])
        sizes, group = _rows(statistics.sizes[statistics.clients])
        edges = np.append(np.arange(len(sizes)) * group, clients) - 0.5
        bars.fill_betweenx(edges, np.append(sizes, 0), step="post", color="0.5")
        bars.set(xlabel="samples", xlim=(0, None), title="per client")
        bars.xaxis.set_major_locator(MaxNLocator(2, integer=True))
        bars.xaxis.set_major_formatter(EngFormatter(sep=""))
        figure.suptitle(f"{statistics.name}, heterogeneity {statistics.heterogeneity:.3f}")
    rows, group = _rows(statistics.histogram)
    image = ax.imshow(
        rows,
        aspect="auto",
        cmap="viridis",
        interpolation="nearest",
        norm=PowerNorm(0.5, vmin=0),
        extent=(-0.5, classes - 0.5, len(rows) * group - 0.5, -0.5),
    )
    column = "quantile of the target" if statistics.quantiles else "class"
    title = f"samples per {column}" if group == 1 else f"samples per {column}, mean of {group} clients"
    ax.set(xlabel=column, ylabel="client", title=title, ylim=(clients - 0.5, -0.5))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if statistics.names is not None and clients <= _NAMED:
        ax.set_yticks(range(clients), statistics.names[statistics.clients])
    figure.colorbar(image, ax=ax, pad=0.02)
    if path is not None:
        with replacing(path) as unfinished:
            figure.savefig(unfinished, dpi=120)
    return figure


def _rows(table: np.ndarray) -> tuple[np.ndarray, int]:
    """Averages rows over groups of clients, so that the image skips none; returns the size of a group too."""
    group = -(-len(table) // _MAX_ROWS)
    starts = np.arange(0, len(table), group)
    members = np.diff(starts, append=len(table))
    return np.add.reduceat(table, starts, dtype=np.int64) / members.reshape(-1, *[1] * (table.ndim - 1)), group


@functools.lru_cache(maxsize=16)
def labels_only(gather: Gather) -> Evaluate:
    """Returns a function of the labels that `gather` returns; cached, because each new function would compile again."""
    return lambda arrays, client, positions: gather(arrays, client, positions)[1]


def traverse(
    evaluate: Evaluate, arrays: Any, starts: np.ndarray, stops: np.ndarray, size: int = BLOCK
) -> Iterator[tuple[np.ndarray, np.ndarray, Any]]:
    """Evaluates a traceable function at the positions `starts[k] <= p < stops[k]` of every client k, in order.

    Args:
        evaluate: traceable `(arrays, client int32 scalar, positions int32 [B]) -> pytree with leading axis B`; compiled
            once per function and shapes of `arrays`.
        arrays: first argument of `evaluate`, a pytree of arrays.
        starts: int64 `[N]`, first position of each client.
        stops: int64 `[N]`, one past the last position of each client.
        size: number of samples of one client that are evaluated together, a power of 2 up to `BLOCK`.

    Yields:
        `(client [m], position [m], values)` as numpy arrays, with values a pytree of arrays `[m, ...]`.
    """
    arrays = on_device(arrays)
    lanes_of_call = _CALL // size
    blocks = np.maximum(-(-(stops - starts) // size), 0)
    client = np.repeat(np.arange(len(blocks), dtype=np.int32), blocks)
    first = np.arange(len(client)) - np.repeat(np.cumsum(blocks) - blocks, blocks)
    for begin in range(0, len(client), lanes_of_call):
        lanes = client[begin : begin + lanes_of_call]
        position = starts[lanes, None] + first[begin : begin + lanes_of_call, None] * size + np.arange(size)
        wanted = position < stops[lanes, None]
        # Short calls are padded with positions of client 0; another shape would compile again.
        padding = [(0, lanes_of_call - len(lanes))]
        positions = np.pad(np.where(wanted, position, 0), [*padding, (0, 0)]).astype(np.int32)
        arguments = (arrays, *on_device((np.pad(lanes, padding), positions)))
        values = compiled(_blocks, (evaluate,), arguments, plain=True)[0](*arguments)
        keep = jax.tree.map(lambda leaf, lanes=lanes, wanted=wanted: np.asarray(leaf)[: len(lanes)][wanted], values)
        yield np.broadcast_to(lanes[:, None], wanted.shape)[wanted], position[wanted], keep


def _blocks(evaluate: Evaluate, arrays: Any, client: jax.Array, positions: jax.Array) -> Any:
    return jax.vmap(evaluate, in_axes=(None, 0, 0))(arrays, client, positions)
