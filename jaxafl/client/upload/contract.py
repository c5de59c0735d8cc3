"""Transformations of an update between local training and the server."""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from jaxafl.models.model import path_of
from jaxafl.options import Part, UserError, shown, static
from jaxafl.options.user_code import like_given

Array = jax.Array
Tree = Any


class Leaf(int):
    """Numbers in a leaf of Δ, with its path and its shape."""

    path: str
    shape: tuple[int, ...]


Leaves = tuple[Leaf, ...]


class Sent(NamedTuple):
    """The run whose update is sent, as traced scalars.

    Attributes:
        client: int32, index of the client.
        run: int32, index of the run among the client's runs.
        samples: int32, n_i.
        local_steps: int32, executed local steps.
        key: key of `jax.random`, derived from seed, client, run and the place in a chain.
    """

    client: Array
    run: Array
    samples: Array
    local_steps: Array
    key: Array


class Size(NamedTuple):
    """Size of a sent update. It is known before anything runs."""

    entries: int  # numbers that are sent
    bits: float  # of one number
    index_bits: int = 0  # of the index of one number
    extra: int = 0  # bits of all else, such as a norm
    full_bits: float = 32  # of one number of Δ
    scaled: bool = True  # False for numbers without a scale of their own, such as signs

    def dense(self, leaves: Leaves) -> Size:
        """Returns the size of all numbers with all their bits; `leaves`: numbers in each leaf of Δ."""
        return Size(sum(leaves), self.full_bits, full_bits=self.full_bits)

    @property
    def bytes(self) -> int:
        """Bytes, rounded up."""
        return math.ceil((self.entries * (self.bits + self.index_bits) + self.extra) / 8)


class Upload(Part):
    """Base class of transformations of an update Δ, applied once per local run, at its end.

    A subclass defines `apply`, or `update`, with `init` if each client keeps a row from run to run, and `size` if it
    changes the size. Its fields are options, whose numbers can be swept.

    Attributes:
        ends: True if nothing can follow it in a chain.
        reads_run: False if the result depends on Δ, the row and `sent.key` only. Privacy that noise before it gives is
            then kept.
    """

    ends: ClassVar[bool] = False
    reads_run: ClassVar[bool] = True

    @property
    def in_order(self) -> list[Upload]:
        """The transformations one after another; of a chain its parts."""
        return [self]

    @property
    def noise(self) -> Any:
        """Standard deviation of Gaussian noise that is added to every number; `None` without noise."""
        return None

    def bound(self, norm: Any) -> Any:
        """Returns the largest norm of the result for updates of norm `norm` at most; `None` if it is not known."""
        return None

    @property
    def remembers(self) -> bool:
        """True if each client keeps a row from run to run."""
        return type(self).init is not Upload.init

    def init(self, params: Tree) -> Tree:
        """Returns the row of a client before its first run, a pytree; () keeps nothing.

        Args:
            params: pytree of the trained parameters; frozen ones are `None`.
        """
        return ()

    def update(self, delta: Tree, row: Tree, sent: Sent) -> tuple[Tree, Tree]:
        """Returns the received update and the client's next row; the default is that of `apply` without a row."""
        return self.apply(delta, sent), row

    def feedback_scale(self, leaves: Leaves) -> float:
        """Returns the factor that makes a contraction of the transformation, for `error_feedback`.

        Args:
            leaves: numbers in each leaf of Δ.

        Raises:
            ValueError: no factor does.
        """
        return 1.0

    def apply(self, delta: Tree, sent: Sent) -> Tree:
        """Returns what the server receives in the place of Δ, with the structure, shapes and types of Δ.

        Args:
            delta: pytree of the trained parameters; frozen ones are `None`.
            sent: the run.
        """
        raise NotImplementedError(f"the upload {self.name} has neither apply(delta, sent) nor update(delta, row, sent)")

    def size(self, size: Size, leaves: Leaves) -> Size:
        """Returns the size of the transformed update.

        Args:
            size: size of the update before it, in a chain that of all numbers if each client keeps a row: what it keeps
                is added to Δ.
            leaves: numbers in each leaf of Δ.
        """
        return size

    def check(self, leaves: Leaves) -> None:
        """Raises `ValueError` for options that do not fit Δ; `leaves`: numbers in each leaf of it."""


class VectorUpload(Upload):
    """Base class of transformations of a vector [d], the trained parameters one after another."""

    def of_vector(self, v: Array, sent: Sent) -> Array:
        """Returns the transformed vector [d]."""
        raise NotImplementedError(f"the upload {self.name} has no of_vector(v, sent)")

    def apply(self, delta: Tree, sent: Sent) -> Tree:
        vector, restored = ravel_pytree(delta)
        found = like_given(f"the upload {self.name}", "of_vector", self.of_vector(vector, sent), vector)
        return restored(found.astype(vector.dtype))


class transformation(Upload):
    """An Optax transformation of Δ, e.g. `optax.clip(0.1)`; it sends as many bytes as Δ has.

    Each client keeps the transformation's state from run to run.

    Args:
        transform: the `optax.GradientTransformation`. It is called without parameters.
    """

    transform: Any = static()

    reads_run = False

    @property
    def remembers(self) -> bool:
        return bool(jax.tree.leaves(jax.eval_shape(self.transform.init, [jnp.zeros(1)])))

    def init(self, params: Tree) -> Tree:
        return self.transform.init(params)

    def update(self, delta: Tree, row: Tree, sent: Sent) -> tuple[Tree, Tree]:
        return self.transform.update(delta, row, None)

    def size(self, size: Size, leaves: Leaves) -> Size:
        if size != size.dense(leaves):
            raise UserError(
                "Client: the size of an update cannot be known after an Optax transformation of a compressed one; "
                "expected it before the compression. Change the order of the chain"
            )
        return size

    def check(self, leaves: Leaves) -> None:
        state = jax.eval_shape(self.transform.init, [jnp.zeros(1)])
        if any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(state)):
            raise UserError(
                f"Client: upload={self.transform!r:.60} keeps one PRNG key, so that all clients would draw the same; "
                "expected draws by client and run. Use jaxafl.upload.add_noise, or an upload of your own"
            )


