"""Random draws of clocks in NumPy, in blocks, with the bits of `jaxafl.device.keys`; and the seconds of local runs."""

from __future__ import annotations

import functools
import math
from array import array
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.clock.durations.duration import Run, by_steps, draw_of, prepared_for, reads
from jaxafl.device import as_arrays, compiled, float64_on_cpu
from jaxafl.device.keys import ROTATIONS, Purpose, seed_key

Words = tuple[int, int]
_BLOCK = 4096


def threefry(key: Words, first: Any, second: Any) -> tuple[np.ndarray, np.ndarray]:
    """Computes Threefry-2x32-20 of two counters under a key: 64 random bits as two uint32 words."""
    words = [*key, key[0] ^ key[1] ^ 0x1BD11BDA]
    low, high = np.array(np.broadcast_arrays(*np.atleast_1d(first, second)), np.uint32)
    low += np.uint32(words[0])
    high += np.uint32(words[1])
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            low += high
            high = (high << np.uint32(rotation)) | (high >> np.uint32(32 - rotation))
            high ^= low
        low += np.uint32(words[(group + 1) % 3])
        high += np.uint32((words[(group + 2) % 3] + group + 1) & 0xFFFFFFFF)
    return low, high


def uniform(bits: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Computes a float64 in [0, 1) from 64 random bits."""
    return bits[0] * 2.0**-32 + (bits[1] >> np.uint32(11)) * 2.0**-53


def stream(seed: int, purpose: Purpose) -> Words:
    """Returns the key of one stream of draws."""
    low, high = threefry((seed & 0xFFFFFFFF, seed >> 32), int(purpose), 0)
    return int(low[0]), int(high[0])


def rounds(width: int, compute: Callable[[np.ndarray], np.ndarray]) -> Callable[[int], np.ndarray]:
    """Returns rows of draws by index, one for each round or tick, computed in blocks of about 4096 draws.

    Args:
        width: length of a row.
        compute: function (indices [n, 1]) -> rows [n, width].
    """
    count = max(1, _BLOCK // width)
    block = functools.lru_cache(1)(lambda block: compute(block * count + np.arange(count)[:, None]))
    return lambda index: block(index // count)[index % count]


class PerRun:
    """Values of (client, run), computed in blocks of about 4096.

    A block of first runs has neighbouring clients. Blocks of later runs have fewer clients and more runs of each, since
    clients differ in their numbers of runs.
    """

    def __init__(self, num_clients: int, compute: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> None:
        """Takes the function (clients, runs) -> values, all [n]."""
        self.num_clients = num_clients
        self.compute = compute
        self.widest = min(12, (num_clients - 1).bit_length())  # log2 of the clients of the first blocks
        self.levels: list[tuple[int, int, int, int, dict[int, array[float]]]] = []  # of the runs 0, 1, ...

    def __call__(self, client: int, run: int) -> float:
        try:
            wide, inside, long, begin, blocks = self.levels[run]
            return blocks[client >> wide][((client & inside) << long) + run - begin]
        except (IndexError, KeyError):  # the block has not been computed
            while (begin := len(self.levels)) <= run:
                level = min(((begin >> (12 - self.widest)) + 1).bit_length() - 1, self.widest)
                wide, long = self.widest - level, 12 - self.widest + level
                self.levels += [(wide, (1 << wide) - 1, long, begin, {})] * (1 << long)
            wide, inside, long, begin, blocks = self.levels[run]
            if begin and not self.levels[begin - 1][0]:  # the block before is of this client alone, and over
                self.levels[begin - 1][-1].pop(client, None)
            clients = np.minimum(np.arange(client & ~inside, (client | inside) + 1), self.num_clients - 1)
            runs = np.arange(begin, begin + (1 << long))
            values = self.compute(np.repeat(clients, len(runs)), np.tile(runs, len(clients)))
            blocks[client >> wide] = array("d", np.asarray(values, np.float64).tobytes())
            return self(client, run)


def shares(key: Words, function: Callable[[np.ndarray], np.ndarray] = np.asarray) -> Callable[[int], float]:
    """Returns the floats in [0, 1) of a stream by index, or a function of them."""
    return functools.partial(PerRun(1, lambda _, index: function(uniform(threefry(key, index, 0)))), 0)


class Seconds:
    """Seconds of the runs of a clock's clients, drawn by JAX: in blocks, or one by one where they depend on starts."""

    def __init__(self, durations: Any, local_steps: np.ndarray, seed: int) -> None:
        """Takes the local steps of runs, int [N, R]."""
        self.steps, num_clients = local_steps, len(local_steps)
        read = reads(durations, num_clients)
        self.by_start = "now" in read
        self.by_longest = "longest" in read
        self.by_steps = "local_steps" in read
        with float64_on_cpu():
            numbers = as_arrays(durations, jnp.float64)
            given = numbers, seed_key(seed)
            self.arguments = numbers, compiled(prepared_for, (num_clients,), given)[0](*given)
        self.replied = False  # True if replies change the local steps, and runs last a latency plus a time per step
        self.hangs = False  # True once a block has runs that hang
        self.seconds = PerRun(num_clients, functools.partial(self._block, 0, None))
        self.work = PerRun(num_clients, functools.partial(self._block, 1, None))
        self.without_steps = PerRun(num_clients, functools.partial(self._block, 0, 0))
        self.with_one = PerRun(num_clients, functools.partial(self._block, 0, 1))
        self.unequal = PerRun(num_clients, self._unequal)

    def of(self, client: int, run: int, steps: int, now: float, longest: float) -> tuple[float, float]:
        """Returns the seconds of a run, and those in which the client works."""
        if self.by_start or (self.by_longest and self.depends(client, run)):
            with float64_on_cpu():
                numbers: Any = (np.int32(client), np.int32(run), np.int32(steps), np.float64(longest), np.float64(now))
                seconds, work = np.asarray(_one(*self.arguments, Run(*numbers))).tolist()
            return seconds, work
        if self.replied:
            latency, one = self.of_steps(client, run, now, longest)
            seconds = latency + steps * (one - latency) if one < math.inf else one
            return seconds, seconds
        seconds = self.seconds(client, run)
        return seconds, self.work(client, run) if self.hangs else seconds

    def of_steps(self, client: int, run: int, now: float, longest: float) -> tuple[float, float]:
        """Returns the seconds of a run with no local step, and with one."""
        if self.by_start or self.depends(client, run):
            return self.of(client, run, 0, now, longest)[0], self.of(client, run, 1, now, longest)[0]
        return self.without_steps(client, run), self.with_one(client, run)

    def depends(self, client: int, run: int) -> bool:
        """Returns True if the seconds of a run depend on the longest run before it, as those of a suspended one."""
        return self.by_longest and self.unequal(client, run) != 0

    def follow_replies(self) -> None:
        """Lets runs last as their own local steps say, since replies change those of the table."""
        if not self.by_steps or self.replied or self.by_start:
            return
        self.replied = self.has_steps() and not self.hangs
        self.by_start = not self.replied

    def has_steps(self, samples: tuple[int, ...] = (2, 12, 1000)) -> bool:
        """Returns True if runs last a latency plus a time per local step, as the first two runs of every client show.

        Args:
            samples: numbers of local steps that are compared.
        """
        clients = np.arange(len(self.steps))
        seconds = (lambda steps, run=run: self._block(0, steps, clients, np.full_like(clients, run)) for run in (0, 1))
        return all(by_steps(one, samples)[2] for one in seconds)

    def _unequal(self, client: np.ndarray, run: np.ndarray) -> np.ndarray:
        # seconds grow with the longest run, so they are constant if these are equal
        return self._block(0, 1, client, run) != self._block(0, 1, client, run, np.inf)

    def _block(
        self, which: int, local_steps: int | None, client: np.ndarray, run: np.ndarray, longest: float = 0.0
    ) -> np.ndarray:
        steps = self.steps[client, np.minimum(run, self.steps.shape[1] - 1)]
        if local_steps is not None:
            steps = np.full_like(steps, local_steps)
        times = np.full(len(run), longest), np.zeros(len(run))
        with float64_on_cpu():
            runs = Run(*map(jnp.asarray, (client.astype(np.int32), run.astype(np.int32), steps, *times)))
            given = *self.arguments, runs
            both = np.asarray(compiled(_block, (), given)[0](*given))
        self.hangs |= not longest and bool((both[0] != both[1]).any())
        return both[which]


@jax.jit
def _one(durations: Any, prepared: Any, run: Run) -> jax.Array:
    drawn = draw_of(durations, prepared, run)
    return jnp.stack([drawn.work + drawn.hang, drawn.work])


_block = jax.vmap(_one, (None, None, 0), 1)


@float64_on_cpu()
def exponential(u: np.ndarray) -> np.ndarray:
    """Computes -log(1 - u), the quantile of the exponential distribution, with the bits of compiled code."""
    return np.asarray(_exponential(u))


_exponential = jax.jit(lambda u: -jnp.log1p(-u))
