"""What must hold between the parts of a simulation: a table of (predicate, message), checked once before a run."""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.client import (
    Client,
    begin,
    check_examples,
    check_lasting,
    first_memory,
    first_shared,
    local_step,
    sent_update,
    shared_of,
    takes_examples,
)
from jaxafl.client.attack.contract import Attack
from jaxafl.client.upload.contract import leaves_of, received_size
from jaxafl.clock.contract import Clock, Delivery
from jaxafl.clock.live import check_clock
from jaxafl.clock.rules import at_step
from jaxafl.data.federated import FederatedData
from jaxafl.data.form import kind_of_sample, stored_targets
from jaxafl.device import as_arrays
from jaxafl.device.buffers import num_bytes
from jaxafl.device.hardware import available_bytes
from jaxafl.device.keys import seed_key, unpack
from jaxafl.engine.problem import Problem, Program
from jaxafl.engine.recorded import remember_metrics
from jaxafl.engine.state import State, example_batch, shapes_of_model
from jaxafl.models.model import Batch, Model, recorded_classes
from jaxafl.options import UserError, check_options, check_whole, warn
from jaxafl.options.user_code import like_given, traced_method
from jaxafl.server.aggregate.contract import Aggregate
from jaxafl.server.contract import Server, unfit

EVAL_EVERY = 20
"""The default number of server steps between evaluations."""
_BATCH = 2


@dataclasses.dataclass(frozen=True, eq=False)
class Parts:
    """The parts of a simulation, and what tables of rules ask about them; the clock is the user's, or that of a run."""

    data: FederatedData
    model: Model
    client: Client
    server: Server
    clock: Clock
    attack: Attack | None = None

    @property
    def arrivals(self) -> int:
        """Arrivals of every server step; if their number varies, N, and at least 2."""
        return self.clock.arrivals(self.data.num_clients) or max(self.data.num_clients, 2)

    @property
    def aggregate(self) -> Any:
        """Rule in the place of the server's mean, if there is one."""
        return getattr(self.server, "aggregate", None)

    @property
    def fitting(self) -> str:
        """Names of the clocks on which the server runs."""
        return ", ".join(sorted(self.server.clocks)) or "none of jaxafl's own"

    @property
    def starts_early(self) -> bool:
        """True if a client may start again before the server step that takes its last update."""
        begins = self.clock.composed and self.clock.composed.begins
        early = not getattr(begins, "newest", True) or (self.arrivals > 1 and not isinstance(begins, at_step))
        return Delivery.CONTINUOUS in self.clock.delivers and early

    @functools.cached_property
    def form(self) -> tuple[Any, Any]:
        """Shapes of parameters and non-trainable state."""
        return shapes_of_model(self.model, self.data.form)

    @property
    def noise(self) -> tuple[Any, str]:
        """Noise multiplier, a number or [N] (`None` without noise), and where the noise is added.

        It is that of the server's aggregate, else that of an upload that bounds the norm of Δ and then adds noise.
        Uploads after the noise that read the run (`reads_run`) may read sample counts, and those that remember may send
        what runs had that no server step has taken.
        """
        if noise := getattr(self.aggregate, "noise", None):  # 0 adds no noise
            return noise, "server"
        norm = None
        uploads = [] if self.client.upload is None else self.client.upload.in_order
        for place, one in enumerate(uploads):
            if one.noise is not None and norm is not None:
                later = uploads[place:]
                more = any(part.reads_run or (part.remembers and not self.clock.takes_all) for part in later)
                return (None, "server") if more else (np.asarray(one.noise) / np.asarray(norm), "client")
            norm = one.bound(norm)
        return None, "server"

    @functools.cached_property
    def prepared_server(self) -> Any:
        """The server of a run, at its first step."""
        return self.server.prepare(self.clock, self.client, self.data.counts, 0)[0].at_step(0)


Rule = tuple[Callable[[Any], Any], str]
"""Predicate that is true if parts do not fit, and the message with `{found}` for what it returned."""

