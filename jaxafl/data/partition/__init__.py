"""Ways to split pooled samples over clients, one file each."""

from jaxafl.data.partition.by_user import by_user
from jaxafl.data.partition.classes_per_client import classes_per_client
from jaxafl.data.partition.dirichlet import dirichlet
from jaxafl.data.partition.dirichlet_equal import dirichlet_equal
from jaxafl.data.partition.iid import iid
from jaxafl.data.partition.iid_shared import iid_shared
from jaxafl.data.partition.lognormal_sizes import lognormal_sizes
from jaxafl.data.partition.partitioner import Partitioner
from jaxafl.data.partition.shards import shards
from jaxafl.data.partition.sizes import sizes

__all__ = [
    "Partitioner",
    "by_user",
    "classes_per_client",
    "dirichlet",
    "dirichlet_equal",
    "iid",
    "iid_shared",
    "lognormal_sizes",
    "shards",
    "sizes",
]
