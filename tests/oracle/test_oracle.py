"""Whole runs of the oracle: two worked by hand, and identities between algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .client import LocalTraining, Quadratic
from .clock import ServerStep, free_running, synchronous
from .server import FADAS, AsyncFedED, FedAsync, FedAvg, FedBuff
from .server_adaptive import fedams
from .server_buffered import CA2FL, DeFedAvgIID
from .server_gradient import AUDG, PSURDG
from .simulate import Simulation, simulate
from .small_cases import per_client, vector
from .update import Server


def centres(*values: float) -> list[Quadratic]:
    """Clients with f_i(w) = 1/2 (w - c_i)^2."""
    return [Quadratic(a=np.ones((1, 1)), c=np.array([[value]])) for value in values]


def random_clients(seed: int, num_clients: int, dim: int = 3) -> list[Quadratic]:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 6, num_clients)
    return [Quadratic(a=rng.uniform(0.5, 2, (n, dim)), c=rng.normal(size=(n, dim))) for n in sizes]


HALF = LocalTraining(learning_rate=0.5)  # one step halves the distance to the client's centre


def test_asynchronous_run_by_hand():
    # Centres 4 and -4; the schedule of test_free_running_everyone_in_flight_by_hand; x += Delta.
    # c0 from 0: 2 -> 2. c1 from 0: -2 -> 0. c0 from 2: 1 -> 1. c0 from 1: 1.5 -> 2.5. c1 from x_2 = 0: -2 -> .5.
    # c0 from .5: 1.75 -> 2.25.
    steps = free_running(num_clients=2, concurrency=2, buffer=1, duration=per_client([2.0, 3.0]), server_steps=6)
    run = simulate(steps, HALF, FedAsync(alpha=1.0, mix="delta"), vector(0.0), centres(4.0, -4.0))
    np.testing.assert_allclose(np.ravel(run.versions), [0, 2, 0, 1, 2.5, 0.5, 2.25])
    np.testing.assert_allclose([record.drifts[0] for record in run.records], [0, 2, 2, 0, 2.5, 0])
    np.testing.assert_allclose([record.norms[0] for record in run.records], [2, 2, 1, 1.5, 2, 1.75])
    np.testing.assert_allclose([record.losses[0] for record in run.records], [8, 8, 2, 4.5, 8, 6.125])
    assert run.times == [2, 3, 4, 6, 6, 8]


def test_start_skew_run_by_hand():
    # Centres 4 and 0. Step 0: (2 + 0) / 2 = 1. Client 0 then trains from x_0 to 2, measured against x_1: 1;
    # client 1 from x_1 to .5: -.5. Step 1: 1 + .25.
    options: dict[str, Any] = {
        "num_clients": 2,
        "concurrency": 2,
        "buffer": 2,
        "duration": per_client([1.0, 1.0]),
        "server_steps": 2,
    }
    steps = free_running(**options, dispatch="step", start_skew=True)
    run = simulate(steps, HALF, FedBuff(), vector(0.0), centres(4.0, 0.0))
    np.testing.assert_allclose(np.ravel(run.versions), [0, 1, 1.25])


def test_asyncfeded_run_decides_the_next_number_of_steps():
    # One client, 1 s a step, K_0 = 2: gamma is 0 always, so K grows by floor(1.5) = 1 up to 4; 2 + 3 + 4 + 4 s.
    run = simulate(
        lambda on_step: free_running(
            num_clients=1,
            concurrency=1,
            buffer=1,
            duration=lambda client, run, local_steps: local_steps,
            initial_steps=2,
            on_step=on_step,
            server_steps=4,
        ),
        HALF,
        AsyncFedED(lam=1.0, eps=1.0, target_staleness=1.5, kappa=1.0, max_steps=4),
        vector(0.0),
        centres(16.0),
    )
    assert run.times == [2, 5, 9, 13]
    assert [record.info.replies for record in run.records] == [{0: 3}, {0: 4}, {0: 4}, {0: 4}]
    assert [record.info.clipped for record in run.records] == [0, 0, 1, 1]
    # eta = 1 and K steps shrink the distance 16 by 2^-K: 4, 1/2, ...
    np.testing.assert_allclose(np.ravel(run.versions[:3]), [0, 12, 15.5])


def test_later_runs_of_a_client_take_smaller_steps():
    # Centre 8, rates 1/2, 1/4, 1/8: 4, then 1/4 of the remaining 4, then 1/8 of the remaining 3.
    rounds = synchronous([[0]] * 3, per_client([1.0]))
    training = LocalTraining(learning_rate=0.5, run_decay=0.5)
    asked: list[tuple[int, int, int]] = []

    def batches(client: int, run: int, local_steps: int) -> list[list[int]]:
        asked.append((client, run, local_steps))
        return [[0]] * local_steps

    run = simulate(rounds, training, FedBuff(), vector(0.0), centres(8.0), batches=batches)
    np.testing.assert_allclose(np.ravel(run.versions), [0, 4, 5, 5.375])
    assert asked == [(0, 0, 1), (0, 1, 1), (0, 2, 1)]


def run_on(steps: Sequence[ServerStep], server: Server, seed: int = 0) -> Simulation:
    return simulate(steps, LocalTraining(learning_rate=0.2, steps=3), server, np.zeros(3), random_clients(seed, 4))


def uneven(buffer: int, server_steps: int = 12) -> list[ServerStep]:
    return free_running(
        num_clients=4,
        concurrency=4,
        buffer=buffer,
        duration=per_client([1.0, 1.7, 2.9, 6.1]),
        server_steps=server_steps,
    )


def assert_same_run(first: Simulation, second: Simulation) -> None:
    np.testing.assert_allclose(first.versions, second.versions, rtol=1e-12, atol=1e-12)
    assert np.linalg.norm(first.versions[-1]) > 0.1


def test_equal_speeds_with_everyone_in_the_buffer_equal_fedavg():
    duration = per_client([1.0] * 4)
    free = free_running(num_clients=4, concurrency=4, buffer=4, duration=duration, server_steps=5)
    rounds = synchronous([range(4)] * 5, duration)
    assert_same_run(run_on(free, FedBuff()), run_on(rounds, FedAvg(weights="uniform")))


def test_fedbuff_of_one_equals_fedasync_mixing_updates():
    assert_same_run(run_on(uneven(1), FedBuff()), run_on(uneven(1), FedAsync(alpha=1.0, mix="delta")))


def test_defedavg_iid_equals_fedbuff():
    assert_same_run(run_on(uneven(2), FedBuff(eta=0.7)), run_on(uneven(2), DeFedAvgIID(eta=0.7)))


def test_fadas_without_delays_equals_fedams():
    rounds = synchronous([range(4)] * 5, per_client([1.0] * 4))
    assert_same_run(run_on(rounds, FADAS(eta=0.1, delay_scaling="eq77", tau_c=0)), run_on(rounds, fedams(eta=0.1)))


def test_ca2fl_with_everyone_each_round_equals_fedavg():
    rounds = synchronous([range(4)] * 5, per_client([1.0] * 4))
    server = CA2FL(eta=1.0, num_clients=4, dim=3)
    assert_same_run(run_on(rounds, server), run_on(rounds, FedAvg(weights="uniform")))


def test_psurdg_equals_audg_when_everyone_arrives():
    rounds = synchronous([range(4)] * 5, per_client([1.0] * 4))
    sizes = [client.num_samples for client in random_clients(0, 4)]
    gradient = LocalTraining(learning_rate=1.0)
    runs = [
        simulate(rounds, gradient, server, np.zeros(3), random_clients(0, 4))
        for server in (AUDG(eta=0.2, num_samples=sizes), PSURDG(eta=0.2, num_samples=sizes, dim=3))
    ]
    assert_same_run(*runs)


def test_a_batch_of_everything_equals_full_batch():
    clients = random_clients(1, 4)
    training = LocalTraining(learning_rate=0.2, steps=3)
    everything = simulate(
        uneven(2),
        training,
        FedBuff(),
        np.zeros(3),
        clients,
        batches=lambda client, run, steps: [range(clients[client].num_samples)] * steps,
    )
    assert_same_run(everything, simulate(uneven(2), training, FedBuff(), np.zeros(3), clients))
