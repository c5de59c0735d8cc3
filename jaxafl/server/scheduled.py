"""Numbers of a server that follow a schedule of server steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.options import Number, Wrapped, user_errors

if TYPE_CHECKING:
    Rate: TypeAlias = Any  # inside `update` it is a number, which the type of a union would hide
else:
    Rate: TypeAlias = Number | Callable[[jax.Array], jax.Array]


@jax.tree_util.register_static
class Scheduled(Wrapped):
    """Option whose value is a function of the server step t (traced int32, from 0); it has no pytree leaf."""

    def __init__(self, schedule: Callable[[Any], Any]) -> None:
        name = getattr(schedule, "__name__", type(schedule).__name__)
        if str(getattr(schedule, "__module__", "")).startswith("optax."):  # "schedule", in a function with a name
            name = schedule.__qualname__.partition(".")[0]
        super().__init__(schedule, name)
        self.__wrapped__ = schedule  # fingerprints compare the wrapped function with its closure

    def __call__(self, step: Any) -> jax.Array:
        """Returns the value at server step t, a float scalar."""
        return jnp.asarray(self.__wrapped__(step), jnp.result_type(float))

    def first(self, owner: str, name: str) -> np.ndarray:
        """Returns the value at server step 0, after tracing the schedule; `owner`, `name`: for messages."""
        with user_errors(f"{owner}: the schedule {self} of {name}; expected a function from int32 to one number"):
            jax.eval_shape(self.__wrapped__, jnp.int32(0))
            return np.asarray(self.__wrapped__(jnp.int32(0)))
