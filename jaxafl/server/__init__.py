"""Servers: what is done with the updates that arrive; see `contract`."""

from jaxafl.server.afl import AFL, afl, afl_rate
from jaxafl.server.asyncfeded import AsyncFedED, asyncfeded
from jaxafl.server.asysg import AsySG, asysg
from jaxafl.server.audg import AUDG, audg
from jaxafl.server.ca2fl import CA2FL, ca2fl
from jaxafl.server.contract import Arrivals, Needs, Server, Update, mean_delta, norm, weighted_sum
from jaxafl.server.defedavg_iid import DeFedAvgIID, defedavg_iid
from jaxafl.server.defedavg_niid import DeFedAvgNonIID, defedavg_niid
from jaxafl.server.fadas import FADAS, fadas
from jaxafl.server.favano import FAVANO, favano
from jaxafl.server.fedadagrad import fedadagrad
from jaxafl.server.fedadam import fedadam
from jaxafl.server.fedams import FedAMS, fedams
from jaxafl.server.fedasync import FedAsync, fedasync
from jaxafl.server.fedavg import FedAvg, fedavg
from jaxafl.server.fedbuff import FedBuff, fedbuff
from jaxafl.server.fedyogi import fedyogi
from jaxafl.server.psurdg import PSURDG, psurdg
from jaxafl.server.quafl import QuAFL, quafl
from jaxafl.server.safa import SAFA, safa

__all__ = [
    "AFL",
    "AUDG",
    "CA2FL",
    "FADAS",
    "FAVANO",
    "PSURDG",
    "SAFA",
    "Arrivals",
    "AsySG",
    "AsyncFedED",
    "DeFedAvgIID",
    "DeFedAvgNonIID",
    "FedAMS",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "Needs",
    "QuAFL",
    "Server",
    "Update",
    "afl",
    "afl_rate",
    "asyncfeded",
    "asysg",
    "audg",
    "ca2fl",
    "defedavg_iid",
    "defedavg_niid",
    "fadas",
    "favano",
    "fedadagrad",
    "fedadam",
    "fedams",
    "fedasync",
    "fedavg",
    "fedbuff",
    "fedyogi",
    "mean_delta",
    "norm",
    "psurdg",
    "quafl",
    "safa",
    "weighted_sum",
]
