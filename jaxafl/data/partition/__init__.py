"""Ways to split pooled samples over clients, one file each."""

from jaxafl.data.partition.by_user import by_user
from jaxafl.data.partition.classes_per_client import classes_per_client
from jaxafl.data.partition.dirichlet import dirichlet
from jaxafl.data.partition.iid import iid
from jaxafl.data.partition.partitioner import Partitioner

__all__ = ["Partitioner", "by_user", "classes_per_client", "dirichlet", "iid"]
