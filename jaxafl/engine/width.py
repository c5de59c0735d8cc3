"""Number of lanes on an accelerator: by the cost of a local step there, and by memory.

A local step of w lanes launches as much as that of one, and then takes for each of them the longer of its arithmetic
and of its traffic with memory:

    seconds(w) = launches · t + w · max(operations / rate, bytes / bandwidth)

so that lanes cost nothing up to the width at which work outweighs launches, and a lane that a schedule keeps idle costs
its work alone. What one local step needs is read off the forward pass of the model; the factors are those of compiled
programs (`experiments/benchmarks/programs.py`), the rates those that makers state, until they have been measured.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import jax

from jaxafl.client import Client
from jaxafl.data.federated import FederatedData
from jaxafl.data.form import DataForm
from jaxafl.device import available_bytes, operations, products, result_bytes
from jaxafl.engine.problem import micro_batch_of
from jaxafl.engine.state import example_batch
from jaxafl.models.model import Batch, Model

MOST_LANES = 4096  # beyond any width at which a launch still weighs


class Rates(NamedTuple):
    """Rates of a device: float32 product operations and bytes of memory per second, seconds of a launch."""

    operations: float
    bandwidth: float
    launch: float


RATES = {
    "NVIDIA H200": Rates(67e12, 4.8e12, 2.5e-6),
    "NVIDIA H100": Rates(67e12, 3.35e12, 2.5e-6),
    "NVIDIA A100": Rates(19.5e12, 1.9e12, 2.5e-6),
    "Tesla T4": Rates(8.1e12, 0.32e12, 2.5e-6),
    "TPU v5 lite": Rates(33e12, 0.82e12, 1e-6),
}
"""By the first words of `device_kind`; a TPU makes a float32 product in six passes of bfloat16."""
_OTHERS = RATES["NVIDIA A100"]
_SEGMENT = 22  # launches that begin and end a segment, as compiled for an H200


class LocalStep(NamedTuple):
    """Cost of a local step: launches, and per lane floating-point operations of products, bytes read and written, and
    bytes in memory at once."""

    launches: float
    operations: float
    moved: float
    kept: float

    def seconds(self, lanes: int, passes: float = 1.0, segments: int = 0, rates: Rates | None = None) -> float:
        """Returns the seconds of `passes` local steps of so many lanes, in so many segments of a plan; `rates`: of the
        device, by default the first local one."""
        rates = rates or rates_of(jax.local_devices()[0].device_kind)
        work = lanes * max(self.operations / rates.operations, self.moved / rates.bandwidth)
        return passes * (self.launches * rates.launch + work) + segments * _SEGMENT * rates.launch

    def room(self, members: int = 1) -> int:
        """Returns the number of lanes per member that fit into half of the device memory (at least 1)."""
        memory = available_bytes()
        return MOST_LANES if memory is None else max(1, int(memory / 2 / self.kept / members))


def rates_of(kind: str) -> Rates:
    """Returns the rates for a `device_kind`; unknown devices get those of an A100."""
    return next((rates for name, rates in RATES.items() if kind.startswith(name)), _OTHERS)


def local_step_of(model: Model, data: FederatedData, client: Client) -> LocalStep:
    """Returns the cost of a local step of this model on these samples.

    Forward and backward passes make three products for each of the forward pass, and launch 0.36 kernels for each of
    its operations. 0.4 of all its results are in memory at once, beside three copies of the parameters; 1.6 times the
    results are moved and 3.4 times the parameters. So found for an H200, 16 lanes (compiled; here): an MLP
    784-200-200-10 launches 17; 18 and moves 46; 46 MB, `cnn_defedavg` 32; 35 and 456; 464 MB, `cnn_asyncfeded` 31; 31
    and 1,050; 1,049 MB.
    """
    known, form = _known.setdefault(model, {}), (micro_batch_of(client, data), data.form)
    if form not in known:
        known[form] = _of_batch(model, *form)
    return known[form]


_known: weakref.WeakKeyDictionary[Model, dict[tuple[int, DataForm], LocalStep]] = weakref.WeakKeyDictionary()


def _of_batch(model: Model, size: int, data: DataForm) -> LocalStep:
    one = jax.eval_shape(lambda: example_batch(data))
    x, y = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype), (one.x, one.y))
    batch: Any = Batch(x, y, jax.ShapeDtypeStruct((size,), bool))  # type: ignore[arg-type]
    key = jax.eval_shape(lambda: jax.random.key(0))
    params, state = jax.eval_shape(model.init, key, batch)

    def loss(params: Any, state: Any, batch: Batch, key: Any, frozen: Any) -> Any:
        return model.bound(frozen)(params, state, batch, key, True)[0].loss

    traced = jax.make_jaxpr(loss)(params, state, batch, key, model.held(batch))
    found = operations(traced.jaxpr)
    results, count = sum(map(result_bytes, found)), len(found)
    weights = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))
    moved, kept = 3.4 * weights + 1.6 * results, 3.0 * weights + 0.4 * results
    return LocalStep(0.36 * count, 3.0 * sum(products(traced.jaxpr)), moved, kept)
