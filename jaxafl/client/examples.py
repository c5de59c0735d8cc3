"""Gradients of single samples, clipped and with noise: DP-SGD in the local steps."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxafl.client.correction.contract import Tree
from jaxafl.client.optimizer import nodes_of
from jaxafl.models.model import Apply, Array, Batch
from jaxafl.options import Number, UserError


def dp_sgd(
    learning_rate: optax.ScalarOrSchedule,
    max_norm: Number,
    noise_multiplier: Number,
    momentum: Number | None = None,
    nesterov: bool = False,
) -> optax.GradientTransformation:
    """Builds SGD on clipped gradients of single samples with Gaussian noise, the optimiser of private local steps.

    A local step is one of SGD on (1/B) (Σ_b g_b min(1, C / ‖g_b‖) + N(0, (zC)² I)) with the gradients g_b of the B
    samples of a mini-batch. B is the batch size, also of a smaller batch at the end of an epoch. The noise is drawn for
    every local step of every run. The gradients of all B samples are in memory at once.

    Any Optax optimiser that begins with `optax.contrib.differentially_private_aggregate` works in the same way.

    Args:
        learning_rate: η, a number or an Optax schedule of local steps.
        max_norm: clipping norm C > 0 of the gradient of a sample.
        noise_multiplier: z ≥ 0, standard deviation of the noise over C.
        momentum: β in [0, 1), with m ← βm + gradient; `None` for no momentum.
        nesterov: use Nesterov's momentum.

    References:
        Abadi et al. (2016), "Deep learning with differential privacy", CCS, Algorithm 1.

    Examples:
        >>> import jaxafl as afl
        >>> options = {"learning_rate": 0.1, "max_norm": 1.0, "noise_multiplier": 1.1}
        >>> afl.Client(afl.client.dp_sgd, **options, steps=10, batch_size=16).hyperparameters
        {'learning_rate': 0.1, 'max_norm': 1.0, 'noise_multiplier': 1.1}
    """
    aggregate = optax.contrib.differentially_private_aggregate(max_norm, noise_multiplier, key=0)  # replaced per run
    return optax.chain(aggregate, optax.sgd(learning_rate, momentum, nesterov))


def takes_examples(state: Tree) -> bool:
    """Returns True if an optimiser with this state takes gradients of single samples, [B, ...]."""
    return bool(nodes_of(state, optax.contrib.DifferentiallyPrivateAggregateState))


def gradients_of_examples(
    apply: Apply, params: Tree, model_state: Tree, batch: Batch, key: Array
) -> tuple[Array, Tree]:
    """Computes the sum of the losses, and the gradient of each sample's loss, each leaf [B, ...]; 0 for padding.

    Args:
        apply: function of the trained model.
        params: where.
        model_state: its non-trainable state, which must be empty.
        batch: the samples.
        key: of the model, e.g. for dropout; each sample gets a key of its own.
    """

    def objective(params: Tree, x: Tree, y: Array, mask: Array, key: Array) -> Array:
        x, y, mask = jax.tree.map(lambda leaf: leaf[None], (x, y, mask))
        outputs, _ = apply(params, model_state, Batch(x, y, mask), key, True)
        return jnp.sum(jnp.where(mask, outputs.loss, 0))

    each = jax.vmap(jax.value_and_grad(objective), (None, 0, 0, 0, 0))
    losses, gradients = each(params, batch.x, batch.y, batch.mask, jax.random.split(key, len(batch.mask)))
    return jnp.sum(losses), gradients


def check_examples(client: Any, model_state: Tree) -> None:
    """Raises `ValueError` for local training that cannot clip the gradients of single samples."""
    owner = f"Client({client.optimizer_name})"
    if jax.tree.leaves(model_state):
        raise UserError(
            f"{owner}: the model has non-trainable state (batch statistics), which mixes samples, so their gradients "
            "cannot be clipped one by one. Freeze it, or use group or layer normalisation"
        )
    if not 0 < client.width <= client.micro_batch or client._sizes is not None:
        raise UserError(
            f"{owner}: gradients of single samples are clipped in one mini-batch of fixed size. Give batch_size=B, one "
            "number, without micro_batch"
        )
    if client.proximal is not None or client.weight_decay is not None or client.correction is not None:
        raise UserError(
            f"{owner}: proximal, weight_decay and correction are terms of a mean gradient, and would be clipped with "
            "the gradients of samples. Leave them out, or chain "
            "optax.add_decayed_weights after optax.contrib.differentially_private_aggregate"
        )
