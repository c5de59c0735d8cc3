"""Checkpoints of BERT: names of tensors, what is missing or does not fit, and where a checkpoint is looked for."""

from __future__ import annotations

import json
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.errors import ScopeParamShapeError

pytest.importorskip("safetensors", reason="safetensors is not installed (the bert extra)")

from jaxafl.models.networks.bert import bert
from tests import tiny_bert
from tests.tiny_bert import batch_of, made, tokens


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    return tiny_bert.write(tmp_path_factory.mktemp("checkpoint") / "tiny")


def old_names(name: str) -> str:
    return "bert." + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


def test_prefix_old_names_and_tensors_of_other_heads(folder, tmp_path):
    weights = tiny_bert.tensors()
    expected = made(folder)
    others = {"cls.predictions.bias": np.zeros(40, np.float32), "bert.embeddings.position_ids": np.arange(12)[None]}
    model = bert(
        str(tiny_bert.write(tmp_path / "old", {old_names(one): leaf for one, leaf in weights.items()} | others))
    )
    jax.tree.map(np.testing.assert_array_equal, model.frozen, expected.frozen)
    assert model.description["ignored_tensors"] == sorted(others)
    assert expected.description["ignored_tensors"] == []


def test_a_checkpoint_without_a_pooler_gets_a_trained_one(tmp_path):
    weights = {name: leaf for name, leaf in tiny_bert.tensors().items() if not name.startswith("pooler")}
    model = bert(str(tiny_bert.write(tmp_path, weights)))
    params, _ = jax.eval_shape(model.init, jax.random.key(0), batch_of(tokens()))
    assert "pooler" not in model.frozen and model.description["new_pooler"]
    assert jax.tree.map(jnp.shape, params["pooler"]) == {"kernel": (16, 16), "bias": (16,)}


@pytest.mark.parametrize(
    ("changes", "weights", "message"),
    [
        ({"model_type": "roberta"}, {}, "model_type.*'bert', got 'roberta'"),
        ({"position_embedding_type": "relative_key"}, {}, "position_embedding_type.*'relative_key'"),
        ({"hidden_act": "mish"}, {}, "hidden_act.*'mish'"),
        ({"num_attention_heads": 5}, {}, "cannot reshape"),
        ({"vocab_size": None}, {}, "vocab_size"),
        ({"num_hidden_layers": 3}, {}, r"lacks 16 of 55 tensors: encoder\.layer\.2\."),
        ({}, {"pooler.dense.bias": None}, r"lacks 1 of 39 tensors: pooler\.dense\.bias"),
        (None, {}, "config.json does not describe"),
    ],
)
def test_checkpoints_that_are_incomplete_or_of_another_architecture(tmp_path, changes, weights, message):
    given = {name: leaf for name, leaf in (tiny_bert.tensors() | weights).items() if leaf is not None}
    tiny_bert.write(tmp_path, given, **(changes or {}))
    config = {name: value for name, value in (tiny_bert.CONFIG | (changes or {})).items() if value is not None}
    (tmp_path / "config.json").write_text("{" if changes is None else json.dumps(config))
    with pytest.raises((ValueError, TypeError), match=message):
        bert(str(tmp_path))


def test_flax_refuses_tensors_of_another_shape(tmp_path):
    weights = tiny_bert.tensors() | {"encoder.layer.0.intermediate.dense.weight": np.zeros((20, 16), np.float32)}
    model = bert(str(tiny_bert.write(tmp_path, weights)))
    params, _ = model.init(jax.random.key(0), batch_of(tokens()))
    with pytest.raises(ScopeParamShapeError, match="intermediate"):
        model.outputs(params, tokens())


@pytest.mark.parametrize("options", [{"r": -1}, {"alpha": 0.0}, {"dropout": 1.0}])
def test_wrong_options(folder, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        bert(str(folder), **options)


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """A hub that cannot be reached, and no directories of the user's."""
    monkeypatch.delenv("JAXAFL_DATA_DIR", raising=False)
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "home" / "hub"))

    def refuse(*arguments, **options):
        raise OSError("no network\nand more")

    monkeypatch.setattr(hub, "snapshot_download", refuse)
    return hub


@pytest.mark.extras
def test_a_name_is_found_in_the_data_directory_then_on_the_hub(folder, tmp_path, monkeypatch, offline):
    def assert_seed(model, seed):
        expected = tiny_bert.tensors(seed=seed)["embeddings.word_embeddings.weight"]
        np.testing.assert_array_equal(model.frozen["encoder"]["word_embeddings"], expected)

    tiny_bert.write(tmp_path / "data" / "bert-base-uncased", tiny_bert.tensors(seed=3))
    assert_seed(bert("bert-base-uncased", data_dir=tmp_path / "data"), 3)
    monkeypatch.setattr(offline, "snapshot_download", lambda name, allow_patterns: str(folder))
    assert_seed(bert("someone/else"), 0)


@pytest.mark.extras
def test_a_checkpoint_that_is_nowhere_says_where_it_was_looked_for(tmp_path, monkeypatch, offline):
    with pytest.raises(FileNotFoundError) as raised:
        bert("my-bert", data_dir=tmp_path / "data")
    for text in ("'my-bert' was not found", str(tmp_path / "data" / "my-bert"), "no network\n", "hf download my-bert"):
        assert text in str(raised.value)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(FileNotFoundError, match="Hugging Face hub: import of huggingface_hub"):
        bert("my-bert", data_dir=tmp_path)
