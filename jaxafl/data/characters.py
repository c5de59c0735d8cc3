"""Text as small integers: LEAF's 80 characters."""

from __future__ import annotations

import numpy as np

VOCABULARY = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's ALL_LETTERS; token i is the i-th character."""

_SPACE = VOCABULARY.index(" ")
_UNKNOWN = len(VOCABULARY)
_TOKEN = np.full(128, _UNKNOWN, np.uint8)
_TOKEN[[ord(character) for character in VOCABULARY]] = np.arange(len(VOCABULARY))


def encode(text: str) -> tuple[np.ndarray, int]:
    """Tokens of a text.

    Args:
        text: Any text; a character outside the vocabulary becomes a space.

    Returns:
        uint8 `[len(text)]` in [0, 80), and how many characters were outside the vocabulary.
    """
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    tokens = np.where(points < len(_TOKEN), _TOKEN[np.minimum(points, len(_TOKEN) - 1)], _UNKNOWN).astype(np.uint8)
    unknown = tokens == _UNKNOWN
    tokens[unknown] = _SPACE
    return tokens, int(unknown.sum())


def decode(tokens: np.ndarray) -> str:
    """The text of tokens in [0, 80), for people to read."""
    return "".join(VOCABULARY[token] for token in np.asarray(tokens).ravel())
