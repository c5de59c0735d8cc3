"""Schedules of random configurations of all clocks equal the recorded ones bit for bit, apart from rounded seconds."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.clock.schedules import COLUMNS, FILE, case, columns, digest, figures
from tests.variants import slow_but

RECORDED = json.loads(FILE.read_text())
QUICK = [name for name in RECORDED if name.endswith("0-0")]


@pytest.mark.optimised  # the last bits of durations are those of the compiler that users have
@pytest.mark.parametrize("name", slow_but(RECORDED, *QUICK))
def test_a_schedule_is_the_recorded_one(name: str) -> None:
    made, recorded = case(name), RECORDED[name]
    found = columns(made.schedule())
    close = recorded.get("seconds", {})
    wanted = dict(zip(COLUMNS, recorded["columns"].split(), strict=True))
    assert not [n for n in COLUMNS if n not in close and digest(found[n]) != wanted[n]], made
    for column, seconds in close.items():
        np.testing.assert_allclose(figures(found[column]), seconds, rtol=1e-9, err_msg=column)
