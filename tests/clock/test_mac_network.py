"""DeFedAvg's network gives the published seconds per round."""

from __future__ import annotations

import heapq

import numpy as np
import pytest

from jaxafl.clock import constant, free_running, mac_network, ringleader, sampled, stale_rounds, synchronous
from jaxafl.clock import schedule as run_clock
from tests.variants import slow_but

CLIENTS, STEPS, ROUNDS = 100, 50, 200
PUBLISHED = {"DeFedAvg-IID": 0.131, "DeFedAvg-nIID": 0.328, "FedAvg": 0.497}


def seconds_per_round(method: str, drawn: int, seeds: int) -> np.ndarray:
    durations = mac_network(17.0, 2.2)  # Fashion-MNIST
    clock = {
        "DeFedAvg-IID": lambda: free_running(concurrency=CLIENTS, buffer=drawn, durations=durations),
        "DeFedAvg-nIID": lambda: sampled(drawn=drawn, durations=durations),
        "FedAvg": lambda: synchronous(cohort=drawn, durations=durations),
    }[method]()
    schedules = (run_clock(clock, CLIENTS, STEPS, ROUNDS, seed) for seed in range(seeds))
    return np.array([schedule.time[-1] / ROUNDS for schedule in schedules])


@pytest.mark.parametrize("method", slow_but(PUBLISHED, "FedAvg"))
def test_published_rounds(method: str) -> None:
    assert seconds_per_round(method, 20, seeds=6).mean() == pytest.approx(PUBLISHED[method], rel=0.04)


def test_a_round_begins_after_the_transfers_of_the_rounds_before_it() -> None:
    clock = stale_rounds(participants=3, max_staleness=4, durations=mac_network(17.0, 2.2))
    schedule = run_clock(clock, 6, STEPS, 20)
    np.testing.assert_allclose(schedule.started[1:], np.repeat(schedule.time[:-1, None], 3, axis=1))
    assert schedule.version.min(axis=1)[-1] < 19


def test_a_client_of_ringleader_that_goes_on_from_its_version_starts_after_all_transfers_so_far() -> None:
    seconds, pause = np.array([1.0, 1.713, 2.339, 4.127]), 0.5
    clock = ringleader(durations=constant(seconds) + mac_network(0.0, 12.5))
    schedule = run_clock(clock, 4, 1, 30)
    computing = [(time, client, 0.0) for client, time in enumerate(seconds)]  # transfers delay them all
    table, ahead, updated, steps, round_steps, starts = set[int](), set[int](), set[int](), 0, 0, []
    while steps < 30:
        heapq.heapify(computing)
        time, client, started = heapq.heappop(computing)
        starts.append(started)
        stores = len(table) == 4 and client in updated
        (ahead if stores else table).add(client)
        if not stores and len(table) == 4:
            updated.add(client)
            steps, round_steps = steps + 1, round_steps + 1
            computing = [(arrives + pause, *rest) for arrives, *rest in computing]
            time += pause
            if round_steps == 4:
                table, ahead, updated, round_steps = ahead, set(), set(), 0
        computing.append((time + seconds[client], client, time))
    np.testing.assert_allclose(schedule.of_arrivals("started"), starts)


def test_computing_takes_what_the_client_needs() -> None:
    schedule = run_clock(synchronous(durations=mac_network(17.0, 2.2, freeze=False)), CLIENTS, STEPS, 2, 1)
    lasted = (schedule.arrived - schedule.started)[0]
    assert lasted.min() > 0.085 and lasted.max() < 0.425 and lasted.max() / lasted.min() > 4
    np.testing.assert_allclose(lasted, (schedule.arrived - schedule.started)[1])  # once per client
