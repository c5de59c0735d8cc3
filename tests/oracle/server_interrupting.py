"""Interrupting servers: FAVANO and QuAFL. An arrival carries what a contacted client has done so far."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .update import Array, StepInfo, Update, require_single


class FAVANO:
    """x <- (x + sum_i u_i) / (s + 1), u_i = x_s + Delta_i / a_i over the s contacted clients (x_s if E_i = 0).

    E_i is the number of local steps done, already capped at K. a_i = normaliser_i ("deterministic", or given
    numbers) or normaliser_i E_i ("stochastic"). `gap_expectations` gives both normalisers.

    Leconte et al. 2023 (FAVAS).

    Args:
        normaliser: E[min(E_i, K)] ("deterministic") or P(E_i > 0) ("stochastic") of every client, [N].
        reweight: "deterministic" or "stochastic".
    """

    def __init__(self, *, normaliser: Sequence[float], reweight: str = "deterministic") -> None:
        if reweight not in ("deterministic", "stochastic"):
            raise ValueError(f'reweight must be "deterministic" or "stochastic", got {reweight!r}')
        self.normaliser, self.reweight = normaliser, reweight
        self.info = StepInfo()

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        require_single(arrivals, "favano")
        total = np.array(x, dtype=np.float64)
        for update in arrivals:
            total = total + update.x_start
            if update.local_steps > 0:
                steps = update.local_steps if self.reweight == "stochastic" else 1
                total = total + update.delta / (self.normaliser[update.client] * steps)
        return total / (len(arrivals) + 1)


def gap_expectations(
    *, period: float, step_time: float, contact_probability: float, max_steps: int
) -> tuple[float, float]:
    """(E[min(E, K)], P(E > 0)) for a client whose every local step takes `step_time` seconds.

    E = floor(g period / step_time) with g = 1, 2, ... the periods between two contacts: P(g) = p (1 - p)^(g-1). From
    the first g at which the client has made K steps on, the tail is summed in closed form: (1 - p)^(g-1) K.

    Args:
        period: Seconds between contacts of the server.
        step_time: Seconds per local step.
        contact_probability: p = s / N.
        max_steps: K.
    """
    expected, positive, g = 0.0, 0.0, 1
    while True:
        steps = math.floor(g * period / step_time)
        survival = (1 - contact_probability) ** (g - 1)
        if steps >= max_steps or survival == 0:
            # Whoever has K steps has made one: all the remaining probability counts as positive.
            return expected + survival * min(steps, max_steps), positive + survival * (steps > 0)
        probability = contact_probability * survival
        expected += probability * steps
        positive += probability * (steps > 0)
        g += 1


def mixed_gap_expectations(
    *, period: float, step_times: Sequence[float], contact_probability: float, max_steps: int
) -> tuple[float, float]:
    """`gap_expectations` where each run draws its seconds per local step from `step_times`, all equally likely.

    The step time of a run and the gap between its two contacts are independent, so this is the mean over step_times.

    Args:
        period: Seconds between contacts of the server.
        step_times: The possible seconds per local step, [n].
        contact_probability: p = s / N.
        max_steps: K.
    """
    each = [
        gap_expectations(
            period=period, step_time=step_time, contact_probability=contact_probability, max_steps=max_steps
        )
        for step_time in step_times
    ]
    return sum(e for e, _ in each) / len(each), sum(p for _, p in each) / len(each)


class QuAFL:
    """x <- p x + (1 - p) mean_i x_i and x_i <- p x_old + (1 - p) x_i over the s contacted clients, p = 1 / (s + 1).

    x_i is the client's OWN model plus the Delta_i of its steps since the last contact; x_old is the server's model
    before the step. Without the quantiser. Zakerinia et al. 2022 (QuAFL).

    Args:
        num_clients: N.
        x0: Initial parameters of the server and of every client, [dim].
    """

    def __init__(self, *, num_clients: int, x0: Array) -> None:
        self.models = np.tile(np.asarray(x0, dtype=np.float64), (num_clients, 1))
        self.info = StepInfo()

    def step(self, x: Array, arrivals: Sequence[Update]) -> Array:
        require_single(arrivals, "quafl")
        p = 1 / (len(arrivals) + 1)
        trained = {update.client: self.models[update.client] + update.delta for update in arrivals}
        for client, model in trained.items():
            self.models[client] = p * x + (1 - p) * model
        return np.asarray(p * x + (1 - p) * np.mean(list(trained.values()), axis=0))
