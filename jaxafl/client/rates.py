"""Schedules of the learning rate of local steps."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxafl.client.options import Client, Moment
from jaxafl.options import UserError, did_you_mean

Array = jax.Array


def rate_factor(client: Client, lane: Any, per_epoch: Array) -> Any:
    """Computes the factor of the learning rate in a local step.

    Args:
        client: local training of the run's client.
        lane: state of the run.
        per_epoch: int32, local steps of an epoch.

    Raises:
        UserError: a schedule returns no scalar, or reads what a `Moment` does not have.
    """
    factor: Any = 1.0
    if client.rate_schedule is not None and lane.timing is not None:
        place = lane.timing._asdict()
        moment = Moment(lane.step, lane.step // per_epoch, lane.run, client=lane.client, **place)
        try:
            factor = client.rate_schedule(moment)
        except AttributeError as error:
            if error.obj is not moment:
                raise
            raise UserError(
                f"Client: rate_schedule reads `{error.name}`, which a Moment does not have; expected "
                f"{', '.join(Moment._fields)}{did_you_mean(error.name, Moment._fields)}"
            ) from error
    schedules: Any = (client.step_schedule, client.run_schedule)
    for schedule, when in zip(schedules, (lane.step, lane.run), strict=True):
        if schedule is not None:
            factor = factor * schedule(when)
    if client.rate_decay_per_run is not None:
        factor = factor * client.rate_decay_per_run ** lane.run.astype(jnp.result_type(float))
    if jnp.shape(factor) != ():
        raise ValueError(f"a schedule must return one number, got an array of shape {jnp.shape(factor)}")
    return factor
