"""Durations on measured phones: training speed, bandwidth and availability."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr, ndtri

from jaxafl.clock.durations.cyclic_traces import CyclicTraces
from jaxafl.clock.durations.duration import Duration
from jaxafl.clock.durations.runs import Draw, Run, worked
from jaxafl.device.keys import below, per_client, per_run, uniform
from jaxafl.options import Number, Part, UserError, check_options, number, static
from jaxafl.readers import phones

Array = jax.Array


class Prepared(NamedTuple):
    """Draws per client, [N], and keys of the draws per run."""

    phone: Array  # int32, index of the phone
    link: Array  # int32, index of the link trace
    device: Array  # int32, index of the availability trace
    phase: Array  # float64, position in the availability trace at time 0, as a fraction of its period
    step_key: Array
    download_key: Array
    upload_key: Array


class Measured(Part):
    """Tables of a `device_trace`.

    Attributes:
        mean, sigma: float64 [phones], mean and standard deviation of the seconds per local step on each phone.
        links: megabits transferred along each link trace, or `None` without transfers.
        ready: seconds of readiness along each device's trace, or `None` if devices are always ready.
        options: options for which the tables were read.
    """

    mean: Array | np.ndarray
    sigma: Array | np.ndarray
    links: CyclicTraces | None
    ready: CyclicTraces | None
    options: tuple[object, ...] = static()


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
    measured: Measured = dataclasses.field(  # not an option: read again if options change, kept by rebuilt pytrees
        default=Measured(np.zeros(0), np.zeros(0), None, None, ()), kw_only=True, metadata={"option": False}
    )

    terms = 7
    references: ClassVar[tuple[str, ...]] = ("yang2021", "mao2017")

    def __post_init__(self) -> None:
        options = (self.workload, self.bandwidth, self.availability, self.phones, self.data_dir)
        if isinstance(self.measured, Measured) and self.measured.options != options:
            check_options(self)
            if self.bandwidth and self.megabytes is None:
                raise ValueError(
                    "device_trace: bandwidth=True needs megabytes, the size of the model (e.g. megabytes=6.6); or give "
                    "bandwidth=False"
                )
            object.__setattr__(self, "measured", _read(self, options))

    @property
    def waits(self) -> bool:
        return self.availability

    def check(self, num_clients: int) -> None:
        if self.measured.links is None and self.megabytes is not None:
            raise ValueError(
                f"device_trace: megabytes={self.megabytes} has no effect with bandwidth=False; leave it out"
            )
        traces = [one.count for one in (self.measured.links, self.measured.ready) if one is not None]
        if self.distinct and num_clients > min(traces, default=num_clients):
            raise UserError(
                f"device_trace: {num_clients} clients, and {min(traces)} traces; expected at most as many clients. "
                "Leave distinct=True out"
            )

    def prepare(self, keys: Sequence[Array], num_clients: int) -> Prepared:
        clients = jnp.arange(num_clients, dtype=jnp.int32)

        def choose(key: Array, count: int, distinct: bool = False) -> Array:
            if distinct:
                return jnp.argsort(uniform(per_client(key, jnp.arange(count)), jnp.float64))[:num_clients]
            return below(per_client(key, clients)[0], jnp.uint32(count))

        return Prepared(
            phone=choose(keys[0], np.shape(self.measured.mean)[0]),
            link=choose(keys[2], 1 if self.measured.links is None else self.measured.links.count, self.distinct),
            device=choose(keys[5], 1 if self.measured.ready is None else self.measured.ready.count, self.distinct),
            phase=uniform(per_client(keys[6], clients), jnp.float64),
            step_key=keys[1],
            download_key=keys[3],
            upload_key=keys[4],
        )

    def draw(self, prepared: Prepared, run: Run) -> Draw:
        work = self._compute(prepared, run) + self._transfers(prepared, run)
        if self.measured.ready is None:
            return worked(work)
        device = prepared.device[run.client]
        period = self.measured.ready.period(device)
        phase = jnp.mod(prepared.phase[run.client] * period + run.now, period)
        return Draw(work, jnp.maximum(self.measured.ready.elapsed(device, phase, work) - work, 0))

    def _compute(self, prepared: Prepared, run: Run) -> Array:
        """Draws the seconds of local training, steps · N(mean, σ²) given a positive value, by inversion."""
        phone = prepared.phone[run.client]
        mean = jnp.asarray(self.measured.mean)[phone]
        sigma = jnp.asarray(self.measured.sigma)[phone]
        share = jnp.maximum(uniform(per_run(prepared.step_key, run.client, run.run), jnp.float64), 2.0**-54)
        negative = ndtr(-mean / sigma)
        return run.local_steps * (mean + sigma * ndtri(negative + (1 - negative) * share))

    def _transfers(self, prepared: Prepared, run: Run) -> Array:
        """Computes the seconds of download and upload, both from uniformly drawn moments of the client's link trace."""
        if self.measured.links is None:
            return jnp.float64(0)
        links = self.measured.links
        link = prepared.link[run.client]
        keys = (prepared.download_key, prepared.upload_key)
        share = jnp.stack([uniform(per_run(key, run.client, run.run), jnp.float64) for key in keys])
        megabits = 8.0 * jnp.asarray(self.megabytes, jnp.float64)
        return jnp.sum(jax.vmap(lambda start: links.elapsed(link, start, megabits))(share * links.period(link)))


def _read(duration: device_trace, options: tuple[object, ...]) -> Measured:
    """Reads the tables for the options, from files if they do not ship with jaxafl."""
    if duration.phones == "three":
        mean, sigma = phones.measured_step_times(duration.workload)
    else:
        mean, sigma = phones.benchmark_step_times(duration.workload, phones.read_scores(duration.data_dir))
    links = CyclicTraces.of(phones.read_links(duration.data_dir)) if duration.bandwidth else None
    ready = CyclicTraces.of(phones.read_availability(duration.data_dir)) if duration.availability else None
    return Measured(mean, sigma, links, ready, options)
