"""Compatibility checks between server, clock and local training."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import jax
import numpy as np

from jaxafl.client import Client
from jaxafl.clock.checks import check_clock
from jaxafl.clock.contract import Clock, Delivery
from jaxafl.clock.discarded import lists_untaken
from jaxafl.clock.order import steps_change_order
from jaxafl.options import UserError, bounds_of, check_number, check_options, shown
from jaxafl.server.aggregate.contract import Aggregate
from jaxafl.server.contract import Needs, Server, unfit


def check_parts(server: Server, clock: Clock, client: Client, counts: np.ndarray) -> None:
    """Raises `ValueError` or `TypeError` for invalid or incompatible options.

    Args:
        server, clock, client: parts of the simulation.
        counts: int [N], sample counts of the clients.
    """
    clients = len(counts)
    first = {name: schedule.first(server.name, name) for name, schedule in server.schedules.items()}
    for part in (client, dataclasses.replace(server, **first) if first else server):
        check_options(part, clients)
    client.check(clients)
    client.local_steps(counts)  # raises if the local steps overflow int32
    check_clock(clock, clients)
    why = unfit(server, clock)
    if why:
        fitting = ", ".join(sorted(server.clocks)) or "none of jaxafl's own"
        why += _advice_to_accept(server, clock)
        raise ValueError(
            f"the server {server.name} does not run on the clock {clock.name}; it runs on {fitting} ({why})"
        )
    if server.single and clock.capacity(clients) != 1:
        one = "free_running with buffer=1" if "free_running" in server.clocks else " or ".join(sorted(server.clocks))
        raise ValueError(
            f"{server.name} steps for every arrival, but the clock {clock.name} brings {clock.capacity(clients)} per "
            f"server step; use {one}"
        )
    if not isinstance(server.needs, Needs):
        raise UserError(f"the server {server.name}: needs must be jaxafl.server.Needs(...), got {shown(server.needs)}")
    early = getattr(clock, "before_step", False)
    early |= clock.capacity(clients) > 1 and getattr(clock, "dispatch", "") != "step"
    if server.needs.client_models and Delivery.CONTINUOUS in clock.delivers and early:
        raise UserError(
            f"{server.name} keeps a model of every client, which a server step replaces, and on {clock.name} a client "
            "may start again before the step that takes its last update; expected free_running with buffer=1 or "
            "dispatch='step', without before_step, or rounds such as synchronous"
        )
    server.check(clock, client, clients)
    if isinstance(aggregate := getattr(server, "aggregate", None), Aggregate):
        aggregate.check(prepared(server, clock, client, counts, 0)[0].at_step(0), clock, client, clients)
    if server.buffer > 1 and Delivery.CONTINUOUS in clock.delivers and clock.capacity(clients) == 1:
        warnings.warn(
            f"{server.name} is made for a buffer of several arrivals ({server.buffer} in its paper), and the clock "
            f"{clock.name} brings one per server step: {clock.name}(buffer=M) brings more",
            stacklevel=2,
        )
    if client.sampling == "epochs" and (server.needs.replies or clock.chooses_steps):
        raise ValueError(
            "sampling='epochs' needs runs of equal length to go on from, but "
            f"{clock.name if clock.chooses_steps else server.name} changes the number of local steps"
        )
    if client.remembers:
        _check_memory(server, clock, client)
    if server.needs.replies:
        _check_replies(server, client)
    if sees_training(server, clock, client):
        _check_online(server, clock, client, clients)
    elif client.charge == "executed" and steps_change_order(clock, clients):
        raise ValueError(
            f"the clock {clock.name} says that durations do not change who arrives (`order_free`), but who arrives "
            "depends on the local steps that runs make: say order_free = False in its class"
        )


def prepared(server: Server, clock: Clock, client: Client, counts: np.ndarray, seed: int) -> tuple[Server, Client]:
    """Returns `Server.prepare` of these arguments; raises `UserError` unless it is a server and a client."""
    found: Any = server.prepare(clock, client, counts, seed)
    both = isinstance(found, tuple | list) and len(found) == 2
    if not both or not isinstance(found[0], Server) or not isinstance(found[1], Client):
        raise UserError(
            f"the server {server.name}: prepare(clock, client, counts, seed) must return the server and the client, "
            f"such as (self, client); got {shown(found)}"
        )
    return found[0], found[1]


def check_schedules(server: Server, server_steps: int) -> None:
    """Raises `ValueError` if a schedule of the server leaves the bounds of its option in one of T server steps.

    Of more than 16,384 server steps, as many are evaluated, evenly spaced.
    """
    steps = np.unique(np.linspace(0, server_steps - 1, min(server_steps, 2**14)).astype(np.int32))
    fields = {field.name: bounds_of(field) for field in dataclasses.fields(server)}
    for name, schedule in server.schedules.items():
        values = np.asarray(jax.vmap(schedule)(steps))
        worst = {int(np.argmin(values)), int(np.argmax(values))}  # a NaN is both
        limits = {limit: getattr(fields[name], limit) for limit in ("least", "above", "most", "below")}
        for place in sorted(worst):
            check_number(server.name, f"{name} at server step {steps[place]}", values[place].item(), **limits)


def sees_training(server: Server, clock: Clock, client: Client) -> str:
    """Returns the reason why the clock must run online, as its schedule depends on training; empty if it need not."""
    if server.needs.replies:
        return "the server replies with the number of local steps"
    if client.charge == "executed" and not clock.order_free:
        return "Client(charge='executed') charges the time of the local steps that a run made"
    return ""


def _advice_to_accept(server: Server, clock: Clock) -> str:
    """Returns advice for a class that overrides `update` if a parent class accepts the clock; empty otherwise."""
    for parent in type(server).__mro__[1:]:
        overridden = getattr(parent, "update", None) is not type(server).update
        if issubclass(parent, Server) and parent is not Server and overridden and not unfit(parent, clock):
            name = parent.__name__
            return (
                f"; {name} does, but its `update` is overridden: if the new one does too, say accepts = {name}.accepts"
            )
    return ""


def _check_memory(server: Server, clock: Clock, client: Client) -> None:
    """Raises `ValueError` if the runs that change what a client keeps are not known."""
    if client.correction is not None and Delivery.REPEATED in clock.delivers:
        raise ValueError(
            f"Client: correction={client.correction!r} sends one message per run, and {clock.name} takes runs several "
            "times; expected another clock, such as free_running"
        )
    if client.correction is not None and client.correction.sums_updates:
        aggregate = getattr(server, "aggregate", None)
        robust = isinstance(aggregate, Aggregate)
        if robust or "rejected" in server.counters:
            given = f"aggregate={aggregate!r}" if robust else "it rejects some"
            raise UserError(
                f"Client: correction={client.correction!r} adds all received updates to the model, whatever "
                f"{server.name} does with them ({given}); expected a server that takes their mean, such as fedavg. "
                "Leave out one of the two"
            )
    if client.personal is not None and server.needs.client_models:
        raise ValueError(f"Client: personal parameters do not fit {server.name}, which keeps a model of every client")
    kept = "clients keep something from run to run, such as errors or control variates"
    if client.charge == "executed" and not clock.order_free:
        raise ValueError(f"Client: {kept}, and charge='executed' on {clock.name} trains runs twice; leave one out")
    if clock.takes_all or (lists_untaken(clock) and not sees_training(server, clock, client)):
        return
    raise ValueError(
        f"Client: {kept}, also in completed runs that no server step takes, and {clock.name} does not list those; "
        "expected a clock that takes all runs, such as free_running. A clock that does "
        "says takes_all = True"
    )


def _check_replies(server: Server, client: Client) -> None:
    if np.ndim(np.asarray(client.epochs if client.steps is None else client.steps, object)) > 1:
        raise ValueError(
            f"{server.name} adapts the number of local steps that a client begins with: give Client(steps=K) or "
            "Client(epochs=K) one number, or one per client"
        )
    if client.patience is not None:
        raise ValueError(f"patience does not work with {server.name}, which adapts local steps")


def _check_online(server: Server, clock: Clock, client: Client, num_clients: int) -> None:
    if Delivery.REPLIES not in clock.delivers:
        raise ValueError(
            f"the clock {clock.name} cannot be advanced during training, as {server.name} with "
            f"Client(charge={client.charge!r}) needs; expected a clock with Delivery.REPLIES, such as free_running. "
            "charge='executed' also works on clocks whose durations do not change who arrives: synchronous, "
            "stale_rounds, and user-defined clocks with `order_free = True` in the class that defines `next`"
        )
    if ahead := client.moments_ahead(clock.pause):
        raise ValueError(
            f"rate_schedule needs the {', '.join(ahead)} of a run when it is trained, which is not known if the clock "
            f"is advanced during training ({server.name}, charge={client.charge!r})"
        )
    if clock.capacity(num_clients) < 1:
        raise ValueError(f"the clock {clock.name} brings no arrivals")
