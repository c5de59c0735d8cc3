"""Where a pretrained checkpoint lies: a folder, or a name looked for on disk and, last, on the Hugging Face hub."""

from __future__ import annotations

import importlib.util
import os
import pathlib
from collections.abc import Iterator, Sequence

from jaxafl.data.directory import data_directory

_FILES = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"]


def pretrained_directory(
    checkpoint: str | os.PathLike[str],
    needed: Sequence[str],
    data_dir: str | os.PathLike[str] | None = None,
) -> pathlib.Path:
    """The folder of a pretrained checkpoint.

    Looked for in this order: the folder `checkpoint` itself, `<data_dir>/<checkpoint>`, the Hugging Face cache on disk
    (`$HF_HUB_CACHE`, else `$HF_HOME/hub`, else `~/.cache/huggingface/hub`; for a name without an owner, that of any
    owner), and the hub, through the package `huggingface_hub` where it is installed.

    Args:
        checkpoint: A folder, or a name such as `"bert-base-uncased"` or `"owner/name"`.
        needed: File names of which the folder must hold at least one.
        data_dir: Data directory; by default `$JAXAFL_DATA_DIR`, else TFDS's own default.

    Returns:
        The folder.

    Raises:
        FileNotFoundError: If no such folder holds a needed file: where it was looked for, and the ways to get it.
    """
    name = os.fspath(checkpoint)
    own = pathlib.Path(name).expanduser()
    candidates = list(dict.fromkeys([own, data_directory(data_dir) / name, *_cached(name)]))
    for folder in candidates:
        if _holds(folder, needed):
            return folder
    is_path = pathlib.Path(name).is_absolute() or name.startswith((".", "~")) or name.count("/") > 1
    downloaded, answer = (None, "not asked: this is a path") if is_path else _downloaded(name)
    if downloaded is not None and _holds(downloaded, needed):
        return downloaded
    places = "".join(f"\n  {folder}: {_found(folder)}" for folder in candidates)
    raise FileNotFoundError(
        f"checkpoint {name!r} was not found with {' or '.join(needed)}. Looked in:{places}\n  {_cache()}\n"
        f"  the Hugging Face hub: {answer}\n"
        "Ways to get it:\n"
        f"  1. Give a folder with config.json, model.safetensors and tokenizer.json (or vocab.txt), or put it into "
        f"{data_directory(data_dir) / name}.\n"
        f"  2. On a machine with network: pip install huggingface_hub, then hf download {name}; the cache is found "
        "here when it is copied along.\n"
        "Weights in pytorch_model.bin are not read, because reading them runs code: convert them to safetensors first."
    )


def _holds(folder: pathlib.Path, needed: Sequence[str]) -> bool:
    return any((folder / file).is_file() for file in needed)


def _found(folder: pathlib.Path) -> str:
    if not folder.is_dir():
        return "does not exist"
    files = sorted(path.name for path in folder.iterdir())
    return f"holds {', '.join(files[:12])}{' ...' if len(files) > 12 else ''}" if files else "is empty"


def _cache() -> pathlib.Path:
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    return pathlib.Path(os.environ.get("HF_HUB_CACHE") or pathlib.Path(home) / "hub").expanduser()


def _cached(name: str) -> Iterator[pathlib.Path]:
    """Snapshots in the cache, of each repository the one that `main` means first."""
    if name.startswith((".", "/", "~")):
        return
    folder = f"models--{name.replace('/', '--')}"
    named = [folder] if "/" in name else [folder, f"models--*--{name}"]
    for repository in [path for pattern in named for path in sorted(_cache().glob(pattern))]:
        main = repository / "refs" / "main"
        if main.is_file():
            yield repository / "snapshots" / main.read_text().strip()
        yield from sorted((repository / "snapshots").glob("*"))


def _downloaded(name: str) -> tuple[pathlib.Path | None, str]:
    """The snapshot that the hub gives, or what it answered."""
    if importlib.util.find_spec("huggingface_hub") is None:
        return None, "not asked: the package huggingface_hub is not installed"
    import huggingface_hub

    try:
        return pathlib.Path(huggingface_hub.snapshot_download(name, allow_patterns=_FILES)), "it has none of the files"
    except Exception as error:  # no network, no such name, no permission: each is one more place without it
        return None, str(error).strip().partition("\n")[0] or type(error).__name__
