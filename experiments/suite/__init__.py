"""What the files of tables and figures share: how their runs are made, kept, measured, compared and shown."""

from experiments.suite.command import main
from experiments.suite.experiment import Cell, Claim, Experiment, Measure, Values
from experiments.suite.measures import best, last, more_than, schedules, sooner, time_to
from experiments.suite.stand_in import first, stand_in

__all__ = [
    "Cell",
    "Claim",
    "Experiment",
    "Measure",
    "Values",
    "best",
    "first",
    "last",
    "main",
    "more_than",
    "schedules",
    "sooner",
    "stand_in",
    "time_to",
]
