"""Sentences as the WordPiece tokens of a BERT checkpoint."""

from __future__ import annotations

import importlib.util
import json
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxafl.checks import check_whole
from jaxafl.data.pretrained import pretrained_directory

_SMALLEST = 8  # [CLS], two [SEP] and some words of either sentence


class Tokens(NamedTuple):
    """Tokenised examples, as wide as the longest of them.

    Attributes:
        arrays: `input_ids` uint16 (int32 where the vocabulary needs it), `token_type_ids` uint8 (1 in the second
            sentence) and `attention_mask` uint8 (1 for a token, 0 for padding), each `[n, L]`.
        truncated: Number of examples that were longer than allowed.
    """

    arrays: dict[str, np.ndarray]
    truncated: int


def load_tokenizer(tokenizer: str, data_dir: Any = None) -> Any:
    """The tokenizer of a checkpoint, from its tokenizer.json, else from its vocab.txt.

    With vocab.txt, letters are lower-cased unless tokenizer_config.json says `"do_lower_case": false`.

    Args:
        tokenizer: The checkpoint's folder or name, see `jaxafl.data.pretrained.pretrained_directory`.
        data_dir: Data directory in which a name is looked for.

    Returns:
        A `tokenizers.Tokenizer` without padding and truncation.

    Raises:
        ImportError: If the tokenizers package is not installed.
        FileNotFoundError: If the checkpoint is not found.
        ValueError: If a file of it cannot be read.
    """
    if importlib.util.find_spec("tokenizers") is None:
        raise ImportError('tokenising needs the tokenizers package: pip install "jaxafl[bert]"')
    folder = pretrained_directory(tokenizer, ["tokenizer.json", "vocab.txt"], data_dir)
    import tokenizers

    try:
        if (folder / "tokenizer.json").is_file():
            made = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        else:
            made = _from_vocabulary(folder)
    except Exception as error:  # the library raises bare exceptions
        raise ValueError(f"the tokenizer in {folder} cannot be read: {error}") from error
    made.no_padding()
    made.no_truncation()
    return made


def tokenise(tokenizer: Any, sentences: Sequence[Sequence[str]], max_length: int) -> Tokens:
    """`[CLS] first [SEP]`, or `[CLS] first [SEP] second [SEP]` of pairs.

    An example longer than `max_length` tokens loses tokens at the end of the longer of its sentences, one by one
    (`longest_first`), and is counted.

    Args:
        tokenizer: What `load_tokenizer` returns.
        sentences: For each example its sentence, or its two sentences.
        max_length: The most tokens of an example, special ones included; at least 8.

    Returns:
        The tokens.
    """
    check_whole("tokenise", "max_length", max_length, least=_SMALLEST)
    tokenizer.enable_truncation(max_length, strategy="longest_first")
    encoded = tokenizer.encode_batch([one[0] if len(one) == 1 else tuple(one) for one in sentences])
    width = max(len(one.ids) for one in encoded)
    kind = np.uint16 if tokenizer.get_vocab_size() <= np.iinfo(np.uint16).max + 1 else np.int32
    arrays = {
        "input_ids": np.zeros((len(encoded), width), kind),
        "token_type_ids": np.zeros((len(encoded), width), np.uint8),
        "attention_mask": np.zeros((len(encoded), width), np.uint8),
    }
    for row, one in enumerate(encoded):
        arrays["input_ids"][row, : len(one.ids)] = one.ids
        arrays["token_type_ids"][row, : len(one.ids)] = one.type_ids
        arrays["attention_mask"][row, : len(one.ids)] = 1
    return Tokens(arrays, sum(bool(one.overflowing) for one in encoded))


def _from_vocabulary(folder: pathlib.Path) -> Any:
    import tokenizers

    path = folder / "tokenizer_config.json"
    options = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    made = tokenizers.BertWordPieceTokenizer(
        str(folder / "vocab.txt"),
        lowercase=options.get("do_lower_case", True),
        strip_accents=options.get("strip_accents"),
        handle_chinese_chars=options.get("tokenize_chinese_chars", True),
    )
    return tokenizers.Tokenizer.from_str(made.to_str())
