"""Downloads, from a server on the loopback address that fails in the ways of real servers."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gzip
import hashlib
import http.server
import io
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np
import pytest

import jaxafl as afl
from jaxafl.cli import main
from jaxafl.options import UserError
from jaxafl.readers import download

IMAGES = bytes(range(256)) * 4000  # 1 MB
HALF = 2**19
REAL = download.REGISTRY.read_text()


class Server(http.server.ThreadingHTTPServer):
    """Serves `files`; after the bytes of the next entry of `cuts`, it closes the connection."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.cuts: list[int] = []
        self.ranges = True
        self.pause = 0.0  # seconds in the middle of every answer

    def address(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        name, asked = self.path.lstrip("/"), self.headers.get("Range")
        self.server.asked.append((name, asked))
        if name not in self.server.files:
            return self.send_error(404)
        content, start = self.server.files[name], 0
        if asked and self.server.ranges:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
        if start >= len(content):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            middle = start + (self.server.cuts.pop(0) if (cut := bool(self.server.cuts)) else HALF)
            self.wfile.write(content[start:middle])
            self.wfile.flush()
            time.sleep(self.server.pause)
            if not cut:
                self.wfile.write(content[middle:])
        return None


@pytest.fixture
def server(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server with one published file, of fashion_mnist; the registry names its address."""
    with Server() as running:
        threading.Thread(target=running.serve_forever, args=(0.05,), daemon=True).start()
        monkeypatch.setattr(download, "REGISTRY", tmp_path / "registry.txt")
        publish(running, {"fashion_mnist/train.gz": IMAGES})
        yield running
        running.shutdown()


def publish(server: Server, files: dict[str, bytes]) -> None:
    server.files = {path.rpartition("/")[2]: content for path, content in files.items()}
    sums = {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}
    lines = [f"{path} {known} {server.address(path.rpartition('/')[2])}\n" for path, known in sums.items()]
    download.REGISTRY.write_text("".join(lines))


def shown(folder: pathlib.Path) -> list[str]:
    """The files that a reader may see."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))


def test_a_complete_file_is_downloaded_once(server, tmp_path):
    assert afl.data.download("fashion_mnist", tmp_path / "data") == tmp_path / "data" / "fashion_mnist"
    assert (tmp_path / "data" / "fashion_mnist" / "train.gz").read_bytes() == IMAGES
    afl.data.download("fashion_mnist", tmp_path / "data")
    assert server.asked == [("train.gz", None)]


def test_a_truncated_download_goes_on_where_it_stopped(server, tmp_path):
    server.cuts = [HALF, 0]
    with pytest.raises(ConnectionError, match=rf"fashion_mnist: {server.address('train.gz')} could not be downloaded"):
        afl.data.download("fashion_mnist", tmp_path)
    assert shown(tmp_path / "fashion_mnist") == []
    afl.data.download("fashion_mnist", tmp_path)
    assert [asked for _, asked in server.asked] == [None, f"bytes={HALF}-", f"bytes={HALF}-"]
    assert (tmp_path / "fashion_mnist" / "train.gz").read_bytes() == IMAGES


def test_a_truncated_download_that_gets_further_is_continued_in_one_call(server, tmp_path):
    server.cuts = [2**18, 2**18]
    afl.data.download("fashion_mnist", tmp_path)
    assert [asked for _, asked in server.asked] == [None, f"bytes={2**18}-", f"bytes={HALF}-"]
    assert shown(tmp_path / "fashion_mnist") == ["train.gz"]


def test_a_server_without_ranges_starts_again(server, tmp_path):
    server.cuts, server.ranges = [HALF, HALF], False
    for expected in (pytest.raises(ConnectionError), contextlib.nullcontext()):
        with expected:
            afl.data.download("fashion_mnist", tmp_path)
    assert (tmp_path / "fashion_mnist" / "train.gz").read_bytes() == IMAGES


def test_a_download_of_which_only_the_renaming_is_missing_is_complete(server, tmp_path):
    (tmp_path / "fashion_mnist").mkdir()
    (tmp_path / "fashion_mnist" / ".train.gz.part").write_bytes(IMAGES)
    afl.data.download("fashion_mnist", tmp_path)
    assert (tmp_path / "fashion_mnist" / "train.gz").read_bytes() == IMAGES


def test_another_file_than_the_published_one_is_refused(server, tmp_path):
    server.files["train.gz"] = IMAGES[:-1] + b"?"
    with pytest.raises(UserError, match=r"has another file than the published one: SHA256 hash .* but got"):
        afl.data.download("fashion_mnist", tmp_path)
    assert shown(tmp_path) == ["registry.txt"] and not list(tmp_path.rglob("*.part"))


def test_a_rest_that_does_not_fit_is_not_kept(server, tmp_path):
    """The file on the server changed between the two halves."""
    server.cuts = [HALF, 0]
    with pytest.raises(ConnectionError):
        afl.data.download("fashion_mnist", tmp_path)
    publish(server, {"fashion_mnist/train.gz": IMAGES[::-1]})
    with pytest.raises(UserError, match="another file than the published one"):
        afl.data.download("fashion_mnist", tmp_path)
    afl.data.download("fashion_mnist", tmp_path)
    assert (tmp_path / "fashion_mnist" / "train.gz").read_bytes() == IMAGES[::-1]


def test_no_network_and_a_missing_file_are_clear_errors(server, tmp_path):
    del server.files["train.gz"]
    with pytest.raises(ConnectionError, match=r"404 Client Error: Not Found .*copy .*fashion_mnist from a machine"):
        afl.data.download("fashion_mnist", tmp_path)
    text = download.REGISTRY.read_text()
    download.REGISTRY.write_text(re.sub(r":\d+/", ":9/", text))
    with pytest.raises(ConnectionError, match=r"could not be downloaded: .*Connection refused\. Run it again"):
        afl.data.download("fashion_mnist", tmp_path)
    assert shown(tmp_path / "fashion_mnist") == []


def test_a_full_disk_is_a_clear_error(server, tmp_path, monkeypatch):
    folder = tmp_path / "fashion_mnist"
    folder.mkdir()
    part = folder / ".train.gz.part"
    part.symlink_to("/dev/full")  # every write fails as on a full disk
    with pytest.raises(OSError, match=r"fashion_mnist: train\.gz cannot be written: No space left on device\. Make"):
        afl.data.download("fashion_mnist", tmp_path)
    assert not part.is_symlink() and shown(folder) == []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 10**6))  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="the disk has less than the 1 MB that are needed"):
        afl.data.download("fashion_mnist", tmp_path)
    assert shown(folder) == []


