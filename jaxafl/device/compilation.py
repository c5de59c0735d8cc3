"""Compiled programs, kept by what they depend on, so that a second run of the same shapes compiles nothing.

They are found by their static arguments, without tracing; and by the code that they are lowered to, so that another
model, or another function, that computes the same is traced but not compiled.

Only the latest are kept: on a CPU every program holds some hundred memory mappings, of which a process has 65,530 on
Linux, so a long session that compiled ever new shapes would be killed. JAX keeps what it traced, lowered and compiled
for as long as the function lives that was traced, so every program is made from a function object of its own.

Outside of programs, no operation may depend on the shapes of a run: JAX compiles it for each and keeps that, some
1.4 MB even for the copy of `jnp.asarray` (others are `jnp.stack`, `x[0]` and a `jax.jit` of module level). So arrays
reach the device by `on_device`, what is done there is a program of `compiled`, and shapes are found by `shapes_of`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import os
import pathlib
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import jaxprs_in_params

from jaxafl.device.backend import on_cpu

_KEPT = 64
_programs: OrderedDict[Any, Any] = OrderedDict()
_by_code: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()  # those of `_programs`
_shapes: OrderedDict[Any, Any] = OrderedDict()
_lock, _making = threading.Lock(), dict[Any, threading.Lock]()  # threads that need the same program wait for one


# For what is mostly random numbers: synthetic data then compile in a third of the time and are made in half of it, with
# the same bits. Training would run up to 1.5 times as long.
_OLD = jaxlib.__version__.startswith("0.10.")  # later versions have no choice
_PLAIN: dict[str, str | bool] = {"xla_cpu_use_fusion_emitters": False} if _OLD else {}
# One pass over a program that runs once: the initial parameters of a ResNet-20 then compile in a seventh of the time.
# (With the simpler way of fusing too, a command would take 2 % less, but half of them have another last bit.)
_ONCE: dict[str, str | bool] = {"xla_backend_optimization_level": "0"}
_DETERMINISTIC: dict[str, str | bool] = {"xla_gpu_exclude_nondeterministic_ops": True}
# jaxlib 0.11.1 copies the whole buffer for every small update in a loop that XLA compiles as one function on a CPU
# (jax issue 40101, mended in 0.11.2); without this pass no loop is compiled so.
_WITHOUT = ("small-while-loop-hoisting",) if jaxlib.__version__ == "0.11.1" else ()
# Where XLA is known to compile a marked function, or to say that it cannot: jaxlib 0.11.2 ends the process over some.
_MARKED = jaxlib.__version__.startswith(("0.10.", "0.12."))
# No operation but products is dealt to several threads, as none can be in one function.
_SERIAL = (*_WITHOUT, "cpu-parallel-task-assigner")
# Floating-point operations of the largest product of a program: with fewer, threads wait for each other longer than
# they help (an MLP 784-128-10, 2 million, makes 1.24 times the updates in one thread; 784-256-10, 4 million, 0.93).
_THREADS_HELP = 3e6


def compiled(
    function: Callable[..., Any],
    static: tuple[Any, ...],
    arguments: tuple[Any, ...],
    donate: tuple[int, ...] = (),
    once: bool = False,
    deterministic: bool = False,
    whole: bool = False,
    plain: bool = False,
) -> tuple[Any, float]:
    """The compiled program of `function(*static, *arguments)`, to be called with the arguments.

    Calling it with other shapes is an error, never a silent compilation.

    Args:
        function: a traceable function of module level.
        static: its leading arguments, hashable.
        arguments: its other arguments (arrays).
        donate: indices into `arguments` whose memory may be reused.
        once: the program runs once per run, so that compiling it fast matters more than running it fast.
        deterministic: on a GPU, only operations that give the same bits every time.
        whole: on a CPU, one function of machine code, instead of one for each of the operations, which takes some
            0.2 µs to be called: for loops of many small operations. Where XLA cannot, it is compiled as others are.
        plain: on a CPU, by XLA's simpler way of fusing operations: for draws of many random numbers.

    Returns:
        The program and the seconds it took to compile (0 if it was kept from an earlier call).
    """
    begun = time.perf_counter()

    def compile_() -> Any:
        traced = functools.partial(function, *static)
        options = (_ONCE if once else {}) | (_DETERMINISTIC if deterministic else {}) | (_PLAIN if plain else {})
        if whole and _MARKED:
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                lowered = jax.jit(_marked(traced), donate_argnums=donate).lower(*arguments)
                return _compiled_once(lowered, options | _disabled(_SERIAL), arguments)
        staged = jax.jit(traced, donate_argnums=donate).trace(*arguments)
        small = 0 < max(products(staged.jaxpr), default=0) < _THREADS_HELP
        passes = _SERIAL if small and jax.default_backend() == "cpu" else _WITHOUT
        return _compiled_once(staged.lower(), options | _disabled(passes), arguments)

    program, made = _kept(_programs, (function, static, donate, once, deterministic, whole, plain), arguments, compile_)
    return program, time.perf_counter() - begun if made else 0.0


def _compiled_once(lowered: Any, options: dict[str, str | bool], arguments: tuple[Any, ...]) -> Any:
    """The program of lowered code, compiled only if no equal code of the same arguments has been."""
    constants = getattr(getattr(lowered, "_lowering", None), "const_args", ())  # of newer versions, not in the text
    parts = [lowered.as_text().encode(), *(np.asarray(constant).tobytes() for constant in constants)]
    digests = tuple(hashlib.sha256(part).digest() for part in parts)
    key = _key((digests, lowered.out_tree, tuple(options.items())), arguments)
    if (program := _by_code.get(key)) is None:
        program = _by_code[key] = lowered.compile(options)
    return program


def keep_programs(folder: pathlib.Path) -> None:
    """Programs that are compiled from now on are kept in a folder, and those that are there are not compiled.

    Raises:
        PermissionError: others may write there, and so decide what this process executes.
    """
    if os.name == "posix":
        if folder.stat().st_uid != os.getuid():
            raise PermissionError(f"the cache {folder} is another user's, who could write programs for you to run")
        folder.chmod(0o700)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def _disabled(passes: tuple[str, ...]) -> dict[str, str | bool]:
    return {"xla_disable_hlo_passes": ",".join(passes)} if passes else {}


def equations(jaxpr: Any) -> Iterator[Any]:
    """Those of a traced function, and of the functions within them."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)


