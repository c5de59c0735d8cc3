"""What FADAS's tables of images have in common: Tables 1, 2, 8 and 9 are numbers of the same runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from experiments.fadas.setting import COLUMNS, FAMILY, METHODS, REASONS, SCALES, cell_of, no_data
from experiments.suite import Claim, Experiment, last

MEASURE = "accuracy, last 5 evaluations"
ONE_SEED = (
    "The published error bars are over the last five evaluations of one seed, those here over seeds. τ_c of the tables "
    "is unpublished; 8 is the best of the paper's Figure 1a. FedAsync's server steps are single arrivals."
)
THREE_SEEDS = (
    "Published and here: mean and standard deviation over three seeds, here of the runs of Table 1. τ_c is "
    "unpublished; 8 is the best of the paper's Figure 1a. FedAsync's server steps are single arrivals."
)


def images(
    title: str,
    delays: str,
    published: Mapping[str, Sequence[tuple[float, float]]],
    classes: Sequence[int] = (10, 100),
    note: str = ONE_SEED,
) -> Experiment:
    """A table of methods on images.

    Args:
        title: of the table.
        delays: `"large"` or `"mild"`.
        published: method -> (mean, error bar) of each column, in the order of `COLUMNS`.
        classes: 10 for CIFAR-10, 100 for CIFAR-100.
        note: of the table.
    """
    columns = [name for name, one in COLUMNS.items() if one.fleet.delays == delays and one.classes in classes]
    better = (("FADAS", "FedBuff"), ("FADAS", "FedAsync"), ("FADAS_da", "FADAS"))
    return Experiment(
        title=title,
        family=FAMILY,
        cell=partial(cell_of, METHODS),
        methods=list(METHODS),
        columns=columns,
        measures={MEASURE: last()},
        published={
            MEASURE: {
                name: {method: numbers[place] for method, numbers in published.items()}
                for place, name in enumerate(columns)
            }
        },
        scales=SCALES,
        reasons=REASONS,
        no_data=no_data(columns),
        claims=[
            Claim(
                f"{name}: {one} is better than {other}", lambda v, a=one, b=other, n=name: v(a, n) - v(b, n), " points"
            )
            for place, name in enumerate(columns)
            for one, other in better
            if published[one][place] > published[other][place]
        ],
        note=note,
    )
