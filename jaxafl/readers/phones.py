"""Measured phones: training times of three of them, and files with links, availability and benchmark scores."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import pathlib
import zipfile
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxafl.readers.directory import data_directory, missing_dataset

# FLASH's published milliseconds per mini-batch (mean, standard deviation) on its slow, middle and fast phone
MEASURED = {
    "femnist_cnn": ((1642.0, 99.5), (588.0, 23.9), (179.0, 2.3)),
    "celeba_cnn": ((5392.0, 982.5), (1355.0, 54.6), (561.0, 20.3)),
    "shakespeare_lstm": ((28621.0, 1720.7), (13579.0, 104.6), (10681.0, 125.6)),
    "reddit_lstm": ((2596.0, 335.5), (916.0, 20.6), (527.7, 49.0)),
}
# the AI-Benchmark entries by which FLASH's released code finds the nearest of the three phones
ANCHORS = ("Google Nexus S", "Xiaomi Redmi Note 7 Pro", "Google Pixel 4")

LINKS = "bandwidth_traces_hsdpa_fcc.npz"
AVAILABILITY = "availability_flash_1000.npz"
SCORES = "flash_benchmark2score.json.gz"
_FOLDER = "device_traces"
_FORMATS = {
    LINKS: (
        "float arrays `time_s` and `mbps` of all traces, one after another, and int `offsets`: trace i owns the rows "
        "offsets[i]:offsets[i + 1]; made from the link traces of GitHub hongzimao/pensieve"
    ),
    AVAILABILITY: (
        "int arrays `start` and `end` of the ready intervals in seconds, `offsets` of the devices into them, "
        "`trace_start` and `trace_end` of each device; made from the FLASH trace in GitHub Carkham/FLHetBench"
    ),
    SCORES: "a JSON object {phone: AI-Benchmark score}: benchmark2score.json of GitHub PKU-Chengxu/FLASH, gzipped",
}


class Traces(NamedTuple):
    """Functions A_i of time, piecewise linear and non-decreasing, one after another.

    Attributes:
        time: float64 [knots], seconds; trace i owns `offsets[i]:offsets[i + 1]`, from 0 to its period.
        amount: float64 [knots], A_i at these times, 0 at the first, above 0 at the last.
        offsets: int32 [traces + 1].
    """

    time: np.ndarray
    amount: np.ndarray
    offsets: np.ndarray


def measured_step_times(workload: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the seconds per local step on the three phones, slow to fast, float64 [3]."""
    table = np.asarray(MEASURED[workload], np.float64) / 1000
    return table[:, 0], table[:, 1]


