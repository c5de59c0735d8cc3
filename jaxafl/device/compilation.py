"""Cache of compiled programs: a second run of the same shapes compiles nothing.

The first lookup is by static arguments, without tracing. The second is by lowered code: another model or function with
equal code is traced but not compiled.

The cache holds only the latest programs. On a CPU every program holds some hundred memory mappings, and a process on
Linux has 65,530, so a process that compiles new shapes without end would be killed. JAX caches everything it derived
from a function for the lifetime of that function, so every program is compiled from a new function object.

Outside of programs, no operation may depend on the shapes of a run. JAX compiles such an operation for each shape and
caches it: `jnp.asarray`, `jnp.stack`, `x[0]`, or a `jax.jit` at module level. Use `on_device` to move arrays, and
`compiled` to compute.
"""

from __future__ import annotations

import functools
import hashlib
import math
import operator
import os
import pathlib
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any, TypeVar

import jax
import numpy as np
from jax.extend.core import jaxprs_in_params

from jaxafl.device.hardware import built_for_cpu
from jaxafl.options import UserError, shown

T = TypeVar("T")
_KEPT = 64
_FLAGS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_default_prng_impl", "jax_threefry_partitionable")
"""Settings of JAX that change the numbers of a program."""
on_device = jax.device_put
"""Copies every array of a tree to the device; unlike `jnp.asarray`, it compiles nothing for a new shape."""
on_host = jax.device_get
"""Copies every array of a tree to the host."""
# by key: a list of the program, and a lock, without which threads that need one program would each compile it
_programs: OrderedDict[Any, tuple[list[Any], threading.Lock]] = OrderedDict()
_by_code: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()  # the programs of `_programs`
_lock = threading.Lock()


# Option `once`. Without it, the initial parameters of a deep network compile several times as long.
_ONCE: dict[str, str | bool] = {"xla_backend_optimization_level": "0"}
_DETERMINISTIC: dict[str, str | bool] = {"xla_gpu_exclude_nondeterministic_ops": True}
# In jaxlib 0.11.1, a loop that XLA compiles as one function on a CPU copies the buffer for every small update
# (jax issue 40101, fixed in 0.11.2). Without this pass XLA compiles no such loop.
_UNSAFE = ("small-while-loop-hoisting",) if version("jaxlib") == "0.11.1" else ()
# Without this pass, only matrix products use several threads.
_SERIAL = (*_UNSAFE, "cpu-parallel-task-assigner")
# Floating-point operations of a program's largest product below which several threads cost more time than they save.
_THREADS_HELP = 3e6


def compiled(
    function: Callable[..., Any],
    static: tuple[Any, ...],
    arguments: tuple[Any, ...],
    donate: tuple[int, ...] = (),
    once: bool = False,
    deterministic: bool = False,
) -> tuple[Any, float]:
    """Returns the compiled program of `function(*static, *arguments)`, to be called with the arguments.

    Calling it with other shapes raises an error and never recompiles.

    Args:
        function: a traceable function at module level.
        static: its leading arguments, hashable.
        arguments: its other arguments (arrays).
        donate: indices of donated `arguments`.
        once: the program runs once per run, so optimise for compile time.
        deterministic: on a GPU, exclude operations whose bits differ between calls.

    Returns:
        The program, and the seconds of compilation (0 if it was cached).
    """
    begun = time.perf_counter()
    check_untraced()
    leaves, structure = jax.tree.flatten(arguments)
    shapes = tuple(map(operator.attrgetter("shape", "dtype"), leaves))
    places = frozenset[Any]().union(*map(operator.methodcaller("devices"), leaves))
    form = structure, shapes, operator.attrgetter(*_FLAGS)(jax.config), jax.default_backend(), built_for_cpu(), places
    key = function, static, donate, once, deterministic, *form
    with _lock:
        found, in_progress = _programs.setdefault(key, ([], threading.Lock()))
        _programs.move_to_end(key)
        if len(_programs) > _KEPT:
            _programs.popitem(last=False)
    with in_progress:
        if found:
            return found[0], 0.0
        options = (_ONCE if once else {}) | (_DETERMINISTIC if deterministic else {})
        staged = jax.jit(functools.partial(function, *static), donate_argnums=donate).trace(*arguments)
        found.append(_compiled(staged, options, form))
    return found[0], time.perf_counter() - begun


