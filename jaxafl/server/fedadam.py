"""FedAdam."""

from __future__ import annotations

from typing import Any

import jax

from jaxafl.server.moments import AdaptiveServer

Array = jax.Array


def fedadam(learning_rate: Any = 0.1, b1: Any = 0.9, b2: Any = 0.99, eps: Any = 1e-3) -> AdaptiveServer:
    """FedAdam: an adaptive server step on the mean update of a cohort.

    D = (1/n) Σ Δ_i; m = β1 m + (1 - β1) D; v = β2 v + (1 - β2) D²; x ← x + η m / (√v + ε), with m_0 = 0 and
    v_0 = ε². No bias correction; cohort members are averaged without weights.

    Args:
        learning_rate: η >= 0.
        b1: β1 in [0, 1).
        b2: β2 in [0, 1).
        eps: ε > 0, the degree of adaptivity τ of the paper.

    References:
        Reddi et al., "Adaptive federated optimization", ICLR 2021, Algorithm 2.
    """
    return AdaptiveServer(learning_rate, b1, b2, eps, "fedadam", _second_moment)


def _second_moment(v: Array, square: Array, b2: Any) -> Array:
    return b2 * v + (1 - b2) * square
