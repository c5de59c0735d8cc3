"""Random configurations of all clocks. A case is rebuilt from its name, and `schedules.json` keeps its schedule.

A name is `protocol-group-number`. The cases of a group share the static options and the kind of durations. Numbers,
seeds and recordings are drawn anew for every case. `python -m tests.clock.schedules [protocol ...]` writes the file.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import hashlib
import itertools
import json
import pathlib
import sys
import tempfile
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from jaxafl import clock as c

FILE = pathlib.Path(__file__).with_name("schedules.json")
PER_STEP = ("time", "taken", "runs_begun", "runs_refused", "runs_stopped", "runs_lost", "starts_skipped")
OF_RUNS = ("client", "run", "run_id", "version", "reference", "local_steps", "kind", "multiplicity")
OF_RUNS += ("started", "arrived")
COLUMNS = PER_STEP + OF_RUNS
TIMES = ("time", "started", "arrived")
ROUNDED = ("available", "availability", "suspension", "sessions", "'poisson'", "compass(", "mac_network(")
ROUNDED += ("device_trace(megabytes", "split='population'")
"""What a clock has in its text if the last digits of its seconds depend on the compiler or on Python's floats."""
GROUPS = {"free_running": 80, "synchronous": 26, "sampled": 10, "bernoulli": 5, "interrupting": 8, "stale_rounds": 10,
          "semi_async": 8, "every_buffer": 7, "harmonic": 8, "ringleader": 8, "rounds_until_all": 6, "routed": 8,
          "compass": 10, "warm_up": 12}  # fmt: skip
CASES = 3


@dataclasses.dataclass
class Case:
    """Arguments of `schedule`."""

    clock: Any
    num_clients: int
    local_steps: Any
    server_steps: int
    seed: int

    def schedule(self) -> Any:
        return c.schedule(self.clock, self.num_clients, self.local_steps, self.server_steps, self.seed)


@functools.cache
def measured() -> str:
    """Writes small files of device traces, and returns their folder."""
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "device_traces").mkdir()
    draw = np.random.default_rng(0)
    offsets = np.array([0, 3, 8, 20])
    gaps, rates = draw.uniform(0.2, 3.0, 20), draw.uniform(0.5, 6.0, 20) * (draw.uniform(size=20) < 0.7) + 0.01
    ends = np.concatenate([np.cumsum(gaps[a:b]) for a, b in itertools.pairwise(offsets)])
    scores = {"Google Nexus S": 400, "Xiaomi Redmi Note 7 Pro": 6400, "Google Pixel 4": 25600, "other": 12000}
    np.savez(folder / "device_traces" / "bandwidth_traces_hsdpa_fcc.npz", time_s=ends, mbps=rates, offsets=offsets)
    start, length = np.cumsum(draw.uniform(20, 90, 20)), draw.uniform(5, 20, 20)
    np.savez(
        folder / "device_traces" / "availability_flash_1000.npz",
        start=start,
        end=start + length,
        offsets=offsets,
        trace_start=start[offsets[:-1]] - 3.0,
        trace_end=(start + length)[offsets[1:] - 1] + 7.0,
    )
    packed = gzip.compress(json.dumps(scores).encode())
    (folder / "device_traces" / "flash_benchmark2score.json.gz").write_bytes(packed)
    return str(folder)


def table(draw: Random, clients: int, runs: int = 400, *, never: float = 0.0) -> np.ndarray:
    """Returns recorded seconds [client, run] with ties; some runs never arrive."""
    seconds = np.array([[draw.choice([0.5, 1.0, 1.5, 2.25]) for _ in range(runs)] for _ in range(clients)])
    return np.where([[draw.random() < never for _ in range(runs)] for _ in range(clients)], np.inf, seconds)


def each(draw: Random, values: list[float], clients: int) -> np.ndarray:
    """Returns a number for every client."""
    return np.array([draw.choice(values) for _ in range(clients)])


