"""Numbers of uploads are checked wherever an upload is held, before compilation."""

from __future__ import annotations

from typing import Any

import pytest

import jaxafl as afl
from jaxafl import upload
from jaxafl.options import static
from tests.test_upload import simulation


class holding(upload.Upload):
    parts: Any = static()

    def apply(self, delta: Any, sent: Any) -> Any:
        return delta


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (upload.clip_by_global_norm(-1.0), "max_norm must be > 0"),
        (upload.clip_by_global_norm(float("nan")), "max_norm must be a finite number"),
        (upload.add_noise(-2.0), "std must be >= 0"),
        (upload.add_noise([1.0, 2.0]), r"one number per client \(6,\), got shape \(2,\)"),
    ],
)
def test_numbers_are_checked_wherever_an_upload_is_held(part: Any, message: str) -> None:
    held = [
        upload.chain(part),
        upload.chain(named=part),
        upload.chain(upload.chain(part)),
        upload.error_feedback(upload.chain(part)),
        upload.chain(inner=upload.error_feedback(part)),
        holding((upload.sign(), part)),
    ]
    for one in held:
        with pytest.raises(ValueError, match=message):
            simulation(one).check()
    good = simulation(upload.chain(upload.add_noise(1.0)))
    with pytest.raises(ValueError, match="std must be >= 0, got -1"):
        afl.sweep(good, {"client.upload.add_noise.std": [1.0, -1.0]}, 2)
