"""Options that cannot be: one table of (what is made, option that the message names, class of the error)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jaxafl import data

BAD: list[tuple[Callable[[], Any], str, type[Exception]]] = [
    # preprocessing
    (lambda: data.crop_and_flip(padding=-1), "padding", ValueError),
    (lambda: data.crop_and_flip(padding=1.5), "padding", TypeError),
    (lambda: data.crop_and_flip(flip=1), "flip", TypeError),
    (lambda: data.normalise(scale="a"), "scale", TypeError),
    (lambda: data.normalise(scale=0), "scale", ValueError),
    (lambda: data.normalise(std=[1.0, 0.0]), "std", ValueError),
    (lambda: data.normalise(mean=None), "mean", TypeError),
    (lambda: data.normalise(mean=[0.5, float("nan")]), "mean", ValueError),
    # sources
    (lambda: data.synthetic(alpha=-1.0), "alpha", ValueError),
    (lambda: data.synthetic(alpha="a"), "alpha", TypeError),
    (lambda: data.synthetic(clients=0), "clients", ValueError),
    (lambda: data.synthetic(clients=2**31), "clients", ValueError),
    (lambda: data.synthetic(max_size=1), "max_size", ValueError),
    (lambda: data.synthetic(seed=2**64), "seed", ValueError),
    (lambda: data.synthetic(lazy="no"), "lazy", TypeError),
    (lambda: data.mnist("absent", by="user"), "by", ValueError),
    (lambda: data.cifar10("absent", augment="crop"), "augment", TypeError),
    (lambda: data.cifar10("absent", download="yes"), "download", TypeError),
    (lambda: data.download("mnst", "absent"), "name", ValueError),
    # partitions
    (lambda: data.dirichlet(0.0, 5), "alpha", ValueError),
    (lambda: data.dirichlet([0.1, 0.2], 5), "alpha", ValueError),
    (lambda: data.dirichlet(None, 5), "alpha", TypeError),
    (lambda: data.dirichlet(1.0, 5, min_size=-1), "min_size", ValueError),
    (lambda: data.dirichlet_equal(-1.0, 5), "alpha", ValueError),
    (lambda: data.iid(0), "clients", ValueError),
    (lambda: data.by_user(0), "clients", ValueError),
    (lambda: data.classes_per_client(0, 5), "k", ValueError),
    (lambda: data.shards(0, 5), "per_client", ValueError),
    (lambda: data.sizes([]), "sizes", ValueError),
    (lambda: data.sizes([5, 0]), "sizes", ValueError),
    (lambda: data.sizes([5, 5], 2, alpha=1.0), "classes", ValueError),
    (lambda: data.sizes([5, 2], 3), "classes", ValueError),
    (lambda: data.sizes([5], alpha=0), "alpha", ValueError),
]


@pytest.mark.parametrize("case", range(len(BAD)))
def test_what_cannot_be_is_refused_by_its_name(case: int) -> None:
    make, name, error = BAD[case]
    with pytest.raises(error, match=name):
        make()
