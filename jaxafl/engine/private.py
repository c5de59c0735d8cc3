"""Mechanism of a simulation's privacy: its noise, and checks that participations and weights do not depend on data."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.client import Client
from jaxafl.client.correction import Correction
from jaxafl.client.memory import first_shared
from jaxafl.client.personal import sent_of, shared_of
from jaxafl.client.sending import traffic, traffic_of_correction
from jaxafl.client.upload import Upload, add_noise, chain, clip_by_global_norm, top_k
from jaxafl.clock.contract import Clock, Delivery
from jaxafl.clock.order import steps_change_times
from jaxafl.clock.privacy import Mechanism
from jaxafl.data.federated import FederatedData
from jaxafl.device import as_arrays
from jaxafl.device.dependence import inputs_read
from jaxafl.device.reads import written_in
from jaxafl.engine.state import example_batch, first_state
from jaxafl.models.model import Model
from jaxafl.options import shown
from jaxafl.server.aggregate.private import bounds_weights, private_mean
from jaxafl.server.contract import Arrivals, Server
from jaxafl.server.fedopt import OptaxServer
from jaxafl.server.fitting import prepared


def noise_of(client: Client, server: Server) -> tuple[Any, str]:
    """Returns the noise multiplier, a number or [N] (`None` if there is none), and where the noise is added.

    It is that of the server's `private_mean`, else that of an upload that clips, then perhaps keeps the largest
    numbers, and then adds noise: std / max_norm. Subclasses may do something else, so their noise is not known. Uploads
    of other authors after the noise may read sample counts.
    """
    aggregate = getattr(server, "aggregate", None)
    if type(aggregate) is private_mean and aggregate.noise_multiplier:  # 0 adds no noise
        return aggregate.noise_multiplier, "server"
    norm = None
    upload = client.upload
    parts = [upload.parts[name] for name in upload.order] if type(upload) is chain else []
    for place, part in enumerate(parts):
        if type(part) is clip_by_global_norm:
            norm = np.asarray(part.max_norm)
        elif type(part) is add_noise and norm is not None:
            read = any(isinstance(one, type) and issubclass(one, Upload) for one in written_in(parts[place:]))
            return (None, "server") if read else (np.asarray(part.std) / norm, "client")
        elif type(part) is not top_k:  # others may enlarge the norm
            norm = None
    return None, "server"


def mechanism_of(
    data: FederatedData, model: Model, client: Client, server: Server, clock: Clock, attack: Any = None
) -> Mechanism:
    """Returns the noise of a checked simulation, and why privacy cannot be claimed."""
    noise, at = noise_of(client, server)
    kept = server.needs.client_rows > 0
    form = jax.eval_shape(lambda: model.init(jax.random.key(0), example_batch(data.form)))
    clock = clock.prepare(data.counts, lambda: traffic(client, *form))
    refused = _refused(data, model, form, client, server, clock, at)
    if noise is None and not (refused or kept):
        refused = _uncovered(prepared(server, clock, client, data.counts, 0)[0].at_step(0), clock, data.num_clients)
    if at == "server" and attack is not None and attack.colludes:
        refused = (
            f"the attackers of {attack.name} answer to honest updates, so one update changes several. Use another "
            "attack, or noise at the clients"
        )
    return Mechanism(noise, at, kept, Delivery.CONTINUOUS not in clock.delivers, refused)


def _uncovered(server: Any, clock: Clock, num_clients: int) -> str:
    """Returns the reason why noise that is planned for the sum of M updates does not cover one of them; else empty."""
    if not isinstance(server, OptaxServer):
        if server.needs.linear or clock.capacity(num_clients) == 1:
            return ""
        return (
            f"the server {server.name} may combine the updates of a step otherwise than by their sum, for which the "
            "noise is planned. Use another server, e.g. fedbuff, or Needs(linear=True) in the class if it takes sums"
        )
    if server.aggregate is not None and type(server.aggregate) is not private_mean:
        return f"{server.aggregate!r} is no mean of updates, for which the noise is planned. Leave it out"
    if not server.clips_single_updates:
        return f"the server {server.name} may combine updates before they are clipped. Use another server, e.g. fedbuff"
    if bounds_weights(server, clock, num_clients):
        return ""
    return (
        f"the server {server.name} may give one of M updates a weight above 1 / M, which the planned noise does not "
        "cover. Use another server, or options such as fedbuff(reduce='mean')"
    )


def _refused(
    data: FederatedData, model: Model, form: tuple[Any, Any], client: Client, server: Server, clock: Clock, at: str
) -> str:
    if server.needs.replies:
        return (
            f"the server {server.name} replies with local steps that depend on the updates, so participations depend "
            "on data. Use a server that does not reply"
        )
    if server.needs.validation:
        return (
            f"the server {server.name} computes gradients on the validation set, held-out samples of clients, without "
            "noise. Use another server"
        )
    if client.charge == "executed":
        return (
            "Client(charge='executed') makes the time of a run depend on its losses, so participations depend on data. "
            "Use charge='planned'"
        )
    if _draws_by_samples(clock, data.counts):
        return (
            f"the clock {clock.name} draws clients by their sample counts, so participations depend on data. Use "
            "select='uniform', or weights that do not depend on data"
        )
    of_samples = client.epochs is not None and client.batch_size is not None
    if of_samples and steps_change_times(clock, data.num_clients):
        return (
            f"the clock {clock.name} has durations that depend on local steps, which depend on sample counts with "
            f"Client(epochs={shown(client.epochs)}), so participations or their times depend on data. Use "
            "Client(steps=...), or durations with per='run'"
        )
    params, state = form
    if traffic_of_correction(client.correction, sent_of(client, params)).up:
        return f"Client(correction={client.correction!r}) sends a message without noise beside the update. Leave it out"
    if client.correction is not None and type(client.correction).serve is not Correction.serve and at == "server":
        return (
            f"the server uses the received updates for Client(correction={client.correction!r}), too, without the "
            "noise that it adds to their sum. Use noise at the clients, as in Client(upload=afl.upload.chain("
            "afl.upload.clip_by_global_norm(C), afl.upload.add_noise(z * C))), or leave the correction out"
        )
    if jax.tree.leaves(state):
        return (
            f"the model {model.name} sends non-trainable state (batch statistics) without noise. Freeze it "
            "(`frozen` of the model), or use group or layer normalisation"
        )
    if read := _weights_read(data, client, server, clock, params):
        return (
            f"the server {server.name}{'' if client.correction is None else f' with {client.correction!r}'} weighs "
            f"updates by {' and '.join(read)} of the clients, which depend on data. Use uniform weights"
        )
    return ""


def _draws_by_samples(clock: Clock, counts: np.ndarray) -> bool:
    """Returns True if the weights of a prepared clock's draws are the sample counts, or proportional to them."""
    weights = getattr(getattr(clock, "clock", clock), "weights", None)  # `warm_up` has its protocol there
    if weights is None:
        return False
    of_clock = np.broadcast_to(np.asarray(weights, np.float64), counts.shape)
    proportional = np.allclose(of_clock * counts.sum(), counts * of_clock.sum())
    return bool(np.array_equal(of_clock, counts) or (proportional and np.ptp(counts) > 0))


