"""Attacks of single clients, which know their own update only."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxafl.client.attack.contract import Array, Attack
from jaxafl.client.upload import Sent
from jaxafl.device.keys import drawing_key
from jaxafl.options import Number, UserError, number, static


class sign_flip(Attack):
    """Sends -a Δ.

    Args:
        factor: a ≥ 0.
        clients: who attacks: a share in [0, 1] of the N clients, drawn with the seed of the run, or a list of clients.

    References:
        Li, Xu, Chen, Giannakis, Ling (2019), "RSA: Byzantine-robust stochastic aggregation methods for distributed
        learning from heterogeneous datasets", AAAI.
    """

    factor: Number = number(default=1.0, least=0)

    references = ("li2019rsa",)

    def forge(self, delta: Array, sent: Sent) -> Array:
        return delta * -self.factor


class scaled(Attack):
    """Sends a Δ, such as a = N / η to replace the model.

    Args:
        factor: a.
        clients: who attacks: a share in [0, 1] of the N clients, drawn with the seed of the run, or a list of clients.

    References:
        Bagdasaryan, Veit, Hua, Estrin, Shmatikov (2020), "How to backdoor federated learning", AISTATS, section 4.
    """

    factor: Number = number(default=10.0)

    references = ("bagdasaryan2020",)

    def forge(self, delta: Array, sent: Sent) -> Array:
        return delta * self.factor


class gaussian(Attack):
    """Sends N(0, s² I) instead of Δ, or Δ + N(0, s² I), drawn for each run.

    Args:
        std: s ≥ 0.
        added: if True, the noise is added to Δ.
        clients: who attacks: a share in [0, 1] of the N clients, drawn with the seed of the run, or a list of clients.

    References:
        Blanchard, El Mhamdi, Guerraoui, Stainer (2017), "Machine learning with adversaries: Byzantine tolerant gradient
        descent", NeurIPS, section 6.
    """

    std: Number = number(default=1.0, least=0)
    added: bool = static(default=False, kw_only=True)

    references = ("blanchard2017",)

    def forge(self, delta: Array, sent: Sent) -> Array:
        noise = jax.random.normal(sent.key, delta.shape, delta.dtype) * self.std
        return delta + noise if self.added else noise


class random_disturbance(Attack):
    """Sends Δ + N(0, (a ‖Δ‖)² I), drawn for each run.

    Args:
        factor: a ≥ 0.
        clients: who attacks: a share in [0, 1] of the N clients, drawn with the seed of the run, or a list of clients.

    References:
        Otsuka et al., THROTTLE, 2026, after Yang & Li, "Buffered asynchronous SGD for Byzantine learning", JMLR 2023.
    """

    factor: Number = number(default=0.2, least=0)

    references = ("otsuka2026",)

    def forge(self, delta: Array, sent: Sent) -> Array:
        noise = jax.random.normal(sent.key, delta.shape, delta.dtype)
        return delta + self.factor * jnp.linalg.norm(delta) * noise


class fixed_vector(Attack):
    """Sends a vector of fixed norm and random direction, the same in every message of a run of the simulation.

    Args:
        norm: norm of the vector; at least 0.
        clients: who attacks: a share in [0, 1] of the N clients, drawn with the seed of the run, or a list of clients.
    """

    norm: Number = number(default=10.0, least=0)

    def forge(self, delta: Array, sent: Sent) -> Array:
        return _direction(drawing_key(jax.random.key(self.word)), delta) * self.norm


class random_vector(Attack):
    """Sends a vector of fixed norm and random direction, drawn for each run.

    Args:
        norm: norm of the vector; at least 0.
        clients: who attacks: a share in [0, 1] of the N clients, drawn with the seed of the run, or a list of clients.
    """

    norm: Number = number(default=10.0, least=0)

    def forge(self, delta: Array, sent: Sent) -> Array:
        return _direction(sent.key, delta) * self.norm


class label_flip(Attack):
    """Trains on labels C - 1 - y instead of y, with C classes. Negative labels, which are padding, stay.

    Args:
        clients: who attacks: a share in [0, 1] of the N clients, drawn with the seed of the run, or a list of clients.

    References:
        Karimireddy, He, Jaggi (2022), "Byzantine-robust learning on heterogeneous datasets via bucketing", ICLR,
        section 6.
    """

    references = ("karimireddy2022",)

    def check(self, num_clients: int, num_classes: int | None, capacity: int) -> None:
        super().check(num_clients, num_classes, capacity)
        if not num_classes:
            raise UserError("label_flip: the targets of the data are no classes; expected labels. Give another attack")

    def label(self, y: Array) -> Array:
        return (self.classes - 1 - y).astype(y.dtype)


def _direction(key: Array, delta: Array) -> Array:
    drawn = jax.random.normal(key, delta.shape, delta.dtype)
    return drawn / jnp.linalg.norm(drawn)
