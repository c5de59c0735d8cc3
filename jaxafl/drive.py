"""Drivers: what carries runs from chunk to chunk of server steps.

`ahead.py` runs the clock first and executes its plan, for one run or several; `beside.py` runs the clock beside the
training, for servers whose replies change the work of the next runs. Both compile one program and call it again and
again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax
import numpy as np

from jaxafl import execute, members
from jaxafl.checks import check_whole
from jaxafl.compilation import compiled
from jaxafl.keys import Key
from jaxafl.memory import check_memory
from jaxafl.progress import Reporter
from jaxafl.schedule import Schedule, first_steps
from jaxafl.state import Config, Dataset, Failure, Program, State, Version, initial

if TYPE_CHECKING:
    from jaxafl.simulation import Simulation

Observe = Callable[[Any], dict[str, jax.Array]]
_EVALUATION_BATCH = 500


class Speed(NamedTuple):
    """Options that change how fast a run is and what memory it takes, never its results (up to float rounding).

    Attributes:
        lanes: runs trained at once; `None` chooses: 1 on a CPU, elsewhere as many as the schedule keeps busy.
        chunk: lanes that advance together under `vmap`; `None`: all on an accelerator, 1 on a CPU (where a loop is
            faster).
    """

    lanes: int | None = None
    chunk: int | None = None


class Recording(NamedTuple):
    """What a run records besides what every run returns.

    Attributes:
        observe: traced function of the parameters, returning a dict of arrays.
        diagnostics: names from `diagnostics.DIAGNOSTICS`.
    """

    observe: Observe | None = None
    diagnostics: tuple[str, ...] = ()


class Trained(NamedTuple):
    """A run that has ended.

    Attributes:
        schedule: who arrived when.
        records: diagnostics of the server steps, each [T, ...].
        evaluations: metrics of the evaluated models, each [E].
        eval_step: int [E], server steps made when they were evaluated.
        failure: the server step at which the parameters stopped being finite, and the client whose update did it.
        params: the last parameters.
        model_state: the last non-trainable model state.
        seconds: wall-clock seconds of preparing, compiling and running.
        eval_every: server steps between evaluations.
    """

    schedule: Schedule
    records: dict[str, np.ndarray]
    evaluations: dict[str, np.ndarray]
    eval_step: np.ndarray
    failure: tuple[int, int] | None
    params: Any
    model_state: Any
    seconds: dict[str, float]
    eval_every: int


class Driver(Protocol):
    """One compiled program that carries P runs; arrays that come back have a leading member axis."""

    compile_seconds: float

    def advance(self, start: int, stop: int) -> Any: ...
    def evaluate(self) -> dict[str, np.ndarray]: ...
    def failures(self) -> list[tuple[int, int] | None]: ...
    def updates(self, done: int) -> int: ...
    def finish(self, records: Any) -> list[tuple[Schedule, dict[str, np.ndarray], Version]]: ...


def drive(driver: Driver, server_steps: int, every: int, reporter: Reporter, begun: float) -> list[Trained]:
    """Runs a driver to the end, evaluating every `every` server steps.

    Args:
        driver: what advances the runs.
        server_steps: T.
        every: server steps between evaluations.
        reporter: told of every chunk.
        begun: `time.perf_counter()` when the preparation began.
    """
    prepared = time.perf_counter()
    evaluations, eval_step, records, done = [_finite(driver.evaluate())], [0], [], 0
    with reporter:
        while done < server_steps and not all(driver.failures()):
            stop = min(done + every, server_steps)
            records.append(driver.advance(done, stop))
            done = stop
            eval_step.append(done)
            evaluations.append(driver.evaluate())
            latest = {name: float(np.mean(values)) for name, values in evaluations[-1].items()}
            reporter.update(done, driver.updates(done) / (time.perf_counter() - prepared), latest)
    seconds = {
        "prepare_seconds": prepared - begun - driver.compile_seconds,
        "compile_seconds": driver.compile_seconds,
        "run_seconds": time.perf_counter() - prepared,
    }
    joined = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *records)
    ended = []
    for member, (failure, (schedule, diagnostics, model)) in enumerate(
        zip(driver.failures(), driver.finish(joined), strict=True)
    ):
        made = failure[0] + 1 if failure else server_steps
        shown = [index for index, step in enumerate(eval_step) if step < made or (step == made and not failure)]
        ended.append(
            Trained(
                schedule=schedule,
                records={name: values[:made] for name, values in diagnostics.items()},
                evaluations={
                    name: np.asarray([evaluations[index][name][member] for index in shown]) for name in evaluations[0]
                },
                eval_step=np.asarray(eval_step)[shown],
                failure=failure,
                params=model.params,
                model_state=model.model_state,
                seconds=seconds,
                eval_every=every,
            )
        )
    return ended


def _finite(evaluation: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The evaluation of initial models; raises `ValueError` where their loss is not finite."""
    if not np.all(np.isfinite(evaluation["loss"])):
        raise ValueError(
            "the loss of the initial model on the test set is not finite: a label is outside the model's outputs, a "
            "token outside its vocabulary, a sample is not finite, or the initial parameters are too large"
        )
    return evaluation


