"""Steps and short runs of servers that are worked by hand."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxafl as afl
from jaxafl import clock, server
from jaxafl.clock import trace
from jaxafl.clock.protocols.rounds import RESYNCHRONISED, UNDRAFTED
from jaxafl.device import as_arrays
from jaxafl.server import Arrivals, Delivery, Server
from tests.oracle.server import Update
from tests.problems import Problem, quadratic_loss, simulate


def vector(*values: float) -> np.ndarray:
    return np.array(values, float)


def u(client: int, delta: float, x_start: float = 0.0, **fields: int) -> Update:
    """Returns an arrival of a model with one parameter."""
    return Update(client=client, delta=vector(delta), x_start=vector(x_start), **fields)


class Steps:
    """A server outside of a simulation, for models of one array. `samples`: n_i of all clients."""

    def __init__(self, made: Server, samples: Sequence[int] | None = None, x0: np.ndarray | None = None) -> None:
        self.server, self.samples, self.fixed = made, samples or (1,) * 10, samples is not None
        self.state: Any = None
        self.count, self.start = 0, x0

    def step(self, x: np.ndarray, updates: Sequence[Update], kind: Sequence[int] = ()) -> np.ndarray:
        """Returns the parameters after a step, and keeps the outcome."""
        if not updates and not self.server.needs.empty_steps:
            return x
        with jax.enable_x64(True):
            return self._step(np.asarray(x, float), updates, kind)

    def _step(self, x: np.ndarray, updates: Sequence[Update], kind: Sequence[int]) -> np.ndarray:
        made = as_arrays(self.server, jnp.float64)
        params, samples = {"x": jnp.asarray(x)}, jnp.asarray(self.samples, jnp.float64)
        if self.state is None:
            self.state = made.init(params if self.start is None else {"x": jnp.asarray(self.start)}, samples)
        entries: list[Update | None] = list(updates) or [None]  # a step without arrivals has padding
        if made.requires & Delivery.BY_CLIENT:  # entry i is client i
            entries = [next((one for one in updates if one.client == k), None) for k in range(len(self.samples))]
        nobody = Update(client=0, delta=np.zeros_like(x), x_start=np.zeros_like(x), local_steps=0, num_samples=0)
        filled = [one or nobody for one in entries]
        column = {field.name: [getattr(one, field.name) for one in filled] for field in dataclasses.fields(Update)}
        whole = {name: jnp.asarray(column[name], jnp.int32) for name in ("staleness", "local_steps", "multiplicity")}
        own = [self.samples[one.client] if self.fixed else one.num_samples for one in filled]
        arrivals = Arrivals(
            mask=jnp.asarray([one is not None for one in entries]),
            client=jnp.asarray(column["client"], jnp.int32),
            kind=jnp.asarray(kind or [0] * len(filled), jnp.int32),
            delta={"x": jnp.asarray(column["delta"])},
            base={"x": jnp.asarray(column["x_start"])},
            samples=jnp.asarray(own, jnp.float64),
            loss=jnp.zeros(len(filled)),
            step=jnp.int32(self.count),
            time=jnp.float64(0),
            **whole,
        )
        self.outcome = made.update(params, self.state, arrivals)
        self.state, self.count = self.outcome.state, self.count + 1
        return np.asarray(self.outcome.params["x"])

    def told(self, name: str) -> float:
        return float(np.ravel(self.outcome.info[name])[-1])


COHORT = [u(0, 1.0, num_samples=1), u(1, 4.0, num_samples=3)]
BUFFER = [u(0, 2.0), u(1, 4.0, staleness=3)]
WEIGHTED = [u(0, 2.0, local_steps=4), u(1, 6.0, staleness=3, num_samples=3)]
PAIR = [u(0, 1.0), u(1, 3.0)]  # D = 2
DESCENTS = [u(0, -2.0), u(1, -4.0)]
CONTACTED = [u(0, 3.0, x_start=2.0, local_steps=3), u(1, 0.0, x_start=1.0, local_steps=0)]
MODELS = [u(0, 1.0, x_start=1.0), u(1, 3.0, x_start=3.0, staleness=1)]
NOVA = [u(0, 2.0, local_steps=1, num_samples=1), u(1, 9.0, local_steps=3, num_samples=3)]
TABLE = [u(0, 4.0), u(1, 2.0)]


def fedasync(rule: Any, staleness: int, x: float, **options: Any) -> Any:
    made = server.fedasync(0.5, rule, options.pop("exponent", 0.5), **options)
    return made, None, [(2.0, [u(0, 3.0, x_start=1.0, staleness=staleness)], x)]


def fadas(correction: Any, factor: float) -> Any:
    made = server.fadas(0.01, bias_correction=correction, eps=0.0)
    return made, None, [(0.0, PAIR, 0.01), (0.01, [u(0, 0.0)], 0.01 * factor)]


def delayed(rate: float, scaling: Any, tau: int, moved: float) -> Any:
    made = server.fadas(rate, delay_scaling=scaling, tau_c=1, eps=0.0)
    return made, None, [(0.0, [u(0, 2.0), u(1, 2.0, staleness=tau)], moved)]


def adaptive(rule: str, rate: float, c: float | None = 2.0, **options: Any) -> Any:
    made = server.delay_adaptive(0.1, rule, c, **options)  # type: ignore[arg-type]
    return made, None, [(1.0, [u(0, 3.0, staleness=2)], 1.3), (1.0, [u(0, 3.0, staleness=4)], 1 + 3 * rate)]


# server, samples of all clients, and steps: x, arrivals, next x. The state is kept from step to step.
STEPS: dict[str, tuple[Server, Any, list[tuple[float, list[Update], float]]]] = {
    # 1/4 + 3; (1 + 1 + 4) / 3
    "fedavg": (
        server.fedavg(),
        None,
        [(10, COHORT, 13.25), (10, [], 10), (0, [u(0, 1.0, multiplicity=2), u(1, 4.0)], 2.0)],
    ),
    "fedavg uniform": (server.fedavg(weights="uniform"), None, [(10, COHORT, 12.5)]),
    "fedavg twice": (server.fedavg(2.0), None, [(10, COHORT, 16.5)]),
    "fedasync constant": fedasync("constant", 3, 3.0),  # 1/2 2 + 1/2 4
    "fedasync delta": fedasync("constant", 3, 3.5, mix="delta"),  # 2 + 1/2 3
    "fedasync polynomial": fedasync("polynomial", 3, 2.5),  # s = 1/2: 3/4 2 + 1/4 4
    "fedasync hinge": fedasync("hinge", 4, 3.0),  # s = 1
    "fedasync hinge, late": fedasync("hinge", 6, 2.5),  # s = 1 / (1/2 2 + 1)
    # two arrivals of staleness 1 count as versions 2 and 3 old: weights 1/3 and 1/4. 0 -> 1 -> 3/4 + 1/4 4
    "fedasync, several": (
        server.fedasync(1.0, "polynomial", 1.0),
        None,
        [(0, [u(0, 3.0, staleness=1), u(1, 4.0, staleness=1)], 1.75)],
    ),
    "fedbuff": (server.fedbuff(staleness="none"), None, [(0, BUFFER, 3.0)]),
    "fedbuff polynomial": (server.fedbuff(), None, [(0, BUFFER, 2.0)]),  # (2 + 4/2) / 2
    "fedbuff sum": (server.fedbuff(staleness="none", reduce="sum"), None, [(0, BUFFER, 6.0)]),
    # m = 3; an empty tick leaves m alone; m = 1.5 + 1
    "fedbuff momentum": (
        server.fedbuff(0.1, "none", 0.5),
        None,
        [(0, BUFFER, 0.3), (0.3, [], 0.3), (0.3, [u(0, 1.0)], 0.55)],
    ),
    "fedbuff, equal": (server.fedbuff(), None, [(0, WEIGHTED, 2.5)]),  # (2 + 6/2) / 2
    "fedbuff, samples": (server.fedbuff(weights="samples"), None, [(0, WEIGHTED, 2.75)]),  # 1/4 2 + 3/4 6/2
    "fedbuff, local steps": (server.fedbuff(weights="local_steps"), None, [(0, WEIGHTED, 2.2)]),  # 4/5 2 + 1/5 6/2
    # D = 2: m = .2, v = v_hat = .04, step eta. D = 0: m = .18, v_hat stays .04: step .9 eta.
    "fadas": fadas("none", 1.9),
    # D = 2: (1/.1) .2 / (.2/.1) = 1. D = 0: (1/.19) .18 / (.2 / sqrt(.0199)).
    "fadas authors": fadas("authors", 1 + 0.18 / 0.19 * math.sqrt(0.0199) / 0.2),
    # D = 2: v_hat = .04/.01 = 4, m / .1 = 2. D = 0: .0396/.0199 < 4, so .18/.19 / 2.
    "fadas optax": fadas("optax", 1 + 0.18 / 0.19 / 2),
    "fadas, late": delayed(0.5, None, 4, 0.5),
    "fadas eq4": delayed(0.5, "eq4", 1, 0.5),
    "fadas eq4, late": delayed(0.5, "eq4", 4, 0.25),
    "fadas eq4, slow": delayed(0.1, "eq4", 4, 0.1),
    "fadas eq77": delayed(0.5, "eq77", 1, 0.5),
    "fadas eq77, late": delayed(0.5, "eq77", 4, 0.125),
    # eps = 1, so v_0 = 1; b1 = .5: D = 2 gives m = 1
    "fedadagrad": (server.fedadagrad(1.0, 0.5, 1.0), None, [(0, PAIR, 1 / (math.sqrt(5) + 1))]),
    "fedadam": (server.fedadam(1.0, 0.5, 0.5, 1.0), None, [(0, PAIR, 1 / (math.sqrt(2.5) + 1))]),
    # v = 1 - .5 4 (-1) = 3; D = 1: m = 1, v = 3 - .5 1 (+1) = 2.5
    "fedyogi": (
        server.fedyogi(1.0, 0.5, 0.5, 1.0),
        None,
        [(0, PAIR, 1 / (math.sqrt(3) + 1)), (0, [u(0, 1.0)], 1 / (math.sqrt(2.5) + 1))],
    ),
    # m = .2, v = .04, v_hat = max(.25, .04): .2 / .5
    "fedams": (server.fedams(1.0, eps=0.0, max_init=0.25), None, [(0, PAIR, 0.4)]),
    # D = 2: m = 1, v = 2, of which the corrected are 2 and 4; D = 0: 1/2 and 1 become 2/3 and 4/3
    "fedopt, adamw": (
        server.fedopt(optax.adamw, 0.1, b1=0.5, b2=0.5, eps=1.0, weight_decay=0.5),
        None,
        [(1, BUFFER, 1 + 0.1 * (2 / 3 - 0.5)), (3, [u(0, 0.0)], 3 + 0.1 * (2 / 3 / (2 / math.sqrt(3) + 1) - 1.5))],
    ),
    "asysg": (server.asysg(0.1), None, [(0, DESCENTS, -0.3)]),
    # 1/4 2 + 3/4 4
    "audg": (server.audg(0.1), (1, 3), [(0, DESCENTS, -0.35), (0, [u(0, -6.0)], -0.15), (7, [], 7)]),
    "psurdg": (server.psurdg(0.1), (1, 3), [(0, DESCENTS[1:], -0.3), (0, [u(0, -6.0)], -0.45), (0, [], -0.45)]),
    # h_bar = 3; client 0 twice: (6 - 2) + (8 - 6) = 6, over 2
    "ca2fl": (server.ca2fl(), (1, 1), [(0, [u(0, 2.0), u(1, 4.0)], 3.0), (3, [u(0, 6.0), u(0, 8.0)], 9.0)]),
    "defedavg_iid": (server.defedavg_iid(0.5), None, [(1, [u(0, 3.0), u(1, 5.0)], 3.0)]),
    # client 0 is drawn twice: (3 + 3 + 6) / 3
    "defedavg_niid": (server.defedavg_niid(), None, [(1, [u(0, 3.0, multiplicity=2), u(1, 6.0)], 5.0)]),
    "afl": (server.afl(), None, [(99, MODELS, 4.0)]),
    "afl, stale": (server.afl(1.0), None, [(99, MODELS, 10 / 3)]),  # weights 2/3, 1/3
    # u_0 = 2 + 3 / 1.5 = 4, u_1 = 1 (no step made): (4 + 4 + 1) / 3
    "favano": (
        dataclasses.replace(server.favano(), table=vector(1.5, 1.0)),
        None,  # then u_1 = 4: without a step a client sends what error feedback remembers
        [(4, CONTACTED, 3.0), (4, [CONTACTED[0], u(1, 3.0, x_start=1.0, local_steps=0)], 4.0)],
    ),
    "favano stochastic": (
        dataclasses.replace(server.favano("stochastic"), table=vector(0.5, 1.0)),
        None,
        [(4, CONTACTED, 3.0)],
    ),
    # f_0' = 1 at x_0 moves alone at first: 2 - 1/2 1/2; then both rows: f_1'(1.75) = 2.75 beside the old 1
    "mifa at once": (server.mifa(0.5, wait=False), (1, 1), [(2, [u(0, -1.0)], 1.75), (1.75, [u(1, -2.75)], 0.8125)]),
    # the round by which all have come does not step, the next does: rows 1 and 3, then client 0 at 2 again
    "mifa": (server.mifa(0.5), (1, 1), [(2, [u(0, -1.0)], 2), (2, [u(1, -3.0)], 2), (2, [u(0, -1.0)], 1)]),
    # client 0's gradients are one and two versions old: nobody counts
    "aced by row": (
        server.aced(0.5, 0, "row"),
        (1, 1),
        [(2, [u(0, -1.0), u(1, -3.0)], 1), (1, [u(0, -1.0, staleness=1)], 1), (1, [u(0, -1.0, staleness=2)], 1)],
    ),
    # 1/2 4 + 1/2 2 / 1/2; (6 - 1) + 1/2 (2 + 1); 1/2 (2 + 3)
    "fedstale": (
        dataclasses.replace(server.fedstale(memory=0.5), table=vector(1.0, 0.5)),
        (1, 1),
        [(0, TABLE, 4.0), (4, [u(1, 6.0)], 10.5), (4, [], 6.5)],
    ),
    "fedstale, fedvarp": (
        dataclasses.replace(server.fedstale(memory=1.0), table=vector(1.0, 0.5)),
        (1, 1),
        [(0, TABLE, 4.0), (4, [u(1, 6.0)], 11.0)],  # (6 - 2) + 1/2 (4 + 2)
    ),
    "picky_sgd": (
        server.picky_sgd(0.5, 2.0),
        None,
        [(3, [u(0, 4.0, x_start=1.0, staleness=9)], 5), (5, [u(1, 4.0, x_start=2.5)], 5), (-1, [u(1, 4, 1.5)], -1)],
    ),
    # tau_eff 2.5; 1/4 2 + 3/4 3. FedAvg with equal K.
    "fednova": (
        server.fednova(),
        None,
        [(1, NOVA, 1 + 2.5 * 2.75), (0, [u(0, 2.0, local_steps=4, multiplicity=2), u(1, 5.0, local_steps=4)], 3.0)],
    ),
    "fednova uniform": (server.fednova(0.5, "uniform"), None, [(0, NOVA, 2.5)]),  # 1/2 2 (2 + 3)/2
    "delay_adaptive": adaptive("ratio", 0.05),
    "delay_adaptive drop": adaptive("drop", 0.0),
    "delay_adaptive koloskova": adaptive("koloskova", 0.025, smoothness=2.5),
    "delay_adaptive koloskova, smooth": adaptive("koloskova", 0.1, smoothness=0.5),  # 1 / (8 L) > eta
    # clients 0 and 2 share a buffer: (2 + 4) / 2
    "basgd, mean": (server.basgd(1.0, aggregate=None), None, [(0, [u(0, 1.0), u(1, 4.0), u(2, 3.0)], 3.0)]),
    "fedfa": (
        server.fedfa(2),
        None,
        [(0.5, [u(0, 0.75, 0.25)], 0.5), (0.5, [u(0, 2.75, 0.25)], 2.0), (2, [u(0, 7.75, 0.25)], 5.5)],
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_steps(name: str) -> None:
    made, samples, steps = STEPS[name]
    one = Steps(made, samples)
    for x, updates, expected in steps:
        assert one.step(vector(x), updates) == pytest.approx(expected)


def test_area() -> None:
    one = Steps(server.area(), (1, 1), vector(2.0))
    assert one.step(vector(2.0), [u(0, 4.0, x_start=2.0)]) == pytest.approx(4.0)  # y = (6, 2)
    sent = [u(0, 4.0, x_start=4.0), u(1, -2.0, x_start=2.0), u(0, 1.0, x_start=4.0)]
    assert one.step(vector(4.0), sent) == pytest.approx(2.5)  # y = (5, 0)


def test_safa() -> None:
    # cache 4 (picked), 8 (deprecated), 0: 1 + 2 + 0; then client 2 enters with 10: 1 + 2 + 5
    one = Steps(server.safa(), (1, 1, 2), vector(0.0))
    assert one.step(vector(8.0), [u(0, 4.0), u(2, 10.0)], [0, RESYNCHRONISED, UNDRAFTED]) == pytest.approx(3.0)
    assert one.step(vector(3.0), []) == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("options", "x", "delta", "expected", "told"),
    [
        # ||x - x_s|| = 5, ||Delta|| = 2.5: gamma = 2, eta = 1 / 2.5 = .4; K changes by .5 (1 - 2) = -.5
        ((1.0, 0.5, 20, "floor"), (3, 4), 2.5, (3, 5), (2.0, 0.4, 9, 0, 0)),
        ((1.0, 0.5, 20, "truncate"), (3, 4), 2.5, (3, 5), (2.0, 0.4, 10, 0, 0)),
        ((20.0, 1.0, 15, "floor"), (3, 4), 2.5, (3, 5), (2.0, 0.4, 15, 0, 1)),  # 10 + 18
        ((0.0, 9.0, 15, "floor"), (3, 4), 2.5, (3, 5), (2.0, 0.4, 1, 0, 0)),  # 10 - 18
        ((3.0, 1.0, 15, "floor"), (3, 4), 0.0, (3, 4), (math.inf, 0.0, 10, 1, 0)),
        ((3.0, 1.0, 15, "floor"), (0, 0), 0.0, (0, 0), (0.0, 2.0, 13, 0, 0)),
    ],
)
def test_asyncfeded(options: Any, x: Any, delta: float, expected: Any, told: Any) -> None:
    target, kappa, most, rounding = options
    one = Steps(server.asyncfeded(1.0, 0.5, target, kappa, most, rounding))
    sent = [Update(client=3, delta=vector(0.0, delta), x_start=vector(0.0, 0.0), local_steps=10)]
    np.testing.assert_allclose(one.step(vector(*x), sent), expected)
    found = [one.told(name) for name in ("gamma", "server_rate")]
    found += [float(one.outcome.next_steps[0]), one.told("dropped"), one.told("clipped")]
    assert found == pytest.approx(told)


def test_asyncfeded_by_the_cosine() -> None:
    # from x_s = (2, 0) the client goes to (2, 2), 45 degrees away, and the server to (0, 1), 90 degrees
    one = Steps(server.asyncfeded(1.0, 1.0, 6.0, 1.0, 20, distance="cosine"))
    sent = [Update(client=3, delta=vector(0.0, 2.0), x_start=vector(2.0, 0.0), local_steps=10)]
    gamma = 1 / (1 - 1 / math.sqrt(2))  # 3.414
    np.testing.assert_allclose(one.step(vector(0.0, 1.0), sent), [0.0, 1 + 2 / (gamma + 1)])
    assert one.told("gamma") == pytest.approx(gamma) and int(one.outcome.next_steps[0]) == 12


def test_the_distance_of_picky_sgd_is_euclidean() -> None:
    for start, moves in ((1.4, True), (1.5, False)):  # 1.4^2 2 < 2^2 < 1.5^2 2
        arrival = Update(client=0, delta=vector(1.0, 1.0), x_start=vector(start, start))
        found = Steps(server.picky_sgd(0.5, 2.0)).step(vector(0.0, 0.0), [arrival])
        np.testing.assert_allclose(found, [moves / 2, moves / 2])


def test_port() -> None:
    one = Steps(server.port())
    x = one.step(vector(0.0, 0.0), [Update(client=0, delta=vector(1.0, 0.0), x_start=vector(0.0, 0.0))])
    np.testing.assert_allclose(x, [1.0, 0.0])  # the last step is (1, 0)
    fresh = Update(client=0, delta=vector(5.0, 0.0), x_start=x, num_samples=100)
    stale = Update(client=1, delta=vector(0.0, 5.0), x_start=x, num_samples=300, staleness=10)
    x = one.step(x, [fresh, stale])
    np.testing.assert_allclose(x, [3.0, 3.0])  # 100 (1 + 3), 300 (1/2 + 3/2): 0.4, 0.6
    p = 0.5 * (3 / np.sqrt(13) + 1) + 1.5  # the last step is now (2, 3): cos 3 / sqrt 13
    np.testing.assert_allclose(one.step(x, [fresh, stale])[1] - x[1], 5 * 300 * p / (400 + 300 * p))


HALF = afl.Client(learning_rate=0.5, steps=1, batch_size=None)  # halves the distance to the client's centre
WHOLE = afl.Client(learning_rate=1.0, steps=1, batch_size=None)  # Delta = centre - x_s
TWO = dataclasses.replace(HALF, steps=2)
# one epoch of Adam without memory moves a model by its rate, 1 / (1 + alpha d), towards the centre
SIGN = afl.Client(optax.adam, learning_rate=1.0, b1=0.0, b2=0.0, eps=0.0, epochs=1, batch_size=None)
LOSSY = trace(
    clock.bernoulli(0.5),
    uploads=np.array([[1, 0], [1, 1], [0, 0], [1, 1], [1, 1]], bool),
    downloads=np.array([[0, 1], [1, 1], [1, 1], [1, 0], [1, 1]], bool),
)


CONTACTS = trace(
    clock.interrupting(period=1.0, contacted=1, durations=clock.constant(np.array([0.5, 2.0]), per="step")),
    sets=np.array([[0], [1], [1], [0]]),
)
STALE = trace(
    clock.stale_rounds(participants=1, max_staleness=1, durations=clock.constant([3.0, 1.0])),
    sets=np.array([[0], [1], [0]]),
    stale=np.array([[0], [1], [1]]),
)
# server, clock, training, centres of clients with f_i(w) = 1/2 (w - c_i)^2, x_0 = 0, x_1 ..., times
RUNS: dict[str, tuple[Server, Any, Any, tuple[float, ...], list[float], list[float]]] = {
    # c0 from 0: 2 -> 2. c1 from 0: -2 -> 0. c0 from 2: 1 -> 1. c0 from 1: 1.5 -> 2.5. c1 from x_2 = 0: -2 -> .5.
    # c0 from .5: 1.75 -> 2.25.
    "fedasync": (
        server.fedasync(1.0, "constant", mix="delta"),
        clock.free_running(concurrency=2, durations=clock.constant([2.0, 3.0])),
        HALF,
        (4.0, -4.0),
        [0, 2, 0, 1, 2.5, 0.5, 2.25],
        [2, 3, 4, 6, 6, 8],
    ),
    # step 0: (2 + 0) / 2 = 1. Client 0 then trains from x_0 to 2, measured against x_1: 1; client 1 from x_1 to .5
    "start skew": (
        server.fedbuff(staleness="none"),
        clock.free_running(concurrency=2, buffer=2, dispatch="step", start_skew=True, durations=clock.constant([1, 1])),
        HALF,
        (4.0, 0.0),
        [0, 1, 1.25],
        [1, 2],
    ),
    # 1 s a step, K_0 = 2: gamma is 0, so K grows by floor(1.5) = 1 up to 4: 2 + 3 + 4 + 4 s; 16 (1 - 2^-K) of the rest
    "asyncfeded": (
        server.asyncfeded(1.0, 1.0, 1.5, 1.0, 4),
        clock.free_running(concurrency=1, durations=clock.constant(1.0, per="step")),
        TWO,
        (16.0,),
        [0, 12, 15.5, 16 - 1 / 32, 16 - 1 / 512],
        [2, 5, 9, 13],
    ),
    # rates 1/2, 1/4, 1/8: 4, then 1/4 of the remaining 4, then 1/8 of the remaining 3
    "decay by run": (
        server.fedavg(),
        clock.synchronous(),
        dataclasses.replace(HALF, rate_decay_per_run=0.5),
        (8.0,),
        [0, 4, 5, 5.375],
        [1, 2, 3],
    ),
    # eta lambda = 1/4. Tick 0: c0 offers 4: +1. Tick 1: 4 again and c1's 8: +3. Tick 2: nobody. Tick 3, both from
    # v2 = 4: 0 and 4: +1. Tick 4: c0 from v4 = 5: -1, c1's 4 again: +.75.
    "audg": (server.audg(0.5), LOSSY, WHOLE, (4.0, 8.0), [0, 1, 4, 4, 5, 5.75], [1, 2, 3, 4, 5]),
    # tick 2: 4 and 8 once more: +3. Tick 3: 0 and 4: +1. Tick 4: c0 from v4 = 8: -4, and 4: 0
    "psurdg": (server.psurdg(0.5), LOSSY, WHOLE, (4.0, 8.0), [0, 1, 4, 7, 8, 8], [1, 2, 3, 4, 5]),
    # step 0: c0 and c1 from 0: 4 and 8. Step 1: c0 from 6: 1, twice. Step 2: c1 from v1 = 6: 5, c2 from v0: 12
    "defedavg_niid": (
        server.defedavg_niid(),
        trace(clock.sampled(drawn=2, durations=clock.constant([1, 2, 5])), sets=np.array([[0, 1], [0, 0], [2, 1]])),
        HALF,
        (8.0, 16.0, 24.0),
        [0, 6, 7, 15.5],
        [2, 3, 5],
    ),
    # c0 always makes 2 steps: a = 2; c1 none, 1, 1, 2, 2, ... for gaps of 1, 2, ...: a = 1/4 + 1/8 + 2/8 = .625.
    # Contact 0: u = 3/2. Contact 1: one step from v0, 8/.625 = 12.8. Contact 2: no step: u = x_s = 6.775.
    # Contact 3: c0 from v1 = .75 moves by 3/4 of 3.25: u = .75 + 2.4375/2.
    "favano": (server.favano(), CONTACTS, TWO, (4.0, 16.0), [0, 0.75, 6.775, 6.775, 4.371875], [1, 2, 3, 4]),
    # contact 0: c0 0 -> 3; x and x_0 meet at 1.5. Contact 1: c1 0 -> 8: meet at 4.75. Contact 2: c1 has made no step.
    # Contact 3: c0 goes on from its OWN 1.5: 3.375.
    "quafl": (server.quafl(), CONTACTS, TWO, (4.0, 16.0), [0, 1.5, 4.75, 4.75, 4.0625], [1, 2, 3, 4]),
    # rate 1/2 (1 + 1)/1: every step reaches the centre. 4: 2. 16: 9. c1 stays. 4: 6.5
    "quafl, scaled": (server.quafl(True), CONTACTS, TWO, (4.0, 16.0), [0, 2, 9, 9, 6.5], [1, 2, 3, 4]),
    # weights 1/3. Round 0: c0 3, c1 6: (3 + 6 + 0)/3. Round 1: c0 from 3: 4.5, c2 from 0: 12, and c1's 6 of before:
    # 7.5; then its undrafted 7.5 (from 3). Round 2, all from 7.5: c0 6.75, c1 9.75, and c2's 12 of before.
    "safa, undrafted": (
        server.safa(),
        clock.semi_async(fraction=2 / 3, lag=9, durations=clock.constant([1.0, 2.0, 4.0])),
        HALF,
        (6.0, 12.0, 24.0),
        [0, 3, 7.5, 9.5],
        [2, 4, 8],
    ),
    # weights 1/4. Round 0: c0 4: x = 1. Round 1: c1 from v0: 8: (4 + 8)/4; c0 from 1, 4.5, comes after. Round 2: c2's
    # and c3's entries become x = 3; c0 from 3: 5.5: (5.5 + 8 + 3 + 3)/4.
    "safa, deprecated": (
        server.safa(),
        clock.semi_async(fraction=0.25, lag=1, durations=clock.constant([1.0, 2.0, 5.0, 20.0])),
        HALF,
        (8.0, 16.0, 0.0, 0.0),
        [0, 1, 3, 4.875],
        [1, 2, 3],
    ),
    # 1; c1 from v0, d = 1: -1/2; c0 from v1 = 1, d = 1: 1.5
    "afl": (
        server.afl(),
        STALE,
        dataclasses.replace(SIGN, rate_schedule=server.afl_rate(1.0)),
        (100.0, -100.0),
        [0, 1, -0.5, 1.5],
        [3, 4, 7],
    ),
    # d = 3 s for c0, 1 s for c1: moves of 1/4 and 1/2. c0 from v1 = 1/4: 1/2
    "afl, seconds": (
        server.afl(),
        STALE,
        dataclasses.replace(SIGN, rate_schedule=server.afl_rate(1.0, "seconds")),
        (100.0, -100.0),
        [0, 0.25, -0.5, 0.5],
        [3, 4, 7],
    ),
}


@functools.cache  # runs of as many clients share programs
def beginning(start: float) -> afl.models.Model:
    return afl.models.from_functions(lambda *_: {"w": jnp.full(1, float(start))}, quadratic_loss, "quadratic")


def centred(centres: Sequence[float], start: float = 0.0) -> Problem:
    """Clients with f_i(w) = 1/2 (w - c_i)², and x_0."""
    points = np.array([[1.0, centre] for centre in centres])  # curvature and centre
    zeros = np.zeros(len(points), int)
    data = afl.data.from_arrays(points, zeros, np.arange(len(points)), x_test=points, y_test=zeros)
    return Problem(data, beginning(start), [])


@pytest.mark.parametrize("name", RUNS)
def test_runs(name: str) -> None:
    made, protocol, client, centres, expected, times = RUNS[name]
    result = simulate(centred(centres), made, protocol, len(times), client)
    np.testing.assert_allclose(result.observe_w.values[:, 0], expected, rtol=1e-5)
    np.testing.assert_allclose(result.time, times)


@pytest.mark.parametrize(
    ("latency", "step", "expected", "positive"),
    [
        # p = 1/2, K = 3: 1/2 2 + 1/2 3, and one step always fits
        (0.0, 0.5, 2.5, 1.0),
        # g // 2 steps fit: 1 of 1/4 + 1/8, 2 of 1/16 + 1/32, 3 of the rest of 1/32
        (0.0, 2.0, 0.65625, 0.5),
        # 1/2 1 + 1/2 3; 1/2 0 + 1/4 2 + 1/4 3
        (0.25, 0.5, 2.0, 1.0),
        (0.75, 0.5, 1.25, 0.5),
    ],
)
def test_expectations_of_favano(latency: float, step: float, expected: float, positive: float) -> None:
    durations = clock.constant(latency) + clock.constant(step, per="step")
    protocol = clock.interrupting(period=1.0, contacted=1, durations=durations)
    for made, value in ((server.favano(), expected), (server.favano("stochastic"), positive)):
        ready, _ = made.prepare(protocol, dataclasses.replace(HALF, steps=3), np.ones(2, int), 1)
        assert np.asarray(ready.table).tolist() == pytest.approx([value, value])


@pytest.mark.parametrize(("delay", "factor"), [("staleness", 2.0), ("seconds", 4.0)])
def test_the_rate_of_afl(delay: Any, factor: float) -> None:
    # epoch 8 (from 0), alpha = 1/2, an update 2 versions old that took 6 s: 1 / (sqrt 9 (1 + 1/2 2)), 1 / (3 (1 + 3))
    moment = afl.client.options.Moment(*map(jnp.asarray, (17, 8, 1, 2, 6.0)))
    assert float(server.afl_rate(0.5, delay)(moment)) == pytest.approx(1 / (3 * factor))
