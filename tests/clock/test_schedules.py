"""Schedules of random configurations of all clocks equal the recorded ones bit for bit, apart from named changes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.clock.schedules import CHANGES, COLUMNS, FILE, FREE, case, columns, digest, figures
from tests.variants import slow_but

RECORDED = json.loads(FILE.read_text())
QUICK = [name for name in RECORDED if name.endswith(("0-0", "2-0", "4-0", "6-0", "8-0"))]


@pytest.mark.optimised  # the last bits of durations are those of the compiler that users have
@pytest.mark.parametrize("name", slow_but(RECORDED, *QUICK))
def test_a_schedule_is_the_recorded_one(name: str) -> None:
    made, recorded = case(name), RECORDED[name]
    found = columns(made.schedule())
    free = {column for reason in made.changes if reason in FREE for column in CHANGES[reason]}
    close = {column for reason in made.changes for column in CHANGES[reason]} - free
    wanted = dict(zip(COLUMNS, recorded["columns"].split(), strict=True))
    assert not [n for n in COLUMNS if n not in free | close and digest(found[n]) != wanted[n]], made
    for column in close:
        np.testing.assert_allclose(figures(found[column]), recorded["seconds"][column], rtol=1e-9, err_msg=column)
