"""Private local steps: clipped gradients of single samples with noise, against NumPy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl.client import begin, dp_sgd, local_step
from tests.problems import Normalised, classifier, descent

OPTIONS: dict[str, Any] = {"learning_rate": 0.1, "max_norm": 0.7, "noise_multiplier": 0.0}
X = np.asarray([[1.0, 2.0], [0.0, 0.1], [-3.0, 1.0], [9.0, 9.0]], np.float32)
START = np.asarray([0.5, -1.0], np.float32)


def simulation(*given: Any, **options: Any) -> afl.Simulation:
    return descent(client=afl.Client(*given, **{"steps": 2, "batch_size": 3, **options}))


def stepped(options: dict[str, Any], samples: int = len(X), seed: Any = 1) -> Any:
    """The lane after one local step on the first samples of X, each once, whose loss is ½‖w - x‖²."""
    client = afl.Client(dp_sgd, **options, steps=1, batch_size=len(X), sampling="epochs").prepared(len(X))

    def apply(params: Any, state: Any, batch: Any, key: Any, train: bool) -> Any:
        return afl.models.Outputs(loss=0.5 * jnp.sum((params["w"] - batch.x) ** 2, 1), metrics={}), state

    lane = begin(client, {"w": jnp.asarray(START)}, (), (jnp.uint32(seed), jnp.uint32(1)), jnp.int32(0), jnp.int32(0))
    fetch = lambda client, where, keys: (jnp.asarray(X)[where], where)  # noqa: E731
    return local_step(client, apply, fetch, len(X), jnp.int32(samples), lane)


@pytest.mark.parametrize("samples", [4, 3])
def test_a_step_adds_the_clipped_gradients_of_real_samples(samples: int) -> None:
    gradients = (START - X)[:samples]
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    expected = START - 0.1 * (gradients * np.minimum(1, 0.7 / norms)).sum(0) / len(X)
    lane = stepped(OPTIONS, samples)
    np.testing.assert_allclose(lane.params["w"], expected, rtol=1e-6)
    np.testing.assert_allclose(lane.loss, 0.5 * (gradients**2).sum(1).mean(), rtol=1e-6)


@pytest.mark.slow
def test_noise_has_the_standard_deviation_of_the_formula() -> None:
    noisy = {**OPTIONS, "noise_multiplier": 3.0}
    drawn = jax.vmap(lambda seed: stepped(noisy, seed=seed).params["w"])(jnp.arange(4000))
    found = np.asarray(drawn) - np.asarray(stepped(OPTIONS).params["w"])
    std = 0.1 * 3.0 * 0.7 / 4
    np.testing.assert_allclose(np.cov(found.T) / std**2, np.eye(2), atol=0.1)
    np.testing.assert_allclose(found.mean(0), 0, atol=0.1 * std)


@pytest.mark.slow
def test_runs_are_those_of_sgd_without_clipping() -> None:
    plain = simulation(learning_rate=0.1).run(6)
    same = simulation(dp_sgd, learning_rate=0.1, max_norm=1e9, noise_multiplier=0.0).run(6)
    np.testing.assert_allclose(same.delta_norm, plain.delta_norm, rtol=1e-5)
    np.testing.assert_allclose(same.local_loss, plain.local_loss, rtol=1e-5)
    noisy = simulation(dp_sgd, **{**OPTIONS, "noise_multiplier": 2.0}).run(6)
    assert not np.isclose(noisy.delta_norm, plain.delta_norm).any()


@pytest.mark.slow
def test_other_optimisers_begin_with_the_private_aggregate() -> None:
    noisy = {**OPTIONS, "noise_multiplier": 2.0}
    ours = simulation(dp_sgd, **noisy).run(6)
    of_optax = simulation(optax.contrib.dpsgd, learning_rate=0.1, l2_norm_clip=0.7, noise_multiplier=2.0, seed=0).run(6)
    np.testing.assert_array_equal(ours.delta_norm, of_optax.delta_norm)
    aggregate = optax.contrib.differentially_private_aggregate(0.7, 1.0, key=0)
    assert np.isfinite(simulation(optax.chain(aggregate, optax.adam(0.1))).run(6).final_loss)
    swept = afl.sweep(simulation(dp_sgd, **noisy), {"client.noise_multiplier": [0.0, 2.0]}, 6)
    np.testing.assert_allclose(swept.delta_norm[1], ours.delta_norm, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": None}, "one mini-batch of fixed size. Give batch_size=B"),
        ({"micro_batch": 2}, "one mini-batch of fixed size"),
        ({"proximal": 0.1}, "would be clipped with the gradients of samples"),
        ({"max_norm": 0.0}, "max_norm must be > 0"),
        ({"noise_multiplier": -1.0}, "noise_multiplier must be >= 0"),
    ],
)
def test_what_cannot_be_clipped_by_sample_is_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        simulation(dp_sgd, **{**OPTIONS, **options}).check()


def test_models_with_batch_statistics_are_refused() -> None:
    client = afl.Client(dp_sgd, **OPTIONS, steps=1, batch_size=4)
    with pytest.raises(ValueError, match=r"batch statistics.*mixes samples"):
        classifier(client=client, model=afl.models.from_linen(Normalised())).check()
