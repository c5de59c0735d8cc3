"""Durations on measured phones: training speed, bandwidth and availability."""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr, ndtri

from jaxafl.clock.durations.duration import ByOptions, Draw, Duration, Run, share_of, worked
from jaxafl.device.keys import below, per_client
from jaxafl.options import Number, UserError, number, static
from jaxafl.readers import phones

Array = jax.Array


class CyclicTraces(NamedTuple):
    """Piecewise linear, non-decreasing functions A_i of time on [0, P_i].

    They are continued by A_i(t + P_i) = A_i(t) + A_i(P_i).

    Attributes:
        time: float64 [knots], seconds. Trace i has the knots `offsets[i]:offsets[i + 1]`, from 0 to its period P_i.
        amount: float64 [knots], values of A_i at these times; 0 at the first, non-decreasing, above 0 at the last.
        offsets: int32 [traces + 1], first knot of each trace, followed by the number of knots.
    """

    time: Array | np.ndarray
    amount: Array | np.ndarray
    offsets: Array | np.ndarray

    def period(self, trace: Array) -> Array:
        """Returns the period P_i in seconds."""
        return self.time[self.offsets[trace + 1] - 1]

    def elapsed(self, trace: Array, phase: Array, amount: Array) -> Array:
        """Computes the least d with A_i(phase + d) - A_i(phase) = amount, in O(log knots of the trace).

        Args:
            trace: int32, i.
            phase: float64, seconds in [0, P_i).
            amount: float64, >= 0.

        Returns:
            d in seconds; 0 if the amount is 0.
        """
        time, amounts, offsets = map(jnp.asarray, self)
        first = offsets[trace]
        last = offsets[trace + 1] - 1
        period = time[last]
        total = amounts[last]
        goal = self._interpolate(time, amounts, phase, first, last) + amount
        laps = jnp.maximum(jnp.ceil(goal / total) - 1, 0)  # complete periods before the goal is reached
        reached = self._interpolate(amounts, time, goal - laps * total, first, last)
        return jnp.where(amount > 0, jnp.maximum(laps * period + reached - phase, 0), 0.0)

    def _interpolate(self, given: Array, wanted: Array, value: Array, first: Array, last: Array) -> Array:
        """Interpolates `wanted` where `given` first reaches the value, between knots `first` and `last`."""

        def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = bounds  # given[low - 1] < value, and value <= given[high] unless it exceeds the last knot
            middle = (low + high) // 2
            less = given[middle] < value
            return jnp.where(less & (low < high), middle + 1, low), jnp.where(less, high, middle)

        right, _ = jax.lax.fori_loop(0, len(self.time).bit_length(), halve, (first + 1, last))
        width = given[right] - given[right - 1]
        share = jnp.clip((value - given[right - 1]) / jnp.where(width > 0, width, 1), 0, 1)
        return wanted[right - 1] + share * (wanted[right] - wanted[right - 1])


class Measured(NamedTuple):
    """Tables of a `device_trace`.

    Attributes:
        mean, sigma: float64 [phones], mean and standard deviation of the seconds per local step on each phone.
        links: megabits transferred along each link trace, or `None` without transfers.
        ready: seconds of readiness along each device's trace, or `None` if devices are always ready.
    """

    mean: Array | np.ndarray
    sigma: Array | np.ndarray
    links: CyclicTraces | None
    ready: CyclicTraces | None


class Prepared(NamedTuple):
    """The tables, draws per client, [N], and the keys of all draws."""

    measured: Measured
    phone: Array  # int32, index of the phone
    link: Array  # int32, index of the link trace
    device: Array  # int32, index of the availability trace
    phase: Array  # float64, position in the availability trace at time 0, as a fraction of its period
    keys: Sequence[Array]