def _compiled(staged: Any, options: dict[str, str | bool], form: tuple[Any, ...]) -> Any:
    """Returns the program of traced code; equal code with arguments of equal form is compiled once."""
    largest = 0  # floating-point operations of the largest matrix product or convolution
    for equation in equations(staged.jaxpr):
        how = equation.params.get("dimension_numbers")
        if equation.primitive.name == "dot_general":
            operand, summed = equation.invars[0], how[0][0]
        elif equation.primitive.name == "conv_general_dilated":
            operand, summed = equation.invars[1], how.rhs_spec[1:]
        else:
            continue
        lengths = *equation.outvars[0].aval.shape, *map(operand.aval.shape.__getitem__, summed)
        largest = max(largest, 2 * math.prod(lengths))
    small = 0 < largest < _THREADS_HELP
    options = options | _disabled(_SERIAL if small and jax.default_backend() == "cpu" else _UNSAFE)
    lowered = staged.lower()
    lowering = getattr(lowered, "_lowering", None)
    constants = getattr(lowering, "const_args", ())  # newer versions omit them in the text
    used = sorted(getattr(lowering, "compile_args", {}).get("kept_var_idx") or ())  # the text omits unused arguments
    code = hashlib.sha256(lowered.as_text().encode())
    for constant in constants:
        code.update(np.asarray(constant).tobytes())
    key = code.digest(), tuple(used), lowered.out_tree, tuple(options.items()), *form
    if (program := _by_code.get(key)) is None:
        program = _by_code[key] = lowered.compile(options)
    return program


def keep_programs(folder: pathlib.Path) -> None:
    """Enables JAX's persistent compilation cache in a folder.

    Raises:
        PermissionError: the folder belongs to another user, who could decide what this process executes.
    """
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"the cache {folder} is another user's, who could write programs for you to run")
    folder.chmod(0o700)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def _disabled(passes: tuple[str, ...]) -> dict[str, str | bool]:
    return {"xla_disable_hlo_passes": ",".join(passes)} if passes else {}


def equations(jaxpr: Any) -> Iterator[Any]:
    """Yields the equations of a jaxpr and, recursively, of the jaxprs in their parameters."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)


def results_of(function: Callable[..., Any], *arguments: Any) -> list[tuple[str, int]]:
    """Returns the name of every operation of a traced function and the bytes of its results, with 4 bytes a number.

    Loops and calls have 0 bytes; their operations follow.
    """
    found = []
    for equation in equations(jax.make_jaxpr(function)(*arguments).jaxpr):
        sizes = [getattr(one.aval, "size", 0) for one in equation.outvars]
        found.append((equation.primitive.name, 0 if any(jaxprs_in_params(equation.params)) else 4 * sum(sizes)))
    return found


def check_untraced() -> None:
    """Raises `UserError` in code that JAX traces."""
    if isinstance(jax.device_put(np.int32(0)), jax.core.Tracer):
        raise UserError(
            "jaxafl: a run or a schedule is computed in code that JAX traces, such as a function in jax.jit; expected "
            "plain Python. Compute it outside, sweep over options by jaxafl.sweep, or take sim.init and sim.step"
        )


def as_arrays(tree: T, dtype: Any) -> T:
    """Converts every numeric leaf to an array on the device.

    Floats get `dtype`. Integers get int32 or uint32, or int64 if `dtype` is float64. No leaf depends on x64 being
    enabled.

    Raises:
        UserError: an integer has too many bits, or a float is beyond the range of `dtype`.
    """

    def convert(path: Any, leaf: Any) -> Any:
        array = np.asarray(leaf)  # has dtype object for an integer of more than 64 bits
        kind = array.dtype.kind
        if kind not in "fiub" and not isinstance(leaf, int):
            raise TypeError(f"{leaf!r} is not a number: declare the option that holds it with jaxafl.options.static()")
        if kind == "b":
            return on_device(array)
        types: tuple[Any, ...] = (np.int32, np.int64 if dtype == np.float64 else np.uint32)
        types = (np.uint32, *types) if kind == "u" else (dtype,) if kind == "f" else types
        limits: Any = np.finfo if kind == "f" else np.iinfo
        finite = array[np.isfinite(array)] if kind == "f" else array
        least, most = (finite.min(), finite.max()) if finite.size else (0, 0)
        for one in types:
            if limits(one).min <= least and most <= limits(one).max:
                return on_device(array.astype(one))
        name = jax.tree_util.keystr(path).lstrip(".") or "a number"
        raise UserError(
            f"{name}: {shown(leaf)} does not fit into {' or '.join(np.dtype(one).name for one in types)}, and "
            "would become another number: write 1e10 for 10**10, and declare a key or a seed as a `static` option"
        )

    return jax.tree_util.tree_map_with_path(convert, tree)
