"""Metrics of whole test sets, and the direction in which a metric is better, declared or known by its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np

from jaxafl.options import UserError, check_choice, shown

Better: TypeAlias = Literal["higher", "lower"]
T = TypeVar("T")
CONFUSION = "confusion"
"""Name of the metric of a whole set that may be an array [C, C]: samples by label and predicted class."""

_PREFIX = r"^(validation_|test_|client_|clients_median_|clients_worst_|average_|personal_|final_)"
_RISES = """
    accuracy acc correct f1 f2 f_1 fbeta f_beta f_measure auc auroc auprc aucpr ap map average_precision precision
    recall sensitivity specificity true_positive_rate true_negative_rate tpr tnr ppv npv bleu rouge rouge_l meteor chrf
    cider spice r2 r_squared explained_variance correlation pearson pearsonr spearman spearmanr kendall kappa mcc
    matthews iou miou jaccard dice psnr ssim ndcg mrr hit hits hit_rate exact_match em success success_rate reward
    return likelihood log_likelihood log_lik loglik log_prob logprob elbo skill concordance c_index agreement win_rate
    inception reduction improvement gain saving savings f1_macro f1_micro f1_weighted neg_mean_squared_error
    neg_mean_absolute_error neg_root_mean_squared_error neg_log_loss
"""
_FALLS = """
    loss error err errors error_rate perplexity ppl mae mse rmse nrmse msle rmsle mape smape wape mase sse rss nll nlpd
    neg_log_likelihood negative_log_likelihood cross_entropy crossentropy xent bce logloss wer cer ter eer regret brier
    ece mce hamming hinge crps pinball huber deviance divergence kl distance fid bpc bpb bits_per_byte
    bits_per_character bits_per_dim cost risk misclassification mistakes inaccuracy false_positive_rate
    false_negative_rate fpr fnr miss_rate forgetting gap drop degradation decline bpd ce lpips
"""
_KNOWN: dict[str, Better] = {**dict.fromkeys(_RISES.split(), "higher"), **dict.fromkeys(_FALLS.split(), "lower")}
_UNSURE = {
    *("std", "stddev", "sd", "sem", "stderr", "var", "variance", "spread", "ci", "iqr", "range", "deviation"),
    *("increase", "decrease", "change", "delta", "diff", "difference", "time", "seconds", "rounds", "steps", "epochs"),
    *("neg", "negative", "minus", "inverse", "inverted", "per", "to", "for", "vs", "under", "given"),
}  # words that turn a metric into another quantity
_ROUNDING = 1e-6


class Metric(NamedTuple):
    """Metric of a whole set, computed on the host.

    Attributes:
        function: `(labels, outputs) -> number`, NumPy arrays of the set: labels [n, ...] and what the network returns
            [n, ...], e.g. logits [n, C].
        better: `"higher"` or `"lower"`, if the name of the metric does not imply it.
        unit: unit of the number.
    """

    function: Callable[[np.ndarray, Any], Any]
    better: Better | None = None
    unit: str = "1"


def checked_metrics(metrics: Any) -> dict[str, Metric]:
    """Returns the metrics of `Simulation.run(metrics=...)` by name; raises for anything else."""
    if metrics is not None and not isinstance(metrics, Mapping):
        raise TypeError(f"run: metrics is {shown(metrics)}; expected a dict, name -> function of labels and outputs")
    found = {name: one if isinstance(one, Metric) else Metric(one) for name, one in dict(metrics or {}).items()}
    for name, one in found.items():
        if not callable(one.function):
            raise TypeError(f"run: metrics[{name!r}] is {shown(one.function)}; expected a function (labels, outputs)")
        if one.function is confusion_matrix and name != CONFUSION:
            raise UserError(f"run: metrics has the confusion matrix as {name!r}; expected the name {CONFUSION!r}")
        check_choice("run", f"metrics[{name!r}].better", one.better, (None, "higher", "lower"))
    return found


def declared(better: Mapping[str, Better], metrics: Mapping[str, Metric]) -> dict[str, Better | None]:
    """Returns the declared directions of a model's metrics and of metrics of whole sets."""
    return {**better, **{name: one.better for name, one in metrics.items()}}