def test_a_folder_that_cannot_be_written_is_a_clear_error(server, tmp_path):
    (tmp_path / "fashion_mnist").write_text("a file in the place of the folder")
    with pytest.raises(OSError, match=r"train\.gz cannot be written: File exists\. Make room, or name another"):
        afl.data.download("fashion_mnist", tmp_path)


def start(tmp_path: pathlib.Path) -> subprocess.Popen[bytes]:
    code = (
        "import pathlib, sys; from jaxafl.readers import download\n"
        "download.REGISTRY = pathlib.Path(sys.argv[1])\ndownload.download('fashion_mnist', sys.argv[2])"
    )
    command = [sys.executable, "-c", code, str(download.REGISTRY), str(tmp_path)]
    return subprocess.Popen(command, cwd=pathlib.Path(__file__).parents[2])


def test_two_threads_at_once_download_one_file(server, tmp_path):
    server.pause = 0.3
    with concurrent.futures.ThreadPoolExecutor() as pool:
        assert len(set(pool.map(afl.data.download, ["fashion_mnist"] * 2, [tmp_path] * 2))) == 1
    assert server.asked == [("train.gz", None)]


@pytest.mark.slow
def test_two_processes_at_once_download_one_file(server, tmp_path):
    server.pause = 3.0
    processes = [start(tmp_path), start(tmp_path)]
    assert [process.wait(60) for process in processes] == [0, 0]
    assert server.asked == [("train.gz", None)]
    assert (tmp_path / "fashion_mnist" / "train.gz").read_bytes() == IMAGES


@pytest.mark.slow
def test_a_killed_download_leaves_no_half_file_and_goes_on(server, tmp_path):
    server.pause = 60.0
    process = start(tmp_path)
    part = tmp_path / "fashion_mnist" / ".train.gz.part"
    until = time.monotonic() + 60
    while not (part.exists() and server.asked) and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert shown(tmp_path / "fashion_mnist") == []
    server.pause = 0.0
    afl.data.download("fashion_mnist", tmp_path)
    assert (tmp_path / "fashion_mnist" / "train.gz").read_bytes() == IMAGES


