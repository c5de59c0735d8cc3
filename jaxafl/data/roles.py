"""Texts of speaking roles, from lines of json."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any

from jaxafl.data.archive import damaged, read_content

_ADVICE = 'A line is {"play": "...", "role": "...", "lines": ["...", ...]}.'


def role_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """`roles*.jsonl` and `roles*.jsonl.gz` directly in a folder, which need not exist, sorted by name."""
    return sorted([*folder.glob("roles*.jsonl"), *folder.glob("roles*.jsonl.gz")])


def read_roles(files: Sequence[pathlib.Path]) -> dict[tuple[str, str], str]:
    """All that a role says, its lines joined by newlines.

    Args:
        files: UTF-8 files, gzipped (`*.gz`) or not, with one json object per line: `play`, `role` and `lines`, the
            spoken lines in order.

    Returns:
        The text of each (play, role), longest first, then by play and role.

    Raises:
        ValueError: If a file is damaged, a line is not json, lacks a key or holds something else under it, or a role
            comes twice. The message names the file and the line.
    """
    texts: dict[tuple[str, str], str] = {}
    for path in files:
        try:
            content = read_content(path).decode("utf-8")
        except UnicodeDecodeError as error:
            raise damaged(path, f"expected UTF-8; {error}", _ADVICE) from error
        # Not splitlines(), which also splits at separators that json allows inside a string.
        for number, line in enumerate(content.split("\n"), 1):
            if not line.strip():
                continue
            play, role, lines = _parsed(path, number, line)
            if (play, role) in texts:
                raise damaged(path, f"line {number} has role {role!r} of {play!r}, which came before", _ADVICE)
            texts[play, role] = "\n".join(lines)
    return dict(sorted(texts.items(), key=lambda item: (-len(item[1]), item[0])))


def _parsed(path: pathlib.Path, number: int, line: str) -> tuple[str, str, list[str]]:
    try:
        found: Any = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise damaged(path, f"line {number} is not json; {error}", _ADVICE) from error
    lacking = [key for key in ("play", "role", "lines") if not isinstance(found, dict) or key not in found]
    if lacking:
        raise damaged(path, f"line {number} lacks {', '.join(map(repr, lacking))}", _ADVICE)
    play, role, lines = found["play"], found["role"], found["lines"]
    words = [play, role, *(lines if isinstance(lines, list) else [None])]
    if not all(isinstance(word, str) for word in words):
        raise damaged(path, f"line {number} needs text as play and role and a list of text as lines", _ADVICE)
    return play, role, lines