def metric_of(name: str, metrics: Mapping[str, T]) -> T | None:
    """Returns the entry of a table of metrics for a variable such as `validation_f1`; `None` for other variables."""
    shorter = re.sub(_PREFIX, "", name)
    return metrics.get(name) or (None if shorter == name else metric_of(shorter, metrics))


def confusion_matrix(labels: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Counts the samples by label and predicted class, for `run(metrics={"confusion": confusion_matrix})`.

    Args:
        labels: int [n, ...] in [0, C); negative ones are padding and do not count.
        outputs: float [n, ..., C]; the predicted class is the one with the largest output.

    Returns:
        int [C, C], rows are labels and columns are predicted classes.

    Examples:
        >>> import numpy as np
        >>> from jaxafl.models import confusion_matrix
        >>> confusion_matrix(np.array([0, 0, 1]), np.array([[2.0, 1.0], [0.0, 1.0], [0.0, 3.0]])).tolist()
        [[1, 1], [0, 1]]
    """
    classes = outputs.shape[-1]
    cells = (labels * classes + outputs.argmax(-1))[labels >= 0]
    return np.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def better_of(metric: str, declared: Mapping[str, Better | None] | None = None) -> Better | None:
    """Returns `"higher"` or `"lower"`, as declared, else by the known words at the end of the name, else None.

    Args:
        metric: the name in a result, e.g. `"validation_error"`. Prefixes such as `validation_`, `client_` and
            `average_` are removed.
        declared: metric of the model -> direction, see `Model.better`.
    """
    if found := metric_of(metric, declared or {}):
        return found
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", "_", re.sub(f"{_PREFIX}+", "", metric)).lower()
    name = re.sub(r"_at_.*|_score$|_?top_?\d+|(?<![fr])_?\d+$", "", name).strip("_") or "accuracy"  # fpr_at_95_tpr
    words = name.split("_")
    for start in range(len(words)):  # the longest known phrase, unless the words before it may change its direction
        if way := _KNOWN.get("_".join(words[start:])):
            return None if _UNSURE & {*words[:start]} else way
    return None


def falls(metric: str, declared: Mapping[str, Better | None] | None = None, owner: str = "") -> bool:
    """Returns True if lower values of a metric are better.

    Args:
        metric, declared: arguments of `better_of`.
        owner: the caller, for the message.

    Raises:
        ValueError: the direction is neither declared nor known by the name.
    """
    if found := better_of(metric, declared):
        return found == "lower"
    name = re.sub(f"{_PREFIX}+", "", metric)
    raise UserError(
        f"{owner + ': ' if owner else ''}the direction of the metric {metric!r} is not known. Declare it with the "
        f"model: from_linen(..., better={{{name!r}: 'lower'}}), or in a result: "
        f"result[{metric!r}].attrs['better'] = 'lower'"
    )


def reaches(values: Any, target: float, falling: bool) -> Any:
    """Returns True where values are at a target, or better, up to the rounding of means in float32.

    Args:
        values: a number or an array. The accuracy of 7 right samples of 10 is 0.69999999.
        target: the target.
        falling: True if lower values are better.
    """
    slack = _ROUNDING * abs(target)
    return values <= target + slack if falling else values >= target - slack


def check_better(owner: str, better: Mapping[str, Better], metrics: Iterable[str] | None = None) -> None:
    """Raises `ValueError` or `TypeError` for invalid declarations or, if `metrics` is given, unknown metrics."""
    for name, way in better.items():
        check_choice(owner, f"better[{name!r}]", way, ("higher", "lower"))
        if metrics is not None:
            check_choice(owner, "a metric in better", name, tuple(metrics))
    if better.get("loss", "lower") != "lower":
        raise UserError(f"{owner}: better declares that a higher 'loss' is better, but training minimises the loss")
