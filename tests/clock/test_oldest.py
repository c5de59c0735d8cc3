"""The list of the runs in flight, against a Python list."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxafl.clock import oldest

ROWS = 5
append, remove = jax.jit(oldest.append), jax.jit(oldest.remove)


@given(st.lists(st.tuples(st.integers(0, ROWS - 1), st.booleans(), st.integers(0, 2)), max_size=40))
def test_the_oldest_run_is_the_first_that_is_still_there(events: list[tuple[int, bool, int]]) -> None:
    found, expected, versions, version = oldest.no_runs(ROWS), [], np.zeros(ROWS, np.int32), 0
    for row, where, later in events:
        version += later
        if row in expected:
            found = remove(found, jnp.int32(row), jnp.asarray(versions), where)
            expected = [other for other in expected if other != row or not where]
        else:
            found = append(found, jnp.int32(row), jnp.int32(version), where)
            expected += [row] * where
            versions[row] = version if where else versions[row]
        assert int(found.oldest) == (expected[0] if expected else ROWS)
        assert int(found.version) == (versions[expected[0]] if expected else np.iinfo(np.int32).max)
