"""What the tables of AUDG and PSURDG do with data and numbers."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from experiments.audg_psurdg.setting import DELAYS, POOL, SIZES, SMALL, columns, normalised, sorted_by_label
from experiments.audg_psurdg.table3_cnn import EXPERIMENT
from experiments.audg_psurdg.tables import falls
from experiments.suite import Values


@pytest.mark.parametrize("pool", [POOL, *SMALL.values(), 200])
@pytest.mark.parametrize("split", SIZES)
def test_whole_classes_are_dealt(split: str, pool: int) -> None:
    """A tenth of the pool of each class, no sample twice, parts of exactly their sizes at every scale."""
    labels = np.random.default_rng(0).permutation(np.arange(60_000) % 10)
    sizes = [size * pool // POOL for size in SIZES[split]]
    parts = sorted_by_label(tuple(sizes)).split(labels, None, np.random.default_rng(1))
    assert [len(part) for part in parts] == sizes and sum(sizes) == pool
    rows = np.concatenate(parts)
    assert len(np.unique(rows)) == pool
    assert (np.bincount(labels[rows]) == pool // 10).all() and (np.diff(labels[rows]) >= 0).all()
    if split != "small":  # where sizes are whole classes
        assert sum(len(np.unique(labels[part])) for part in parts) == 10


def test_slopes_are_fitted_over_the_delays_of_the_runs() -> None:
    names = list(columns(["CNN"], ["IID"]))
    accuracy = {name: 90 - 2.0 * delay for name, delay in zip(names, DELAYS, strict=True)}
    found = {("accuracy", "AUDG", name): np.asarray([value, value + 1]) for name, value in accuracy.items()}
    claim = falls("it falls", "AUDG", names)
    np.testing.assert_allclose(claim.of(Values(found, "accuracy")), [2, 2])
    for name in names[1:4]:
        found["accuracy", "AUDG", name] = np.full(2, np.nan)
    np.testing.assert_allclose(claim.of(Values(found, "accuracy")), [2, 2])
    assert np.isnan(falls("it falls", "AUDG", names[1:]).of(Values(found, "accuracy"))).all()


def test_losses_are_divided_by_the_largest_of_their_run() -> None:
    loss = np.asarray([[2.0, 4.0, 1.0], [3.0, 1.5, 0.0]])
    made = normalised(xr.Dataset({"loss": (("seed", "evaluation"), loss)}))
    np.testing.assert_allclose(made.normalised_loss, [[0.5, 1.0, 0.25], [1.0, 0.5, 0.0]])


def test_the_slow_client_is_the_one_whose_delay_is_named() -> None:
    """A mean staleness of d for client 1 and of 1 for the others, on noise."""
    clock = EXPERIMENT.cell("PSURDG", "CNN IID, d = 9", "smoke").make().clock
    np.testing.assert_allclose(1 / clock.upload - 1, [9, 1, 1, 1])
