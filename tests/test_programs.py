"""What compiled programs must never do: wait for the host, or copy the ring of past models."""

from __future__ import annotations

import re

import pytest

import jaxafl as afl
from jaxafl.engine.problem import Speed
from tests.problems import classifier, points

pytestmark = pytest.mark.optimised


@pytest.mark.parametrize("server", [afl.server.fedasync(), afl.server.asyncfeded()], ids=["planned", "replying"])
def test_a_program_copies_no_ring_and_calls_no_host(server: afl.server.Server) -> None:
    clock = afl.clock.free_running(concurrency=5, durations=afl.clock.exponential(1.0))
    sim = classifier(data=points(8), model=afl.models.mlp(num_classes=10), server=server, clock=clock)
    execution = sim.execution(20, 20, Speed(), 0)
    text = execution.compiled.as_text()
    slots = execution.shapes.ring
    assert f"f32[1,{slots},60,200]" in text or f"f32[{slots},60,200]" in text
    assert not re.findall(rf"= f32\[(?:1,)?{slots},60,200\]\S* copy\(", text)
    assert "callback" not in text
