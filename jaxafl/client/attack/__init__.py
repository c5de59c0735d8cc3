"""Attacks: clients that send forged updates, or train on forged labels."""

from jaxafl.client.attack.colluding import alie, ipm
from jaxafl.client.attack.contract import Attack
from jaxafl.client.attack.forgeries import (
    fixed_vector,
    gaussian,
    label_flip,
    random_disturbance,
    random_vector,
    scaled,
    sign_flip,
)

__all__ = [
    "Attack",
    "alie",
    "fixed_vector",
    "gaussian",
    "ipm",
    "label_flip",
    "random_disturbance",
    "random_vector",
    "scaled",
    "sign_flip",
]