def test_unknown_names_and_flags_are_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"download: name must be one of 'mnist', .* got 'mnst'; did you mean 'mnist'\?"
    ):
        afl.data.download("mnst", tmp_path)
    with pytest.raises(TypeError, match="cifar10: download"):
        afl.data.cifar10(tmp_path, download="yes")


def test_the_registry_names_every_file_by_its_sha256() -> None:
    entries = [line.split() for line in REAL.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[0-9a-f]{64}", known) and url.startswith("http") for _, known, url in entries)
    for name, beginning in download.PLACES.items():
        assert any(path.startswith(beginning) for path, *_ in entries), name


@pytest.mark.parametrize("name", [*download.PLACES])
def test_the_error_for_a_missing_dataset_first_says_how_to_download_it(name, tmp_path):
    more = {"clients": None} if name == "femnist" else {}
    with pytest.raises(FileNotFoundError) as raised:
        getattr(afl.data, name)(data_dir=tmp_path, **more)
    ways = f"afl.data.{name}(download=True), jaxafl run --download or jaxafl data {name}"
    assert str(raised.value).splitlines()[0] == f"{name} is missing. Download it: {ways}."


def archive(kind: str, members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(stream, "w") as packed:
            for name, content in members.items():
                packed.writestr(name, content)
    else:
        with tarfile.open(fileobj=stream, mode="w:bz2") as packed:
            for name, content in members.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                packed.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def examples(users: dict[str, dict[str, Any]]) -> bytes:
    """An HDF5 file as `HDF5ClientData` of TensorFlow Federated reads it: examples/<user>/<feature>."""
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        for user, features in users.items():
            for feature, values in features.items():
                file.create_dataset(f"examples/{user}/{feature}", data=values)
    return stream.getvalue()


def test_femnist_is_downloaded_and_read(server, tmp_path):
    rng = np.random.default_rng(0)
    pixels = {user: rng.integers(0, 256, (n, 28, 28)) for user, n in (("f0424_27", 3), ("f0001_41", 5))}
    labels = {user: rng.integers(0, 62, len(images), np.int32) for user, images in pixels.items()}
    halves = {}
    for half, rows in (("train", slice(None, -1)), ("test", slice(-1, None))):
        halves[f"fed_emnist_{half}.h5"] = examples(
            {u: {"pixels": (pixels[u][rows] / 255).astype(np.float32), "label": labels[u][rows]} for u in pixels}
        )
    publish(server, {"femnist/fed_emnist.tar.bz2": archive("bz2", halves)})
    data = afl.data.femnist(clients=None, data_dir=tmp_path, download=True)
    assert data.client_names.tolist() == ["f0424_27", "f0001_41"]  # a shipped writer comes first
    assert data.counts.tolist() == [2, 4] and data.test_clients.tolist() == [1, 0]
    np.testing.assert_array_equal(data.x_test[1, ..., 0], pixels["f0424_27"][-1])
    assert data.y_test[1] == labels["f0424_27"][-1]
    assert data.description["source"] == "TensorFlow Federated"
    afl.data.femnist(clients=2, data_dir=tmp_path, download=True)
    assert len(server.asked) == 1


def test_shakespeare_is_downloaded_and_read(server, tmp_path):
    lines = {"ROMEO": [f"But, soft! what light {i}" for i in range(80)], "JULIET": ["O Romeo, Romeo!"] * 90}
    halves = {
        f"shakespeare_{half}.h5": examples(
            {
                f"PLAY_{role}": {"snippets": np.array(spoken[rows], h5py.string_dtype())}
                for role, spoken in lines.items()
            }
        )
        for half, rows in (("train", slice(None, 60)), ("test", slice(60, None)))
    }
    publish(server, {"shakespeare/shakespeare.tar.bz2": archive("bz2", halves)})
    data = afl.data.shakespeare(data_dir=tmp_path, download=True)
    texts = {role: "\n".join(spoken) for role, spoken in lines.items()}
    longest = sorted(texts, key=lambda role: -len(texts[role]))
    assert data.client_names.tolist() == [f"PLAY_{role}" for role in longest]
    assert data.counts.tolist() == [len(texts[role]) - int(0.1 * len(texts[role])) - 80 for role in longest]


TSV = "sentence1\tsentence2\tlabel\n" + "A cat.\tAn animal.\tentailment\n" * 3


def test_the_tasks_of_glue_are_downloaded_and_unpacked(server, tmp_path):
    tasks = {
        name: {f"{name}/{half}.tsv": TSV.encode() for half in ("train", "dev", "test")} for name in ("RTE", "SST-2")
    }
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    rows = [f"{i % 2}\t{i}\t{i + 100}\tfirst {i}\tsecond {i}" for i in range(6)]
    publish(
        server,
        {f"glue/{name}.zip": archive("zip", members) for name, members in tasks.items()}
        | {
            "glue/MRPC/msr_paraphrase_train.txt": "\n".join([header, *rows, ""]).encode("utf-8-sig"),
            "glue/MRPC/mrpc_dev_ids.tsv": b"1\t101\n4\t104\n",
        },
    )
    for name in ("glue_rte", "glue_mrpc", "glue_sst2"):
        afl.data.download(name, tmp_path)
    for task in tasks:
        assert shown(tmp_path / "glue" / task) == ["dev.tsv", "train.tsv"]
        assert (tmp_path / "glue" / task / "train.tsv").read_text() == TSV
    mrpc = {half: (tmp_path / "glue" / "MRPC" / f"{half}.tsv").read_text().splitlines() for half in ("train", "dev")}
    assert mrpc["dev"] == [header, rows[1], rows[4]]
    assert mrpc["train"] == [header, rows[0], rows[2], rows[3], rows[5]]


def test_the_command_downloads_and_shows_where(server, tmp_path, capsys):
    assert main(["data", "fashion_mnist", "--data-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"fashion_mnist: complete in {tmp_path / 'fashion_mnist'}\n"
    server.cuts = [0]
    assert main(["data", "fashion_mnist", "--data-dir", str(tmp_path / "other")]) == 2
    assert "jaxafl: error: fashion_mnist: http" in capsys.readouterr().err


def test_the_command_lists_every_dataset(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["data", "--data-dir", str(tmp_path)]) == 0
    listed = capsys.readouterr().out
    assert listed.startswith(f"datasets in {tmp_path} ")
    for name in download.PLACES:
        assert f"  {name:<20} missing; jaxafl data {name} downloads it\n" in listed


def test_a_run_downloads_its_dataset(server, tmp_path, capsys):
    line = ["run", "--data", "cifar10", "--partition", "iid", "--data-dir", str(tmp_path), "--server-steps", "1"]
    assert main(line) == 2
    assert "Download it: afl.data.cifar10(download=True), jaxafl run --download" in capsys.readouterr().err
    publish(server, {"cifar10/cifar-10-binary.tar.gz": gzip.compress(b"no archive")})
    assert main([*line, "--download"]) == 2  # the download works; the content is then refused by the reader
    assert "cifar-10-binary.tar.gz is damaged: expected" in capsys.readouterr().err
    assert shown(tmp_path / "cifar10") == ["cifar-10-binary.tar.gz"]


@pytest.mark.data
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_the_published_files_have_the_registered_sums(name, server, data_dir, tmp_path):
    """The real files, under the real SHA-256, from another address."""
    entries = [line.split() for line in REAL.splitlines() if line.startswith(f"{name}/")]
    server.files = {pathlib.Path(path).name: (data_dir / path).read_bytes() for path, *_ in entries}
    lines = [f"{path} {known} {server.address(pathlib.Path(path).name)}\n" for path, known, _ in entries]
    download.REGISTRY.write_text("".join(lines))
    found = getattr(afl.data, name)(tmp_path, download=True)
    np.testing.assert_array_equal(found.x, getattr(afl.data, name)(data_dir).x)
    if name == "mnist":
        assert afl.data.mnist(tmp_path, by="writer").partition(afl.data.by_user()).num_clients == 539
    assert os.listdir(tmp_path / name)


def test_no_download_is_offered_for_windows_of_leaf(server, tmp_path):
    with pytest.raises(FileNotFoundError, match="dataset 'shakespeare as LEAF json' was not found"):
        afl.data.shakespeare(source="leaf", data_dir=tmp_path, download=True)
    assert server.asked == []
