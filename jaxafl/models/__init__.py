"""Models: networks by name, and adapters that make a model of any network."""

from __future__ import annotations

from jaxafl.models.adapters import from_functions, from_linen, from_nnx
from jaxafl.models.bert import bert
from jaxafl.models.char_lstm import char_lstm
from jaxafl.models.checkpoint import initialised, load_parameters, save_parameters
from jaxafl.models.cnn_afl import cnn_afl
from jaxafl.models.cnn_asyncfeded import cnn_asyncfeded
from jaxafl.models.cnn_defedavg import cnn_defedavg
from jaxafl.models.cnn_over import cnn_over
from jaxafl.models.cnn_small import cnn_small
from jaxafl.models.layers import Conv, conv2d, max_pool
from jaxafl.models.logistic import logistic
from jaxafl.models.lora import LoRA
from jaxafl.models.losses import softmax_cross_entropy
from jaxafl.models.mlp import mlp
from jaxafl.models.model import Batch, Model, Outputs
from jaxafl.models.normalisation import BatchNorm
from jaxafl.models.recurrent import LSTM
from jaxafl.models.resnet import resnet18, resnet20

__all__ = [
    "LSTM",
    "Batch",
    "BatchNorm",
    "Conv",
    "LoRA",
    "Model",
    "Outputs",
    "bert",
    "char_lstm",
    "cnn_afl",
    "cnn_asyncfeded",
    "cnn_defedavg",
    "cnn_over",
    "cnn_small",
    "conv2d",
    "from_functions",
    "from_linen",
    "from_nnx",
    "initialised",
    "load_parameters",
    "logistic",
    "max_pool",
    "mlp",
    "resnet18",
    "resnet20",
    "save_parameters",
    "softmax_cross_entropy",
]