class device_trace(Duration):
    """Measured phones: local steps on the client's phone, transfers over its link, waits until it is ready.

    Each client is assigned a phone, a link trace and a device's availability, each uniformly at random. A run computes
    for K · t seconds, t drawn per run from N(mean, σ²) given t > 0 (the phone's measured time per mini-batch).

    With `bandwidth` a run also downloads and uploads the model. Each way starts at a uniformly drawn moment of the
    periodic link trace, and takes the least d with ∫ rate = 8 · megabytes over d seconds. With `availability` a run
    works only while its device is ready (idle, charging and on WiFi), and otherwise waits. The device's trace is
    periodic, with a uniformly drawn position at simulated time 0. Waiting counts as hanging, not as work.

    The training times ship with jaxafl. Links (269 traces, HSDPA and FCC), availability (the devices of FLASH's
    1,000-device trace that are ever ready) and benchmark scores are read from `device_traces` in the data directory.
    Some devices are ready for only seconds a day, so clocks that wait for all clients may take days.

    Args:
        workload: measured workload: `"femnist_cnn"`, `"celeba_cnn"`, `"shakespeare_lstm"` or `"reddit_lstm"`.
        megabytes: size of the model in 10⁶ bytes; needed with `bandwidth`.
        bandwidth: transfer models over measured links.
        availability: let runs wait until their device is ready. The clock `interrupting`, products, and `mac_network`
            with `freeze=True` refuse it.
        phones: set of phones. `"three"`: FLASH's three measured phones. `"benchmark"`: the phones of the AI-Benchmark
            list, with log t interpolated in log(score) between these three and constant outside of them.
        distinct: give each link trace and each device's availability to one client at most.
        data_dir: data directory; by default `$JAXAFL_DATA_DIR`, else the directory of TFDS.

    Raises:
        ValueError: an option has an invalid value, or a file is not in the documented format.
        FileNotFoundError: a needed file is missing.

    References:
        Yang et al., "Characterizing impacts of heterogeneity in federated learning upon large-scale smartphone data"
        (FLASH), WWW 2021; Zhang et al., "FLHetBench", CVPR 2024; Ignatov et al., "AI Benchmark", 2019; Riiser et al.,
        "Commute path bandwidth traces from 3G networks", MMSys 2013; Mao et al., "Neural adaptive video streaming with
        Pensieve", SIGCOMM 2017.
    """

    workload: Literal["femnist_cnn", "celeba_cnn", "shakespeare_lstm", "reddit_lstm"] = static(default="femnist_cnn")
    megabytes: Number | None = number(default=None, least=0)
    bandwidth: bool = static(default=True)
    availability: bool = static(default=False)
    phones: Literal["three", "benchmark"] = static(default="three")
    data_dir: str | os.PathLike[str] | None = static(default=None)
    distinct: bool = static(default=False, kw_only=True)

    terms = 7
    waits = ByOptions(False, lambda one: one.availability)
    references = ("yang2021", "mao2017")

    @property
    def measured(self) -> Measured:
        """The tables, from files if they do not ship with jaxafl."""
        directory = phones.data_directory(self.data_dir)
        return _read(self.workload, self.bandwidth, self.availability, self.phones, directory)

    def check(self, num_clients: int) -> None:
        if self.bandwidth != (self.megabytes is not None):
            raise ValueError(
                f"device_trace: megabytes={self.megabytes} with bandwidth={self.bandwidth}; expected the size of the "
                "model if, and only if, it is transferred. Give e.g. megabytes=6.6, or bandwidth=False"
            )
        traces = [len(one.offsets) - 1 for one in (self.measured.links, self.measured.ready) if one is not None]
        if self.distinct and num_clients > min(traces, default=num_clients):
            raise UserError(
                f"device_trace: {num_clients} clients, and {min(traces)} traces; expected at most as many clients. "
                "Leave distinct=True out"
            )

    def prepare(self, keys: Sequence[Array], num_clients: int) -> Prepared:
        clients, measured = jnp.arange(num_clients, dtype=jnp.int32), self.measured

        def choose(key: Array, count: int, distinct: bool = False) -> Array:
            if distinct:
                return jnp.argsort(share_of(key, jnp.arange(count)))[:num_clients]
            return below(per_client(key, clients)[0], jnp.uint32(count))

        return Prepared(
            jax.tree.map(jnp.asarray, measured),
            phone=choose(keys[0], len(measured.mean)),
            link=choose(keys[2], 1 if measured.links is None else len(measured.links.offsets) - 1, self.distinct),
            device=choose(keys[5], 1 if measured.ready is None else len(measured.ready.offsets) - 1, self.distinct),
            phase=share_of(keys[6], clients),
            keys=keys,
        )

    def draw(self, prepared: Prepared, run: Run) -> Draw:
        work = self._compute(prepared, run) + self._transfers(prepared, run)
        ready = prepared.measured.ready
        if ready is None:
            return worked(work)
        device = prepared.device[run.client]
        period = ready.period(device)
        phase = jnp.mod(prepared.phase[run.client] * period + run.now, period)
        return Draw(work, jnp.maximum(ready.elapsed(device, phase, work) - work, 0))

    def _compute(self, prepared: Prepared, run: Run) -> Array:
        """Draws the seconds of local training, steps · N(mean, σ²) given a positive value, by inversion."""
        phone = prepared.phone[run.client]
        mean, sigma = prepared.measured.mean[phone], prepared.measured.sigma[phone]
        share = jnp.maximum(share_of(prepared.keys[1], run.client, run.run), 2.0**-54)
        negative = ndtr(-mean / sigma)
        return run.local_steps * (mean + sigma * ndtri(negative + (1 - negative) * share))

    def _transfers(self, prepared: Prepared, run: Run) -> Array:
        """Computes the seconds of download and upload, both from uniformly drawn moments of the client's link trace."""
        links = prepared.measured.links
        if links is None:
            return jnp.float64(0)
        link = prepared.link[run.client]
        share = jnp.stack([share_of(key, run.client, run.run) for key in prepared.keys[3:5]])
        megabits = 8.0 * jnp.float64(self.megabytes)
        return jnp.sum(jax.vmap(lambda start: links.elapsed(link, start, megabits))(share * links.period(link)))


@functools.lru_cache(maxsize=16)
def _read(workload: str, bandwidth: bool, availability: bool, kind: str, directory: pathlib.Path) -> Measured:
    """Reads the tables for the options, once for equal options."""
    if kind == "three":
        mean, sigma = phones.measured_step_times(workload)
    else:
        mean, sigma = phones.benchmark_step_times(workload, phones.read_scores(directory))
    links = CyclicTraces(*phones.read_links(directory)) if bandwidth else None
    ready = CyclicTraces(*phones.read_availability(directory)) if availability else None
    return Measured(mean, sigma, links, ready)