def operations(jaxpr: Any) -> list[Any]:
    """The equations of a traced function that hold no others."""
    return [equation for equation in equations(jaxpr) if not list(jaxprs_in_params(equation.params))]


def result_bytes(equation: Any) -> int:
    """Of what an equation makes, in numbers of four bytes."""
    shapes = [variable.aval for variable in equation.outvars if hasattr(variable.aval, "size")]
    return sum(4 * shape.size for shape in shapes)


def products(jaxpr: Any) -> Iterator[int]:
    """Floating-point operations of each product of matrices, or convolution, in a traced function."""
    for equation in equations(jaxpr):
        kind, how = equation.primitive.name, equation.params.get("dimension_numbers")
        if kind == "dot_general":
            factors = [equation.invars[0].aval.shape[axis] for axis in how[0][0]]
        elif kind == "conv_general_dilated":
            factors = [equation.invars[1].aval.shape[axis] for axis in how.rhs_spec[1:]]
        else:
            factors = None
        if factors is not None:
            yield 2 * math.prod((*equation.outvars[0].aval.shape, *factors))


def _marked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with what XLA itself writes to a loop of few bytes that it compiles as one function."""
    inner = jax.jit(function)

    def marked(*arguments: Any) -> Any:
        with set_xla_metadata(inlineable="false", xla_cpu_small_call="true"):
            return inner(*arguments)

    return marked


def shapes_of(function: Callable[..., Any], static: tuple[Any, ...], arguments: tuple[Any, ...]) -> Any:
    """The shapes of what `function(*static, *arguments)` returns; a second call for the same shapes traces nothing."""
    trace = functools.partial(jax.eval_shape, functools.partial(function, *static), *arguments)
    return _kept(_shapes, (function, static), arguments, trace)[0]


def on_device(tree: Any) -> Any:
    """Every array of a tree on the device; unlike `jnp.asarray`, without compiling a copy for every new shape."""
    return jax.device_put(tree)


def on_host(tree: Any) -> Any:
    """Every array of a tree on the host."""
    return jax.tree.map(np.asarray, jax.device_get(tree))


def _kept(
    store: OrderedDict[Any, Any], what: tuple[Any, ...], arguments: tuple[Any, ...], make: Callable[[], Any]
) -> tuple[Any, bool]:
    """What `make` returns for such arguments, and whether it had to be made."""
    key = _key(what, arguments)
    with _lock:
        making = _making.setdefault(key, threading.Lock())
    with making:
        with _lock:
            if key in store:
                store.move_to_end(key)
                return store[key], False
        try:
            made = make()
            with _lock:
                store[key] = made
                if len(store) > _KEPT:
                    store.popitem(last=False)
        finally:
            _making.pop(key, None)
    return made, True


def _key(what: tuple[Any, ...], arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    leaves, structure = jax.tree.flatten(arguments)
    shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
    places = frozenset(device for leaf in leaves for device in leaf.devices())
    x64 = jnp.result_type(float) == jnp.float64
    return (*what, structure, shapes, x64, jax.default_backend(), on_cpu(), places)
