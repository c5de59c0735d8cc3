"""Shakespeare: from text of roles and from LEAF's json, windows, split, errors."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxafl.data import from_leaf, shakespeare
from jaxafl.data.sources.shakespeare import VOCABULARY, encode, leaf_windows

OPHELIA = "There's rosemary, that's for remembrance; pray, love, remember. "
LEAR = "Howl, howl, howl, howl! O, you are men of stones: had I your tongues and eyes. "


def decode(tokens: Any) -> str:
    return "".join(VOCABULARY[token] for token in np.asarray(tokens).ravel())


def write(path: pathlib.Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")


def write_roles(folder: pathlib.Path, roles, name: str = "roles.jsonl") -> None:
    lines = [json.dumps({"play": play, "role": role, "lines": lines}) for play, role, lines in roles]
    write(folder / "shakespeare" / name, "\n".join(lines) + "\n")


def write_leaf(path: pathlib.Path, users: dict[str, list[tuple[str, str]]]) -> None:
    """LEAF's json; `num_samples` is out of date, as it is in LEAF's own test files."""
    user_data = {user: {"x": [x for x, _ in pairs], "y": [y for _, y in pairs]} for user, pairs in users.items()}
    write(path, json.dumps({"users": list(users), "num_samples": [0] * len(users), "user_data": user_data}))


def windows_of(text: str) -> list[tuple[str, str]]:
    return [(text[first : first + 80], text[first + 80]) for first in range(len(text) - 80)]


def as_windows(x, y) -> list[tuple[str, str]]:
    return [
        (decode(context), decode(following)) for context, following in zip(np.asarray(x), np.asarray(y), strict=True)
    ]


@pytest.fixture
def roles(tmp_path):
    """Three roles of 1263, 895 and 299 characters, and their texts."""
    lines = {"Lear": [LEAR.strip()] * 16, "Ophelia": [OPHELIA.strip()] * 14, "Osric": [LEAR[:59]] * 5}
    write_roles(tmp_path, [("Hamlet" if role[0] == "O" else "Lear", role, own) for role, own in lines.items()])
    return tmp_path, {role: "\n".join(own) for role, own in lines.items()}


@settings(max_examples=50, deadline=None)
@given(text=st.text(st.characters(codec="utf-8") | st.sampled_from(VOCABULARY), max_size=200))
def test_encoding_keeps_the_vocabulary_and_counts_the_rest(text):
    tokens, unknown = encode(text)
    assert tokens.dtype == np.uint8
    assert decode(tokens) == "".join(one if one in VOCABULARY else " " for one in text)
    assert unknown == sum(one not in VOCABULARY for one in text)


def test_every_window_of_a_training_text_is_a_sample_and_none_straddles(roles):
    folder, texts = roles
    federated = shakespeare(data_dir=folder, min_characters=200, test_fraction=0.5, test_samples=None)
    fetch = jax.jit(federated.fetch)
    pooled = []
    for client, text in enumerate(sorted(texts.values(), key=len, reverse=True)):
        cut = len(text) - len(text) // 2
        assert federated.counts[client] == cut - 80
        x, y = fetch(jax.device_put(federated.arrays), client, jnp.arange(cut - 80), jax.random.key(0))
        assert x.dtype == y.dtype == jnp.int32
        assert as_windows(x, y) == windows_of(text[:cut])
        pooled += windows_of(text[cut:])
    assert as_windows(federated.x_test, federated.y_test) == pooled
    assert federated.description["test_windows"] == len(pooled)
    assert federated.num_classes == 80 and federated.example[0].dtype == np.int32


def test_statistics_count_the_characters_that_follow(roles):
    folder, texts = roles
    statistics = shakespeare(1, data_dir=folder, min_characters=200).statistics()
    train = texts["Lear"][: len(texts["Lear"]) - len(texts["Lear"]) // 10]
    assert statistics.histogram[0].tolist() == [train[80:].count(character) for character in VOCABULARY]


def test_long_roles_come_first_and_short_ones_are_left_out_and_counted(roles):
    folder, texts = roles
    federated = shakespeare(data_dir=folder, min_characters=895)
    assert federated.arrays["text"].size == len(texts["Lear"]) + len(texts["Ophelia"])
    assert federated.description["roles_left_out"] == 1
    assert federated.counts.tolist() == [1263 - 126 - 80, 895 - 89 - 80]
    assert shakespeare(1, data_dir=folder, min_characters=200).counts.tolist() == federated.counts[:1].tolist()
    assert shakespeare(data_dir=folder).num_clients == 1  # 1000 characters by default


def test_the_test_set_is_evenly_spaced_over_all_roles(roles):
    folder, _ = roles
    every = shakespeare(data_dir=folder, min_characters=200, test_fraction=0.5, test_samples=None)
    some = shakespeare(data_dir=folder, min_characters=200, test_fraction=0.5, test_samples=100)
    total = len(every.y_test)
    chosen = [number * total // 100 for number in range(100)]
    assert as_windows(some.x_test, some.y_test) == as_windows(every.x_test[chosen], every.y_test[chosen])
    assert (some.description["test_windows"], some.description["test_samples"]) == (total, 100)
    more = shakespeare(data_dir=folder, min_characters=200, test_fraction=0.5, test_samples=10 * total)
    assert len(more.y_test) == total


def test_what_is_not_in_the_vocabulary_or_not_tested_is_counted(tmp_path):
    write_roles(tmp_path, [("Play", "A", ["$" + "a" * 999]), ("Play", "B", ["\t" + "b" * 150, "ü"])])
    federated = shakespeare(data_dir=tmp_path, min_characters=100)
    assert federated.description["unknown_characters"] == 3
    assert federated.description["clients_without_test"] == 1
    assert decode(federated.arrays["text"][:3]) == " aa"


def test_windows_of_leaf_are_read_by_a_conversion(tmp_path):
    few, many = windows_of((OPHELIA * 2)[:85]), windows_of((LEAR * 2)[:100])
    for half, users in (("train", {"MANY": many, "FEW": few, "NONE": []}), ("test", {"FEW": many[:2]})):
        write_leaf(tmp_path / half / "a.json", users)
    federated = from_leaf(tmp_path, convert=leaf_windows, num_classes=80)
    assert federated.client_names.tolist() == ["FEW", "MANY"]
    for client, expected in enumerate((few, many)):
        x, y = federated.fetch(federated.arrays, client, np.arange(len(expected)), None)
        assert x.dtype == y.dtype == jnp.int32
        assert as_windows(x, y) == expected
    assert as_windows(federated.x_test, federated.y_test) == many[:2]


@pytest.mark.parametrize(
    "line",
    [
        '{"play": "P", "role": "R"}',
        "[1, 2]",
        "[" * 100_000,
        '{"play": "P", "role": "R", "lines": "text"}',
        '{"play": "Play", "role": "A", "lines": []}',
    ],
    ids=range(5),
)
def test_damaged_lines_are_named(tmp_path, line):
    first = json.dumps({"play": "Play", "role": "A", "lines": ["a" * 2000]})
    write(tmp_path / "shakespeare" / "roles.jsonl", f"{first}\n{line}\n")
    with pytest.raises(ValueError, match=r"roles\.jsonl is damaged: line 2"):
        shakespeare(data_dir=tmp_path)


@pytest.mark.parametrize("pair", [("a" * 80, "bc"), ([0.5, 1.0], 3)])
def test_damaged_windows_of_leaf_are_named(tmp_path, pair):
    for half, pairs in (("train", [pair]), ("test", windows_of("b" * 85))):
        write_leaf(tmp_path / half / "a.json", {"A": pairs})
    with pytest.raises(ValueError, match=r"a\.json is damaged: user 'A'"):
        from_leaf(tmp_path, convert=leaf_windows)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"clients": 4, "min_characters": 200}, "4 clients asked for"),
        ({"min_characters": 5000}, "roles with at least 5000 characters"),
        ({"min_characters": 89}, "min_characters"),
        ({"min_characters": 300, "test_fraction": 0.01}, "test_fraction"),
        ({"test_fraction": 0.0}, "test_fraction"),
        ({"test_samples": 0}, "test_samples"),
    ],
)
def test_invalid_options(roles, options, named):
    with pytest.raises(ValueError, match=named):
        shakespeare(**{"data_dir": roles[0], **options})


@pytest.mark.data
def test_the_real_roles(data_dir):
    federated = shakespeare(data_dir=data_dir, test_samples=None)
    assert federated.num_clients == 621
    assert federated.description["roles_left_out"] == 1333 - 621
    assert federated.description["unknown_characters"] == 76
    assert federated.counts.sum() == federated.description["characters"] - np.sum(
        np.diff(np.append(federated.arrays["start"], federated.arrays["text"].size)) // 10 + 80
    )
    assert len(federated.y_test) == 347_916
    assert shakespeare(data_dir=data_dir, min_characters=5000).num_clients == 259
    x, y = federated.fetch(federated.arrays, 0, np.array([0]), None)
    assert as_windows(x, y) == [
        ("[Aside]  A little more than kin, and less than kind.\nNot so, my lord; I am too m", "u")
    ]


@pytest.mark.data
def test_the_real_leaf_json(data_dir):
    federated = from_leaf(data_dir / "shakespeare", convert=leaf_windows, num_classes=80)
    assert sorted(federated.counts) == [823, 1353, 2146, 2340, 2483, 2533, 2895, 6099, 7528, 13790]
    assert len(federated.y_test) == 3_881
