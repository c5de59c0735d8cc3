"""One set of constants for every statement, with which its conditions hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import xarray as xr

from jaxafl.theory import afl, asyncfeded, defedavg, delayed_gradients, fadas

Case = tuple[Callable[..., xr.Dataset], dict[str, Any]]

_PROBLEM = dict(smoothness=2.0, gap=3.0, local_variance=0.5, global_variance=0.7)
_LOCAL = dict(smoothness=2.0, local_variance=0.5, global_variance=0.7, local_rate=0.01)
_STRONG = dict(server_steps=50, learning_rate=0.3, distance=1.5, smoothness=2.0, strong_convexity=0.5)
_DELAYS = dict(gradient_bound=4.0, clients=6, mean_staleness=0.3, cubic_staleness=1.1)
_ABSENT = dict(mean_arrivals=4.5)
_FADAS = dict(_PROBLEM, server_steps=50, local_steps=3, arrivals=4, gradient_bound=5.0, epsilon=0.2)
_BUFFER = dict(_FADAS, clients=20, local_rate=1e-3, adaptive_rate=1e-3, staleness_max=9.0, staleness_mean_of_max=3.0)
_DEFEDAVG = dict(server_steps=10**7, local_steps=3, arrivals=4, gap=3.0, smoothness=2.0, local_variance=0.5)
_LEMMA = dict(
    server_steps=20, start=3.0, descent=0.5, quadratic=0.2, cubic=0.3, initial_rate=0.4, delay_penalty=0.1, staleness=2
)

CASES: dict[str, Case] = {
    "asyncfeded 1": (asyncfeded.theorem_1, dict(_LOCAL, local_steps=4, gradient_norm_squared=1.3)),
    "asyncfeded corollary": (
        asyncfeded.corollary_1,
        dict(_LOCAL, local_steps=4, gradient_norm_squared=1.3, euclidean_staleness=0.2),
    ),
    "asyncfeded 2": (
        asyncfeded.theorem_2,
        dict(_LOCAL, server_steps=50, local_steps=4, gap=3.0, server_rate=0.5, euclidean_staleness=0.2),
    ),
    "sfl": (delayed_gradients.sfl, dict(_STRONG, optimum_spread=0.8)),
    "audg": (delayed_gradients.audg, dict(_STRONG, **_DELAYS, **_ABSENT, optimum_spread=0.8)),
    "pdd": (delayed_gradients.pdd, dict(_STRONG, **_DELAYS, **_ABSENT)),
    "psurdg": (delayed_gradients.psurdg, dict(_STRONG, **_DELAYS, optimum_spread=0.8)),
    "difference": (
        delayed_gradients.psurdg_less_audg,
        {name: value for name, value in dict(_STRONG, **_DELAYS, **_ABSENT, optimum_spread=0.8).items()
         if name != "cubic_staleness"},
    ),
    "afl 1": (
        afl.theorem_1,
        dict(_PROBLEM, server_steps=50, local_steps=3, arrivals=4, clients=20, local_rate=0.002, dissimilarity=1.7),
    ),
    "lemma": (afl.lemma_3, _LEMMA),
    "printed lemma": (afl.lemma_3, dict(_LEMMA, form="printed")),
    "fadas 5.6": (fadas.theorem_5_6, _BUFFER),
    "fadas 5.9": (fadas.theorem_5_9, dict(_BUFFER, staleness_threshold=3.0, mean_rate=8e-4, unit_of_length=0.5)),
    "fadas 5.7": (fadas.corollary_5_7, dict(_FADAS, staleness_max=9.0, staleness_mean_of_max=3.0)),
    "fadas 5.10": (fadas.corollary_5_10, dict(_FADAS, staleness_threshold=2.0, staleness_mean_of_max=3.0)),
    "defedavg 1": (
        defedavg.theorem_1,
        dict(_DEFEDAVG, gradient_bound=5.0, global_variance=0.7, staleness_max=9.0, unit_of_objective=2.0),
    ),
    "defedavg 2": (defedavg.theorem_2, dict(_DEFEDAVG, staleness_max=9.0)),
}  # fmt: skip
"""Every function of `jaxafl.theory` that returns a bound."""
