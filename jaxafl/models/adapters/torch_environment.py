"""The environment in which PyTorch's functions are executed in JAX: that of torchax, with functions of the package.

Those in `_REPLACED` have faster or masked forms here, on images [B, C, H, W]. They have the arguments of PyTorch's
functions, and raise `NotImplementedError` for options that they do not cover. With an argument `env`, arguments and
results are tensors; otherwise they are JAX arrays.

This module imports torch and torchax; `from_torch` imports it when it is called.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import torch
from jax import lax

from jaxafl.models.networks import convolution
from jaxafl.models.networks.normalisation import BatchNorm
from jaxafl.options import UserError

Array = jax.Array
_TRACING = threading.RLock()  # without it, two threads that trace could leave `autograd.Function` patched
BATCH_NORMS = torch.nn.modules.batchnorm._BatchNorm


def _or_name(packet: Any, name: str, original: Any = torch._ops.OpOverloadPacket.__getattr__) -> Any:
    """Returns an overload; of those for named tensors, which torch 2.13 has removed, the name.

    Without it, `import torchax` 0.0.13 raises `AttributeError` there. No operator is lost, because nothing calls them.
    """
    try:
        return original(packet, name)
    except AttributeError:
        if "dimname" not in name.lower() and "names_" not in f"{name}_":
            raise
        return f"{packet}.{name}"


with mock.patch.object(torch._ops.OpOverloadPacket, "__getattr__", _or_name):
    from torchax import tensor
    from torchax.ops.op_base import InplaceOp
    from torchax.ops.ops_registry import Operator

    tensor.Environment()  # names the overloads of decompositions, which are imported by the first environment


class _Draws(Exception):
    """A function of constants that draws random numbers, so that its result is not constant."""


class Environment(tensor.Environment):
    """Context of one traced call of a module, which executes PyTorch's functions in JAX.

    Attributes:
        mask: bool [B], the real samples of the batch, for batch norm.
        writable: tensors that the module may write to by views.
        at_once: True while a function of constants is executed, outside of the program.
    """

    def __init__(self, key: Array, mask: Array | None = None) -> None:
        with jax.ensure_compile_time_eval():  # otherwise torch's seed is part of the traced program
            super().__init__()
        self.param.prng = key
        self.mask = mask
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


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


@jax.custom_jvp
def as_data(old: Array, new: Array) -> Array:
    """Returns `new` with the gradient of `old`: a value written without gradient, as `clamp_` by `torch.no_grad()`."""
    return new.astype(old.dtype)


@as_data.defjvp
def _as_data_jvp(primals: tuple[Array, Array], tangents: tuple[Any, Any]) -> tuple[Array, Any]:
    return as_data(*primals), tangents[0]


def conv2d(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Array:
    if x.ndim != 4 or groups != 1 or _pair(dilation) != (1, 1) or weight.shape[1] != x.shape[1]:
        raise NotImplementedError("conv2d")
    around = padding.upper() if isinstance(padding, str) else [(one, one) for one in _pair(padding)]
    y = convolution.conv2d(x.transpose(0, 2, 3, 1), weight.transpose(2, 3, 1, 0), _pair(stride), around)
    return (y if bias is None else y + bias).transpose(0, 3, 1, 2)


def max_pool2d(
    x: Array,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Array:
    windows = _pair(kernel_size), _pair(stride or kernel_size), _pair(padding), _pair(dilation)
    if x.ndim != 4 or windows != ((2, 2), (2, 2), (0, 0), (1, 1)) or ceil_mode or return_indices:
        raise NotImplementedError("max_pool2d")
    return convolution.max_pool(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


def avg_pool(
    x: Array,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    *more: Any,
    **by_name: Any,
) -> Array:
    """Refuses `ceil_mode`, where the last window may reach beyond the padding; torchax divides its sum wrongly."""
    if ceil_mode:
        raise UserError("average pools with ceil_mode=True would be wrong; pad the images, and leave it out")
    raise NotImplementedError("avg_pool")


def embedding_bag(
    weight: Array,
    indices: Array,
    offsets: Array,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Array, Array, Array, Array]:
    """Reduces the rows of each bag by sum (mode 0), mean (1) or maximum (2), without those of `padding_idx`."""
    bags = len(offsets) - include_last_offset
    bag = jnp.searchsorted(offsets[:bags], jnp.arange(len(indices)), side="right") - 1
    kept = (indices != padding_idx)[:, None]
    rows = weight[indices] * (1 if per_sample_weights is None else per_sample_weights[:, None])
    count = jax.ops.segment_sum(kept.astype(rows.dtype), bag, bags)
    if mode == 2:
        best = jax.ops.segment_max(jnp.where(kept, rows, -jnp.inf), bag, bags)
        reduced = jnp.where(count > 0, best, 0)
    else:
        reduced = jax.ops.segment_sum(jnp.where(kept, rows, 0), bag, bags)
        reduced = reduced / jnp.maximum(count, 1) if mode == 1 else reduced
    return reduced, bag, count[:, 0].astype(bag.dtype), bag  # only the first is used outside of backward passes


def batch_norm(
    x: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    env: Any,
) -> Any:
    values = env.t2j_iso(x)
    if env.mask is None or len(values) != len(env.mask):
        raise UserError(f"batch norm of {len(values)} rows cannot tell which belong to padded samples of the batch")
    ones = jnp.ones(values.shape[1], values.dtype)
    given = zip((weight, bias, running_mean, running_var), (ones, 0 * ones, 0 * ones, ones), strict=True)
    scale, shift, mean, var = (usual if one is None else env.t2j_iso(one) for one, usual in given)
    variables = {"params": {"scale": scale, "bias": shift}, "batch_stats": {"mean": mean, "var": var}}
    y, new = BatchNorm(momentum, eps).apply(
        variables, jnp.moveaxis(values, 1, -1), training, env.mask, mutable=["batch_stats"]
    )
    if training and running_mean is not None:
        running_mean._elem = new["batch_stats"]["mean"].astype(mean.dtype)
        running_var._elem = new["batch_stats"]["var"].astype(var.dtype)
    return env.j2t_iso(jnp.moveaxis(y, -1, 1))


def _recurrent(
    cell: Callable[..., Any],
    x: Any,
    state: Any,
    weights: Any,
    has_biases: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool = False,
    *,
    env: Any,
) -> Any:
    """Executes the layers of a recurrent network by `lax.scan`.

    Torchax alone unrolls every time step: two LSTM layers over 80 steps then compile for 31 s in place of 2, and take
    12 times as long (two cores, torchax 0.0.13).
    """
    values, states, weights = env.t2j_iso((x, state, list(weights)))
    states = states if isinstance(states, tuple) else (states,)
    directions = 1 + bidirectional
    each = len(weights) // (layers * directions)  # weights per layer and direction
    if not isinstance(has_biases, bool) or values.ndim != 3 or each != 2 + 2 * has_biases:
        raise NotImplementedError("packed or projected recurrent network")
    values = values.swapaxes(0, 1) if batch_first else values
    last = []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            w, u, *b = weights[index * each : (index + 1) * each]
            inputs = values @ w.T + (b[0] if b else 0)

            def step(carry: Any, row: Array, u: Array = u, b: list[Array] = b) -> tuple[Any, Array]:
                carry = cell(carry, row, carry[0] @ u.T + (b[1] if b else 0))
                return carry, carry[0]

            carry, out = lax.scan(step, tuple(one[index] for one in states), inputs, reverse=direction == 1)
            last.append(carry)
            outputs.append(out)
        values = jnp.concatenate(outputs, -1)
        if training and dropout > 0 and layer + 1 < layers:
            kept = jax.random.bernoulli(env.get_and_rotate_prng_key(), 1 - dropout, values.shape)
            values = jnp.where(kept, values / (1 - dropout), 0)
    values = values.swapaxes(0, 1) if batch_first else values
    return env.j2t_iso((values, *(jnp.stack(one) for one in zip(*last, strict=True))))


def _lstm(carry: tuple[Array, Array], x: Array, h: Array) -> tuple[Array, Array]:
    i, f, g, o = jnp.split(x + h, 4, -1)
    c = jax.nn.sigmoid(f) * carry[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def _gru(carry: tuple[Array], x: Array, h: Array) -> tuple[Array]:
    (x_r, x_z, x_n), (h_r, h_z, h_n) = jnp.split(x, 3, -1), jnp.split(h, 3, -1)
    z = jax.nn.sigmoid(x_z + h_z)
    return ((1 - z) * jnp.tanh(x_n + jax.nn.sigmoid(x_r + h_r) * h_n) + z * carry[0],)


lstm = functools.partial(_recurrent, _lstm)
gru = functools.partial(_recurrent, _gru)
rnn_tanh = functools.partial(_recurrent, lambda carry, x, h: (jnp.tanh(x + h),))
rnn_relu = functools.partial(_recurrent, lambda carry, x, h: (jax.nn.relu(x + h),))


_WRITING = {  # torchax 0.0.13 writes these to a copy of a view, so that they would be lost
    torch.ops.aten.fill_: torch.ops.aten.fill,
    torch.ops.aten.zero_: torch.ops.aten.zeros_like,
    torch.ops.aten.masked_fill_: torch.ops.aten.masked_fill,
}
_REPLACED = {
    **{written: Operator(None, InplaceOp(value), False, True, False, True) for written, value in _WRITING.items()},
    torch.conv2d: _or_torchax(conv2d, True),
    **dict.fromkeys(
        (torch.ops.aten._embedding_bag, torch.ops.aten._embedding_bag_forward_only), _or_torchax(embedding_bag, True)
    ),
    **dict.fromkeys(
        (torch.avg_pool1d, torch.nn.functional.avg_pool2d, torch.nn.functional.avg_pool3d), _or_torchax(avg_pool, True)
    ),
    **dict.fromkeys((torch.max_pool2d, torch.nn.functional.max_pool2d), _or_torchax(max_pool2d, True)),
    torch.nn.functional.batch_norm: _or_torchax(batch_norm, False),
    torch.lstm: _or_torchax(lstm, False),
    torch.gru: _or_torchax(gru, False),
    torch.rnn_tanh: _or_torchax(rnn_tanh, False),
    torch.rnn_relu: _or_torchax(rnn_relu, False),
}