_FIT: tuple[Rule, ...] = (
    (
        lambda p: unfit(p.server, p.clock),
        "the server {server.name} does not run on the clock {clock.name}; it runs on {p.fitting} ({found})",
    ),
    (
        lambda p: p.server.single and p.arrivals != 1,
        "{server.name} steps for every arrival, but the clock {clock.name} may bring {p.arrivals} per server step; "
        "expected one. Use {p.fitting}, with buffer=1 if the clock has a buffer. `arrivals` of a clock of your own "
        "promises it",
    ),
    (
        lambda p: p.server.needs.client_models and p.starts_early,
        "{server.name} keeps a model of every client, which a server step replaces, and on {clock.name} a client may "
        "start again before the step that takes its last update; expected free_running with buffer=1 or "
        "dispatch='step', without before_step, or rounds such as synchronous",
    ),
    (
        lambda p: p.server.needs.validation and p.data.validation is None,
        "{server.name}: {data.name} has no validation set, and this server computes gradients on it; expected one. "
        "Give data.with_validation(0.1)",
    ),
    (
        lambda p: isinstance(p.aggregate, Aggregate) and p.arrivals < p.aggregate.least_arrivals,
        "{server.name}: the clock {clock.name} brings {p.arrivals} arrivals per server step, too few for "
        "{p.aggregate!r}; expected at least {p.aggregate.least_arrivals}. Give a larger buffer or cohort",
    ),
    (
        lambda p: (
            p.client.sampling == "epochs"
            and (p.server.needs.replies or p.clock.chooses_steps or Delivery.PARTIAL in p.clock.delivers)
        ),
        "Client: sampling='epochs' needs runs of equal length to go on from, but {server.name} on {clock.name} changes "
        "the number of local steps; expected sampling='replacement'",
    ),
    (
        lambda p: p.client.correction is not None and Delivery.REPEATED in p.clock.delivers,
        "Client: correction={client.correction!r} sends one message per run, and {clock.name} takes runs several "
        "times; expected another clock, such as free_running",
    ),
    (
        lambda p: (
            getattr(p.client.correction, "sums_updates", False)
            and (isinstance(p.aggregate, Aggregate) or p.server.drops or Delivery.REGIONAL in p.clock.delivers)
        ),
        "Client: correction={client.correction!r} adds all received updates to the model, whatever {server!r} does "
        "with them; expected a server that takes their mean, such as fedavg. Leave out one of the two",
    ),
    (
        lambda p: p.client.personal is not None and p.server.needs.client_models,
        "Client: personal parameters do not fit {server.name}, which keeps a model of every client",
    ),
    (
        lambda p: p.server.needs.replies and max(np.ndim(p.client.steps or 0), np.ndim(p.client.epochs or 0)) > 1,
        "{server.name} adapts the number of local steps that a client begins with: give Client(steps=K) or "
        "Client(epochs=K) one number, or one per client",
    ),
    (
        lambda p: p.server.needs.replies and p.client.patience is not None,
        "Client: patience does not work with {server.name}, which adapts local steps. Leave one out",
    ),
    (
        lambda p: p.server.needs.replies and Delivery.REPLIES not in p.clock.delivers,
        "the server {server.name} replies with local steps, and the clock {clock.name} does not hear replies; expected "
        "one with Delivery.REPLIES, such as free_running",
    ),
    (
        lambda p: p.client.charge == "executed" and not p.clock.order_free,
        "Client: charge='executed' on {clock.name}, where durations change who arrives; expected a clock that is "
        "`order_free`, such as stale_rounds, or synchronous without extra and deadlines. Leave charge out",
    ),
    (
        lambda p: not p.model.sees_mask and pads(p.client, p.data.counts) and jax.tree.leaves(p.form[1]),
        "the network of {model.name} keeps state from batch to batch (batch statistics?) and takes no mask, so that it "
        "would count the padding of local epochs and full batches. Let its __call__ take `mask` (bool [B]) and leave "
        "padding out, as jaxafl.models.BatchNorm does, or train with steps=... and a batch_size",
    ),
)


