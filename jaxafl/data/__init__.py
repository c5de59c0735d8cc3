"""Datasets: sources, partitions over clients, and the federated dataset that a simulation takes."""

from jaxafl.data.arrays import from_arrays
from jaxafl.data.dataset import Dataset
from jaxafl.data.federated import FederatedData
from jaxafl.data.femnist import femnist
from jaxafl.data.mnist import fashion_mnist, mnist
from jaxafl.data.partition import Partitioner, by_user, classes_per_client, dirichlet, iid
from jaxafl.data.preprocessing import Preprocessing, as_is, cast, normalise
from jaxafl.data.statistics import PartitionStatistics, heat_map
from jaxafl.data.synthetic import synthetic
from jaxafl.data.tfds_source import prepare_tfds

__all__ = [
    "Dataset",
    "FederatedData",
    "PartitionStatistics",
    "Partitioner",
    "Preprocessing",
    "as_is",
    "by_user",
    "cast",
    "classes_per_client",
    "dirichlet",
    "fashion_mnist",
    "femnist",
    "from_arrays",
    "heat_map",
    "iid",
    "mnist",
    "normalise",
    "prepare_tfds",
    "synthetic",
]
