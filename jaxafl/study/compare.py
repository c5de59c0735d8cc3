"""Comparison of methods on the same seeds, and the folder of a comparison."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, Unpack

import numpy as np

from jaxafl.callbacks.base import Callback, file_name
from jaxafl.callbacks.identity import content_of
from jaxafl.callbacks.store import check_folder
from jaxafl.options import UserError, check_whole, did_you_mean, named, shown, user_errors
from jaxafl.results.failures import warned
from jaxafl.simulation import Simulation
from jaxafl.study.comparison import METHODS, Comparison, compared_at, differing, refuse_data
from jaxafl.sweep.run import SweepOptions, completed, work_of

T = TypeVar("T")


@named
def compare(
    methods: Mapping[str, Simulation],
    seeds: int | Iterable[int],
    server_steps: int | Mapping[str, int] | None = None,
    *,
    until: Mapping[str, float] | None = None,
    eval_every: int | Mapping[str, int] | None = None,
    callbacks: Sequence[Callback] | Callback = (),
    folder: str | os.PathLike[str] | None = None,
    **options: Unpack[SweepOptions],
) -> Comparison:
    """Runs each method in a sweep over the same seeds.

    Every draw is keyed by the seed and its purpose. Under one seed, methods with the same model start from the same
    parameters. With the same durations and local training, the k-th run of a client takes the same time and trains on
    the same mini-batches. Methods with the same clock and local training have the same schedule, bit for bit. A clock
    with another buffer, concurrency or protocol, or a server that sets the local steps, starts other clients at other
    times, which is not paired. Seeds do not change the partition of the data, so intervals do not cover it.

    Args:
        methods: name -> simulation, all with the same data.
        seeds: the number of seeds (0, 1, ...), or the seeds.
        server_steps: T, of all methods or by name. Optional with an exact limit (time, updates, bytes or ε), unless the
            schedule depends on the training.
        until: limits of every run, as in `Simulation.run`, e.g. `{"accuracy": 0.9, "time": 3600}`. If time is the only
            limit, and no run ends before it, `Comparison.at` is that time; else it is the end of each run.
        eval_every: server steps between evaluations, of all methods or by name; it is the resolution of times to a
            target.
        callbacks: as in `jaxafl.sweep`.
        folder: the parent of one sweep folder per method. The same call resumes from it, also with added methods.
            `Comparison.gather(folder)` reads it.
        **options: options of `jaxafl.sweep`: `devices`, `executor`, `part`, `checkpoint_every`, `together`,
            `lanes`, `chunk`, `observe`, `diagnostics`, `metrics`, `progress`, `deterministic`. `progress=True` shows
            a bar per method; by default nothing is shown, as by `Simulation.run`. Methods run in order; devices and
            executors share the seeds of one method.

    Returns:
        The results of all methods, with their paired statistics.

    Raises:
        ValueError, TypeError: an option cannot work; raised before the first run.

    Examples:
        >>> import jaxafl as afl
        >>> problem = afl.theory.quadratic(clients=4)
        >>> client = afl.Client(learning_rate=0.1, steps=2, batch_size=None)
        >>> clock = afl.clock.free_running(concurrency=2, durations=afl.clock.constant(1.0))
        >>> methods = {
        ...     name: afl.Simulation(problem.data, problem.model, client, server, clock)
        ...     for name, server in {"FedAsync": afl.server.fedasync(), "FedBuff": afl.server.fedbuff()}.items()
        ... }
        >>> found = afl.compare(methods, seeds=2, server_steps=10)
        >>> found.seeds, list(found.results), list(found.differences("FedAsync", metric="loss"))
        ([0, 1], ['FedAsync', 'FedBuff'], ['FedBuff'])
    """
    if not isinstance(methods, Mapping) or not methods:
        raise TypeError(f"compare needs name -> Simulation, got {shown(methods)}")
    chosen = seeds_of("compare", seeds)
    limits = dict(until or {})
    steps, every = by_name("server_steps", server_steps, methods), by_name("eval_every", eval_every, methods)
    given: dict[str, Any] = {**options, "until": until, "callbacks": callbacks}
    works = {}
    for name, one in methods.items():
        with user_errors(f"method {name}"):
            how = {**given, "eval_every": every[name]}
            works[name] = work_of(one, {"seed": chosen}, steps[name], how, {"method": name})
    (first, base), *others = methods.items()
    for name, other in others:
        if base.data is not other.data and content_of(base.data) != content_of(other.data):
            refuse_data(first, name, differing(base.data.description, other.data.description) or "other samples")
    folders = _begun(folder, methods, limits)
    found = {}
    for name in methods:  # a finished method releases its schedules
        found[name] = warned(completed(works.pop(name), folders[name], named_progress(options, name)))
    return Comparison(found, compared_at(limits, found))


def named_progress(options: SweepOptions, name: str) -> SweepOptions:
    """Returns the options with this name for `progress=True`. Other names and reporters stay unchanged."""
    progress = options.get("progress", False)
    return {**options, "progress": name if progress is True else progress}


def seeds_of(owner: str, seeds: Any, first: int = 0) -> list[int]:
    """Returns the seeds; a number n means n seeds from `first` on."""
    if isinstance(seeds, int | np.integer) or not isinstance(seeds, Iterable):
        return list(range(first, first + check_whole(owner, "seeds", seeds)))
    found = [check_whole(owner, "seeds", seed, least=0, most=2**64 - 1) for seed in seeds]
    if not found or len(set(found)) < len(found):
        raise UserError(f"{owner}: seeds must be at least one, each once; got {found}")
    return found


def by_name(option: str, given: T | Mapping[str, T], methods: Iterable[str]) -> dict[str, T]:
    """Returns name -> option for every method, from one value or a mapping."""
    if not isinstance(given, Mapping):
        return dict.fromkeys(methods, given)
    if set(given) != set(methods):
        close = did_you_mean(next(iter(set(given) - set(methods)), ""), methods)
        raise UserError(
            f"compare: {option} by name needs {', '.join(methods)}; got {', '.join(map(str, given))}{close}"
        )
    return {name: given[name] for name in methods}


def _begun(folder: Any, names: Iterable[str], until: Mapping[str, float]) -> dict[str, pathlib.Path | None]:
    """Returns the folder of each method. Raises `ValueError` if the folder holds runs with other limits."""
    if folder is None:
        return dict.fromkeys(names)
    path = check_folder(folder)
    about = path / METHODS
    known = json.loads(about.read_text()) if about.is_file() else {"until": dict(until), "methods": {}}
    if known["until"] != until:
        raise UserError(
            f"{path} holds runs until {known['until']}, not {dict(until)}; name another folder, or the same limits"
        )
    folders = {name: file_name(name) for name in names}
    about.write_text(json.dumps(known | {"methods": folders | known["methods"]}))
    return {name: path / own for name, own in folders.items()}
