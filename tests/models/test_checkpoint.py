"""Parameters to and from safetensors, and runs that start from them."""

from __future__ import annotations

import pathlib

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from flax import linen as nn
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

pytest.importorskip("safetensors", reason="safetensors is not installed (the bert extra)")

from jaxafl.client import Client
from jaxafl.clock import constant, free_running
from jaxafl.data import from_arrays
from jaxafl.models import Batch, from_linen, mlp
from jaxafl.models.checkpoint import initialised, load_parameters, named_leaves, save_parameters
from jaxafl.server import fedbuff
from jaxafl.simulation import Simulation

KINDS = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.uint8, np.bool_]


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tree=st.recursive(
        st.sampled_from(KINDS[:3] + KINDS[4:]).flatmap(
            lambda kind: arrays.arrays(kind, arrays.array_shapes(min_dims=0))
        ),
        lambda inner: st.dictionaries(st.text("ab_.1", min_size=1, max_size=3), inner, min_size=1, max_size=3),
        max_leaves=6,
    ).filter(lambda tree: isinstance(tree, dict))
)
def test_nested_dicts_come_back_bit_for_bit(tmp_path, tree):
    path = tmp_path / "tree.safetensors"
    save_parameters(path, tree)
    found = load_parameters(path)
    assert jax.tree.structure(found) == jax.tree.structure(tree)
    for (name, leaf), other in zip(named_leaves(tree).items(), jax.tree.leaves(found), strict=True):
        assert other.dtype == leaf.dtype and other.shape == leaf.shape, name
        assert other.tobytes() == leaf.tobytes(), name
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("kind", KINDS)
def test_every_dtype_and_a_transposed_array(tmp_path, kind):
    matrix = np.arange(6).reshape(2, 3).astype(kind).T
    save_parameters(tmp_path / "one", {"matrix": matrix, "scalar": jnp.asarray(1, kind) if kind != np.float64 else 1.0})
    found = load_parameters(tmp_path / "one")
    assert found["matrix"].dtype == kind and found["scalar"].shape == ()
    np.testing.assert_array_equal(found["matrix"], matrix)


def test_names_are_paths_in_the_tree(tmp_path):
    params = [{"layer": (np.zeros(1), np.ones(2))}, np.ones(3)]
    save_parameters(tmp_path / "tree", params)
    found = load_parameters(tmp_path / "tree")
    assert list(named_leaves(params)) == ["0/layer/0", "0/layer/1", "1"]
    assert found["0"]["layer"]["1"].shape == (2,) and found["1"].shape == (3,)
    with pytest.raises(ValueError, match=r"no key may contain it: \['a/b'\]"):
        save_parameters(tmp_path / "slash", {"a/b": np.zeros(1)})


def test_errors_of_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"the folder .*nowhere does not exist"):
        save_parameters(tmp_path / "nowhere" / "file", {"w": np.zeros(1)})
    with pytest.raises(FileNotFoundError, match="there is no file"):
        load_parameters(tmp_path / "nothing")
    whole = tmp_path / "whole"
    save_parameters(whole, {"w": np.zeros(100)})
    (tmp_path / "cut").write_bytes(whole.read_bytes()[:-1])
    with pytest.raises(ValueError, match="cut is not a complete safetensors file"):
        load_parameters(tmp_path / "cut")


def test_a_failed_save_keeps_the_old_file(tmp_path):
    path = tmp_path / "model"
    save_parameters(path, {"w": np.ones(2)})
    with pytest.raises(Exception):  # noqa: B017 (the library's own error)
        save_parameters(path, {"w": np.array(["text"])})
    np.testing.assert_array_equal(load_parameters(path)["w"], np.ones(2))
    assert [one.name for one in tmp_path.iterdir()] == ["model"]


def network():
    """Dense_0 of 5×8 and Dense_1 of 8×3."""
    return mlp(3, hidden=(8,))


EXAMPLE = Batch(jnp.zeros((1, 5)), jnp.zeros(1, jnp.int32), jnp.ones(1, bool))


@pytest.fixture(scope="module")
def trained() -> dict:
    return jax.device_get(network().init(jax.random.key(3), EXAMPLE)[0])


def test_a_model_starts_from_a_file_or_a_tree(tmp_path, trained):
    save_parameters(tmp_path / "mlp.safetensors", trained)
    for source in (tmp_path / "mlp.safetensors", trained):
        model = initialised(network(), source)
        found, state = jax.jit(model.init)(jax.random.key(9), EXAMPLE)
        jax.tree.map(np.testing.assert_array_equal, found, trained)
        assert jax.tree.structure(found) == jax.tree.structure(trained) and state == {}
        assert model.name == "mlp" and model.description["network"] == "MLP"
    assert model.description["initialised"] == "given parameters"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda params: params["Dense_0"].update(kernel=np.zeros((5, 7), np.float32)),
            r"do not fit mlp: tensor Dense_0/kernel is float32\[5, 7\], expected float32\[5, 8\]",
        ),
        (
            lambda params: params["Dense_1"].update(bias=np.zeros(3, np.float64)),
            r"tensor Dense_1/bias is float64\[3\], expected float32\[3\]; write jax.tree.map.*'float32'",
        ),
        (lambda params: params.pop("Dense_1"), "missing Dense_1/bias, Dense_1/kernel; unexpected none"),
        (
            lambda params: params.update({f"Extra_{index}": np.zeros(1) for index in range(7)}),
            "missing none; unexpected Extra_0, Extra_1, Extra_2, Extra_3, Extra_4 and 2 more",
        ),
    ],
)
def test_parameters_that_do_not_fit_are_named_before_compilation(trained, change, message):
    params = {name: dict(layer) for name, layer in trained.items()}
    change(params)
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(initialised(network(), params).init, jax.random.key(0), EXAMPLE)


class Normalised(nn.Module):
    """A network with running statistics."""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        x = nn.BatchNorm(use_running_average=not train, momentum=0.5)(nn.Dense(8)(x))
        return nn.Dense(3)(nn.relu(x))


@pytest.mark.slow
def test_a_run_goes_on_where_an_earlier_one_ended(tmp_path: pathlib.Path):
    """Parameters and running statistics."""
    model = from_linen(Normalised())
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 5)).astype(np.float32)
    y = np.argmax(x[:, :3], axis=1)

    def simulation(model):
        return Simulation(
            data=from_arrays(x, y, np.arange(60) % 4, test_fraction=0.2),
            model=model,
            client=Client(optax.sgd, learning_rate=0.1, steps=4, batch_size=8),
            server=fedbuff(learning_rate=1.0),
            clock=free_running(concurrency=3, buffer=2, durations=constant(1.0)),
        )

    first = simulation(model).train(12, eval_every=12, seed=0)
    paths = tmp_path / "params.safetensors", tmp_path / "state.safetensors"
    for path, tree in zip(paths, (first.params, first.model_state), strict=True):
        save_parameters(path, tree)
    second = simulation(initialised(model, *paths)).train(12, eval_every=12, seed=1)
    for name, values in second.evaluations.items():
        np.testing.assert_array_equal(values[0], first.evaluations[name][-1], err_msg=name)
    assert second.evaluations["loss"][-1] < second.evaluations["loss"][0] < first.evaluations["loss"][0]
