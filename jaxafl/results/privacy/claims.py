"""The noise of a simulation, and the reasons why no differential privacy can be claimed for it."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.client import first_shared, shared_of, traffic
from jaxafl.client.correction.contract import Correction
from jaxafl.client.sending import traffic_of_correction
from jaxafl.clock.accounts.contract import Mechanism
from jaxafl.clock.contract import Clock, Delivery
from jaxafl.clock.durations.duration import Duration, reads
from jaxafl.engine.check import Parts, Rule, broken
from jaxafl.engine.state import first_state
from jaxafl.server.contract import Arrivals
from jaxafl.server.fedopt import OptaxServer


def _means_planned(parts: Parts) -> bool:
    """Returns True if there is no noise yet, so that it is planned, and the server steps by a mean or an aggregate."""
    planned = parts.noise[0] is None and not parts.server.needs.client_rows
    return planned and isinstance(parts.server, OptaxServer)


_NOT_PRIVATE: tuple[Rule, ...] = (
    (
        lambda p: p.server.needs.replies,
        "the server {server.name} replies with local steps that depend on the updates, so participations depend on "
        "data. Use a server that does not reply",
    ),
    (
        lambda p: p.server.needs.validation,
        "the server {server.name} computes gradients on the validation set, held-out samples of clients, without "
        "noise. Use another server",
    ),
    (
        lambda p: p.client.charge == "executed",
        "Client(charge='executed') makes the time of a run depend on its losses, so participations depend on data. Use "
        "charge='planned'",
    ),
    (
        lambda p: _draws_by_samples(p.clock, p.data.counts),
        "the clock {clock.name} draws clients by their sample counts, so participations depend on data. Use "
        "select='uniform', or weights that do not depend on data",
    ),
    (
        lambda p: (
            p.client.epochs is not None
            and p.client.batch_size is not None
            and _steps_change_times(p.clock, p.data.num_clients)
        ),
        "the clock {clock.name} has durations that depend on local steps, which depend on sample counts with "
        "Client(epochs={client.epochs}), so participations or their times depend on data. Use Client(steps=...), or "
        "durations with per='run'",
    ),
    (
        lambda p: p.client.correction and traffic_of_correction(p.client.correction, shared_of(p.client, p.form[0])).up,
        "Client(correction={client.correction!r}) sends a message without noise beside the update. Leave it out",
    ),
    (
        lambda p: (
            p.client.correction is not None
            and type(p.client.correction).serve is not Correction.serve
            and p.noise[1] == "server"
        ),
        "the server uses the received updates for Client(correction={client.correction!r}), too, without the noise "
        "that it adds to their sum. Use noise at the clients, as in Client(upload=afl.upload.chain("
        "afl.upload.clip_by_global_norm(C), afl.upload.add_noise(z * C))), or leave the correction out",
    ),
    (
        lambda p: jax.tree.leaves(p.form[1]),
        "the model {model.name} sends non-trainable state (batch statistics) without noise. Freeze it (`frozen` of the "
        "model), or use group or layer normalisation",
    ),
    (
        lambda p: " and ".join(_weights_read(p)),
        "the server {server.name} (with correction={client.correction!r}) weighs updates by {found} of the clients, "
        "which depend on data. Give weights='uniform' where there is that option, or a server such as fedbuff()",
    ),
    (
        lambda p: (
            p.noise[0] is None
            and not _means_planned(p)
            and (p.arrivals > 1 or p.server.needs.client_rows)
            and not p.server.bounded
        ),
        "the server {server.name} may combine updates, or kept ones, with other weights than those of a mean, which "
        "the planned noise does not cover. Use e.g. fedbuff or mifa, noise at the clients, or bounded = True in the "
        "class if no update weighs more than in a mean",
    ),
    (
        lambda p: _means_planned(p) and p.aggregate is not None and not p.aggregate.linear,
        "{p.aggregate!r} is no mean of updates, for which the noise is planned. Leave it out",
    ),
    (
        lambda p: _means_planned(p) and not p.prepared_server.bounded,
        "the server {server.name} may combine updates before they are clipped, or give one of M updates a weight above "
        "1 / M, which the planned noise does not cover. Use another server, or options such as fedbuff(reduce='mean')",
    ),
    (
        lambda p: p.noise[1] == "server" and p.attack is not None and p.attack.colludes,
        "the attackers of {attack.name} answer to honest updates, so one update changes several. Use another attack, "
        "or noise at the clients",
    ),
)


def mechanism_of(parts: Parts) -> Mechanism:
    """Returns the noise of a checked simulation, and why privacy cannot be claimed."""
    prepared = parts.clock.prepare(parts.data.counts, lambda: traffic(parts.client, *parts.form))
    parts = dataclasses.replace(parts, clock=prepared)
    kept = parts.server.needs.client_rows > 0
    return Mechanism(*parts.noise, kept, Delivery.CONTINUOUS not in prepared.delivers, broken(_NOT_PRIVATE, parts))


def _steps_change_times(clock: Clock, num_clients: int) -> bool:
    """Returns True if the times of server steps may depend on the local steps of runs."""
    durations = [one for one in _leaves(clock, Duration) if isinstance(one, Duration)]
    return clock.chooses_steps or any("local_steps" in reads(one, num_clients) for one in durations)


def _draws_by_samples(clock: Clock, counts: np.ndarray) -> bool:
    """Returns True if the weights of a prepared clock's draws are the sample counts, or proportional to them."""
    numbers = [np.asarray(one) for one in _leaves(clock, Duration) if np.shape(one) == counts.shape]
    same = any(np.array_equal(one, counts) for one in numbers)
    proportional = any(np.allclose(one * counts.sum(), counts * one.sum()) for one in numbers)
    return same or (proportional and bool(np.ptp(counts) > 0))