def initial_states(program: Program, configs: list[Config], dataset: Dataset, keys: list[Key]) -> list[State]:
    """The first state of every run."""
    program_, _ = compiled(initial, (program,), (configs[0], dataset, keys[0]), once=True)
    return [program_(config, dataset, key) for config, key in zip(configs, keys, strict=True)]


def evaluation(
    simulation: Simulation, program: Program, state: State, alone: bool
) -> tuple[Callable[[State], dict[str, np.ndarray]], float]:
    """Evaluates a state's model, and the average of all versions where there is one (as `average_...`)."""
    test = (simulation.dataset.frozen, *simulation.test)
    function = execute.evaluate if alone else members.evaluate_members
    batch = min(_EVALUATION_BATCH, len(test[-1]))
    evaluate, seconds = compiled(function, (program, batch), (*test, state.model))

    def of(model: Version) -> dict[str, np.ndarray]:
        return {name: np.atleast_1d(value) for name, value in jax.device_get(evaluate(*test, model)).items()}

    def metrics(state: State) -> dict[str, np.ndarray]:
        found = of(state.model)
        if state.average is not None:
            average = of(state.model._replace(params=state.average))
            found |= {f"average_{name}": values for name, values in average.items()}
        return found

    return metrics, seconds


def trimmed(records: Any, count: int, alone: bool) -> Any:
    """Diagnostics on the host, [P, count, ...]."""
    return jax.tree.map(
        lambda leaf: np.asarray(leaf)[None, :count] if alone else np.asarray(leaf)[:, :count], jax.device_get(records)
    )


def failures_of(failure: Failure) -> list[tuple[int, int] | None]:
    steps, clients = (np.atleast_1d(values) for values in jax.device_get(failure))
    return [(int(step), int(client)) if step >= 0 else None for step, client in zip(steps, clients, strict=True)]


def until(schedule: Schedule, failure: tuple[int, int] | None) -> Schedule:
    return first_steps(schedule, failure[0] + 1) if failure else schedule


def check_lanes(lanes: Any) -> None:
    check_whole("run", "lanes", lanes)


def chunk_of(lanes: int, chunk: int | None) -> int:
    if chunk is None:
        return 1 if jax.default_backend() == "cpu" else lanes
    check_whole("run", "chunk", chunk)
    if lanes % chunk:
        raise ValueError(f"run: chunk must be a divisor of lanes={lanes}, got {chunk}")
    return int(chunk)


_initial = jax.jit(initial, static_argnums=0)  # of the module: a second run of the same shapes traces nothing


def check_fit(simulation: Simulation, program: Program, config: Config, key: Key, count: int) -> None:
    """Raises `MemoryError` when `count` runs do not fit."""
    state = _initial.eval_shape(program, config, simulation.dataset, key)
    check_memory(
        {
            f"ring of {program.slots} versions": [state.ring] * count,
            f"store of {program.rows} updates": [state.store] * count,
            f"{program.lanes} lanes": [state.lanes] * count,
            "server state (with its rows per client)": [state.server] * count,
            "the clients' own models": [state.clients] * count,
            "the average of all versions": [state.average] * count,
            "training data": simulation.data.arrays,
            "the model's frozen arrays": simulation.model.frozen,
        }
    )
