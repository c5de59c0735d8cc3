"""Contract of corrections: the base class `Correction`, and the local run that it sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import optax

from jaxafl.client.upload.contract import Array, Tree
from jaxafl.options import Part


class LocalRun(NamedTuple):
    """A run at one of its local steps, or at its end.

    Attributes:
        start: x_s, the parameters that it began with.
        client: int32, index of the client.
        run: int32, index of the run among the client's runs.
        step: int32, local steps made.
        rate_sum: float, Σ η_k of these steps.
        gradient_at: parameters -> uncorrected gradient of the mini-batch, in a step; `None` at the end.
    """

    start: Tree
    client: Array
    run: Array
    step: Array
    rate_sum: Array
    gradient_at: Callable[[Tree], Tree] | None = None


class Correction(Part):
    """Base class of corrections of local gradients.

    Each client keeps a row from run to run, and the server keeps a shared pytree, which a run gets with its model.

    Attributes:
        downloads: True if the shared pytree is sent with every model, so that its bytes count.
        sums_updates: True if `serve` changes the model by the received updates, before the server's weights, discount
            and aggregate. Servers that distrust updates are then refused.
    """

    downloads: ClassVar[bool] = True
    sums_updates: ClassVar[bool] = False

    def check(self, client: Any) -> None:
        """Raises `ValueError` for local training that the correction does not fit."""

    def init(self, params: Tree) -> tuple[Tree, Tree]:
        """Returns the first row of a client, and the first shared pytree; `params`: x_0."""
        raise NotImplementedError(f"the correction {self.name} has no init(params)")

    def gradient(self, gradient: Tree, params: Tree, row: Tree, shared: Tree, run: LocalRun) -> Tree:
        """Returns the corrected gradient of a local step.

        Args:
            gradient: of the mini-batch, with weight decay and proximal term.
            params: parameters x before the step.
            row: of the client.
            shared: of the version that the run began with.
            run: the run.
        """
        raise NotImplementedError(f"the correction {self.name} has no gradient(gradient, params, row, shared, run)")

    def finish(self, moved: Tree, row: Tree, shared: Tree, run: LocalRun) -> tuple[Tree, Tree]:
        """Returns the client's next row, and the message that it sends with its update; `None` sends none.

        Args:
            moved: x - x_s at the end of the run, before any `Client(upload=...)`.
            row, shared, run: see `gradient`.
        """
        return row, None

    def serve(self, shared: Tree, params: Tree, messages: Tree, arrivals: Any, num_clients: int) -> tuple[Tree, Tree]:
        """Returns the next shared pytree and the next model after a server step with arrivals.

        Args:
            shared: the shared pytree.
            params: x_{t+1} of the server.
            messages: of the arrivals, each leaf [A, ...]; 0 for padding.
            arrivals: `jaxafl.server.Arrivals`.
            num_clients: N.
        """
        return shared, params


def zeros(correction: Correction, params: Tree) -> tuple[Tree, Tree]:
    """Returns zeros, shaped like the parameters, as a client's row and as the shared state."""
    zero = optax.tree.zeros_like(params)
    return zero, zero


def plain_sgd(client: Any) -> str:
    """Returns the client's optimiser if its steps are not -η g; empty for `optax.sgd` without momentum."""
    switches = {name for name, value in client.switches if name != "learning_rate" and value}
    others = [name for name in (*client.hyperparameters, *sorted(switches)) if name != "learning_rate"]
    if client.optimizer is optax.sgd and not others:
        return ""
    return " with ".join([client.optimizer_name, *others[:1]])
