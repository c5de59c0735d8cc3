"""Shared fixtures: where the real datasets are."""

from __future__ import annotations

import os
import pathlib
import signal
import time
from collections.abc import Iterator

import jax
import pytest
from hypothesis import HealthCheck, settings

from jaxafl.device import compilation

# how fast a machine draws and compiles is nothing that a test is about
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

DEADLINE = float(os.environ.get("JAXAFL_TEST_DEADLINE", "inf"))  # Unix time from which on no test begins
CHECKOUT = pathlib.Path(__file__).resolve().parent.parent


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.time() > DEADLINE:
        pytest.skip(f"no time was left for {item.nodeid}")


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
    """Forgets compiled programs after every module: a process may hold some hundreds only (see
    `jaxafl.device.compilation`)."""
    yield
    compilation._programs.clear()
    compilation._shapes.clear()
    jax.clear_caches()


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


@pytest.fixture
def quick_compilation() -> Iterator[None]:
    """For tests whose programs take longer to compile than to run, and that ask for no bit of one: leaves out what only
    makes them faster."""
    name, disabled = "jax_disable_most_optimizations", compilation._disabled
    before = jax.config.read(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compilation, "_disabled", lambda passes: disabled(passes) | compilation._OLD_FUSION)
        jax.config.update(name, True)
        yield
        jax.config.update(name, before)


MANY_CASES = ("server/test_conformance", "server/test_degenerate", "theory/")
WORDS_AND_FIGURES = (
    "clock/test_never",
    "clock/test_promises",
    "clock/test_time_of_day",
    "data/test_held_out",
    "models/test_leaves",
    "models/test_modes",
    "server/test_defaults",
    "server/test_mistakes",
    "server/test_state_weights",
    "test_bytes",
    "test_cli_progress",
    "test_clients",
    "test_diagnostics",
    "test_errors",
    "test_fitting",
    "test_kept",
    "test_metrics",
    "test_integers",
    "test_optax_forms",
    "test_optimizer_keys",
    "test_padding",
    "test_paths",
    "test_plot",
    "test_points",
    "test_report",
    "test_results",
    "test_said",
    "test_suggestions",
)


@pytest.fixture(autouse=True)
def _compiled_quickly(request: pytest.FixtureRequest) -> None:
    """Slow tests of many cases compare numbers within a tolerance, as the quick ones beside them do with all that the
    compiler does; those of words and figures hardly look at numbers. None asks two programs for the same bits, which a
    compiler that does less would make easier. On real data they train for longer than they compile."""
    module, marked = request.path.relative_to(CHECKOUT / "tests").as_posix(), request.node.get_closest_marker
    many = module.startswith(MANY_CASES) and marked("slow")
    if (many or module.startswith(WORDS_AND_FIGURES)) and not marked("data"):
        request.getfixturevalue("quick_compilation")


@pytest.fixture(scope="session")
def data_dir() -> pathlib.Path:
    """The directory with real datasets: `JAXAFL_DATA_DIR`, else `../shared/data`; skips when neither exists."""
    candidates = [os.environ.get("JAXAFL_DATA_DIR"), CHECKOUT.parent / "shared" / "data"]
    for candidate in candidates:
        if candidate and pathlib.Path(candidate).is_dir():
            return pathlib.Path(candidate)
    pytest.skip("no real datasets: set JAXAFL_DATA_DIR to a directory that holds them")