def pads(client: Client, counts: np.ndarray) -> bool:
    """Returns True if some mini-batches are padded; `counts`: int [N], sample counts."""
    if client.batch_size is None:
        return True
    sizes = np.asarray(client.batch_size)
    piece = client.micro_batch or sizes.max()
    partial = (client.epochs is not None or client.sampling == "epochs") and bool(np.any(counts % sizes))
    return partial or bool(np.any((sizes < piece) & (sizes < sizes.max()) | (sizes > piece) & (sizes % piece > 0)))


def broken(rules: tuple[Rule, ...], parts: Parts) -> str:
    """Returns the message of the first rule that does not hold; empty if all hold."""
    for breaks, message in rules:
        if found := breaks(parts):
            return message.format(p=parts, found=found, **vars(parts))
    return ""


@functools.cache
def _warn_once(message: str) -> None:
    warn(message)  # Python forgets that it has warned whenever a block changes the filters


def check_simulation(parts: Parts) -> None:
    """Raises `ValueError` or `TypeError` for options that are invalid, or parts that do not fit together."""
    server, clock, client, clients = parts.server, parts.clock, parts.client, parts.data.num_clients
    first = server
    if server.schedules:
        values = {name: schedule.first(server.name, name) for name, schedule in server.schedules.items()}
        first = dataclasses.replace(server, **values)
    check_options(client, clients)
    check_options(first, clients)
    client.check(clients)
    client.local_steps(parts.data.counts)  # raises if the local steps overflow int32
    check_clock(clock, clients)
    if message := broken(_FIT, parts):
        raise UserError(message)
    server.check(clock, client, clients)
    if isinstance(parts.aggregate, Aggregate):
        parts.aggregate.check(parts.prepared_server, clock, client, clients)
    if server.buffer > 1 and Delivery.CONTINUOUS in clock.delivers and parts.arrivals == 1:
        _warn_once(
            f"{server.name} is made for a buffer of several arrivals ({server.buffer} in its paper), and the clock "
            f"{clock.name} brings one per server step. With a buffer=M, a clock such as free_running brings more"
        )
    if parts.attack is not None:
        check_options(parts.attack, clients)
        parts.attack.check(clients, parts.data.num_classes, parts.arrivals)
    _trace_training(parts)


# by model, and by data: forms of local training that were traced
_traced: weakref.WeakKeyDictionary[Model, weakref.WeakKeyDictionary[FederatedData, set[Any]]]
_traced = weakref.WeakKeyDictionary()


