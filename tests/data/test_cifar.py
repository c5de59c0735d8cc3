"""CIFAR-10 and CIFAR-100 from the canonical binary files and archives."""

from __future__ import annotations

import hashlib
import io
import pathlib
import shutil
import subprocess
import sys
import tarfile

import numpy as np
import pytest

import jaxafl.data as data
from jaxafl.readers.archive import SHA256

CHECKOUT = pathlib.Path(data.__file__).resolve().parents[2]
CIFAR10 = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
MEAN, STD = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2023, 0.1994, 0.2010])


def records(images: int, classes: tuple[int, ...]) -> np.ndarray:
    """Records of label bytes, then planes R, G, B; every byte differs from its neighbours."""
    number = np.arange(images)
    plane, row, column = np.unravel_index(np.arange(3072), (3, 32, 32))
    pattern = (91 * plane + 7 * row + column).astype(np.uint8)
    labels = [(number % kinds).astype(np.uint8)[:, None] for kinds in classes]
    return np.concatenate([*labels, number.astype(np.uint8)[:, None] + pattern], axis=1)


def check_pixels(x: np.ndarray) -> None:
    for image, row, column, channel in [(0, 0, 0, 0), (3, 31, 2, 1), (9_999, 5, 30, 2)]:
        assert x[image, row, column, channel] == (image + 91 * channel + 7 * row + column) % 256


def archive(path: pathlib.Path, members: dict[str, bytes]) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz", compresslevel=1) as file:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture(scope="module")
def cifar100_files(tmp_path_factory):
    """A data directory with files of CIFAR-100's shape."""
    root = tmp_path_factory.mktemp("cifar100")
    folder = root / "cifar100" / "cifar-100-binary"
    folder.mkdir(parents=True)
    for name, images in [("train.bin", 50_000), ("test.bin", 10_000)]:
        (folder / name).write_bytes(records(images, (20, 100)).tobytes())
    yield root
    shutil.rmtree(root)


def test_cifar100_takes_the_fine_label_and_orders_pixels_by_row_column_channel(cifar100_files):
    dataset = data.cifar100(cifar100_files)
    assert dataset.x.shape == (50_000, 32, 32, 3) and dataset.x_test.shape == (10_000, 32, 32, 3)
    assert dataset.x.dtype == np.uint8 and dataset.num_classes == 100
    np.testing.assert_array_equal(dataset.y, np.arange(50_000) % 100)
    np.testing.assert_array_equal(dataset.y_test, np.arange(10_000) % 100)
    check_pixels(dataset.x)
    check_pixels(dataset.x_test)
    assert dataset.source["source"] == "binary" and "crop" not in dataset.preprocessing.description


@pytest.mark.slow
def test_the_folder_may_lie_directly_in_the_data_directory(cifar100_files):
    assert data.cifar100(cifar100_files / "cifar100").num_classes == 100


@pytest.mark.slow
def test_normalisation_is_per_channel_and_augmentation_leaves_the_test_set_alone(cifar100_files):
    plain, augmented = data.cifar100(cifar100_files), data.cifar100(cifar100_files, augment=True)
    assert plain.preprocessing.augment is None and augmented.preprocessing.augment is not None
    assert "padded by 4 zeros and horizontal flip" in augmented.preprocessing.description
    assert augmented.preprocessing.description.startswith(plain.preprocessing.description)
    for dataset in (plain, augmented):
        found = np.asarray(dataset.preprocessing.transform(dataset.x_test[:50]))
        np.testing.assert_allclose(found, (dataset.x_test[:50] / 255 - MEAN) / STD, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("column", "label", "message"),
    [(0, 20, r"expected labels 0\.\.19 in byte 0 .* found 20"), (1, 100, r"labels 0\.\.99 in byte 1 .* found 100")],
)
def test_labels_out_of_range_name_the_file(tmp_path, column, label, message):
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    content = records(50_000, (20, 100))
    content[123, column] = label
    (folder / "train.bin").write_bytes(content.tobytes())
    (folder / "test.bin").write_bytes(b"")
    with pytest.raises(ValueError, match=message) as raised:
        data.cifar100(tmp_path)
    assert str(folder / "train.bin") in str(raised.value)
    shutil.rmtree(folder)


def test_files_cut_short_name_what_was_expected(tmp_path):
    folder = tmp_path / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name in CIFAR10:
        (folder / name).write_bytes(bytes(30_729_999))
    with pytest.raises(ValueError, match=r"data_batch_1\.bin is damaged: expected 30730000 bytes \(10000 records"):
        data.cifar10(tmp_path)
    shutil.rmtree(folder)


