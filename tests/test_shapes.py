"""The records of the contract have the shapes that they are declared with; a wrong one is refused."""

from __future__ import annotations

import typing
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from beartype import beartype
from jaxtyping import jaxtyped

from jaxafl.server.contract import Arrivals, Outcome

A = 3
INT, FLOAT, BOOL = jnp.int32, jnp.float32, jnp.bool_


def zeros(*shape: int, dtype: Any = INT) -> jax.Array:
    return jnp.zeros(shape, dtype)


def arrays(names: str, *shape: int, dtype: Any = INT) -> dict[str, jax.Array]:
    return dict.fromkeys(names.split(), zeros(*shape, dtype=dtype))


TREE = {"w": zeros(A, 4, dtype=FLOAT)}
RECORDS: dict[type, dict[str, Any]] = {
    Arrivals: arrays("client multiplicity kind staleness local_steps", A)
    | arrays("samples loss", A, dtype=FLOAT)
    | {"mask": zeros(A, dtype=BOOL), "delta": TREE, "base": TREE, "step": zeros(), "time": zeros(dtype=FLOAT)}
    | {"key": None, "validation_gradient": None},  # of any kind of key
    Outcome: {"params": {"w": zeros(4, dtype=FLOAT)}, "state": (), "info": {"a": zeros()}, "next_steps": zeros(A)}
    | {"client_params": TREE, "weights": zeros(A, dtype=FLOAT), "kept": zeros(dtype=FLOAT)},
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
        if wrong is longer and name == "next_steps":
            wrong = jnp.zeros((2, 2, 2), value.dtype)
        with pytest.raises(Exception, match=name):
            check(record, RECORDS[record] | {name: wrong})
