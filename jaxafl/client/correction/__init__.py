"""Corrections of local gradients by what clients and server remember: SCAFFOLD, FedDyn, momentum of clients."""

from jaxafl.client.correction.contract import Correction, LocalRun
from jaxafl.client.correction.feddyn import feddyn
from jaxafl.client.correction.momentum import local_momentum, storm
from jaxafl.client.correction.scaffold import scaffold

__all__ = ["Correction", "LocalRun", "feddyn", "local_momentum", "scaffold", "storm"]
