"""The servers' cases that are worked by hand (`tests/oracle/test_oracle_server`), run by the package's own servers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tests.oracle.test_oracle_server as by_hand
import tests.oracle.test_oracle_tables as by_hand_tables
from jaxafl import clock, server
from jaxafl.client.options import Moment
from jaxafl.clock.semi_async import RESYNCHRONISED, UNDRAFTED
from jaxafl.device import as_arrays
from jaxafl.server import Arrivals, Delivery, Server
from jaxafl.server.contract import unfit
from tests.oracle.test_oracle_server import (  # noqa: F401 (collected here too, with the servers below)
    test_adaptive_servers,
    test_afl,
    test_asyncfeded,
    test_asyncfeded_bounds_of_the_number_of_steps,
    test_asyncfeded_by_the_cosine,
    test_asyncfeded_without_an_update,
    test_ca2fl,
    test_fadas,
    test_fadas_delay_scaling,
    test_favano,
    test_fedams_floor,
    test_fedasync,
    test_fedasync_applies_several_arrivals_in_turn,
    test_fedavg,
    test_fedbuff,
    test_fedbuff_weights,
    test_gradient_servers,
    test_quafl,
    test_safa,
)
from tests.oracle.test_oracle_tables import (  # noqa: F401 (likewise)
    test_ace,
    test_aced,
    test_area,
    test_delay_adaptive,
    test_fedfa,
    test_fednova,
    test_fedstale,
    test_ia2sgd,
    test_mifa,
    test_picky_sgd,
    test_port,
)
from tests.oracle.update import StepInfo, Update

NAMES = {"eta": "learning_rate", "a": "exponent", "b": "threshold", "weighting": "staleness"}


class Engine:
    """One of the package's servers with the methods of an oracle's, for models of one array."""

    def __init__(self, made: Server, samples: Sequence[int] | None = None) -> None:
        self.server, self.samples, self.fixed = made, samples or (1,) * 10, samples is not None
        self.state, self.count = None, 0
        self.info = StepInfo()

    def step(self, x: np.ndarray, updates: Sequence[Update]) -> np.ndarray:
        if not updates and not self.server.needs.empty_steps:
            return x
        with jax.enable_x64(True):
            return self._step(x, updates)

    def _step(self, x: np.ndarray, updates: Sequence[Update], kind: Sequence[int] = ()) -> np.ndarray:
        made = as_arrays(self.server, jnp.float64)
        params, samples = {"x": jnp.asarray(x)}, jnp.asarray(self.samples, jnp.float64)
        if self.state is None:
            self.state = made.init(params, samples)
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
        outcome = made.update(params, self.state, arrivals)
        self.state, self.count = outcome.state, self.count + 1
        told = {name: np.ravel(value).tolist() for name, value in outcome.info.items()}
        self.info = StepInfo(
            eta=told.get("server_rate", [None])[-1],
            gamma=told.get("gamma", [None])[0],
            replies={} if outcome.next_steps is None else {updates[0].client: int(outcome.next_steps[0])},
            dropped=int(sum(told.get("dropped", [0]))),
            clipped=int(sum(told.get("clipped", [0]))),
        )
        if outcome.client_params is not None:
            self.answered = np.asarray(outcome.client_params["x"])
        return np.asarray(outcome.params["x"])


class SAFA(Engine):
    """The cache begins as x_0, and the clock's kinds say who is undrafted and who deprecated."""

    def __init__(self, *, num_samples: Sequence[int], x0: np.ndarray) -> None:
        super().__init__(server.safa(), num_samples)
        with jax.enable_x64(True):
            self.state = self.server.init({"x": jnp.asarray(x0)}, jnp.asarray(num_samples, jnp.float64))

    def step(
        self,
        x: np.ndarray,
        updates: Sequence[Update],
        undrafted: Sequence[Update] = (),
        deprecated: Sequence[int] = (),
    ) -> np.ndarray:
        late = {one.client for one in undrafted}
        kind = [UNDRAFTED * (k in late) + RESYNCHRONISED * (k in deprecated) for k in range(len(self.samples))]
        with jax.enable_x64(True):
            return self._step(x, [*updates, *undrafted], kind)


class QuAFL(Engine):
    """The engine keeps the clients' own models: x_s of an arrival is the client's."""

    def __init__(self, *, num_clients: int, x0: np.ndarray) -> None:
        super().__init__(server.quafl())
        self.models = np.tile(x0, (num_clients, 1))

    def step(self, x: np.ndarray, updates: Sequence[Update]) -> np.ndarray:
        own = [dataclasses.replace(one, x_start=self.models[one.client]) for one in updates]
        new = super().step(x, own)
        for one, model in zip(updates, self.answered, strict=True):
            self.models[one.client] = model
        return new


