"""BERT for classification: a frozen pretrained encoder with LoRA and a trained head."""

from jaxafl.models.bert.encoder import LoRA
from jaxafl.models.bert.model import bert

__all__ = ["LoRA", "bert"]
