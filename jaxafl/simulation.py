"""`Simulation`: what is simulated, checked, planned, compiled and run."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from jaxafl import execute, online, results
from jaxafl.client import LocalTraining
from jaxafl.clock.contract import Clock
from jaxafl.compilation import compiled
from jaxafl.data.federated import FederatedData
from jaxafl.keys import seed_key
from jaxafl.memory import check_memory
from jaxafl.models.model import Model
from jaxafl.plan import Plan, Segments, Steps, make_plan
from jaxafl.progress import Bar, Reporter, Silent
from jaxafl.pytrees import as_arrays, plain
from jaxafl.schedule import Schedule, compute_schedule, raise_fault
from jaxafl.server.contract import Server

Tree = Any
_EVALUATION_BATCH = 500
_FULL_BATCH_PIECE = 256  # samples per gradient evaluation of a full batch, unless the client says otherwise
_WASTE = 1.25  # executed / needed local steps that the choice of lanes accepts


class Speed(NamedTuple):
    """Options that change how fast a run is and what memory it takes, never its results (up to float rounding).

    Attributes:
        lanes: runs trained at once; `None` chooses: 1 on a CPU, elsewhere as many as the schedule keeps busy.
        chunk: lanes that advance together under `vmap`; `None`: all on an accelerator, 1 on a CPU (where a loop is faster).
    """

    lanes: int | None = None
    chunk: int | None = None


class Trained(NamedTuple):
    """A run that has ended."""

    schedule: Schedule
    records: dict[str, np.ndarray]
    evaluations: dict[str, np.ndarray]
    eval_step: np.ndarray
    failure: tuple[int, int] | None
    params: Tree
    model_state: Tree
    seconds: dict[str, float]


@dataclasses.dataclass(frozen=True, eq=False)
class Simulation:
    """Asynchronous federated learning: data, model, local training, server and clock.

    Attributes:
        data: samples split over N clients, and a test set.
        model: initial parameters and the loss of a batch.
        client: local training.
        server: what is done with the updates that arrive.
        clock: who trains when.
    """

    data: FederatedData
    model: Model
    client: LocalTraining
    server: Server
    clock: Clock

    def __post_init__(self) -> None:
        for name, method in (("data", "fetch"), ("model", "apply"), ("client", "local_steps"), ("server", "update"), ("clock", "next")):
            value = getattr(self, name)
            if not hasattr(value, method) or isinstance(value, type):
                raise TypeError(f"Simulation({name}=...) got {value!r}, which is not a {name}; see jaxafl.{name}")

    def check(self) -> None:
        """Raises `ValueError` for anything that cannot work; `schedule` and `run` call it first."""
        clients = self.data.num_clients
        self.client.check(clients)
        self.clock.check(clients)
        if self.clock.name not in self.server.clocks:
            raise ValueError(
                f"the server {self.server.name} does not run on the clock {self.clock.name}; "
                f"it runs on {', '.join(sorted(self.server.clocks))}"
            )
        self.server.check(self.clock, clients)
        if self.server.replies_steps:
            self._check_replies()

    def schedule(self, server_steps: int, seed: int = 0) -> Schedule:
        """The clock alone: who arrives at every server step, when, and how stale. Nothing is trained.

        Args:
            server_steps: T.
            seed: seed of the schedule.

        Raises:
            ValueError: something cannot work, or the schedule depends on the training (a server that replies with K).
        """
        self.check()
        if self.server.replies_steps:
            raise ValueError(
                f"the schedule of {self.server.name} depends on the training, because the server replies with the number of "
                "local steps; run() returns the schedule with the results"
            )
        return self._schedule(server_steps, seed)

    def run(
        self,
        server_steps: int,
        *,
        eval_every: int | None = None,
        seed: int = 0,
        lanes: int | None = None,
        chunk: int | None = None,
        observe: Callable[[Tree], dict[str, jax.Array]] | None = None,
        progress: bool | Reporter = False,
        save: Any = None,
    ) -> xr.Dataset:
        """Simulates `server_steps` server steps.

        Args:
            server_steps: T.
            eval_every: server steps between evaluations on the test set (default: about 50 evaluations); the initial and the last
                model are always evaluated.
            seed: seed of the initial model, the schedule and the mini-batches.
            lanes: runs trained at once; `None` chooses. Changes speed, never results.
            chunk: lanes that advance together under `vmap`, a divisor of `lanes`; `None` chooses. Changes speed, never results.
            observe: traced function of the parameters, returning a dict of small arrays recorded at every server step.
            progress: show a progress bar, or a `Reporter` of your own.
            save: path of a NetCDF file to write; checked before the run.

        Returns:
            A dataset with dimensions `step` (server steps), `arrival` and `evaluation`: accuracy and loss against simulated time and
            server steps, who arrived, how stale, and the server's diagnostics. A run whose parameters stop being finite ends there: the
            attributes `failed_step` and `failed_client` say where, and by whose update; later values are missing.

        Raises:
            ValueError, TypeError: an option cannot work; raised before compilation.
            MemoryError: the run does not fit.
        """
        path = results.check_path(save)
        trained = self.train(
            server_steps, eval_every=eval_every, seed=seed, speed=Speed(lanes, chunk), observe=observe, progress=progress
        )
        dataset = self.result(trained, seed)
        if path is not None:
            results.save(dataset, path)
        return dataset

    def train(
        self,
        server_steps: int,
        *,
        eval_every: int | None = None,
        seed: int = 0,
        speed: Speed = Speed(),  # noqa: B008 (immutable)
        observe: Callable[[Tree], dict[str, jax.Array]] | None = None,
        progress: bool | Reporter = False,
    ) -> Trained:
        """As `run`, returning the trained parameters and the raw diagnostics."""
        begun = time.perf_counter()
        self.check()
        every = _evaluation_interval(eval_every, server_steps)
        driver = (_Online if self.server.replies_steps else _Planned)(self, server_steps, every, seed, speed, observe)
        evaluate, compile_seconds = driver.evaluation()
        compile_seconds += driver.compile_seconds
        evaluations = [jax.device_get(evaluate(driver.model))]
        eval_step, records, done = [0], [], 0
        prepared = time.perf_counter()
        with _reporter(progress, f"{self.server.name} on {self.clock.name}", server_steps) as reporter:
            while done < server_steps:
                stop = min(done + every, server_steps)
                records.append(jax.device_get(driver.advance(done, stop)))
                failure = driver.failure()
                if failure:
                    break
                done = stop
                eval_step.append(done)
                evaluations.append(jax.device_get(evaluate(driver.model)))
                rate = driver.updates(done) / (time.perf_counter() - prepared)
                reporter.update(done, rate, {name: float(value) for name, value in evaluations[-1].items()})
        ended = time.perf_counter()
        joined = jax.tree.map(lambda *parts: np.concatenate(parts)[:server_steps], *records)
        schedule, diagnostics = driver.finish(joined)
        return Trained(
            schedule=schedule,
            records=diagnostics,
            evaluations={name: np.asarray([values[name] for values in evaluations]) for name in evaluations[0]},
            eval_step=np.asarray(eval_step),
            failure=failure,
            params=driver.model.params,
            model_state=driver.model.model_state,
            seconds={
                "prepare_seconds": prepared - begun - compile_seconds,
                "compile_seconds": compile_seconds,
                "run_seconds": ended - prepared,
            },
        )

    def result(self, trained: Trained, seed: int) -> xr.Dataset:
        """The dataset of a run that has ended."""
        attributes = {
            "title": f"{self.server.name} on {self.clock.name}, {self.data.name}",
            "jaxafl_version": _version(),
            "seed": seed,
            "server_steps": trained.schedule.server_steps,
            "num_clients": self.data.num_clients,
            "data": dict(self.data.description),
            "model": {"name": self.model.name} | dict(self.model.description),
            "client": plain(self.client),
            "server": plain(self.server),
            "clock": plain(self.clock),
            "backend": jax.default_backend(),
            "failed_step": trained.failure[0] if trained.failure else -1,
            "failed_client": trained.failure[1] if trained.failure else -1,
            "runs_started": trained.schedule.dispatched,
            "runs_never_consumed": trained.schedule.dispatched - len(np.unique(trained.schedule.dispatch[trained.schedule.mask])),
        }
        if not trained.failure:
            attributes |= {f"staleness_{name}": value for name, value in _staleness(trained.schedule).items()}
        records = dict(trained.records)
        attributes |= {f"count_{name}": int(records[name].sum()) for name in ("dropped", "clipped") if name in records}
        attributes |= {name: round(value, 3) for name, value in trained.seconds.items()}
        return results.build(trained.schedule, records, trained.evaluations, trained.eval_step, attributes)

    def plan(self, server_steps: int, seed: int = 0, *, lanes: int | None = None) -> Plan:
        """The plan that `run` executes: which runs are trained together and where everything is kept."""
        return _plan(self.schedule(server_steps, seed), self.server, lanes)

    def _schedule(self, server_steps: int, seed: int) -> Schedule:
        steps = self.client.local_steps(self.data.counts)
        return compute_schedule(self.clock, self.data.num_clients, steps, server_steps, seed)

    def _check_replies(self) -> None:
        clients = self.data.num_clients
        if self.client.local_steps(self.data.counts).ndim:
            raise ValueError(
                f"{self.server.name} adapts a number of local steps that all clients begin with: give Client(steps=K) one number"
            )
        if self.client.sampling == "epochs":
            raise ValueError(
                f"sampling='epochs' needs runs of equal length to go on from, but {self.server.name} changes the number of local steps"
            )
        if not hasattr(self.clock, "in_flight_runs"):
            raise ValueError(f"the clock {self.clock.name} cannot run beside the training of {self.server.name}")
        most = getattr(self.server, "max_steps", None)
        if most is not None and self.client.steps is not None and int(np.max(self.client.steps)) > most:
            raise ValueError(f"{self.server.name}: the client begins with steps={self.client.steps}, more than max_steps={most}")
        if self.clock.capacity(clients) < 1:
            raise ValueError(f"the clock {self.clock.name} brings no arrivals")

    @functools.cached_property
    def _dataset(self) -> execute.Dataset:
        """The training data on the device."""
        arrays = jax.tree.map(jnp.asarray, self.data.arrays)
        return execute.Dataset(arrays, jnp.asarray(self.data.counts, jnp.int32))

    @functools.cached_property
    def _test(self) -> tuple[Tree, jax.Array]:
        x, y = self.data.test_arrays()
        return jax.tree.map(jnp.asarray, x), jnp.asarray(y)

    def _config(self) -> execute.Config:
        return as_arrays(execute.Config(self.client, self.server), jnp.result_type(float))

    def _program(self, **shapes: Any) -> execute.Program:
        piece = self.client.micro_batch
        if piece is None:
            piece = min(int(self.data.counts.max()), _FULL_BATCH_PIECE) if self.client.batch_size is None else self.client.batch_size
        capacity = self.clock.capacity(self.data.num_clients)
        return execute.Program(self.model, self.data, capacity=capacity, micro_batch=piece, **shapes)


class _Driver:
    """What both drivers share: the program, the state, evaluation and failure."""

    program: execute.Program
    simulation: Simulation
    compile_seconds: float

    @property
    def run(self) -> execute.State:
        raise TypeError("drivers say where their run is")

    @property
    def model(self) -> execute.Version:
        return self.run.model

    def evaluation(self) -> tuple[Callable[[execute.Version], dict[str, jax.Array]], float]:
        x, y = self.simulation._test
        batch = min(_EVALUATION_BATCH, len(y))
        program, seconds = compiled(execute.evaluate, (self.program, batch), (self.model, x, y))
        return lambda model: program(model, x, y), seconds

    def failure(self) -> tuple[int, int] | None:
        step, client = jax.device_get(self.run.failure)
        return (int(step), int(client)) if step >= 0 else None


class _Planned(_Driver):
    """Runs the clock first, then executes its plan."""

    def __init__(
        self, simulation: Simulation, server_steps: int, every: int, seed: int, speed: Speed, observe: Any
    ) -> None:
        self.simulation = simulation
        self.schedule = simulation._schedule(server_steps, seed)
        plan = _plan(self.schedule, simulation.server, speed.lanes)
        self.program = simulation._program(
            lanes=plan.lanes,
            chunk=_chunk(plan.lanes, speed.chunk),
            slots=plan.slots,
            rows=plan.rows,
            uniform=plan.uniform,
            full=bool(self.schedule.mask.all()),
            stop=True,
            observe=observe,
        )
        self.config = simulation._config()
        key = seed_key(seed)
        _check_memory(simulation, self.program, self.config, key)
        self.state = jax.jit(execute.initial, static_argnums=0)(self.program, self.config, key)
        self.plan = device_plan(plan)
        self.consumed = np.concatenate([[0], np.cumsum(self.schedule.mask.sum(axis=1))])
        step = jnp.int32(0)
        arguments = (self.config, simulation._dataset, *self.plan, self.state, step, step)
        self.compiled, self.compile_seconds = compiled(execute.advance, (self.program, every), arguments, donate=(4,))

    @property
    def run(self) -> execute.State:
        return self.state

    def advance(self, start: int, stop: int) -> dict[str, jax.Array]:
        self.state, records = self.compiled(
            self.config, self.simulation._dataset, *self.plan, self.state, jnp.int32(start), jnp.int32(stop)
        )
        return jax.tree.map(lambda leaf: leaf[: stop - start], records)

    def updates(self, done: int) -> int:
        return int(self.consumed[done])

    def finish(self, records: dict[str, np.ndarray]) -> tuple[Schedule, dict[str, np.ndarray]]:
        made = len(next(iter(records.values())))
        failure = self.failure()
        made = failure[0] + 1 if failure else made
        return first_steps(self.schedule, made), {name: values[:made] for name, values in records.items()}


class _Online(_Driver):
    """Runs the clock beside the training."""

    def __init__(
        self, simulation: Simulation, server_steps: int, every: int, seed: int, speed: Speed, observe: Any
    ) -> None:
        if isinstance(server_steps, bool) or not isinstance(server_steps, int | np.integer) or server_steps < 1:
            raise ValueError(f"server_steps must be a whole number of at least 1, got {server_steps!r}")
        self.simulation = simulation
        clock, clients = simulation.clock, simulation.data.num_clients
        capacity = clock.capacity(clients)
        lanes = _online_lanes(speed.lanes, capacity, clock.in_flight(clients))
        self.program = simulation._program(
            lanes=lanes,
            chunk=_chunk(lanes, speed.chunk),
            slots=clock.ring_slots(clients),
            rows=capacity if lanes == capacity else clock.in_flight(clients) + capacity,
            uniform=False,
            full=True,
            stop=True,
            observe=observe,
        )
        self.config = simulation._config()
        key = seed_key(seed)
        _check_memory(simulation, self.program, self.config, key)
        state = jax.jit(execute.initial, static_argnums=0)(self.program, self.config, key)
        wide = bool(jax.config.jax_enable_x64)
        with jax.enable_x64(True):
            self.clock = as_arrays(clock, jnp.float64)
            steps = jnp.asarray(simulation.client.local_steps(simulation.data.counts), jnp.int32)
            start = jax.jit(online.initial_online, static_argnums=(0, 4))
            self.state = start(self.program, self.clock, state, key, clients, steps)
            step = jnp.int32(0)
            arguments = (self.clock, self.config, simulation._dataset, self.state, step, step)
            self.compiled, self.compile_seconds = compiled(
                online.advance_online, (self.program, every, wide), arguments, donate=(3,)
            )

    @property
    def run(self) -> execute.State:
        return self.state.run

    def advance(self, start: int, stop: int) -> Any:
        with jax.enable_x64(True):
            self.state, records = self.compiled(
                self.clock, self.config, self.simulation._dataset, self.state, jnp.int32(start), jnp.int32(stop)
            )
            raise_fault(jax.device_get(self.clock.fault(self.state.clock)))
        return jax.tree.map(lambda leaf: leaf[: stop - start], jax.device_get(records))

    def updates(self, done: int) -> int:
        return done * self.program.capacity

    def finish(self, records: Any) -> tuple[Schedule, dict[str, np.ndarray]]:
        steps, diagnostics = records
        failure = self.failure()
        made = failure[0] + 1 if failure else len(steps.time)
        steps, diagnostics = jax.tree.map(lambda values: np.asarray(values[:made]), (steps, diagnostics))
        clock, clients = self.simulation.clock, self.simulation.data.num_clients
        dispatched = int(jax.device_get(self.state.clock.dispatches))
        return Schedule(
            clock.name, clients, clock.in_flight(clients), clock.ring_slots(clients), **steps._asdict(), dispatched=dispatched
        ), diagnostics


def device_plan(plan: Plan) -> tuple[Segments, Steps]:
    """The plan on the device, its segments padded to a power of two so that other seeds have the same shapes."""
    count = len(plan.segments.active)
    padded = max(64, 1 << (count - 1).bit_length())
    segments = Segments(*(np.pad(leaf, [(0, padded - count)] + [(0, 0)] * (leaf.ndim - 1)) for leaf in plan.segments))
    return jax.tree.map(jnp.asarray, (segments, plan.steps))


def first_steps(schedule: Schedule, count: int) -> Schedule:
    """The first `count` server steps of a schedule."""
    arrays = {name: value[:count] for name, value in vars(schedule).items() if isinstance(value, np.ndarray) and name != "staleness"}
    return dataclasses.replace(schedule, **arrays)


def _plan(schedule: Schedule, server: Server, lanes: int | None) -> Plan:
    most = max(schedule.in_flight, 1)
    if lanes is not None:
        _check_lanes(lanes)
        return make_plan(schedule, lanes=lanes, keep_start=server.keeps_start)
    if jax.default_backend() == "cpu":
        return make_plan(schedule, lanes=1, keep_start=server.keeps_start)
    width = 1 << (min(most, 512) - 1).bit_length()
    while True:  # the most lanes that the schedule keeps busy
        plan = make_plan(schedule, lanes=width, keep_start=server.keeps_start)
        if width == 1 or plan.executed(width) <= _WASTE * max(plan.needed, 1):
            return plan
        width //= 2


def _online_lanes(lanes: int | None, capacity: int, in_flight: int) -> int:
    if lanes is None:
        return capacity if jax.default_backend() == "cpu" else max(capacity, min(in_flight, 32))
    _check_lanes(lanes)
    return max(lanes, capacity)


def _check_lanes(lanes: Any) -> None:
    if isinstance(lanes, bool) or not isinstance(lanes, int | np.integer) or lanes < 1:
        raise ValueError(f"lanes must be a whole number of at least 1, got {lanes!r}")


def _chunk(lanes: int, chunk: int | None) -> int:
    if chunk is None:
        return 1 if jax.default_backend() == "cpu" else lanes
    if isinstance(chunk, bool) or not isinstance(chunk, int | np.integer) or chunk < 1 or lanes % chunk:
        raise ValueError(f"chunk must be a divisor of lanes={lanes}, got {chunk!r}")
    return int(chunk)


def _evaluation_interval(eval_every: Any, server_steps: Any) -> int:
    if isinstance(server_steps, bool) or not isinstance(server_steps, int | np.integer) or server_steps < 1:
        raise ValueError(f"server_steps must be a whole number of at least 1, got {server_steps!r}")
    if eval_every is None:
        return max(1, int(server_steps) // 50)
    if isinstance(eval_every, bool) or not isinstance(eval_every, int | np.integer) or eval_every < 1:
        raise ValueError(f"eval_every must be a whole number of at least 1, got {eval_every!r}")
    return min(int(eval_every), int(server_steps))


def _check_memory(simulation: Simulation, program: execute.Program, config: execute.Config, key: Any) -> None:
    state = jax.eval_shape(functools.partial(execute.initial, program), config, key)
    check_memory(
        {
            f"ring of {program.slots} versions": state.ring,
            f"store of {program.rows} updates": state.store,
            f"{program.lanes} lanes": state.lanes,
            "server state (with its rows per client)": state.server,
            "training data": simulation.data.arrays,
        }
    )


def _staleness(schedule: Schedule) -> dict[str, float]:
    statistics = schedule.statistics()
    return {
        "mean": statistics["staleness_mean"],
        "max": statistics["staleness_max"],
        "max_per_step_mean": statistics["max_staleness_per_step_mean"],
        "max_per_step_median": statistics["max_staleness_per_step_median"],
    }


def _reporter(progress: bool | Reporter, name: str, server_steps: int) -> Reporter:
    if isinstance(progress, bool):
        return Bar(name, server_steps) if progress else Silent()
    return progress


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("jaxafl")
    except PackageNotFoundError:
        return "unknown"
