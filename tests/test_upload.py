"""Transformations of updates against NumPy, the bytes that they send, and that they act once per run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxafl as afl
from jaxafl import upload
from jaxafl.client.upload import Sent, Size
from jaxafl.clock import Delivery
from jaxafl.options import Number, number
from jaxafl.server import Needs, Outcome, Server
from jaxafl.sweep.assemble import labels
from tests.problems import descent
from tests.variants import slow_but

STEPS = 12
PLACES = afl.clock.uniform(1, 3)
SENT = Sent(*map(jnp.int32, (0, 0, 1, 1)), jax.random.key(0))


class still(Server):
    """Keeps x_0 and records what it receives, so that equal runs have equal updates whatever is sent."""

    accepts = Server.accepts | Delivery.REPEATED | Delivery.BY_CLIENT

    def update(self, params: Any, state: Any, arrivals: Any) -> Outcome:
        received = {f"received_{place}": arrivals.delta["w"][:, place] for place in range(3)}
        return Outcome(params, state, received | {"places": jnp.int32(len(arrivals.mask))})


class waiting(still):
    """Also answers, so that its clock is advanced inside the training loop."""

    needs = Needs(replies=True)

    def update(self, params: Any, state: Any, arrivals: Any) -> Outcome:
        return super().update(params, state, arrivals)._replace(next_steps=jnp.full_like(arrivals.client, 2))


def simulation(part: Any = None, server: Any = None, clock: Any = None, **options: Any) -> afl.Simulation:
    client = afl.Client(learning_rate=0.1, steps=2, batch_size=1, upload=part, **options)
    clock = clock or afl.clock.free_running(concurrency=4, buffer=2, durations=PLACES)
    return descent(client=client, server=server or still(), clock=clock)


def vectors(result: Any) -> np.ndarray:
    return np.stack([result[f"received_{place}"].values for place in range(3)], -1)


def received(*given: Any, **options: Any) -> np.ndarray:
    return vectors(simulation(*given, **options).run(STEPS, seed=3))


def check_repeated(sim: afl.Simulation, clients: Any = range(6)) -> None:
    """An update that is taken again is the same."""
    result = sim.run(STEPS, seed=3)
    runs, found, here = result.run_index.values, vectors(result), np.isin(result.client_id.values, clients)
    same = (runs[1:] == runs[:-1]) & (runs[1:] >= 0) & here[1:]
    assert same.any()
    np.testing.assert_array_equal(found[1:][same], found[:-1][same])


def largest(v: np.ndarray, count: int) -> np.ndarray:
    kept = sorted(range(len(v)), key=lambda place: (-abs(v[place]), place))[:count]
    return np.where(np.isin(np.arange(len(v)), kept), v, 0)


def clipped(v: np.ndarray, norm: float) -> np.ndarray:
    return v * min(1, norm / np.linalg.norm(v)) if v.any() else v


FORMULAS = {
    "clip": (upload.clip_by_global_norm(0.4), lambda v: clipped(v, 0.4)),
    "top": (upload.top_k(count=2), lambda v: largest(v, 2)),
    "share": (upload.top_k(share=0.3), lambda v: largest(v, 1)),
    "sign": (upload.sign(), lambda v: np.sign(v) * np.abs(v).mean()),
    "plain sign": (upload.sign(scale=False), np.sign),
    "optax": (optax.clip(0.1), lambda v: np.clip(v, -0.1, 0.1)),
    "chain": (
        upload.chain(
            upload.clip_by_global_norm(0.4), optax.clip(0.3), upload.top_k(count=2), last=upload.top_k(count=1)
        ),
        lambda v: largest(np.clip(clipped(v, 0.4), -0.3, 0.3), 1),
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_the_server_receives_what_the_formula_says(name: str) -> None:
    part, formula = FORMULAS[name]
    whole = np.arange(12.0).reshape(4, 3) - 5
    whole[1] = 0
    part = afl.Client(upload=part, learning_rate=0.1).upload
    for row in whole / 7:
        delta = {"w": jnp.asarray(row, jnp.float32)}
        found = part.update(delta, part.init(delta), SENT)[0]["w"]
        np.testing.assert_allclose(found, formula(row), rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_noise_is_that_of_the_run_for_any_number_of_takings() -> None:
    part = upload.add_noise(1.0)
    first = simulation(part).run(STEPS, seed=3)
    np.testing.assert_allclose(first.computed_delta_norm, np.linalg.norm(received(), axis=-1), rtol=1e-6)
    assert not np.isclose(vectors(first), vectors(simulation(part).run(STEPS, seed=4))).any()
    check_repeated(simulation(part, clock=afl.clock.bernoulli(1.0, 0.3)))


def drawn(made: Callable[[Sent], Any], count: int) -> np.ndarray:
    """What is made of so many keys."""
    keys = jax.vmap(jax.random.key)(jnp.arange(count))
    return np.asarray(jax.vmap(lambda key: made(SENT._replace(key=key)))(keys))


def test_draws_have_the_moments_of_the_formulas_and_are_independent() -> None:
    v = jnp.asarray([3.0, 4.0, 0.0, -1.0])

    def draws(part: Any) -> np.ndarray:
        return drawn(lambda sent: part.update(v, part.init(v), sent)[0], 4000)

    noise = draws(upload.add_noise(0.5)) - np.asarray(v)
    np.testing.assert_allclose(np.cov(noise.T), 0.25 * np.eye(4), atol=0.02)
    coarse = draws(upload.qsgd(levels=2))
    np.testing.assert_allclose(coarse.mean(0), v, atol=0.12)
    levels = np.linalg.norm(v) / 2 * np.arange(-2, 3)
    assert np.abs(coarse[..., None] - levels).min(-1).max() < 1e-5
    few = draws(upload.random_k(count=2))
    assert ((few != 0).sum(1) <= 2).all()
    np.testing.assert_allclose(few.mean(0), v, atol=0.25)
    assert {*np.unique(draws(upload.random_k(count=1, unbiased=False)))} == {-1, 0, 3, 4}
    two = draws(upload.chain(upload.add_noise(1.0), more=upload.add_noise(1.0))) - np.asarray(v)
    np.testing.assert_allclose(two.std(0), 2**0.5, atol=0.07)  # 2 if both had one key


@pytest.mark.slow
def test_bytes_are_those_of_the_formulas() -> None:
    size = Size(1000, 32)

    def sent(part: Any) -> float:
        return part.size(size, (600, 400)).bytes

    assert sent(upload.clip_by_global_norm(1.0)) == sent(upload.add_noise(1.0)) == 4000
    assert sent(upload.top_k(share=0.01)) == np.ceil(10 * (32 + 10) / 8)
    assert sent(upload.random_k(count=10)) == (10 * 32 + 64) / 8
    assert sent(upload.sign()) == np.ceil((1000 + 32) / 8)
    clip = upload.clip_by_global_norm(1.0)  # after numbers without a scale, its factor is sent, too
    assert sent(upload.chain(upload.sign(scale=False), clip)) == sent(upload.sign())
    for part in (upload.sign(), upload.qsgd(levels=1), upload.top_k(count=10), upload.random_k(count=10)):
        assert sent(upload.chain(part, clip, again=clip)) == sent(part)
    assert sent(upload.qsgd(levels=16)) == np.ceil((1000 * 6 + 32) / 8)
    assert sent(upload.chain(upload.top_k(count=10), upload.qsgd(levels=4))) == np.ceil((10 * (4 + 10) + 32) / 8)
    assert sent(upload.chain(upload.top_k(count=10), upload.add_noise(1.0))) == 4000
    errors, of_signs = upload.error_feedback, np.ceil((1000 + 32) / 8)  # Δ + e is dense, whatever Δ is
    assert sent(upload.chain(upload.top_k(count=10), errors(upload.sign()))) == of_signs
    assert sent(upload.chain(upload.qsgd(levels=1), errors(upload.top_k(count=10)))) == np.ceil(10 * (32 + 10) / 8)
    assert sent(upload.chain(upload.sign(scale=False), optax.trace(0.9))) == 4000
    doubles = jax.ShapeDtypeStruct((1000,), np.float64)
    assert upload.received_size(upload.chain(upload.top_k(count=10), upload.add_noise(1.0)), [doubles]) == 8000
    result = simulation(upload.top_k(count=1), clock=afl.clock.synchronous()).run(3)
    plain = simulation(clock=afl.clock.synchronous()).run(3)
    assert (result.bytes_down == plain.bytes_down).all()
    assert (result.bytes_up == 6 * np.ceil((32 + 2) / 8)).all()
    assert (plain.bytes_up == 6 * 12).all()
    steps = [simulation(part).run(until={"bytes": 204}).sizes["step"] for part in (upload.top_k(count=1), None)]
    assert steps == [5, 4]  # 4 downloads at first, then 2 uploads and 2 downloads per step, 12 bytes each but for the 5


@pytest.mark.slow
def test_numbers_of_a_chain_are_swept_by_name_and_described() -> None:
    sim = simulation(upload.chain(upload.clip_by_global_norm(1.0), upload.top_k(count=2)))
    path = "client.upload.clip_by_global_norm.max_norm"
    swept = afl.sweep(sim, {path: [0.05, 0.4]}, STEPS, seed=3)
    for norm in (0.05, 0.4):
        alone = received(upload.chain(upload.clip_by_global_norm(norm), upload.top_k(count=2)))
        np.testing.assert_allclose(vectors(swept.sel({path: norm})), alone, rtol=1e-6)
    kept = afl.sweep(sim, {"client.upload.top_k.count": [1, 3]}, STEPS, seed=3)
    assert (vectors(kept) != 0).sum(-1).max((1, 2)).tolist() == [1, 3]
    assert "chain(clip_by_global_norm(max_norm=1.0), top_k(count=2))" in repr(sim.client)


@pytest.mark.slow
def test_a_norm_can_differ_by_client() -> None:
    norms = np.linspace(0.01, 0.06, 6)
    result = simulation(upload.clip_by_global_norm(norms)).run(STEPS, seed=3)
    found = np.linalg.norm(vectors(result), axis=-1)
    assert (found <= norms[result.client_id.values.astype(int)] * (1 + 1e-6)).all()


class taller(upload.Upload):
    def apply(self, delta: Any, sent: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), delta)


class sized(upload.Upload):
    """Says a size, by default one that cannot be."""

    bits: Number = number(default=-1.0)

    def apply(self, delta: Any, sent: Any) -> Any:
        return delta

    def size(self, size: Size, leaves: tuple[int, ...]) -> Any:
        return size._replace(bits=float(self.bits))


def test_members_that_send_other_sizes_have_other_schedules() -> None:
    sim = simulation(type("own", (sized,), {})(8.0), clock=afl.clock.free_running(2, durations=afl.clock.link(up=1e3)))
    time = afl.sweep(sim, {"client.upload.bits": [8.0, 32.0]}, 3).time.values[:, -1]
    assert time[1] > 1.5 * time[0]


class rounding(upload.Upload):
    def apply(self, delta: Any, sent: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf.astype(jnp.float16), delta)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (lambda: upload.top_k(), "share or count"),
        (lambda: upload.top_k(share=1.5), "share"),
        (lambda: upload.top_k(count=4), "count"),
        (lambda: upload.chain(), "chain"),
        (lambda: upload.chain(optax.clip(1.0), optax.clip(2.0)), "names"),
        (lambda: upload.chain(upload.sign(), optax.clip(1.0)), "size"),
        (lambda: optax.add_noise(0.1, 0.5, key=0), "PRNG key"),
        (lambda: "top_k", "upload"),
        (lambda: taller(), "`apply` of the upload taller"),
        (lambda: rounding(), "float16"),
        (lambda: sized(), "bits=-1"),
        (lambda: upload.qsgd(levels=0), "levels"),
        (lambda: upload.error_feedback(upload.random_k(count=1)), "unbiased"),
        (lambda: upload.error_feedback(upload.sign(scale=False)), "sign"),
        (lambda: upload.error_feedback(upload.add_noise(0.1)), "noise"),
        (lambda: upload.error_feedback(upload.chain(upload.top_k(count=2), upload.random_k(count=1))), "unbiased"),
        (lambda: upload.error_feedback(upload.error_feedback(upload.sign())), "once"),
    ],
)
def test_an_upload_that_cannot_be_is_an_error_before_compilation(part: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError, NotImplementedError), match=message):
        simulation(part()).check()


class holding(upload.Upload):
    parts: Any = afl.options.static()

    def apply(self, delta: Any, sent: Any) -> Any:
        return delta


@pytest.mark.parametrize("bad", [upload.clip_by_global_norm(float("nan")), upload.add_noise([1.0, 2.0])])
def test_numbers_are_checked_wherever_an_upload_is_held(bad: upload.Upload) -> None:
    held = [
        upload.chain(named=bad),
        upload.error_feedback(upload.chain(bad)),
        upload.chain(inner=upload.error_feedback(bad)),
        holding((upload.sign(), bad)),
    ]
    for one in held:
        with pytest.raises(ValueError, match=r"max_norm|std"):
            simulation(one).check()


def test_transformations_along_an_axis_have_names_without_addresses() -> None:
    several = [None, optax.clip(0.1), optax.clip(0.2), optax.trace(0.9), functools.partial(optax.clip, 0.3)]
    clips = "clip 0", "clip 1"
    assert labels(several) == ["None", *clips, "trace", "functools.partial(<function clip>, 0.3)"]


def test_local_accuracy_is_refused() -> None:
    with pytest.raises(ValueError, match="local_accuracy is that of x_s"):
        simulation(upload.sign()).run(2, diagnostics="local_accuracy")


def kept(count: int) -> tuple[Any, Any]:
    """Compiled top_k, and the number of ones that random_k leaves."""
    some = upload.random_k(count=count, unbiased=False)
    return (
        jax.jit(lambda v: upload.top_k(count=count).of_vector(v, SENT)),
        jax.jit(lambda v: some.of_vector(v, SENT).sum()),
    )


COUNTS = {count: kept(count) for count in (1, 3, 40)}  # the first by a partial sort


@pytest.mark.slow
@given(st.lists(st.sampled_from([-2.0, -0.0, 0.0, 1.0, 2.0, 3.5]), max_size=150), st.sampled_from(list(COUNTS)))
def test_the_largest_are_kept_and_of_equal_ones_the_first(values: list[float], count: int) -> None:
    """Also where numbers are counted instead of sorted, which takes over at two in a hundred."""
    v = np.asarray(values + [0.0] * (150 - len(values)), np.float32)
    order = np.argsort(-np.abs(v), kind="stable")[:count]
    expected = np.zeros_like(v)
    expected[order] = v[order]
    largest, some = COUNTS[count]
    np.testing.assert_array_equal(largest(v), expected)
    assert some(np.ones(150, np.float32)) == count


@pytest.mark.parametrize("dtype", slow_but(["float16", "bfloat16", "float64"], "bfloat16"))
def test_the_largest_of_other_floats_are_kept(dtype: str) -> None:
    with jax.enable_x64(True):
        v = jnp.asarray([0.5, -3.0, 0.0, 2.0, -2.0], dtype)
        found = upload.top_k(count=2).of_vector(v, SENT)
        assert found.dtype == v.dtype
        np.testing.assert_array_equal(found.astype(float), [0.0, -3.0, 0.0, 2.0, 0.0])
