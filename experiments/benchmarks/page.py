"""Writes the page of the benchmarks from `results/*.json`: `python experiments/benchmarks/page.py`.

A file has a title, script, machine, commit, date, what was measured, columns and rows. A file with a `place` is shown.
"""

from __future__ import annotations

import json
import pathlib

HERE = pathlib.Path(__file__).resolve().parent
HEAD = """# Benchmarks

These figures were measured by hand, and `page.py` writes this page from [results](results).
Medians stand before the smallest and largest value in brackets. Machines differ by a factor of two or more, so compare
within a table only. [Decisions](../../docs/decisions/index.md) says which speed paths stay.
"""


def page() -> str:
    """Returns the page: tables that have a place, further files, and scripts."""
    found = {path: json.loads(path.read_text(encoding="utf-8")) for path in sorted((HERE / "results").glob("*.json"))}
    shown = sorted((one for one in found.values() if "place" in one), key=lambda one: one["place"])
    more = [f"[{one['title']}](results/{path.name})" for path, one in found.items() if "place" not in one]
    scripts = [f"`{path.name}`" for path in sorted(HERE.glob("*.py")) if path.name != "page.py"]
    lines = [HEAD, *map(_table, shown), f"## Further figures\n\n{' · '.join(more)}\n"]
    return "\n".join([*lines, f"## Scripts\n\nEach docstring says what it measures: {', '.join(scripts)}.\n"])


def _table(one: dict) -> str:
    measured = one["measured"][0].upper() + one["measured"][1:]
    about = f"{measured} (`{one['script']}`; {one['machine']}; commit {one['commit']}, {one['date']})."
    rows = [one["columns"], ["---"] * len(one["columns"]), *one["rows"]]
    return f"## {one['title']}\n\n{about}\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


if __name__ == "__main__":
    (HERE / "README.md").write_text(page(), encoding="utf-8")