def benchmark_step_times(workload: str, scores: dict[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """Seconds per local step of every scored phone, interpolated between the three measured ones.

    log t is piecewise linear in log(score) through the three measured phones, mean and standard deviation alike; phones
    that score below the slow or above the fast one are as slow or as fast as that one, since nothing beyond them was
    measured.

    Args:
        workload: one of `MEASURED`.
        scores: AI-Benchmark score of every phone, those of `ANCHORS` among them.

    Returns:
        Mean and standard deviation, float64 [phones].
    """
    anchors = np.log([scores[name] for name in ANCHORS])
    position = np.log(np.asarray(list(scores.values()), np.float64))
    mean, sigma = (np.exp(np.interp(position, anchors, np.log(t))) for t in measured_step_times(workload))
    return mean, sigma


def read_scores(data_dir: str | os.PathLike[str] | None) -> dict[str, float]:
    """AI-Benchmark scores of phones.

    Raises:
        FileNotFoundError: the file is in none of the directories.
        ValueError: it holds no positive scores, or not those of the measured phones in increasing order.
    """
    path = _find(SCORES, data_dir)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        scores = json.load(file)
    known = isinstance(scores, dict) and all(isinstance(s, int | float) and s > 0 for s in scores.values())
    if not known or any(name not in scores for name in ANCHORS):
        raise ValueError(f"{path} must be {_FORMATS[SCORES]}; scores > 0, those of {', '.join(ANCHORS)} among them")
    if not scores[ANCHORS[0]] < scores[ANCHORS[1]] < scores[ANCHORS[2]]:
        raise ValueError(f"{path}: the scores of {', '.join(ANCHORS)} must increase")
    return scores


def read_links(data_dir: str | os.PathLike[str] | None) -> Traces:
    """Megabits transferred along every link trace.

    The rate in a row holds since the row before it (as in Pensieve's simulator), so the first row is but the beginning.

    Raises:
        FileNotFoundError: the file is in none of the directories.
        ValueError: it is no such file.
    """
    path = _find(LINKS, data_dir)
    arrays = _load(path, ("time_s", "mbps", "offsets"))
    rows = _rows(path, arrays, "time_s", "mbps")
    times = [arrays["time_s"][row].astype(np.float64) for row in rows]
    rates = [arrays["mbps"][row].astype(np.float64) for row in rows]
    bits = [
        np.concatenate([[0.0], np.cumsum(rate[1:] * np.diff(time))]) for time, rate in zip(times, rates, strict=True)
    ]
    return _traces_in(path, [time - time[0] for time in times], bits)


def read_availability(data_dir: str | os.PathLike[str] | None) -> Traces:
    """Seconds for which every device has been ready; devices that never are (no interval longer than 0) are left out.

    Raises:
        FileNotFoundError: the file is in none of the directories.
        ValueError: it is no such file.
    """
    path = _find(AVAILABILITY, data_dir)
    arrays = _load(path, ("start", "end", "offsets", "trace_start", "trace_end"))
    times, ready = [], []
    rows = _rows(path, arrays, "start", "end")
    if not len(arrays["trace_start"]) == len(arrays["trace_end"]) == len(rows):
        raise ValueError(f"{path}: `trace_start` and `trace_end` must have one entry for each of {len(rows)} devices")
    for device, row in enumerate(rows):
        origin, length = arrays["trace_start"][device], arrays["trace_end"][device] - arrays["trace_start"][device]
        intervals = np.stack([arrays["start"][row] - origin, arrays["end"][row] - origin], axis=1).astype(np.float64)
        bounds = np.concatenate([[0.0], intervals.ravel(), [length]])
        if (np.diff(bounds) < 0).any():
            raise ValueError(f"{path}: the ready intervals of device {device} are not in order within its trace")
        if (intervals[:, 1] > intervals[:, 0]).any():
            time, place = np.unique(bounds, return_index=True)
            so_far = np.cumsum(np.diff(bounds, prepend=0.0) * (np.arange(len(bounds)) % 2 == 0))
            times.append(time)
            ready.append(so_far[place])
    return _traces_in(path, times, ready)


def traces_of(times: Sequence[np.ndarray], amounts: Sequence[np.ndarray]) -> Traces:
    """Stores traces one after another.

    Args:
        times: for every trace an array [knots >= 2] in seconds, increasing, the first 0.
        amounts: what has accumulated at these times, the first 0, never decreasing.

    Raises:
        ValueError: a trace is none: which one, and why.
    """
    if not times:
        raise ValueError("at least one trace is needed, got none")
    for index, (time, amount) in enumerate(zip(times, amounts, strict=True)):
        _check_trace(index, np.asarray(time), np.asarray(amount))
    lengths = [len(time) for time in times]
    return Traces(
        np.concatenate(times).astype(np.float64),
        np.concatenate(amounts).astype(np.float64),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
    )


def _traces_in(path: pathlib.Path, times: Sequence[np.ndarray], amounts: Sequence[np.ndarray]) -> Traces:
    try:
        return traces_of(times, amounts)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _rows(path: pathlib.Path, arrays: dict[str, np.ndarray], one: str, other: str) -> list[slice]:
    """The rows of every trace in two arrays."""
    offsets, length = arrays["offsets"], len(arrays[one])
    if len(arrays[other]) != length:
        raise ValueError(f"{path}: `{one}` and `{other}` must be of one length, got {length} and {len(arrays[other])}")
    if len(offsets) < 2 or (offsets[0], offsets[-1]) != (0, length) or (np.diff(offsets) < 1).any():
        raise ValueError(f"{path}: `offsets` must increase from 0 to the {length} rows there are")
    return [slice(int(first), int(last)) for first, last in itertools.pairwise(offsets)]


def _load(path: pathlib.Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in names}
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} must be an npz file with {_FORMATS[path.name]} ({error})") from error


def _find(name: str, data_dir: str | os.PathLike[str] | None) -> pathlib.Path:
    """The file in the data directory's folder of device traces, or in the data directory itself."""
    base = data_directory(data_dir)
    looked_in = [base / _FOLDER / name, base / name]
    for path in looked_in:
        if path.is_file():
            return path
    raise missing_dataset(
        f"{_FOLDER}/{name}",
        looked_in,
        [
            f"It does not ship with jaxafl; put a file of this name there that holds {_FORMATS[name]}.",
            "Give device_trace(data_dir=...) or JAXAFL_DATA_DIR the directory that has it.",
            "Do without: device_trace(bandwidth=False, availability=False, phones='three') reads no file.",
        ],
    )


def _check_trace(index: int, time: np.ndarray, amount: np.ndarray) -> None:
    if time.ndim != 1 or time.shape != amount.shape or len(time) < 2:
        raise ValueError(
            f"trace {index}: times and amounts must be one-dimensional, of one length of at least 2, got shapes "
            f"{time.shape} and {amount.shape}"
        )
    if not (np.isfinite(time).all() and np.isfinite(amount).all()):
        raise ValueError(f"trace {index}: times and amounts must be finite numbers")
    if time[0] != 0 or (np.diff(time) <= 0).any():
        place = int(np.argmax(np.diff(time) <= 0)) + 1 if time[0] == 0 else 0
        raise ValueError(f"trace {index}: times must begin at 0 and increase, got {time[place]} at place {place}")
    if amount[0] != 0 or (np.diff(amount) < 0).any() or amount[-1] <= 0:
        raise ValueError(
            f"trace {index}: amounts must begin at 0, never decrease and end above 0 (a trace on which nothing "
            f"accumulates is never done), got {amount[0]} to {amount[-1]}"
        )
