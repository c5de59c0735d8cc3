"""TensorFlow Datasets: preparing needs TensorFlow, importing and reading do not."""

from __future__ import annotations

import importlib.util
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import jaxafl.data as data

CHECKOUT = pathlib.Path(data.__file__).resolve().parents[2]

READ_WITHOUT_TENSORFLOW = """
import importlib.machinery
import sys

find = importlib.machinery.PathFinder.find_spec
hidden = lambda name, *rest: None if name.split(".")[0] == "tensorflow" else find(name, *rest)
importlib.machinery.PathFinder.find_spec = staticmethod(hidden)

import numpy as np
import jaxafl.data as data

dataset = getattr(data, sys.argv[3])(sys.argv[1])
np.savez(sys.argv[2], x=dataset.x, y=dataset.y, x_test=dataset.x_test, y_test=dataset.y_test)
assert "tensorflow" not in sys.modules
print(dataset.source["source"])
"""

# Images and labels of a file, stored as TFDS's own builder of CIFAR stores them: shuffled, with the number as `id`.
WRITE_AS_CIFAR = """
import sys

import numpy as np
import tensorflow_datasets as tfds

name, root = sys.argv[1:3]
arrays = np.load(sys.argv[3])
labels = {key: tfds.features.ClassLabel(num_classes=100) for key in arrays["labels"].tolist()}
features = {"id": tfds.features.Text(), "image": tfds.features.Image(shape=(32, 32, 3)), **labels}

def examples(split):
    for number, image in enumerate(arrays[f"x_{split}"]):
        own = {key: int(arrays[f"{key}_{split}"][number]) for key in labels}
        yield number, {"id": f"{split}_{number:05d}", "image": image, **own}

splits = {split: examples(split) for split in ("train", "test")}
tfds.dataset_builders.store_as_tfds_dataset(
    name, "3.0.2", tfds.features.FeaturesDict(features), splits, data_dir=root, file_format="array_record"
)
"""


def run(code: str, *arguments: object) -> str:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    finished = subprocess.run(command, capture_output=True, text=True, cwd=CHECKOUT, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is not None, reason="TensorFlow is installed")
def test_preparing_without_tensorflow_names_the_extra(tmp_path):
    with pytest.raises(ImportError, match=r'pip install "jaxafl\[tfds\]"'):
        data.prepare_tfds("fashion_mnist", tmp_path)


@pytest.mark.tfds
@pytest.mark.parametrize(("name", "labels"), [("cifar10", ["label"]), ("cifar100", ["coarse_label", "label"])])
def test_cifar_as_tfds_prepares_it_comes_back_in_the_canonical_order(tmp_path, name, labels):
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed (the tfds extra)")
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {"labels": np.array(labels)}
    for split, images in (("train", 300), ("test", 60)):
        arrays[f"x_{split}"] = rng.integers(0, 256, (images, 32, 32, 3), np.uint8)
        arrays |= {f"{key}_{split}": rng.integers(0, 10, images) for key in labels}
    np.savez(tmp_path / "samples.npz", **arrays)
    run(WRITE_AS_CIFAR, name, tmp_path, tmp_path / "samples.npz")
    assert list((tmp_path / name / "3.0.2").glob("*.array_record*"))

    assert run(READ_WITHOUT_TENSORFLOW, tmp_path, tmp_path / "read.npz", name).strip() == "tfds 3.0.2"
    with np.load(tmp_path / "read.npz") as read:
        np.testing.assert_array_equal(read["x"], arrays["x_train"])
        np.testing.assert_array_equal(read["y"], arrays["label_train"])
        np.testing.assert_array_equal(read["x_test"], arrays["x_test"])
        np.testing.assert_array_equal(read["y_test"], arrays["label_test"])
