"""Measurements of phones: training times of three models, and files of links, availability and benchmark scores."""

from __future__ import annotations

import gzip
import json
import pathlib
import zipfile
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxafl.readers.directory import Directory, data_directory, find_files, missing_dataset

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
    LINKS: "`time_s`, `mbps` [n] of all traces and their `offsets` into these, from GitHub hongzimao/pensieve",
    AVAILABILITY: (
        "`start`, `end` [n] of the ready intervals in seconds, `offsets` of the devices into them, `trace_start` and "
        "`trace_end` of each device, from the FLASH trace in GitHub Carkham/FLHetBench"
    ),
    SCORES: "a JSON object {phone: AI-Benchmark score}: benchmark2score.json of GitHub PKU-Chengxu/FLASH, gzipped",
}


class Traces(NamedTuple):
    """Functions A_i of time, piecewise linear and non-decreasing, concatenated.

    Attributes:
        time: float64 [knots], seconds; trace i owns `offsets[i]:offsets[i + 1]`, from 0 to its period.
        amount: float64 [knots], A_i at these times; 0 at the first, > 0 at the last.
        offsets: int32 [traces + 1].
    """

    time: np.ndarray
    amount: np.ndarray
    offsets: np.ndarray


def measured_step_times(workload: str) -> np.ndarray:
    """Returns mean and standard deviation of the seconds per local step on three phones, slow to fast, [2, 3]."""
    return np.asarray(MEASURED[workload], np.float64).T / 1000


def benchmark_step_times(workload: str, scores: dict[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the seconds per local step of every scored phone, interpolated between three measured phones.

    Mean and standard deviation are both piecewise linear in log(score), on a log scale, through the measured phones.
    Phones with scores outside the measured range get the values of the nearest measured phone.

    Args:
        workload: one of `MEASURED`.
        scores: AI-Benchmark score of every phone, including the phones of `ANCHORS`.

    Returns:
        Mean and standard deviation, float64 [phones].
    """
    anchors = np.log([scores[name] for name in ANCHORS])
    position = np.log(np.asarray(list(scores.values()), np.float64))
    mean, sigma = (np.exp(np.interp(position, anchors, np.log(t))) for t in measured_step_times(workload))
    return mean, sigma


def read_scores(data_dir: Directory) -> dict[str, float]:
    """Reads the AI-Benchmark scores of phones.

    Raises:
        FileNotFoundError: the file is in none of the directories.
        ValueError: scores are not positive, or the measured phones are missing or not in increasing order.
    """
    path = _find(SCORES, data_dir)
    scores = json.loads(gzip.decompress(path.read_bytes()))
    slow, middle, fast = (scores.get(name, 0) for name in ANCHORS)
    if not (0 < slow < middle < fast and min(scores.values()) > 0):
        raise ValueError(f"{path} must be {_FORMATS[SCORES]}; scores > 0, increasing over {', '.join(ANCHORS)}")
    return scores


def read_links(data_dir: Directory) -> Traces:
    """Reads the megabits transferred along every link trace.

    As in Pensieve's simulator, the rate in a row holds since the previous row, so the rate of the first row is unused.

    Raises:
        FileNotFoundError: the file is in none of the directories.
        ValueError: the file has another format.
    """
    path = _find(LINKS, data_dir)
    times, bits = [], []
    for time, rate in zip(*_load(path, "time_s", "mbps"), strict=True):
        times.append(time - time[0])
        bits.append(np.insert(np.cumsum(rate[1:] * np.diff(time)), 0, 0.0))
    return traces_of(times, bits, f"{path}: ")


def read_availability(data_dir: Directory) -> Traces:
    """Reads the seconds for which every device has been ready. Devices that are never ready are left out.

    Raises:
        FileNotFoundError: the file is in none of the directories.
        ValueError: the file has another format.
    """
    path = _find(AVAILABILITY, data_dir)
    starts, ends, origins, stops = _load(path, "start", "end", "trace_start", "trace_end")
    times, ready = [], []
    for device, (start, end, origin, stop) in enumerate(zip(starts, ends, origins, stops, strict=True)):
        intervals = np.stack([start, end], axis=1) - origin
        bounds = np.concatenate([[0.0], intervals.ravel(), [stop - origin]])
        if (np.diff(bounds) < 0).any():
            raise ValueError(f"{path}: the ready intervals of device {device} are not in order within its trace")
        if (intervals[:, 1] > intervals[:, 0]).any():
            time, place = np.unique(bounds, return_index=True)
            so_far = np.cumsum(np.diff(bounds, prepend=0.0) * (np.arange(len(bounds)) % 2 == 0))
            times.append(time)
            ready.append(so_far[place])
    return traces_of(times, ready, f"{path}: ")


def traces_of(times: Sequence[np.ndarray], amounts: Sequence[np.ndarray], where: str = "") -> Traces:
    """Checks traces and concatenates them.

    Args:
        times: for every trace an array [knots >= 2] in seconds, increasing, the first 0.
        amounts: the accumulated amount at these times, the first 0, never decreasing.
        where: the beginning of error messages.

    Raises:
        ValueError: a trace is invalid. The message names the trace and the reason.
    """
    for index, (time, amount) in enumerate(zip(times, amounts, strict=True)):
        known = np.ndim(time) == 1 and np.shape(time) == np.shape(amount) and np.isfinite([time, amount]).all()
        if not known or len(time) < 2 or time[0] != 0 or (np.diff(time) <= 0).any():
            raise ValueError(f"{where}trace {index}: times must begin at 0 and increase, with an amount for each")
        if amount[0] != 0 or (np.diff(amount) < 0).any() or amount[-1] <= 0:
            raise ValueError(f"{where}trace {index}: amounts must begin at 0, never decrease and end above 0")
    return Traces(
        np.concatenate(times).astype(np.float64),
        np.concatenate(amounts).astype(np.float64),
        np.cumsum([0, *map(len, times)]).astype(np.int32),
    )


def _load(path: pathlib.Path, one: str, other: str, *more: str) -> list[Any]:
    """Reads arrays of an npz file, and splits the first two, in float64, into the traces."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in (one, other, "offsets", *more)}
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} must be an npz file with {_FORMATS[path.name]} ({error})") from error
    cuts = arrays["offsets"][1:-1].astype(np.int64)
    traces = [np.split(arrays[name].astype(np.float64), cuts) for name in (one, other)]
    return [*traces, *(arrays[name] for name in more)]


def _find(name: str, data_dir: Directory) -> pathlib.Path:
    """Returns the path of a file in the data directory's folder of device traces, or in the data directory itself."""
    base = data_directory(data_dir)
    ways = [
        f"It does not ship with jaxafl; put a file of this name there that holds {_FORMATS[name]}.",
        "Give device_trace(data_dir=...) or JAXAFL_DATA_DIR the directory that has it.",
        "Do without: device_trace(bandwidth=False, availability=False, phones='three') reads no file.",
    ]
    places = [base / _FOLDER, base]
    if files := find_files(name, [(place, [name]) for place in places]):
        return files[0]
    raise missing_dataset(f"{_FOLDER}/{name}", places, ways)
