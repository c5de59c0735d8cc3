"""Labelled sentences from a tab-separated file with a header line."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from jaxafl.data.archive import damaged, read_content

_ADVICE = "Replace it by GLUE's own file."


def read_tsv(
    path: pathlib.Path, columns: Sequence[str], label: str, labels: Mapping[str, int]
) -> tuple[list[tuple[str, ...]], np.ndarray]:
    """Some columns of a tab-separated file, gzipped or not, as text, and its label column as classes.

    The first line names the columns. Quotation marks are text like any other, as GLUE's files mean them.

    Args:
        path: The file; gzipped where its name ends in .gz.
        columns: The names of the wanted columns.
        label: The name of the label column.
        labels: The class of every label that may occur.

    Returns:
        For each line its wanted columns, and int32 `[n]`, the classes.

    Raises:
        ValueError: If the file is damaged, lacks a column (which, and what its header has), has no line below its
            header, or a line has another number of columns than the header or an unknown label (which line).
    """
    header, *lines = _text(path).split("\n")
    names = header.rstrip("\r").split("\t")
    for name in (*columns, label):
        if name not in names:
            raise ValueError(
                f"{path} has no column {name!r}; its first line names {', '.join(map(repr, names))}. Replace it by "
                "GLUE's own file, or name its columns so in a first line."
            )
    places, label_place = [names.index(name) for name in columns], names.index(label)
    texts, classes = [], []
    for number, line in enumerate(lines, 2):
        if not line.strip():
            continue
        values = line.rstrip("\r").split("\t")
        if len(values) != len(names):
            raise ValueError(
                f"{path}, line {number}: {len(values)} columns, the first line names {len(names)}. {_ADVICE}"
            )
        if values[label_place] not in labels:
            allowed = ", ".join(map(repr, labels))
            raise ValueError(
                f"{path}, line {number}: {label} is {values[label_place]!r}, not one of {allowed}. {_ADVICE}"
            )
        texts.append(tuple(values[place] for place in places))
        classes.append(labels[values[label_place]])
    if not texts:
        raise ValueError(f"{path} has no sample below its header. {_ADVICE}")
    return texts, np.array(classes, np.int32)


def _text(path: pathlib.Path) -> str:
    try:
        return read_content(path).decode("utf-8-sig")  # some copies begin with a byte-order mark
    except UnicodeDecodeError as error:
        raise damaged(path, f"expected UTF-8 text; {error}", _ADVICE) from error
