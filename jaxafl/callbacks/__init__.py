"""Callbacks, which log runs, stop them, or keep their best model."""

from jaxafl.callbacks.base import Callback, Chunk, Run
from jaxafl.callbacks.best import Best
from jaxafl.callbacks.csv_file import Csv
from jaxafl.callbacks.interrupts import Interrupted
from jaxafl.callbacks.live import Live
from jaxafl.callbacks.mlflow import MLflow
from jaxafl.callbacks.stopping import StopAfter, StopAt
from jaxafl.callbacks.tensorboard import TensorBoard
from jaxafl.callbacks.wandb import WandB

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
