"""Partitions of pooled samples over clients."""

from jaxafl.data.partition.alike import by_user, iid, iid_shared, lognormal_sizes
from jaxafl.data.partition.base import Partition
from jaxafl.data.partition.sizes import sizes
from jaxafl.data.partition.skewed import classes_per_client, dirichlet, dirichlet_equal, shards

__all__ = [
    "Partition",
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
