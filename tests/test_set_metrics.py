"""Metrics of whole sets, confusion matrices, outputs of models and predictions of simulations."""

from __future__ import annotations

import csv
import dataclasses
import pathlib
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import jaxafl as afl
from jaxafl.engine import evaluate, measured, set_metrics
from jaxafl.models import Metric, confusion_matrix
from jaxafl.options import UserError
from tests.callbacks.conftest import Boom, assert_same

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


def simulation(model: Any = None, validation: bool = True) -> afl.Simulation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 6)).astype(np.float32)
    y = np.argmax(x[:, :CLASSES] + 0.3 * rng.normal(size=(100, CLASSES)), axis=1)
    data = afl.data.from_arrays(x, y, np.arange(100) % CLIENTS, test_fraction=0.3, name="points")
    data = data.owned_test(None).with_validation(0.3, seed=0) if validation else data
    clock = afl.clock.free_running(concurrency=3, buffer=2, durations=afl.clock.uniform(1, 2))
    client = afl.Client(learning_rate=0.2, steps=3, batch_size=5)
    return afl.Simulation(data, model or afl.models.logistic(CLASSES), client, afl.server.fedbuff(), clock)


def test_a_mean_computed_from_outputs_is_the_metric_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(set_metrics, "BATCH", 7)  # which divides no set
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
def test_a_state_between_two_steps_predicts() -> None:
    sim = simulation()
    state, _ = sim.step(sim.init(0), STEPS)
    outputs = sim.predict(sim.train(STEPS), sim.data.x_test)
    np.testing.assert_allclose(sim.predict(state, sim.data.x_test), outputs, rtol=1e-4, atol=1e-5)


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


def test_a_metric_that_cannot_be_used_is_left_out_with_a_warning() -> None:
    def fails(labels: Any, outputs: Any) -> float:
        raise ZeroDivisionError("no such class")

    def writes(labels: Any, outputs: Any) -> float:
        outputs[:] = 0
        return 0.0

    metrics = {"fails": fails, "each": lambda y, o: o.mean(0), "text": lambda y, o: "high", "writes": writes}
    metrics |= {"nothing": lambda y, o: None}
    metrics |= {"confusion": lambda y, o: np.ones(3)}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = simulation().run(STEPS, eval_every=EVERY, metrics={**metrics, "right": right})
    said = [str(one.message) for one in seen if "run: the metric" in str(one.message)]
    assert len(said) == len(metrics)
    for name in metrics:
        assert any(f"'{name}'" in one for one in said)
        assert not any(str(variable).endswith(name) for variable in result.variables)
    assert "no such class" in said[0] and "argmax(-1)" in said[0]
    np.testing.assert_allclose(result.right, result.accuracy, rtol=1e-6)


@pytest.mark.slow
def test_a_metric_that_fails_at_one_evaluation_is_missing_there() -> None:
    calls: list[int] = []

    def second_fails(labels: Any, outputs: Any) -> float:
        calls.append(1)
        return 1.0 if len(calls) != 2 else float(outputs.undefined)

    with pytest.warns(UserWarning, match="second_fails.*AttributeError"):
        result = simulation(validation=False).run(STEPS, eval_every=EVERY, metrics={"second_fails": second_fails})
    assert np.isnan(result.second_fails).values.tolist() == [False, True, False]


@pytest.mark.slow
def test_a_metric_that_returns_nan_is_named_but_for_single_clients() -> None:
    def undefined_for_few(labels: np.ndarray, outputs: np.ndarray) -> float:
        return right(labels, outputs) if len(labels) > 10 else float("nan")

    with pytest.warns(
        UserWarning, match="the metric 'undefined' returned NaN; expected a number, so its value is missing"
    ):
        result = simulation(validation=False).run(STEPS, metrics={"undefined": lambda labels, outputs: float("nan")})
    assert "undefined" not in result
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given = {"few": undefined_for_few}
        result = simulation().run(STEPS, eval_every=EVERY, metrics=given, diagnostics="per_client")
    assert not np.isnan(result.few).any() and "client_few" not in result