DURATIONS: dict[str, Callable[[Random, int], Any]] = {
    "ties": lambda d, n: c.constant(each(d, [1.0, 2.0, 2.5, 4.0], n)),
    "constant": lambda d, n: c.constant(d.choice([1.0, 0.3])),
    "uniform": lambda d, n: c.uniform(d.choice([0.3, 1.0]), d.choice([1.1, 5.0])),
    "exponential": lambda d, n: c.exponential(d.choice([0.7, 2.0])),
    "lognormal": lambda d, n: c.lognormal(d.choice([0.0, 0.5]), d.choice([0.5, 1.0])),
    "per client": lambda d, n: c.exponential(each(d, [0.5, 2.0, 8.0], n)) + c.uniform(0.1, each(d, [0.2, 0.9], n)),
    "per step": lambda d, n: c.uniform(1, 5, per="client") + d.choice([0.25, 0.5]) * c.half_normal(0.7, per="step"),
    "stragglers": lambda d, n: c.uniform(1, 3) * c.stragglers(0.3, d.choice([2.0, 5.0])),
    "listed stragglers": lambda d, n: c.lognormal(0.0, 0.5, per="step") * c.stragglers(factor=3.0, clients=[0, 2]),
    "transmission": lambda d, n: c.uniform(1, 3, per="client") + c.transmission(d.choice([1e6, 3e6]), 1e6, 0.3),
    "network": lambda d, n: c.mac_network(17.0, d.choice([2.2, 9.0])) + c.exponential(0.05),
    "unfrozen network": lambda d, n: c.mac_network(17.0, d.choice([2.2, 9.0]), spread="speed", freeze=False),
    "tiers": lambda d, n: c.three_tier("large", gamma=d.choice([0.5, 1.0])),
    "tiers of the population": lambda d, n: c.three_tier("mild", per="client", split="population") + c.uniform(0, 1),
    "link": lambda d, n: c.uniform(1, 3) + c.link(each(d, [1e6, 2e6], n), 4e6, 0.3, bytes=d.choice([1e6, 3e6])),
    "shared link": lambda d, n: c.uniform(1, 3) + c.link(shared=d.choice([1e6, 4e6]), bytes=1e6),
    "phones": lambda d, n: c.device_trace(d.choice(["femnist_cnn", "reddit_lstm"]), bandwidth=False),
    "phones and links": lambda d, n: c.device_trace(
        megabytes=d.choice([0.5, 2.0]), phones="benchmark", data_dir=measured()
    ),
    "available phones": lambda d, n: c.device_trace(bandwidth=False, availability=True, data_dir=measured()),
    "available": lambda d, n: c.uniform(1, 3) + c.available(d.choice([22, 6]), 8, zones=3, day=20.0),
    "suspension": lambda d, n: c.uniform(1, 3) + c.suspension(d.choice([0.2, 0.6])),
    "sessions": lambda d, n: c.sessions(c.uniform(1, 3), c.exponential(d.choice([2.0, 6.0])), off=c.uniform(0, 4)),
    "restarted sessions": lambda d, n: c.sessions(
        c.exponential(1.0), c.uniform(1, 9), off=c.exponential(d.choice([1.0, 5.0])), cut="restart", groups=3, count=16
    ),
    "left sessions": lambda d, n: c.sessions(c.uniform(1, 3), c.constant(5.0), off=c.constant(1.0), leave=0.01),
    "recorded": lambda d, n: c.recorded(table(d, n)),
    "recorded steps": lambda d, n: c.recorded(table(d, n) / 4, per="step"),
}
NEVER = {"left sessions"}  # clients may be away for ever


def hours(fixed: Random, free: Random) -> Any:
    """Returns hours outside which clients are not drawn."""
    return c.available(free.choice([22, 10]), 6, zones=fixed.choice([1, 5]), day=20.0)


