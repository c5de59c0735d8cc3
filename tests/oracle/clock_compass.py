"""FedCompass's scheduler in plain Python, after the authors' rules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tests.oracle.clock_events import Log


def compass(
    num_clients: int,
    seconds: Callable[[int, int, int], float],
    server_steps: int,
    low: int = 20,
    high: int = 100,
    tolerance: float = 1.5,
    momentum: float = 0.9,
) -> tuple[Log, list[list[int]]]:
    """Server steps, and the local steps of their arrivals; `seconds(client, run, steps)` is the duration of a run."""
    log, all_steps = Log(), []
    speed: dict[int, float] = {}
    group_of: dict[int, dict[str, Any] | None] = dict.fromkeys(range(num_clients))
    groups: list[dict[str, Any]] = []
    steps, runs = dict.fromkeys(range(num_clients), high), dict.fromkeys(range(num_clients), 0)
    flying: dict[int, tuple[Any, ...]] = {}
    waiting: dict[int, tuple[Any, ...]] = {}
    general: dict[int, tuple[Any, ...]] = {}
    due, now, version, started, refused = set(range(num_clients)), 0.0, 0, 0, 0

    def floor(value: float) -> int:
        return math.floor(value * (1 + 1e-9))

    def assign(client: int) -> None:
        mine, best, where = speed[client], -1, None
        for group in groups:
            q = floor((group["arrival"] - now) / mine)
            if low <= q <= high and q >= best:
                best, where = q, group
        if where is None:
            kept = []
            for group in groups:
                if now < group["latest"]:
                    fastest = min(speed[member] for member in group["members"])
                    q = floor((group["latest"] + high * fastest - now) / mine)
                    kept += [q] if q <= high else []
            best = max(max(kept), low) if kept else high
            where = {
                "arrival": now + best * mine,
                "latest": now + tolerance * best * mine * (1 + 1e-9),
                "members": set(),
            }
            groups.append(where)
        where["members"].add(client)
        group_of[client], steps[client] = where, best
        due.add(client)

    def step(taken: list[tuple[Any, ...]]) -> None:
        nonlocal version
        taken = sorted(taken)
        log.steps.append((now, [one[:6] for one in taken], 0))
        all_steps.append([one[6] for one in taken])
        log.counts.append((started, refused, 0, 0, 0))
        version += 1

    def aggregate(group: dict[str, Any]) -> None:
        nonlocal refused
        members = sorted((client for client in group["members"] if client in waiting), key=lambda c: (speed[c], c))
        refused += sum(client in general for client in members)
        step([waiting[client] for client in members] + [g for c, g in general.items() if c not in members])
        general.clear()
        group["arrival"] = group["latest"] = 0.0
        for client in members:
            group["members"].discard(client)
            group_of[client] = None
            del waiting[client]
        for client in members:
            assign(client)

    while len(log.steps) < server_steps:
        ended = sorted(client for client, run in flying.items() if run[5] == now)
        if due and not ended:
            for client in sorted(due):
                ends = now + seconds(client, runs[client], steps[client])
                flying[client] = (client, runs[client], started, version, now, ends, steps[client])
                runs[client] += 1
                started += 1
            due.clear()
            continue
        alarms = [g["latest"] for g in groups if g["latest"] > 0 and any(c in waiting for c in g["members"])]
        arrival = min((run[5] for run in flying.values()), default=math.inf)
        if arrival <= min(alarms, default=math.inf):
            now = arrival
            client = min(client for client, run in flying.items() if run[5] == now)
            run = flying.pop(client)
            measured = (now - run[4]) / run[6]
            speed[client] = measured if client not in speed else speed[client] + momentum * (measured - speed[client])
            group = group_of[client]
            if group is None:
                step([run])
                assign(client)
            elif now <= group["latest"]:
                waiting[client] = run
                if all(member in waiting for member in group["members"]):
                    aggregate(group)
            else:
                refused += client in general
                general[client] = run
                group["members"].discard(client)
                assign(client)
        else:
            now = min(alarms)
            aggregate(next(g for g in groups if g["latest"] == now and any(c in waiting for c in g["members"])))
    return log, all_steps
