"""Metrics of whole sets, confusion matrices, outputs of models and predictions of simulations."""

from __future__ import annotations

import pathlib
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import jaxafl as afl
from jaxafl.engine import evaluate
from jaxafl.models import Metric, confusion_matrix
from jaxafl.options import UserError
from tests.callbacks.conftest import assert_same, broken
from tests.problems import classifier

CLIENTS, CLASSES = 5, 4
STEPS, EVERY = 8, 4


def right(labels: np.ndarray, outputs: np.ndarray) -> float:
    return float((outputs.argmax(-1) == labels).mean())


def macro_f1(labels: np.ndarray, outputs: np.ndarray) -> float:
    found, predicted = [], outputs.argmax(-1)
    for one in range(CLASSES):
        hits = np.sum((labels == one) & (predicted == one))
        total = np.sum(labels == one) + np.sum(predicted == one)
        found.append(2 * hits / total if total else 0.0)
    return float(np.mean(found))


RNG = np.random.default_rng(0)
X = RNG.normal(size=(100, 6)).astype(np.float32)
Y = np.argmax(X[:, :CLASSES] + 0.3 * RNG.normal(size=(100, CLASSES)), axis=1)
DATA = afl.data.from_arrays(X, Y, np.arange(100) % CLIENTS, test_fraction=0.3, name="points")
HELD_OUT = DATA.owned_test(None).with_validation(0.3, seed=0)
LOGISTIC = afl.models.logistic(CLASSES)


def simulation(model: afl.models.Model = LOGISTIC, data: Any = HELD_OUT) -> afl.Simulation:
    clock = afl.clock.free_running(concurrency=3, buffer=2, durations=afl.clock.uniform(1, 2))
    client = afl.Client(learning_rate=0.2, steps=3, batch_size=5)
    return classifier(data=data, model=model, client=client, clock=clock)


@pytest.mark.slow
def test_a_mean_computed_from_outputs_is_the_metric_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "BATCH", 7)  # which divides no set
    sim = simulation()
    names = ("average", "per_client")
    result = sim.run(STEPS, eval_every=EVERY, metrics={"right": right}, diagnostics=names)
    for prefix in ("", "validation_", "average_", "client_", "final_", "average_validation_"):
        expected = result[f"{prefix}accuracy"]
        assert result[f"{prefix}right"].dims == expected.dims
        np.testing.assert_allclose(result[f"{prefix}right"], expected, rtol=1e-6)
    assert not np.isnan(result.client_right).any()
    assert_same(
        result.drop_vars([name for name in result.variables if "right" in str(name)]),
        sim.run(STEPS, eval_every=EVERY, diagnostics=names),
    )


def test_metrics_of_the_last_model_follow_from_its_predictions() -> None:
    sim = simulation()
    metrics = {"macro_f1": macro_f1, "confusion": confusion_matrix, "width": Metric(lambda y, o: o.std(), "lower", "m")}
    trained = sim.train(STEPS, eval_every=EVERY, metrics=metrics, diagnostics="per_client")
    result, labels = trained.dataset, sim.data.y_test
    outputs = sim.predict(trained, sim.data.x_test)
    assert float(result.final_macro_f1) == pytest.approx(macro_f1(labels, outputs))
    expected = np.zeros((CLASSES, CLASSES))
    for label, predicted in zip(labels, outputs.argmax(-1), strict=True):
        expected[label, predicted] += 1
    assert result.confusion.dims == ("evaluation", "label", "predicted")
    np.testing.assert_array_equal(result.confusion.values[-1], expected)
    assert result.client_confusion.dims == ("evaluation", "population", "label", "predicted")
    np.testing.assert_array_equal(result.client_confusion.sum("population"), result.validation_confusion)
    assert result.macro_f1.attrs["better"] == "higher" and result.width.attrs["better"] == "lower"
    assert result.width.attrs["units"] == "m" and result.client_width.attrs["units"] == "m"
    assert "better" not in result.confusion.attrs
    np.testing.assert_allclose(sim.predict(trained.params, sim.data.x_test), outputs, rtol=1e-5)


@pytest.mark.slow
def test_members_of_a_sweep_have_the_metrics_of_single_runs(tmp_path: pathlib.Path) -> None:
    sim = simulation()
    metrics = {"macro_f1": macro_f1, "confusion": confusion_matrix}
    axes = {"client.learning_rate": [0.05, 0.2], "seed": [0, 1]}
    grid = afl.sweep(sim, axes, STEPS, eval_every=EVERY, metrics=metrics, save=tmp_path / "grid.nc")
    single = sim.run(STEPS, eval_every=EVERY, metrics=metrics, seed=1)
    member = afl.load(tmp_path / "grid.nc").sel({"client.learning_rate": 0.2, "seed": 1})
    for name in ("macro_f1", "validation_macro_f1", "confusion", "final_confusion"):
        np.testing.assert_allclose(member[name], single[name], err_msg=name)
    assert len(afl.tidy(grid)) == 4 * single.sizes["evaluation"]
    afl.plot.report(grid, tmp_path / "report.html")  # the dimensions of the matrix are no axes of the sweep


