"""`Simulation`: what is simulated, checked, planned, compiled and run."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from jaxafl import results
from jaxafl.ahead import planned, shared
from jaxafl.beside import Online
from jaxafl.checks import check_whole
from jaxafl.client import LocalTraining
from jaxafl.clock.contract import Clock
from jaxafl.data.federated import FederatedData
from jaxafl.diagnostics import check_diagnostics
from jaxafl.drive import Driver, Observe, Recording, Speed, Trained, drive
from jaxafl.fitting import check_model, check_observe
from jaxafl.models.model import Model
from jaxafl.plan import Plan
from jaxafl.progress import Bar, Reporter, Silent
from jaxafl.pytrees import as_arrays, plain
from jaxafl.references import citation
from jaxafl.schedule import Schedule, compute_schedule
from jaxafl.server.contract import Server
from jaxafl.state import Config, Dataset, Program
from jaxafl.version import __version__

Tree = Any
_FULL_BATCH_PIECE = 256  # samples per gradient evaluation of a full batch, unless the client says otherwise


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
        if not isinstance(self.model, Model):
            raise TypeError(
                f"Simulation(model=...) got {self.model!r}; make a model of a network with jaxafl.models.from_linen, "
                "from_nnx or from_functions"
            )
        for name, method in (("data", "fetch"), ("client", "local_steps"), ("server", "update"), ("clock", "next")):
            value = getattr(self, name)
            if not hasattr(value, method) or isinstance(value, type):
                raise TypeError(f"Simulation({name}=...) got {value!r}, which is not a {name}; see jaxafl.{name}")

    def check(self) -> None:
        """Raises `ValueError` for anything that cannot work; `schedule` and `run` call it first."""
        clients = self.data.num_clients
        self.client.check(clients)
        self.client.local_steps(self.data.counts)  # may be too many to count
        self.clock.check(clients)
        if self.clock.name not in self.server.clocks:
            raise ValueError(
                f"the server {self.server.name} does not run on the clock {self.clock.name}; "
                f"it runs on {', '.join(sorted(self.server.clocks))}"
            )
        self.server.check(self.clock, self.client, clients)
        check_model(self.model, self.data, self.client)
        if self.server.needs.replies_steps:
            self._check_replies()
        if self.clock_sees_training:
            self._check_beside()

    @property
    def clock_sees_training(self) -> bool:
        """Whether the schedule depends on what is trained, so that the clock has to run beside the training."""
        return self.server.needs.replies_steps or (
            self.client.charge == "executed" and not getattr(self.clock, "order_free", False)
        )

    def schedule(self, server_steps: int, seed: int = 0) -> Schedule:
        """The clock alone: who arrives at every server step, when, and how stale. Nothing is trained.

        Args:
            server_steps: T.
            seed: seed of the schedule.

        Raises:
            ValueError: something cannot work, or the schedule depends on the training (a server that replies with K).
        """
        self.check()
        if self.clock_sees_training:
            why = "the server replies with the number of local steps"
            if not self.server.needs.replies_steps:
                why = "Client(charge='executed') charges the time of the local steps that a run made"
            raise ValueError(
                f"the schedule of {self.server.name} depends on the training, because {why}; run() returns the "
                "schedule with the results"
            )
        return self.compute_schedule(server_steps, seed)

    def run(
        self,
        server_steps: int,
        *,
        eval_every: int | None = None,
        seed: int = 0,
        lanes: int | None = None,
        chunk: int | None = None,
        observe: Observe | None = None,
        diagnostics: str | Sequence[str] = (),
        progress: bool | Reporter = False,
        save: Any = None,
    ) -> xr.Dataset:
        """Simulates `server_steps` server steps.

        Args:
            server_steps: T.
            eval_every: server steps between evaluations on the test set (default: about 50 evaluations); the initial
                and the last model are always evaluated.
            seed: seed of the initial model, the schedule and the mini-batches.
            lanes: runs trained at once; `None` chooses. Changes speed, never results.
            chunk: lanes that advance together under `vmap`, a divisor of `lanes`; `None` chooses. Changes speed, never
                results.
            observe: traced function of the parameters, returning a dict of small arrays recorded at every server step.
            diagnostics: what to record besides, because it costs memory or a full pass over the training data per
                server step: `"drift"`: ‖x_t - x_s‖ of every arrival; `"gradient_norm"`: ‖∇F(x_t)‖²;
                `"asynchronous_error"`: ‖∇F(x_t) - applied gradient‖ with the applied gradient (x_t - x_{t+1}) / η, for
                servers with a `learning_rate` η;
                `"average"`: test metrics of the mean of all versions x_1 .. x_t.
            progress: show a progress bar, or a `Reporter` of your own.
            save: path of a NetCDF file to write; checked before the run. Where it cannot be written after all, the
                error's attribute `dataset` is the result.

        Returns:
            A dataset with dimensions `step` (server steps), `arrival` and `evaluation`: accuracy and loss against
            simulated time and server steps, who arrived, how stale, and the server's diagnostics. A run whose
            parameters stop being finite ends there: the attributes `failed_step` and `failed_client` say where, and by
            whose update; later values are missing.

        Raises:
            ValueError, TypeError: an option cannot work; raised before compilation.
            MemoryError: the run does not fit.
        """
        path = results.check_path(save)
        trained = self.train(
            server_steps,
            eval_every=eval_every,
            seed=seed,
            speed=Speed(lanes, chunk),
            observe=observe,
            diagnostics=diagnostics,
            progress=progress,
        )
        dataset = self.result(trained, seed)
        if path is not None:
            results.save_finished(dataset, path)
        return dataset

    def train(
        self,
        server_steps: int,
        *,
        eval_every: int | None = None,
        seed: int = 0,
        speed: Speed = Speed(),  # noqa: B008 (immutable)
        observe: Observe | None = None,
        diagnostics: str | Sequence[str] = (),
        progress: bool | Reporter = False,
    ) -> Trained:
        """As `run`, returning the trained parameters and the raw diagnostics."""
        begun = time.perf_counter()
        self.check()
        recording = as_recording(observe, diagnostics, self)
        every = evaluation_interval(eval_every, server_steps)
        reporter = as_reporter(progress, f"{self.server.name} on {self.clock.name}", server_steps)
        driver: Driver
        if self.clock_sees_training:
            driver = Online(self, every, seed, speed, recording)
        else:
            driver = shared([self], self.compute_schedule(server_steps, seed), every, seed, speed, recording)
        return drive(driver, server_steps, every, reporter, begun)[0]

    def result(self, trained: Trained, seed: int) -> xr.Dataset:
        """The dataset of a run that has ended."""
        attributes = {
            "title": f"{self.server.name} on {self.clock.name}, {self.data.name}",
            "jaxafl_version": __version__,
            "seed": int(seed),
            "precision": str(jnp.result_type(float)),
            "eval_every": trained.eval_every,
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
            "runs_never_consumed": trained.schedule.dispatched
            - len(np.unique(trained.schedule.dispatch[trained.schedule.mask])),
        }
        if not trained.failure:
            attributes |= {f"staleness_{name}": value for name, value in _staleness(trained.schedule).items()}
        records = dict(trained.records)
        attributes |= {f"count_{name}": int(records[name].sum()) for name in ("dropped", "clipped") if name in records}
        attributes |= {name: round(value, 3) for name, value in trained.seconds.items()}
        return results.build(trained.schedule, records, trained.evaluations, trained.eval_step, attributes)

    def citation(self) -> str:
        """BibTeX for jaxafl and for everything that a run of this simulation uses."""
        fedprox = () if self.client.proximal is None else (_FedProx(),)
        return citation(self.data, self.model, self.server, self.clock, *fedprox)

    def plan(self, server_steps: int, seed: int = 0, *, lanes: int | None = None) -> Plan:
        """The plan that `run` executes: which runs are trained together and where everything is kept."""
        return planned(self.schedule(server_steps, seed), self.server, lanes)

    def compute_schedule(self, server_steps: int, seed: int) -> Schedule:
        """The schedule of a simulation that has been checked."""
        steps = self.client.local_steps(self.data.counts)
        return compute_schedule(self.clock, self.data.num_clients, steps, server_steps, seed)

    def charged(self, schedule: Schedule, executed: np.ndarray, seed: int) -> Schedule:
        """The schedule with the time of the local steps that were executed, [T, A]; who arrives stays the same."""
        mask = schedule.mask
        most = int(schedule.run[mask].max(initial=0)) + 1
        planned = self.client.local_steps(self.data.counts).reshape(-1, 1)
        table = np.array(np.broadcast_to(planned, (self.data.num_clients, most)))
        table[schedule.client[mask], schedule.run[mask]] = executed[mask]
        return compute_schedule(self.clock, self.data.num_clients, table, schedule.server_steps, seed)

    def _check_replies(self) -> None:
        if self.client.steps is not None and np.ndim(self.client.steps):
            raise ValueError(
                f"{self.server.name} adapts a number of local steps that all clients begin with: give Client(steps=K) "
                "or Client(epochs=K) one number"
            )
        if self.client.patience is not None:
            raise ValueError(f"patience does not work with {self.server.name}, which adapts local steps")
        if self.client.sampling == "epochs":
            raise ValueError(
                f"sampling='epochs' needs runs of equal length to go on from, but {self.server.name} changes the "
                "number of local steps"
            )
        most = getattr(self.server, "max_steps", None)
        unit = "steps" if self.client.epochs is None else "epochs"
        begins = getattr(self.client, unit)
        if most is not None and begins > most:
            raise ValueError(f"{self.server.name}: the client begins with {unit}={begins}, more than max_steps={most}")

    def _check_beside(self) -> None:
        if not hasattr(self.clock, "in_flight_runs"):
            raise ValueError(
                f"the clock {self.clock.name} cannot run beside the training, as {self.server.name} with "
                f"Client(charge={self.client.charge!r}) needs; free_running can, and on synchronous and stale_rounds "
                "charge='executed' needs no such clock"
            )
        if self.client.rate_schedule is not None:
            raise ValueError(
                "rate_schedule needs the staleness and duration of a run when it is trained, which are not known where "
                f"the clock runs beside the training ({self.server.name}, charge={self.client.charge!r})"
            )
        if self.clock.capacity(self.data.num_clients) < 1:
            raise ValueError(f"the clock {self.clock.name} brings no arrivals")

    @functools.cached_property
    def dataset(self) -> Dataset:
        """The training data and the model's frozen arrays on the device."""
        arrays, frozen = jax.tree.map(jnp.asarray, (self.data.arrays, self.model.frozen))
        return Dataset(arrays, jnp.asarray(self.data.counts, jnp.int32), frozen)

    @functools.cached_property
    def test(self) -> tuple[Tree, jax.Array]:
        """The test set on the device."""
        x, y = self.data.test_arrays()
        return jax.tree.map(jnp.asarray, x), jnp.asarray(y)

    def config(self, seed: int) -> Config:
        """The numbers of the run, as arrays."""
        server: Any = self.server
        client = self.client
        if server.needs.prepares:
            server = server.prepare(self.clock, client.local_steps(self.data.counts), self.data.num_clients, seed)
        if server.needs.local_rate != 1.0:
            rate = client.hyperparameters["learning_rate"] * server.needs.local_rate
            client = dataclasses.replace(client, hyperparameters=client.hyperparameters | {"learning_rate": rate})
        return as_arrays(Config(client, server), jnp.result_type(float))

    def program(self, **shapes: Any) -> Program:
        """What the compiled program depends on."""
        piece = self.client.micro_batch
        if piece is None:
            piece = (
                min(int(self.data.counts.max()), _FULL_BATCH_PIECE)
                if self.client.batch_size is None
                else self.client.batch_size
            )
        capacity = self.clock.capacity(self.data.num_clients)
        return Program(self.model, self.data, capacity=capacity, micro_batch=piece, **shapes)


