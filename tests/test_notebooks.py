"""Notebooks hold no output, begin with the same installation, and are listed; `.ci/run` executes them."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

import jaxafl

HERE = pathlib.Path(__file__).resolve().parents[1] / "docs" / "notebooks"
NOTEBOOKS = {path.stem: json.loads(path.read_text(encoding="utf-8"))["cells"] for path in sorted(HERE.glob("*.ipynb"))}


def sources(name: str, kind: str) -> list[str]:
    """Returns the texts of the cells of a kind."""
    return ["".join(cell["source"]) for cell in NOTEBOOKS[name] if cell["cell_type"] == kind]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_opens_in_colab_compiles_and_has_no_output(name: str) -> None:
    assert f"/docs/notebooks/{name}.ipynb)" in sources(name, "markdown")[0]
    code: list[dict[str, Any]] = [cell for cell in NOTEBOOKS[name] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code)
    for source in sources(name, "code"):
        compile(source, name, "exec")


def test_the_index_lists_every_notebook_and_all_install_this_version() -> None:
    index = (HERE / "index.md").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 11 and all(f"({name}.ipynb)" in index for name in NOTEBOOKS)
    (installation,) = {sources(name, "code")[0] for name in NOTEBOOKS}
    assert f"@v{jaxafl.__version__}" in installation