def engine(constructor: Callable[..., Server]) -> Callable[..., Engine]:
    """The constructor with the options' names of the oracle."""

    def make(*, num_samples: Any = None, num_clients: int = 0, dim: int = 1, **options: Any) -> Engine:
        given = {NAMES.get(name, name): value for name, value in options.items()}
        if "scaling" in given:
            given["staleness"] = {None: "none", "sqrt": "polynomial"}[given.pop("scaling")]
        return Engine(constructor(**given), num_samples or (1,) * num_clients or None)

    return make


def favano(normaliser: Sequence[float], reweight: str) -> Engine:
    return Engine(dataclasses.replace(server.favano(reweight), table=np.asarray(normaliser)))


def last_updates(begin: str) -> Engine:
    """MIFA or ACE; IA2SGD is MIFA that waits."""
    made = server.ace(0.5) if begin == "full" else server.mifa(0.5, wait=begin == "later")
    assert begin != "later" or server.ia2sgd.update is server.mifa.update
    return Engine(made, (1, 1))


def fedstale(beta: float, p: Sequence[float]) -> Engine:
    return Engine(dataclasses.replace(server.fedstale(memory=beta), table=np.asarray(p)), (1, 1))


def area(x0: np.ndarray) -> Engine:
    made = Engine(server.area(), (1, 1))
    with jax.enable_x64(True):
        made.state = made.server.init({"x": jnp.asarray(x0)}, jnp.ones(2))
    return made


def delay_adaptive(eta: float, c: float, rule: str, smoothness: float | None = None) -> Engine:
    return Engine(server.delay_adaptive(eta, rule, c, smoothness))


@pytest.fixture(autouse=True)
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package's servers in the place of the oracle's."""
    monkeypatch.setattr(by_hand, "FAVANO", favano)
    monkeypatch.setattr(by_hand, "AFL", lambda a=0.0: Engine(server.afl(staleness_exponent=a)))
    monkeypatch.setattr(by_hand, "AUDG", engine(server.audg))
    monkeypatch.setattr(by_hand, "SAFA", SAFA)
    monkeypatch.setattr(by_hand, "QuAFL", QuAFL)
    for name in ("FedAvg", "FedAsync", "AsyncFedED", "FedBuff", "FADAS", "FedAdagrad", "FedAdam", "FedYogi", "fedams"):
        monkeypatch.setattr(by_hand, name, engine(getattr(server, name.lower())))
    for name in ("PSURDG", "AsySG", "CA2FL"):
        monkeypatch.setattr(by_hand, name, engine(getattr(server, name.lower())))
    monkeypatch.setattr(by_hand_tables, "last_updates", last_updates)
    monkeypatch.setattr(by_hand_tables, "aced", lambda oldest, age: Engine(server.aced(0.5, oldest, age), (1, 1)))
    monkeypatch.setattr(by_hand_tables, "fedstale", fedstale)
    monkeypatch.setattr(by_hand_tables, "area", area)
    monkeypatch.setattr(by_hand_tables, "DelayAdaptive", delay_adaptive)
    monkeypatch.setattr(by_hand_tables, "PickySGD", engine(server.picky_sgd))
    for name in ("FedNova", "FedFa", "PORT"):
        monkeypatch.setattr(by_hand_tables, name, engine(getattr(server, name.lower())))
    yield
    monkeypatch.undo()


def test_defedavg() -> None:
    one, other = (by_hand.update(0, 3.0, multiplicity=2), by_hand.update(1, 6.0))
    found = Engine(server.defedavg_niid()).step(by_hand.vector(1.0), [one, other])
    assert found == pytest.approx(5.0)
    found = Engine(server.defedavg_iid(0.5)).step(by_hand.vector(1.0), [by_hand.update(0, 3.0), by_hand.update(1, 5.0)])
    assert found == pytest.approx(3.0)
    # "counts each update once" is a refusal of the clock that draws with multiplicity
    assert "multiple" in unfit(server.defedavg_iid, clock.sampled)
    assert not unfit(server.defedavg_niid, clock.sampled)


@pytest.mark.parametrize(("delay", "factor"), [("staleness", 2.0), ("seconds", 4.0)])
def test_the_rate_of_afl(delay: Any, factor: float) -> None:
    # Epoch 8 (from 0), alpha = 1/2, an update 2 versions old that took 6 s: 1 / (sqrt 9 (1 + 1/2 2)), 1 / (3 (1 + 3)).
    moment = Moment(*map(jnp.asarray, (17, 8, 1, 2, 6.0)))
    assert float(server.afl_rate(0.5, delay)(moment)) == pytest.approx(1 / (3 * factor))
