"""Readers of text: labelled sentences in tab-separated files, lines of speaking roles, and characters as tokens."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from jaxafl.readers.archive import damaged, lacking, read_text
from jaxafl.readers.leaf import read_examples

VOCABULARY = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's ALL_LETTERS; token i is the i-th character."""

_UNKNOWN = len(VOCABULARY)
_TOKEN = np.full(128, _UNKNOWN, np.uint8)
_TOKEN[[ord(character) for character in VOCABULARY]] = np.arange(len(VOCABULARY))
_TSV_ADVICE = "Replace it by GLUE's own file."
_ROLES_ADVICE = 'A line is {"play": "...", "role": "...", "lines": ["...", ...]}.'


def encode(text: str) -> tuple[np.ndarray, int]:
    """Returns the tokens of a text.

    Args:
        text: any text; a character outside the vocabulary becomes a space.

    Returns:
        uint8 `[len(text)]` in [0, 80), and the number of characters outside the vocabulary.
    """
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    tokens = _TOKEN.take(points, mode="clip")  # larger code points are clipped to the last, DEL, which is unknown too
    unknown = tokens == _UNKNOWN
    tokens[unknown] = VOCABULARY.index(" ")
    return tokens, int(unknown.sum())


def decode(tokens: np.ndarray) -> str:
    """Returns the text of tokens in [0, 80)."""
    return "".join(VOCABULARY[token] for token in np.asarray(tokens).ravel())


def read_tsv(
    path: pathlib.Path, columns: Sequence[str], label: str, labels: Mapping[str, int]
) -> tuple[list[tuple[str, ...]], np.ndarray]:
    """Reads some columns of a tab-separated file, gzipped or not, as text, and its label column as classes.

    The first line names the columns. Quotation marks are ordinary characters, as in GLUE's files.

    Args:
        path: the file; gzipped if its name ends in .gz.
        columns: the names of the wanted columns.
        label: the name of the label column.
        labels: the class of every allowed label.

    Returns:
        For each line its wanted columns, and int32 `[n]`, the classes.

    Raises:
        ValueError: the file is damaged, lacks a column, has no line below its header, or a line has another number of
            columns than the header or an unknown label. The message names the column or the line.
    """
    header, *lines = read_text(path, _TSV_ADVICE).split("\n")
    names = header.rstrip("\r").split("\t")
    for name in (*columns, label):
        if name not in names:
            raise ValueError(
                f"{path} has no column {name!r}; its first line names {', '.join(map(repr, names))}. Replace it by "
                "GLUE's own file, or name its columns so in a first line."
            )
    places = [names.index(name) for name in columns]
    label_place = names.index(label)
    texts, classes = [], []
    for number, line in enumerate(lines, 2):
        if not line.strip():
            continue
        values = line.rstrip("\r").split("\t")
        if len(values) != len(names):
            wrong = f"{len(values)} columns, the first line names {len(names)}"
            raise ValueError(f"{path}, line {number}: {wrong}. {_TSV_ADVICE}")
        if values[label_place] not in labels:
            wrong = f"{label} is {values[label_place]!r}, not one of {', '.join(map(repr, labels))}"
            raise ValueError(f"{path}, line {number}: {wrong}. {_TSV_ADVICE}")
        texts.append(tuple(values[place] for place in places))
        classes.append(labels[values[label_place]])
    if not texts:
        raise ValueError(f"{path} has no sample below its header. {_TSV_ADVICE}")
    return texts, np.array(classes, np.int32)


def role_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns `roles*.jsonl` and `roles*.jsonl.gz` directly in a folder, sorted by name; the folder need not exist.

    Without any, returns the files of TensorFlow Federated, `shakespeare_train.h5` and `shakespeare_test.h5`.
    """
    published = [folder / f"shakespeare_{half}.h5" for half in ("train", "test")]
    found = sorted([*folder.glob("roles*.jsonl"), *folder.glob("roles*.jsonl.gz")])
    return found or [path for path in published if all(other.is_file() for other in published)]


def read_roles(files: Sequence[pathlib.Path]) -> dict[tuple[str, str], str]:
    """Reads the text of speaking roles, their lines joined by newlines.

    Args:
        files: UTF-8 files, gzipped (`*.gz`) or not, with one json object per line: `play`, `role` and `lines`, the
            spoken lines in order. Or HDF5 files of TensorFlow Federated, whose users are roles with their play.

    Returns:
        The text of each (play, role), longest first, then by play and role; play is "" for HDF5 files.

    Raises:
        ValueError: a file is damaged, a line is not json, lacks a key or has a value of another type, or a role comes
            twice. The message names the file and the line.
    """
    texts: dict[tuple[str, str], str] = {}
    for path in files:
        if path.suffix == ".h5":  # a role's training text, then its test text
            for user, (snippets,) in read_examples(path, "snippets"):
                lines = [texts["", user]] if ("", user) in texts else []
                texts["", user] = "\n".join(lines + [snippet.decode("utf-8") for snippet in snippets.tolist()])
            continue
        # splitlines() would also split at separators that json allows inside a string
        for number, line in enumerate(read_text(path, _ROLES_ADVICE).split("\n"), 1):
            if not line.strip():
                continue
            play, role, lines = _parsed_role(path, number, line)
            if (play, role) in texts:
                raise damaged(path, f"line {number} has role {role!r} of {play!r}, which came before", _ROLES_ADVICE)
            texts[play, role] = "\n".join(lines)
    return dict(sorted(texts.items(), key=lambda item: (-len(item[1]), item[0])))


def _parsed_role(path: pathlib.Path, number: int, line: str) -> tuple[str, str, list[str]]:
    try:
        content = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise damaged(path, f"line {number} is not json; {error}", _ROLES_ADVICE) from error
    if absent := lacking(content, "play", "role", "lines"):
        raise damaged(path, f"line {number} lacks {absent}", _ROLES_ADVICE)
    play, role, lines = content["play"], content["role"], content["lines"]
    words = [play, role, *(lines if isinstance(lines, list) else [None])]
    if not all(isinstance(word, str) for word in words):
        raise damaged(path, f"line {number} needs text as play and role and a list of text as lines", _ROLES_ADVICE)
    return play, role, lines
