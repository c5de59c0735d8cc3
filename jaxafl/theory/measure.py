"""Measurements of an objective at a model: loss, gradients, their variances, curvature and the smallest value."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from jaxafl.data import FederatedData
from jaxafl.device.keys import jax_key
from jaxafl.engine.state import Version
from jaxafl.models.model import Batch, Model

Array = jax.Array
Loss = Callable[..., Array]  # f_i, see `loss_of`
_TOLERANCE = 1e-6  # L-BFGS ends at a gradient of this fraction of the first norm
_MIN_RESIDUALS = 2.0  # a smallest eigenvalue counts if it exceeds this multiple of its residual


class Sampled(NamedTuple):
    """Chosen clients and samples; f_i is the mean loss of the samples of client i, F = Σλ_i f_i."""

    client: Array  # int32 [C]
    positions: Array  # int32 [C, S]
    mask: Array  # bool [C, S]; False marks padding
    weight: Array  # [C]: λ_i, of sum 1


class AtModel(NamedTuple):
    """Measurements at one model."""

    loss: Array  # F
    gradient_norm_squared: Array  # ‖∇F‖²
    client_gradient: Array  # [C]: ‖∇f_i‖
    between: Array  # Σλ_i ‖∇f_i - ∇F‖²
    within: Array  # [C]: mean over samples of ‖∇ℓ_j - ∇f_i‖²
    sample_gradient: Array  # [C]: largest ‖∇ℓ_j‖
    largest: Array  # [C]: largest |eigenvalue| of the Hessian of f_i
    smallest: Array  # [C]: smallest eigenvalue of the Hessian of f_i; NaN unless certainly above 0


def loss_of(model: Model, data: FederatedData, version: Version) -> Loss:
    """Returns f_i as a function of what is given, chosen samples of a client, and the trained parameters [d].

    Augmentation, dropout, weight decay and proximal term are off. Statistics of normalisation are those of the model.
    What is given are non-trainable state, data on the device, frozen parameters, and all chosen samples.

    Args:
        model: the model of the simulation, in its precision.
        data: the data of the simulation.
        version: a model, for the structure of the parameters.
    """
    _, unravel = ravel_pytree(version.params)

    def loss(given: Any, row: Sampled, w: Array) -> Array:
        state, arrays, frozen, _ = given
        raw, y = data.gather(arrays, row.client, row.positions)
        batch = Batch(data.preprocess(raw), y, row.mask)
        key = jax_key((jnp.uint32(0), jnp.uint32(0)))
        outputs, _ = model.bound(frozen)(unravel(w), state, batch, key, False)
        return jnp.sum(jnp.where(row.mask, outputs.loss, 0)) / jnp.sum(row.mask)

    return loss


@functools.partial(jax.jit, static_argnums=(0, 1))
def at_model(loss: Loss, iterations: int, given: Any, w: Array, key: Array) -> AtModel:
    """Measures loss, gradients and curvature at a model.

    Args:
        loss: f_i, see `loss_of`.
        iterations: Hessian-vector products for each eigenvalue.
        given: arguments of `loss`.
        w: the model.
        key: the key of the first vectors of the power iterations.
    """
    rows = given[3]
    gradient_of = jax.grad(functools.partial(loss, given), argnums=1)
    value, mean = jax.value_and_grad(functools.partial(_mean, loss, given))(w)

    def client(row: Sampled) -> tuple[Array, ...]:
        client_gradient = gradient_of(row, w)

        def sample(place: tuple[Array, Array]) -> tuple[Array, Array]:
            position, inside = place
            one_sample = row._replace(positions=position[None], mask=jnp.ones(1, bool))
            gradient = gradient_of(one_sample, w)
            deviation = jnp.sum(jnp.square(gradient - client_gradient))
            return jnp.where(inside, deviation, 0), jnp.where(inside, jnp.linalg.norm(gradient), 0)

        deviations, norms = jax.lax.map(sample, (row.positions, row.mask))
        extremes = _extremes(functools.partial(gradient_of, row), w, key, iterations)
        within = jnp.sum(deviations) / jnp.sum(row.mask)
        norm, deviation = jnp.linalg.norm(client_gradient), jnp.sum(jnp.square(client_gradient - mean))
        return norm, deviation, within, jnp.max(norms), *extremes

    norms, deviations, *others = jax.lax.map(client, rows)
    between = jnp.sum(rows.weight * deviations)
    return AtModel(value, jnp.sum(jnp.square(mean)), norms, between, *others)


def _extremes(gradient: Callable[[Array], Array], w: Array, key: Array, iterations: int) -> tuple[Array, Array]:
    """Returns the largest |eigenvalue| and the smallest eigenvalue of the Hessian, by power iteration.

    The smallest is found as the largest of the difference from it; NaN unless it exceeds its residual clearly.
    """

    def power(product: Callable[[Array], Array]) -> tuple[Array, Array]:
        def once(_: int, v: Array) -> Array:
            image = product(v)
            length = jnp.linalg.norm(image)
            return jnp.where(length > 0, image / jnp.where(length > 0, length, 1), v)

        begin = jax.random.normal(key, w.shape, w.dtype)
        v = jax.lax.fori_loop(0, iterations - 1, once, begin / jnp.linalg.norm(begin))
        image = product(v)
        return jnp.linalg.norm(image), jnp.linalg.norm(image - v * jnp.dot(v, image))

    def hessian(v: Array) -> Array:
        return jax.jvp(gradient, (w,), (v,))[1]

    largest, _ = power(hessian)
    below, residual = power(lambda v: largest * v - hessian(v))
    smallest = largest - below
    certain = smallest > jnp.maximum(_MIN_RESIDUALS * residual, 1e-5 * largest)
    return largest, jnp.where(certain, smallest, jnp.nan)


def _mean(loss: Loss, given: Any, w: Array) -> Array:
    """Computes F, one client after another."""

    def add(total: Array, row: Sampled) -> tuple[Array, None]:
        return total + row.weight * loss(given, row, w), None

    return jax.lax.scan(add, jnp.zeros((), w.dtype), given[3])[0]


@functools.partial(jax.jit, static_argnums=(0, 1))
def smallest_loss(loss: Loss, steps: int, given: Any, w: Array) -> tuple[Array, Array]:
    """Returns the smallest F that L-BFGS finds from a model in at most `steps` steps, and its parameters [d]."""
    mean = functools.partial(_mean, loss, given)
    found = _minimise(mean, w, steps)
    return mean(found), found


@functools.partial(jax.jit, static_argnums=(0, 1))
def spread_of(loss: Loss, steps: int, given: Any, w: Array) -> Array:
    """Returns the largest squared distance from w to a minimiser of an f_i, found by L-BFGS from w."""

    def squared_distance(row: Sampled) -> Array:
        return jnp.sum(jnp.square(_minimise(functools.partial(loss, given, row), w, steps) - w))

    return jnp.max(jax.lax.map(squared_distance, given[3]))


def _minimise(objective: Callable[[Array], Array], w: Array, steps: int) -> Array:
    """Runs L-BFGS until the norm of the gradient has fallen by `_TOLERANCE`."""
    solver = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(objective)
    enough = _TOLERANCE * jnp.linalg.norm(jax.grad(objective)(w))

    def goes_on(carry: tuple[Array, Any, Array, Array]) -> Array:
        return (carry[0] < steps) & (carry[3] > enough)

    def once(carry: tuple[Array, Any, Array, Array]) -> tuple[Array, Any, Array, Array]:
        count, state, w, _ = carry
        value, gradient = value_and_grad(w, state=state)
        change, state = solver.update(gradient, state, w, value=value, grad=gradient, value_fn=objective)
        return count + 1, state, w + change, jnp.linalg.norm(gradient)

    return jax.lax.while_loop(goes_on, once, (jnp.int32(0), solver.init(w), w, 2 * enough + 1))[2]
