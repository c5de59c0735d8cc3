"""JAX options: those under which the engine does not work, and those that change the numbers of a program."""

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


_NUMERICAL = {
    "jax_enable_x64": False,
    "jax_default_matmul_precision": None,
    "jax_default_prng_impl": "threefry2x32",
    "jax_threefry_partitionable": True,
    "jax_random_seed_offset": 0,
    "jax_high_dynamic_range_gumbel": False,
}


def numerical_options() -> dict[str, Any]:
    """Returns name -> value of the options that change the numbers of a program and differ from their defaults."""
    values = {name: getattr(jax.config, name, default) for name, default in _NUMERICAL.items()}
    return {name: value for name, value in values.items() if value != _NUMERICAL[name]}


def check_switches() -> None:
    """Raises `ValueError` for a JAX option under which runs fail, with the reason and the value to set."""
    for name, (refused, works, why) in _REFUSED.items():
        value = getattr(jax.config, name, works)
        value = getattr(value, "value", value)
        if value in refused:
            raise UserError(
                f"jaxafl does not run under {name}={value!r}: {why}. Set jax.config.update({name!r}, {works!r})"
            )
