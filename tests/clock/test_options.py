"""Options that cannot be: one table of (clock, option that the message names, class of the error)."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from jaxafl import clock as c

CLIENTS = 4
ONE = c.constant(1.0)
STEP = c.constant(1.0, per="step")


free = partial(c.free_running, concurrency=2, durations=ONE)
rounds = partial(c.synchronous, cohort=2)
stale = partial(c.stale_rounds, participants=2, max_staleness=3, durations=ONE)
contacts = partial(c.interrupting, period=1.0, contacted=2, durations=STEP)
safa = partial(c.semi_async, fraction=0.5, lag=1, durations=ONE)
tiers = partial(c.tiers, regions=[0, 0, 1, 1], durations=ONE)
SHARED, HOURS = c.link(shared=2.0, bytes=3.0), c.available(22, 6)
SESSION = c.sessions(ONE, ONE, off=ONE)
BAD: list[tuple[Callable[[], Any], str, type[Exception]]] = [
    # probabilities, numbers and names
    (lambda: c.bernoulli(1.2), "upload", ValueError),
    (lambda: c.bernoulli(np.ones(3)), "upload", ValueError),
    (lambda: contacts(contacted=5), "contacted", ValueError),
    (lambda: contacts(durations=HOURS + 1), "durations", ValueError),
    (lambda: c.sampled(drawn=1.5, durations=ONE), "drawn", TypeError),
    (lambda: c.sampled(drawn=2, durations=ONE, send_buffer="keep"), "send_buffer", ValueError),
    (lambda: c.sampled(drawn=2, durations=5.0), "durations", TypeError),
    (lambda: safa(fraction=0.0), "fraction", ValueError),
    (lambda: stale(participants=5), "participants", ValueError),
    (lambda: stale(replacement="yes"), "replacement", TypeError),
    (lambda: rounds(cohort=3, extra=6), "extra", ValueError),
    (lambda: c.synchronous(extra=1), "extra", ValueError),
    (lambda: c.synchronous(replacement=True), "replacement", ValueError),
    (lambda: rounds(deadline=1.0, deadline_quantile=0.5), "deadline_quantile", ValueError),
    (lambda: rounds(lost=np.full(3, 0.1)), "lost", ValueError),
    (lambda: c.every_buffer(buffers=5, durations=ONE), "buffers", ValueError),
    (lambda: c.routed(durations=ONE, probabilities=np.full(4, 0.2)), "probabilities", ValueError),
    (lambda: c.routed(durations=ONE, probabilities=np.array([0.5, 0.5, 0, 0])), "probabilities", ValueError),
    (lambda: c.routed(durations=c.mac_network(17.0, 2.2)), "freeze", ValueError),
    (lambda: c.routed(durations=1 + SHARED), "link", ValueError),
    (lambda: tiers(regions=[0, 0, 2, 2]), r"regions names \[0, 2\]", ValueError),
    (lambda: tiers(regions=[0, 0, 1]), "regions has 3 entries", ValueError),
    (lambda: tiers(regions=[0, 0, 1, -1]), "regions", ValueError),
    (lambda: tiers(regions=[0, 0, 1, 0.5]), "regions", ValueError),
    *((lambda up=up: tiers(up=up), "up", ValueError) for up in (-1.0, np.inf, [0.1, np.nan], [1.0, 1.0, 1.0])),
    (lambda: tiers(down=-0.1), "down", ValueError),
    (lambda: tiers(after=0), "after", ValueError),
    (lambda: c.regional_rounds(regions=[0, 0, 2, 2], durations=ONE), r"regions names \[0, 2\]", ValueError),
    (lambda: c.regional_rounds(regions=[0, 0, 1, 1], durations=ONE, cohort=0), "cohort", ValueError),
    (lambda: c.regional_rounds(regions=[0, 0, 1, 1], durations=c.link(shared=1e6, bytes=1e6)), "shared", ValueError),
    (lambda: tiers(durations=c.mac_network(17.0, 2.2)), "freeze", ValueError),
    (lambda: c.compass(durations=ONE, min_steps=101), "min_steps", ValueError),
    (lambda: c.warm_up(free(max_staleness=3)), "max_staleness", ValueError),
    (lambda: c.warm_up(stale()), "aged", ValueError),
    (lambda: c.warm_up(c.warm_up(free())), "protocol", ValueError),
    (lambda: c.warm_up(free(concurrency=5)), "concurrency", ValueError),
    # free_running
    (lambda: free(concurrency=None), "concurrency", ValueError),
    (lambda: free(max_arrivals=5), "max_arrivals", TypeError),
    (lambda: free(max_staleness=0), "max_staleness", ValueError),
    (lambda: free(on_bound="stop"), "max_staleness", ValueError),
    (lambda: free(period=0.0), "period", ValueError),
    (lambda: free(period=1.0, dispatch="step", start_skew=True), "start_skew", ValueError),
    (lambda: free(period=1.0, max_staleness=2, on_bound="wait"), "period", ValueError),
    (lambda: free(windows="poisson"), "windows", ValueError),
    (lambda: free(buffer=3, dispatch="step"), "buffer", ValueError),
    (lambda: free(before_step=True, dispatch="step"), "before_step", ValueError),
    (lambda: free(start_skew=True), "start_skew", ValueError),
    (lambda: free(before_step=True, max_staleness=2, on_bound="stop"), "on_bound", ValueError),
    (lambda: free(dispatch="step", start_skew=True, max_staleness=2, on_bound="stop"), "on_bound", ValueError),
    (lambda: free(lost=1.0), "lost", ValueError),
    (lambda: free(rate=1.0, dispatch="step"), "rate", ValueError),
    (lambda: free(interval="constant"), "interval", ValueError),
    (lambda: free(closes=c.after(2), buffer=2), "closes", ValueError),
    (lambda: free(bound=c.stop(2), max_staleness=2), "bound", ValueError),
    (lambda: free(bound=c.stop(2), begins=c.before_step()), "on_bound", ValueError),
    (lambda: free(begins=c.at_rate(1.0), rate=1.0), "begins", ValueError),
    (lambda: free(select=c.within(HOURS), weights=np.ones(4)), "select", ValueError),
    # draws by weight and hours
    *(
        case
        for make in (free, rounds)
        for case in (
            (lambda make=make: make(select="samples", weights=np.ones(4)), "select", ValueError),
            (lambda make=make: make(weights=np.array([1.0, 0, 0, 0])), "weight", ValueError),
            (lambda make=make: make(weights=np.ones(3)), "weights", ValueError),
            (lambda make=make: make(hours=c.uniform(1, 5)), "hours", TypeError),
            (lambda make=make: make(hours=c.available(22, 25)), "end", ValueError),
        )
    ),
    (lambda: c.synchronous(select="samples"), "select", ValueError),
    (lambda: free(concurrency=4, weights=np.ones(4)), "weights", ValueError),
    (lambda: free(hours=HOURS, max_staleness=2, on_bound="stop"), "on_bound", ValueError),
    (lambda: free(hours=HOURS, before_step=True), "before_step", ValueError),
    # recordings
    (lambda: c.trace(c.bernoulli(0.5), uploads=np.ones((9, 2), bool)), "uploads", ValueError),
    (lambda: c.trace(c.bernoulli(0.5), downloads=np.full((9, 4), 0.5)), "downloads", ValueError),
    (lambda: c.trace(c.bernoulli(0.5), sets=np.zeros((3, 1), int)), "sets", TypeError),
    (lambda: c.trace(c.bernoulli(0.5), durations=np.ones((4, 9))), "durations", TypeError),
    (lambda: c.trace(contacts(), sets=np.zeros((9, 3), int)), "sets", ValueError),
    (lambda: c.trace(contacts(), sets=np.full((9, 2), 1)), "sets", ValueError),
    (lambda: c.trace(stale(), stale=np.full((9, 2), 4)), "stale", ValueError),
    (lambda: c.trace(free(), starts=[0, 7]), "starts", ValueError),
    (lambda: c.trace(free(max_staleness=2, on_bound="stop"), starts=[0, 1]), "starts", ValueError),
    (lambda: free(durations=c.recorded([[1.0, np.nan, 2.0], [1.0], [1.0], [1.0]])), "durations", ValueError),
    (lambda: free(durations=c.recorded([[1.0], [1.0, -1.0], [1.0], [1.0]])), "durations", ValueError),
    (lambda: free(durations=c.recorded([[1.0]])), "durations", ValueError),
    (lambda: c.recorded([["a"], [1.0]]), "durations", TypeError),
    # durations
    (lambda: free(durations=c.uniform(np.array([1.0, 5, 1, 1]), 3)), "low", ValueError),
    (lambda: free(durations=ONE + "a"), "value", TypeError),
    *(
        (lambda who=who: free(durations=ONE * c.stragglers(clients=who)), "client", ValueError)
        for who in ([0, 7], [1.5], [1, 1])
    ),
    (lambda: free(durations=ONE * c.available(8, 9)), "added", ValueError),
    (lambda: free(durations=c.mac_network(1.0, 1.0) + HOURS), "freeze", ValueError),
    (lambda: free(durations=c.link()), "speed", ValueError),
    (lambda: free(durations=c.link(1.0)), "bytes", ValueError),
    (lambda: free(durations=c.link(0.0, bytes=1.0)), "up", ValueError),
    (lambda: free(durations=c.link(1.0, shared=2.0, bytes=3.0)), "up", ValueError),
    (lambda: free(durations=2 * SHARED), "shared", ValueError),
    (lambda: free(durations=SHARED + SHARED), "shared", ValueError),
    (lambda: free(durations=SESSION + SHARED), "shared", ValueError),
    (lambda: free(durations=c.sessions(SHARED, ONE, off=ONE)), "shared", ValueError),
    (lambda: safa(durations=1 + SHARED), "shared", ValueError),
    (lambda: free(durations=c.sessions(ONE, 5.0, off=ONE)), "on", TypeError),
    (lambda: free(durations=c.sessions(HOURS, ONE, off=ONE)), "durations", ValueError),
    (lambda: free(durations=c.sessions(ONE, c.constant(np.inf), off=ONE)), "on", ValueError),
    (lambda: free(durations=c.device_trace()), "megabytes", ValueError),
    (lambda: free(durations=c.device_trace(megabytes=3, bandwidth=False)), "megabytes", ValueError),
]


@pytest.mark.parametrize("case", range(len(BAD)))
def test_what_cannot_be_is_refused_by_its_name(case: int) -> None:
    make, name, error = BAD[case]
    with pytest.raises(error, match=name):
        c.schedule(make(), CLIENTS, 1, 2)


EMPTY = ("schedule", "trace", "worked", "at_arrival", "before_step", "uniformly", "by_samples")
PARTS = [getattr(c, name) for name in c.__all__ if name[0].islower() and name not in EMPTY]


@pytest.mark.parametrize("part", PARTS)
def test_every_option_is_documented(part: Any) -> None:
    described = inspect.cleandoc(part.__doc__).split("Args:")[1]
    declared = dataclasses.fields(part) if isinstance(part, type) else ()
    hidden = {field.name for field in declared if field.name[0] == "_" or {"recording", "option"} & {*field.metadata}}
    for option in {*inspect.signature(part).parameters} - hidden:
        assert re.search(rf"^    {option}: \S", described, re.MULTILINE), option