@pytest.mark.parametrize(
    ("metrics", "text"),
    [
        ({"f1": 3}, "metrics.'f1'"),
        ({"accuracy": right}, "accuracy"),
        ({"f1 score": right}, "f1_score"),
        ({"cm": confusion_matrix}, "confusion"),
        ({"f1": Metric(right, "up")}, "higher"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_a_metric_is_an_error(metrics: Any, text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        simulation().run(STEPS, metrics=metrics)


def plain(outputs: Any = None) -> afl.models.Model:
    def init(key: Any, batch: Any) -> Any:
        return {"w": 0.1 * jax.random.normal(key, (6, CLASSES))}

    def loss(params: Any, batch: Any, key: Any) -> Any:
        return afl.models.softmax_cross_entropy(batch.x @ params["w"], batch)

    return afl.models.from_functions(init, loss, outputs=outputs)


class Normed(linen.Module):
    @linen.compact
    def __call__(self, x: Any, train: bool, mask: Any) -> Any:
        x = linen.Dense(8)(x)
        x = linen.BatchNorm(use_running_average=not train, momentum=0.5)(x, mask=mask[:, None] if train else None)
        return linen.Dense(CLASSES)(linen.Dropout(0.3, deterministic=not train)(jax.nn.relu(x)))


MODELS = {
    "mlp": lambda: afl.models.mlp(CLASSES, hidden=(8,)),
    "normed": lambda: afl.models.from_linen(Normed()),
    "nnx": lambda: afl.models.from_nnx(lambda rngs: nnx.Linear(6, CLASSES, rngs=rngs)),
    "frozen": lambda: afl.models.from_linen(Normed(), frozen=lambda path: path.startswith("Dense_0")),
    "functions": lambda: plain(lambda params, batch: batch.x @ params["w"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_outputs_give_the_loss_of_the_evaluation(name: str) -> None:
    sim = simulation(MODELS[name](), DATA)
    trained = sim.train(2, eval_every=1)
    labels = sim.data.y_test

    def loss_of(logits: np.ndarray) -> float:
        logits = np.asarray(logits, float)
        return float(np.mean(np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(labels)), labels]))

    logits = sim.model.outputs(trained.params, sim.data.x_test, trained.model_state)
    assert logits.shape == (len(labels), CLASSES)
    assert loss_of(logits) == pytest.approx(float(trained.dataset.final_loss), rel=1e-4)
    np.testing.assert_allclose(sim.predict(trained, sim.data.x_test), logits, rtol=1e-4, atol=1e-5)
    for bad in (sim.data.x_test[0], sim.data.x_test[:, :3], sim.data.x_test.astype(int)):
        with pytest.raises(UserError, match="predict: x is"):
            sim.predict(trained, bad)


def test_a_model_without_outputs_says_so_before_it_is_compiled() -> None:
    sim = simulation(plain())
    with pytest.raises(UserError, match="has no outputs"):
        sim.run(STEPS, metrics={"right": right})
    with pytest.raises(UserError, match="has no outputs"):
        sim.predict({"w": jnp.zeros((6, CLASSES))}, sim.data.x_test)


@pytest.mark.slow
def test_a_restored_run_keeps_its_metrics_and_refuses_others(tmp_path: pathlib.Path) -> None:
    sim = simulation()
    metrics = {"macro_f1": macro_f1, "confusion": confusion_matrix}
    how: dict[str, Any] = {"eval_every": 2, "folder": tmp_path / "run", "checkpoint_every": 2}
    broken(sim, STEPS, 4, metrics=metrics, **how)
    found = sim.run(STEPS, metrics=metrics, **how)
    assert_same(found, sim.run(STEPS, eval_every=2, metrics=metrics))
    with pytest.raises(UserError, match="metrics"):
        sim.run(2 * STEPS, metrics={"macro_f1": right}, **how)


@pytest.mark.slow
def test_limits_and_tuning_use_metrics_of_sets() -> None:
    sim = simulation()
    found = sim.run(200, until={"right": 0.5}, eval_every=2, metrics={"right": Metric(right, "higher")})
    assert float(found.final_right) >= 0.5 and "right" in found.attrs["stopped"]
    grid = {"client.learning_rate": [0.0, 0.3]}
    tuned = afl.tune(sim, grid, metric="macro_f1", server_steps=20, seeds=1, metrics={"macro_f1": macro_f1})
    assert tuned.best == {"client.learning_rate": 0.3}
    with pytest.raises(UserError, match="macro_f2"):
        sim.run(STEPS, until={"macro_f2": 0.5}, metrics={"macro_f1": macro_f1})


def test_a_metric_that_cannot_be_used_is_left_out_with_a_warning() -> None:
    def fails(labels: Any, outputs: Any) -> float:
        raise ZeroDivisionError("no such class")

    metrics = {"fails": fails, "each": lambda y, o: o.mean(0), "nothing": lambda y, o: None, "nan": lambda y, o: np.nan}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = simulation().run(STEPS, eval_every=EVERY, metrics={**metrics, "right": right})
    said = " ".join(str(one.message) for one in seen)
    for name in metrics:
        assert f"'{name}'" in said and not any(str(variable).endswith(name) for variable in result.variables)
    np.testing.assert_allclose(result.right, result.accuracy, rtol=1e-6)
