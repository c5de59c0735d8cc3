"""Servers that remember every client's last contribution: MIFA, IA2SGD, ACE, ACED, FedStale, AREA.

Means are computed anew from all rows at every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .update import Array, StepInfo, Update


class LastUpdates:
    """x += eta (1/N) sum of the last Delta_i of ALL clients; an arrival replaces its client's row.

    Args:
        eta: Server rate.
        num_clients: N.
        dim: Number of parameters.
        begin: From when on it steps: "at once" (rows of clients that have not come are 0), "full" (with the arrivals by
            which every client has come once) or "later" (with the first step after those, or with them if they are all
            in the first step). MIFA waits with "later" (Gu et al. 2021, the authors' code), as IA2SGD does; ACE begins
            with "full" (Chang et al. 2025).
    """

    def __init__(self, *, eta: float, num_clients: int, dim: int, begin: str) -> None:
        self.eta, self.begin = eta, begin
        self.rows = np.zeros((num_clients, dim))
        self.stamps: list[int | None] = [None] * num_clients
        self.count = 0
        self.info = StepInfo()

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        t, self.count = self.count, self.count + 1
        begins = {"at once": True, "later": None not in self.stamps}.get(self.begin)
        if begins is False and len({update.client for update in arrivals}) == len(self.rows):
            begins = set(self.stamps) == {None}
        for update in arrivals:
            self.rows[update.client] = update.delta
            self.stamps[update.client] = self.stamp(t, update)
        begins = None not in self.stamps if begins is None else begins
        self.info = StepInfo(eta=self.eta if begins else 0.0)
        return x + self.eta * self.direction(t) if begins else x

    def stamp(self, t: int, update: Update) -> int:
        return t

    def direction(self, t: int) -> Array:
        return np.asarray(self.rows.mean(axis=0))


class ACED(LastUpdates):
    """The mean over A = {i: t - s_i <= max_age} only; nothing for an empty A. Chang et al. 2025.

    Args:
        max_age: In server steps.
        age: s_i is the step after which i last got the model ("dispatch"), or the version of its row's gradient
            ("row").
        **options: Of `LastUpdates`.
    """

    def __init__(self, *, max_age: float, age: str = "dispatch", **options: float) -> None:
        super().__init__(begin="full", **options)  # type: ignore[arg-type]
        self.max_age, self.age = max_age, age

    def stamp(self, t: int, update: Update) -> int:
        return t if self.age == "dispatch" else t - update.staleness

    def direction(self, t: int) -> Array:
        chosen = [row for row, s in zip(self.rows, self.stamps, strict=True) if s is not None and t - s <= self.max_age]
        return np.asarray(np.mean(chosen, axis=0) if chosen else np.zeros_like(self.rows[0]))


class FedStale:
    """x += eta (sum_S (alpha_i / p_i) (Delta_i - beta h_i) + beta sum_i alpha_i h_i); then h_i <- Delta_i for i in S.

    Rodio, Neglia 2024.

    Args:
        alpha: Weights of the clients, [N].
        p: Participation probabilities, [N]; `None` for the share of steps so far in which the client has arrived.
        beta: In [0, 1].
        dim: Number of parameters.
        eta: Server rate.
    """

    def __init__(
        self, *, alpha: Sequence[float], p: Sequence[float] | None, beta: float, dim: int, eta: float = 1.0
    ) -> None:
        self.alpha, self.p, self.beta, self.eta = np.asarray(alpha), p, beta, eta
        self.steps, self.arrived = 0, np.zeros(len(alpha))
        self.h = np.zeros((len(alpha), dim))
        self.info = StepInfo(eta=eta)

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        step = self.beta * self.alpha @ self.h
        self.steps += 1
        for i in {update.client for update in arrivals}:
            self.arrived[i] += 1
        p = self.arrived / self.steps if self.p is None else self.p
        for update in arrivals:
            i = update.client
            step = step + self.alpha[i] / p[i] * (update.delta - self.beta * self.h[i])
        for update in arrivals:
            self.h[update.client] = update.delta
        return np.asarray(x + self.eta * step)


class AREA:
    """x += (1/N) sum over arrivals of (x_i - y_i), y_i <- x_i, y_i = x_0 at first. Iakovidou, Kim 2024.

    Args:
        num_clients: N.
        x0: Initial parameters, [dim].
    """

    def __init__(self, *, num_clients: int, x0: Array) -> None:
        self.y = np.tile(x0, (num_clients, 1))
        self.info = StepInfo()

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        for update in arrivals:
            x = x + (update.model - self.y[update.client]) / len(self.y)
            self.y[update.client] = update.model
        return x


class Kardam:
    """x += u with u = eta s(tau) Delta_i, if its Lipschitz coefficient is small. Damaskinos et al. 2018.

    Args:
        num_clients: N.
        eta: Server rate.
        dampening: s(tau).
        quantile: Of the clients' largest coefficients.
        window: Coefficients kept per client.
    """

    def __init__(
        self, *, num_clients: int, eta: float, dampening: Callable[[int], float], quantile: float, window: int
    ) -> None:
        self.clients, self.eta, self.dampening, self.quantile, self.window = (
            num_clients,
            eta,
            dampening,
            quantile,
            window,
        )
        self.before: dict[int, tuple[Array, Array]] = {}
        self.known: dict[int, list[float]] = {}
        self.last: tuple[Array, Array] | None = None
        self.row, self.rejections = 0, 0
        self.info = StepInfo()

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        (arrival,) = arrivals
        client, start = arrival.client, arrival.x_start
        u = self.eta * self.dampening(arrival.staleness) * arrival.delta
        if client in self.before and np.any(start != self.before[client][1]):
            coefficient = np.linalg.norm(u - self.before[client][0]) / np.linalg.norm(start - self.before[client][1])
            self.known.setdefault(client, []).append(float(coefficient))
        self.before[client] = u, start
        largest = [max(values[-self.window :]) for values in self.known.values()]
        passes = not largest or self.row >= self.clients
        if not passes:
            assert self.last is not None
            moved = np.linalg.norm(start - self.last[1])
            ratio = np.linalg.norm(u - self.last[0])
            passes = moved == 0 or ratio / moved <= np.quantile(largest, self.quantile)
        if not passes:
            self.row += 1
            self.rejections += 1
            return x
        self.row, self.last = 0, (u, start)
        return x + u


class PickySGD:
    """x += eta Delta_i if ||x - x_s|| <= distance, else x stays. Cohen et al. 2021, Algorithm 1.

    Args:
        eta: Server rate.
        distance: epsilon / (2 beta).
    """

    def __init__(self, *, eta: float, distance: float) -> None:
        self.eta, self.distance = eta, distance
        self.rejections = 0
        self.info = StepInfo(eta=eta)

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        (arrival,) = arrivals
        if sum(float(a - b) ** 2 for a, b in zip(x, arrival.x_start, strict=True)) <= self.distance**2:
            return x + self.eta * arrival.delta
        self.rejections += 1
        return x
