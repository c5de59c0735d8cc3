"""LoRA for any model: low-rank factors of chosen kernels are trained and sent, the kernels are one frozen copy."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.traverse_util import unflatten_dict

from jaxafl.models.frozen import Where, kernels_of, named_leaves
from jaxafl.models.model import Array, Batch, Key, Model, Outputs, Params, State, path_of
from jaxafl.options import check_number, check_whole, named


@named
def lora(model: Model, rank: int, alpha: float = 8.0, where: Where = None, *, trained: Where = None) -> Model:
    """Returns a model that trains low-rank factors of kernels: W + (α / r) B A in the place of W.

    The parameters of the new model are A [r, in] and B [out, r] of every chosen kernel, under the names `path/a` and
    `path/b`. They alone are trained, sent, averaged and counted. A starts uniform in ±1/√in and B at zero, so the
    model starts as the given one. All its parameters are one copy in `Model.frozen`: those of `initialised(model, ...)`
    or else drawn under one key for all seeds. Its state (batch statistics) remains state.

    The sum is formed in every local step, so a lane needs the memory of the chosen kernels. `LoRA` is a layer for Linen
    networks that never forms it.

    Args:
        model: any model, of Linen, NNX, PyTorch or functions.
        rank: r; 0, with `trained`, trains those parameters alone.
        alpha: α.
        where: function of a path, such as `"Dense_0/kernel"`, to True if the kernel gets factors; by default all
            parameters with two axes, embeddings included. A kernel is [in, out], in PyTorch [out, in]. Further axes
            belong to `in`: a convolution [h, w, in, out] is the matrix [h · w · in, out].
        trained: function of a path to True if the parameter is trained and sent as it is, such as a new head.

    Returns:
        The model.

    Raises:
        TypeError, ValueError: an option is invalid; before a run, no kernel is chosen, or one of fewer than two axes.

    References:
        Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022, equation 3.
    """
    rank = check_whole("lora", "rank", rank, least=1 if trained is None else 0)
    check_number("lora", "alpha", alpha, above=0)
    out_first = model.description.get("framework") == "torch"

    def init(key: Key, batch: Batch) -> tuple[Params, State]:
        own, state = model.init(key, batch)
        leaves = named_leaves(own)
        whole = {name: leaf for name, leaf in leaves.items() if trained is not None and trained(name)}
        others = {name: leaf for name, leaf in leaves.items() if name not in whole}
        kernels = kernels_of("lora", others, where) if rank else {}
        for index, (name, leaf) in enumerate(kernels.items()):
            out = leaf.shape[0 if out_first else -1]
            bound = (leaf.size // out) ** -0.5
            own_key = jax.random.fold_in(jax.random.fold_in(key, rank), index)
            whole[f"{name}/a"] = jax.random.uniform(own_key, (rank, leaf.size // out), leaf.dtype, -bound, bound)
            whole[f"{name}/b"] = jnp.zeros((out, rank), leaf.dtype)
        return unflatten_dict(whole, sep="/"), state

    def apply(params: Params, state: State, batch: Batch, key: Key, train: bool, frozen: Any) -> tuple[Outputs, State]:
        given = named_leaves(params)

        def summed(path: Any, leaf: Array) -> Array:
            name = path_of(path)
            if f"{name}/a" not in given:
                return given.get(name, leaf)
            term = given[f"{name}/b"] @ given[f"{name}/a"] * (alpha / rank)
            return (leaf + (term if out_first else term.T).reshape(leaf.shape)).astype(leaf.dtype)

        more = () if model.frozen is None else (frozen["frozen"],)
        return model.apply(jax.tree_util.tree_map_with_path(summed, frozen["base"]), state, batch, key, train, *more)

    def held(batch: Batch) -> Any:
        base, _ = model.init(jax.random.key(0, impl="threefry2x32"), batch)
        return {"base": model.as_made(base), "frozen": model.frozen(batch) if callable(model.frozen) else model.frozen}

    description = {**model.description, "lora_rank": rank, "lora_alpha": float(alpha)}
    new = dataclasses.replace(model, init=init, apply=apply, description=description, frozen=held)
    return dataclasses.replace(new, references=(*model.references, "hu2022"))


class LoRA(nn.Module):
    """Low-rank term (α / r) · (x A) B, to be added to the result of a dense layer for x.

    The sum equals a dense layer with the kernel W + (α / r) A B, which is never formed. Clients differ in A and B only,
    so under `vmap` over clients the product with W stays one matrix product for all.

    A starts uniform in ±1/√features_in and B at zero, so the term starts at zero, as in the authors' code.

    Attributes:
        features: outputs of the dense layer.
        r: rank, at least 1.
        alpha: α; the scale is α / r.

    References:
        Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022, section 4.1.
    """

    features: int
    r: int
    alpha: float

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps [..., features_in] to [..., features]."""
        a = self.param("a", _uniform, (x.shape[-1], self.r))
        b = self.param("b", nn.initializers.zeros, (self.r, self.features))
        x, a, b = nn.dtypes.promote_dtype(x, a, b)
        return (x @ a) @ b * (self.alpha / self.r)


def _uniform(key: Array, shape: tuple[int, int]) -> Array:
    bound = shape[0] ** -0.5
    return jax.random.uniform(key, shape, jnp.float32, -bound, bound)
