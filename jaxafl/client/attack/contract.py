"""Contract of attacks: clients that send forged updates, or train on forged labels."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from jaxafl.client.upload.contract import Array, Sent, Tree
from jaxafl.device.buffers import expand
from jaxafl.device.keys import drawing_key
from jaxafl.options import Number, Part, UserError, check_choice, recording, shown
from jaxafl.options.user_code import like_given, traced_method

_STREAM = 0xFFFFFFF3
_WHO = 0x41747461  # of the draws of the attackers


class Delivered(NamedTuple):
    """Honest updates known to attackers with `knowledge="delivered"`."""

    updates: Array  # last delivered update of every honest client, float [N, d]
    known: Array  # bool [N], True for clients with one


class Attack(Part):
    """Base class of attacks by a fixed set of clients.

    A subclass defines at least one of three methods: `forge`, what an attacker sends instead of its update; `collude`,
    for attackers that see the honest arrivals of a server step; `label`, the labels that an attacker trains on.

    A forged update replaces the one after `Client(upload=...)`, and has the same number of messages and bytes.
    Messages of a correction and batch statistics stay honest.

    Args:
        clients: who attacks: a share in [0, 1] of the N clients, rounded (halves to even numbers) and drawn with the
            seed of the run, or a list of clients.

    Attributes:
        colludes: True if `collude` is defined. It acts at the server step.
        knowledge: what `collude` sees of honest clients: the arrivals of the server step (`"step"`), or the last
            delivered update of each (`"delivered"`).
    """

    clients: Number = dataclasses.field(kw_only=True)
    word: Any = recording(default=None)  # uint32, derived from the seed
    classes: Any = recording(default=None)  # number of classes

    colludes: ClassVar[bool] = False
    knowledge = "step"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.colludes = cls.collude is not Attack.collude

    def forge(self, delta: Array, sent: Sent) -> Array:
        """Returns the forged update of one run, [d].

        Args:
            delta: update that an honest client would send, [d], all trained parameters as one vector.
            sent: the run; `sent.key` is for random draws.
        """
        return delta

    def collude(self, deltas: Array, honest: Array, attackers: Array) -> Array:
        """Returns the forged update of all attackers of a server step, [d].

        Args:
            deltas: updates as received, [A, d], with zeros for padding. With `knowledge="delivered"` those of the
                clients, [N, d].
            honest: multiplicities of the honest updates, float [A]; 0 for others. Or 1 for known ones, float [N].
            attackers: multiplicities of the attackers' updates, float [A]; 0 for others. Or 1 for attackers, float [N].
        """
        raise NotImplementedError(f"the attack {self.name} has no collude(deltas, honest, attackers)")

    def label(self, y: Array) -> Array:
        """Returns the labels that an attacker trains on."""
        return y

    def mask(self, num_clients: int, seed: int) -> np.ndarray:
        """Returns True for the clients that attack, bool [N]."""
        given = np.asarray(self.clients)
        found = np.zeros(num_clients, bool)
        if given.ndim:
            found[given if given.dtype == bool else given.astype(int)] = True
        else:  # a larger share includes the attackers of a smaller one
            order = np.random.default_rng([_WHO, seed]).permutation(num_clients)
            found[order[: round(float(given) * num_clients)]] = True
        return found

    def check(self, num_clients: int, num_classes: int | None, capacity: int) -> None:
        """Raises `ValueError` for invalid attackers, or for an attack without effect.

        Args:
            num_clients: N.
            num_classes: of the data; `None` for real targets.
            capacity: arrivals of every server step; if their number varies, N, and at least 2.
        """
        if not any(getattr(type(self), name) is not getattr(Attack, name) for name in ("forge", "collude", "label")):
            raise UserError(
                f"the attack {self.name} has none of the methods forge(delta, sent), label(y) and "
                "collude(deltas, honest, attackers), so all clients would be honest; expected one of them"
            )
        check_choice(self.name, "knowledge", self.knowledge, ("step", "delivered"))
        given = np.asarray(self.clients)
        if given.ndim == 0:  # 1 could be a client, or all of them
            fits: Any = 0 <= given <= 1 if given.dtype.kind == "f" else given.dtype.kind in "iu" and given == 0
        else:
            listed = np.flatnonzero(given) if given.dtype == bool and given.shape == (num_clients,) else given
            fits = listed.ndim == 1 and listed.dtype.kind in "iu"
            fits = fits and len({*listed.tolist()} & {*range(num_clients)}) == len(listed)
        if not fits or (given.ndim == 0 and given > 0 and not self.mask(num_clients, 0).any()):
            raise UserError(
                f"{self.name}: clients={shown(self.clients)} names no attackers among {num_clients} clients; expected "
                "a share of at least one client, such as 0.2 or 1.0, or a list of different clients in 0 .. "
                f"{num_clients - 1}"
            )
        if self.colludes and self.knowledge == "step" and capacity < 2:
            raise UserError(
                f"{self.name}: the attackers see the honest arrivals of their server step, and the clock brings one "
                "arrival per step; expected several. Give knowledge='delivered', or a clock with a buffer"
            )
        if num_classes and type(self).label is not Attack.label:
            labels = np.zeros(0)
            with contextlib.suppress(TypeError, ValueError, IndexError):  # of labels of another form, such as tokens
                labels = np.asarray(dataclasses.replace(self, classes=num_classes).label(jnp.arange(num_classes)))
            if np.any((labels < 0) | (labels >= num_classes)):  # the loss would be NaN, but its gradient finite
                raise UserError(
                    f"`label` of the attack {self.name} turns the labels 0 .. {num_classes - 1} into "
                    f"{labels.tolist()}; expected labels among them"
                )

    def prepare(self, num_clients: int, num_classes: int | None, seed: int) -> Attack:
        """Returns the attack of a run, with a mask [N] of the attackers."""
        word = np.random.SeedSequence([_WHO, seed, 1]).generate_state(1)[0]
        return dataclasses.replace(self, clients=self.mask(num_clients, seed), word=word, classes=num_classes or 0)

    def sent(self, delta: Tree, sent: Sent) -> Tree:
        """Returns the update that a client sends; `clients` is True if it attacks."""
        if type(self).forge is Attack.forge:
            return delta
        vector, restored = ravel_pytree(delta)
        key = drawing_key(jax.random.fold_in(sent.key, _STREAM))
        forged = self._made("forge", "`sent.key`", vector, vector, sent._replace(key=key))
        return optax.tree.where(self.clients, restored(forged), delta)

    def _made(self, method: str, key: str, like: Array, *given: Any) -> Array:
        """Returns the result of a method, with the dtype of an update; `key` says where keys of draws come from."""
        owner = f"the attack {self.name}"
        with traced_method(owner, method, key):
            made = getattr(self, method)(*given)
        return like_given(owner, method, made, like).astype(like.dtype)

    def first_known(self, params: Tree, num_clients: int) -> Delivered | None:
        """Returns what attackers know before the first server step; `None` if they keep nothing."""
        if not (self.colludes and self.knowledge == "delivered"):
            return None
        vector = ravel_pytree(params)[0]
        return Delivered(jnp.zeros((num_clients, vector.size), vector.dtype), jnp.zeros(num_clients, bool))

    def received(
        self, deltas: Tree, client: Array, times: Array, before: Delivered | None
    ) -> tuple[Tree, Delivered | None]:
        """Returns the updates of a server step, each leaf [A, ...], and what attackers know after it.

        Attackers who know no honest update send their own.

        Args:
            deltas: updates after `sent`, each leaf [A, ...].
            client: int32 [A].
            times: multiplicities, float [A]; 0 for padding.
            before: what attackers knew before the step; it then includes the honest arrivals of the step.
        """
        if not self.colludes:
            return deltas, before
        attackers = jnp.asarray(self.clients)
        attacks, comes_honest = attackers[client] & (times > 0), ~attackers[client] & (times > 0)
        points = jax.vmap(lambda delta: ravel_pytree(delta)[0])(deltas)
        restored = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], deltas))[1]
        if before is None:
            honest, lies = (jnp.where(one, times, 0).astype(points.dtype) for one in (comes_honest, attacks))
            seen, after = points, before
        else:
            place = jnp.arange(len(client))
            newest = jnp.full(len(attackers), -1).at[client].max(jnp.where(comes_honest, place, -1))
            row = jnp.where(comes_honest & (newest[client] == place), client, len(attackers))
            seen = before.updates.at[row].set(points, mode="drop")
            after = Delivered(seen, before.known.at[row].set(True, mode="drop"))
            honest, lies = after.known.astype(points.dtype), attackers.astype(points.dtype)
        forged = restored(self._made("collude", "`sent.key` in `forge`", points[0], seen, honest, lies))
        replaced = attacks & (jnp.sum(honest) > 0)
        return jax.tree.map(lambda new, old: jnp.where(expand(replaced, old), new, old), forged, deltas), after

    def labels(self, y: Tree) -> Tree:
        """Returns the labels of a client; `clients` is True if it attacks. Negative labels are padding, and stay."""
        with traced_method(f"the attack {self.name}", "label", "`sent.key` in `forge`"):
            lies = jax.tree.map(self.label, y)
        return jax.tree.map(lambda y, lie: jnp.where(self.clients & ((y >= 0) | (self.classes == 0)), lie, y), y, lies)
