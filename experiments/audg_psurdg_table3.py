"""AUDG against PSURDG on IID MNIST while one of four clients becomes slower (Table III of the paper on delays).

"The impact analysis of delays in asynchronous federated learning with data heterogeneity for edge intelligence",
Table III, row "CNN IID": every client holds the whole pool, one full-batch gradient per local run, 50 ticks; the
uploads of clients 2, 3 and 4 succeed with probability 0.5, those of client 1 with 1/(1 + d), d its mean delay.

    python experiments/audg_psurdg_table3.py --pool 2500 --test 2000 --delays 9   # what was measured
    python experiments/audg_psurdg_table3.py                                      # the full row

Measured (pool of 2,500, mean delay 9, 10 seeds, first 2,000 test samples unless said otherwise), mean final accuracy
and the difference PSURDG - AUDG with its standard error, in points; published for the full pool: -4.18.

    rate    full gradient (2 seeds)    AUDG    PSURDG    difference
    0.05    84.8                       68.7    70.3       +1.6 ± 3.2
    0.1     89.6                       78.4    67.7      -10.6 ± 7.0    (all 10,000 test samples)
    0.2     90.2                       77.8    53.1      -24.7 ± 4.7
    0.4     43.8                       not run

So the sign depends on the rate: PSURDG, which steps with all four gradients at every tick, is no worse at a rate at
which both learn slowly, and clearly worse at 0.2, the rate at which the full gradient without delays does best. That is
the default. One line took 270 CPU seconds, six minutes on two busy cores.

Not run: the pool of 25,000 samples, the other delays, and the row of the wide network ("Over-CNN"). The learning rate
of the paper is unpublished; `--rates` shows the synchronous full gradient at several rates, by which one is chosen.

MNIST must be in the data directory (JAXAFL_DATA_DIR) or prepared by TFDS.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import optax
import xarray as xr

import jaxafl as afl
from jaxafl.data import Dataset, FederatedData

CLIENTS, TICKS, PUBLISHED_POOL = 4, 50, 25_000
RATE = 0.2
PUBLISHED = {1: -3.25, 3: -2.19, 5: -1.53, 7: -3.73, 9: -4.18}
"""Accuracy of PSURDG minus that of AUDG in percentage points, by the mean delay of client 1."""


def pool_of(mnist: Dataset, size: int, clients: int = CLIENTS, test: int = 10_000) -> FederatedData:
    """Clients that all hold the same `size` training samples, and the first `test` test samples."""
    mnist = dataclasses.replace(mnist, x_test=mnist.x_test[:test], y_test=mnist.y_test[:test])
    return mnist.partition(afl.data.iid_shared(clients, samples=size))


def simulation(pool: FederatedData, server: Any, uploads: Any) -> afl.Simulation:
    """One full-batch gradient per local run, every upload a coin."""
    return afl.Simulation(
        data=pool,
        model=afl.models.cnn_small(num_classes=10),
        client=afl.Client(optax.sgd, learning_rate=1.0, steps=1, batch_size=None),
        server=server,
        clock=afl.clock.bernoulli(uploads),
    )


def compare(pool: FederatedData, delay: float, seeds: Sequence[int], rate: float = RATE) -> dict[str, np.ndarray]:
    """Final test accuracy of AUDG and PSURDG for every seed: the same initial models and the same uploads for both."""
    uploads = np.asarray([1 / (1 + delay), 0.5, 0.5, 0.5])
    accuracy = {}
    for name, server in (("AUDG", afl.server.audg(rate)), ("PSURDG", afl.server.psurdg(rate))):
        result = afl.sweep(simulation(pool, server, uploads), {"seed": list(seeds)}, TICKS, eval_every=TICKS)
        accuracy[name] = result.accuracy.isel(evaluation=-1).values
    return accuracy


def synchronous(one: FederatedData, rates: Sequence[float], seeds: Sequence[int]) -> xr.DataArray:
    """Final test accuracy of the full gradient without delays, [rate, seed].

    All clients hold the same samples, so that `one` client whose uploads never fail stands for all.
    """
    sim = simulation(one, afl.server.audg(rates[0]), 1.0)
    axes: dict[str, list[Any]] = {"server.learning_rate": list(rates), "seed": list(seeds)}
    return afl.sweep(sim, axes, TICKS, eval_every=TICKS).accuracy.isel(evaluation=-1)


def main() -> None:
    """Prints the differences beside the published ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", type=int, default=PUBLISHED_POOL, help="training samples that every client holds")
    parser.add_argument("--test", type=int, default=10_000, help="test samples")
    parser.add_argument("--delays", type=float, nargs="*", default=list(PUBLISHED), help="mean delays of client 1")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rate", type=float, default=RATE)
    parser.add_argument("--rates", type=float, nargs="*", help="show the synchronous full gradient at these rates")
    options = parser.parse_args()
    mnist, seeds = afl.data.mnist(), range(options.seeds)
    if options.rates:
        one = pool_of(mnist, options.pool, 1, options.test)
        for rate, accuracy in zip(options.rates, synchronous(one, options.rates, seeds).values, strict=True):
            print(f"full gradient, rate {rate:g}: {100 * accuracy.mean():.2f} ± {100 * accuracy.std():.2f} %")
        return
    pool = pool_of(mnist, options.pool, test=options.test)
    for delay in options.delays:
        accuracy = compare(pool, delay, seeds, options.rate)
        gap = 100 * (accuracy["PSURDG"] - accuracy["AUDG"])
        print(
            f"mean delay {delay:g}: AUDG {100 * accuracy['AUDG'].mean():.2f} %, "
            f"PSURDG {100 * accuracy['PSURDG'].mean():.2f} %, "
            f"difference {gap.mean():+.2f} ± {gap.std(ddof=1) / np.sqrt(len(gap)):.2f} (standard error)"
            + (f", published {PUBLISHED[int(delay)]:+.2f}" if delay in PUBLISHED else "")
        )


if __name__ == "__main__":
    main()
