"""Arrays on the device, compiled programs, and memory."""

from __future__ import annotations

from jaxafl.device.buffers import Rows, weighted_sum
from jaxafl.device.compilation import as_arrays, compiled, on_device, on_host
from jaxafl.device.hardware import devices_of, float64_on_cpu

__all__ = ["Rows", "as_arrays", "compiled", "devices_of", "float64_on_cpu", "on_device", "on_host", "weighted_sum"]
