"""Checkpoints of BERT: names of tensors, what is missing or does not fit, and where a checkpoint is looked for."""

from __future__ import annotations

import importlib.util
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("safetensors", reason="safetensors is not installed (the bert extra)")

from jaxafl.models.bert import bert
from tests import tiny_bert
from tests.tiny_bert import batch_of, made, tokens


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    return tiny_bert.write(tmp_path_factory.mktemp("checkpoint") / "tiny")


def renamed(weights, rename):
    return {rename(name): leaf for name, leaf in weights.items()}


def old_names(name: str) -> str:
    return "bert." + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


def test_prefix_old_names_and_tensors_of_other_heads(folder, tmp_path):
    weights = tiny_bert.tensors()
    expected = made(folder)
    others = {
        "cls.predictions.bias": np.zeros(40, np.float32),
        "bert.embeddings.position_ids": np.arange(12)[None],
    }
    model = bert(str(tiny_bert.write(tmp_path / "old", renamed(weights, old_names) | others)))
    jax.tree.map(np.testing.assert_array_equal, model.frozen, expected.frozen)
    assert model.description["ignored_tensors"] == sorted(others)
    assert expected.description["ignored_tensors"] == []


@pytest.mark.parametrize("kind", [np.float16, jnp.bfloat16])
def test_weights_of_half_precision_become_float32(tmp_path, kind):
    weights = {name: leaf.astype(kind) for name, leaf in tiny_bert.tensors().items()}
    model = bert(str(tiny_bert.write(tmp_path, weights)))
    assert {leaf.dtype for leaf in jax.tree.leaves(model.frozen)} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(model.frozen["pooler"]["kernel"], weights["pooler.dense.weight"].astype(np.float32).T)


def test_a_checkpoint_without_a_pooler_gets_a_trained_one(tmp_path):
    weights = {name: leaf for name, leaf in tiny_bert.tensors().items() if not name.startswith("pooler")}
    model = bert(str(tiny_bert.write(tmp_path, weights)))
    params, _ = jax.eval_shape(model.init, jax.random.key(0), batch_of(tokens()))
    assert "pooler" not in model.frozen and model.description["new_pooler"]
    assert jax.tree.map(jnp.shape, params["pooler"]) == {"kernel": (16, 16), "bias": (16,)}


def without(name):
    return {key: leaf for key, leaf in tiny_bert.tensors().items() if key != name}


def test_a_missing_tensor_is_named(tmp_path):
    name = "encoder.layer.1.attention.self.value.weight"
    with pytest.raises(ValueError, match=rf"lacks 1 of 39 tensors: {name}; it has embeddings\.LayerNorm\.bias"):
        bert(str(tiny_bert.write(tmp_path / "layer", without(name))))
    with pytest.raises(ValueError, match=r"lacks 1 of 39 tensors: pooler\.dense\.bias"):
        bert(str(tiny_bert.write(tmp_path / "pooler", without("pooler.dense.bias"))))
    with pytest.raises(ValueError, match=r"lacks 16 of 55 tensors: encoder\.layer\.2\."):
        bert(str(tiny_bert.write(tmp_path / "deeper", tiny_bert.tensors(), num_hidden_layers=3)))


def test_a_tensor_of_another_shape_is_named_with_what_was_expected(tmp_path):
    name = "encoder.layer.0.intermediate.dense.weight"
    weights = tiny_bert.tensors() | {name: np.zeros((20, 16), np.float32)}
    message = rf"tensor {name} has shape \(20, 16\), the sizes in config\.json ask for \(24, 16\)"
    with pytest.raises(ValueError, match=message):
        bert(str(tiny_bert.write(tmp_path, weights)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "roberta"}, '"model_type": "bert", this one has \'roberta\''),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        ({"is_decoder": True}, "a decoder"),
        ({"hidden_act": "mish"}, "hidden_act 'mish' is not one of gelu, "),
        ({"num_attention_heads": 5}, "hidden_size 16 is no multiple of num_attention_heads 5"),
    ],
)
def test_other_architectures_are_refused(tmp_path, changes, message):
    tiny_bert.write(tmp_path, tiny_bert.tensors(), **changes)
    with pytest.raises(ValueError, match=message):
        bert(str(tmp_path))


def test_an_incomplete_checkpoint_says_what_is_wrong(tmp_path):
    tiny_bert.write(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({name: value for name, value in tiny_bert.CONFIG.items() if name != "vocab_size"}))
    with pytest.raises(ValueError, match=r"config\.json does not say vocab_size"):
        bert(str(tmp_path))
    path.write_text("{")
    with pytest.raises(ValueError, match="not valid json"):
        bert(str(tmp_path))
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"has no config\.json"):
        bert(str(tmp_path))


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
def test_a_name_is_found_in_the_data_directory_then_in_the_cache_then_on_the_hub(
    folder, tmp_path, monkeypatch, offline
):
    repository = tmp_path / "home" / "hub" / "models--google-bert--bert-base-uncased"
    for snapshot, seed in [("aaaa", 1), ("bbbb", 2)]:
        tiny_bert.write(repository / "snapshots" / snapshot, tiny_bert.tensors(seed=seed))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("bbbb")

    def word_embeddings(model):
        return model.frozen["encoder"]["word_embeddings"]

    def expected(seed):
        return tiny_bert.tensors(seed=seed)["embeddings.word_embeddings.weight"]

    for name in ("bert-base-uncased", "google-bert/bert-base-uncased"):
        np.testing.assert_array_equal(word_embeddings(bert(name)), expected(2))
    tiny_bert.write(tmp_path / "data" / "bert-base-uncased", tiny_bert.tensors(seed=3))
    found = bert("bert-base-uncased", data_dir=tmp_path / "data")
    np.testing.assert_array_equal(word_embeddings(found), expected(3))
    monkeypatch.setattr(offline, "snapshot_download", lambda name, allow_patterns: str(folder))
    np.testing.assert_array_equal(word_embeddings(bert("someone/else")), expected(0))


@pytest.mark.extras
def test_a_checkpoint_that_is_nowhere_says_where_it_was_looked_for(tmp_path, monkeypatch, offline):
    (tmp_path / "data" / "my-bert").mkdir(parents=True)
    (tmp_path / "data" / "my-bert" / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(FileNotFoundError) as raised:
        bert("my-bert", data_dir=tmp_path / "data")
    message = str(raised.value)
    assert "checkpoint 'my-bert' was not found with model.safetensors" in message
    assert f"{tmp_path / 'data' / 'my-bert'}: holds pytorch_model.bin" in message
    assert str(tmp_path / "home" / "hub") in message and "the Hugging Face hub: no network\n" in message
    assert "convert them to safetensors" in message and "hf download my-bert" in message
    with pytest.raises(FileNotFoundError, match="not asked: this is a path"):
        bert(str(tmp_path / "nowhere"))


def test_without_huggingface_hub_the_error_says_so(tmp_path, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "huggingface_hub" else find_spec(name, *rest)
    )
    with pytest.raises(FileNotFoundError, match="not asked: the package huggingface_hub is not installed"):
        bert("my-bert", data_dir=tmp_path)
