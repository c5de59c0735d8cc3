"""What the studies share: Fashion-MNIST on 20 clients of different speed and classes, and the servers' rates."""

from __future__ import annotations

import functools

import jaxafl as afl
from experiments.suite import Claim, stand_in

CLIENTS, LOCAL_STEPS, SEEDS = 20, 10, 10
TIMES = afl.clock.uniform(1, 10, per="client") * afl.clock.uniform(0.8, 1.2)
DATA_NOTE = (
    "Nothing here was published, so there is nothing to compare with. Fashion-MNIST is divided into equal parts whose "
    "classes are drawn from Dir(0.3, ..., 0.3). The slowest client is up to ten times as slow as the fastest. "
)


@functools.lru_cache(None)
def data(scale: str, clients: int = CLIENTS) -> afl.data.FederatedData:
    """Equal parts with a mix of classes; the division is the same for all seeds."""
    images = stand_in((28, 28, 1), 10) if scale == "smoke" else afl.data.fashion_mnist()
    return images.partition(afl.data.dirichlet_equal(3.0, clients))


@functools.lru_cache(None)
def model(scale: str) -> afl.models.Model:
    """An MLP 784-50-10: 39,760 numbers, of which an update is 159 kB."""
    return afl.models.logistic(10) if scale == "smoke" else afl.models.mlp(10, hidden=(50,))


def client(upload: object = None) -> afl.Client:
    """Local training: ten local steps on 20 samples each."""
    return afl.Client(learning_rate=0.05, steps=LOCAL_STEPS, batch_size=20, upload=upload)


def above(text: str, one: tuple[str, str], other: tuple[str, str]) -> Claim:
    """Returns the claim that one method and column is more accurate than another."""
    return Claim(text, lambda values: values(*one) - values(*other), " points")


def scales(cpu: str, whole: str) -> dict[str, str]:
    """Returns what is run at each scale; these studies have no paper, and `paper` is their larger scale."""
    smoke = "noise in the place of the images, logistic regression, a few server steps"
    return {"smoke": smoke, "cpu": f"{cpu}, three seeds", "paper": f"no paper, but larger: {whole}, ten seeds"}