@pytest.mark.parametrize(
    ("metrics", "error", "text"),
    [
        ([right], TypeError, "name -> function"),
        ({"f1": 3}, TypeError, "'f1' must be a function"),
        ({"accuracy": right}, UserError, "accuracy"),
        ({"f1 score": right}, UserError, "f1_score"),
        ({"client_f1": right}, UserError, "client_"),
        ({"step": right}, UserError, "step"),
        ({"cm": confusion_matrix}, UserError, "expected the name 'confusion'"),
        ({"f1": Metric(right, "up")}, ValueError, "higher"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_a_metric_is_an_error(metrics: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
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


class Perceptron(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layer = nnx.Linear(6, CLASSES, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.layer(x)


MODELS = {
    "mlp": lambda: afl.models.mlp(CLASSES, hidden=(8,)),
    "normed": lambda: afl.models.from_linen(Normed()),
    "nnx": lambda: afl.models.from_nnx(lambda rngs: Perceptron(rngs)),
    "frozen": lambda: afl.models.from_linen(Normed(), frozen=lambda path: path.startswith("Dense_0")),
    "functions": lambda: plain(lambda params, batch: batch.x @ params["w"]),
}


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("mlp", "nnx", "functions", "normed")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["frozen", *SLOW])
def test_outputs_give_the_loss_of_the_evaluation(name: str) -> None:
    sim = simulation(MODELS[name](), validation=False)
    trained = sim.train(2, eval_every=1)
    labels = sim.data.y_test

    def loss_of(logits: np.ndarray) -> float:
        logits = np.asarray(logits, float)
        return float(np.mean(np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(labels)), labels]))

    logits = sim.model.outputs(trained.params, sim.data.x_test, trained.model_state)
    assert logits.shape == (len(labels), CLASSES)
    assert loss_of(logits) == pytest.approx(float(trained.dataset.final_loss), rel=1e-4)
    np.testing.assert_allclose(sim.predict(trained, sim.data.x_test), logits, rtol=1e-4, atol=1e-5)
    if name == "normed":
        with pytest.raises(Exception) as raised:
            sim.model.outputs(trained.params, sim.data.x_test)
        assert "outputs(params, x, trained.model_state)" in raised.value.__notes__[-1]


@pytest.mark.slow
def test_a_rounded_model_has_rounded_outputs() -> None:
    sim = dataclasses.replace(simulation(), precision="bfloat16")
    trained = sim.train(2, eval_every=1, metrics={"right": right})
    np.testing.assert_allclose(trained.dataset.right, trained.dataset.accuracy, rtol=1e-6)
    assert sim.predict(trained, sim.data.x_test).dtype == np.float32


def test_a_model_without_outputs_says_so_before_it_is_compiled() -> None:
    sim = simulation(plain())
    with pytest.raises(UserError, match=r"has no outputs.*from_functions\(\.\.\., outputs="):
        sim.run(STEPS, metrics={"right": right})
    params, _ = sim.model.init(jax.random.key(0), afl.models.Batch(jnp.zeros((1, 6)), jnp.zeros(1, int), jnp.ones(1)))
    with pytest.raises(UserError, match="has no outputs"):
        sim.predict(params, sim.data.x_test)


@pytest.mark.slow
def test_predictions_of_unfit_samples_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "BATCH", 7)
    sim = simulation(MODELS["normed"]())
    trained, x = sim.train(1), sim.data.x_test
    whole = sim.predict(trained, x)
    np.testing.assert_allclose(sim.predict(trained, x[:3].astype(np.float64)), whole[:3], rtol=1e-5)
    for bad in (x[0], x[:, :3], x.astype(int), "x", x[:0], {"x": x}):
        with pytest.raises(UserError, match="predict: x is"):
            sim.predict(trained, bad)
    with pytest.raises(UserError, match="non-trainable state"):
        sim.predict(trained.params, x)
    with pytest.raises(UserError, match="not those of Normed"):
        sim.predict({"w": np.zeros(3)}, x)


@pytest.mark.slow
def test_a_restored_run_keeps_its_metrics_and_refuses_others(tmp_path: pathlib.Path) -> None:
    sim = simulation()
    metrics = {"macro_f1": macro_f1, "confusion": confusion_matrix}
    how: dict[str, Any] = {"eval_every": 2, "folder": tmp_path / "run", "checkpoint_every": 2}
    with pytest.raises(RuntimeError):
        sim.run(STEPS, callbacks=Boom(4), metrics=metrics, **how)
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


def test_a_table_has_metrics_of_sets_and_of_clients_and_no_second_run(tmp_path: pathlib.Path) -> None:
    sim, path = simulation(), tmp_path / "log.csv"
    how: dict[str, Any] = {"eval_every": EVERY, "metrics": {"macro_f1": macro_f1}, "diagnostics": "per_client"}
    first = sim.run(STEPS, callbacks=afl.callbacks.Csv(path), **how)
    second = sim.run(STEPS, seed=1, callbacks=afl.callbacks.Csv(path), **how)
    for file, result in (("log-1.csv", first), ("log.csv", second)):
        with (tmp_path / file).open(newline="") as table:
            rows = list(csv.DictReader(table))
        assert len(rows) == result.sizes["evaluation"]
        for number, row in enumerate(rows):
            one = result.isel(evaluation=number)
            assert float(row["macro_f1"]) == pytest.approx(float(one.macro_f1))
            each = [float(row[f"client_macro_f1/{name}"]) for name in one.client_name.values]
            np.testing.assert_allclose(each, one.client_macro_f1)
            assert float(row["clients_median_macro_f1"]) == pytest.approx(np.median(each))
            assert float(row["clients_worst_macro_f1"]) == pytest.approx(min(each))
            assert float(row["clients_worst_loss"]) == pytest.approx(float(one.client_loss.max()), rel=1e-6)


@pytest.mark.slow
def test_a_confusion_matrix_has_a_picture(tmp_path: pathlib.Path) -> None:
    grid = afl.sweep(simulation(), {"seed": [0, 1]}, STEPS, metrics={"confusion": confusion_matrix})
    figure = afl.plot.confusion(grid, path=tmp_path / "confusion.png")
    counts = grid.final_confusion.sum("seed").values
    share = 100 * counts / counts.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(figure.axes[0].images[0].get_array(), share)
    shown = {(text.get_position(), text.get_text()) for text in figure.axes[0].texts}
    assert ((0, 0), f"{share[0, 0]:.0f}") in shown
    assert (tmp_path / "confusion.png").stat().st_size > 5000
    with pytest.raises(UserError, match=r"has no confusion; .*models.confusion_matrix}\) records it"):
        afl.plot.confusion(simulation().run(1))


@pytest.mark.slow
@pytest.mark.extras
def test_metrics_of_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    metrics = {
        "f1": lambda y, outputs: sklearn.f1_score(y, outputs.argmax(-1), average="macro"),
        "auc": lambda y, outputs: sklearn.roc_auc_score(y, jax.nn.softmax(outputs), multi_class="ovr"),
        "confusion": lambda y, outputs: sklearn.confusion_matrix(y, outputs.argmax(-1), labels=range(CLASSES)),
    }
    result = simulation().run(STEPS, eval_every=EVERY, metrics={**metrics, "ours": Metric(macro_f1, "higher")})
    np.testing.assert_allclose(result.f1, result.ours)
    assert 0.5 < float(result.final_auc) <= 1
    assert result.confusion.sum().item() == result.sizes["evaluation"] * len(simulation().data.y_test)


def test_the_batches_of_evaluations_have_one_size() -> None:
    assert evaluate.BATCH == set_metrics.BATCH == measured.BATCH
