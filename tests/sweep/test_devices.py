"""Sweeps and runs on several devices of one process. A CPU's are made before JAX begins, so in another."""

from __future__ import annotations

import collections
import dataclasses
import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import linen as nn

import jaxafl as afl
from jaxafl.device import compilation
from jaxafl.device.rows import AXIS
from jaxafl.engine.mesh import shard
from jaxafl.engine.problem import Layout, MemberHyperparameters, Speed
from jaxafl.sweep import devices
from jaxafl.sweep.axes import axes_of
from jaxafl.sweep.members import Work
from tests.on_devices import OF_MANY
from tests.sweep.conftest import differing, simulation


def seen(what: str, devices: int) -> dict[str, Any]:
    """What a process with several devices has printed."""
    command = [sys.executable, "-m", "tests.on_devices", what, str(devices)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    assert found.pop("devices") == devices
    return found


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 8])
def test_a_sweep_on_several_devices_is_that_on_one(devices: int) -> None:
    found = seen("sweeps", devices)
    assert "jax_num_cpu_devices" in found.pop("too many")
    assert found.pop("collectives") == [[], [], []]
    assert found == {name: [] for name in found}


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 8])
def test_a_run_that_devices_share_is_that_of_one(devices: int) -> None:
    """Where a server takes no more than sums of updates, they are all that is moved (and the steps made, where runs may
    stop early, of 32 bits). Else a segment gathers its updates (two arrays: x and loss, of 64 bits, and steps); what is
    kept per client is summed once per server step. Nothing else is moved."""
    found = seen("runs", devices)
    collectives = {name.removesuffix(", collectives"): found.pop(name) for name in list(found) if "collectives" in name}
    expected = dict.fromkeys(("fedavg", "fadas", "feedback"), (0, 1)) | dict.fromkeys(
        ("ca2fl", "quafl", "psurdg", "safa", "area"), (2, 1)
    )
    expected |= dict.fromkeys(("fedavg, uneven, early", "favano"), (0, 2))
    expected |= dict.fromkeys(("fedasync", "fedbuff, state", "weighed", "scaffold"), (2, 0))
    expected = {name: counts for name, counts in expected.items() if devices == 2 or name in OF_MANY}
    assert {
        name: (moved.count("all-gather"), moved.count("all-reduce")) for name, moved in collectives.items()
    } == expected
    assert all(len(moved) == sum(expected[name]) for name, moved in collectives.items())
    assert found == {name: [] for name in found}


def test_an_option_that_is_none_stays_none_on_devices() -> None:
    """A place for it would be a weight decay, which AdamW takes among its hyperparameters."""
    sim = dataclasses.replace(simulation(), client=afl.Client(optax.adamw, learning_rate=0.1, steps=2, batch_size=4))
    members = MemberHyperparameters.stacked([sim.problem(seed).hyperparameters for seed in range(2)])
    layout = Layout(jax.sharding.Mesh(np.asarray(jax.devices()[:1]), (AXIS,)))
    (placed,) = shard(layout, (members,))
    assert jax.tree.structure(placed) == jax.tree.structure(members)


@pytest.mark.slow
def test_runs_of_protocols_that_devices_share_are_those_of_one() -> None:
    found = seen("protocols", 2)
    assert found == {name: [] for name in found} and len(found) > 15


@pytest.mark.slow
@pytest.mark.parametrize("kind", ("planned", "online"))
def test_threads_of_one_device_have_the_results_of_one_after_another(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seeds, which advance apart, and rates, which advance four at a time; in the precision of the caller."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(3), raising=False)
    sim, ran_in = simulation(kind), set()

    class Where(afl.callbacks.Callback):
        def begin(self, run: Any) -> None:
            ran_in.add(threading.get_ident())

    for axes, wide in (({"seed": range(3)}, False), ({"client.learning_rate": np.linspace(0.1, 0.8, 8)}, True)):
        ran_in.clear()
        with jax.enable_x64(wide), jax.default_matmul_precision("highest"):
            found = afl.sweep(sim, axes, 2, callbacks=Where())
            assert len(ran_in) > 1 and threading.get_ident() not in ran_in
            ran_in.clear()
            expected = afl.sweep(sim, axes, 2, devices=1, callbacks=Where())
            assert ran_in == {threading.get_ident()}
        assert differing(found, expected) == []


def test_how_many_batches_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as a CPU has cores, and memory for; as many as devices that were asked for by number."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(6), raising=False)
    monkeypatch.setattr(devices, "host_bytes", lambda: 1000)
    one = jax.devices()[:1]
    assert [devices.at_once(None, [], needed) for needed in ([], [10], [10, 50], [500])] == [6, 6, 5, 1]
    assert devices.at_once("all", one, [10]) == 6 and devices.at_once(1, one, [10]) == 1
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert devices.at_once(None, [], [10]) == 1 and devices.at_once("all", one * 2, [10]) == 2


def test_what_members_keep_counts_all_versions_in_flight() -> None:
    """One of 200 · 4 + 4 + 4 · 3 + 3 numbers of four bytes for each of the four clients in flight, at least."""
    for kind in ("planned", "online"):
        axes = axes_of(simulation(kind), {"seed": [0]})
        (kept,) = Work(*axes, 4, 4, 0, None, Speed(), axes[0].recording()).bytes([0])
        assert 4 * 4 * 819 <= kept <= 3 * 4 * 4 * 819


@pytest.mark.parametrize(("width", "most"), [(400, 25), (1_000, 10), (40_000, 7), (60_000, 1)])
def test_small_models_are_batched_by_their_size(width: int, most: int) -> None:
    rows = np.zeros((8, width), np.float32)
    data = afl.data.Dataset("zeros", rows, rows[:, :1], rows, rows[:, :1], None, afl.data.cast())
    model = afl.models.from_linen(nn.Dense(1, use_bias=False), loss=optax.l2_loss)
    clock = afl.clock.free_running(concurrency=2, durations=afl.clock.constant(1.0))
    sim = afl.Simulation(
        data.partition(afl.data.iid(2)), model, afl.Client(learning_rate=0.1, steps=1), afl.server.fedasync(0.1), clock
    )
    base, axes = axes_of(sim, {"client.learning_rate": np.geomspace(0.01, 1, 49).tolist()})
    batches = Work(base, axes, 4, 4, 0, None, Speed(), base.recording()).batches(1)
    assert max(map(len, batches)) == most and sorted(place for batch in batches for place in batch) == list(range(49))


def test_threads_that_need_the_same_program_compile_it_once() -> None:
    made = []

    def make() -> str:
        time.sleep(0.2)
        made.append(1)
        return "program"

    store: Any = collections.OrderedDict()
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: compilation._cached(store, ("once",), (), make), range(8)))
    assert [program for program, _ in found] == ["program"] * 8 and len(made) == 1
    assert sorted(new for _, new in found) == [False] * 7 + [True]


@pytest.mark.parametrize(
    ("devices", "kind", "message"),
    [
        (0, ValueError, "at least 1, got 0"),
        (99, ValueError, "JAX has .* of kind"),
        ("some", TypeError, 'must be "all", a number, or a list'),
        ([1], TypeError, "must be"),
        ([jax.devices()[0]] * 2, ValueError, "names a device twice"),
    ],
)
def test_bad_devices(devices: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        afl.sweep(simulation(), {"seed": [0]}, 4, devices=devices)
    with pytest.raises(kind, match=message):
        simulation().run(4, devices=devices)
