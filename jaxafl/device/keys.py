"""Counter-based random numbers, keyed by purpose.

A draw is a pure function of (seed, purpose, counters), e.g. (seed, DURATION, client, run). It does not depend on time,
device or batch, so two algorithms can be compared on the same schedule and the same mini-batches.

The generator is Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
It is written as uint32 arithmetic so that XLA fuses a draw into the surrounding kernel. The bits equal those of
`jax.extend.random.threefry_2x32`.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.random import define_prng_impl, threefry_prng_impl

from jaxafl.options import check_whole

Array = jax.Array
Key = tuple[Array, Array]
"""Two uint32 words (scalars or arrays of one shape)."""

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_NAMED = re.compile(r"(?<![a-z])(keys?|rngs?|prng|seed)(?![a-z])")
_PER_CLIENT = 0xFFFFFFFF  # run counter of draws that occur once per client


@enum.unique
class Purpose(enum.IntEnum):
    """Purpose of a stream of draws, part of every key."""

    MODEL = 1  # initial parameters
    START = 2  # clients that start: counters (start, 0), (place in all rounds, 0), or with hours (round, client)
    DURATION = 3  # the duration of a run: counters (client, run), one stream per term of the duration
    UPLOAD = 5  # success of an upload: counters (client, tick)
    DOWNLOAD = 6  # success of a download: counters (client, tick)
    STALE = 7  # the age of a version: counters (round, place)
    OPENING = 9  # seconds between starts at a rate: counter (start)
    WINDOW = 11  # seconds between server steps at random times: counter (window)
    LOST = 8  # failure of an upload whose run ends: counters (client, run)
    HOURS = 10  # the time zone of a client outside whose hours it is not drawn: counter (client)
    BATCH = 4  # mini-batches, dropout, augmentation: counters (client, run), then (local step, ...)


def threefry(key: Key | Array, counter0: Any, counter1: Any) -> Key:
    """Computes Threefry-2x32-20 of two uint32 counters under a key: 64 random bits as two uint32 words.

    The key is two uint32 words, or a typed key.
    """
    if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        both = jax.random.key_data(key)
        key = both[..., 0], both[..., 1]
    first, second = key[0], key[1]
    mixed = first ^ second ^ jnp.uint32(0x1BD11BDA)
    low, high = jnp.broadcast_arrays(jnp.uint32(counter0) + first, jnp.uint32(counter1) + second)
    words = jnp.broadcast_arrays(low, first, second, mixed)[1:] if mixed.ndim else (first, second, mixed)
    # `lax`, because operations of `jnp` take more than twice as long to trace, and a program has thousands of them
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            low = lax.add(low, high)
            left = lax.shift_left(high, np.uint32(rotation))
            right = lax.shift_right_logical(high, np.uint32(32 - rotation))
            high = lax.bitwise_xor(lax.bitwise_or(left, right), low)
        low = lax.add(low, words[(group + 1) % 3])
        high = lax.add(lax.add(high, words[(group + 2) % 3]), np.uint32(group + 1))
    return low, high


def seed_key(seed: int) -> Key:
    """Returns the key of a run: the low and the high 32 bits of a seed in [0, 2**64)."""
    seed = check_whole("run", "seed", seed, least=0, most=2**64 - 1)
    return jax.device_put((np.uint32(seed & 0xFFFFFFFF), np.uint32(seed >> 32)))  # `jnp.uint32` compiles a conversion


def purpose_key(key: Key | Array, purpose: Purpose, index: int = 0) -> Key:
    """Derives the key of one stream of draws."""
    return threefry(key, int(purpose), index)


def uniform(bits: Key, dtype: Any) -> Array:
    """Computes a float in [0, 1) from 64 random bits: 53 of them in float64, the first 24 of the 53 in float32."""
    if jnp.dtype(dtype) == jnp.float64:
        high = bits[0].astype(jnp.float64) * 2.0**-32
        return high + (bits[1] >> 11).astype(jnp.float64) * 2.0**-53
    return (bits[0] >> 8).astype(dtype) * jnp.asarray(2.0**-24, dtype)


def per_client(key: Key | Array, client: Array) -> Key:
    """Draws 64 bits for a client, equal in all its runs."""
    return threefry(key, client, _PER_CLIENT)


def per_run(key: Key | Array, client: Array, run: Array) -> Key:
    """Draws 64 bits for one run of a client."""
    return threefry(key, client, run)


def per_step(key: Key | Array, step: Array) -> Key:
    """Draws 64 bits for one server step; no client has the number 0xFFFFFFFF, so the draw differs from any run's."""
    return threefry(key, 0xFFFFFFFF, step)


