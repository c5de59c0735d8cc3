"""What compiled programs must never do: wait for the host, or copy the ring of past models."""

from __future__ import annotations

import re

import pytest

import jaxafl as afl
from jaxafl.engine.problem import Speed
from tests.problems import classifier, points
from tests.variants import slow_but

pytestmark = pytest.mark.optimised


SERVERS = {"planned": afl.server.fedasync(), "replying": afl.server.asyncfeded()}


@pytest.mark.parametrize("name", slow_but(SERVERS, "planned"))
def test_a_program_copies_no_ring_and_calls_no_host(name: str) -> None:
    clock = afl.clock.free_running(concurrency=5, durations=afl.clock.exponential(1.0))
    sim = classifier(data=points(8), model=afl.models.mlp(10, hidden=(200,)), server=SERVERS[name], clock=clock)
    execution = sim.execution(20, 20, Speed(), 0)
    text = execution.compiled.as_text()
    slots = execution.shapes.ring
    assert f"f32[1,{slots},60,200]" in text or f"f32[{slots},60,200]" in text
    assert not re.findall(rf"= f32\[(?:1,)?{slots},60,200\]\S* copy\(", text)
    assert "callback" not in text