class chain(Upload):
    """Transformations one after another: the first gets Δ, the server receives what the last returns.

    Parts have the names of their classes in sweeps, e.g. `client.upload.top_k.share`, or names of your own, given as
    keywords after the others.

    Args:
        given: the parts in order.
        named: further parts, by names of your own.

    Raises:
        ValueError: two parts have one name.
        TypeError: a part is no transformation.

    Examples:
        >>> from jaxafl import upload
        >>> upload.chain(upload.clip_by_global_norm(1.0), upload.top_k(share=0.01))
        chain(clip_by_global_norm(max_norm=1.0), top_k(share=0.01))
    """

    parts: dict[str, Any]
    order: tuple[str, ...] = static()

    def __init__(self, *given: Any, **named: Any) -> None:
        if {"parts", "order"} <= {*named}:  # a copy, perhaps with another part
            order, parts = named.pop("order"), named.pop("parts") | named
        else:
            pairs = [(one.name, one) for one in map(as_upload, given)]
            pairs += [(name, as_upload(one)) for name, one in named.items()]
            parts, order = dict(pairs), tuple(name for name, _ in pairs)
            if not 0 < len(pairs) == len(parts) or {"parts", "order"} & {*order}:
                raise UserError(
                    f"chain: the parts are called {', '.join(order) or 'nothing'}; expected one or more uploads with "
                    "different names, other than parts and order. Name one by chain(..., name=part)"
                )
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "order", order)

    @property
    def references(self) -> tuple[str, ...]:  # type: ignore[override]
        """References of all parts."""
        return tuple(key for part in self.in_order for key in part.references)

    def __repr__(self) -> str:
        parts = ((name, self.parts[name]) for name in self.order)
        return f"chain({', '.join(repr(one) if one.name == name else f'{name}={one!r}' for name, one in parts)})"

    @property
    def in_order(self) -> list[Upload]:
        return [part for name in self.order for part in self.parts[name].in_order]

    @property
    def reads_run(self) -> bool:  # type: ignore[override]
        """Whether a part does."""
        return any(part.reads_run for part in self.in_order)

    @property
    def remembers(self) -> bool:
        return any(part.remembers for part in self.in_order)

    def init(self, params: Tree) -> Tree:
        return {name: self.parts[name].init(params) for name in self.order}

    def update(self, delta: Tree, row: Tree, sent: Sent) -> tuple[Tree, Tree]:
        after = dict(row)
        for place, name in enumerate(self.order):
            one = sent._replace(key=jax.random.fold_in(sent.key, place))
            delta, after[name] = self.parts[name].update(delta, row[name], one)
        return delta, after

    def feedback_scale(self, leaves: Leaves) -> float:
        return math.prod(part.feedback_scale(leaves) for part in self.in_order)

    def size(self, size: Size, leaves: Leaves) -> Size:
        for part in self.in_order:
            size = checked_size(part, size.dense(leaves) if part.remembers else size, leaves)
        return size

    def check(self, leaves: Leaves) -> None:
        if early := [part.name for part in self.in_order[:-1] if part.ends]:
            raise UserError(f"chain: {early[0]} sends no numbers of Δ, which further parts expect; put it last")
        for part in self.in_order:
            part.check(leaves)


def as_upload(given: Any) -> Upload:
    """Returns an upload from one, or from an Optax transformation.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(given, Upload):
        return given
    if isinstance(given, optax.GradientTransformation):
        return transformation(given)
    raise TypeError(
        f"Client: upload={shown(given)} is neither an upload nor an Optax transformation; expected e.g. "
        "jaxafl.upload.top_k(share=0.01), or several in jaxafl.upload.chain(...)"
    )


def received_size(upload: Upload | None, delta: Tree) -> int:
    """Returns the bytes of a sent update.

    Args:
        upload: transformation; `None` sends Δ.
        delta: arrays of Δ, or their shapes.
    """
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(delta))
    if upload is None or not size:
        return size
    counts = leaves_of(delta)
    each = 8 * size / sum(counts)
    return checked_size(upload, Size(sum(counts), each, full_bits=each), counts).bytes


def leaves_of(delta: Tree) -> Leaves:
    """Returns the leaves of Δ, arrays or their shapes, as uploads see them."""
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(delta):
        one = Leaf(leaf.size)
        one.path, one.shape = path_of(path), leaf.shape
        found.append(one)
    return tuple(found)


def checked_size(upload: Upload, size: Size, leaves: Leaves) -> Size:
    """Returns the size of a transformed update; raises `ValueError` unless it is one, see `Upload.size`."""
    found = upload.size(size, leaves)
    if not isinstance(found, Size) or not all(0 <= part < math.inf for part in found):
        raise UserError(
            f"the upload {upload.name}: size(size, leaves) must return size or size._replace(...), with numbers of at "
            f"least 0; it returned {found!r:.200}"
        )
    return found
