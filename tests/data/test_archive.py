"""Archives from elsewhere: what is read out of them, and what is refused."""

from __future__ import annotations

import gzip
import io
import tarfile

import numpy as np
import pytest

from jaxafl.readers.archive import read_content, read_members

DIRECTORY = "5"
FILES = {"set/train.bin": bytes(range(256)) * 20, "set/test.bin": b"test" * 300}


def write(path, members, mode="w:gz"):
    """An archive of plain files `(name, content)`, or of other things `(name, type)` with the type as a string."""
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, mode) as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            else:
                member.type, member.linkname = content.encode(), "set/train.bin"
                archive.addfile(member)
    return path


@pytest.mark.parametrize(("name", "mode"), [("set.tar.gz", "w:gz"), ("set.tar", "w")])
def test_members_come_in_the_order_asked_for_and_nothing_is_written(tmp_path, name, mode):
    members = [("set", DIRECTORY), ("./set/readme.txt", b"hello"), *FILES.items()]
    path = write(tmp_path / name, members, mode)
    assert read_members(path, ["set/test.bin", "set/train.bin"]) == [FILES["set/test.bin"], FILES["set/train.bin"]]
    assert read_members(path, ["set/readme.txt"]) == [b"hello"]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", "..\\outside", "C:/outside"])
def test_a_path_that_would_leave_the_directory_does_nothing_because_nothing_is_unpacked(tmp_path, name):
    path = write(tmp_path / "inner" / "set.tar.gz", [*FILES.items(), (name, b"harm"), ("set/link.bin", "2")])
    assert read_members(path, list(FILES)) == list(FILES.values())
    assert list(tmp_path.rglob("*")) == [path.parent, path]


@pytest.mark.parametrize(
    "kind", ["1", "2", "3", "5", "6"], ids=["hard link", "symbolic link", "device", "folder", "pipe"]
)
def test_what_is_no_plain_file_is_refused_in_the_place_of_a_wanted_member(tmp_path, kind):
    path = write(tmp_path / "set.tar.gz", [*FILES.items(), ("set/link.bin", kind)])
    with pytest.raises(ValueError, match=r"'set/link\.bin' is a link, a folder or a device, not a plain file"):
        read_members(path, ["set/train.bin", "set/link.bin"])


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.6, 0.95, 0.999])
def test_a_truncated_archive_is_named(tmp_path, share):
    noise = np.random.default_rng(0).bytes(20_000)
    whole = write(tmp_path / "whole.tar.gz", [("set/train.bin", noise)]).read_bytes()
    path = tmp_path / "set.tar.gz"
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ValueError, match=r"set\.tar\.gz is damaged: expected a complete (gzip|tar)"):
        read_members(path, ["set/train.bin"])


def test_a_truncated_tar_inside_a_sound_gzip_is_named(tmp_path):
    whole = gzip.decompress(write(tmp_path / "whole.tar.gz", FILES.items()).read_bytes())
    path = tmp_path / "set.tar.gz"
    for length, message in [(900, "expected a complete tar archive"), (6000, "test.bin")]:
        path.write_bytes(gzip.compress(whole[:length]))
        with pytest.raises(ValueError, match=message) as raised:
            read_members(path, list(FILES))
        assert f"{path} is damaged" in str(raised.value)


def test_damage_inside_the_compressed_stream_is_noticed(tmp_path):
    path = write(tmp_path / "set.tar.gz", [("set/train.bin", np.random.default_rng(0).bytes(20_000))])
    content = bytearray(path.read_bytes())
    content[10_000] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged"):
        read_members(path, ["set/train.bin"])


def test_a_page_saved_in_place_of_the_archive_is_named(tmp_path):
    (tmp_path / "set.tar.gz").write_bytes(b"<html>404</html>")
    with pytest.raises(ValueError, match="expected a complete gzip file"):
        read_members(tmp_path / "set.tar.gz", ["a"])
    (tmp_path / "set.tar").write_bytes(b"<html>404</html>")
    with pytest.raises(ValueError, match="expected a complete tar archive"):
        read_members(tmp_path / "set.tar", ["a"])


def test_members_must_be_there_once(tmp_path):
    path = write(tmp_path / "set.tar.gz", FILES.items())
    with pytest.raises(ValueError, match=r"it lacks set/more\.bin"):
        read_members(path, [*FILES, "set/more.bin"])
    twice = write(tmp_path / "twice.tar.gz", [*FILES.items(), ("set/test.bin", b"other")])
    with pytest.raises(ValueError, match=r"it holds set/test\.bin twice"):
        read_members(twice, list(FILES))


def test_a_file_that_cannot_be_opened_is_not_called_damaged(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_members(tmp_path / "none.tar.gz", ["a"])
    with pytest.raises(FileNotFoundError):
        read_content(tmp_path / "none.gz")
