"""Random numbers in an optimiser are those of its run: of the seed, the client, the run; of a server, of the step."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl.device.keys import jax_key, pack, per_run, renewed, seed_key, unpack
from jaxafl.server import Outcome, Server, mean_delta
from tests.problems import classifier, points

pytestmark = pytest.mark.filterwarnings("ignore")
SLOW = pytest.mark.slow
CLIENTS = 16
RATE = 1e-6  # so that gradients are nothing beside the noise, whose variance is scaled by RATE², too


class Raw(NamedTuple):
    """A state with a raw key, as older optimisers have it."""

    rng: Any


def raw_noise(learning_rate: Any) -> optax.GradientTransformation:
    """N(0, 1), by a raw key."""

    def update(gradient: Any, state: Raw, params: Any = None) -> Any:
        new, key = jax.random.split(state.rng)
        leaves, structure = jax.tree.flatten(gradient)
        keys = jax.random.split(key, len(leaves))
        noise = [jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)]
        return jax.tree.map(lambda g, z: g + z, gradient, jax.tree.unflatten(structure, noise)), Raw(new)

    noise = optax.GradientTransformation(lambda params: Raw(jax.random.PRNGKey(0)), update)
    return optax.chain(noise, optax.sgd(learning_rate))


def noisy(**more: Any) -> dict[str, Any]:
    return {"learning_rate": RATE, "eta": 1.0, "gamma": 0.0, "key": 0} | more


CLIENT = {"steps": 1, "batch_size": None}


def noise(client: afl.Client, server: Any = None, seed: int = 0, steps: int = 2, clients: int = 1, **how: Any) -> Any:
    """What server steps add to the parameters, in units of RATE: [T, P]; the gradient is 0 where weights are."""
    clock = afl.clock.synchronous(cohort=clients, durations=afl.clock.constant(1.0))
    server = server or afl.server.fedavg(weights="uniform")
    sim = classifier(data=points(CLIENTS), client=client, server=server, clock=clock)
    found = sim.run(steps, seed=seed, observe=lambda params: {"w": jax.flatten_util.ravel_pytree(params)[0]}, **how)
    return np.diff(found.observe_w.values.astype(np.float64), axis=0) / RATE


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["typed", pytest.param("raw", marks=SLOW)])
def test_clients_draw_numbers_of_their_own(optimizer: str) -> None:
    """The mean over 16 clients of one step has the standard deviation of one divided by 4."""
    client = {
        "typed": afl.Client(optax.noisy_sgd, **noisy(), **CLIENT),
        "raw": afl.Client(raw_noise, learning_rate=RATE, **CLIENT),
    }[optimizer]
    one, mean = noise(client), noise(client, clients=CLIENTS)
    gradient = noise(afl.Client(learning_rate=RATE, **CLIENT), clients=CLIENTS)  # what is not noise
    assert np.std(one) == pytest.approx(1, rel=0.1)
    assert np.std(mean - gradient) == pytest.approx(1 / 4, rel=0.15)
    assert abs(np.corrcoef(mean[0] - gradient[0], mean[1] - gradient[1])[0, 1]) < 0.15  # another run of the clients


@pytest.mark.slow
def test_seeds_draw_other_numbers_and_a_replay_the_same() -> None:
    client = afl.Client(optax.noisy_sgd, **noisy(), **CLIENT)
    first, other = noise(client), noise(client, seed=1)
    np.testing.assert_array_equal(noise(client), first)
    assert abs(np.corrcoef(first[0], other[0])[0, 1]) < 0.15
    keyed = noise(afl.Client(optax.noisy_sgd, **noisy(key=1), **CLIENT))
    assert abs(np.corrcoef(first[0], keyed[0])[0, 1]) < 0.3  # the gradient is the same


@pytest.mark.slow
def test_an_optimiser_that_starts_afresh_in_every_epoch_draws_other_numbers_in_each() -> None:
    how = {"epochs": 4, "batch_size": None, "reset": "epoch"}
    gradient = noise(afl.Client(learning_rate=RATE, **how))  # what is not noise
    drawn = noise(afl.Client(optax.noisy_sgd, **noisy(), **how)) - gradient
    assert np.std(drawn) == pytest.approx(2, rel=0.1)  # √4; 4 if they were the same


class drawing(Server):
    """x ← x + mean Δ + RATE · N(0, 1)."""

    def update(self, params: Any, state: Any, arrivals: Any) -> Outcome:
        leaves, structure = jax.tree.flatten(params)
        keys = jax.tree.unflatten(structure, list(jax.random.split(arrivals.key, len(leaves))))
        step = mean_delta(arrivals)
        return Outcome(
            jax.tree.map(lambda x, d, k: x + d + RATE * jax.random.normal(k, x.shape), params, step, keys), state
        )


class keeping(drawing):
    """The same by a typed key in its state."""

    def init(self, params: Any, samples: Any) -> Any:
        return jax.random.key(3)

    def update(self, params: Any, state: Any, arrivals: Any) -> Outcome:
        state, key = jax.random.split(state)
        return super().update(params, (), arrivals._replace(key=key))._replace(state=state)


@pytest.mark.slow
@pytest.mark.parametrize("server", ["own", pytest.param("optax", marks=SLOW), pytest.param("own state", marks=SLOW)])
def test_a_server_draws_by_the_step_and_the_seed(server: str) -> None:
    made = {"own": drawing(), "own state": keeping(), "optax": afl.server.fedopt(optax.noisy_sgd, **noisy())}[server]
    client = afl.Client(learning_rate=1e-12, **CLIENT)
    first, again, other = (noise(client, made, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.std(first) == pytest.approx(1, rel=0.1)
    assert abs(np.corrcoef(first[0], first[1])[0, 1]) < 0.15
    if server != "own state":  # whose key is its own affair
        assert abs(np.corrcoef(first[0], other[0])[0, 1]) < 0.15


def test_a_renewed_tree_differs_in_its_keys_alone() -> None:
    tree = {
        "rng_key": jax.random.key(0, impl="rbg"),
        "keys": jax.random.split(jax.random.key(1), 3),
        "attention": {"key": jnp.ones((4, 2))},
        "seed": jnp.int32(5),
        "count": jnp.int32(5),
    }
    new = renewed(tree, seed_key(1))
    assert jax.tree.structure(pack(new)) == jax.tree.structure(pack(tree))
    for name, before in pack(tree).items():
        same = jax.tree.all(jax.tree.map(lambda a, b: np.array_equal(a, b), before, pack(new)[name]))
        assert same == (name in ("attention", "seed", "count"))
    assert len(np.unique(jax.random.key_data(new["keys"]))) == 6
    assert unpack(pack(new))["rng_key"] == new["rng_key"]


class by_jax(afl.clock.Duration):
    """Exponential seconds, drawn by `jax.random` with the keys that it is given."""

    def prepare(self, keys: Any, num_clients: int) -> Any:
        return keys[0], jax.random.uniform(keys[0], (num_clients,))

    def draw(self, prepared: Any, run: Any) -> Any:
        key, scale = prepared
        of_run = jax.random.fold_in(jax.random.fold_in(key, run.client), run.run)
        other = jax.random.exponential(jax_key(per_run(key, run.client, run.run)), dtype=jnp.float64)
        return afl.clock.worked(0.1 + scale[run.client] * jax.random.exponential(of_run, dtype=jnp.float64) + 0 * other)


@pytest.mark.slow
@pytest.mark.parametrize("server", [afl.server.fedbuff(), afl.server.asyncfeded()], ids=["ahead", "replying"])
def test_jax_random_takes_the_keys_of_durations(server: Server) -> None:
    durations = 1.0 + by_jax() * afl.clock.uniform(1, 2)
    sim = classifier(data=points(6), server=server, clock=afl.clock.free_running(concurrency=3, durations=durations))
    times = [sim.run(4, seed=seed).time.values for seed in (0, 0, 1)]
    np.testing.assert_array_equal(times[0], times[1])
    assert (times[0] != times[2]).all() and (np.diff(times[0]) > 0).any()
    latency, _ = durations.step_times(6)
    assert np.isfinite(latency).all()