def free_running(fixed, free, clients, durations):
    """Draws options of `free_running` that go together."""
    flying = fixed.choice([clients, fixed.randint(1, clients)])
    starts = fixed.choice(["arrival", "arrival", "before", "step", "step", "skew", "rate"])
    bound = fixed.choice([None, None, "refuse", "stop", "wait"])
    if (starts in ("before", "skew", "rate") and bound in ("stop", "wait")) or (starts == "step" and bound == "wait"):
        bound = "refuse"
    most = fixed.randint(1, min(flying, 6) if starts in ("step", "skew") else 6)
    given: dict[str, Any] = {"concurrency": flying, "buffer": most}
    if bound:
        given |= {"max_staleness": fixed.choice([1, 2, 5, "sqrt"]), "on_bound": bound}
    if starts in ("arrival", "before", "rate") and bound != "wait" and fixed.random() < 0.65:
        given |= {"period": free.choice([0.5, 1.7]), "windows": fixed.choice(["constant", "poisson"])}
        if most == 1 or fixed.random() < 0.5:
            given |= {"buffer": None}
    given |= {"before_step": True} if starts == "before" else {}
    given |= {"dispatch": "step", "start_skew": starts == "skew"} if starts in ("step", "skew") else {}
    if starts == "rate":
        given |= {"rate": free.choice([0.7, 3.0]), "interval": fixed.choice(["poisson", "constant"])}
    lost = free.choice([0.1, 0.4])
    given |= fixed.choice([{}, {}, {"lost": lost}, {"lost": np.linspace(0, lost, clients)}])
    select = fixed.choice(["uniform", "uniform", "weights", "hours", "starts"])
    if select == "weights" and (flying < clients or starts == "rate"):
        given["weights"] = each(free, [1.0, 2.0, 7.0, 0.3], clients)
    if select == "hours" and starts in ("arrival", "step") and bound in (None, "refuse"):
        given["hours"] = hours(fixed, free)
    if select == "starts" and starts in ("arrival", "before") and bound in (None, "refuse"):
        # all M_c runs of equal length arrive together, so that M_c different clients can start
        rounds = [free.sample(range(clients), flying) for _ in range(1200 // flying + 2)]
        return c.trace(c.free_running(durations=c.constant(1.0), **given), starts=np.concatenate(rounds))
    return c.free_running(durations=durations, **given)


def synchronous(fixed, free, clients, durations):
    """Draws options of `synchronous` that go together."""
    given: dict[str, Any] = {"cohort": fixed.choice([None, fixed.randint(1, clients), fixed.randint(1, clients)])}
    cohort = given["cohort"]
    if cohort:
        given["replacement"] = fixed.random() < 0.35 or "suspension" in repr(durations)
        if not given["replacement"] and fixed.random() < 0.4:
            given["extra"] = fixed.randint(0, clients - cohort)
    given |= fixed.choice([{}, {"deadline": free.choice([1.2, 2.0])}, {"deadline_quantile": free.choice([0.3, 0.6])}])
    given |= fixed.choice([{}, {"lost": free.choice([0.1, 0.4])}])
    chosen = fixed.choice(["uniform", "weights", "hours", "sets"])
    size = (cohort or clients) + given.get("extra", 0)
    if chosen == "weights" and cohort and (size < clients or given["replacement"]):
        given["weights"] = each(free, [1.0, 2.0, 7.0], clients)
    if chosen == "hours":
        given["hours"] = hours(fixed, free)
    if chosen == "sets" and not given.get("extra"):
        drawn = (lambda: free.choices(range(clients), k=size)) if given.get("replacement") else None
        drawn = drawn or (lambda: free.sample(range(clients), size))
        made = c.synchronous(durations=durations, **given)
        never = 0.3 if "deadline" in given else 0.0
        return c.trace(made, durations=table(free, clients, never=never), sets=np.array([drawn() for _ in range(900)]))
    return c.synchronous(durations=durations, **given)


def sampled(fixed, free, clients, durations):
    drawn = fixed.randint(1, clients)
    send, receive = fixed.choice(["overwrite", "hold"]), fixed.choice(["keep", "consume"])
    made = c.sampled(drawn=drawn, durations=durations, receive_buffer=receive, send_buffer=send)
    sets = np.array([free.choices(range(clients), k=drawn) for _ in range(200)])
    return c.trace(made, sets=sets) if fixed.random() < 0.3 else made


def bernoulli(fixed, free, clients, durations):
    upload = fixed.choice([lambda: free.choice([0.3, 0.7]), lambda: each(free, [0.0, 0.2, 0.9, 1.0], clients)])()
    made = c.bernoulli(upload, free.choice([1.0, 0.5]))
    masks = {
        name: np.array([each(free, [0, 1], clients) for _ in range(200)], bool) for name in ("uploads", "downloads")
    }
    return c.trace(made, **masks) if fixed.random() < 0.3 else made


def interrupting(fixed, free, clients, durations):
    contacted = fixed.randint(1, clients)
    made = c.interrupting(period=free.choice([1.0, 7.3]), contacted=contacted, durations=durations)
    sets = np.array([free.sample(range(clients), contacted) for _ in range(200)])
    return c.trace(made, sets=sets) if fixed.random() < 0.3 else made


def stale_rounds(fixed, free, clients, durations):
    size, oldest, twice = fixed.randint(1, clients), fixed.choice([0, 4, 15]), fixed.random() < 0.5
    made = c.stale_rounds(participants=size, max_staleness=oldest, replacement=twice, durations=durations)
    if fixed.random() < 0.4:
        sets = np.array([free.sample(range(clients), size) for _ in range(200)])
        return c.trace(made, sets=sets, stale=np.array([free.choices(range(oldest + 1), k=size) for _ in range(200)]))
    return made


def semi_async(fixed, free, clients, durations):
    return c.semi_async(fraction=free.choice([0.1, 0.5, 1.0]), lag=fixed.choice([0, 1, 4]), durations=durations)


def every_buffer(fixed, free, clients, durations):
    return c.every_buffer(buffers=fixed.randint(1, min(clients, 4)), durations=durations)


def harmonic(fixed, free, clients, durations):
    batch = free.choice([0.0, 0.7, 1.5, 2.0]) * clients
    return c.harmonic(batch=batch, stop=fixed.random() < 0.5, durations=durations)


def ringleader(fixed, free, clients, durations):
    return c.ringleader(restart=fixed.choice(["held", "newest"]), durations=durations)


def rounds_until_all(fixed, free, clients, durations):
    return c.rounds_until_all(durations=durations)


def routed(fixed, free, clients, durations):
    odds = each(free, [1.0, 2.0, 5.0], clients)
    probabilities = odds / odds.sum() if fixed.random() < 0.5 else None
    return c.routed(
        tasks=fixed.choice([None, fixed.randint(1, 2 * clients)]), durations=durations, probabilities=probabilities
    )


def compass(fixed, free, clients, durations):
    numbers = {"tolerance": free.choice([1.1, 1.5]), "momentum": free.choice([0.0, 0.9])}
    return c.compass(durations=durations, min_steps=fixed.choice([1, 2]), max_steps=fixed.choice([6, 9]), **numbers)


def warm_up(fixed, free, clients, durations):
    some = fixed.randint(1, clients)
    inner = fixed.choice([
        lambda: c.free_running(concurrency=some, durations=durations),
        lambda: c.free_running(concurrency=some, buffer=2, lost=free.choice([0.1, 0.3]), durations=durations),
        lambda: c.free_running(concurrency=clients, dispatch="step", buffer=min(3, clients), durations=durations),
        lambda: c.synchronous(cohort=some, durations=durations),
        lambda: c.bernoulli(each(free, [0.2, 0.9], clients), free.choice([1.0, 0.5])),
    ])()  # fmt: skip
    return c.warm_up(inner, first=fixed.choice(["complete", "next", "all"]))


def case(name: str) -> Case:
    """Returns the configuration of a name."""
    protocol, group, number = name.split("-")
    fixed, free = Random(f"{protocol} {group}"), Random(name)
    clients = fixed.choice([4, 7, 20]) if protocol in ("compass", "sampled") else fixed.choice([3, 7, 20, 50])
    kinds = [kind for kind in DURATIONS if kind not in NEVER or protocol in ("free_running", "routed")]
    # groups go through the kinds in turn; protocols begin at different ones
    kind = kinds[7 * (int(group) + 5 * list(GROUPS).index(protocol)) % len(kinds)]
    local_steps = fixed.choice([1, 5, np.arange(clients) % 3 + 1, 1 + (np.arange(clients)[:, None] + np.arange(8)) % 4])
    server_steps = fixed.choice([60, 100, 150])
    clock = globals()[protocol](fixed, free, clients, DURATIONS[kind](free, clients))
    seed = free.randrange(4) if number == "1" else free.randrange(2**40)
    return Case(clock, clients, local_steps, server_steps, seed)


def columns(schedule: Any) -> dict[str, np.ndarray]:
    """Returns the columns of a schedule, as integers or float64."""
    found = {name: getattr(schedule, name) for name in PER_STEP} | {n: schedule.of_arrivals(n) for n in OF_RUNS}
    return {name: np.asarray(found[name], np.float64 if name in TIMES else np.int64) for name in COLUMNS}


def digest(values: np.ndarray) -> str:
    return hashlib.sha256(values.tobytes()).hexdigest()[:8]


def figures(values: np.ndarray) -> list[float]:
    """Returns sums and entries by which seconds are compared if their last digits may change."""
    some = values[np.linspace(0, len(values) - 1, 5).astype(int)] if len(values) else values
    weights = 1 + np.arange(len(values)) % 7
    return [float(values.sum()), float((weights * values).sum()), *some.tolist()]


def recorded(name: str) -> dict[str, Any]:
    """Returns what is kept of a case."""
    made = case(name)
    found = columns(made.schedule())
    kept = {"columns": " ".join(digest(found[column]) for column in COLUMNS)}
    rounded = any(word in repr(made.clock) for word in ROUNDED)
    return kept | ({"seconds": {n: figures(found[n]) for n in TIMES}} if rounded else {})


def main(protocols: list[str]) -> None:
    """Writes the schedules of all valid cases of some protocols, or of all, and prints the others."""
    kept: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name in (f"{p}-{group}-{number}" for p in protocols for group in range(GROUPS[p]) for number in range(CASES)):
        try:
            kept[name] = recorded(name)
        except (ValueError, TypeError) as error:
            print(f"{name}: {error}"[:200], flush=True)
    FILE.write_text("{\n" + ",\n".join(f"{json.dumps(n)}: {json.dumps(v)}" for n, v in kept.items()) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:] or list(GROUPS))
