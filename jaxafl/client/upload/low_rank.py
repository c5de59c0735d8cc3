"""Low-rank training: clients move a kernel by a product of two factors, and send the factors in the place of Δ."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxafl.client.upload.contract import Array, Leaves, Sent, Size, Tree, Upload
from jaxafl.device.keys import drawing_key
from jaxafl.models.frozen import Where, kernels_of, named_leaves
from jaxafl.models.model import path_of
from jaxafl.options import UserError, check_number, check_options, static


class Factors(NamedTuple):
    """State of low-rank training, by the path of the parameter."""

    key: Array  # of the first A of a run
    moved: dict[str, Any]  # of a kernel, `a`: A minus the first A [r, in], and `b`: B [out, r]
    inner: Any  # of the optimiser of the factors


class low_rank(Upload):
    """Sends the change of a kernel as two factors of rank r: Δ ← Q (Qᵀ Δ), where Q spans the range of Δ Ω.

    Ω [out, r] is Gaussian. The result is Δ, up to rounding, if the rank of Δ is at most r, and otherwise a projection
    of it. A kernel takes r (in + out) numbers, if they are fewer than its own. Other parameters arrive as 0.

    `optimizer(optax.adam)` is an optimiser for clients that train such factors: W = W_s + (α / r) (B A)ᵀ, from B = 0
    and, in every run, a new A, uniform in ±1/√in. Clients train as with LoRA, and the server gets changes of kernels,
    so its weighted mean is that of the products: Σ p_i B_i A_i, which FLoRA forms by stacking the factors. Parameters
    that are neither kernels nor `trained` stay as they are. A client needs the memory of a gradient of the kernels, and
    gets all kernels with a model. It works with `Client(reset="run")`, and is the last part of a chain.

    Args:
        rank: r.
        where: function of a path, such as `"Dense_0/kernel"`, to True if the kernel is trained in factors; by default
            all parameters with two axes. The last axis is `out`, all others together are `in`.
        trained: function of a path to True if the parameter is trained and sent as it is, such as a new head.

    References:
        Wang et al., "FLoRA: Federated fine-tuning large language models with heterogeneous low-rank adaptations",
        NeurIPS 2024, and the authors' code, with one rank for all clients; Halko, Martinsson & Tropp, "Finding
        structure with randomness", SIAM Review 2011, Algorithm 4.1, for Q.

    Examples:
        >>> import jaxafl as afl, optax
        >>> factors = afl.upload.low_rank(2)
        >>> client = afl.Client(factors.optimizer(optax.adam), learning_rate=0.01, steps=10, upload=factors)
    """

    ends = True
    reads_run = False
    references = ("wang2024flora",)

    rank: int = static()
    where: Where = static(default=None, kw_only=True)
    trained: Where = static(default=None, kw_only=True)

    def bound(self, norm: Any) -> Any:
        return norm

    def apply(self, delta: Tree, sent: Sent) -> Tree:
        kernels, whole = self._divided(named_leaves(delta))
        key = drawing_key(sent.key)
        order = [*kernels]

        def received(path: Any, leaf: Array) -> Array:
            name = path_of(path)
            if name not in kernels:
                return leaf if name in whole else jnp.zeros_like(leaf)
            columns = leaf.shape[-1]
            matrix = leaf.reshape(-1, columns)
            own_key = jax.random.fold_in(key, order.index(name))
            drawn = jax.random.normal(own_key, (columns, self.rank), leaf.dtype)
            basis = jnp.linalg.qr(matrix @ drawn)[0]
            projected = basis @ (basis.T @ matrix)
            return projected.reshape(leaf.shape)

        return jax.tree_util.tree_map_with_path(received, delta)

    def size(self, size: Size, leaves: Leaves) -> Size:
        kernels, whole = self._divided({leaf.path: leaf for leaf in leaves})
        entries = sum(whole.values())
        for leaf in kernels.values():
            columns = leaf.shape[-1]
            factors = self.rank * (leaf // columns + columns)
            entries += min(leaf, factors)
        return size.dense(leaves)._replace(entries=entries)

    def check(self, leaves: Leaves) -> None:
        self._divided({leaf.path: leaf for leaf in leaves})

    def optimizer(
        self, optimizer: Callable[..., optax.GradientTransformation] = optax.sgd, alpha: float = 8.0
    ) -> Callable[..., optax.GradientTransformation]:
        """Returns a constructor for `Client`, with the hyperparameters of `optimizer`, which trains the factors.

        Args:
            optimizer: constructor of an Optax optimiser.
            alpha: α.
        """
        check_options(self)
        check_number(self.name, "alpha", alpha, above=0)

        def check(client: Any) -> None:
            if client.reset != "run":
                raise UserError(f"low_rank: factors are new in every run, but the client has reset={client.reset!r}")
            sent = getattr(client.upload, "compressor", client.upload)  # of `error_feedback`
            found = {one.rank for one in getattr(sent, "in_order", ()) if isinstance(one, low_rank)}
            found.discard(self.rank)
            if found:
                ranks = f"trains rank {self.rank}, and sends rank {found.pop()}"
                raise UserError(f"low_rank: the client {ranks}; expected one rank. Sweep whole clients")

        @functools.wraps(optimizer)
        def made(*args: Any, **options: Any) -> optax.GradientTransformation:
            inner = optimizer(*args, **options)

            def local(key: Array, moved: dict[str, Any], params: Tree) -> dict[str, Any]:
                """Returns what `inner` trains, by path: the factors of kernels, and other parameters as they are."""
                _, found = self._divided(named_leaves(params))
                for index, (name, pair) in enumerate(sorted(moved.items())):
                    a = pair["a"]
                    bound = a.shape[1] ** -0.5
                    own_key = jax.random.fold_in(key, index)
                    first = jax.random.uniform(own_key, a.shape, a.dtype, -bound, bound)
                    found[name] = {"a": a + first, "b": pair["b"]}
                return found

            def init(params: Tree) -> Factors:
                key = jax.random.key(0)
                moved = {}
                kernels, _ = self._divided(named_leaves(params))
                for name, leaf in kernels.items():
                    columns = leaf.shape[-1]
                    a = jnp.zeros((self.rank, leaf.size // columns), leaf.dtype)
                    b = jnp.zeros((columns, self.rank), leaf.dtype)
                    moved[name] = {"a": a, "b": b}
                return Factors(key, moved, inner.init(local(key, moved, params)))

            def update(gradient: Tree, state: Factors, params: Tree = None) -> tuple[Tree, Factors]:
                def changes(trained: dict[str, Any]) -> dict[str, Array]:
                    found = dict(trained)
                    for name in state.moved:
                        product = trained[name]["b"] @ trained[name]["a"]
                        found[name] = alpha / self.rank * product.T.reshape(slopes[name].shape)
                    return found

                slopes, before = named_leaves(gradient), local(state.key, state.moved, params)
                values, pulled = jax.vjp(changes, before)
                updates, after = inner.update(*pulled({name: slopes[name] for name in before}), state.inner, before)
                steps = optax.tree.sub(changes(optax.apply_updates(before, updates)), values)
                moved = {name: optax.tree.add(pair, updates[name]) for name, pair in state.moved.items()}

                def step(path: Any, leaf: Array) -> Array:
                    return steps.get(path_of(path), jnp.zeros_like(leaf))

                return jax.tree_util.tree_map_with_path(step, params), Factors(state.key, moved, after)

            return optax.GradientTransformation(init, update)

        made.__name__ = made.__qualname__ = f"low_rank({made.__name__}, rank={self.rank}, alpha={alpha:g})"
        made.check = check  # type: ignore[attr-defined]
        return made

    def _divided(self, leaves: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the kernels that are trained in factors, and the parameters that are trained as they are."""
        whole = {name: leaf for name, leaf in leaves.items() if self.trained is not None and self.trained(name)}
        return kernels_of(self.name, {name: leaves[name] for name in leaves if name not in whole}, self.where), whole
