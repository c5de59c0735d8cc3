"""Random crops and flips: every outcome, how often, and that they happen inside the compiled step."""

from __future__ import annotations

import collections

import jax
import numpy as np
import pytest

import jaxafl as afl
import jaxafl.data as data

IMAGE = np.random.default_rng(0).integers(1, 256, (5, 4, 3), np.uint8)


def outcomes(image: np.ndarray, padding: int, flip: bool = True) -> dict[bytes, tuple[int, int, bool]]:
    """Every image that augmentation may make, by its bytes."""
    height, width, channels = image.shape
    frame = np.zeros((height + 2 * padding, width + 2 * padding, channels), image.dtype)
    frame[padding : padding + height, padding : padding + width] = image
    made = {}
    for top in range(2 * padding + 1):
        for left in range(2 * padding + 1):
            crop = frame[top : top + height, left : left + width]
            made[crop.tobytes()] = (top, left, False)
            if flip:
                made[crop[:, ::-1].tobytes()] = (top, left, True)
    return made


def many(augment, image, count, seed=0):
    keys = jax.random.split(jax.random.key(seed, impl="threefry2x32"), count)
    return np.asarray(jax.jit(jax.vmap(augment, in_axes=(None, 0)))(image, keys))


@pytest.mark.parametrize("flip", [True, False])
def test_all_crops_and_flips_and_nothing_else_occur_equally_often(flip):
    """Chi-square against the uniform distribution over (2·2 + 1)² places and two orientations."""
    allowed = outcomes(IMAGE, 2, flip)
    assert len(allowed) == 25 * (1 + flip)
    images = many(data.crop_and_flip(2, flip), IMAGE, 10_000)
    assert images.shape == (10_000, *IMAGE.shape) and images.dtype == np.uint8
    seen = collections.Counter(allowed[image.tobytes()] for image in images)
    assert set(seen) == set(allowed.values())
    expected = len(images) / len(allowed)
    statistic = sum((count - expected) ** 2 / expected for count in seen.values())
    freedom = len(allowed) - 1
    assert statistic < freedom + 3 * np.sqrt(2 * freedom)


def test_augmentation_and_statistics_that_change_the_form_of_samples_are_refused():
    def check(x, **options):
        given = data.from_arrays(x, np.arange(8) % 2, np.arange(8) % 2, test_fraction=0.5, **options)
        client, clock = afl.Client(learning_rate=0.1, steps=1, batch_size=2), afl.clock.synchronous(cohort=2)
        afl.Simulation(given, afl.models.mlp(2, (3,)), client, afl.server.fedavg(), clock).check()

    images = np.zeros((8, 4, 4, 1), np.uint8)
    brighter = data.normalise(augment=lambda x, key: x * 1.5)
    with pytest.raises(ValueError, match=r"uint8\[4, 4, 1\] into float32\[4, 4, 1\]; expected the same"):
        check(images, preprocessing=brighter)
    check(images.astype(float), preprocessing=brighter)
    with pytest.raises(ValueError, match=r"expected one per channel"):
        check(images, preprocessing=data.normalise(255.0, (0.4, 0.5, 0.6)))
