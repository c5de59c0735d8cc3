"""Compiled programs, kept by what they depend on, so that a second run of the same shapes compiles nothing."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax

_KEPT = 32
_programs: OrderedDict[Any, Any] = OrderedDict()


def compiled(
    function: Callable[..., Any], static: tuple[Any, ...], arguments: tuple[Any, ...], donate: tuple[int, ...] = ()
) -> tuple[Any, float]:
    """The compiled program of `function(*static, *arguments)`, to be called with the arguments.

    Calling it with other shapes is an error, never a silent compilation.

    Args:
        function: a traceable function of module level.
        static: its leading arguments, hashable.
        arguments: its other arguments (arrays).
        donate: indices into `arguments` whose memory may be reused.

    Returns:
        The program and the seconds it took to compile (0 if it was kept from an earlier call).
    """
    leaves, structure = jax.tree.flatten(arguments)
    key = (
        function,
        static,
        structure,
        tuple((leaf.shape, leaf.dtype) for leaf in leaves),
        donate,
        jax.default_backend(),
    )
    if key in _programs:
        _programs.move_to_end(key)
        return _programs[key], 0.0
    begun = time.perf_counter()
    count = len(static)
    jitted = jax.jit(
        function, static_argnums=tuple(range(count)), donate_argnums=tuple(count + index for index in donate)
    )
    program = jitted.lower(*static, *arguments).compile()
    _programs[key] = program
    if len(_programs) > _KEPT:
        _programs.popitem(last=False)
    return program, time.perf_counter() - begun
