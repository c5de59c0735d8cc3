"""Callbacks, which log runs, stop them, or keep their best model."""

from jaxafl.callbacks.base import Callback, Chunk, Run
from jaxafl.callbacks.hooks import Interrupted
from jaxafl.callbacks.limits import StopAfter, StopAt
from jaxafl.callbacks.trackers.best import Best
from jaxafl.callbacks.trackers.csv_file import Csv
from jaxafl.callbacks.trackers.live import Live
from jaxafl.callbacks.trackers.services import MLflow, TensorBoard, WandB

__all__ = [
    "Best",
    "Callback",
    "Chunk",
    "Csv",
    "Interrupted",
    "Live",
    "MLflow",
    "Run",
    "StopAfter",
    "StopAt",
    "TensorBoard",
    "WandB",
]
