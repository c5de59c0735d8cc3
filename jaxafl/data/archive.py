"""Files and archives that may be damaged or hostile: read into memory, never unpacked, never unpickled."""

from __future__ import annotations

import gzip
import io
import pathlib
import tarfile
import zlib
from collections.abc import Sequence


def read_content(path: pathlib.Path) -> bytes:
    """The content of a file, unzipped if its name ends in `.gz`.

    Args:
        path: The file.

    Returns:
        All of its bytes.

    Raises:
        ValueError: If a gzipped file is not one, or is cut short.
    """
    raw = path.read_bytes()
    if path.suffix != ".gz":
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, f"expected a complete gzip file; {error}") from error


def read_members(path: pathlib.Path, names: Sequence[str]) -> list[bytes]:
    """Read some members of a tar archive, gzipped or not, into memory; nothing is written.

    The whole archive is walked, so that an archive with a member that would leave its directory is refused, whichever
    members are asked for.

    Args:
        path: The archive.
        names: Paths of regular files inside it, for example `"cifar-10-batches-bin/test_batch.bin"`.

    Returns:
        The content of each member, in the order of `names`.

    Raises:
        ValueError: If the archive is damaged or cut short, holds an absolute path, a path with `..`, a link or a
            device, lacks a member, or holds one twice. The message names the archive and the member.
    """
    found: dict[str, bytes] = {}
    content = io.BytesIO(read_content(path))
    try:
        with tarfile.open(fileobj=content, mode="r:") as archive:
            for member in archive:
                _refuse_escape(path, member)
                name = member.name.removeprefix("./")
                if name not in names or not member.isfile():
                    continue
                if name in found:
                    raise damaged(path, f"it holds {name} twice")
                stream = archive.extractfile(member)
                found[name] = stream.read() if stream else b""
    except tarfile.TarError as error:
        raise damaged(path, f"expected a complete tar archive; {error}") from error
    absent = [name for name in names if name not in found]
    if absent:
        raise damaged(path, f"it lacks {', '.join(absent)}")
    return [found[name] for name in names]


def damaged(path: pathlib.Path, detail: str, advice: str = "Replace it by the canonical file.") -> ValueError:
    """The error for a file whose content is not what it should be.

    Args:
        path: The file.
        detail: What was expected and what was found; no full stop.
        advice: What to do, one sentence.

    Returns:
        The error, to be raised by the caller.
    """
    return ValueError(f"{path} is damaged: {detail}. {advice}")


def _refuse_escape(path: pathlib.Path, member: tarfile.TarInfo) -> None:
    parts = pathlib.PurePosixPath(member.name).parts
    # A backslash or a drive letter is an absolute path or a parent on Windows only; no dataset here has one.
    if member.name.startswith("/") or ".." in parts or "\\" in member.name or ":" in member.name:
        raise damaged(path, f"its member {member.name!r} would leave the directory it is unpacked in")
    if not (member.isfile() or member.isdir()):
        raise damaged(path, f"its member {member.name!r} is a link or a device; a dataset holds plain files only")
