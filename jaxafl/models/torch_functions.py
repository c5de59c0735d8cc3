"""Functions of PyTorch in JAX, on images [B, C, H, W]: those for which the package has faster or masked forms.

They have the arguments of PyTorch's functions, and raise `NotImplementedError` for options that they do not cover. With
an argument `env`, the environment of torchax, arguments and results are tensors; otherwise they are JAX arrays.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxafl.models import layers
from jaxafl.models.normalisation import BatchNorm
from jaxafl.options import UserError

Array = jax.Array


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
    y = layers.conv2d(x.transpose(0, 2, 3, 1), weight.transpose(2, 3, 1, 0), _pair(stride), around)
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
    return layers.max_pool(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


def avg_pool(
    x: Array,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Array:
    """Averages windows with `ceil_mode`, where the last one may reach beyond the padding; torchax divides wrongly."""
    if not ceil_mode:
        raise NotImplementedError("avg_pool")
    count = x.ndim - 2
    size, step, around = (
        [*one] * (count // len(one)) if isinstance(one, tuple | list) else [one] * count
        for one in (kernel_size, stride or kernel_size, padding)
    )
    ends = []
    for length, k, s, p in zip(x.shape[2:], size, step, around, strict=True):
        windows = -(-(length + 2 * p - k) // s) + 1
        windows -= (windows - 1) * s >= length + p  # no window begins after the samples and the padding before them
        ends.append(max(0, (windows - 1) * s + k - length - 2 * p))

    def summed(values: Array, width: list[tuple[int, int]]) -> Array:
        return lax.reduce_window(values, 0.0, lax.add, (1, 1, *size), (1, 1, *step), ((0, 0), (0, 0), *width))

    ones = jnp.ones((1, 1, *x.shape[2:]), x.dtype)
    if count_include_pad:
        ones = jnp.pad(ones, ((0, 0), (0, 0), *((p, p) for p in around)), constant_values=1)
        counted = summed(ones, [(0, end) for end in ends])
    else:
        counted = summed(ones, [(p, p + end) for p, end in zip(around, ends, strict=True)])
    total = summed(x, [(p, p + end) for p, end in zip(around, ends, strict=True)])
    return total / (divisor_override or counted)


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
    given = [one if one is None else env.t2j_iso(one) for one in (weight, bias, running_mean, running_var)]
    scale, shift, mean, var = (
        one if one is not None else base for one, base in zip(given, (ones, 0 * ones, 0 * ones, ones), strict=True)
    )
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
    """Executes the layers of a recurrent network by `lax.scan`; torchax alone unrolls every time step."""
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