def _leaves(clock: Clock, kind: type) -> list[Any]:
    """Returns the numbers and the parts of a kind of a clock, of its rules, and of clocks within it."""
    return jax.tree.leaves((clock, clock.composed), is_leaf=lambda node: isinstance(node, kind))


def _weights_read(parts: Parts) -> list[str]:
    """Returns the inputs besides the updates that depend on data and that change the models of three server steps."""
    clients, size, client, server = parts.data.num_clients, parts.arrivals, parts.client, parts.prepared_server
    real, none = jnp.result_type(float), jnp.zeros(size, jnp.int32)
    place = jnp.arange(size)
    params = jax.tree.map(lambda leaf: jnp.ones(2, leaf.dtype), parts.form[0])
    several = jax.tree.map(lambda leaf: jnp.sin(1.0 + jnp.arange(2.0 * size)).reshape(size, 2), params)

    def steps(samples: Any, loss: Any, local_steps: Any) -> Any:
        state, now, found = first_state(server, params, samples), params, []
        shared = None if client.correction is None else first_shared(client, params)
        for t in range(3):
            who = (place + t) % clients
            columns: Any = dict(mask=none == 0, client=who, multiplicity=none + 1, kind=none, staleness=none + t)
            columns |= dict(delta=several, base=several, samples=samples[who], local_steps=local_steps[place + t])
            columns |= dict(loss=loss[place + t], step=jnp.int32(t), time=jnp.ones((), real), key=jax.random.key(t))
            seen = Arrivals(**columns, columns=defaultdict(lambda: jnp.int32(0)))
            outcome = server.update(now, state, seen)
            now, state = outcome.params, outcome.state
            if client.correction is not None:
                seen = seen._replace(delta=shared_of(client, several))
                shared, _ = client.correction.serve(shared, shared_of(client, now), None, seen, clients)
            found.append((now, outcome.served, shared, state))  # what the state holds may count in a later step
        return found

    usual = {"the sample counts": jnp.ones(clients, real), "the losses": jnp.ones(size + 2, real)}
    usual["the local steps"] = jnp.ones(size + 2, jnp.int32)

    @jax.jit
    def run(*given: Any) -> Any:
        leaves = [leaf for leaf in jax.tree.leaves(steps(*given)) if jnp.issubdtype(leaf.dtype, jnp.number)]
        return jnp.concatenate([*map(jnp.ravel, leaves)])

    before, read = run(*usual.values()), []
    others = [(name, values + jnp.arange(len(values), dtype=values.dtype)) for name, values in usual.items()]
    others += [("the losses", jnp.full(size + 2, jnp.nan))]  # a bounded rate may hide the others
    for name, values in others:
        after = run(*(usual | {name: values}).values())
        read += [] if name in read or np.array_equal(before, after, equal_nan=True) else [name]
    known = client.epochs is None and client.patience is None  # local steps are those that were asked for
    return [name for name in read if not (known and name == "the local steps")]
