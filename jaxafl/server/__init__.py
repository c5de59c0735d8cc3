"""Servers, which aggregate arriving updates. `jaxafl.server.contract` explains how to write one."""

from jaxafl.clock.contract import Delivery
from jaxafl.device import Rows, weighted_sum
from jaxafl.server.adaptive import fedadagrad, fedadam, fedyogi
from jaxafl.server.afl import afl, afl_rate
from jaxafl.server.area import area
from jaxafl.server.asyncfeded import asyncfeded
from jaxafl.server.averaging import asysg, defedavg_iid, defedavg_niid, fedavg, fedbuff
from jaxafl.server.basgd import basgd
from jaxafl.server.ca2fl import ca2fl
from jaxafl.server.contract import Arrivals, Needs, Outcome, Server, mean_delta, norm
from jaxafl.server.delay_adaptive import delay_adaptive
from jaxafl.server.delayed_gradients import audg, psurdg
from jaxafl.server.fadas import fadas, fedams
from jaxafl.server.favano import favano
from jaxafl.server.fedasync import fedasync
from jaxafl.server.fedcompass import fedcompass
from jaxafl.server.fedfa import fedfa
from jaxafl.server.fednova import fednova
from jaxafl.server.fedopt import OptaxServer, fedopt
from jaxafl.server.fedstale import fedstale
from jaxafl.server.incremental import ace, aced, ia2sgd, mifa
from jaxafl.server.kardam import kardam
from jaxafl.server.malenia import malenia
from jaxafl.server.mu2 import mu2
from jaxafl.server.picky_sgd import picky_sgd
from jaxafl.server.port import port
from jaxafl.server.quafl import quafl
from jaxafl.server.ringleader import ringleader
from jaxafl.server.routed_sgd import routed_sgd
from jaxafl.server.safa import safa
from jaxafl.server.throttle import throttle
from jaxafl.server.zeno import zeno

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
    "fadas",
    "favano",
    "fedadagrad",
    "fedadam",
    "fedams",
    "fedasync",
    "fedavg",
    "fedbuff",
    "fedcompass",
    "fedfa",
    "fednova",
    "fedopt",
    "fedstale",
    "fedyogi",
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
