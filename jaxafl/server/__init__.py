"""Servers: what is done with the updates that arrive; see `contract`."""

from jaxafl.server.asyncfeded import AsyncFedED, asyncfeded
from jaxafl.server.contract import Arrivals, Server, Update, mean_delta, norm, weighted_sum
from jaxafl.server.fadas import FADAS, fadas
from jaxafl.server.fedasync import FedAsync, fedasync
from jaxafl.server.fedavg import FedAvg, fedavg
from jaxafl.server.fedbuff import FedBuff, fedbuff

__all__ = [
    "FADAS",
    "Arrivals",
    "AsyncFedED",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "Server",
    "Update",
    "asyncfeded",
    "fadas",
    "fedasync",
    "fedavg",
    "fedbuff",
    "mean_delta",
    "norm",
    "weighted_sum",
]
