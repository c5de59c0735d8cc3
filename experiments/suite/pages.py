"""The page of all tables: what was run, what it cost, and what became of the claims."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from experiments.suite.experiment import Experiment


def overview(groups: Mapping[str, Sequence[tuple[Experiment, str, str]]]) -> str:
    """A line for each paper or study of a page, from its sections: what was run, what it cost, what its claims are."""
    lines = [
        "| | tables run | seeds | hours | claims that hold | that do not | not decided |",
        "|---|---|---|---|---|---|---|",
    ]
    machines: dict[str, None] = {}
    for title, sections in groups.items():
        told = [text.splitlines()[2] for _, text, _ in sections]
        ran = [line for line in told if not line.endswith("not run")]
        seeds = [int(re.findall(r"· (\d+) seeds?\b", line)[-1]) for line in ran]
        costs = [re.findall(r"· ([\d.]+) (s|h) on ", line)[-1] for line in ran]
        machines |= dict.fromkeys(re.findall(r" (?:s|h) on (.*), jax ", line)[-1] for line in ran)
        hours = sum(float(number) / (3600 if unit == "s" else 1) for number, unit in costs)
        among = f"{min(seeds)} to {max(seeds)}" if len({*seeds}) > 1 else f"{seeds[0]}" if seeds else ""
        counts = np.sum([_verdicts(text) for _, text, _ in sections], axis=0)
        cells = [f"[{title}](#{_anchor(title)})", f"{len(ran)} of {len(told)}", among, f"{hours:.1f}" if ran else ""]
        lines.append(f"| {' | '.join([*cells, *(str(count or '') for count in counts)])} |")
    return "\n".join(
        [*lines, "", f"On {'; '.join(machines)}. Tables that show the same runs count their hours each.", ""]
    )


def links(package: str, stems: Sequence[str]) -> str:
    """Returns links to the results of the tables of a paper, by the names of their files."""
    shown = [re.sub(r"_[a-z]+_\d+_seeds?$", "", stem.removeprefix(f"{package}_")) for stem in stems]
    return " · ".join(f"[{name}](results/{stem}.md)" for name, stem in zip(shown, stems, strict=True))


def group(title: str, sections: Sequence[tuple[Experiment, str]]) -> str:
    """Returns the page of a paper or study: the contents, and all tables."""
    return "\n".join([f"# {title}", "", contents(sections), *(text for _, text in sections)])


def _verdicts(text: str) -> list[int]:
    """How many claims of a section hold, do not hold, and are not decided."""
    verdicts = [line.rpartition(": ")[2] for line in text.splitlines() if line.startswith("- ")]
    return [sum(one.startswith(word) for one in verdicts) for word in ("holds", "does not hold", "not decided")]


def _anchor(title: str) -> str:
    """The place of a heading, as GitHub names it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def contents(sections: Iterable[tuple[Experiment, str]]) -> str:
    """A line for each table of a page, made by `markdown`: at which scale it was run, what became of its claims."""
    lines = ["| | run at | columns | claims that hold | that do not | not decided |", "|---|---|---|---|---|---|"]
    for experiment, text in sections:
        told, title = text.splitlines()[2], experiment.title
        scale, seeds, chosen = re.findall(r'--scale (\w+) --seeds (\d+)(?: --columns((?: "[^"]*")+))?', told)[0]
        ran = not told.endswith("not run")
        columns = chosen.count('"') // 2 or len(experiment.columns_at(scale))
        cells = [f"[{title}](#{_anchor(title)})", f"{scale}, {seeds} seed{'s' * (seeds != '1')}" if ran else "not run"]
        cells += [
            f"{columns} of {len(experiment.columns)}" if ran else "",
            *(str(count or "") for count in _verdicts(text)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])
