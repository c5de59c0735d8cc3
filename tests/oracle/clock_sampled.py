"""DeFedAvg's clock for heterogeneous data: sampled clients, each with a receive buffer and a send buffer."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from .clock import Arrival, Duration, Queue, Run, ServerStep, arrival, pop_instant
from .runs import RunBook, check_sets


def sampled(
    sets: Sequence[Sequence[int]],
    duration: Duration,
    *,
    num_clients: int,
    receive_buffer: str = "keep",
    send_buffer: str = "overwrite",
) -> list[ServerStep]:
    """Rounds that wait until every drawn client has a finished update in its send buffer, while all clients train.

    All clients start at time 0 from x_0. The set of round t is drawn at the moment of step t - 1 (round 0: at time 0).
    As soon as all its clients have a full send buffer, step t is taken: their buffers, and only theirs, are read and
    emptied, and x_{t+1} is broadcast into every receive buffer. A set whose buffers are all full already when it is
    drawn is served at the same instant.

    A client that finishes puts its result into its send buffer:
    - "overwrite": it replaces an older result there.
    - "hold": it is written only into an empty buffer. A result that finds the buffer full is lost (nothing is kept
      back to be written later: the client goes on training, and the next result that finds the buffer empty is the
      one that enters).

    Then it goes on:
    - "keep": at once, from the newest broadcast model, used before or not.
    - "consume": at once if its receive buffer holds a model that it has not used; otherwise it idles until the next
      broadcast, and starts from that model at once.

    All finishes of one instant enter the send buffers, in client order, before any buffer is read; all steps that can
    be taken at that instant are taken, before anyone starts; then the finished and the idle start in client order.

    "Achieving Linear Speedup in Asynchronous Federated Learning with Heterogeneous Clients" (DeFedAvg), Algorithm 1
    and section 2.3.

    Args:
        sets: The clients drawn in each round, [rounds][n]; a client drawn k times is read once and counted k times.
        duration: Seconds of a run.
        num_clients: N.
        receive_buffer: "keep" or "consume".
        send_buffer: "overwrite" or "hold".

    Returns:
        One step per round, its arrivals in client order. `arrival_time` is when the result entered the send buffer, at
        or before the time of the step.

    Raises:
        ValueError: If a set is empty or names an unknown client, an option is unknown, or a duration is not positive
            and finite.
    """
    check_sets(sets, num_clients, repeats=True)
    if receive_buffer not in ("keep", "consume"):
        raise ValueError(f'receive_buffer must be "keep" or "consume", got {receive_buffer!r}')
    if send_buffer not in ("overwrite", "hold"):
        raise ValueError(f'send_buffer must be "overwrite" or "hold", got {send_buffer!r}')
    book = RunBook(num_clients)
    training: Queue = []
    sent: dict[int, Run] = {}  # what each full send buffer holds
    used = [-1] * num_clients  # the version that each client used last
    waiting = set(range(num_clients))
    steps: list[ServerStep] = []
    time = 0.0
    while True:
        newest = len(steps)
        for client in sorted(waiting):
            if receive_buffer == "keep" or used[client] < newest:
                run = book.start(client, version=newest, time=time, duration=duration)
                heapq.heappush(training, (run.arrival_time, client, run))
                used[client] = newest
                waiting.discard(client)
        time, finished = pop_instant(training)
        for run in finished:
            waiting.add(run.client)
            if send_buffer == "overwrite" or run.client not in sent:
                sent[run.client] = run
        while len(steps) < len(sets) and all(client in sent for client in sets[len(steps)]):
            steps.append(ServerStep(len(steps), time, _read(sent, sets[len(steps)], len(steps))))
        if len(steps) == len(sets):
            return steps


def _read(sent: dict[int, Run], drawn: Sequence[int], t: int) -> tuple[Arrival, ...]:
    """Empties the send buffers of the drawn clients."""
    return tuple(arrival(sent.pop(client), t, multiplicity=list(drawn).count(client)) for client in sorted(set(drawn)))
