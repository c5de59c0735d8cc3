"""Schedules of random configurations of all clocks equal the recorded ones bit for bit, apart from rounded seconds."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

from tests.clock.schedules import COLUMNS, FILE, TIMES, case, columns, digest, figures
from tests.variants import slow_but

RECORDED = json.loads(FILE.read_text())
OTHER_BITS = TIMES if jax.__version_info__ >= (0, 12) else ()  # its logarithms have other last bits


@pytest.mark.optimised  # the last bits of durations are those of the compiler that users have
@pytest.mark.parametrize("name", slow_but(RECORDED, *(name for name in RECORDED if name.endswith("0-0"))))
def test_a_schedule_is_the_recorded_one(name: str) -> None:
    made, kept = case(name), RECORDED[name]
    found, skip = columns(made.schedule()), {*OTHER_BITS, *kept.get("seconds", ())}
    exact = zip(COLUMNS, kept["columns"].split(), strict=True)
    assert not [n for n, of in exact if n not in skip and digest(found[n]) != of], made
    for column, seconds in kept.get("seconds", {}).items():
        np.testing.assert_allclose(figures(found[column]), seconds, rtol=1e-9, err_msg=column)
