"""What is among the parameters, and what a network returns, is looked at before it is trained."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import jaxafl as afl
from jaxafl.models import Batch, from_functions, from_linen, logistic, softmax_cross_entropy

KEY = jax.random.key(0)
BATCH = Batch(np.ones((1, 4), np.float32), np.zeros(1, np.int32), np.ones(1, bool))


def model(**more: Any) -> Any:
    def loss(params: Any, batch: Batch, key: Any) -> Any:
        return softmax_cross_entropy(batch.x @ params["w"] * params["scale"], batch)

    return from_functions(lambda key, batch: {"w": jnp.ones((4, 3)), "scale": 1.0, **more}, loss)


def test_numbers_become_arrays() -> None:
    scale = model().init(KEY, BATCH)[0]["scale"]
    assert (scale.dtype, scale.shape, scale.weak_type) == (jnp.float32, (), False)


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (3, "'extra' of loss is int32"),
        (True, "'extra' of loss is bool"),
        (np.ones(2, complex), r"'extra' of loss is complex64\[2\]"),
        ("relu", "'extra' of loss is 'relu'"),
    ],
)
def test_parameters_that_are_no_floats_are_named(leaf: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"{message}.*must be floats"):
        model(extra=leaf).init(KEY, BATCH)


def test_models_are_in_the_precision_of_jax() -> None:
    with jax.enable_x64(True):
        params, _ = logistic(3).init(KEY, BATCH)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(np.float64)}


class Pair(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(3)(x), x


def test_a_network_that_returns_several_things_needs_a_loss_that_takes_them() -> None:
    with pytest.raises(TypeError, match=r"returns a tuple of 2.*predictions\[0\]"):
        from_linen(Pair()).init(KEY, BATCH)
    from_linen(Pair(), loss=lambda found, batch: softmax_cross_entropy(found[0], batch)).init(KEY, BATCH)
    with pytest.raises(ValueError, match=r"got a tuple of 2.*Outputs\(loss"):
        from_linen(nn.Dense(3), loss=lambda found, batch: (found[:, 0], {})).init(KEY, BATCH)


@pytest.mark.parametrize(
    ("switch", "value"),
    [
        ("jax_debug_infs", True),
        ("jax_numpy_dtype_promotion", "strict"),
        ("jax_debug_key_reuse", True),
        ("jax_disable_jit", True),
        ("jax_transfer_guard", "disallow"),
        ("jax_numpy_rank_promotion", "raise"),
    ],
)
def test_switches_of_jax_that_do_not_work_are_refused_by_name(switch: str, value: Any) -> None:
    sim = afl.Simulation(
        afl.data.synthetic(1.0, 1.0, clients=4, max_size=40),
        logistic(10),
        afl.Client(learning_rate=0.1, steps=2, batch_size=4),
        afl.server.fedbuff(),
        afl.clock.free_running(concurrency=2, buffer=1, durations=afl.clock.exponential(1.0)),
    )
    before = getattr(jax.config, switch)
    jax.config.update(switch, value)
    try:
        with pytest.raises(ValueError, match=rf"does not run under {switch}.*jax.config.update"):
            sim.run(2)
        for alone in (
            lambda: afl.data.synthetic(1.0, 1.0, clients=2, max_size=40),
            lambda: afl.clock.schedule(sim.clock, 4, 2, 4),
        ):
            with pytest.raises(ValueError, match=rf"does not run under {switch}"):
                alone()
    finally:
        jax.config.update(switch, before)


@pytest.mark.slow
def test_a_recurrent_cell_of_float32_is_told_what_to_write_under_x64() -> None:
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(10)(nn.RNN(nn.GRUCell(4))(x[..., None])[:, -1])

    data = afl.data.synthetic(1.0, 1.0, clients=4, max_size=40)
    client, clock = afl.Client(learning_rate=0.1, steps=1, batch_size=4), afl.clock.synchronous(cohort=2)
    sim = afl.Simulation(data, afl.models.from_linen(Net()), client, afl.server.fedavg(), clock)
    sim.check()
    with jax.enable_x64(True), pytest.raises(ValueError, match=r"Under jax_enable_x64 .*param_dtype=jnp.float64"):
        sim.check()


def test_a_network_with_too_few_outputs_is_refused_before_compilation() -> None:
    data = afl.data.synthetic(1.0, 1.0, clients=4, max_size=40)
    client, clock = afl.Client(learning_rate=0.1, steps=1, batch_size=4), afl.clock.synchronous(cohort=2)

    def coarse(logits: Any, batch: Batch) -> Any:
        return softmax_cross_entropy(logits, batch._replace(y=batch.y // 5))

    model = from_linen(nn.Dense(2), coarse)
    afl.Simulation(data, model, client, afl.server.fedavg(), clock).check()  # a loss that changes the labels may
    model = from_linen(nn.Dense(2))
    with pytest.raises(
        ValueError, match=r"Dense tells 2 classes apart, but labels of synthetic.* go up to 9: .* 10 outp"
    ):
        afl.Simulation(data, model, client, afl.server.fedavg(), clock).check()
    x, y = np.zeros((8, 3)), np.arange(8) % 4  # the test set lacks the largest labels
    data = afl.data.from_arrays(x, y, np.arange(8) // 4, x_test=x[:2], y_test=y[:2])
    for one in (data, data.with_validation(0.25)):
        with pytest.raises(ValueError, match=r"2 classes apart, but labels of arrays go up to 3: .* 4 outp"):
            afl.Simulation(one, model, client, afl.server.fedavg(), clock).check()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_parameters_of_16_bits_are_warned_of(dtype: Any) -> None:
    with pytest.warns(UserWarning, match=r"'w' of loss is b?float16, which rounds small updates.*precision='bfloat16'"):
        model(w=jnp.ones((4, 3), dtype)).init(KEY, BATCH)
