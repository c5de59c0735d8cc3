"""Texts as tokens: predict every next token, one client per text or author."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxafl.data.federated import FederatedData
from jaxafl.data.sources.arrays import from_clients
from jaxafl.options import UserError, check_number, check_whole, named
from jaxafl.readers.pretrained import load_tokenizer


@named
def from_texts(
    texts: Mapping[str, str | Sequence[str]],
    *,
    length: int = 128,
    tokenizer: Any = None,
    test_fraction: float = 0.1,
    name: str = "texts",
) -> FederatedData:
    """Converts texts to windows of tokens, of which a model such as `decoder` predicts every next token.

    The end of every text is held out for testing. The rest of a client's texts is joined without separators, and so
    are their ends. Both are cut into windows, and a sample is x = t_1 ... t_L with y = t_2 ... t_(L+1). The next window
    begins at t_(L+1), so no token is a label twice. A rest of fewer than L + 1 tokens is left out.

    Args:
        texts: client -> its text, or several. A client with fewer than L + 1 tokens for training is left out and
            counted in `description`.
        length: L, tokens of a window.
        tokenizer: `None` for the bytes of UTF-8; a `tokenizers.Tokenizer`, whose truncation and padding are turned off,
            or the folder or name of a checkpoint as in `glue_mrpc`. No special tokens are added.
        test_fraction: share of the tokens of every text held out, from its end.
        name: name of the dataset.

    Returns:
        The federated dataset: x int32 `[B, L]` and y int32 `[B, L]` in [0, V), where V, `num_classes`, is 256 for
        bytes.

    Raises:
        ImportError: the tokenizers package is not installed.
        ValueError: an option is out of range, or no client has L + 1 tokens for training.
    """
    check_whole("from_texts", "length", length)
    check_number("from_texts", "test_fraction", test_fraction, above=0, below=1)
    if tokenizer is not None:
        tokenizer = load_tokenizer(tokenizer)
    size = 256 if tokenizer is None else tokenizer.get_vocab_size()

    def encoded(text: str) -> np.ndarray:
        if tokenizer is None:
            return np.frombuffer(text.encode(), np.uint8).astype(np.int32)
        return np.array(tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    train, test = {}, {}
    for client, given in texts.items():
        parts = [encoded(one) for one in ([given] if isinstance(given, str) else [*given, ""])]
        pieces = [np.split(part, [len(part) - int(test_fraction * len(part))]) for part in parts]
        begin, end = (np.concatenate(half) for half in zip(*pieces, strict=True))
        if len(begin) > length:
            train[client], test[client] = _windows(begin, length), _windows(end, length)
    if not train:
        raise UserError(f"{name}: no client has {length + 1} tokens for training; expected longer texts")
    data = from_clients(train, test, num_classes=size, name=name)
    said = {"test_fraction": float(test_fraction), "clients_left_out": len(texts) - len(train)}
    return dataclasses.replace(data, description={**data.description, "source": "texts", **said})


def _windows(tokens: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the windows [n, L] of a text, and the tokens one later [n, L]."""
    end = max(len(tokens) - 1, 0) // length * length
    return tokens[:end].reshape(-1, length), tokens[1 : end + 1].reshape(-1, length)