def _weights_read(data: FederatedData, client: Client, server: Server, clock: Clock, params: Any) -> list[str]:
    """Returns the inputs besides the updates that depend on data and that the server's next model reads."""
    clients, arrivals = data.num_clients, clock.capacity(data.num_clients)
    server, _ = prepared(server, clock, client, data.counts, 0)
    real, integer = jnp.result_type(float), jnp.zeros(arrivals, jnp.int32)
    several = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((arrivals, *leaf.shape), leaf.dtype), params)

    def step(samples: Any, loss: Any, local_steps: Any, server: Server, params: Any, several: Any) -> Any:
        now = server.at_step(0)
        state = first_state(now, params, samples)
        who = jnp.arange(arrivals, dtype=jnp.int32) % clients
        columns: Any = dict(mask=integer == 0, client=who, multiplicity=integer + 1, kind=integer, staleness=integer)
        columns |= dict(delta=several, base=several, samples=samples[who], local_steps=local_steps, loss=loss)
        columns |= dict(step=jnp.int32(0), time=jnp.zeros((), real), key=jax.random.key(0))
        seen = Arrivals(**columns)
        after = now.update(params, state, seen).params
        if client.correction is None:
            return after
        shared = first_shared(client, params)
        seen = seen._replace(delta=shared_of(client, several))
        return client.correction.serve(shared, shared_of(client, after), None, seen, clients), after

    given = (jnp.zeros(clients, real), jnp.zeros(arrivals, real), integer, as_arrays(server, real))
    jaxpr = jax.make_jaxpr(step)(*given, params, several).jaxpr
    read = inputs_read(jaxpr, [True] * len(jaxpr.outvars))[:3]
    known = client.epochs is None and client.patience is None  # local steps are those that were asked for
    named = zip(("the sample counts", "the losses", "the local steps"), [*read[:2], read[2] and not known], strict=True)
    return [name for name, one in named if one]
