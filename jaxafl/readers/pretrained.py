"""Pretrained checkpoints in a folder, the cache on disk or the Hugging Face hub, and their tokenizers."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from jaxafl.options import as_path, check_whole, required
from jaxafl.readers.directory import Directory, data_directory

Tokenizer: TypeAlias = Any
"""A `tokenizers.Tokenizer`; functions import this optional package."""

_SMALLEST = 8  # [CLS], two [SEP] and some words of either sentence
_FILES = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"]


def pretrained_directory(
    checkpoint: str | os.PathLike[str],
    needed: Sequence[str],
    data_dir: Directory = None,
) -> pathlib.Path:
    """Returns the folder of a pretrained checkpoint.

    The order of search is the folder `checkpoint` itself, `<data_dir>/<checkpoint>`, and, if the package
    `huggingface_hub` is installed, the Hugging Face hub or, without network, its cache.

    Args:
        checkpoint: a folder, or a name such as `"bert-base-uncased"` or `"owner/name"`.
        needed: names of files, at least one of which must exist in the folder.
        data_dir: data directory; by default `$JAXAFL_DATA_DIR`, else TFDS's own default.

    Returns:
        The folder.

    Raises:
        FileNotFoundError: no folder holds a needed file. The message lists the tried places and the ways to get it.
    """
    name = os.fspath(checkpoint)
    places = [as_path(name), data_directory(data_dir) / name]
    for folder in places:
        if any((folder / file).is_file() for file in needed):
            return folder
    try:
        import huggingface_hub

        folder = pathlib.Path(huggingface_hub.snapshot_download(name, allow_patterns=_FILES))
        if any((folder / file).is_file() for file in needed):
            return folder
        reason = f"has none of the files in {folder}"
    except Exception as error:  # no package, no network, an unknown name or no permission
        reason = str(error).strip().partition("\n")[0]
    raise FileNotFoundError(
        f"checkpoint {name!r} was not found with {' or '.join(needed)}. Looked in {places[0]}, {places[1]} and the "
        f"Hugging Face hub: {reason}\nPut config.json, model.safetensors and tokenizer.json (or vocab.txt) into "
        f"{places[1]}, or run pip install huggingface_hub and hf download {name}. Weights in pytorch_model.bin are not "
        "read, because reading them runs code: convert them to safetensors first."
    )


class Tokens(NamedTuple):
    """Tokenised examples, padded to the longest.

    Attributes:
        arrays: `input_ids` uint16 (int32 where the vocabulary needs it), `token_type_ids` uint8 (1 in the second
            sentence) and `attention_mask` uint8 (1 for a token, 0 for padding), each `[n, L]`.
        truncated: bool `[n]`, True for examples that were longer than allowed.
    """

    arrays: dict[str, np.ndarray]
    truncated: np.ndarray

    def split(self, stops: Any) -> list[dict[str, np.ndarray]]:
        """Returns the arrays of the examples before, between and after the given places."""
        parts = zip(*(np.split(array, stops) for array in self.arrays.values()), strict=True)
        return [dict(zip(self.arrays, part, strict=True)) for part in parts]


def load_tokenizer(tokenizer: Any, data_dir: Directory = None) -> Tokenizer:
    """Returns a given tokenizer, or loads that of a checkpoint from its tokenizer.json, else from its vocab.txt.

    With vocab.txt, letters are lower-cased unless tokenizer_config.json has `"do_lower_case": false`.

    Args:
        tokenizer: the checkpoint's folder or name, see `pretrained_directory`, or a `tokenizers.Tokenizer`.
        data_dir: data directory for the search of a name.

    Returns:
        A `tokenizers.Tokenizer` without padding and truncation.

    Raises:
        ImportError: the tokenizers package is not installed.
        FileNotFoundError: the checkpoint is not found.
    """
    loaded = _of_checkpoint(tokenizer, data_dir) if isinstance(tokenizer, str | os.PathLike) else tokenizer
    loaded.no_padding()
    loaded.no_truncation()
    return loaded


def tokenise(tokenizer: Tokenizer, sentences: Sequence[Sequence[str]], max_length: int) -> Tokens:
    """Tokenises sentences as `[CLS] first [SEP]`, and pairs as `[CLS] first [SEP] second [SEP]`.

    An example longer than `max_length` tokens loses tokens at the end of its longer sentence, one by one
    (`longest_first`), and is counted.

    Args:
        tokenizer: a tokenizer of `load_tokenizer`.
        sentences: for each example its sentence, or its two sentences.
        max_length: the largest number of tokens of an example, including special tokens; at least 8.

    Returns:
        The tokens.
    """
    check_whole("tokenise", "max_length", max_length, least=_SMALLEST)
    tokenizer.enable_truncation(max_length, strategy="longest_first")
    tokenizer.enable_padding()  # with zeros, to the longest
    encoded = tokenizer.encode_batch([one[0] if len(one) == 1 else tuple(one) for one in sentences])
    kind = np.uint16 if tokenizer.get_vocab_size() <= np.iinfo(np.uint16).max + 1 else np.int32
    arrays = {
        "input_ids": np.array([one.ids for one in encoded], kind),
        "token_type_ids": np.array([one.type_ids for one in encoded], np.uint8),
        "attention_mask": np.array([one.attention_mask for one in encoded], np.uint8),
    }
    return Tokens(arrays, np.array([bool(one.overflowing) for one in encoded]))


def _of_checkpoint(name: str | os.PathLike[str], data_dir: Directory) -> Tokenizer:
    tokenizers = required("tokenizers", "bert", "tokenising")
    folder = pretrained_directory(name, ["tokenizer.json", "vocab.txt"], data_dir)
    if (folder / "tokenizer.json").is_file():
        return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    path = folder / "tokenizer_config.json"
    options = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    tokenizer = tokenizers.BertWordPieceTokenizer(
        str(folder / "vocab.txt"),
        lowercase=options.get("do_lower_case", True),
        strip_accents=options.get("strip_accents"),
        handle_chinese_chars=options.get("tokenize_chinese_chars", True),
    )
    return tokenizers.Tokenizer.from_str(tokenizer.to_str())
