"""Shakespeare: from text of roles and from LEAF's json, windows, split, errors."""

from __future__ import annotations

import gzip
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxafl as afl
from jaxafl.data.shakespeare import shakespeare
from jaxafl.models import char_lstm
from jaxafl.readers.text import VOCABULARY, decode, encode

OPHELIA = "There's rosemary, that's for remembrance; pray, love, remember. "
LEAR = "Howl, howl, howl, howl! O, you are men of stones: had I your tongues and eyes. "


def write(path: pathlib.Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(content.encode()))
    else:
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


def test_the_vocabulary_is_leafs():
    assert len(VOCABULARY) == len(set(VOCABULARY)) == 80


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


def test_memory_is_one_byte_per_character(roles):
    folder, texts = roles
    federated = shakespeare(data_dir=folder, min_characters=200, test_fraction=0.5)
    assert federated.arrays["text"].nbytes == sum(map(len, texts.values()))
    assert set(federated.arrays) == {"text", "start"}


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


def test_a_role_of_the_same_name_in_another_play_is_another_client(tmp_path):
    write_roles(tmp_path, [("Henry V", "Boy", ["a" * 1000]), ("Macbeth", "Boy", ["b" * 1000])], "roles_2plays.jsonl.gz")
    federated = shakespeare(data_dir=tmp_path)
    assert federated.num_clients == 2
    assert decode(federated.arrays["text"][[0, 1000]]) == "ab"  # equal lengths: by play, then by role
    assert "roles_2plays.jsonl.gz" in federated.description["source"]


@pytest.mark.parametrize(
    ("train", "test"), [("train/a.json", "test/a.json.gz"), ("leaf_train_9.json.gz", "leaf_test_9.json")]
)
def test_leaf_windows_are_used_as_they_are(tmp_path, train, test):
    folder = tmp_path / "shakespeare"
    few, many = windows_of((OPHELIA * 2)[:85]), windows_of((LEAR * 2)[:100])
    write_leaf(folder / train, {"FEW": few, "MANY": many, "NONE": []})
    write_leaf(folder / test, {"FEW": many[:2], "MANY": few[:3], "NONE": []})
    federated = shakespeare(data_dir=tmp_path)
    assert federated.counts.tolist() == [len(many), len(few)]
    for client, expected in enumerate((many, few)):
        x, y = federated.fetch(federated.arrays, client, np.arange(len(expected)), None)
        assert x.dtype == y.dtype == jnp.int32
        assert as_windows(x, y) == expected
    assert as_windows(federated.x_test, federated.y_test) == few[:3] + many[:2]
    assert federated.description["split"] == "sample"
    assert len(shakespeare(1, data_dir=tmp_path).y_test) == 3
    assert as_windows(shakespeare(data_dir=tmp_path, test_samples=1).x_test, [[0]]) == [(few[0][0], "\n")]


def test_leafs_split_by_user_tests_on_other_people(tmp_path):
    folder = tmp_path / "shakespeare"
    write_leaf(folder / "train" / "a.json", {"ONE": windows_of("a" * 90)})
    write_leaf(folder / "test" / "a.json", {"OTHER": windows_of("b" * 85)})
    federated = shakespeare(data_dir=tmp_path)
    assert (len(federated.y_test), federated.description["split"]) == (5, "user")


@pytest.mark.parametrize("strangers_training", [{}, {"STRANGER": []}])
def test_test_users_some_of_whom_have_no_training_samples_are_refused(tmp_path, strangers_training):
    folder = tmp_path / "shakespeare"
    write_leaf(folder / "leaf_train.json", {"ONE": windows_of("a" * 90), **strangers_training})
    write_leaf(folder / "leaf_test.json", {"ONE": windows_of("b" * 85), "STRANGER": windows_of("c" * 85), "NONE": []})
    with pytest.raises(
        ValueError, match=r"1 of 2 users in .*test have no training sample .*'STRANGER'.*one run of LEAF"
    ):
        shakespeare(data_dir=tmp_path)


def test_unknown_characters_are_counted_over_all_files_of_a_user(tmp_path):
    folder = tmp_path / "shakespeare"
    for name, character in (("train/a.json", "$"), ("train/b.json", "a"), ("test/a.json", "%")):
        write_leaf(folder / name, {"ONE": [("a" * 79 + character, "b")]})
    federated = shakespeare(data_dir=tmp_path)
    assert federated.counts.tolist() == [2]
    assert federated.description["unknown_characters"] == 2


def test_roles_are_preferred_and_either_source_can_be_asked_for(roles):
    folder, _ = roles
    write_leaf(folder / "shakespeare" / "train" / "a.json", {"ONE": windows_of("a" * 90)})
    write_leaf(folder / "shakespeare" / "test" / "a.json", {"ONE": windows_of("b" * 85)})
    assert "roles" in shakespeare(data_dir=folder).description["source"]
    assert shakespeare(data_dir=folder, source="leaf").counts.tolist() == [10]


def test_a_missing_dataset_is_one_clear_error(tmp_path):
    for source in ("auto", "roles", "leaf"):
        with pytest.raises(FileNotFoundError) as raised:
            shakespeare(data_dir=tmp_path, source=source)
        message = str(raised.value)
        assert "'shakespeare" in message and str(tmp_path / "shakespeare") in message
        assert "roles.jsonl" in message and "preprocess.sh" in message