def jax_key(bits: Key) -> Array:
    """Returns a `jax.random` key with the given 64 bits, for user code (dropout, augmentation)."""
    return jax.random.wrap_key_data(jnp.stack(bits, axis=-1), impl="threefry2x32")


def drawing_key(key: Array) -> Array:
    """Converts a key of JAX's default kind to one whose draws are equal and faster on a CPU.

    JAX's implementation there is a loop of five passes over memory, even to derive a key. The converted key is of
    another kind to JAX: it cannot be combined with other keys, and `jax.random.poisson` refuses it.
    """
    if jax.default_backend() != "cpu" or jax.random.key_impl(key) != "threefry2x32":
        return key
    return jax.random.wrap_key_data(jax.random.key_data(key), impl=_FUSED)


def _bits(key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    if bit_width != 32 or math.prod(shape) >= 2**32:
        return threefry_prng_impl.random_bits(key, bit_width, shape)
    with set_xla_metadata(inlineable="false"):  # otherwise XLA recomputes the bits in every kernel that reads them
        return jax.jit(lambda key: jnp.bitwise_xor(*_at(key, shape)))(key)


def _at(key: Array, shape: tuple[int, ...]) -> Key:
    return threefry((key[0], key[1]), 0, lax.iota(jnp.uint32, math.prod(shape)).reshape(shape))


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    return jnp.stack(_at(key, shape), axis=-1)


def _fold_in(key: Array, data: Any) -> Array:
    return jnp.stack(threefry((key[0], key[1]), 0, data))


_FUSED = define_prng_impl(
    key_shape=(2,),
    seed=threefry_prng_impl.seed,
    split=_split,
    random_bits=_bits,
    fold_in=_fold_in,
    name="threefry2x32_plain",
    tag="plain",
)


def below(word: Array, bound: Array) -> Array:
    """Computes an int32 in [0, bound) from a uint32 word: floor(word·bound / 2³²).

    The probability of every value is within 1/2³² of 1/bound.
    """
    bound = jnp.uint32(bound)
    # the upper half of a 32×32-bit product from 16-bit halves, because int64 needs x64
    high, low = word >> 16, word & jnp.uint32(0xFFFF)
    bound_high, bound_low = bound >> 16, bound & jnp.uint32(0xFFFF)
    middle = high * bound_low + ((low * bound_low) >> 16)
    carry = (middle & jnp.uint32(0xFFFF)) + low * bound_high
    return (high * bound_high + (middle >> 16) + (carry >> 16)).astype(jnp.int32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Packed:
    """Words of a typed key, an array that can be stored, masked and gathered.

    Attributes:
        words: uint32 [..., 2] (or 4).
        kind: JAX's name of the generator.
    """

    words: Array
    kind: Any = dataclasses.field(metadata={"static": True})


def pack(tree: Any) -> Any:
    """Replaces every typed key in a tree by its words."""
    return jax.tree.map(
        lambda leaf: Packed(jax.random.key_data(leaf), jax.random.key_impl(leaf)) if _is_typed(leaf) else leaf, tree
    )


def unpack(tree: Any) -> Any:
    """Restores the typed keys of a tree that `pack` returned."""
    return jax.tree.map(
        lambda leaf: jax.random.wrap_key_data(leaf.words, impl=leaf.kind) if isinstance(leaf, Packed) else leaf,
        tree,
        is_leaf=lambda leaf: isinstance(leaf, Packed),
    )


def renewed(tree: Any, key: Key) -> Any:
    """Replaces every key in an optimiser's state by one derived from its value, its position and `key`.

    A key is typed, or raw (uint32 [..., 2] or [..., 4]) in a field with `key`, `rng`, `prng` or `seed` in its name.

    Args:
        tree: the state.
        key: the key of the run, or of the step.
    """
    places = itertools.count()

    def one(path: Any, leaf: Any) -> Any:
        place = next(places)
        if _is_typed(leaf):
            words = _mixed(jax.random.key_data(leaf), key, place)
            return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))
        last = str(getattr(path[-1], "name", getattr(path[-1], "key", ""))).lower() if path else ""
        raw = getattr(leaf, "dtype", None) == jnp.uint32 and np.shape(leaf)[-1:] in ((2,), (4,))
        return _mixed(leaf, key, place) if raw and _NAMED.search(last) else leaf

    return jax.tree_util.tree_map_with_path(one, tree)


def _mixed(words: Array, key: Key, place: int) -> Array:
    """Draws new words, in the shape of `words`, from the key, `words` and `place`."""
    places = range(0, words.shape[-1], 2)
    pairs = [threefry(threefry(key, place, at), words[..., at], words[..., at + 1]) for at in places]
    return jnp.stack([*itertools.chain(*pairs)], axis=-1)


def _is_typed(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
