"""The records of the contract have the shapes that they are declared with; a wrong one is refused."""

from __future__ import annotations

import itertools
import typing
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from beartype import beartype
from jaxtyping import jaxtyped

import jaxafl as afl
from jaxafl.clock.contract import Runs, ServerStep
from jaxafl.engine.plan import Segments, Steps
from jaxafl.engine.state import Failure, OnlineState, Stored
from jaxafl.server.contract import Arrivals, Outcome
from tests.problems import GD, quadratic

A, L, S, T, N, R = 3, 2, 5, 7, 6, 4
INT, FLOAT, BOOL = jnp.int32, jnp.float32, jnp.bool_


def zeros(*shape: int, dtype: Any = INT) -> jax.Array:
    return jnp.zeros(shape, dtype)


def arrays(names: str, *shape: int, dtype: Any = INT) -> dict[str, jax.Array]:
    return dict.fromkeys(names.split(), zeros(*shape, dtype=dtype))


TREE = {"w": zeros(A, 4, dtype=FLOAT)}
RUNS = arrays("client run run_id version local_steps reference", A) | arrays("started arrived", A, dtype=FLOAT)
RECORDS: dict[type, dict[str, Any]] = {
    Runs: RUNS,
    ServerStep: {"time": zeros(dtype=FLOAT), "mask": zeros(A, dtype=BOOL), "runs": Runs(**RUNS)}
    | arrays("multiplicity kind", A)
    | {"advances": zeros(dtype=BOOL)},
    Arrivals: arrays("client multiplicity kind staleness local_steps", A)
    | arrays("samples loss", A, dtype=FLOAT)
    | {"mask": zeros(A, dtype=BOOL), "delta": TREE, "base": TREE, "step": zeros(), "time": zeros(dtype=FLOAT)}
    | {"key": None, "validation_gradient": None},  # of any kind of key
    Outcome: {"params": {"w": zeros(4, dtype=FLOAT)}, "state": (), "info": {"a": zeros()}, "next_steps": zeros(A)}
    | {"client_params": TREE, "weights": zeros(A, dtype=FLOAT), "kept": zeros(dtype=FLOAT)},
    Segments: arrays(
        "active load_lane load_slot load_client load_run load_staleness load_version load_server_step save_lane "
        "save_slot save_row",
        S,
        L,
    )
    | arrays("load_count save_count", S)
    | arrays("load_duration load_started", S, L, dtype=FLOAT),
    Steps: arrays("update_slot lane client staleness local_steps multiplicity kind base_slot", T, A)
    | {"segments_before": zeros(T + 1), "time": zeros(T, dtype=FLOAT), "mask": zeros(T, A, dtype=BOOL)}
    | {"write_slot": zeros(T)},
    Stored: {"delta": TREE, "model_state": {}, "local_steps": zeros(R), "message": None}
    | {"loss": zeros(R, dtype=FLOAT), "computed": zeros(R, dtype=FLOAT)},
    Failure: arrays("step client"),
    OnlineState: {"clock": (), "next_steps": zeros(N), "slot_version": zeros(S), "row_run": zeros(R), "lost": zeros()},
}


def check(record: type, values: dict[str, Any]) -> None:
    """Checks the values against the annotations of the record, all in one scope, as one function call would be."""
    hints = typing.get_type_hints(record)
    names = ", ".join(values)
    scope: dict[str, Any] = {}
    exec(f"def accept({names}): pass", scope)
    accept = scope["accept"]
    accept.__annotations__ = {name: hints[name] for name in values}
    jaxtyped(typechecker=beartype)(accept)(**values)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_records_of_the_right_shapes_are_accepted(record: type) -> None:
    assert set(RECORDS[record]) == set(typing.cast("type[NamedTuple]", record)._fields)
    check(record, RECORDS[record])


WRONG = [
    (record, name)
    for record, values in RECORDS.items()
    for name, value in values.items()
    if isinstance(value, jax.Array)
]


@pytest.mark.parametrize(("record", "name"), WRONG, ids=[f"{record.__name__}.{name}" for record, name in WRONG])
def test_a_wrong_shape_or_dtype_is_refused(record: type, name: str) -> None:
    value = RECORDS[record][name]
    longer = jnp.zeros((*value.shape[:-1], value.shape[-1] + 1) if value.ndim else (2,), value.dtype)
    other = value.astype(jnp.complex64)
    for wrong in (longer, other):
        if wrong is longer and name in ("segments_before", "next_steps", "slot_version", "row_run", "loss"):
            wrong = jnp.zeros((2, 2, *value.shape), value.dtype)[..., None] if name != "segments_before" else other
        with pytest.raises(Exception, match=name):
            check(record, RECORDS[record] | {name: wrong})


def test_a_plan_has_the_shapes_of_its_records() -> None:
    problem = quadratic()
    clock = afl.clock.free_running(concurrency=4, buffer=2, durations=afl.clock.uniform(1, 5))
    plan = afl.Simulation(problem.data, problem.model, GD, afl.server.fedbuff(), clock).plan(10, lanes=2)
    for record in (plan.segments, plan.steps):
        check(type(record), record._asdict())
        one = {name: np.asarray(values)[0] for name, values in record._asdict().items()}
        check(type(record), one)
    assert list(itertools.chain(plan.steps.update_slot.shape, [plan.lanes])) == [10, 2, 2]
