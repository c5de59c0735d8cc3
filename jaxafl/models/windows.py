"""Slices of images under the kernel of a convolution."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array
Around = tuple[tuple[int, int], tuple[int, int]]
"""Padding (top, bottom), (left, right) in pixels."""


def result_size(x: Array, kernel: Array, strides: tuple[int, int], around: Around) -> tuple[int, int]:
    """Returns height and width of the result of a convolution."""
    (top, bottom), (left, right) = around
    height, width = x.shape[1] + top + bottom, x.shape[2] + left + right
    return (height - kernel.shape[0]) // strides[0] + 1, (width - kernel.shape[1]) // strides[1] + 1


def padded(x: Array, around: Around) -> Array:
    """Pads images with zeros; negative numbers remove rows and columns."""
    return lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), *((*pair, 0) for pair in around), (0, 0, 0)))


def side_by_side(x: Array, count: int, length: int, stride: int, axis: int) -> Array:
    """Concatenates `count` slices of x along the last axis: `length` entries of `axis`, shifted by 0, 1, ..."""
    return jnp.concatenate([shifted(x, shift, length, stride, axis) for shift in range(count)], axis=-1)


def shifted(x: Array, shift: int, length: int, stride: int, axis: int) -> Array:
    """Returns `length` entries of x along `axis`, from `shift` with the given stride."""
    return lax.slice_in_dim(x, shift, shift + (length - 1) * stride + 1, stride, axis)


def total(terms: Sequence[Array]) -> Array:
    """Computes the sum of the terms, from left to right."""
    return reduce(operator.add, terms)
