"""Which way a metric is better, and the names that metrics, observed arrays and diagnostics can have."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxafl as afl
from jaxafl.callbacks import Best, StopAt
from jaxafl.cli.show import show_result
from jaxafl.models.metrics import better_of

DATA = afl.data.synthetic(1.0, 1.0, clients=4, max_size=60).with_validation(0.3, seed=0)


def simulation(metrics: Callable[[Any], dict[str, Any]], rate: float = 0.02, better: Any = ()) -> afl.Simulation:
    """A linear model with metrics of whether it is right."""

    def init(key: Any, batch: Any) -> Any:
        return {"w": 0.01 * jax.random.normal(key, (60, 10))}

    def loss(params: Any, batch: Any, key: Any) -> Any:
        found = afl.models.softmax_cross_entropy(batch.x @ params["w"], batch)
        return afl.models.Outputs(found.loss, metrics(found.metrics["accuracy"]))

    clock = afl.clock.free_running(concurrency=2, durations=afl.clock.constant(1.0))
    client = afl.Client(learning_rate=rate, steps=5, batch_size=10)
    return afl.Simulation(
        DATA, afl.models.from_functions(init, loss, better=dict(better)), client, afl.server.fedbuff(), clock
    )


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
            "mae_horizon_3 negative_log_likelihood bits_per_byte "
            "mean_bits_per_byte one_minus_accuracy inaccuracy inverse_accuracy "
            "error_top1 error_top_5 fpr_at_95_tpr accuracy_decline",
        ),
        (
            "higher",
            "accuracy validation_accuracy top5 top_5 f1_macro macro_f1 roc_auc precision recall bleu4 rouge_l r2 mAP "
            "neg_mean_squared_error log_likelihood recall_at_5 balanced_accuracy F1 f1score clients_worst_accuracy "
            "brier_skill error_reduction log_lik explained_variance",
        ),
        (None, "distrust entropy norm gini width"),
    ],
)
def test_usual_names_say_which_way_is_better(way: str | None, names: str) -> None:
    assert {name: better_of(name) for name in names.split()} == dict.fromkeys(names.split(), way)


@pytest.mark.parametrize(
    "name",
    ["accuracy_std", "accuracy_diff", "time_to_accuracy", "rounds_to_loss", "negative_f1", "loss_change", "rank"],
)
def test_names_that_may_mean_either_are_not_guessed(name: str) -> None:
    assert better_of(name) is None


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
    afl.plot.report(result, path=written)
    assert f"the best is {float(result.error.min()):.4g}" in written.read_text()


@pytest.mark.slow
def test_comparisons_know_that_they_fall() -> None:
    rates = {"slow": 0.0001, "fast": 0.02}
    first = simulation(both, better={"distrust": "lower"})
    methods = {
        name: dataclasses.replace(first, client=afl.Client(learning_rate=rate, steps=5, batch_size=10))
        for name, rate in rates.items()
    }
    found = afl.compare(methods, 3, 12, eval_every=4, until={"error": 0.01})
    for metric in both(0):
        assert found.differences("slow", metric)["fast"].verdict == "better"
        row = found.table(metrics=metric, targets=0.5).splitlines()[3]
        assert row.startswith("| fast | **") and "(3/3)" in row
        assert not found.time_to(0.5, metric)["slow"].reached.any()


def test_where_the_way_matters_and_is_not_known_nothing_runs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sim = simulation(distrust)
    result = afl.sweep(sim, {"seed": [0, 1]}, 2)
    found = afl.Comparison({"a": result, "b": result.copy()})
    show_result(result)
    assert (
        "no accuracy" not in (shown := capsys.readouterr().out)
        and f"{result.loss.min('evaluation').mean():.4g}" in shown
    )
    found.summary("distrust")  # where it does not matter, nothing is asked for
    monkeypatch.setattr(afl.Simulation, "problem", lambda *_: pytest.fail("something runs"))
    for needs in (
        lambda: sim.run(4, callbacks=StopAt(distrust=0.5)),
        lambda: sim.run(4, callbacks=Best(tmp_path / "best.safetensors", "distrust")),
        lambda: afl.sweep(sim, {"seed": [0, 1]}, 4, callbacks=StopAt(distrust=0.5)),
        lambda: afl.tune(sim, {"client.learning_rate": [0.0, 0.1]}, "distrust", server_steps=4),
        lambda: afl.compare({"a": sim}, 2, 4, until={"distrust": 0.5}),
        lambda: found.table(metrics="distrust"),
        lambda: found.differences("a", "distrust"),
        lambda: found.time_to(0.5, "distrust"),
        lambda: found.summary("distrust", at="best"),
    ):
        with pytest.raises(
            ValueError, match=r"not known whether the metric '(validation_)?distrust' is better .*better="
        ):
            needs()
    for one, way in zip(found.results.values(), ("lower", "higher"), strict=True):
        one["distrust"].attrs["better"] = way
    with pytest.raises(ValueError, match="better when it is higher in some of the results"):
        found.differences("a", "distrust")


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("staleness", "'own_staleness'"),
        ("client", "'own_client'"),
        ("bytes_up", "'own_bytes_up'"),
        ("loss", "'own_loss'"),
        ("backend", "'own_backend'"),
        ("seed", "'own_seed'"),
        ("seconds", "'own_seconds'"),
        ("f1/macro", "'f1_macro'"),
        ("top 5", "'top_5'"),
        ("5", "'own_5'"),
        ("", "'own_own'|'own'"),
        ("lambda", "'own_lambda'"),
        ("map", "'own_map'"),
        ("attrs", "'own_attrs'"),
        ("_hidden", "'hidden'"),
        ("validation_x", "'x'"),
        ("client_x", "'x'"),
        ("count_x", "'x'"),
        ("ﬁt", "'fit'"),
    ],
)
def test_a_metric_has_a_name_of_its_own(name: str, write: str) -> None:
    with pytest.raises(ValueError, match=f"records the metric .*write ({write})"):
        simulation(lambda right: {name: right}).check()


def test_names_that_only_some_file_systems_tell_apart() -> None:
    with pytest.raises(ValueError, match="'f1', and 'F1', which differs in upper and lower case only"):
        simulation(lambda right: {"F1": right, "f1": right}).check()


def test_a_server_and_a_model_do_not_share_a_name() -> None:
    class scoring(afl.server.fedbuff):
        def update(self, params: Any, state: Any, arrivals: Any) -> Any:
            outcome = super().update(params, state, arrivals)
            return outcome._replace(info={**outcome.info, "score": jnp.float32(1)})

    sim = simulation(lambda right: {"score": right})
    with pytest.raises(ValueError, match="scoring records 'score' in the `info`"):
        afl.Simulation(sim.data, sim.model, sim.client, scoring(), sim.clock).run(2)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({"a/b": 1.0}, "write 'a_b'"),
        ({"w": np.ones(3), "w_0": 1.0}, "'w_0', and 'w' has axes"),
        ({3: 1.0}, "not a text"),
    ],
)
def test_observed_arrays_need_names_that_results_can_hold(seen: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        simulation(wrong).run(2, observe=lambda params: jax.tree.map(jnp.asarray, seen))


def test_a_declared_metric_must_exist() -> None:
    with pytest.raises(ValueError, match=r"'eror', which is not a metric .*did you mean 'error'"):
        simulation(wrong, better={"eror": "lower"}).check()
    with pytest.raises(ValueError, match="must be one of 'higher', 'lower', got 'min'"):
        simulation(wrong, better={"error": "min"})


def test_targets_of_a_command_line() -> None:
    assert StopAt.of_text("0.9").targets == {"accuracy": 0.9}
    assert StopAt.of_text("validation_loss=0.5").targets == {"validation_loss": 0.5}
    with pytest.raises(ValueError, match=r"metric=number such as error=0.1; got 'error<1'"):
        StopAt.of_text("error<1")