def _trace_training(parts: Parts) -> None:
    """Traces one local step, from the samples to what the server receives, and checks the shapes of each part of it."""
    data, model, client = parts.data, parts.model, parts.client
    known = _traced.setdefault(model, weakref.WeakKeyDictionary()).setdefault(data, set())
    leaves, structure = jax.tree.flatten(client)
    form = structure, tuple(map(np.shape, leaves)), jnp.result_type(float)
    if form in known:
        return
    if client.upload is not None:
        sent = shared_of(client, parts.form[0])
        client.upload.check(leaves_of(sent))
        received_size(client.upload, sent)
    if client.reset == "never":
        check_lasting(client, parts.form[0], data.num_clients)
    owner = f"the model {model.name}"
    batch = jax.eval_shape(functools.partial(example_batch, data.form))
    samples, classes, metrics = kind_of_sample(batch.x), set[int](), list[str]()

    def step(arrays: Any, frozen: Any, client: Client, key: Any, count: Any) -> Any:
        params, state = model.init(jax.random.key(0), example_batch(data.form))
        kept: Any = {"memory": first_memory(client, params)} if client.remembers else {}
        if client.correction is not None:
            kept["shared"] = first_shared(client, params)
        lane = begin(client, params, state, key, jnp.int32(0), jnp.int32(0), **kept)
        if takes_examples(unpack(lane.optimizer_state)):
            check_examples(client, state)

        def apply(params: Any, state: Any, batch: Batch, key: Any, train: bool) -> Any:
            if kind_of_sample(batch.x) != samples:
                raise UserError(f"{data.name}: training samples are {kind_of_sample(batch.x)}, test samples {samples}")
            with recorded_classes(batch.y) as found, traced_method(owner, "apply", "the key that it is given"):
                outputs, new = model.bound(frozen)(params, state, batch, key, train)
            classes.update(found)
            metrics[:] = outputs.values
            return outputs, like_given(owner, "apply", new, state, types=True)

        fetch = functools.partial(data.form.fetch, arrays)
        new = local_step(client, apply, fetch, cast(int, client.micro_batch), count, lane)
        return lane, new, sent_update(client, new.params, new, count)

    numbers = as_arrays(client.prepared(_BATCH), jnp.result_type(float))
    count = np.int32(1)
    advice = "the key that it is given (an optimiser: a field `rng_key` of its state)"
    with traced_method(f"{owner} with {client.optimizer_name}", "a local step", advice):
        traced = jax.eval_shape(step, data.arrays, model.held(batch), numbers, seed_key(0), count)
    lane, new, (delta, _, memory) = traced
    after, before = (new.params, new.optimizer_state), (lane.params, lane.optimizer_state)
    like_given(f"Client({client.optimizer_name})", "update", after, before, types=True)
    like_given(f"Client(upload={client.upload!r}, correction={client.correction!r})", "the end of a run",
               (delta, memory and memory._replace(optimizer=())), (lane.params, lane.memory), types=True)  # fmt: skip
    if classes:
        _check_labels(data, model, min(classes))
    remember_metrics(model, metrics)
    known.add(form)


def _check_labels(data: FederatedData, model: Model, classes: int) -> None:
    """Raises `UserError` for labels that a cross-entropy has no output for; `classes`: the fewest outputs of one."""
    labels = data.y_test, stored_targets(data.gather, data.arrays)
    most = int(max(map(functools.partial(np.max, initial=-1), labels)))
    if classes <= most:
        binary = ". Binary losses such as sigmoid_cross_entropy take the labels 0 and 1" if classes == 2 else ""
        raise UserError(
            f"the model {model.name} tells {classes} classes apart, but labels of {data.name} go up to {most}: "
            f"give its last layer {data.num_classes} outputs, one per class, for softmax_cross_entropy{binary}"
        )


def evaluation_interval(eval_every: Any, server_steps: Any) -> int:
    """Returns the server steps between evaluations, `EVAL_EVERY` by default; checks both numbers."""
    every = EVAL_EVERY if eval_every is None else check_whole("run", "eval_every", eval_every)
    return min(every, check_whole("run", "server_steps", server_steps))


def check_fit(problem: Problem, program: Program, state: State) -> None:
    """Raises `MemoryError` if the runs of a program do not fit on each device; `state`: shapes of their state."""
    shapes, mesh = program.shapes, program.mesh
    names = {"ring": f"ring of {shapes.ring} versions", "store": f"store of {shapes.store} updates"}
    names |= {"lanes": f"{shapes.lanes} lanes", "server": "server state (with its rows per client)"}
    parts: dict[str, Any] = dict(zip(map(names.get, State._fields, State._fields), state, strict=True))
    parts |= {"training data": problem.device.arrays, "the model's frozen arrays": problem.device.frozen}
    available = available_bytes(1 if mesh is None else mesh.size)
    sizes = {name: num_bytes(part) for name, part in parts.items()}
    total = sum(sizes.values())
    if available is not None and total > available:
        largest_first = sorted(sizes.items(), key=lambda item: -item[1])
        listing = ", ".join(f"{name} {size / 2**30:.2f} GiB" for name, size in largest_first if size)
        raise MemoryError(
            f"this run needs at least {total / 2**30:.2f} GiB and the device has {available / 2**30:.2f} GiB: "
            f"{listing}. A lower concurrency needs fewer ring slots; servers that keep a row per client need fewer "
            "clients or a smaller model"
        )
