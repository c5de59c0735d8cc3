"""AUDG and PSURDG, Table III: accuracy on IID data."""

from __future__ import annotations

from experiments.audg_psurdg.setting import columns
from experiments.audg_psurdg.tables import ACCURACY, DIFFERENCE, ahead, by_column, compared, falls
from experiments.suite import Claim, main

PUBLISHED = {  # accuracy of PSURDG minus that of AUDG, in points
    "Over-CNN": (-0.95, -2.28, -2.06, -3.31, -3.73),
    "CNN": (-3.25, -2.19, -1.53, -3.73, -4.18),
}


def claims(network: str) -> list[Claim]:
    names = list(columns([network], ["IID"]))
    return [
        falls(f"{network}: AUDG's accuracy falls until a mean delay of 5", "AUDG", names[:3]),
        falls(f"{network}: from there on it rises", "AUDG", names[2:], sign=1),
        falls(f"{network}: PSURDG's accuracy falls", "PSURDG", names),
        *(ahead("AUDG is more accurate", "AUDG", "PSURDG", name) for name in (names[0], names[-1])),
    ]


EXPERIMENT = compared(
    "Table III: accuracy on IID data",
    columns(list(PUBLISHED), ["IID"]),
    measures={"accuracy": ACCURACY},
    published={
        "accuracy": {
            name: found
            for network, row in PUBLISHED.items()
            for name, found in by_column(list(columns([network], ["IID"])), {DIFFERENCE: row}).items()
        }
    },
    contrasts={DIFFERENCE: ("PSURDG", "AUDG")},
    claims=[one for network in PUBLISHED for one in claims(network)],
)

if __name__ == "__main__":
    main(EXPERIMENT)
