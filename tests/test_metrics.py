"""Which way a metric is better, and the names that metrics, observed arrays and diagnostics can have."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxafl as afl
from jaxafl.callbacks import Best, StopAt
from jaxafl.models.metrics import better_of
from tests.problems import classifier, points


def simulation(metrics: Callable[[Any], dict[str, Any]], rate: float = 0.02, better: Any = ()) -> afl.Simulation:
    """A linear model with metrics of whether it is right."""

    def init(key: Any, batch: Any) -> Any:
        return {"w": 0.01 * jax.random.normal(key, (60, 10))}

    def loss(params: Any, batch: Any, key: Any) -> Any:
        found = afl.models.softmax_cross_entropy(batch.x @ params["w"], batch)
        return afl.models.Outputs(found.loss, metrics(found.metrics["accuracy"]))

    clock = afl.clock.free_running(concurrency=2, durations=afl.clock.constant(1.0))
    client = afl.Client(learning_rate=rate, steps=5, batch_size=10)
    model = afl.models.from_functions(init, loss, better=dict(better))
    return classifier(data=points(4, 60).with_validation(0.3, seed=0), model=model, client=client, clock=clock)


def wrong(right: Any) -> dict[str, Any]:
    return {"error": 1 - right}


def distrust(right: Any) -> dict[str, Any]:
    return {"distrust": 1 - right}


@pytest.mark.parametrize(
    ("way", "names"),
    [
        (
            "lower",
            "error validation_error client_mae average_perplexity test_rmse nll cross_entropy wer cer regret brier ece "
            "hamming_loss mean_squared_error top5_error valError RMSE neg_log_likelihood log_loss mlm_loss nrmse "
            "negative_log_likelihood bits_per_byte "
            "mean_bits_per_byte inaccuracy "
            "error_top1 error_top_5 fpr_at_95_tpr accuracy_decline",
        ),
        (
            "higher",
            "accuracy validation_accuracy top5 top_5 f1_macro macro_f1 roc_auc precision recall bleu4 rouge_l r2 mAP "
            "neg_mean_squared_error log_likelihood recall_at_5 balanced_accuracy F1 clients_worst_accuracy "
            "brier_skill error_reduction log_lik explained_variance",
        ),
        (
            None,
            "distrust entropy norm gini width accuracy_std time_to_accuracy negative_f1 one_minus_accuracy "
            "inverse_loss loss_change rank",
        ),
    ],
)
def test_usual_names_say_which_way_is_better(way: str | None, names: str) -> None:
    assert {name: better_of(name) for name in names.split()} == dict.fromkeys(names.split(), way)


def test_a_declared_direction_wins_over_the_name() -> None:
    assert better_of("validation_distance", {"distance": "higher"}) == "higher"
    assert better_of("client_accuracy", {"accuracy": "lower"}) == "lower"


def both(right: Any) -> dict[str, Any]:
    return wrong(right) | distrust(right)


@pytest.mark.slow
def test_metrics_that_fall_are_followed_downwards(tmp_path: pathlib.Path) -> None:
    sim = simulation(both, better={"distrust": "lower"})
    for metric in both(0):
        tuned = afl.tune(sim, {"client.learning_rate": [0.0, 0.02]}, metric, server_steps=20)
        assert tuned.best == {"client.learning_rate": 0.02}
        watching = [Best(tmp_path / "best.safetensors", f"validation_{metric}"), StopAt(**{metric: 0.5})]
        result = sim.run(20, eval_every=5, callbacks=watching)
        kept = json.loads((tmp_path / "best.safetensors.json").read_text())
        curve, own = result[metric].values, result[f"validation_{metric}"].values
        assert curve[0] > 0.5 >= curve[-1] and kept[f"validation_{metric}"] == pytest.approx(own.min())
        assert result[metric].attrs["better"] == result[f"validation_{metric}"].attrs["better"] == "lower"
        assert result[f"final_{metric}"].attrs["better"] == "lower"
    afl.save(result, tmp_path / "result.nc")
    assert afl.load(tmp_path / "result.nc")["distrust"].attrs["better"] == "lower"
    written = tmp_path / "report.html"
    longer = sim.run(20, eval_every=5)
    afl.plot.report({"stopped": result, "longer": longer}, path=written)  # best first
    assert f"longer {float(longer.error[-1]):.4g}, stopped " in written.read_text()


def test_a_server_and_a_model_do_not_share_a_name() -> None:
    class scoring(afl.server.fedbuff):
        def update(self, params: Any, state: Any, arrivals: Any) -> Any:
            outcome = super().update(params, state, arrivals)
            return outcome._replace(info={**outcome.info, "score": jnp.float32(1)})

    sim = simulation(lambda right: {"score": right})
    with pytest.raises(ValueError, match="scoring records 'score'"):
        afl.Simulation(sim.data, sim.model, sim.client, scoring(), sim.clock).run(2)


def test_where_the_way_matters_and_is_not_known_nothing_runs(tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    sim = simulation(distrust)
    result = afl.sweep(sim, {"seed": [0, 1]}, 2)
    found = afl.Comparison({"a": result, "b": result.copy()})
    monkeypatch.setattr(afl.Simulation, "problem", lambda *_: pytest.fail("something runs"))
    for needs in (
        lambda: sim.run(4, callbacks=StopAt(distrust=0.5)),
        lambda: sim.run(4, callbacks=Best(tmp_path / "best.safetensors", "distrust")),
        lambda: afl.tune(sim, {"client.learning_rate": [0.0, 0.1]}, "distrust", server_steps=4),
        lambda: afl.compare({"a": sim}, 2, 4, until={"distrust": 0.5}),
        lambda: found.differences("a", "distrust"),
    ):
        with pytest.raises(ValueError, match=r"direction of the metric '(validation_)?distrust' is not known.*better="):
            needs()


@pytest.mark.parametrize(
    ("name", "better"), [("staleness", {}), ("f1/macro", {}), ("client_loss", {}), ("error", {"eror": "lower"})]
)
def test_names_and_declarations_that_are_invalid(name: str, better: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(better), name)):
        simulation(lambda right: {name: right}, better=better).check()
    with pytest.raises(ValueError, match="'min'"):
        simulation(wrong, better={"error": "min"})
