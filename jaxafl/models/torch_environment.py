"""The environment in which PyTorch's functions are executed in JAX: that of torchax, with functions of the package.

This module imports torch and torchax; `from_torch` imports it when it is called.
"""

from __future__ import annotations

import contextlib
import functools
import random
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import numpy as np
import torch
from jax import lax

from jaxafl.models.torch_functions import (
    as_data,
    avg_pool,
    batch_norm,
    conv2d,
    embedding_bag,
    gru,
    lstm,
    max_pool2d,
    rnn_relu,
    rnn_tanh,
)
from jaxafl.options import UserError

Array = jax.Array
_TRACING = threading.RLock()  # without it, two threads that trace could leave `autograd.Function` patched
BATCH_NORMS = torch.nn.modules.batchnorm._BatchNorm


@contextlib.contextmanager
def _removed_overloads() -> Iterator[None]:
    """Lets torchax 0.0.13 name overloads for named tensors, which torch 2.13 has removed.

    Without it, `import torchax` raises `AttributeError` there. No operator is lost, because nothing calls them.
    """
    original = torch._ops.OpOverloadPacket.__getattr__

    def lenient(packet: Any, name: str) -> Any:
        try:
            return original(packet, name)
        except AttributeError:
            if "dimname" not in name.lower() and "names_" not in f"{name}_":
                raise
            return f"{packet}.{name}"

    with mock.patch.object(torch._ops.OpOverloadPacket, "__getattr__", lenient):
        yield


with _removed_overloads():
    from torchax import tensor
    from torchax.ops.ops_registry import Operator

    tensor.Environment()  # names the overloads of decompositions, which are imported by the first environment


class _Draws(Exception):
    """A function of constants that draws random numbers, so that its result is not constant."""


