"""Shared fixtures: where the real datasets are."""

from __future__ import annotations

import gc
import os
import pathlib
import signal
import time
from collections.abc import Iterator

import jax
import jaxlib
import pytest
from hypothesis import HealthCheck, settings

from jaxafl.data.sources import traverse
from jaxafl.device import compilation

# how fast a machine draws and compiles is nothing that a test is about; what fails on one machine fails on all
settings.register_profile(
    "same examples", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, database=None
)
settings.register_profile("new examples", settings.get_profile("same examples"), derandomize=False)
settings.load_profile("same examples")

DEADLINE = float(os.environ.get("JAXAFL_TEST_DEADLINE", "inf"))  # Unix time from which on no test begins
MANY_MAPPINGS = 8_000  # Linux allows a process 65,530; modules add up to some ten thousand
CHECKOUT = pathlib.Path(__file__).resolve().parent.parent


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.time() > DEADLINE:
        pytest.skip(f"no time was left for {item.nodeid}")
    _compile_quickly(not (item.get_closest_marker("optimised") or item.get_closest_marker("data")))


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # else every full collection while JAX traces visits thousands of tests
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True)
def _signals_are_not_ignored() -> Iterator[None]:
    """Whoever starts the suite may ignore some (a shell those of a command behind `&`, `nohup`), and processes inherit
    that: the tests that send them, and the processes that tests start, have the handlers that Python begins with."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGUSR1: signal.SIG_DFL}
    ignored = [number for number in usual if signal.getsignal(number) == signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, usual[number])
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture(autouse=True, scope="module")
def _few_programs() -> Iterator[None]:
    """Clears a module's programs, and those of `jax.numpy` once there are many.

    A process may hold some hundreds only (see `jaxafl.device.compilation`)."""
    yield
    compilation._programs.clear()
    if _mappings() > MANY_MAPPINGS:
        jax.clear_caches()


def _mappings() -> float:
    """Returns the number of memory mappings of this process, infinite where the system does not list them."""
    listed = pathlib.Path("/proc/self/maps")
    return listed.read_bytes().count(b"\n") if listed.exists() else float("inf")


@pytest.fixture(autouse=True, scope="session")
def _compiled_once(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> None:
    """What one test has compiled, another one loads, whichever process it runs in, those that tests start included; and
    those of other sessions that keep it in the same folder, `JAXAFL_TEST_PROGRAMS`."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder if worker_id == "master" else folder.parent
    options = {
        "jax_compilation_cache_dir": os.environ.get("JAXAFL_TEST_PROGRAMS") or str(folder / "compiled"),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in options.items():
        os.environ[name.upper()] = str(value)
        jax.config.update(name, value)


traverse._CALL = 2_048  # samples that are drawn at once: tests draw few, and programs compiled quickly are slow
_usual_passes = compilation._disabled
_usual_flags = os.environ.get("XLA_FLAGS", "").split()


def _compile_quickly(quick: bool) -> None:
    """Leaves out, or restores, passes of the compiler that only make programs faster, in processes of tests too."""
    if quick == jax.config.read("jax_disable_most_optimizations"):
        return
    jax.devices()  # reads `XLA_FLAGS`, which is then that of processes to come
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(quick)
    passes = [f"--{name}={str(value).lower()}" for name, value in _few_passes(()).items()] if quick else []
    os.environ["XLA_FLAGS"] = " ".join([*_usual_flags, *passes])
    jax.config.update("jax_disable_most_optimizations", quick)
    compilation._disabled = _few_passes if quick else _usual_passes
    compilation._programs.clear()
    jax.clear_caches()  # the option is no part of JAX's keys


def _few_passes(passes: tuple[str, ...]) -> dict[str, str | bool]:
    one_piece = {"xla_cpu_parallel_codegen_split_count": "1"}  # threads of a compiler cost more than they save
    old_fusion = {"xla_cpu_use_fusion_emitters": False} if jaxlib.__version__.startswith("0.10.") else {}
    return _usual_passes(passes) | old_fusion | one_piece


@pytest.fixture(scope="session")
def data_dir() -> pathlib.Path:
    """The directory with real datasets: `JAXAFL_DATA_DIR`, else `../shared/data`; skips when neither exists."""
    candidates = [os.environ.get("JAXAFL_DATA_DIR"), CHECKOUT.parent / "shared" / "data"]
    for candidate in candidates:
        if candidate and pathlib.Path(candidate).is_dir():
            return pathlib.Path(candidate)
    pytest.skip("no real datasets: set JAXAFL_DATA_DIR to a directory that holds them")
