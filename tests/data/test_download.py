"""Downloads, from a server on the loopback address that fails in the ways of real servers."""

from __future__ import annotations

import hashlib
import http.server
import io
import pathlib
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np
import pytest

import jaxafl as afl
from jaxafl.readers import download

IMAGES = bytes(range(256)) * 4000  # 1 MB


class Server(http.server.ThreadingHTTPServer):
    """Serves `files`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []

    def address(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        name = self.path.lstrip("/")
        self.server.asked.append(name)
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.files[name])))
        self.end_headers()
        self.wfile.write(self.server.files[name])


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
    assert server.asked == ["train.gz"]


def test_other_files_are_refused_and_not_kept(server, tmp_path):
    server.files["train.gz"] = IMAGES[:-1] + b"?"
    with pytest.raises(ValueError, match="SHA256 hash"):
        afl.data.download("fashion_mnist", tmp_path)
    assert shown(tmp_path / "fashion_mnist") == []


@pytest.mark.parametrize("name", [*download.PLACES])
def test_the_error_for_a_missing_dataset_first_says_how_to_download_it(name, tmp_path):
    more = {"clients": None} if name == "femnist" else {}
    with pytest.raises(FileNotFoundError) as raised:
        getattr(afl.data, name)(data_dir=tmp_path, **more)
    ways = f"afl.data.{name}(download=True), jaxafl run --download or jaxafl data {name}"
    assert str(raised.value).splitlines()[0] == f"{name} is missing. Download it: {ways}."


def archive(kind: str, members: dict[str, bytes], **options: Any) -> bytes:
    stream = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(stream, "w") as packed:
            for name, content in members.items():
                packed.writestr(name, content)
    else:
        with tarfile.open(fileobj=stream, mode=f"w:{kind}", **options) as packed:
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
        assert shown(tmp_path / "glue" / task) == ["dev.tsv", "test.tsv", "train.tsv"]
        assert (tmp_path / "glue" / task / "train.tsv").read_text() == TSV
    mrpc = {half: (tmp_path / "glue" / "MRPC" / f"{half}.tsv").read_text().splitlines() for half in ("train", "dev")}
    assert mrpc["dev"] == [header, rows[1], rows[4]]
    assert mrpc["train"] == [header, rows[0], rows[2], rows[3], rows[5]]
