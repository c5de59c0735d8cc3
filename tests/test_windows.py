"""Runs that are planned in windows, against the same runs planned as a whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxafl.engine import windows
from tests.equivalence import CLOCKS, SERVERS, STEPS, _simulation, observe

QUICK = {("fedbuff", "buffer"), ("fedasync", "skew"), ("fedavg", "cohort"), ("psurdg", "bernoulli"), ("ca2fl", "step")}
PAIRS = [(name, clock) for name, (_, clocks, _) in SERVERS.items() for clock in clocks]


def same(one: Any, other: Any) -> None:
    """All values of two results, bit for bit."""
    assert set(one.variables) == set(other.variables)
    for name, values in one.variables.items():
        np.testing.assert_array_equal(values.values, other[name].values, err_msg=str(name))


def short_windows(monkeypatch: pytest.MonkeyPatch, arrivals: int) -> list[int]:
    """Windows of few arrivals; the server steps at which those that were made begin."""
    begun: list[int] = []
    original = windows.Windows._from

    def counted(self: Any, start: int, origin: Any) -> Any:
        begun.append(start)
        return original(self, start, origin)

    monkeypatch.setattr(windows, "WINDOW_ARRIVALS", arrivals)
    monkeypatch.setattr(windows, "_TURNOVERS", 0)
    monkeypatch.setattr(windows.Windows, "_from", counted)
    return begun


@pytest.mark.parametrize(
    ("name", "clock"),
    [pytest.param(*pair, marks=[] if pair in QUICK else [pytest.mark.slow]) for pair in PAIRS],
)
def test_windows_leave_every_bit(name: str, clock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, _, client = SERVERS[name]
    simulation = _simulation(algorithm, CLOCKS[clock], client)
    options: dict[str, Any] = {"eval_every": 7, "seed": 3, "observe": observe}
    whole = simulation.run(STEPS, **options)
    begun = short_windows(monkeypatch, 4 * CLOCKS[clock].capacity(simulation.data.num_clients))
    if not simulation.clock_sees_training:
        same(simulation.run(STEPS, **options), whole)
        assert begun == [0, 4, 8, 12]
