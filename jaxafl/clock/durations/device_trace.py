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
from jaxafl.device.keys import Key, below, per_client, per_run, uniform
from jaxafl.options import Number, Part, check_options, number, static
from jaxafl.readers import phones

Array = jax.Array


class Prepared(NamedTuple):
    """What is drawn once per client, [N], and the keys of what is drawn per run."""

    phone: Array  # int32
    link: Array  # int32
    device: Array  # int32, whose availability
    phase: Array  # float64, where in its availability trace the device is at time 0, as a share of the trace
    step_key: Key
    download_key: Key
    upload_key: Key


class Measured(Part):
    """The tables of a `device_trace`.

    Attributes:
        mean, sigma: float64 [phones], seconds per local step on each phone.
        links: megabits transferred along each link trace, or `None`.
        ready: seconds for which each device has been ready, or `None` where all always are.
        options: those that the tables were read for.
    """

    mean: Array | np.ndarray
    sigma: Array | np.ndarray
    links: CyclicTraces | None
    ready: CyclicTraces | None
    options: tuple[object, ...] = static()


class device_trace(Duration):
    """Measured phones: time of a local step on the client's phone, transfers over its link, waits until it is ready.

    A client is assigned, once, a phone, a link trace and a device's availability, each uniformly at random. A run
    computes for K · t seconds, t drawn per run from N(mean, σ²) given t > 0 (the phone's measured time per mini-batch).
    With `bandwidth` it also downloads and uploads the model: each way takes the least d with ∫ rate = 8 · megabytes
    from a moment of the link trace, drawn uniformly, to d seconds later; the trace repeats. With `availability` a run
    works only while its device is ready (idle, charging and on WiFi): it waits, and pauses, until then. The device's
    trace repeats, from a moment drawn per client at simulated time 0. Waiting counts as hanging, not as work.

    The training times ship with jaxafl. Links (269 traces, HSDPA and FCC), availability (the devices of FLASH's
    1,000-device trace that are ever ready) and benchmark scores are read from `device_traces` in the data directory.
    Devices may be ready for seconds a day: clocks that wait for everyone then take days.

    Args:
        workload: what was measured: `"femnist_cnn"`, `"celeba_cnn"`, `"shakespeare_lstm"` or `"reddit_lstm"`.
        megabytes: size of the model in 10⁶ bytes; needed with `bandwidth`.
        bandwidth: whether models travel over measured links.
        availability: whether devices are ready only at times. The clock `interrupting`, products, and `mac_network`
            with transfers that stop everyone refuse it.
        phones: `"three"`: FLASH's three measured phones; `"benchmark"`: the phones of the AI-Benchmark list, log t
            interpolated in log(score) between these three, and held beyond them.
        data_dir: the data directory; by default `$JAXAFL_DATA_DIR`, else that of TFDS.

    Raises:
        ValueError: an option is none of those allowed, or a file is not in the documented format.
        FileNotFoundError: a file is needed that is not there.

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
    measured: Measured = dataclasses.field(  # no option: read when these change, and kept when a pytree is rebuilt
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

    def check(self, num_clients: int) -> None:
        if self.measured.links is None and self.megabytes is not None:
            raise ValueError(
                f"device_trace: megabytes={self.megabytes} has no effect with bandwidth=False; leave it out"
            )

    def prepare(self, keys: Sequence[Key], num_clients: int) -> Prepared:
        clients = jnp.arange(num_clients, dtype=jnp.int32)

        def choose(key: Key, count: int) -> Array:
            return below(per_client(key, clients)[0], jnp.uint32(count))

        return Prepared(
            phone=choose(keys[0], np.shape(self.measured.mean)[0]),
            link=choose(keys[2], 1 if self.measured.links is None else self.measured.links.count),
            device=choose(keys[5], 1 if self.measured.ready is None else self.measured.ready.count),
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
        """Seconds of local training: steps · N(mean, σ²) given that it is positive, by inverting its distribution."""
        phone = prepared.phone[run.client]
        mean, sigma = jnp.asarray(self.measured.mean)[phone], jnp.asarray(self.measured.sigma)[phone]
        share = jnp.maximum(uniform(per_run(prepared.step_key, run.client, run.run), jnp.float64), 2.0**-54)
        negative = ndtr(-mean / sigma)
        return run.local_steps * (mean + sigma * ndtri(negative + (1 - negative) * share))

    def _transfers(self, prepared: Prepared, run: Run) -> Array:
        """Seconds of download and upload, each from a moment of the client's link trace drawn uniformly."""
        if self.measured.links is None:
            return jnp.float64(0)
        links, link = self.measured.links, prepared.link[run.client]
        keys = (prepared.download_key, prepared.upload_key)
        share = jnp.stack([uniform(per_run(key, run.client, run.run), jnp.float64) for key in keys])
        megabits = 8.0 * jnp.asarray(self.megabytes, jnp.float64)
        return jnp.sum(jax.vmap(lambda start: links.elapsed(link, start, megabits))(share * links.period(link)))


def _read(duration: device_trace, options: tuple[object, ...]) -> Measured:
    """The tables that the options ask for, from files where they do not ship with jaxafl."""
    if duration.phones == "three":
        mean, sigma = phones.measured_step_times(duration.workload)
    else:
        mean, sigma = phones.benchmark_step_times(duration.workload, phones.read_scores(duration.data_dir))
    links = CyclicTraces.of(phones.read_links(duration.data_dir)) if duration.bandwidth else None
    ready = CyclicTraces.of(phones.read_availability(duration.data_dir)) if duration.availability else None
    return Measured(mean, sigma, links, ready, options)
