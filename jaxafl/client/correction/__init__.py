"""Corrections of local gradients by what clients and server remember: SCAFFOLD, FedDyn."""

from jaxafl.client.correction.contract import Correction, LocalRun
from jaxafl.client.correction.feddyn import feddyn
from jaxafl.client.correction.scaffold import scaffold

__all__ = ["Correction", "LocalRun", "feddyn", "scaffold"]