def test_half_of_leafs_files_is_not_enough(tmp_path):
    write_leaf(tmp_path / "shakespeare" / "train" / "a.json", {"ONE": windows_of("a" * 90)})
    with pytest.raises(FileNotFoundError, match=r"only part of shakespeare: no json file in test\. Add .*, or remove"):
        shakespeare(data_dir=tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"play": "P", "role": "R"}', r"roles\.jsonl is damaged: line 2 lacks 'lines'"),
        ('{"speaker": "R"}', "line 2 lacks 'play', 'role', 'lines'"),
        ("[1, 2]", "line 2 lacks 'play'"),
        ('{"play": "P", ', "line 2 is not json"),
        ("[" * 100_000, "line 2 is not json; maximum recursion depth"),
        ('{"play": "P", "role": "R", "lines": "text"}', "line 2 needs text as play and role and a list"),
        ('{"play": "P", "role": "R", "lines": ["a", 1]}', "line 2 needs text"),
        ('{"play": "Play", "role": "A", "lines": []}', "line 2 has role 'A' of 'Play', which came before"),
    ],
)
def test_lines_of_another_form_are_refused(tmp_path, line, message):
    first = json.dumps({"play": "Play", "role": "A", "lines": ["a" * 2000]})
    write(tmp_path / "shakespeare" / "roles.jsonl", f"{first}\n{line}\n")
    with pytest.raises(ValueError, match=message):
        shakespeare(data_dir=tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"users": ["A"]}, "lacks 'user_data'"),
        ({"users": ["A"], "user_data": {"A": {"x": ["a" * 80]}}}, "user 'A' lacks 'y'"),
        ({"users": ["A"], "user_data": {"A": {"x": ["a" * 79], "y": ["b"]}}}, "user 'A': 1 samples are not 80 char"),
        ({"users": ["A"], "user_data": {"A": {"x": ["a" * 80], "y": ["bc"]}}}, "user 'A': 1 samples are not"),
        ({"users": ["A"], "user_data": {"A": {"x": [[0.5, 1.0]], "y": [3]}}}, "user 'A': 1 samples are not"),
        ({"users": ["A"], "user_data": {"A": {"x": [], "y": []}}}, "no sample in the 1 json files of"),
    ],
)
def test_leaf_json_of_another_form_is_refused(tmp_path, content, message):
    write(tmp_path / "shakespeare" / "train" / "a.json", json.dumps(content))
    write_leaf(tmp_path / "shakespeare" / "test" / "a.json", {"A": windows_of("b" * 85)})
    with pytest.raises(ValueError, match=message):
        shakespeare(data_dir=tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 4, "min_characters": 200}, "4 clients asked for, but there are 3 roles with at least 200"),
        ({"clients": 0}, "clients must be at least 1"),
        ({"min_characters": 5000}, "there are no roles with at least 5000 characters"),
        ({"min_characters": 89}, "a role needs 90 characters .* got min_characters=89"),
        ({"min_characters": 300, "test_fraction": 0.01}, "no role more than 80 characters to test on"),
        ({"test_fraction": 0.0}, "test_fraction must be > 0"),
        ({"test_fraction": 1.0}, "test_fraction must be < 1"),
        ({"test_samples": 0}, "test_samples must be at least 1"),
        ({"source": "tfds"}, "source must be one of 'auto', 'roles', 'leaf'"),
    ],
)
def test_impossible_options_are_refused(roles, options, message):
    with pytest.raises(ValueError, match=message):
        shakespeare(**{"data_dir": roles[0], **options})


def test_options_of_roles_are_refused_for_leafs_json(tmp_path):
    for half in ("train", "test"):
        write_leaf(tmp_path / "shakespeare" / half / "a.json", {"ONE": windows_of("a" * 90)})
    for option in ({"min_characters": 500}, {"test_fraction": 0.2}):
        with pytest.raises(ValueError, match="is for roles text"):
            shakespeare(data_dir=tmp_path, **option)


@pytest.mark.slow
def test_a_simulation_learns_a_repeated_line(roles):
    """Every character of the text follows from those before; a small network finds most of them."""
    simulation = afl.Simulation(
        data=shakespeare(2, data_dir=roles[0], min_characters=800, test_samples=64),
        model=char_lstm(hidden=16, layers=1),
        client=afl.Client(optax.adam, learning_rate=0.03, steps=10, batch_size=8),
        server=afl.server.fedavg(),
        clock=afl.clock.synchronous(durations=afl.clock.constant(1.0)),
    )
    loss = simulation.run(server_steps=5, eval_every=5, seed=0, progress=False).loss.values
    assert loss[0] == pytest.approx(np.log(80), rel=0.05)
    assert loss[-1] < 0.8 * loss[0]


@pytest.mark.data
def test_the_real_roles(data_dir):
    federated = shakespeare(data_dir=data_dir, source="roles", test_samples=None)
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
    federated = shakespeare(data_dir=data_dir, source="leaf", test_samples=None)
    assert federated.counts.tolist() == [13790, 7528, 6099, 2895, 2533, 2483, 2340, 2146, 1353, 823]
    assert federated.counts.sum() == 41_990 and len(federated.y_test) == 3_881
    assert federated.description["unknown_characters"] == 0


@pytest.mark.data
@pytest.mark.slow
def test_the_loss_falls_on_the_real_text(data_dir):
    simulation = afl.Simulation(
        data=shakespeare(4, data_dir=data_dir, test_samples=200),
        model=char_lstm(),
        client=afl.Client(optax.sgd, learning_rate=1.0, momentum=0.5, steps=5, batch_size=10),
        server=afl.server.fedavg(),
        clock=afl.clock.synchronous(cohort=4, durations=afl.clock.constant(1.0)),
    )
    loss = simulation.run(server_steps=6, eval_every=6, seed=0, progress=False).loss.values
    assert loss[0] == pytest.approx(np.log(80), rel=0.02)
    assert loss[-1] < 0.85 * loss[0]
