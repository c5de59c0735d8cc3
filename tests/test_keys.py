"""Counter-based draws: the published generator, and the uniform and bounded numbers made from its bits."""

from __future__ import annotations

import re
from collections.abc import Callable

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxafl.device.keys import (
    Purpose,
    below,
    drawing_key,
    jax_key,
    per_client,
    per_run,
    purpose_key,
    seed_key,
    threefry,
    uniform,
)
from tests.variants import slow_but

WORD = st.integers(0, 2**32 - 1)
compiled_below = jax.jit(below)
compiled_threefry = jax.jit(threefry)


@settings(max_examples=60, deadline=None)
@given(key=st.tuples(WORD, WORD), counter=st.tuples(WORD, WORD))
@example(key=(0, 0), counter=(0, 0))
@example(key=(2**32 - 1, 2**32 - 1), counter=(2**32 - 1, 2**32 - 1))
def test_threefry_is_the_published_generator(key: tuple[int, int], counter: tuple[int, int]) -> None:
    words = tuple(jnp.uint32(word) for word in key)
    mine = np.asarray(compiled_threefry(words, *(jnp.uint32(word) for word in counter)))
    theirs = jax.extend.random.threefry_2x32(jnp.asarray(key, jnp.uint32), jnp.asarray(counter, jnp.uint32))
    np.testing.assert_array_equal(mine, theirs)


@settings(max_examples=200, deadline=None)
@given(word=WORD, bound=st.integers(1, 2**31 - 1))
@example(word=2**32 - 1, bound=2**31 - 1)
@example(word=2**32 - 1, bound=1)
@example(word=0, bound=2**31 - 1)
@example(word=0xFFFF0000, bound=0x10000)
@example(word=0x0000FFFF, bound=0x7FFF0001)
@example(word=0x80000000, bound=3)
def test_below_is_the_upper_half_of_the_product(word: int, bound: int) -> None:
    assert int(compiled_below(jnp.uint32(word), jnp.int32(bound))) == word * bound >> 32


DRAWN = ["0x1.797f66afa05acp-3", "0x1.8ff300b3d813bp-1", "0x1.422e61c862c35p-1"]


def test_the_values_of_uniform_numbers_are_fixed() -> None:
    """To the last bit: 53 of the 64 in double precision, the first 24 in single; worked out with whole numbers."""
    for high, low in [(0, 0), (0, 2**11), (1, 2**32 - 1), (0x9E3779B9, 0x7F4A7C15), (2**32 - 1, 2**32 - 1)]:
        bits = jnp.uint32(high), jnp.uint32(low)
        with jax.enable_x64(True):
            double = float(uniform(bits, jnp.float64))
        assert double == (high * 2**21 + low // 2**11) / 2**53
        assert float(uniform(bits, jnp.float32)) == high // 2**8 / 2**24
    with jax.enable_x64(True):
        drawn = uniform(threefry(seed_key(3), jnp.arange(3), 0), jnp.float64)
    assert [value.hex() for value in drawn.tolist()] == DRAWN


def test_streams_differ() -> None:
    keys = [purpose_key(seed_key(seed), purpose, index) for seed in (0, 1) for purpose in Purpose for index in (0, 1)]
    words = {(int(low), int(high)) for low, high in keys}
    assert len(words) == len(keys)
    clients, runs = np.divmod(np.arange(400, dtype=np.int32), 20)
    of_runs = jax.jit(jax.vmap(lambda client, run: per_run(keys[0], client, run)[0]))(clients, runs)
    of_clients = jax.jit(jax.vmap(lambda client: per_client(keys[0], client)[0]))(clients[::20])
    assert len({*of_runs.tolist(), *of_clients.tolist()}) == 420


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**32, 2**64 - 1, np.int64(2**33 + 5)])
def test_seeds_have_64_bits(seed: int) -> None:
    low, high = seed_key(seed)
    assert int(low) + (int(high) << 32) == seed


@pytest.mark.parametrize("shape", slow_but([(), (1,), (0, 3), (5, 7), (1001,)], (1001,)))
def test_what_local_steps_draw_is_what_jax_draws(shape: tuple[int, ...]) -> None:
    words = jnp.uint32(3), jnp.uint32(2**32 - 5)
    own, usual = drawing_key(jax_key(words)), jax.random.wrap_key_data(jnp.stack(words), impl="threefry2x32")
    draws: list[Callable[[jax.Array], jax.Array]] = [
        lambda key: jax.random.bits(key, shape),
        lambda key: jax.random.bits(key, shape, "uint16"),
        lambda key: jax.random.bernoulli(jax.random.fold_in(key, 4), 0.3, shape),
        lambda key: jax.vmap(lambda key: jax.random.normal(key, shape))(jax.random.split(key, 3)),
        lambda key: jax.vmap(jax.vmap(lambda key: jax.random.randint(key, shape, 0, 9)))(jax.random.split(key, (2, 2))),
    ]
    for draw in draws:
        np.testing.assert_array_equal(jax.jit(draw)(own), jax.jit(draw)(usual))
    with jax.enable_x64(True):
        drawn = (jax.random.uniform(key, shape, "float64") for key in (own, usual))
        np.testing.assert_array_equal(*drawn)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="elsewhere JAX makes numbers where they are used")
def test_numbers_that_are_used_twice_are_made_once() -> None:
    """A dropout, forward and backward."""

    def dropped(x: jax.Array, w: jax.Array, words: tuple[jax.Array, jax.Array]) -> jax.Array:
        kept = jax.random.bernoulli(drawing_key(jax_key(words)), 0.5, x.shape)
        return jnp.sum(jnp.sin(jnp.where(kept, x, 0) @ w))

    x, words = jnp.ones((100, 100)), (jnp.uint32(0), jnp.uint32(1))
    program = jax.jit(jax.grad(dropped, (0, 1))).lower(x, x, words).compile().as_text()
    assert len(re.findall(r"= u32\[[\d,]+\]\S* shift-left\(", program)) == 20  # rounds of the generator
    assert "while(" not in program
