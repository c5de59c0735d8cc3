"""Refusal, before compilation, of JAX options under which the engine does not work."""

from __future__ import annotations

from typing import Any

import jax

from jaxafl.options import UserError

_GUARDED = ("disallow", "disallow_explicit")
_MOVES = (_GUARDED, "allow", "numbers of options and seeds are moved to the device as they are met")
_REFUSED: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "jax_debug_infs": ((True,), False, "infinities mark what has not arrived yet; jax_debug_nans works"),
    "jax_numpy_dtype_promotion": (("strict",), "standard", "numbers of steps and samples are multiplied with floats"),
    "jax_numpy_rank_promotion": (("raise",), "allow", "arrays are broadcast over clients and samples"),
    "jax_debug_key_reuse": (
        (True,),
        False,
        "a draw is keyed by what it is for, and made again where it is needed again",
    ),
    "jax_disable_jit": ((True,), False, "runs are compiled programs"),
    "jax_transfer_guard": _MOVES,
    "jax_transfer_guard_host_to_device": _MOVES,
    "jax_no_tracing": ((True,), False, "models and options are traced before they are compiled"),
}


def check_switches() -> None:
    """Raises `ValueError` for a JAX option under which runs fail, with the reason and the value to set."""
    for name, (refused, works, why) in _REFUSED.items():
        value = getattr(jax.config, name, works)
        value = getattr(value, "value", value)
        if value in refused:
            raise UserError(
                f"jaxafl does not run under {name}={value!r}: {why}. Set jax.config.update({name!r}, {works!r})"
            )
