"""TensorFlow Datasets: preparing a dataset (needs TensorFlow) and reading a prepared one (does not).

The functions import TFDS when they are called: the import takes seconds, and most users never need it.
"""

from __future__ import annotations

import json
import pathlib

import numpy as np

from jaxafl.options import as_path, required
from jaxafl.readers.directory import Directory, data_directory


def prepare_tfds(
    name: str,
    data_dir: Directory = None,
    manual_dir: Directory = None,
) -> pathlib.Path:
    """Prepares a dataset with TensorFlow Datasets as array_record files, which can then be read without TensorFlow.

    Args:
        name: name of the TFDS dataset, for example `"fashion_mnist"`.
        data_dir: data directory to write to; by default `$JAXAFL_DATA_DIR`, else TFDS's default.
        manual_dir: folder with the dataset's original files under their original names, for a machine without network.
            TFDS checks their checksums and downloads only missing files.

    Returns:
        The prepared directory `<data_dir>/<name>/<version>`.

    Raises:
        ImportError: TensorFlow is not installed.
    """
    required("tensorflow", "tfds", f"preparing {name!r}, unlike reading,")
    import tensorflow_datasets as tfds

    builder = tfds.builder(name, data_dir=data_directory(data_dir), file_format="array_record")
    manual = manual_dir and str(as_path(manual_dir))
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(manual_dir=manual))
    return pathlib.Path(builder.data_dir)


def how_to_prepare(name: str) -> str:
    """Returns the way to get a dataset with TensorFlow Datasets, one sentence, for `missing_dataset`."""
    return (
        'Prepare it with TensorFlow Datasets: pip install "jaxafl[tfds]", then '
        f"jaxafl.data.prepare_tfds({name!r}, data_dir=...); the reading needs no TensorFlow."
    )


def prepared_directory(name: str, directory: pathlib.Path) -> pathlib.Path | None:
    """Returns the newest version of a dataset that TFDS has prepared as array_record in a data directory.

    Args:
        name: name of the TFDS dataset.
        directory: the data directory.

    Returns:
        `<directory>/<name>/<version>`, or `None` if there is no version as array_record. TFDS reads other formats only
        with TensorFlow.
    """
    readable = [
        path.parent
        for path in (directory / name).glob("*/dataset_info.json")
        if json.loads(path.read_text()).get("fileFormat") == "array_record"
    ]
    return max(readable, key=lambda path: tuple(map(int, path.name.split("."))), default=None)


def read_prepared(prepared: pathlib.Path, split: str, *features: str) -> tuple[np.ndarray, ...]:
    """Reads some features of a split that TFDS has prepared as array_record, without TensorFlow.

    Args:
        prepared: directory of one prepared version, see `prepared_directory`.
        split: `"train"`, `"test"`, ...
        features: names of features with a fixed shape, or of text; images need an image decoder (Pillow).

    Returns:
        One array `[n, ...]` per feature, in TFDS's stored order; an array of `bytes` objects for text.

    Raises:
        ImportError: the array_record reader is not installed.
    """
    required("array_record", "tfds", f"reading {prepared}")
    import tensorflow_datasets as tfds

    examples = list(tfds.builder_from_directory(prepared).as_data_source(split))
    columns = ([example[feature] for example in examples] for feature in features)
    # without dtype object, NumPy would cut text to a fixed length and strip zero bytes
    return tuple(np.array(column, object if isinstance(column[0], str | bytes) else None) for column in columns)
