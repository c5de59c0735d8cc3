"""PRNG keys within a pytree: derived from the key of a run, and stored as plain arrays between steps."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.device.compilation import equations
from jaxafl.device.keys import Key, threefry
from jaxafl.options import UserError

Array = jax.Array
Tree = Any
_WORDS = {"key", "keys", "rng", "rngs", "prng", "seed"}
_DRAWS = {"random_seed", "random_bits", "random_split", "random_fold_in", "threefry2x32", "rng_bit_generator"}


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


def pack(tree: Tree) -> Tree:
    """Replaces every typed key in a tree by its words."""
    return jax.tree.map(
        lambda leaf: Packed(jax.random.key_data(leaf), jax.random.key_impl(leaf)) if _is_typed(leaf) else leaf, tree
    )


def unpack(tree: Tree) -> Tree:
    """Restores the typed keys of a tree that `pack` returned."""
    return jax.tree.map(
        lambda leaf: jax.random.wrap_key_data(leaf.words, impl=leaf.kind) if isinstance(leaf, Packed) else leaf,
        tree,
        is_leaf=lambda leaf: isinstance(leaf, Packed),
    )


def renewed(tree: Tree, key: Key) -> Tree:
    """Replaces every key in a tree by one derived from its value, its position and `key`.

    A key is typed, or raw (uint32 [..., 2] or [..., 4]) in a field with `key`, `rng`, `prng` or `seed` in its name.
    An integer scalar in a field named `seed` is a key too.

    Args:
        tree: an optimiser's state.
        key: the key of the run, or of the step.

    Raises:
        UserError: a uint32 array may be a key, but its name does not say so.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    return jax.tree.unflatten(structure, [_renewed(path, leaf, key, at) for at, (path, leaf) in enumerate(leaves)])


def check_draws(name: str, update: Any, state: Tree, *arguments: Any) -> None:
    """Raises `UserError` for an optimiser that draws random numbers without a key in its state.

    Every run would draw the same numbers.

    Args:
        name: name of the optimiser.
        update: its update function.
        state: its state, or the shapes of it.
        *arguments: the arguments of `update`, or their shapes.
    """
    leaves = jax.tree_util.tree_leaves_with_path(state)
    if any(_is_typed(leaf) or _is_raw(path, leaf) or _is_seed(path, leaf) for path, leaf in leaves):
        return
    traced = jax.make_jaxpr(update)(*arguments)
    if any(equation.primitive.name in _DRAWS for equation in equations(traced.jaxpr)):
        raise UserError(
            f"{name} draws random numbers, but its state holds no key, so that every client, run and seed would draw "
            "the same ones. Keep the key in the state (a field `rng_key` that `init` fills with jax.random.key(0), "
            "split in `update`, as optax.add_noise does): jaxafl replaces it by a key of the run"
        )


def _renewed(path: Any, leaf: Any, key: Key, place: int) -> Any:
    if _is_typed(leaf):
        words = _mixed(jax.random.key_data(leaf), key, place)
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))
    if _is_raw(path, leaf):
        return _mixed(leaf, key, place)
    if _is_seed(path, leaf):
        low, _ = threefry(threefry(key, place, 0), leaf, 0)
        return (low >> 1).astype(leaf.dtype)
    if _has_words(leaf):
        raise UserError(
            f"the optimiser's state holds {leaf.dtype}{list(leaf.shape)} at {jax.tree_util.keystr(path)}, which may be "
            "a key of random numbers: make it a typed key (jax.random.key) or name its field rng_key, and jaxafl "
            "replaces it by a key of the run; or keep it in another type where it is none"
        )
    return leaf


def _mixed(words: Array, key: Key, place: int) -> Array:
    """Draws new words, in the shape of `words`, from the key, `words` and `place`."""
    pairs = [threefry(threefry(key, place, at), words[..., at], words[..., at + 1]) for at in (0, words.shape[-1] - 2)]
    return jnp.stack([word for pair in pairs[: words.shape[-1] // 2] for word in pair], axis=-1)


def _is_typed(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _is_raw(path: Any, leaf: Any) -> bool:
    return _has_words(leaf) and bool(_WORDS & _words_of(path))


def _is_seed(path: Any, leaf: Any) -> bool:
    return np.shape(leaf) == () and jnp.result_type(leaf).kind in "iu" and "seed" in _words_of(path)


def _has_words(leaf: Any) -> bool:
    shape = np.shape(leaf)
    return bool(shape) and shape[-1] in (2, 4) and getattr(leaf, "dtype", None) == jnp.uint32


def _words_of(path: Any) -> set[str]:
    """Returns the lower-case words of the last name on a path."""
    names = [getattr(entry, "name", getattr(entry, "key", None)) for entry in path]
    named = [name for name in names if isinstance(name, str)]
    return set(re.split(r"[\W_\d]+", named[-1].lower())) if named else set()
