"""Pure functions of the state of a run, for traced code of users: `init`, `step` and `evaluate` of a simulation."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.clock.contract import Delivery
from jaxafl.device import as_arrays
from jaxafl.device.keys import Key, seed_key
from jaxafl.device.user_code import like_given
from jaxafl.engine import evaluate as evaluation
from jaxafl.engine.online import begin_online, build_online_step, raise_online_fault
from jaxafl.engine.problem import BufferSizes, Hyperparameters, Loops, Problem
from jaxafl.engine.state import Records, State, initial
from jaxafl.options import UserError, check_whole
from jaxafl.server.contract import Server, Tree

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RunState:
    """State of a run between two server steps, a pytree of arrays of at most 32 bits unless x64 is enabled.

    Attributes:
        step: int32, server steps made.
        hyperparameters: client and server, whose numbers may be replaced or batched.
        run: buffers, server state and clock.
    """

    step: Array
    hyperparameters: Hyperparameters
    run: State

    @property
    def params(self) -> Tree:
        """The parameters of the newest version."""
        return self.run.model.params


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Words:
    """A number of 64 bits as two of 32, which code traced without x64 can carry."""

    words: Array  # uint32 [..., 2]
    dtype: str = dataclasses.field(metadata={"static": True})


class _Functions(NamedTuple):
    problem: Problem
    init: Any
    step: Any
    evaluate: Any
    form: Any  # the shapes and dtypes of `RunState.run`


_CHECKED = 32  # server steps of a user-defined clock that are checked ahead: traced code cannot raise
_built: weakref.WeakKeyDictionary[Any, dict[bool, _Functions]] = weakref.WeakKeyDictionary()


class Stepwise:
    """Mixin of `Simulation`: the functions that `run` executes, as pure functions of a `RunState`."""

    def init(self, seed: int | Array = 0) -> RunState:
        """Returns the state before the first server step; `jax.vmap(sim.init)(seeds)` initialises several runs.

        The clock is advanced inside the program, so it must be `free_running`, deliver only fresh updates
        (`synchronous`), or have the methods of `jaxafl.clock.contract.OnlineClock`.

        Args:
            seed: seed of the initial model, the schedule and the mini-batches, as of `run`. A traced seed counts modulo
                2**32, and draws no attackers.

        Raises:
            ValueError, TypeError: an option cannot work, the clock cannot be advanced inside the program, or a seed is
                traced and there is an attack on a share of the clients, or in a drawn direction.
        """
        functions = _functions_of(self, seed)
        server, key = functions.problem.server, _key_of(seed)
        numbers = functions.problem.hyperparameters
        own = type(server).prepare is not Server.prepare and not type(server).__module__.startswith("jaxafl.")
        attack = self.attack  # type: ignore[attr-defined]
        if own or (attack is not None and attack.draws_ahead):
            if isinstance(seed, jax.core.Tracer):
                needing = f"{server.name}.prepare" if own else f"the attack {attack.name}"
                raise UserError(f"init: {needing} needs the seed before tracing; pass a Python int")
            numbers = self.problem(int(seed)).hyperparameters  # type: ignore[attr-defined]
        with jax.enable_x64(True):
            return functions.init(numbers, functions.problem.device, key)

    def step(self, state: RunState, n: int = 1) -> tuple[RunState, dict[str, Array]]:
        """Executes n server steps. Works in `jax.jit`, `jax.vmap` and `jax.lax.scan`.

        A run whose parameters stop being finite is not ended. In code traced by the user, the samples are constants of
        the program; and a clock or duration of another author that uses indices of 64 bits needs the whole program to
        be called within `jax.enable_x64(True)`.

        Args:
            state: of `init` or `step`.
            n: static number of server steps.

        Returns:
            The new state, and records [n, ...] with the names of a result: `time`, `arrived`, `client_id`, `run_index`,
            `staleness`, `local_steps`, `delta_norm`, `local_loss` and the server's diagnostics. In slots without an
            arrival indices are -1, and `staleness` and `local_steps` 0.

        Raises:
            ValueError: the state is of another simulation; or, outside of traced code only, the clock cannot go on.
            TypeError: this is not a state.
            RuntimeError: a run needed a version that the ring no longer held; outside of traced code only.
        """
        functions, count = _functions_of(self, state), check_whole("step", "n", n)
        _check_state(functions, state)
        with jax.enable_x64(True):
            state, records, (fault, lost) = functions.step(count, functions.problem.device, state)
        if not isinstance(lost, jax.core.Tracer):
            raise_online_fault(fault, lost)
        return state, records

    def evaluate(self, state: RunState) -> dict[str, Array]:
        """Returns the test loss and metrics of the newest version, and those of the validation set if there is one.

        Raises:
            ValueError, TypeError: the state is of another simulation, or not a state.
        """
        functions = _functions_of(self, state)
        _check_state(functions, state)
        return functions.evaluate(functions.problem.device, state.run.model)


def _functions_of(simulation: Any, given: Any) -> _Functions:
    """Returns the functions of a simulation, compiled anew if code of the user reads other values now.

    Args:
        simulation: the simulation.
        given: the argument, which is traced in code that the user traces; its constants are JAX's affair.
    """
    x64 = jnp.result_type(float) == jnp.float64
    found = _built.setdefault(simulation, {})
    if x64 not in found:
        simulation.check()
        found[x64] = _build(simulation.problem(), x64)
        if not type(simulation.clock).__module__.startswith("jaxafl."):
            simulation.compute_schedule(_CHECKED, 0)  # raises for server steps that cannot have happened
    return found[x64]


def _build(problem: Problem, x64: bool) -> _Functions:
    clock, clients = problem.clock, problem.data.num_clients
    online = hasattr(clock, "in_flight_runs")
    if not online and Delivery.STALE in clock.delivers:
        raise UserError(
            f"init: the clock {clock.name} cannot be advanced inside the program, because the versions that its runs "
            "need are known only from its schedule: use free_running or synchronous, or run()"
        )
    client = problem.client
    if client.remembers and not clock.takes_all:
        raise UserError(
            f"init: clients keep something from run to run, and {clock.name} has completed runs that no server step "
            "takes: use run()"
        )
    ahead = client.moments_ahead(clock.pause)
    if ahead or (client.charge == "executed" and not online):
        option = "rate_schedule" if ahead else "charge='executed'"
        raise UserError(f"init: {option} needs the schedule of {clock.name} ahead of training: use run()")
    capacity = clock.capacity(clients)
    ring = clock.online_ring_slots(clients) if online else 2  # type: ignore[attr-defined]
    program = problem.program(Loops(lanes_per_vmap=1 if jax.default_backend() == "cpu" else capacity))
    sizes = BufferSizes(capacity, ring, capacity)
    first_steps = np.asarray(client.steps if client.epochs is None else client.epochs, np.int32)

    def init(numbers: Hyperparameters, device: Any, key: Key) -> RunState:
        with jax.enable_x64(x64):
            state = initial(program.without_loops, sizes, numbers, device, key)
        batched = jax.tree.map(lambda leaf: leaf[None], state)
        numbers_of_clock = as_arrays(clock, jnp.float64)
        begun = begin_online(program, clients, numbers_of_clock, batched, key, jnp.asarray(first_steps))
        state = jax.tree.map(lambda leaf: leaf[0], begun)
        return RunState(jnp.int32(0), numbers, _narrow(state))

    def step(n: int, device: Any, state: RunState) -> tuple[RunState, dict[str, Array], Any]:
        one = build_online_step(program, as_arrays(clock, jnp.float64), state.hyperparameters, device)
        numbers = state.step + jnp.arange(n, dtype=jnp.int32)
        run, records = jax.lax.scan(lambda run, number: one(number, run), _widen(state.run), numbers)
        shown = _shown(records, numbers, clock.pause, jnp.float64 if x64 else jnp.float32)
        after = dataclasses.replace(state, step=state.step + n, run=_narrow(run))
        return after, shown, (run.online.clock.starts.fault, run.online.lost)

    def evaluate(device: Any, model: Any) -> dict[str, Array]:
        return evaluation.evaluate(program.without_loops, True, 1, device, None, model)

    with jax.enable_x64(True):
        form = jax.eval_shape(init, problem.hyperparameters, problem.device, problem.key).run
    return _Functions(problem, jax.jit(init), jax.jit(step, static_argnums=0), jax.jit(evaluate), form)


def _check_state(functions: _Functions, state: Any) -> None:
    if not isinstance(state, RunState):
        raise TypeError(f"step and evaluate take the state that init or step returned, got {type(state).__name__}")
    like_given("this simulation", "init", state.run, functions.form, types=True)


def _shown(records: Records, numbers: Array, pause: float, dtype: Any) -> dict[str, Array]:
    event = records.event
    runs, mask = event.runs, event.mask
    columns = {"client_id": jnp.where(mask, runs.client, -1), "run_index": jnp.where(mask, runs.run, -1)}
    columns |= {"staleness": jnp.where(mask, numbers[:, None] - runs.reference, 0)}
    time = (event.time + pause * (numbers + 1)).astype(dtype)
    return {"time": time, "arrived": mask, **columns, "local_steps": runs.local_steps * mask, **records.info}


def _key_of(seed: Any) -> Key:
    if isinstance(seed, jax.Array) and not isinstance(seed, jax.core.Tracer):
        seed = seed.item()
    if isinstance(seed, jax.core.Tracer):
        if seed.shape or not jnp.issubdtype(seed.dtype, jnp.integer):
            raise TypeError(
                f"seed must be one whole number, got {seed.dtype}{list(seed.shape)}; use jax.vmap for several"
            )
        return seed.astype(jnp.uint32), jnp.zeros_like(seed, jnp.uint32)
    return seed_key(seed)


def _narrow(state: State) -> State:
    def one(leaf: Array) -> Any:
        if leaf.dtype.itemsize < 8:
            return leaf
        return _Words(jax.lax.bitcast_convert_type(leaf, jnp.uint32), str(leaf.dtype))

    return state._replace(online=jax.tree.map(one, state.online))


def _widen(state: State) -> State:
    def one(leaf: Any) -> Any:
        return jax.lax.bitcast_convert_type(leaf.words, leaf.dtype) if isinstance(leaf, _Words) else leaf

    online = jax.tree.map(one, state.online, is_leaf=lambda leaf: isinstance(leaf, _Words))
    return state._replace(online=online)
