"""Shakespeare: next-character prediction, one client per speaking role or per play."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.data.federated import FederatedData
from jaxafl.data.partition.alike import by_user
from jaxafl.data.preprocessing import Preprocessing, as_integers
from jaxafl.data.sources.texts import from_texts
from jaxafl.options import UserError, check_choice, check_number, check_whole, named
from jaxafl.readers.archive import damaged, read_text
from jaxafl.readers.directory import Directory, data_directory, missing_dataset
from jaxafl.readers.download import downloadable
from jaxafl.readers.leaf import read_examples

CONTEXT = 80
"""Number of characters before the predicted one."""
VOCABULARY = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's ALL_LETTERS; token i is the i-th character."""

_NAME = "shakespeare"
_SHIPPED = "shakespeare_6plays.jsonl.gz"
_CLASSES = len(VOCABULARY)
_REFERENCES = ("mcmahan2017", "caldas2018")
_ADVICE = 'A line is {"play": "...", "role": "...", "lines": ["...", ...]}.'
_TOKEN = np.full(128, _CLASSES, np.uint8)
_TOKEN[[ord(character) for character in VOCABULARY]] = np.arange(_CLASSES)
_CHARACTERS = Preprocessing(as_integers, None, "characters as integers")


@named
@downloadable
def shakespeare(
    clients: int | None = None,
    *,
    min_characters: int = 1000,
    test_fraction: float = 0.1,
    test_samples: int | None = 2000,
    data_dir: Directory = None,
    download: bool = False,
) -> FederatedData:
    """Loads Shakespeare's plays: predict a character from the 80 before it; one client per speaking role of a play.

    The vocabulary is LEAF's, 80 characters. Any other character is read as a space, and `description` counts these.
    Clients are sorted by decreasing amount of text (then by name), so a smaller number of clients is always a prefix
    of a larger one.

    The text is read from the files `roles*.jsonl` or `roles*.jsonl.gz` in `<data_dir>/shakespeare`, each line
    `{"play": ..., "role": ..., "lines": [...]}`. Without these, it is read from `shakespeare_train.h5` and
    `shakespeare_test.h5` of TensorFlow Federated (LEAF's 715 roles), which `download=True` gets. A role's text is its
    lines joined by newlines. Its first part is for training, the rest for testing, and every window of 81 characters
    within one of the parts is a sample. Windows are cut out of the text in the training step, so memory is one byte per
    character.

    LEAF's own windows and their split are read from its json by
    `from_leaf(folder, convert=jaxafl.data.sources.shakespeare.leaf_windows, num_classes=80)`.

    Args:
        clients: number of roles; by default all.
        min_characters: leave out roles with less text. The default 1000 keeps at least 20 test windows per role.
        test_fraction: share of every role's text held out, from its end.
        test_samples: number of windows of the test set, evenly spaced over all test windows in use, to limit the time
            of an evaluation (2000 windows measure an accuracy to about 1 point). `None` keeps all, some hundred
            thousand for all roles.
        data_dir: data directory; by default `$JAXAFL_DATA_DIR`, else TFDS's default.
        download: if True, missing files are downloaded first, see `jaxafl.data.download`.

    Returns:
        The federated dataset: x int32 `[B, 80]` and y int32 `[B]` in [0, 80).

    Raises:
        FileNotFoundError: no file exists.
        ValueError: an option is out of range, a file is damaged or lacks keys, or there are fewer roles than `clients`.

    References:
        McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017;
        Caldas et al., "LEAF: A Benchmark for Federated Settings", arXiv:1812.01097, 2018.
    """
    clients = None if clients is None else check_whole(_NAME, "clients", clients)
    test_samples = None if test_samples is None else check_whole(_NAME, "test_samples", test_samples)
    check_number(_NAME, "test_fraction", test_fraction, above=0, below=1)
    needed = math.ceil((CONTEXT + 1) / (1 - test_fraction))  # one training window and the next character
    check_whole(_NAME, "min_characters", min_characters, least=needed)
    folder = data_directory(data_dir) / _NAME
    published = [folder / f"shakespeare_{half}.h5" for half in ("train", "test")]  # by TensorFlow Federated
    files = sorted([*folder.glob("roles*.jsonl"), *folder.glob("roles*.jsonl.gz")])
    files = files or (published if all(path.is_file() for path in published) else [])
    spoken = _read_roles(_NAME, folder, files)
    texts = {role: text for role, text in spoken.items() if len(text) >= min_characters}
    if len(texts) < (clients or 1):
        raise UserError(
            f"{_NAME}: {clients or 'all'} clients asked for, but there are {len(texts)} roles with at least "
            f"{min_characters} characters"
        )
    tokens, unknown = zip(*map(encode, [*texts.values()][:clients]), strict=True)
    lengths = np.array([len(text) for text in tokens], np.int64)
    held_out = np.floor(test_fraction * lengths).astype(np.int64)
    ends = np.cumsum(lengths)
    start = ends - lengths
    text = np.concatenate(tokens)
    every = np.concatenate([*map(np.arange, ends - held_out, ends - CONTEXT)])
    if not len(every):
        raise UserError(f"{_NAME}: test_fraction leaves no role {CONTEXT + 1} characters for testing. Use a larger one")
    number = min(test_samples or len(every), len(every))
    begin = every[np.arange(number) * len(every) // number]  # evenly spaced, up to rounding
    test = np.lib.stride_tricks.sliding_window_view(text, CONTEXT + 1)[begin]
    counts = lengths - held_out - CONTEXT
    arrays = {"text": text, "start": start.astype(np.int32)}
    x_test, y_test = test[:, :CONTEXT], test[:, CONTEXT].astype(np.int32)
    said = {
        "dataset": _NAME,
        "source": f"roles ({', '.join(path.name for path in files)})",
        "min_characters": min_characters,
        "roles_left_out": len(spoken) - len(texts),
        "test_fraction": test_fraction,
        "characters": len(text),
        "unknown_characters": sum(unknown),
        "clients_without_test": int(np.sum(held_out <= CONTEXT)),
        "test_windows": len(every),
        "test_samples": number,
        "preprocessing": _CHARACTERS.description,
        **by_user(clients).description,
    }
    return FederatedData(
        *(_NAME, _CLASSES, counts, arrays, x_test, y_test, _CHARACTERS, gather_windows, said, _REFERENCES),
        client_names=np.array([f"{play}: {role}".removeprefix(": ") for play, role in [*texts][:clients]]),
    )


@named
def shakespeare_plays(
    by: Literal["play", "role"] = "play",
    *,
    length: int = 128,
    test_fraction: float = 0.1,
    data_dir: Directory = None,
) -> FederatedData:
    """Loads the roles' text of plays as bytes, to predict every next one; one client per play, or per role of a play.

    Six plays come with the package and need no files: A Midsummer Night's Dream, Hamlet, Julius Caesar, Macbeth, Romeo
    and Juliet, and The Tempest, 570,000 bytes in all. They are of the Moby edition, which is in the public domain. All
    that a role says is one text, in the order of its lines; stage directions are not part of it.

    Args:
        by: what a client is. `"play"` has the texts of all its roles, one after another; `"role"` leaves out roles with
            less than a window of text.
        length: L, bytes of a window.
        test_fraction: share of every role's text held out, from its end.
        data_dir: data directory with other plays, in the files `roles*.jsonl` or `roles*.jsonl.gz` of `shakespeare`; by
            default the six plays of the package.

    Returns:
        The federated dataset of `from_texts`: x int32 `[B, L]` and y int32 `[B, L]` in [0, 256), y one byte later.

    Raises:
        FileNotFoundError: `data_dir` has no such file.
        ValueError: an option is out of range, no client has enough text, or a file is damaged.
    """
    check_choice("shakespeare_plays", "by", by, ("play", "role"))
    folder = data_directory(data_dir) / _NAME if data_dir else pathlib.Path(__file__).parents[1] / "files"
    files = sorted(folder.glob("roles*.jsonl*" if data_dir else _SHIPPED))
    clients: dict[str, list[str]] = {}
    for (play, role), text in _read_roles("shakespeare_plays", folder, files).items():
        clients.setdefault(play if by == "play" else f"{play}: {role}", []).append(f"{text}\n")
    data = from_texts(clients, length=length, test_fraction=test_fraction, name="shakespeare_plays")
    return dataclasses.replace(data, references=_REFERENCES)


def gather_windows(
    arrays: Mapping[str, jax.Array], client: jax.Array | int, positions: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Gathers windows of one client's text; traceable.

    Args:
        arrays: `{"text": uint8 [characters], "start": int32 [N]}`; `start` is the offset of each client's training
            text.
        client: int32 scalar.
        positions: int32 `[B]`, offsets of the windows in the client's text.

    Returns:
        `(x uint8 [B, 80], y int32 [B])`.
    """
    begin = arrays["start"][client] + positions
    windows = jax.vmap(lambda first: jax.lax.dynamic_slice_in_dim(arrays["text"], first, CONTEXT + 1))(begin)
    return windows[:, :CONTEXT], windows[:, CONTEXT].astype(jnp.int32)


def leaf_windows(x: list[str], y: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Converts windows of LEAF's json, texts of 80 characters and the characters after them, for `from_leaf`.

    Returns:
        Tokens int32 `[n, 80]` and int32 `[n]`, as of `encode`.
    """
    windows, following = (np.array([encode(text)[0] for text in texts], np.int32) for texts in (x, y))
    return windows, following.reshape(len(y))


def encode(text: str) -> tuple[np.ndarray, int]:
    """Returns the tokens of a text.

    Args:
        text: any text; a character outside the vocabulary becomes a space.

    Returns:
        uint8 `[len(text)]` in [0, 80), and the number of characters outside the vocabulary.
    """
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    tokens = _TOKEN.take(points, mode="clip")  # larger code points are clipped to the last, DEL, which is unknown too
    unknown = tokens == _CLASSES
    tokens[unknown] = VOCABULARY.index(" ")
    return tokens, int(unknown.sum())


def _read_roles(name: str, folder: pathlib.Path, files: Sequence[pathlib.Path]) -> dict[tuple[str, str], str]:
    """Reads the text of each (play, role), longest first, then by play and role; play is "" for HDF5 files.

    Raises:
        FileNotFoundError: there are no files.
    """
    if not files:
        raise missing_dataset(name, [folder], [f"Put roles.jsonl or roles.jsonl.gz into {folder}. {_ADVICE}"])
    texts: dict[tuple[str, str], str] = {}
    for path in files:
        if path.suffix == ".h5":  # a role's training text, then its test text
            for user, (snippets,) in read_examples(path, "snippets"):
                lines = [texts["", user]] if ("", user) in texts else []
                texts["", user] = "\n".join(lines + [snippet.decode("utf-8") for snippet in snippets.tolist()])
            continue
        # splitlines() would also split at separators that json allows inside a string
        for number, line in enumerate(read_text(path, _ADVICE).split("\n"), 1):
            if not line.strip():
                continue
            try:
                content = json.loads(line)
                key = content["play"], content["role"]
                if key in texts or isinstance(content["lines"], str):
                    raise ValueError(f"role {key} came before, or its lines are no list")
                texts[key] = "\n".join(content["lines"])
            except (KeyError, TypeError, ValueError, RecursionError) as error:
                raise damaged(path, f"line {number}: {type(error).__name__}: {error}", _ADVICE) from error
    return dict(sorted(texts.items(), key=lambda item: (-len(item[1]), item[0])))
