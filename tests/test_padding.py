"""A server step with fewer arrivals than another: padding is zero, and an empty step changes nothing."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxafl as afl
from jaxafl.clock import Delivery
from jaxafl.options import static
from jaxafl.server import Needs, Outcome, Server, norm
from tests.problems import descent, observe_w

UPLOADS = np.array([[1, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 1], [0] * 6, [1, 1, 1, 1, 0, 0], [0] * 6], bool)
CLOCK = afl.clock.trace(afl.clock.bernoulli(0.5), uploads=UPLOADS, downloads=np.ones_like(UPLOADS))
ARRIVALS = UPLOADS.sum(axis=1)


class watching(Server):
    """x ← x + 1, and the sums of what padding and updates hold."""

    empty: bool = static(default=False)

    accepts = afl.server.fedavg.accepts | Delivery.EMPTY
    counters = ("steps",)

    @property
    def needs(self) -> Needs:
        return Needs(empty_steps=self.empty)

    def update(self, params: Any, state: Any, arrivals: Any) -> Outcome:
        def held(mask: Any) -> Any:
            columns = (arrivals.staleness, arrivals.samples, arrivals.local_steps, arrivals.loss)
            each = [jnp.where(mask, jnp.abs(column), 0).sum() for column in columns]
            delta = jax.tree.map(lambda d: jnp.where(mask.reshape(-1, *(1,) * (d.ndim - 1)), d, 0), arrivals.delta)
            return norm(delta) + sum(each)

        info = {"padding": held(~arrivals.mask), "updates": held(arrivals.mask), "steps": jnp.float32(1)}
        return Outcome(jax.tree.map(lambda x: x + 1, params), state, info)


@pytest.mark.parametrize("empty", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_padding_is_zero_and_an_empty_step_changes_nothing(empty: bool) -> None:
    found = descent(server=watching(empty), clock=CLOCK).run(len(UPLOADS), observe=observe_w)
    taken = np.ones(len(UPLOADS)) if empty else ARRIVALS > 0
    np.testing.assert_array_equal((found.client_id >= 0).sum("arrival"), ARRIVALS)
    np.testing.assert_array_equal(found.padding, np.where(taken, 0, np.nan))
    np.testing.assert_array_equal(found.updates > 0, ARRIVALS > 0)
    np.testing.assert_array_equal(found.steps, taken)
    np.testing.assert_allclose(np.diff(found.observe_w[:, 0]), taken)
    assert int((found.client_id.values >= 0).sum()) == int(np.isfinite(found.delta_norm.values).sum())