class _Functions(tensor.XLAFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.env.check_streams()
        return super().__torch_function__(func, types, args, kwargs)


class _Dispatch(tensor.XLADispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        namespace = getattr(func, "namespace", "aten")
        if namespace not in ("aten", "prim", "prims", "profiler", "torchvision"):
            raise UserError(f"the custom operator {func} has no form in JAX")
        return super().__torch_dispatch__(func, types, args, kwargs)


class Environment(tensor.Environment):
    """Context of one traced call of a module, which executes PyTorch's functions in JAX.

    Attributes:
        mask: bool [B], the real samples of the batch, for batch norm.
        watched: the states of the global random streams if a draw from them is an error, else `None`.
        writable: tensors that the module may write to by views.
        at_once: True while a function of constants is executed, outside of the program.
    """

    def __init__(self, key: Array, mask: Array | None = None, watch: bool = False) -> None:
        with jax.ensure_compile_time_eval():  # otherwise torch's seed is part of the traced program
            super().__init__()
        self._function_mode, self._dispatch_mode = _Functions(self), _Dispatch(self)
        self.param.prng = key
        self.mask = mask
        self.watched = _streams() if watch else None
        self.writable: list[Any] = []
        self.at_once = False
        self._ops.update(_REPLACED)

    @contextlib.contextmanager
    def active(self) -> Iterator[Environment]:
        """Executes PyTorch's functions by JAX within the context."""
        with (
            _TRACING,
            self,
            warnings.catch_warnings(),
            mock.patch.object(torch.autograd.Function, "apply", _refused_function),
        ):
            warnings.filterwarnings("ignore", "Explicitly requested dtype", UserWarning)  # int64 without x64
            yield self
            self.check_streams()

    def check_streams(self) -> None:
        """Raises `UserError` if a global random stream has advanced since the environment was constructed."""
        if self.watched is not None:
            moved = [name for name, state in _streams().items() if state != self.watched[name]]
            if moved:
                raise UserError(
                    f"numbers drawn from the global random stream of {moved[0]} are drawn once, while the module is "
                    "compiled. Draw them by functions of tensors, such as torch.rand_like(x), which use JAX's key"
                )

    def dispatch(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Executes a function, at once if all its tensors are constants; without gradient under `torch.no_grad()`."""
        written: Any = args[0] if args else None
        before = getattr(written, "_elem", None)
        result = self._at_once(func, types, args, kwargs)
        if torch.is_grad_enabled():
            return result
        in_place = getattr(func, "__name__", "").partition(".")[0].endswith("_")

        def detached(value: Any) -> Any:
            if isinstance(value, tensor.View):
                root = value
                while isinstance(root, tensor.View):
                    root = root.parent
                if any(root is one for one in self.writable):
                    return value  # a copy would no longer write to the buffer
            elif in_place and value is written:
                value._elem = as_data(before, value._elem)  # its gradient stays, as in PyTorch
                return value
            return tensor.Tensor(lax.stop_gradient(value.jax()), self)

        kinds = (tensor.Tensor, tensor.View)
        return torch.utils._pytree.tree_map_only(kinds, detached, result)

    def _at_once(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        tensors = [one for one in leaves if isinstance(one, tensor.Tensor | tensor.View)]
        arrays = (one.source_jax() if isinstance(one, tensor.View) else one.jax() for one in tensors)
        if self.at_once or any(isinstance(one, jax.core.Tracer) for one in arrays):
            return super().dispatch(func, types, args, kwargs)
        self.at_once = True
        try:
            with jax.ensure_compile_time_eval():  # otherwise `if` on a constant, such as a causal mask, is an error
                return super().dispatch(func, types, args, dict(kwargs or {}))
        except _Draws:
            self.at_once = False
            return super().dispatch(func, types, args, kwargs)
        finally:
            self.at_once = False

    def t2j_iso(self, torchtensors: Any) -> Any:
        """Converts tensors to JAX arrays; ordinary tensors (constants of the module) too."""

        def wrapped(value: Any) -> Any:
            ordinary = not isinstance(value, tensor.Tensor | tensor.View) and value.ndim > 0
            return tensor.Tensor(self.t2j_copy(value), self) if ordinary else value

        return super().t2j_iso(torch.utils._pytree.tree_map_only(torch.Tensor, wrapped, torchtensors))

    def get_and_rotate_prng_key(self, generator: Any = None) -> Array:
        """Returns a new key. Raises `UserError` for a generator, whose draws would be equal in every step."""
        if generator is not None:
            raise UserError("draws of a torch.Generator would be equal in every step; leave generator= out")
        if self.at_once:
            raise _Draws
        return super().get_and_rotate_prng_key()

    def _should_use_torchax_tensor(self, device: Any) -> bool:
        return True  # tensors that the module constructs, on whichever device, take part in the program

    def _is_same_device(self, the_tensor: Any, new_device: Any) -> bool:
        return isinstance(the_tensor, tensor.Tensor)  # `.to(device)` changes nothing


def _streams() -> dict[str, Any]:
    drawn = np.random.get_state(legacy=False)
    assert isinstance(drawn, dict)
    numpy_state = drawn["state"]["pos"], drawn["state"]["key"].tobytes(), drawn["has_gauss"]
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "random": random.getstate(),
        "numpy.random": numpy_state,
    }


def _refused_function(*args: Any, **kwargs: Any) -> Any:
    raise UserError("a torch.autograd.Function has its own backward pass, which JAX does not use")


def _or_torchax(function: Callable[..., Any], takes_arrays: bool) -> Operator:
    """Returns an operator of torchax that falls back on the implementation of torchax."""

    @functools.wraps(function)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except NotImplementedError as error:
            raise tensor.OperatorNotFound(str(error)) from error

    return Operator(None, replaced, takes_arrays, True, not takes_arrays, False)


_REPLACED = {
    torch.conv2d: _or_torchax(conv2d, True),
    **dict.fromkeys(
        (torch.ops.aten._embedding_bag, torch.ops.aten._embedding_bag_forward_only), _or_torchax(embedding_bag, True)
    ),
    **dict.fromkeys(
        (torch.avg_pool1d, torch.nn.functional.avg_pool2d, torch.nn.functional.avg_pool3d), _or_torchax(avg_pool, True)
    ),
    torch.max_pool2d: _or_torchax(max_pool2d, True),
    torch.nn.functional.max_pool2d: _or_torchax(max_pool2d, True),
    torch.nn.functional.batch_norm: _or_torchax(batch_norm, False),
    torch.lstm: _or_torchax(lstm, False),
    torch.gru: _or_torchax(gru, False),
    torch.rnn_tanh: _or_torchax(rnn_tanh, False),
    torch.rnn_relu: _or_torchax(rnn_relu, False),
}
