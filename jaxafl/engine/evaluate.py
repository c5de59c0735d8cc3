"""Evaluation of models and gradients on held-out samples: test sets, the validation set, those of single clients.

Means of metrics are computed by compiled programs, metrics of whole sets on the host.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxafl.client import Client, filled, shared_of
from jaxafl.data.form import DataForm, kind_of_sample
from jaxafl.data.held_out import gather_held_out
from jaxafl.device import buffers, compiled, on_device, on_host
from jaxafl.device.compilation import results_of
from jaxafl.device.hardware import available_bytes, built_for_cpu
from jaxafl.device.keys import drawing_key, jax_key
from jaxafl.engine.devices import on_first_device
from jaxafl.engine.members import over_axis
from jaxafl.engine.problem import AT_ONCE, BATCH, DeviceData, Problem, Program
from jaxafl.engine.state import State, Version
from jaxafl.models.metrics import CONFUSION
from jaxafl.models.model import Batch, Outputs, predictions_of
from jaxafl.options import warn

Array = jax.Array
Fetch = Callable[[Array], tuple[Any, Array]]
"""Rows of a set, int32 [n], -> raw inputs, labels."""
Clients = tuple[Array, Array]
"""Clients that are evaluated on their own samples: int32 [n], the index of each sample's client (C for none), and int32
[C], the number of samples of each."""
_GRADIENT_PIECE = 256  # samples of one gradient evaluation
_PIECE, CACHE = 50, 24 * 2**20  # on a CPU: samples evaluated at once, if the results of a batch exceed CACHE bytes
_SAMPLES = 0xFFFFFFF4  # folded into the key of a server step, for the samples of its gradients


class Evaluator:
    """Metrics of the models of all members; a run over several devices evaluates on the first.

    Attributes:
        seconds: seconds of compilation.
    """

    def __init__(self, problem: Problem, members: int, device: DeviceData, model: Version) -> None:
        """Compiles the evaluation.

        Args:
            problem: of one of the members.
            members: P.
            device: data on the devices.
            model: of all members, each leaf [P, ...].
        """
        self.mesh, self.program, self.own_set = problem.mesh, problem.program(), ""
        self.device: DeviceData = device if device.validation is not None else device._replace(arrays=None)
        if self.mesh is not None:
            self.device, model = on_first_device((self.device, model))
        self.clients, self.own, self.owners = None, None, None
        self.members, self.metrics, self.warned = members, dict(problem.recording.metrics), set[str]()
        if "per_client" in self.program.recording.diagnostics:
            self.owners = owners = problem.data.owners
            self.own_set = "" if owners.of_test else "validation_"
            self.clients = on_device((owners.owner, owners.samples))
        if problem.client.personal is not None and device.owned is not None:
            self.own = on_device(np.asarray(problem.data.owners.clients, np.int32))
        given = self.device, self.clients, model
        self.compiled, self.seconds = compiled(evaluate_members, (self.program, self.own_set), given)

    def of_state(self, state: State) -> dict[str, np.ndarray]:
        """Returns metrics of the models, each [P], of single clients [P, C]; `average_...` of the mean of versions."""
        found = self.of_model(state.model)
        if self.own is not None:
            single = self.owners is not None
            own = state.memory.tree.personal, state.model
            arguments = self.device, self.own, *(own if self.mesh is None else on_first_device(own))
            found |= on_host(compiled(evaluate_personal, (self.program, single), arguments)[0](*arguments))
        if state.average is not None:
            average = self.of_model(state.model._replace(params=state.average))
            found |= {f"average_{name}": values for name, values in average.items()}
        return found

    def of_model(self, model: Version) -> dict[str, np.ndarray]:
        """Returns metrics of models, each leaf [P, ...]."""
        local = model if self.mesh is None else on_first_device(model)
        found = on_host(self.compiled(self.device, self.clients, local))
        return found | self._of_sets(local) if self.metrics else found

    def _of_sets(self, model: Version) -> dict[str, np.ndarray]:
        """Returns the metrics of whole sets, name -> [P, ...]; of single clients (`client_...`) [P, clients, ...]."""
        found: dict[str, list[np.ndarray]] = {}
        for prefix in sets_of(self.program.data, self.device):
            for member in range(self.members):
                labels, outputs = self._outputs(prefix, model, member)
                for name in self.metrics:
                    found.setdefault(f"{prefix}{name}", []).append(self._value(prefix, name, labels, outputs))
                    if self.owners is not None and prefix == self.own_set:
                        rows = np.split(np.argsort(self.owners.owner, kind="stable"), np.cumsum(self.owners.samples))
                        parts = [jax.tree.map(lambda leaf, one=one: leaf[one], (labels, outputs)) for one in rows[:-1]]
                        each = np.stack([self._value("client_", name, *part) for part in parts])
                        found.setdefault(f"client_{name}", []).append(each)
        stacked = {name: np.stack(values) for name, values in found.items()}
        further = len(self.device.tests)
        return with_test_sets(stacked, further, functools.partial(np.stack, axis=1)) if further else stacked

    def _outputs(self, prefix: str, model: Version, member: int) -> tuple[np.ndarray, Any]:
        """Returns labels [n, ...] and outputs [n, ...] of a set, computed in batches."""
        count, _ = sets_of(self.program.data, self.device)[prefix]
        place, size = on_device(np.int32(member)), min(BATCH, count)
        parts = []
        for start in range(0, count, size):
            arguments = (self.device, model, place, on_device(np.int32(start)))
            parts.append(on_host(compiled(batch_outputs, (self.program, prefix, size), arguments)[0](*arguments)))
        labels, outputs = jax.tree.map(lambda *pieces: np.concatenate(pieces)[:count], *parts)
        for leaf in jax.tree.leaves((labels, outputs)):
            leaf.flags.writeable = False  # a metric that writes would change the input of the next one
        return labels, outputs

    def _value(self, prefix: str, name: str, labels: np.ndarray, outputs: Any) -> np.ndarray:
        """Returns a metric, NaN with a warning if its function raises or returns something else than a number."""
        classes = outputs.shape[-1] if name == CONFUSION and hasattr(outputs, "shape") else 0
        shape = (classes, classes) if classes else ()
        try:
            value = np.asarray(self.metrics[name].function(labels, outputs), float)  # NaN for None
            known = prefix == "client_" or not np.isnan(value).any()  # one client's may be undefined: AUC of one class
            if value.shape == shape and known:
                return value
            got = "NaN or None" if value.shape == shape else f"an array of shape {value.shape}"
            problem = f"returned {got}; expected {f'shape {shape}' if shape else 'a number'}"
        except Exception as error:
            problem = f"raised {type(error).__name__}: {str(error).strip()[:300]}"
        if name not in self.warned:
            self.warned.add(name)
            shapes = kind_of_sample(outputs)
            warn(
                f"run: the metric {prefix + name!r} {problem}, so its value is missing; a metric without any value is "
                f"left out of the result. Outputs are {shapes} per sample; metrics of classes take outputs.argmax(-1)",
            )
        return np.full(shape, np.nan)


def evaluate(
    program: Program, own_set: str, members: int, device: DeviceData, clients: Clients | None, model: Version
) -> dict[str, Array]:
    """Computes mean loss and metrics over the test set, further test sets (`test_...`), and the validation set.

    Names of the validation set begin with `validation_`. With `clients`, those of the samples of single clients begin
    with `client_`, each [C].

    Args:
        program: static.
        own_set: static, prefix of the set on which single clients are evaluated, see `sets_of`.
        members: static, models that are evaluated at once.
        device: the data.
        clients: the single clients, or `None`.
        model: the model.
    """
    found: dict[str, Array] = {}
    for prefix in sets_of(program.data, device):
        found |= _of_set(program, members, device, prefix, clients if prefix == own_set else None, model)
    return with_test_sets(found, len(device.tests), jnp.stack) if device.tests else found


def evaluate_members(
    program: Program, own_set: str, device: DeviceData, clients: Clients | None, model: Version
) -> dict[str, Array]:
    """Evaluates the models of all members: one by one on a CPU, otherwise together.

    Args:
        program, own_set, device, clients: see `evaluate`.
        model: of all members, each leaf [P, ...].
    """
    count = len(jax.tree.leaves(model)[0])
    together = 1 if built_for_cpu() else count
    one = functools.partial(evaluate, program, own_set, together, device, clients)
    return jax.lax.map(one, model) if together < count else over_axis(one, count, (0,), 0)(model)


def with_test_sets(found: dict[str, Any], further: int, stack: Callable[[list[Any]], Any]) -> dict[str, Any]:
    """Returns metrics with `test_...` [S] of all test sets in the place of `test_1_...`, `test_2_...` of further ones.

    Args:
        found: name -> metric.
        further: S - 1.
        stack: stacks the values of the test sets.
    """
    for name in [key.removeprefix("test_1_") for key in found if key.startswith("test_1_")]:
        others = [found.pop(f"test_{number}_{name}") for number in range(1, further + 1)]
        found[f"test_{name}"] = stack([found[name], *others])
    return found


def sets_of(data: DataForm, device: DeviceData) -> dict[str, tuple[int, Fetch]]:
    """Returns the evaluated sets by the prefix of their metrics: number of samples, and function that fetches them."""
    sets: dict[str, tuple[int, Fetch]] = {}
    for number, one in enumerate((device.test, *device.tests)):
        sets[f"test_{number}_" if number else ""] = len(one[1]), functools.partial(_rows_of, one)
    if device.validation is not None:

        def fetch_held_out(rows: Array) -> tuple[Any, Array]:
            return gather_held_out(data.gather, device.arrays, *_rows_of(device.validation, rows))

        sets["validation_"] = (len(device.validation.client), fetch_held_out)
    return sets


def _rows_of(samples: Any, rows: Array) -> Any:
    return jax.tree.map(operator.itemgetter(rows), samples)


def batch_of(program: Program, fetch: Fetch, rows: Array, count: Any) -> tuple[Batch, Array]:
    """Returns rows of a set of `count` samples, beyond which they are masked, and a fixed key for their evaluation."""
    raw, labels = fetch(jnp.minimum(rows, count - 1))
    return Batch(program.data.preprocessing.transform(raw), labels, rows < count), jax_key(
        (jnp.uint32(0), jnp.uint32(0))
    )


def gradient_sum(
    program: Program, frozen: Any, model: tuple[Any, Any], fetch: Fetch, count: Any, total: Any, divisor: int = 1
) -> Any:
    """Adds Σ_i ∇f_i / `divisor` over samples 0 .. `count` - 1, without augmentation or dropout, to `total`.

    Args:
        program: of the run.
        frozen: frozen arrays of the model.
        model: parameters and non-trainable state.
        fetch: of the samples.
        count: number of samples, an int or an int32.
        total: like the parameters.
        divisor: divisor of the losses.
    """
    apply, (params, state) = program.model.bound(frozen), model
    width = _GRADIENT_PIECE if isinstance(count, Array) else min(count, _GRADIENT_PIECE)

    def add(piece: Array, total: Any) -> Any:
        places = piece * width + jnp.arange(width, dtype=jnp.int32)
        batch, key = batch_of(program, fetch, places, count)

        def loss(params: Any) -> Array:
            outputs, _ = apply(params, state, batch, key, False)
            return jnp.sum(jnp.where(batch.mask, outputs.loss, 0)) / divisor

        return jax.tree.map(jnp.add, total, jax.grad(loss)(params))

    return jax.lax.fori_loop(0, -(-count // width), add, total)


def server_gradient(
    program: Program, device: DeviceData, client: Client, model_state: Any, key: Array
) -> Callable[[Any, int | None], Any]:
    """Returns `Arrivals.validation_gradient` of a server step.

    Args:
        program, device: of the run.
        client: local training, of which frozen and personal parameters get the gradient 0.
        model_state: non-trainable state of the global model.
        key: of the server step.
    """
    count, fetch = sets_of(program.data, device)["validation_"]

    def gradient(params: Any, batch_size: int | None = None) -> Any:
        size = count if batch_size is None else batch_size
        rows = jnp.arange(count, dtype=jnp.int32)
        if batch_size is not None:
            rows = jax.random.randint(drawing_key(jax.random.fold_in(key, _SAMPLES)), (size,), 0, count, jnp.int32)
        zero, model = optax.tree.zeros_like(params), (params, model_state)
        found = gradient_sum(program, device.frozen, model, lambda at: fetch(rows[at]), size, zero, divisor=size)
        return filled(shared_of(client, found), zero)

    return gradient


def owned_sums(
    program: Program, device: DeviceData, select: Callable[[Any], Any], client: Array, params: Any, state: Any
) -> Any:
    """Returns sums over the held-out samples of a client for a model.

    Args:
        program, device: of the run.
        select: function from `Outputs` to a pytree of values [B].
        client: int32, index of the client.
        params, state: the model.
    """
    ((prefix, owned),) = device.owned.items()
    _, fetch = sets_of(program.data, device)[prefix]
    apply, count, size = program.model.bound(device.frozen), owned.samples[client], len(owned.positions)

    def fetch_owned(places: Array) -> Any:
        return fetch(owned.rows[owned.first[client] + places])

    def values(index: Array) -> Any:
        batch, key = batch_of(program, fetch_owned, index * size + owned.positions, count)
        outputs, _ = apply(params, state, batch, key, False)
        return jax.tree.map(lambda value: jnp.sum(jnp.where(batch.mask, value, 0)), select(outputs))

    dtype = jnp.result_type(float)
    zero = jax.tree.map(lambda leaf: jnp.zeros((), dtype), jax.eval_shape(values, jnp.int32(0)))
    return jax.lax.fori_loop(0, -(-count // size), lambda i, total: jax.tree.map(jnp.add, total, values(i)), zero)


def evaluate_personal(
    program: Program, single: bool, device: DeviceData, clients: Array, personal: Any, model: Version
) -> dict[str, Array]:
    """Evaluates each client's model, with its personal parameters, on its held-out samples.

    Args:
        program: static.
        single: static, True to add the metrics of single clients.
        device: the data.
        clients: int32 [C], the clients.
        personal: personal parameters of all members and clients, each leaf [P, N, ...].
        model: of all members.

    Returns:
        `personal_...` [P], means over all samples, and if `single` `client_...` [P, C].
    """
    ((_, owned),) = device.owned.items()
    samples = owned.samples[clients]

    def member(given: tuple[Any, Version]) -> dict[str, Array]:
        rows, model = given

        def one(client: Array) -> Outputs:
            params = filled(buffers.read(rows, client), model.params)
            return owned_sums(program, device, lambda outputs: outputs, client, params, model.model_state)

        sums = jax.lax.map(one, clients)
        found = _means("personal_", jax.tree.map(jnp.sum, sums), jnp.sum(samples))
        return found | (_means("client_", sums, samples) if single else {})

    return jax.lax.map(member, (personal, model))


def _means(prefix: str, sums: Outputs, count: Any) -> dict[str, Array]:
    """Returns metrics from the sums of losses and metrics over `count` samples, with a prefix before their names."""
    found = {f"{prefix}{name}": total / count for name, total in {"loss": sums.loss, **sums.values}.items()}
    for function, part in ((jnp.sqrt, sums.squares), (jnp.exp, sums.logarithms)):
        found |= {f"{prefix}{name}": function(found[f"{prefix}{name}"]) for name in part}
    return found


def _of_set(
    program: Program, members: int, device: DeviceData, prefix: str, clients: Clients | None, model: Version
) -> dict[str, Array]:
    """Returns mean loss and metrics of the set with a prefix, and those of single clients if they are given."""
    count, fetch = sets_of(program.data, device)[prefix]

    def one(rows: Array) -> Outputs:
        batch, key = batch_of(program, fetch, rows, count)
        outputs, _ = program.model.bound(device.frozen)(*model[:2], batch, key, False)
        return jax.tree.map(lambda value: jnp.where(batch.mask, value, 0), outputs)

    size, piece = _sizes(members, count, one)

    def batch(rows: Array) -> tuple[Outputs, Outputs | None]:
        if piece < size:
            pieces = jnp.pad(rows, (0, -size % piece), constant_values=count).reshape(-1, piece)
            values = jax.tree.map(lambda value: value.ravel()[:size], jax.lax.map(one, pieces))
        else:
            values = one(rows)
        return jax.tree.map(jnp.sum, values), None if clients is None else values

    sums, values = jax.lax.map(batch, jnp.arange(-(-count // size) * size, dtype=jnp.int32).reshape(-1, size))
    found = _means(prefix, jax.tree.map(jnp.sum, sums), count)
    if clients is None:
        return found
    owner, samples = clients

    def of_clients(values: Array) -> Array:
        return jax.ops.segment_sum(values.ravel()[: len(owner)], owner, len(samples) + 1)[:-1]

    return found | _means("client_", jax.tree.map(of_clients, values), samples)


def _sizes(members: int, count: int, one: Callable[[Array], Any]) -> tuple[int, int]:
    """Returns the numbers of samples whose losses are summed at once, and that are evaluated at once.

    On an accelerator both are the number that an eighth of its memory holds. On a CPU, samples are evaluated in pieces
    whose results stay in its cache. The products of one step of a recurrent network are too small to be divided.
    """
    size = min(BATCH, count)
    names, results = zip(*results_of(one, jax.ShapeDtypeStruct((size,), jnp.int32)), strict=True)
    if built_for_cpu():
        recurrent = {"scan", "while"} & {*names}
        return size, min(_PIECE, size) if max(results) > CACHE and not recurrent else size
    memory, kept = available_bytes(), members * AT_ONCE * sum(results)
    most = max(1, int(size * memory / 8 / kept)) if memory else size
    even = -(-count // -(-count // most))
    return even, even


def batch_outputs(
    program: Program, prefix: str, size: int, device: DeviceData, model: Version, member: Array, start: Array
) -> tuple[Array, Any]:
    """Returns labels and outputs of consecutive samples of a set; those after its end are repetitions of the last.

    Args:
        program, prefix, size: static; the prefix names the set, see `sets_of`.
        device: the data.
        model: of all members, each leaf [P, ...].
        member: index of the member.
        start: the first sample.
    """
    count, fetch = sets_of(program.data, device)[prefix]
    batch, key = batch_of(program, fetch, start + jnp.arange(size, dtype=jnp.int32), count)
    params, state = jax.tree.map(lambda leaf: leaf[member], model[:2])
    apply = program.model.bound(device.frozen)
    return batch.y, predictions_of(program.model.name, apply, params, state, batch, key, False)