class _FedProx:
    """What a proximal term is cited by."""

    references = ("li2020",)


def as_reporter(progress: bool | Reporter, name: str, server_steps: int) -> Reporter:
    if isinstance(progress, bool):
        return Bar(name, server_steps) if progress else Silent()
    if not hasattr(progress, "update") or not hasattr(progress, "__enter__"):
        raise TypeError(f"progress must be True, False or a Reporter (see jaxafl.progress), got {progress!r}")
    return progress


def as_recording(observe: Any, diagnostics: Any, simulation: Simulation) -> Recording:
    """What a run records besides what every run returns; checked."""
    if observe is not None and not callable(observe):
        raise TypeError(f"observe must be a function of the parameters returning a dict of arrays, got {observe!r}")
    if observe is not None:
        check_observe(observe, simulation.model, simulation.data)
    return Recording(observe, check_diagnostics(diagnostics, simulation.server))


def evaluation_interval(eval_every: Any, server_steps: Any) -> int:
    """Server steps between evaluations; checks both numbers."""
    check_whole("run", "server_steps", server_steps)
    if eval_every is None:
        return max(1, int(server_steps) // 50)
    check_whole("run", "eval_every", eval_every)
    return min(int(eval_every), int(server_steps))


def _staleness(schedule: Schedule) -> dict[str, float]:
    statistics = schedule.statistics()
    return {
        "mean": statistics["staleness_mean"],
        "max": statistics["staleness_max"],
        "max_per_step_mean": statistics["max_staleness_per_step_mean"],
        "max_per_step_median": statistics["max_staleness_per_step_median"],
    }
