"""Personal parameters: those that a client keeps and never sends, chosen by `Client(personal=...)`."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxafl.client.frozen import trained_of
from jaxafl.client.options import Client
from jaxafl.models.model import path_of
from jaxafl.options import UserError

Tree = Any


def shared_of(client: Client, tree: Tree) -> Tree:
    """Returns a tree of parameters with `None` for the personal ones."""
    if client.personal is None:
        return tree
    return jax.tree.map(lambda leaf, personal: None if personal else leaf, tree, _marks(client, tree))


def personal_of(client: Client, tree: Tree) -> Tree:
    """Returns a tree of parameters with `None` for those that are not personal."""
    return jax.tree.map(lambda leaf, personal: leaf if personal else None, tree, _marks(client, tree))


def filled(part: Tree, tree: Tree) -> Tree:
    """Returns a tree of parameters with the leaves of `part` that are not `None`, and else those of `tree`."""
    return jax.tree.map(lambda new, old: old if new is None else new, part, tree, is_leaf=lambda leaf: leaf is None)


def sent_of(client: Client, tree: Tree) -> Tree:
    """Returns a tree of parameters with `None` for those that are frozen or personal, and so never sent."""
    trained = trained_of(client, tree)
    if client.personal is None:
        return trained
    marks = _marks(client, tree)
    return jax.tree.map(
        lambda leaf, personal: None if personal else leaf, trained, marks, is_leaf=lambda leaf: leaf is None
    )


def _marks(client: Client, tree: Tree) -> Tree:
    """Returns True for each personal parameter.

    Raises:
        UserError: the predicate selects no parameter, or all.
        TypeError: it returns no bool.
    """
    assert client.personal is not None
    names = [path_of(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    found = [client.personal(name) for name in names]
    for name, one in zip(names, found, strict=True):
        if not isinstance(one, bool | np.bool_):
            raise TypeError(f"Client: personal returned {one!r} for {name!r}; expected True or False")
    if all(found) or not any(found):
        listed = ", ".join(names[:5]) + ", ..." * (len(names) > 5)
        raise UserError(
            f"Client: personal selects {'all' if all(found) else 'none'} of the parameters {listed}; expected some. "
            "It is a function of a path, such as lambda path: path.startswith('head/')"
        )
    return jax.tree.unflatten(jax.tree.structure(tree), map(bool, found))
