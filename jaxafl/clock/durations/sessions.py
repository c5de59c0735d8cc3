"""Devices that are on and off in turn: a run waits for a session, and the end of a session cuts it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.clock.durations.duration import ByOptions, Draw, Duration, Run, draw_of, reads, share_of
from jaxafl.clock.options import fail_if
from jaxafl.options import Number, number, static

Array = jax.Array


class Sessions(NamedTuple):
    """Sessions of each group of clients, float64."""

    work: Any  # prepared `durations`
    on: Array  # [G, K], lengths in seconds
    begin: Array  # [G, K], beginnings in seconds
    before: Array  # [G, K], seconds on before each session
    period: Array  # [G], seconds until the sessions repeat
    last: Array  # [N], number of sessions before the client leaves


class sessions(Duration):
    """Working time within sessions, in which a client is on: `sessions(uniform(60, 300), exponential(900), off=...)`.

    A client is on from time 0, for the first length of `on`, then off for the first of `off`, and so on. A run starts
    with the model that it has downloaded, even in a break, and works only while its client is on. Time in which it does
    not work counts as hanging, and so does work that a restart throws away. Terms that are added to the sessions are
    not interrupted.

    Args:
        durations: working time of a run in seconds.
        on: lengths of sessions in seconds, drawn by client and index of the session.
        off: lengths of the breaks after them in seconds, drawn in the same way.
        cut: effect of a session's end on a run. `"pause"`: it goes on in the next session. `"restart"`: it begins anew
            in the next session that is long enough for all of it.
        leave: probability that a client leaves for good after a session, in [0, 1). Its run never arrives.
        groups: number of groups g; the clients of a group have the same sessions, and client i is in group i mod g.
            `None`: every client has its own.
        count: number K of drawn sessions of each group, which then repeat in their order.
    """

    durations: Duration
    on: Duration
    off: Duration = dataclasses.field(kw_only=True)
    cut: Literal["pause", "restart"] = static(default="pause", kw_only=True)
    leave: Number = number(default=0.0, least=0, below=1, kw_only=True)
    groups: int | None = static(default=None, kw_only=True)
    count: int = static(default=64, kw_only=True)

    waits = True
    terms = ByOptions(4, lambda one: one.durations.terms + one.on.terms + one.off.terms + 1)

    def check(self, num_clients: int) -> None:
        for name in ("durations", "on", "off"):
            part = getattr(self, name)
            part.check(num_clients)
            is_length, numbers = name != "durations", jax.tree.leaves(part)
            foreign = {"now", "longest", "local_steps"} if is_length else {"now"}
            fail_if(f"sessions: {name}={part!r:.80}", [
                (is_length and any(np.isinf(one).any() for one in numbers), "it is infinite; expected finite lengths. "
                 "For clients that are always on, leave sessions out; for those that leave for good, give leave="),
                (name == "on" and not any(np.any(one) for one in numbers), "it is 0, so no client ever works; expected "
                 "longer sessions"),
                (bool(reads(part, num_clients) & foreign), "it depends on more than client and index; "
                 "expected independent draws. Add other waits outside: sessions(...) + available(...)"),
            ])  # fmt: skip

    def prepare(self, keys: Sequence[Array], num_clients: int) -> Sessions:
        (work, of_on), of_off = (self.durations + self.on + self.off).prepare(keys[:-1], num_clients)

        def length(group: Array, session: Array) -> tuple[Array, Array]:
            one = Run(group, session, jnp.int32(1), jnp.float64(0), jnp.float64(0))
            on, off = draw_of(self.on, of_on, one), draw_of(self.off, of_off, one)
            return on.work + on.hang, off.work + off.hang

        groups = jnp.arange(min(self.groups or num_clients, num_clients), dtype=jnp.int32)
        grid = jax.vmap(jax.vmap(length, (None, 0)), (0, None))
        on, off = grid(groups, jnp.arange(self.count, dtype=jnp.int32))
        begin, before = (jnp.pad(jnp.cumsum(one, axis=1), ((0, 0), (1, 0))) for one in (on + off, on))
        share = share_of(keys[-1], jnp.arange(num_clients))
        odds = jnp.float64(self.leave)
        last = jnp.where(odds > 0, 1 + jnp.floor(jnp.log1p(-share) / jnp.log1p(-odds)), jnp.inf)
        return Sessions(work, on, begin[:, :-1], before[:, :-1], begin[:, -1], last)

    def draw(self, prepared: Sessions, run: Run) -> Draw:
        drawn = draw_of(self.durations, prepared.work, run)
        group = run.client % len(prepared.period)
        on, begin, before, period = (one[group] for one in prepared[1:5])
        now = run.now + drawn.hang
        cycle = jnp.floor(now / period)
        since = jnp.maximum(now - cycle * period, 0)  # rounding of `now / period` may begin a cycle too early
        session = jnp.sum(begin <= since) - 1
        passed = since - begin[session]
        if self.cut == "pause":
            total = before[-1] + on[-1]
            worked = cycle * total + before[session] + jnp.minimum(passed, on[session]) + drawn.work
            cycle = jnp.maximum(jnp.ceil(worked / total) - 1, 0)
            rest = worked - cycle * total
            session = jnp.maximum(jnp.sum(before < rest) - 1, 0)
            ends = cycle * period + begin[session] + rest - before[session]
        else:
            ahead = (jnp.arange(self.count) - session - 1) % self.count
            ahead = jnp.min(jnp.where(on >= drawn.work, ahead, self.count))
            later = session + 1 + jnp.where(passed + drawn.work <= on[session], -1, ahead)
            new = cycle * period + jnp.where(later >= self.count, period, 0) + begin[later % self.count]
            ends = jnp.where(later == session, now, new) + drawn.work
            ends = jnp.where((later > session) & (ahead == self.count), jnp.inf, ends)
            session = later
        gone = cycle * self.count + session >= prepared.last[run.client]
        wait = jnp.maximum(ends - run.now - drawn.work, 0)
        return Draw(drawn.work, jnp.where(gone | jnp.isinf(drawn.work), jnp.inf, wait))
