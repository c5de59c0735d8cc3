"""Transformations of an update between a client and the server: clipping, noise, compression."""

from jaxafl.client.upload.compression import qsgd, random_k, sign, top_k
from jaxafl.client.upload.contract import Sent, Size, Upload, VectorUpload, as_upload, chain, received_size
from jaxafl.client.upload.feedback import error_feedback
from jaxafl.client.upload.low_rank import low_rank
from jaxafl.client.upload.noise import add_noise, clip_by_global_norm

__all__ = [
    "Sent",
    "Size",
    "Upload",
    "VectorUpload",
    "add_noise",
    "as_upload",
    "chain",
    "clip_by_global_norm",
    "error_feedback",
    "low_rank",
    "qsgd",
    "random_k",
    "received_size",
    "sign",
    "top_k",
]
