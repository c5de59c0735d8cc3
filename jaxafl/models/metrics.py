"""The direction in which a metric is better, declared by the model or known by its name."""

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
    em success success_rate reward return likelihood log_likelihood
    log_lik loglik log_prob logprob elbo skill concordance c_index agreement win_rate
    inception_score reduction improvement gain saving savings
"""
_FALLS = """
    loss error err errors error_rate perplexity ppl mae mse rmse msle rmsle mape smape wape mase sse rss nll
    nlpd negative_log_likelihood cross_entropy crossentropy xent bce logloss wer cer ter eer regret brier
    brier_score ece mce hamming hinge crps pinball huber deviance divergence kl distance fid bpc bpb
    bits_per_byte bits_per_character bits_per_dim cost risk misclassification mistakes inaccuracy false_positive_rate
    false_negative_rate fpr fnr miss_rate forgetting gap drop degradation decline bpd ce lpips
"""
_KNOWN: dict[str, Better] = {**dict.fromkeys(_RISES.split(), "higher"), **dict.fromkeys(_FALLS.split(), "lower")}
_ENDINGS = ("loss", "error", "accuracy", "perplexity", "rmse", "mse", "mae")  # for words such as logloss, nrmse
_TURNED = (
    "neg",
    "negative",
    "minus",
    "one_minus",
    "inverse",
    "inverted",
)  # scikit-learn's neg_mean_squared_error rises
_PER_CLASS = {"accuracy", "acc", "precision", "recall", "f1", "auc", "iou", "dice"}  # "neg_" may mean negative class
_UNSURE = {
    *("std", "stddev", "sd", "sem", "stderr", "var", "variance", "spread", "ci", "iqr", "range", "deviation"),
    *("increase", "decrease", "change", "delta", "diff", "difference", "time", "seconds", "rounds", "steps", "epochs"),
}  # words that turn a metric into another quantity
_QUALIFIERS = r"(?<!bits)_(at|per|to|for|vs|under|given)(_|$)"  # the rest of the name is no metric: fpr_at_95_tpr
_OPPOSITE: dict[Better, Better] = {"higher": "lower", "lower": "higher"}


def better_of(metric: str, declared: Mapping[str, Better | None] | None = None) -> Better | None:
    """Returns `"higher"` or `"lower"`, as declared, else by the last known word of the name, else None.

    Args:
        metric: the name in a result, e.g. `"validation_error"`. Prefixes such as `validation_`, `client_` and
            `average_` are removed.
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
    """Returns True if lower values of a metric are better.

    Args:
        metric, declared: arguments of `better_of`.
        owner: the caller, for the message.

    Raises:
        ValueError: the direction is neither declared nor known by the name.
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
    """Raises `ValueError` or `TypeError` for invalid declarations or, if `metrics` is given, unknown metrics."""
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
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", "_", metric).lower().strip("_")
    words = re.split(_QUALIFIERS, name)[0].split("_")
    plain = [word for word in words if not word.startswith("top")]
    return _by_words(plain) or _by_words(words)


def _by_words(words: list[str]) -> Better | None:
    for end in range(len(words), 0, -1):
        phrases = ["_".join(words[start:end]) for start in range(end)]  # the longest that ends there is first
        word = words[end - 1].removesuffix("score")
        ending = next((one for one in _ENDINGS if word.endswith(one)), word.rstrip("0123456789"))
        phrase = next((one for one in (*phrases, word, ending) if one in _KNOWN), None)
        if phrase is None:
            continue
        before = next((one for one in _TURNED if phrases[0].startswith(f"{one}_")), "")
        if _UNSURE & ({*words} - {*phrase.split("_")}) or (before.startswith("neg") and phrase in _PER_CLASS):
            return None
        return _OPPOSITE[_KNOWN[phrase]] if before and phrases[0] not in _KNOWN else _KNOWN[phrase]
    return None
