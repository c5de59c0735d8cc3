"""AUDG and PSURDG, Table X: accuracy on non-IID data."""

from __future__ import annotations

from experiments.audg_psurdg.setting import columns
from experiments.audg_psurdg.tables import ACCURACY, DIFFERENCE, ahead, by_column, compared, falls
from experiments.suite import Claim, main

PUBLISHED = {  # accuracy of PSURDG minus that of AUDG, in points, of the Over-CNN
    "small": (-0.21, -0.77, -1.96, -2.23, -2.51),
    "medium": (0.95, -0.18, -1.42, -2.67, -3.26),
    "large": (1.31, 0.82, 0.12, -2.97, -3.63),
}


def claims(network: str, split: str) -> list[Claim]:
    names = list(columns([network], [split]))
    better, worse = ("AUDG", "PSURDG") if split == "small" else ("PSURDG", "AUDG")
    return [
        falls(f"{network} {split}: AUDG's accuracy falls", "AUDG", names),
        falls(f"{network} {split}: PSURDG's accuracy falls", "PSURDG", names),
        ahead(f"{better} is more accurate", better, worse, names[0]),
        ahead("AUDG is more accurate", "AUDG", "PSURDG", names[-1]),
    ]


EXPERIMENT = compared(
    "Table X: accuracy on non-IID data; beside the Over-CNN also the CNN, of which the paper has no numbers",
    columns(["Over-CNN", "CNN"], list(PUBLISHED)),
    measures={"accuracy": ACCURACY},
    published={
        "accuracy": {
            name: found
            for split, row in PUBLISHED.items()
            for name, found in by_column(list(columns(["Over-CNN"], [split])), {DIFFERENCE: row}).items()
        }
    },
    contrasts={DIFFERENCE: ("PSURDG", "AUDG")},
    claims=[one for network in ("Over-CNN", "CNN") for split in PUBLISHED for one in claims(network, split)],
)

if __name__ == "__main__":
    main(EXPERIMENT)
