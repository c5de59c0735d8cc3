"""Notebooks: their texts and their `.ipynb` are pairs, without output; the slow test runs them."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import re
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parents[1] / "docs" / "notebooks"
NAMES = sorted(path.stem for path in HERE.glob("*.ipynb"))


def cells_of(text: str) -> list[str]:
    """The code cells of a MyST notebook, without their tags."""
    cells = re.findall(r"^```\{code-cell\}[^\n]*\n(.*?)^```$", text, flags=re.M | re.S)
    return [re.sub(r"\A(:[^\n]*\n)+\n?", "", cell).strip("\n") for cell in cells]


def test_there_are_the_notebooks_that_the_texts_say() -> None:
    texts = {path.stem for path in HERE.glob("*.md")} - {"index"}
    assert texts == set(NAMES) and len(NAMES) == 11


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_its_text_without_output(name: str) -> None:
    notebook = json.loads((HERE / f"{name}.ipynb").read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    text = (HERE / f"{name}.md").read_text(encoding="utf-8")
    assert ["".join(cell["source"]) for cell in code] == cells_of(text)
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code)
    assert f"/docs/notebooks/{name}.ipynb)" in text  # its badge
    for cell in cells_of(text):
        compile(cell, name, "exec")


def test_what_is_installed_is_pinned_and_said_in_one_place() -> None:
    import jaxafl

    first = {cells_of((HERE / f"{name}.md").read_text(encoding="utf-8"))[0] for name in NAMES}
    assert len(first) == 1 and f"@v{jaxafl.__version__}" in first.pop()


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("jupytext"), reason="needs jupytext (extra docs)")
def test_texts_and_notebooks_are_those_that_are_written_today() -> None:
    done = subprocess.run([sys.executable, HERE / "sync.py", "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"run python docs/notebooks/sync.py: {done.stdout}{done.stderr}"
