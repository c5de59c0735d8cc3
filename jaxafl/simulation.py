"""`Simulation`: the parts of an experiment, and the calls that check, schedule and run it."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl import results
from jaxafl.callbacks.base import Callback, Run, check_callbacks
from jaxafl.callbacks.checkpoint import Checkpoint
from jaxafl.callbacks.hooks import Hook, RunOptions, Watch, run_with_hooks
from jaxafl.callbacks.identity import identity
from jaxafl.callbacks.limits import Limited, limits_of
from jaxafl.callbacks.progress import Reporter, reporter_of
from jaxafl.client import Client, Traffic, traffic
from jaxafl.client.attack.contract import Attack
from jaxafl.clock.accounts.contract import Mechanism
from jaxafl.clock.contract import Clock
from jaxafl.clock.live import Live
from jaxafl.clock.schedule import Schedule
from jaxafl.data.federated import FederatedData
from jaxafl.data.held_out import like_samples
from jaxafl.device import as_arrays, devices_of, on_host
from jaxafl.engine.check import EVAL_EVERY, Parts, check_simulation, evaluation_interval
from jaxafl.engine.devices import mesh_of, put_data
from jaxafl.engine.execution import Execution
from jaxafl.engine.loop import Trained
from jaxafl.engine.plan import Origin, Plan
from jaxafl.engine.planned import Planned
from jaxafl.engine.problem import BATCH, Hyperparameters, Observe, Problem, Recording, Speed
from jaxafl.engine.recorded import check_metrics, evaluated
from jaxafl.engine.replying import Replying
from jaxafl.engine.sizes import plan_of
from jaxafl.engine.state import shapes_of_model
from jaxafl.engine.step import check_diagnostics
from jaxafl.engine.stepping import Stepwise
from jaxafl.models.model import Model, Precision
from jaxafl.options import Summarised, UserError, all_named, did_you_mean, shown
from jaxafl.references import citation
from jaxafl.results.failures import warned
from jaxafl.server.contract import Server

if TYPE_CHECKING:  # xarray takes a third of a second to import, so it is when a result is made
    import xarray as xr


_KINDS: dict[str, Any] = {"data": FederatedData, "model": Model, "client": Client, "server": Server, "clock": Clock}
_KINDS |= {"attack": Attack | None}


@all_named
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Simulation(Stepwise, Summarised):
    """Asynchronous federated learning: data, model, local training, server and clock.

    Attributes:
        data: samples split over N clients, and a test set.
        model: initial parameters and the loss of a batch.
        client: local training.
        server: combines the updates that arrive into the next version.
        clock: determines when clients train and when their updates arrive.
        precision: `"float32"`, `"tf32"` or `"bfloat16"` for the model's computations, see `jaxafl.models.Model.at`;
            parameters, updates and the server's step are float32.
        attack: clients that send forged updates or train on forged labels, one of `jaxafl.attack`; `None`: all honest.
    """

    data: FederatedData
    model: Model
    client: Client
    server: Server
    clock: Clock
    precision: Precision = "float32"
    attack: Attack | None = None

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if isinstance(value, kind):
                continue
            room = {"model": "models", "attack": "client.attack"}.get(name, name)
            known = importlib.import_module(f"jaxafl.{room}").__all__
            meant = "; call it" if isinstance(value, type) else did_you_mean(value, [f"{one}()" for one in known])
            raise TypeError(f"Simulation({name}=...) got {shown(value)}, no {name}; see jaxafl.{room}{meant}")
        self.model.at(self.precision)  # raises for a precision that cannot work

    def summary(self) -> dict[str, Any]:
        """Returns the parts, the model in its precision, and the attack if there is one."""
        parts = {"data": self.data, "model": self.model.at(self.precision), "client": self.client}
        parts |= {"server": self.server, "clock": self.clock}
        return parts | ({} if self.attack is None else {"attack": self.attack})

    def check(self) -> None:
        """Raises `ValueError` or `TypeError` for anything that cannot work; `schedule` and `run` call it first."""
        check_simulation(Parts(**self.summary() | {"clock": self.clock_of_run()}))

    @property
    def clock_sees_training(self) -> str:
        """Why the schedule depends on the training, so that the clock runs between calls; empty if it does not."""
        return "the server replies with the number of local steps" if self.server.needs.replies else ""

    def schedule(
        self, server_steps: int | None = None, seed: int = 0, *, until: Mapping[str, float] | None = None
    ) -> Schedule:
        """Computes the arrivals of every server step, their times and staleness, without training.

        Args:
            server_steps: T; optional if `until` ends the schedule.
            seed: seed of the schedule.
            until: the exact limits of `run`: `time`, `updates` or `bytes`, or `epsilon` with `delta`.

        Raises:
            ValueError, TypeError: an option cannot work, there is neither `server_steps` nor `until`, a limit is not
                exact, or the schedule depends on the training (`clock_sees_training`).
        """
        self.check()
        if why := self.clock_sees_training:
            raise ValueError(
                f"the schedule of {self.server.name} depends on the training, because {why}; run() returns it"
            )
        steps = limits_of("schedule", until).of_run(self, server_steps, seed).without_training()
        return dataclasses.replace(self.compute_schedule(steps, seed), mechanism=self.mechanism, traffic=self.traffic)

    def live(self, seed: int) -> Live:
        """Returns the clock of a checked simulation, to run ahead of the training."""
        steps = self.client.local_steps(self.data.counts)
        return Live(self.clock_of_run(), self.data.num_clients, steps, seed)

    def compute_schedule(self, server_steps: int, seed: int) -> Schedule:
        """Computes the schedule of a checked simulation."""
        return self.live(seed).complete(server_steps)

    def plan(self, server_steps: int, seed: int = 0, *, lanes: int | None = None) -> Plan:
        """Returns the plan of all server steps at once, which `run` makes in windows: segments, and slots."""
        return plan_of(self.schedule(server_steps, seed), self.problem(seed), lanes)

    def run(
        self,
        server_steps: int | None = None,
        *,
        until: Mapping[str, float] | None = None,
        eval_every: int | None = None,
        seed: int = 0,
        lanes: int | None = None,
        chunk: int | None = None,
        observe: Observe | None = None,
        diagnostics: str | Sequence[str] = (),
        metrics: Mapping[str, Any] | None = None,
        progress: bool | str | Reporter = False,
        save: str | None = None,
        deterministic: bool = False,
        devices: Any = None,
        callbacks: Sequence[Callback] | Callback = (),
        folder: str | os.PathLike[str] | None = None,
        checkpoint_every: int | str = "30s",
    ) -> xr.Dataset:
        """Simulates `server_steps` server steps, or fewer if a limit is reached before.

        Args:
            server_steps: T; optional if `until` ends the run.
            until: limits, e.g. `{"time": 3600, "accuracy": 0.9}`; the first one reached ends the run, and is the
                attribute `stopped`. Exact limits: `time`, simulated seconds, and `epsilon` with `delta` (the run ends
                with the last server step within them); `updates` and `bytes` sent (with the step that reaches them).
                Limits checked at evaluations: `seconds` of wall-clock time since compilation, and targets of metrics.
            eval_every: server steps between evaluations on the test set; by default 20. The
                initial and the last model are always evaluated.
            seed: seed of the initial model, the schedule and the mini-batches.
            lanes: runs trained at once; `None` chooses. It changes speed, and results by float rounding at most.
            chunk: lanes per `vmap`, a divisor of `lanes`; `None` chooses. It changes the same.
            observe: traced function of the parameters, returning a dict of small arrays recorded for every version,
                x_0 included.
            diagnostics: optional records, which cost memory, or a pass over the training data per server step.
                `"drift"`: ‖x_t - x_s‖ of every arrival. `"gradient_norm"`: ‖∇F(x_t)‖², as `gradient_norm_squared`.
                `"asynchronous_error"`: ‖∇F(x_t) - (x_t - x_{t+1}) / η‖, η the recorded `server_rate` (0: ‖∇F(x_t)‖).
                `"average"`: test metrics of the mean of all versions x_1 .. x_t (of x_0 at first). `"per_client"`:
                metrics along `population`, on each client's own test samples, else on those of `data.with_validation`;
                NaN for clients without any. Of more than 10,000 clients, a fixed random sample. `"local_accuracy"`:
                accuracy of the client's own model on these samples, for every arrival, before it is merged.
            metrics: metrics of whole sets, name -> function of (labels [n, ...], outputs [n, ...]) or `models.Metric`,
                e.g. `{"auc": roc}`, computed on the host. `{"confusion": models.confusion_matrix}` gives [C, C]. Where
                another one raises or returns no number, it is NaN, with a warning.
            progress: True for a progress bar (in a log, a line every half minute), a name to show, or a `Reporter`.
            save: path of a NetCDF file to write; checked before the run. If writing fails, the error's attribute
                `dataset` is the result.
            deterministic: on a GPU, only operations that give the same bits every time, which may take longer.
            devices: `"all"`, a number, or devices that share the run. Each has a part of the lanes, and a copy of all
                else.
            callbacks: receive every chunk of server steps, and can stop the run: see `jaxafl.callbacks`.
            folder: folder in which the run is saved. The same call resumes it; when it has ended, `server_steps` can be
                larger, and `until` another that is not reached before. All else must be the same.
            checkpoint_every: server steps between saves, or a time such as `"30s"` or `"5min"`, lengthened
                automatically so that saving blocks at most 2 % of the run and writing takes at most a fifth of it.

        SIGTERM, SIGUSR1 and Ctrl-C end a run between two pieces of some seconds, after a save if it has a folder.
        `jaxafl.callbacks.Interrupted` (a `KeyboardInterrupt`) carries the partial result as `dataset`.

        Returns:
            A dataset with dimensions `step` (server steps), `arrival`, `evaluation`, `population` (clients), and with
            `observe` `version`: accuracy and loss against simulated time and server steps, the arrivals with their
            staleness, and the server's diagnostics. A run whose parameters stop being finite ends there with a warning:
            the attributes `failed_step` and `failed_client` name the step and the client of the update.

        Raises:
            ValueError, TypeError: an option cannot work; raised before compilation.
            OSError, MemoryError: `save` or `folder` cannot be written; the run does not fit.
        """
        options: Any = dict(locals())  # `_run` reads those of `train`
        if save is not None:
            results.check_path(save, results.BEGINS)
        dataset = self._run(server_steps, functools.partial(self.result, seed=seed), options)
        if save is not None:
            results.save(dataset, save)
        return dataset

    def train(self, server_steps: int | None = None, **options: Unpack[RunOptions]) -> Trained:
        """Runs with the options of `run` but `save`.

        Returns:
            The trained `params` and `model_state`, the result of `run` as `dataset`, and the raw diagnostics.
        """
        seed = options.get("seed", 0)
        return self._run(server_steps, lambda run: run._replace(dataset=self.result(run, seed)), options)

    def _run(self, server_steps: int | None, finish: Callable[[Trained], Any], options: RunOptions) -> Any:
        self.check()
        seed, until, folder = options.get("seed", 0), options.get("until"), options.get("folder")
        limited = limits_of("run", until).of_run(self, server_steps, seed)
        begun, server_steps = time.perf_counter(), limited.server_steps
        callbacks = (*check_callbacks(options.get("callbacks", ())), *limited.stops)
        asked = options.get("eval_every")
        every = evaluation_interval(asked, server_steps)
        recording = self.recording(options.get("observe"), options.get("diagnostics", ()), options.get("metrics"))
        named, progress = f"{self.server.name} on {self.clock.name}", options.get("progress", False)
        watching = Watch(reporter_of(progress, named, server_steps)).recorded()
        lanes, chunk, deterministic = options.get("lanes"), options.get("chunk"), options.get("deterministic", False)
        chosen, origin, keeper = options.get("devices"), None, None
        devices = () if chosen is None else tuple(devices_of(chosen))
        if folder is not None:
            kept = dict(seed=seed, eval_every=asked or EVAL_EVERY, lanes=lanes, chunk=chunk)
            kept |= {"deterministic": deterministic, "devices": len(devices) if len(devices) > 1 else None}
            current = identity(self.summary(), **recording.asked, **kept)
            keeper = Checkpoint(folder, options.get("checkpoint_every", "30s"), current, server_steps, until)
            server_steps, origin = keeper.ends_at, keeper.start()
            lanes, chunk = keeper.speed if lanes is None and chunk is None else (lanes, chunk)
        speed = Speed(lanes, chunk, deterministic, devices)
        with watching as watch:
            runs = [self.as_run(seed, server_steps, recording)] if callbacks else []
            hook = Hook(watch, callbacks, runs, keeper)
            execution = self.execution(server_steps, every, speed, seed, recording, origin, limited)
            (result,) = run_with_hooks(execution, server_steps, every, begun, hook, [finish], limited)
        return warned(result) if any(execution.failures()) else result

    def execution(
        self,
        server_steps: int,
        every: int,
        speed: Speed,
        seed: int,
        recording: Recording = Recording(),  # noqa: B008 (immutable)
        origin: Origin | None = None,
        limited: Limited | None = None,
    ) -> Execution:
        """Returns the execution of a run of a checked simulation, before its first server step."""
        problem = self.problem(seed, recording, mesh_of(speed.devices))
        if self.clock_sees_training:
            return Replying([problem], speed, limited.of_steps(problem.clock) if limited else None)
        return Planned([problem], self.live(seed), server_steps, every, speed, origin)

    def result(self, trained: Trained, seed: int) -> xr.Dataset:
        """Returns the result of a finished run."""
        return results.of_run(trained, self.summary(), seed)

    def as_run(
        self, seed: int, server_steps: int, recording: Recording, member: Mapping[str, Any] | None = None
    ) -> Run:
        """Returns the description of a run that callbacks receive.

        Args:
            seed, server_steps, recording: of the run.
            member: of a sweep.
        """
        named = f"{self.server.name} on {self.clock.name}, {self.data.name}"
        options = results.options_of_parts(self.summary())
        ways = evaluated(self.model.at(self.precision), self.data, recording, self.client.personal is not None)
        return Run(named, options, seed, server_steps, member or {}, self.citation(), metrics=ways)

    def problem(self, seed: int = 0, recording: Recording = Recording(), mesh: Any = None) -> Problem:  # noqa: B008
        """Returns the problem that the engine runs; the simulation must have been checked."""
        parts = self.summary() | {"clock": self.clock_of_run()}
        parts.pop("attack", None)
        server, client = self.server.prepare(parts["clock"], self.client, self.data.counts, seed)
        attack = self.attack and self.attack.prepare(self.data.num_clients, self.data.num_classes, seed)
        client = client.prepared(int(self.data.counts.max()), attack)
        numbers = as_arrays(Hyperparameters(client, server), jnp.result_type(float))
        owners = self.data.test_clients is not None or self.data.validation is not None
        owned = "local_accuracy" in recording.diagnostics or (client.personal is not None and owners)
        device = put_data(self.data, parts["model"], mesh, owned)
        return Problem(**parts, hyperparameters=numbers, device=device, seed=seed, recording=recording, mesh=mesh)

    def citation(self) -> str:
        """Returns BibTeX for jaxafl and for everything that a run of this simulation uses."""
        return citation(*self.summary().values())

    def predict(self, trained: Any, x: Any) -> Any:
        """Returns what the network returns for raw samples, e.g. logits [n, C], in NumPy arrays.

        Args:
            trained: the result of `train`, a state of `init` or `step`, or parameters (`models.load_parameters`) of a
                model without non-trainable state.
            x: raw samples [n, ...], as in `data.x_test`. They are preprocessed as in evaluation.

        Raises:
            ValueError: samples have other shapes than those of the simulation, or the model has no outputs
                (`from_functions` without `outputs`).
        """
        model = self.model.at(self.precision)
        params, state = _parameters_of(trained)
        samples = like_samples("predict", x, self.data.x_test)
        count = len(jax.tree.leaves(samples)[0])
        size = min(BATCH, count)
        parts = []
        for start in range(0, count, size):
            rows = np.minimum(np.arange(start, start + size), count - 1)
            inputs = self.data.preprocess(jax.tree.map(lambda leaf, rows=rows: leaf[rows], samples))
            parts.append(on_host(model.outputs(params, inputs, state)))
        return jax.tree.map(lambda *pieces: np.concatenate(pieces)[:count], *parts)

    def clock_of_run(self) -> Clock:
        """Returns the clock for the data, the model and the local training."""
        return self.clock.prepare(self.data.counts, self.traffic)

    def mechanism(self) -> Mechanism:
        """Returns the noise of a checked simulation, and the reason why no privacy can be claimed, if there is one."""
        from jaxafl.results.privacy.claims import mechanism_of

        return mechanism_of(Parts(**self.summary()))

    def traffic(self) -> Traffic:
        """Returns the bytes of an update and of a model that are sent."""
        return traffic(self.client, *shapes_of_model(self.model.at(self.precision), self.data.form))

    def recording(self, observe: Any = None, diagnostics: Any = (), metrics: Any = None) -> Recording:
        """Returns the checked records of a run."""
        names = check_diagnostics(diagnostics, self.server)
        if "local_accuracy" in names and (self.client.upload is not None or self.attack is not None):
            cause = "an attack" if self.client.upload is None else "Client(upload=...)"
            raise UserError(f"run: local_accuracy is that of x_s + Δ, and {cause} changes Δ. Leave one out")
        unknown = [*filter(names.__contains__, ("local_accuracy", "gradient_norm", "asynchronous_error"))]
        if self.client.personal is not None and unknown:
            raise UserError(f"run: {unknown[0]} is not known for Client(personal=...). Leave one out")
        if self.client.personal is not None and metrics and "per_client" in names:
            raise UserError("run: metrics of whole sets per client do not see personal parameters. Leave one out")
        of_sets = () if metrics is None else check_metrics(metrics, self.model.at(self.precision))
        return Recording(observe, names, of_sets)


def _parameters_of(trained: Any) -> tuple[Any, Any]:
    """Returns parameters and non-trainable state."""
    if hasattr(trained, "model_state"):
        return trained.params, trained.model_state
    return tuple(trained.run.model[:2]) if hasattr(trained, "run") else (trained, {})
