"""Draws the pictures of the site and writes their numbers: algorithms on one small problem, timelines of clocks.

The problem: 20 clients of Synthetic(1, 1), logistic regression, ten local steps of SGD (rate 0.03, batches of 10), ten
clients in flight. Each client has a constant time per local step between 0.1 and 1 s, and one run in five hangs. Every
algorithm gets about 600 client updates (3,000 if a run yields one gradient) and three seeds. Nothing is tuned: the
pictures show how a method behaves, not which one is best.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys
from typing import Any

import numpy as np
import optax
import overview
import xarray as xr

import jaxafl as afl

FOLDER = pathlib.Path(__file__).parent / "pictures"
NUMBERS = FOLDER / "common.json"
SEEDS, UPDATES, GRADIENTS = 3, 600, 3000
_CLIENTS, _AT_WORK = 20, 10


def methods() -> dict[str, afl.Simulation]:
    """Returns the simulation of each algorithm, by name."""
    server, clock = afl.server, afl.clock
    steps = clock.uniform(1, 10, per="client") * clock.constant(0.1, per="step")
    speeds = steps + clock.suspension(0.2)
    evenly = np.linspace(0.1, 1, _CLIENTS).round(3).tolist()  # known seconds per gradient
    each, buffered = (clock.free_running(concurrency=_AT_WORK, buffer=m, durations=speeds) for m in (1, 5))
    all_single, everyone = (clock.free_running(concurrency=_CLIENTS, buffer=m, durations=speeds) for m in (1, 5))
    at_steps = clock.free_running(concurrency=_AT_WORK, buffer=5, durations=speeds, dispatch="step")
    rounds, ticks = clock.synchronous(cohort=_AT_WORK, durations=speeds), clock.bernoulli(upload=0.3)
    contacts = clock.interrupting(period=3.0, contacted=3, durations=steps)
    stale = clock.stale_rounds(participants=5, max_staleness=4, durations=speeds)
    regions = [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5
    edges = clock.regional_rounds(regions=regions, durations=speeds, after=2, waits=True)
    usual = afl.Client(optax.sgd, learning_rate=0.03, steps=10, batch_size=10)
    lasting = afl.Client(optax.adam, learning_rate=0.01, steps=10, batch_size=10, reset="never")
    muon = afl.Client(optax.contrib.muon, learning_rate=0.01, steps=10, batch_size=10, reset="never")
    proximal = afl.Client(optax.sgd, learning_rate=0.03, steps=10, batch_size=10, proximal=0.1)
    gradient = afl.Client(optax.sgd, learning_rate=1.0, steps=1, batch_size=10)
    whole = afl.Client(optax.sgd, learning_rate=1.0, steps=1, batch_size=None)
    recursive = dataclasses.replace(gradient, correction=afl.correction.storm())
    parts: dict[str, tuple[Any, Any, Any]] = {
        "ace": (server.ace(0.5), all_single, usual),
        "aced": (server.aced(0.5), all_single, usual),
        "afl": (server.afl(), stale, usual),
        "area": (server.area(), buffered, usual),
        "async_diloco": (*afl.presets.async_diloco(_CLIENTS, speeds, window=1.0), lasting),
        "asyncfeded": (server.asyncfeded(0.5, 1.0, target_staleness=3.0, kappa=0.05, max_steps=20), each, usual),
        "asysg": (server.asysg(0.1), buffered, gradient),
        "audg": (server.audg(0.2), ticks, whole),
        "basgd": (server.basgd(0.1, 5), clock.every_buffer(durations=speeds, buffers=5), gradient),
        "ca2fl": (server.ca2fl(0.5), buffered, usual),
        "defedavg_iid": (server.defedavg_iid(), everyone, usual),
        "defedavg_niid": (server.defedavg_niid(), clock.sampled(drawn=5, durations=speeds), usual),
        "delay_adaptive": (server.delay_adaptive(0.5), each, usual),
        "delayed_nesterov": (server.delayed_nesterov(), each, usual),
        "diloco": (*afl.presets.diloco(speeds, workers=_AT_WORK), lasting),
        "fadas": (server.fadas(0.003), buffered, usual),
        "favano": (server.favano(), contacts, usual),
        "fedadagrad": (server.fedadagrad(0.03, eps=1e-3), rounds, usual),
        "fedadam": (server.fedadam(0.01, eps=1e-3), rounds, usual),
        "fedams": (server.fedams(0.01), rounds, usual),
        "fedasync": (server.fedasync(0.5, "polynomial", exponent=0.5), each, usual),
        "fedat": (server.fedat(), clock.regional_rounds(regions=regions, durations=speeds), usual),
        "fedat_tiers": (*afl.presets.fedat_tiers(evenly, speeds), usual),
        "fedavg": (server.fedavg(), rounds, usual),
        "fedbuff": (server.fedbuff(), buffered, usual),
        "fedcompass": (server.fedcompass(), clock.compass(durations=steps, min_steps=5, max_steps=25), usual),
        "fedfa": (server.fedfa(), each, usual),
        "fednova": (server.fednova(), rounds, usual),
        "fedopt": (server.fedopt(optax.adamw, 0.003), buffered, usual),
        "fedprox": (server.fedavg(), rounds, proximal),
        "fedstale": (server.fedstale(), rounds, usual),
        "fedvarp": (*afl.presets.fedvarp(_AT_WORK, speeds), usual),
        "fedyogi": (server.fedyogi(0.01, eps=1e-3), rounds, usual),
        "flexlora": (server.flexlora(), rounds, usual),
        "halos": (server.halos(), clock.tiers(regions=regions, durations=speeds, up=1.0, down=1.0, after=10), usual),
        "halos_regions": (*afl.presets.halos_regions(regions, speeds, bytes=1e8), lasting),
        "hierfavg": (server.hierfavg(), edges, usual),
        "hierfavg_edges": (*afl.presets.hierfavg_edges(regions, speeds, up=1.0, down=1.0), usual),
        "ia2sgd": (server.ia2sgd(0.5), all_single, usual),
        "kardam": (server.kardam(0.1), all_single, gradient),
        "malenia": (server.malenia(0.5), clock.harmonic(durations=speeds, batch=30), usual),
        "mifa": (server.mifa(), rounds, usual),
        "mu2": (server.mu2(0.1), all_single, recursive),
        "muloco": (*afl.presets.muloco(speeds, workers=_AT_WORK), muon),
        "naive_optimal": (*afl.presets.naive_optimal(evenly, fastest=_AT_WORK), gradient),
        "picky_sgd": (server.picky_sgd(0.1), all_single, gradient),
        "port": (server.port(), at_steps, usual),
        "psurdg": (server.psurdg(0.2), ticks, whole),
        "quafl": (server.quafl(), contacts, usual),
        "rennala": (*afl.presets.rennala(_CLIENTS, speeds, batch=20, learning_rate=0.2), gradient),
        "ringleader": (server.ringleader(0.5), clock.ringleader(durations=speeds), usual),
        "ringmaster": (*afl.presets.ringmaster(_CLIENTS, speeds, max_staleness=10, learning_rate=0.1), gradient),
        "routed_sgd": (server.routed_sgd(0.5), clock.routed(tasks=_AT_WORK, durations=speeds), usual),
        "safa": (server.safa(), clock.semi_async(fraction=0.5, lag=2, durations=speeds), usual),
        "throttle": (server.throttle(0.1), clock.rounds_until_all(durations=speeds), usual),
        "zeno": (server.zeno(0.1), all_single, gradient),
    }
    data, model = afl.data.synthetic(1.0, 1.0, clients=_CLIENTS), afl.models.logistic(num_classes=10)
    sims = {name: afl.Simulation(data, model, own, made, chosen) for name, (made, chosen, own) in parts.items()}
    special = {"zeno": dataclasses.replace(sims["zeno"], data=data.with_validation(0.1))}
    return (
        sims
        | special
        | {"flexlora": dataclasses.replace(sims["flexlora"], model=afl.models.lora(model, rank=2, alpha=1.0))}
    )


def clocks() -> dict[str, tuple[Any, int]]:
    """Returns a clock of eight clients and the server steps of its timeline, by name."""
    clock, times = afl.clock, afl.clock.uniform(1, 6)
    steps = afl.clock.uniform(0.1, 0.6, per="step")
    recorded = np.repeat(np.linspace(1, 5, 8)[:, None], 20, axis=1)  # seconds [client, run]
    return {
        "synchronous": (clock.synchronous(cohort=5, durations=times), 4),
        "free_running": (clock.free_running(concurrency=5, buffer=2, durations=times), 12),
        "bernoulli": (clock.bernoulli(upload=0.3), 15),
        "sampled": (clock.sampled(drawn=3, durations=times), 6),
        "interrupting": (clock.interrupting(period=3.0, contacted=3, durations=steps), 8),
        "stale_rounds": (clock.stale_rounds(participants=4, max_staleness=3, durations=times), 5),
        "semi_async": (clock.semi_async(fraction=0.5, lag=2, durations=times), 6),
        "harmonic": (clock.harmonic(durations=times, batch=10), 4),
        "every_buffer": (clock.every_buffer(durations=times, buffers=3), 6),
        "ringleader": (clock.ringleader(durations=times), 16),
        "rounds_until_all": (clock.rounds_until_all(durations=times), 20),
        "tiers": (clock.tiers(regions=[0] * 4 + [1] * 4, durations=times, up=1.0, down=0.5, after=3), 30),
        "regional_rounds": (
            clock.regional_rounds(regions=[0] * 4 + [1] * 4, durations=times, up=1.0, down=0.5, after=2),
            12,
        ),
        "warm_up": (clock.warm_up(clock.free_running(concurrency=8, durations=times), first="next"), 14),
        "compass": (clock.compass(durations=steps * 5, min_steps=5, max_steps=25), 8),
        "routed": (clock.routed(tasks=12, durations=times), 20),
        "trace": (clock.trace(clock.free_running, concurrency=8, durations=recorded), 20),
    }


def described(sim: afl.Simulation) -> dict[str, str]:
    """Returns the code of the parts in which the methods differ."""
    return {name: repr(getattr(sim, name)) for name in ("server", "clock", "client")}


def draw(*only: str) -> None:
    """Draws all pictures and writes all numbers, or those of some algorithms and clocks."""
    FOLDER.mkdir(exist_ok=True)
    chosen = {name: sim for name, sim in methods().items() if not only or name in (*only, "fedavg")}
    results = {name: _run(sim) for name, sim in chosen.items()}
    known = json.loads(NUMBERS.read_text(encoding="utf-8")) if only else {}
    measured = {name: sim for name, sim in chosen.items() if not only or name in only}
    _keep(known | {name: described(sim) | _numbers(results[name]) | _measured(sim) for name, sim in measured.items()})
    for name, result in results.items():
        if only and name not in only:
            continue
        curves = {name: result} | ({} if name == "fedavg" else {"fedavg": results["fedavg"]})
        afl.plot.accuracy_vs_time(curves, path=FOLDER / f"{name}.png")
    for name, (clock, steps) in clocks().items():
        if only and name not in only:
            continue
        afl.plot.timeline(afl.clock.schedule(clock, 8, 10, steps, seed=1), path=FOLDER / f"clock_{name}.png")
    if not only:
        _ideas(results)
    if not only or "privacy" in only:
        _privacy()
    if not only or "attacks" in only:
        _attacks()
    if not only or "uploads" in only:
        _uploads()
    for picture in FOLDER.glob("*.png"):
        if not only or picture.stem.removeprefix("clock_") in only:
            _small(picture)


def measure(*only: str) -> None:
    """Measures the speed of all methods again, or of some."""
    chosen = {name: sim for name, sim in methods().items() if not only or name in only}
    for name, sim in chosen.items():
        known = json.loads(NUMBERS.read_text(encoding="utf-8"))
        _keep(known | {name: known[name] | _measured(sim)})


def _measured(sim: afl.Simulation) -> dict[str, Any]:
    """Returns facts about the server, and client updates per second of the fastest of six runs, without compilation."""
    server_steps = _server_steps(sim)
    runs = [sim.run(server_steps, eval_every=server_steps) for _ in range(6)]  # the first one compiles
    rate = float(runs[0].arrived.sum()) / min(run.attrs["run_seconds"] for run in runs)
    return {"updates_per_second": float(f"{rate:.2g}")} | overview.facts(sim)


def _keep(numbers: dict[str, Any]) -> None:
    """Writes the numbers of all methods, in their order."""
    numbers = {name: numbers[name] for name in methods()}
    NUMBERS.write_text(json.dumps(numbers, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _run(sim: afl.Simulation) -> xr.Dataset:
    server_steps = _server_steps(sim)
    return afl.sweep(sim, {"seed": range(SEEDS)}, server_steps, eval_every=max(1, server_steps // 40))


def _server_steps(sim: afl.Simulation) -> int:
    """Returns the number of server steps that take about as many updates as those of the other methods."""
    on_average = {
        "bernoulli": 6,
        "semi_async": 10,
        "harmonic": 50,
        "ringleader": 3,
        "every_buffer": 10,
        "regional_rounds": 5,
    }  # arrivals per tick, round or step
    arrivals = on_average.get(sim.clock.name, (sim.clock.arrivals(_CLIENTS) or _CLIENTS))
    return (GRADIENTS if sim.client.steps == 1 else UPDATES) // arrivals


def _numbers(result: xr.Dataset) -> dict[str, float]:
    last, stale = result.final_accuracy, result.staleness
    return {
        "accuracy": round(float(last.mean(skipna=False)), 3),
        "spread": round(float(last.std(ddof=1)), 3),
        "seconds": round(float(result.final_time.mean())),
        "staleness": round(float(stale.mean()), 2),
        "stalest": int(stale.max()),
    }


def _ideas(results: dict[str, xr.Dataset]) -> None:
    times = afl.clock.uniform(1, 5, per="client") * afl.clock.uniform(0.7, 1.3)
    asynchronous = afl.clock.free_running(concurrency=6, buffer=2, durations=times)
    schedule = afl.clock.schedule(asynchronous, num_clients=6, local_steps=10, server_steps=14, seed=0)
    afl.plot.timeline(schedule, until=12.0, path=FOLDER / "timeline.png")
    waiting = afl.clock.synchronous(durations=times)
    rounds = afl.clock.schedule(waiting, 6, 10, 4, seed=0)
    afl.plot.timeline(rounds, until=12.0, path=FOLDER / "waiting.png")
    sim = afl.Simulation(
        afl.data.synthetic(1.0, 1.0, clients=6, max_size=60),
        afl.models.logistic(num_classes=10),
        afl.Client(learning_rate=0.01, steps=10, batch_size=10),
        afl.server.fedbuff(),
        asynchronous,
    )
    afl.plot.plan(sim.plan(14, lanes=4), path=FOLDER / "plan.png")
    compared = {name: results[name] for name in ("fedasync", "fedbuff")}
    afl.plot.staleness_histogram(compared, path=FOLDER / "staleness.png")


def _privacy() -> None:
    """Draws ε against time of rounds and of buffers of five updates, all with the same noise at the server."""
    clock = afl.clock
    steps = clock.uniform(1, 10, per="client") * clock.constant(0.1, per="step")
    asynchronous, rounds = (
        afl.clock.schedule(one, _CLIENTS, 10, count)
        for one, count in (
            (clock.free_running(concurrency=_AT_WORK, buffer=5, durations=steps), 112),
            (clock.synchronous(cohort=5, durations=steps), 35),
        )
    )
    found = {
        "free_running": asynchronous.privacy(6.0, delta=1e-5),
        "synchronous": rounds.privacy(6.0, delta=1e-5),
        "synchronous, sampled": rounds.privacy(6.0, delta=1e-5, how="sampled"),
    }
    afl.plot.epsilon_vs_time(found, path=FOLDER / "privacy.png")


def _attacks() -> None:
    """Draws the final accuracy against the share of attackers, for two attacks and several aggregates."""
    from matplotlib.figure import Figure

    aggregate, attack = afl.aggregate, afl.attack
    usual = methods()["fedbuff"]
    clock = dataclasses.replace(usual.clock, concurrency=_CLIENTS, buffer=10)
    defences = [None, aggregate.median(), aggregate.multi_krum(3), aggregate.geometric_median()]
    defences += [aggregate.centered_clip(1.0)]
    axes = {"server.aggregate": defences, "attack.clients": [0.0, 0.1, 0.2, 0.3, 0.4], "seed": range(SEEDS)}
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    attacks = {"sign_flip(3)": attack.sign_flip(3.0, clients=0.0), "alie(1.5)": attack.alie(1.5, clients=0.0)}
    for ax, (name, one) in zip(panels, attacks.items(), strict=True):
        found = afl.sweep(dataclasses.replace(usual, clock=clock, attack=one), axes, 150, eval_every=150)
        for row, defence in zip(found.final_accuracy.values, defences, strict=True):
            label = "mean" if defence is None else defence.name
            line = ax.errorbar(100 * np.array(axes["attack.clients"]), row.mean(-1), row.std(-1, ddof=1), label=label)
            line[0].set(linewidth=1.8, marker="o", markersize=3)
        ax.set(title=name, xlabel="attackers (%)", xticks=range(0, 50, 10), ylim=(0, None))
        ax.grid(color="0.9", linewidth=0.8)
        ax.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("test accuracy")
    panels[1].legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9)
    figure.savefig(FOLDER / "attacks.png", dpi=150)


def _uploads() -> None:
    """Draws the accuracy against the bytes that clients have sent, with several uploads."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    upload, usual = afl.upload, methods()["fedbuff"]
    parts = {
        "whole updates": None,
        "qsgd(levels=4)": upload.qsgd(levels=4),
        "sign()": upload.sign(),
        "top_k(share=0.02)": upload.top_k(share=0.02),
        "error_feedback(top_k(share=0.02))": upload.error_feedback(upload.top_k(share=0.02)),
        "error_feedback(sign())": upload.error_feedback(upload.sign()),
    }
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    ax = figure.subplots()
    for name, part in parts.items():
        sim = dataclasses.replace(usual, client=dataclasses.replace(usual.client, upload=part))
        found = afl.sweep(sim, {"seed": range(SEEDS)}, 200, eval_every=4)
        sent = found.bytes_up.cumsum("step").mean("seed").values[found.eval_step.values[1:].astype(int) - 1]
        ax.plot(sent, found.accuracy.mean("seed").values[1:], label=name, linewidth=1.8)
    ax.set(xscale="log", xlabel="bytes that clients have sent", ylabel="test accuracy", ylim=(0, None))
    ax.xaxis.set_major_formatter(EngFormatter("B"))
    ax.grid(color="0.9", linewidth=0.8)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9)
    figure.savefig(FOLDER / "uploads.png", dpi=150)


def _small(picture: pathlib.Path) -> None:
    """Shrinks a picture to about a third of its bytes: fewer pixels, 64 colours."""
    from PIL import Image

    with Image.open(picture) as image:
        size = (image.width * 2 // 3, image.height * 2 // 3)
        image.convert("RGB").resize(size, Image.Resampling.LANCZOS).quantize(64).save(picture, optimize=True)


if __name__ == "__main__":
    measure(*sys.argv[2:]) if sys.argv[1:2] == ["--speed"] else draw(*sys.argv[1:])
