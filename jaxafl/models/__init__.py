"""Models: networks by name, and adapters for other networks."""

from __future__ import annotations

from jaxafl.models.adapters.checkpoint import initialised, load_parameters, save_parameters
from jaxafl.models.adapters.lora import LoRA, lora
from jaxafl.models.adapters.nnx import from_nnx
from jaxafl.models.adapters.torch import from_torch
from jaxafl.models.functions import from_functions
from jaxafl.models.linen import from_linen
from jaxafl.models.losses import sigmoid_cross_entropy, softmax_cross_entropy
from jaxafl.models.metrics import Metric, confusion_matrix
from jaxafl.models.model import Batch, Model, Outputs, Precision
from jaxafl.models.networks.bert import bert
from jaxafl.models.networks.cnn import cnn_afl, cnn_asyncfeded, cnn_defedavg, cnn_over, cnn_small
from jaxafl.models.networks.convolution import Conv, conv2d, max_pool
from jaxafl.models.networks.decoder import decoder
from jaxafl.models.networks.dense import Dense, logistic, mlp
from jaxafl.models.networks.normalisation import BatchNorm
from jaxafl.models.networks.recurrent import LSTM, char_lstm
from jaxafl.models.networks.resnet import resnet18, resnet20

__all__ = [
    "LSTM",
    "Batch",
    "BatchNorm",
    "Conv",
    "Dense",
    "LoRA",
    "Metric",
    "Model",
    "Outputs",
    "Precision",
    "bert",
    "char_lstm",
    "cnn_afl",
    "cnn_asyncfeded",
    "cnn_defedavg",
    "cnn_over",
    "cnn_small",
    "confusion_matrix",
    "conv2d",
    "decoder",
    "from_functions",
    "from_linen",
    "from_nnx",
    "from_torch",
    "initialised",
    "load_parameters",
    "logistic",
    "lora",
    "max_pool",
    "mlp",
    "resnet18",
    "resnet20",
    "save_parameters",
    "sigmoid_cross_entropy",
    "softmax_cross_entropy",
]
