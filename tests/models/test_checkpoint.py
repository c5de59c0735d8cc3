"""Parameters to and from safetensors, and runs that start from them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

pytest.importorskip("safetensors", reason="safetensors is not installed (the bert extra)")

from jaxafl.models import Batch, mlp
from jaxafl.models.adapters.checkpoint import initialised, load_parameters, save_parameters
from jaxafl.models.frozen import named_leaves

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
            {"Dense_0": {"kernel": np.zeros((5, 7), np.float32), "bias": np.zeros(8, np.float32)}},
            r"Dense_0/kernel.*5, 7",
        ),
        ({"Dense_1": {"kernel": np.zeros((8, 3)), "bias": np.zeros(3)}}, "Dense_1/bias is float64"),
        ({"Dense_1": {}}, "Dense_1/bias, Dense_1/kernel"),
        ({"Extra": np.zeros(1)}, "Extra"),
    ],
)
def test_parameters_that_do_not_fit_are_named_before_compilation(trained, change, message):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(initialised(network(), trained | change).init, jax.random.key(0), EXAMPLE)


def test_missing_and_damaged_files(tmp_path):
    with pytest.raises(FileNotFoundError):
        save_parameters(tmp_path / "nowhere" / "file", {"w": np.zeros(1)})
    with pytest.raises(FileNotFoundError):
        load_parameters(tmp_path / "nothing")
    save_parameters(tmp_path / "whole", {"w": np.zeros(100)})
    (tmp_path / "cut").write_bytes((tmp_path / "whole").read_bytes()[:-1])
    with pytest.raises(ValueError, match="cut is not a complete safetensors file"):
        load_parameters(tmp_path / "cut")