def test_other_content_than_the_canonical_one_is_refused(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name in CIFAR10:
        (folder / name).write_bytes(records(10_000, (10,)).tobytes())
    with pytest.raises(ValueError, match=r"data_batch_1\.bin is damaged: expected SHA-256 cee91656.*; found "):
        data.cifar10(tmp_path)
    shutil.rmtree(folder)


def test_a_folder_in_parts_says_what_is_missing(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name in CIFAR10[2:]:
        (folder / name).write_bytes(b"")
    with pytest.raises(
        FileNotFoundError, match=r"only part of cifar10: data_batch_1\.bin, data_batch_2\.bin is"
    ) as raised:
        data.cifar10(tmp_path)
    assert "Add what is missing, or remove the rest" in str(raised.value)


@pytest.mark.slow
def test_a_complete_archive_is_read_where_the_folder_beside_it_is_in_parts(cifar100_files, tmp_path, monkeypatch):
    files = cifar100_files / "cifar100" / "cifar-100-binary"
    members = {f"cifar-100-binary/{name}": (files / name).read_bytes() for name in ("train.bin", "test.bin")}
    path = archive(tmp_path / "cifar-100-binary.tar.gz", members)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    monkeypatch.setitem(SHA256, "cifar100/cifar-100-binary.tar.gz", digest)
    (tmp_path / "cifar-100-binary").mkdir()
    (tmp_path / "cifar-100-binary" / "test.bin").write_bytes(b"half a download")
    np.testing.assert_array_equal(data.cifar100(tmp_path).y, np.arange(50_000) % 100)
    path.unlink()


@pytest.mark.parametrize(
    ("load", "file", "folder"),
    [
        (data.cifar10, "cifar-10-binary.tar.gz", "cifar-10-batches-bin"),
        (data.cifar100, "cifar-100-binary.tar.gz", "cifar-100-binary"),
    ],
)
def test_a_missing_dataset_is_one_clear_error(load, file, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("JAXAFL_DATA_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError) as raised:
        load()
    message = str(raised.value)
    assert repr(load.__name__) in message
    assert f"{tmp_path / 'nowhere' / load.__name__} (does not exist)" in message
    assert file in message and folder in message and f"prepare_tfds('{load.__name__}'" in message


def test_a_truncated_archive_is_refused(tmp_path):
    content = records(1_000, (10,)).tobytes()
    path = archive(tmp_path / "cifar-10-binary.tar.gz", {f"cifar-10-batches-bin/{name}": content for name in CIFAR10})
    path.write_bytes(path.read_bytes()[:-5_000])
    with pytest.raises(ValueError, match=r"cifar-10-binary\.tar\.gz is damaged: expected a complete gzip file"):
        data.cifar10(tmp_path)


def test_another_archive_than_the_canonical_one_is_refused(tmp_path):
    archive(tmp_path / "cifar-100-binary.tar.gz", {"cifar-100-binary/train.bin": b"x"})
    with pytest.raises(ValueError, match=r"cifar-100-binary\.tar\.gz is damaged: expected SHA-256 58a81ae1.* bytes\)"):
        data.cifar100(tmp_path)


def test_augment_must_be_a_flag(tmp_path):
    with pytest.raises(TypeError, match="cifar10: augment must be True or False, got 'crop'"):
        data.cifar10(tmp_path, augment="crop")


@pytest.fixture(scope="session")
def cifar10_dir(data_dir, tmp_path_factory) -> pathlib.Path:
    """A data directory with the canonical binary files of CIFAR-10."""
    if (data_dir / "cifar10" / "cifar-10-batches-bin").is_dir() or (data_dir / "cifar-10-batches-bin").is_dir():
        return data_dir
    tool = CHECKOUT.parent / "shared" / "tools" / "decode_cifar10.py"
    if not tool.is_file():
        pytest.skip(f"no CIFAR-10: {data_dir} holds no cifar-10-batches-bin")
    root = tmp_path_factory.mktemp("cifar10")
    subprocess.run([sys.executable, tool, root], check=True, capture_output=True)
    return root


@pytest.mark.data
@pytest.mark.slow
def test_the_real_cifar10(cifar10_dir):
    dataset = data.cifar10(cifar10_dir)
    assert dataset.x.shape == (50_000, 32, 32, 3) and dataset.x_test.shape == (10_000, 32, 32, 3)
    assert np.bincount(dataset.y).tolist() == [5_000] * 10 and np.bincount(dataset.y_test).tolist() == [1_000] * 10
    # The first images: a frog, a truck, a truck; of the test set: a cat, a ship, a ship.
    assert dataset.y[:3].tolist() == [6, 9, 9] and dataset.y_test[:3].tolist() == [3, 8, 8]
    mean, std = (getattr(np, name)(dataset.x, axis=(0, 1, 2), dtype=np.float64) / 255 for name in ("mean", "std"))
    np.testing.assert_allclose(mean, [0.49139968, 0.48215841, 0.44653091], atol=1e-8)
    np.testing.assert_allclose(std, [0.24703223, 0.24348513, 0.26158784], atol=1e-8)
    assert dataset.partition(data.dirichlet(0.5, clients=20)).counts.sum() == 50_000


@pytest.mark.data
@pytest.mark.slow
def test_the_archive_is_read_as_the_files_are(cifar10_dir, tmp_path):
    files = next(cifar10_dir.glob("**/cifar-10-batches-bin"))
    members = {f"cifar-10-batches-bin/{name}": (files / name).read_bytes() for name in reversed(CIFAR10)}
    path = archive(tmp_path / "cifar-10-binary.tar.gz", members)
    found, expected = data.cifar10(tmp_path), data.cifar10(cifar10_dir)
    np.testing.assert_array_equal(found.x, expected.x)
    np.testing.assert_array_equal(found.y_test, expected.y_test)
    assert list(tmp_path.iterdir()) == [path]
    path.unlink()
