"""Datasets: sources, partitions over clients, and the federated dataset of a simulation."""

from jaxafl.data.dataset import Dataset
from jaxafl.data.federated import FederatedData
from jaxafl.data.partition.alike import by_user, iid, iid_shared, lognormal_sizes
from jaxafl.data.partition.base import Partition
from jaxafl.data.partition.heat_map import heat_map
from jaxafl.data.partition.sizes import sizes
from jaxafl.data.partition.skewed import classes_per_client, dirichlet, dirichlet_equal, shards
from jaxafl.data.partition.statistics import PartitionStatistics
from jaxafl.data.preprocessing import Preprocessing, as_is, cast, crop_and_flip, normalise
from jaxafl.data.sources.arrays import from_arrays, from_clients
from jaxafl.data.sources.femnist import femnist
from jaxafl.data.sources.glue import glue_mrpc, glue_rte, glue_sst2
from jaxafl.data.sources.huggingface import from_huggingface
from jaxafl.data.sources.images import cifar10, cifar100, fashion_mnist, mnist
from jaxafl.data.sources.leaf import from_leaf
from jaxafl.data.sources.shakespeare import shakespeare, shakespeare_plays
from jaxafl.data.sources.synthetic import synthetic
from jaxafl.data.sources.texts import from_texts
from jaxafl.readers.download import download
from jaxafl.readers.tfds_source import prepare_tfds

__all__ = [
    "Dataset",
    "FederatedData",
    "Partition",
    "PartitionStatistics",
    "Preprocessing",
    "as_is",
    "by_user",
    "cast",
    "cifar10",
    "cifar100",
    "classes_per_client",
    "crop_and_flip",
    "dirichlet",
    "dirichlet_equal",
    "download",
    "fashion_mnist",
    "femnist",
    "from_arrays",
    "from_clients",
    "from_huggingface",
    "from_leaf",
    "from_texts",
    "glue_mrpc",
    "glue_rte",
    "glue_sst2",
    "heat_map",
    "iid",
    "iid_shared",
    "lognormal_sizes",
    "mnist",
    "normalise",
    "prepare_tfds",
    "shakespeare",
    "shakespeare_plays",
    "shards",
    "sizes",
    "synthetic",
]
