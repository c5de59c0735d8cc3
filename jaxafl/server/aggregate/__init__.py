"""Aggregates: rules in the place of the weighted mean of a server, robust ones and one with noise for privacy."""

from jaxafl.server.aggregate.contract import Aggregate, Center
from jaxafl.server.aggregate.private import private_mean
from jaxafl.server.aggregate.robust import (
    centered_clip,
    geometric_median,
    krum,
    median,
    multi_krum,
    trimmed_mean,
)

__all__ = [
    "Aggregate",
    "Center",
    "centered_clip",
    "geometric_median",
    "krum",
    "median",
    "multi_krum",
    "private_mean",
    "trimmed_mean",
]
