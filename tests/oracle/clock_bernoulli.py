"""The clock of lossy links: at every tick each client's upload, and then its download, succeeds or fails."""

from __future__ import annotations

from collections.abc import Sequence

from .clock import ServerStep, arrival
from .runs import RunBook


def bernoulli(uploads: Sequence[Sequence[bool]], downloads: Sequence[Sequence[bool]] | None = None) -> list[ServerStep]:
    """Ticks: everybody offers an update, whoever gets through is consumed and then fetches the new version.

    All clients start from x_0 at time 0. Tick t acts on x_t, makes x_{t+1} (also when nobody arrives) and has the time
    t + 1. A client whose upload succeeds at tick t then downloads x_{t+1} and starts its next run from it. If that
    download fails the client keeps its version AND its update: it offers the same run again at every tick, and each
    later successful upload is an arrival of that same run, after which the download is tried again.

    "The Impact Analysis of Delays in Asynchronous Federated Learning with Data Heterogeneity for Edge Intelligence",
    eq. (1) and the adjustment after it.

    Args:
        uploads: Whether each upload succeeds, [ticks][N].
        downloads: Whether each download succeeds, [ticks][N]; an entry is looked at only if the upload of the same
            tick succeeded. None: all succeed.

    Returns:
        One step per tick, its arrivals in client order. The `start_time` of a run is the time at which its version was
        made.

    Raises:
        ValueError: If the shapes do not match.
    """
    num_clients = len(uploads[0])
    _check_shapes(uploads, downloads, num_clients)
    book = RunBook(num_clients)
    offered = [book.start(client, version=0, time=0.0) for client in range(num_clients)]
    steps = []
    for t, successes in enumerate(uploads):
        time = t + 1.0
        uploaded = [client for client in range(num_clients) if successes[client]]
        arrivals = tuple(arrival(offered[client], t, arrival_time=time) for client in uploaded)
        steps.append(ServerStep(t, time, arrivals))
        for client in uploaded:
            if downloads is None or downloads[t][client]:
                offered[client] = book.start(client, version=t + 1, time=time)
    return steps


def _check_shapes(
    uploads: Sequence[Sequence[bool]], downloads: Sequence[Sequence[bool]] | None, num_clients: int
) -> None:
    tables = {"uploads": uploads} if downloads is None else {"uploads": uploads, "downloads": downloads}
    for name, table in tables.items():
        if len(table) != len(uploads) or any(len(row) != num_clients for row in table):
            raise ValueError(f"{name} must be [{len(uploads)} ticks][{num_clients} clients]")
