"""Servers, which aggregate arriving updates. `jaxafl.server.contract` explains how to write one."""

from jaxafl.clock.contract import Delivery
from jaxafl.device import Rows, weighted_sum
from jaxafl.server.algorithms.adaptive import fadas, fedadagrad, fedadam, fedams, fedyogi
from jaxafl.server.algorithms.asyncfeded import asyncfeded
from jaxafl.server.algorithms.averaging import asysg, defedavg_iid, defedavg_niid, fedavg, fedbuff, flexlora
from jaxafl.server.algorithms.basgd import basgd
from jaxafl.server.algorithms.delayed_gradients import audg, psurdg
from jaxafl.server.algorithms.delayed_nesterov import delayed_nesterov
from jaxafl.server.algorithms.fedasync import fedasync
from jaxafl.server.algorithms.fedstale import fedstale
from jaxafl.server.algorithms.halos import halos
from jaxafl.server.algorithms.hierarchical import fedat, hierfavg
from jaxafl.server.algorithms.incremental import ace, aced, area, ca2fl, ia2sgd, mifa
from jaxafl.server.algorithms.model_means import afl, afl_rate, favano, fedfa, quafl, safa
from jaxafl.server.algorithms.mu2 import mu2
from jaxafl.server.algorithms.port import port
from jaxafl.server.algorithms.rejecting import kardam, picky_sgd, zeno
from jaxafl.server.algorithms.ringleader import ringleader
from jaxafl.server.algorithms.throttle import throttle
from jaxafl.server.algorithms.weighing import delay_adaptive, fedcompass, fednova, malenia, routed_sgd
from jaxafl.server.contract import Arrivals, Needs, Outcome, Server, mean_delta, norm
from jaxafl.server.fedopt import OptaxServer, fedopt

__all__ = [
    "Arrivals",
    "Delivery",
    "Needs",
    "OptaxServer",
    "Outcome",
    "Rows",
    "Server",
    "ace",
    "aced",
    "afl",
    "afl_rate",
    "area",
    "asyncfeded",
    "asysg",
    "audg",
    "basgd",
    "ca2fl",
    "defedavg_iid",
    "defedavg_niid",
    "delay_adaptive",
    "delayed_nesterov",
    "fadas",
    "favano",
    "fedadagrad",
    "fedadam",
    "fedams",
    "fedasync",
    "fedat",
    "fedavg",
    "fedbuff",
    "fedcompass",
    "fedfa",
    "fednova",
    "fedopt",
    "fedstale",
    "fedyogi",
    "flexlora",
    "halos",
    "hierfavg",
    "ia2sgd",
    "kardam",
    "malenia",
    "mean_delta",
    "mifa",
    "mu2",
    "norm",
    "picky_sgd",
    "port",
    "psurdg",
    "quafl",
    "ringleader",
    "routed_sgd",
    "safa",
    "throttle",
    "weighted_sum",
    "zeno",
]
