"""Switches of JAX that the engine cannot run under, refused before anything is compiled."""

from __future__ import annotations

import jax

from jaxafl.options import UserError

_REFUSED = {
    "jax_debug_infs": (True, False, "infinities mark what has not arrived yet; jax_debug_nans works"),
    "jax_numpy_dtype_promotion": ("strict", "standard", "numbers of steps and samples are multiplied with floats"),
    "jax_numpy_rank_promotion": ("raise", "allow", "arrays are broadcast over clients and samples"),
    "jax_debug_key_reuse": (True, False, "a draw is keyed by what it is for, and made again where it is needed again"),
    "jax_disable_jit": (True, False, "runs are compiled programs"),
}


def check_switches() -> None:
    """Raises `ValueError` for a switch of JAX that does not work, with the reason and what to set."""
    for name, (refused, works, why) in _REFUSED.items():
        value = getattr(jax.config, name, works)
        if value == refused or str(getattr(value, "value", value)) == refused:
            raise UserError(
                f"jaxafl does not run under {name}={refused!r}: {why}. Set jax.config.update({name!r}, {works!r})"
            )
