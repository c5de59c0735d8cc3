"""Published algorithms that are a server on a certain clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import optax

from jaxafl.clock import Clock, Duration, constant, free_running, grace, regional_rounds, synchronous, tiers
from jaxafl.options import Number, UserError, as_numbers, check_flag, check_number, check_whole
from jaxafl.server import Server, asysg, delayed_nesterov, fedat, fedbuff, fedopt, fedstale, halos, hierfavg

REFERENCES = {
    "async_diloco": ("liu2024",),
    "diloco": ("douillard2023",),
    "fedat_tiers": ("chai2021",),
    "fedvarp": ("jhunjhunwala2022",),
    "halos_regions": ("kim2025", "liu2024"),
    "hierfavg_edges": ("liu2020",),
    "muloco": ("therien2025",),
    "naive_optimal": ("maranjyan2025",),
    "rennala": ("tyurin2023",),
    "ringmaster": ("maranjyan2025",),
}
"""Keys of `jaxafl.references.BIBTEX` by preset, for listings; a run cites its server and its clock."""
__all__ = ["Preset", *REFERENCES]


class Preset(NamedTuple):
    """Server and clock of an algorithm, for `Simulation(data, model, client, *preset)`."""

    server: Server
    clock: Clock


def ringmaster(
    clients: int,
    durations: Duration,
    *,
    max_staleness: int | Literal["sqrt"],
    learning_rate: Number = 0.1,
    stop: bool = True,
) -> Preset:
    """Builds Ringmaster ASGD: asynchronous SGD that applies no gradient with τ >= R.

    It is `asysg` on `free_running(concurrency=N, max_staleness=R)`. One gradient per run, `Client(optax.sgd,
    learning_rate=1.0, steps=1)`. In a shell: `--server asysg --clock free_running --clock.concurrency N
    --clock.max-staleness R --clock.on-bound stop`. Checked against the authors' poster and code.

    Args:
        clients: N, which all train all the time.
        durations: duration of a run in simulated seconds.
        max_staleness: R >= 1. Theory: max(1, ⌈σ²/ε⌉). 1 keeps fresh gradients only. `"sqrt"`: R_t = ⌊√(t + 1)⌋.
        learning_rate: η. Theory: min(1/(2RL), ε/(4Lσ²)).
        stop: stop runs whose staleness reaches R (Algorithm 2), or ignore their gradients (Algorithm 1).

    References:
        Maranjyan, Tyurin & Richtárik, "Ringmaster ASGD: the first asynchronous SGD with optimal time complexity", ICML
        2025.
    """
    check_flag("presets.ringmaster", "stop", stop)
    clock = free_running(
        concurrency=clients, durations=durations, max_staleness=max_staleness, on_bound="stop" if stop else "refuse"
    )
    return Preset(asysg(learning_rate), clock)


def rennala(clients: int, durations: Duration, *, batch: int, learning_rate: Number = 0.1, stop: bool = True) -> Preset:
    """Builds Rennala SGD: steps on the mean of B gradients at the newest model, from whichever clients send them.

    It is `fedbuff` without a discount on `free_running(concurrency=N, buffer=B, max_staleness=1)`. One gradient per
    run, `Client(optax.sgd, learning_rate=1.0, steps=1)`. In a shell: `--server fedbuff --server.staleness none
    --server.learning-rate 0.1 --client.learning-rate 1.0 --client.steps 1 --clock free_running --clock.concurrency N
    --clock.buffer B --clock.max-staleness 1 --clock.on-bound stop`. Checked against the authors' code.

    Args:
        clients: N, which all train all the time.
        durations: duration of a run in simulated seconds.
        batch: B >= 1. Theory: max(1, ⌈σ²/ε⌉).
        learning_rate: η. Theory: 1/L.
        stop: stop the runs from the last model at each step, as the authors' code does. Otherwise they are refused when
            they end.

    References:
        Tyurin & Richtárik, "Optimal time complexities of parallel stochastic optimization methods under a fixed
        computation model", NeurIPS 2023, Method 4.
    """
    check_flag("presets.rennala", "stop", stop)
    clock = free_running(
        concurrency=clients, buffer=batch, durations=durations, max_staleness=1, on_bound="stop" if stop else "refuse"
    )
    return Preset(fedbuff(learning_rate, staleness="none"), clock)


def naive_optimal(times: Sequence[float] | np.ndarray, *, fastest: int, learning_rate: Number = 0.1) -> Preset:
    """Builds Naive Optimal ASGD: asynchronous SGD on the m fastest clients, all others idle.

    It is `asysg` on `free_running(concurrency=m, durations=constant(times))`, with weights 1 for the m fastest clients
    and 0 for the others. One gradient per run, `Client(optax.sgd, learning_rate=1.0, steps=1)`. In a shell: `--server
    asysg --clock free_running --clock.concurrency M --clock.durations constant(TIMES) --clock.weights @WEIGHTS.npy`.
    The theory is for equally distributed data: samples of the others are never used. The rule follows a third party's
    text.

    Args:
        times: τ_i [N], seconds per gradient of each client; finite and above 0.
        fastest: m in 1 .. N; of clients with equal times, the first. Theory: m* = argmin_m h_m (1 + σ²/(mε)), with the
            harmonic mean h_m of the m smallest times, which is `jaxafl.theory.optimal_times.homogeneous(times,
            effort).clients`.
        learning_rate: η.

    Raises:
        UserError: times are not one number above 0 per client, or there are fewer than m clients.

    References:
        Maranjyan, Tyurin & Richtárik, "Ringmaster ASGD: the first asynchronous SGD with optimal time complexity", ICML
        2025.
    """
    seconds = as_numbers("presets.naive_optimal", "times", times)
    check_number("presets.naive_optimal", "times", seconds, above=0, per_client=True)
    check_whole("presets.naive_optimal", "fastest", fastest, most=len(seconds))
    chosen = np.zeros(len(seconds))
    chosen[np.argsort(seconds, kind="stable")[:fastest]] = 1
    clock = free_running(
        concurrency=fastest, durations=constant(seconds), weights=chosen if fastest < len(seconds) else None
    )
    return Preset(asysg(learning_rate), clock)


def fedvarp(cohort: int, durations: Duration, *, learning_rate: Number = 1.0) -> Preset:
    """Builds FedVARP: x ← x + η ((1/n) Σ_{i in S} (Δ_i - h_i) + (1/N) Σ_{i=1..N} h_i), then h_i ← Δ_i for i in S.

    S is the cohort of a round, and h_i the last update of client i, 0 before the first. It is `fedstale` with memory 1
    and uniform weights on `synchronous(cohort=n)`. In a shell: `--server fedstale --server.memory 1.0 --server.weights
    uniform --clock synchronous --clock.cohort n`. The rule follows a third party's code, that of FedStale's authors.

    Args:
        cohort: n, clients of a round, drawn without replacement.
        durations: duration of a run in simulated seconds.
        learning_rate: η.

    References:
        Jhunjhunwala, Sharma, Nagarkatti, Joshi, "FedVARP: tackling the variance due to partial client participation in
        federated learning", UAI 2022.
    """
    server = fedstale(learning_rate, memory=1.0, weights="uniform")
    return Preset(server, synchronous(cohort=cohort, durations=durations))


def diloco(
    durations: Duration, *, workers: int | None = None, learning_rate: Number = 0.7, momentum: Number = 0.9
) -> Preset:
    """Builds DiLoCo: rounds of many local steps, and a Nesterov step on the mean update D.

    m ← β m + D, x ← x + η (D + β m). It is `fedopt(optax.sgd, η, momentum=β, nesterov=True)` on `synchronous`. Workers
    keep the state of their optimiser: `Client(optax.adamw, learning_rate=4e-4, weight_decay=0.1, steps=500,
    reset="never")`. In a shell: `jaxafl run FILE.py`, since `--server fedopt` takes no momentum there. The numbers are
    the paper's, which we know from other texts; three independent codes agree on the rule. MaxText has η = 0.3, and
    NoLoCo's code takes heavy-ball momentum, 0.3.

    Args:
        durations: duration of a run in simulated seconds.
        workers: clients of a round; `None` takes all.
        learning_rate: η.
        momentum: β.

    References:
        Douillard et al., "DiLoCo: distributed low-communication training of language models", 2023.
    """
    check_number("presets.diloco", "momentum", momentum, least=0, below=1)
    made: Any = fedopt  # passes what it does not know to the optimiser
    server = made(optax.sgd, learning_rate, momentum=momentum, nesterov=True, staleness="none")
    return Preset(server, synchronous(cohort=workers, durations=durations))


def muloco(
    durations: Duration, *, workers: int | None = None, learning_rate: Number = 0.7, momentum: Number = 0.9
) -> Preset:
    """Builds MuLoCo: DiLoCo with Muon as the workers' optimiser.

    `Client(optax.contrib.muon, learning_rate=..., steps=..., reset="never")`, and with `upload=` two bits and error
    feedback. In a shell: `jaxafl run FILE.py`. The server is that of `diloco`; we have read the abstract only.

    Args:
        durations: duration of a run in simulated seconds.
        workers: clients of a round; `None` takes all.
        learning_rate: η.
        momentum: β.

    References:
        Thérien et al., "MuLoCo: Muon is a practical inner optimizer for DiLoCo", 2025.
    """
    return diloco(durations, workers=workers, learning_rate=learning_rate, momentum=momentum)


def async_diloco(
    clients: int,
    durations: Duration,
    *,
    learning_rate: Number = 0.7,
    momentum: Number = 0.9,
    period: int | None = None,
    window: Number = 0.0,
) -> Preset:
    """Builds asynchronous Local-SGD with Delayed Nesterov, whose workers restart after a grace window.

    It is `delayed_nesterov` on `free_running(N, begins=grace(W))`. Slow workers take fewer local steps by
    `dylu_steps`. In a shell: `--server delayed_nesterov --clock free_running --clock.concurrency N --clock.begins
    "grace(W)"`.

    Args:
        clients: N, which all train all the time.
        durations: duration of a run in simulated seconds.
        learning_rate: η.
        momentum: β.
        period: arrivals between two changes of the momentum; `None` is N.
        window: W, seconds of the grace window.

    References:
        Liu et al., "Asynchronous Local-SGD training for language modeling", 2024.
    """
    server = delayed_nesterov(learning_rate, momentum, period=period)
    return Preset(server, free_running(clients, begins=grace(window), durations=durations))


def halos_regions(
    regions: Sequence[int],
    durations: Duration,
    *,
    bytes: Number,
    bandwidths: Sequence[float] | np.ndarray = (100.0, 0.537, 0.935, 0.202),
    after: int = 32,
    alpha: Number = 0.25,
) -> Preset:
    """Builds HALoS for a model that regions exchange over links, with the numbers of the authors' simulator.

    It is `halos(alpha=α)` on `tiers(regions, after=K_s)`, where a transfer of region l takes 8 · bytes / (10⁹ b_l)
    seconds each way, also that of the region in which the global server stands. Workers keep the state of their
    optimiser, `Client(optax.adamw, learning_rate=1e-3, b2=0.95, weight_decay=0.1, steps=8, reset="never")`; the authors
    clip gradients to norm 1, and slow workers take fewer steps, as of `dylu_steps`, but rounded up. In a shell:
    `--server halos --clock tiers --clock.regions REGIONS --clock.up SECONDS --clock.down SECONDS`.

    Args:
        regions: region of each client, [N]; 4 regions of 4 in the paper.
        durations: duration of a run in simulated seconds, within its region.
        bytes: size of the model in bytes.
        bandwidths: b_l in Gb/s from each region to the global server, above 0, [R].
        after: K_s, arrivals in a region between a download and the next upload.
        alpha: weight α of the global model in a merge.

    References:
        Kim et al., "HALoS: Hierarchical asynchronous local SGD over slow networks for geo-distributed large language
        model training", ICML 2025.
    """
    check_number("presets.halos_regions", "bytes", bytes, above=0)
    check_number("presets.halos_regions", "bandwidths", bandwidths, above=0, per_client=True)
    if np.shape(bandwidths) not in ((), (count := 1 + max(regions, default=-1),)):
        raise UserError(f"presets.halos_regions: {np.size(bandwidths)} bandwidths for {count} regions; give one each")
    seconds = 8 * bytes / (1e9 * np.asarray(bandwidths, float))
    return Preset(
        halos(alpha=alpha), tiers(regions=regions, durations=durations, up=seconds, down=seconds, after=after)
    )


def fedat_tiers(
    times: Sequence[float] | np.ndarray, durations: Duration | None = None, *, tiers: int = 5, cohort: int | None = None
) -> Preset:
    """Builds FedAT: clients of similar speed are a tier with rounds of its own, and no tier waits for another.

    It is `fedat` on `regional_rounds(regions)`, with clients divided by their times into tiers of equal size.
    `Client(proximal=λ)` is the paper's constraint; λ = 0.4 is in its experiments, which we know from other texts. In a
    shell: `--server fedat --clock regional_rounds --clock.regions REGIONS`.

    Args:
        times: seconds of a run by which clients are divided, [N]; equal times in client order.
        durations: duration of a run in simulated seconds; `None` is `constant(times)`.
        tiers: M, from 1 to N.
        cohort: clients of a round of a tier; `None` takes all.

    References:
        Chai et al., "FedAT: A high-performance and communication-efficient federated learning system with asynchronous
        tiers", SC 2021.
    """
    check_number("presets.fedat_tiers", "times", times, least=0, per_client=True)
    seconds = np.ravel(as_numbers("presets.fedat_tiers", "times", times))
    check_whole("presets.fedat_tiers", "tiers", tiers, most=len(seconds))
    regions = (np.argsort(np.argsort(seconds, kind="stable")) * tiers // len(seconds)).tolist()
    lasting = constant(seconds) if durations is None else durations
    return Preset(fedat(), regional_rounds(regions=regions, durations=lasting, cohort=cohort))


def hierfavg_edges(
    regions: Sequence[int], durations: Duration, *, rounds: int = 2, up: Number = 0.0, down: Number = 0.0
) -> Preset:
    """Builds HierFAVG: edge servers make some rounds with their clients, and then the cloud averages their models.

    It is `hierfavg` on `regional_rounds(regions, after=κ_2, waits=True)`; κ_1 is `Client(steps=κ_1)`. In a shell:
    `--server hierfavg --clock regional_rounds --clock.regions REGIONS --clock.after 2 --clock.waits`.

    Args:
        regions: edge server of each client, whole numbers from 0 on, [N].
        durations: duration of a run in simulated seconds.
        rounds: κ_2, rounds of an edge server between two models that it sends to the cloud.
        up: seconds from an edge server to the cloud, a number or one per edge server.
        down: seconds from the cloud to an edge server, in the same form.

    References:
        Liu, Zhang, Song, Letaief, "Client-edge-cloud hierarchical federated learning", ICC 2020, Algorithm 1.
    """
    clock = regional_rounds(regions=regions, durations=durations, up=up, down=down, after=rounds, waits=True)
    return Preset(hierfavg(), clock)


def dylu_steps(steps: int, speeds: Sequence[float]) -> list[int]:
    """Returns the local steps K_i = ⌊K v_i / max v⌋, at least 1, of Dynamic Local Updates, for `Client(steps=...)`.

    Args:
        steps: K of the fastest client.
        speeds: v_i, local steps per second of each client, above 0. HALoS rounds up instead.
    """
    check_whole("presets.dylu_steps", "steps", steps)
    check_number("presets.dylu_steps", "speeds", speeds, above=0, per_client=True)
    return [max(1, int(steps * speed / max(speeds) + 1e-9)) for speed in speeds]
