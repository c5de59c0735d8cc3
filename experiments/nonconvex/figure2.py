"""AFL on non-convex objectives, Figure 2: how often each client is selected, MNIST, J = 5."""

from __future__ import annotations

from functools import partial

from experiments.nonconvex.setting import cell_of, columns, figure, selections
from experiments.suite import Measure, main

COLUMNS = columns("MNIST", [5])
EXPERIMENT = figure(
    "Figure 2: how often each client is selected, MNIST, J = 5",
    COLUMNS,
    cell=partial(cell_of, COLUMNS, clock_alone=True),
    methods=("AFL",),
    measures={
        "selections of the client with most": Measure(lambda found: found.selections.max("client").values, digits=0),
        "selections of the client with fewest": Measure(lambda found: found.selections.min("client").values, digits=0),
    },
    derived=selections,
    curve=("selections", "client"),
    note="The J clients of a round are drawn uniformly without replacement; the clock alone is run.",
)

if __name__ == "__main__":
    main(EXPERIMENT)
