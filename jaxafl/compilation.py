"""Compiled programs, kept by what they depend on, so that a second run of the same shapes compiles nothing.

Only the latest are kept: on a CPU every program holds some hundred memory mappings, of which a process has 65,530 on
Linux, so a long session that compiled ever new shapes would be killed.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

_KEPT = 64
_programs: OrderedDict[Any, Any] = OrderedDict()


# One pass over a program that runs once: the initial parameters of a ResNet-20 then compile in a seventh of the time.
_ONCE: dict[str, str | bool] = {"xla_backend_optimization_level": "0"}


def compiled(
    function: Callable[..., Any],
    static: tuple[Any, ...],
    arguments: tuple[Any, ...],
    donate: tuple[int, ...] = (),
    once: bool = False,
) -> tuple[Any, float]:
    """The compiled program of `function(*static, *arguments)`, to be called with the arguments.

    Calling it with other shapes is an error, never a silent compilation.

    Args:
        function: a traceable function of module level.
        static: its leading arguments, hashable.
        arguments: its other arguments (arrays).
        donate: indices into `arguments` whose memory may be reused.
        once: the program runs once per run, so that compiling it fast matters more than running it fast.

    Returns:
        The program and the seconds it took to compile (0 if it was kept from an earlier call).
    """
    leaves, structure = jax.tree.flatten(arguments)
    shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
    places = tuple(sorted({device.id for leaf in leaves for device in leaf.devices()}))
    wide = jnp.result_type(float) == jnp.float64
    key = (function, static, structure, shapes, donate, once, wide, jax.default_backend(), places)
    if key in _programs:
        _programs.move_to_end(key)
        return _programs[key], 0.0
    begun = time.perf_counter()
    count = len(static)
    jitted = jax.jit(
        function, static_argnums=tuple(range(count)), donate_argnums=tuple(count + index for index in donate)
    )
    program = jitted.lower(*static, *arguments).compile(compiler_options=_ONCE if once else None)
    _programs[key] = program
    if len(_programs) > _KEPT:
        _programs.popitem(last=False)
    return program, time.perf_counter() - begun
