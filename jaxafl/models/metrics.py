"""The way in which a metric is better: declared by the model, or known by its name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from jaxafl.options import UserError, check_choice, did_you_mean, shown

Better: TypeAlias = Literal["higher", "lower"]

_DERIVED = r"validation_|test_|client_|clients_median_|clients_worst_|average_|final_"
_RISES = """
    accuracy acc correct top f1 f2 f_1 fbeta f_beta f_score f_measure auc auroc auprc aucpr ap map
    average_precision precision recall sensitivity specificity true_positive_rate true_negative_rate tpr tnr ppv
    npv bleu rouge meteor chrf cider spice r2 r_squared explained_variance correlation pearson pearsonr spearman
    spearmanr kendall kappa mcc matthews iou miou jaccard dice psnr ssim ndcg mrr hit hits hit_rate exact_match
    em success success_rate reward return likelihood log_likelihood elbo concordance c_index agreement win_rate
    inception_score reduction improvement gain
"""
_FALLS = """
    loss error err errors error_rate perplexity ppl mae mse rmse msle rmsle mape smape wape mase sse rss nll
    nlpd negative_log_likelihood cross_entropy crossentropy xent bce logloss wer cer ter eer regret brier
    brier_score ece mce hamming hinge crps pinball huber deviance divergence kl distance fid bpc bpb
    bits_per_byte bits_per_character bits_per_dim cost risk misclassification mistakes false_positive_rate
    false_negative_rate fpr fnr miss_rate forgetting gap drop
"""
_KNOWN: dict[str, Better] = {**dict.fromkeys(_RISES.split(), "higher"), **dict.fromkeys(_FALLS.split(), "lower")}
_ENDINGS = ("loss", "error", "accuracy", "perplexity", "rmse", "mse", "mae")  # of words like logloss, nrmse
_TURNED = {"neg", "negative", "minus"}  # scikit-learn's neg_mean_squared_error rises
_OPPOSITE: dict[Better, Better] = {"higher": "lower", "lower": "higher"}


def better_of(metric: str, declared: Mapping[str, Better | None] | None = None) -> Better | None:
    """Returns `"higher"` or `"lower"`: as declared, else by the last known word of the name; None if it has none.

    Args:
        metric: the name in a result, e.g. `"validation_error"`; `validation_`, `client_`, `average_` and the like are
            prefixes of the model's metric.
        declared: metric of the model -> direction, see `Model.better`.
    """
    while True:
        if declared and (found := declared.get(metric)):
            return found
        shorter = re.sub(rf"^({_DERIVED})", "", metric)
        if shorter == metric:
            return _by_name(metric)
        metric = shorter


def falls(metric: str, declared: Mapping[str, Better | None] | None = None, owner: str = "") -> bool:
    """Returns whether a metric is best where it is lowest.

    Args:
        metric, declared: as in `better_of`.
        owner: the function that needs it, for the message.

    Raises:
        ValueError: it is neither declared nor known by its name.
    """
    if found := better_of(metric, declared):
        return found == "lower"
    name = re.sub(rf"^({_DERIVED})", "", metric)
    raise UserError(
        f"{owner + ': ' if owner else ''}it is not known whether the metric {metric!r} is better when it is higher or "
        f"lower. Declare it with the model, e.g. from_linen(..., better={{{name!r}: 'lower'}}), or in a result that "
        f"exists: result[{metric!r}].attrs['better'] = 'lower'"
    )


def check_better(owner: str, better: Mapping[str, Better], metrics: Iterable[str] | None = None) -> None:
    """Raises `ValueError` or `TypeError` for declarations that are none, or (if `metrics` is given) of no metric."""
    if not isinstance(better, Mapping):
        raise TypeError(f"{owner}: better must be metric -> 'higher' or 'lower', got {shown(better)}")
    for name, way in better.items():
        check_choice(owner, f"better[{name!r}]", way, ("higher", "lower"))
        if metrics is not None and name not in (known := tuple(metrics)):
            raise UserError(
                f"{owner}: better declares {name!r}, which is not a metric of the model; its metrics are "
                f"{', '.join(known)}{did_you_mean(name, known)}"
            )
    if better.get("loss", "lower") != "lower":
        raise UserError(f"{owner}: better declares that a higher 'loss' is better, but training minimises the loss")


def _by_name(metric: str) -> Better | None:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", "_", metric).lower().strip("_").split("_")
    found: Better | None = None
    for end in range(len(words), 0, -1):
        for start in range(end):  # the longest phrase that ends there
            found = found or _KNOWN.get("_".join(words[start:end]))
        word = words[end - 1]
        if not found:
            plain = word.removesuffix("score").rstrip("0123456789")
            ending = next((one for one in _ENDINGS if word.endswith(one)), plain)
            found = _KNOWN.get(word.removesuffix("score"), _KNOWN.get(ending))
        if found:
            turned = words[0] in _TURNED and "_".join(words[:end]) not in _KNOWN
            return _OPPOSITE[found] if turned else found
    return None
