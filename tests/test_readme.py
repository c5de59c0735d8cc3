"""The README: its example prints what it says, its numbers hold, and its table names what the package has."""

from __future__ import annotations

import ast
import pathlib
import re

import optax
import pytest

import jaxafl as afl
from tests.blocks import blocks_of, run_python

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINES = re.findall(r"^\| [^|]+ \| `([^|]+)` \| (.+) \|$", README, re.M)  # of the table of what can be done


@pytest.mark.slow
def test_the_example_prints_the_accuracies_it_names(capsys: pytest.CaptureFixture[str]) -> None:
    (text,) = (block.text for block in blocks_of(ROOT / "README.md") if block.language == "python")
    run_python(text)
    first, *_, last = capsys.readouterr().out.strip(" []\n").split()
    assert (f"{float(first):.2f}", f"{float(last):.2f}") == re.findall(r"# (\S+) to (\S+)$", text, re.M)[0]


def test_every_line_of_the_table_is_code_and_has_a_link() -> None:
    assert len(LINES) > 15
    for code, links in LINES:
        assert "](" in links, code
        if code.startswith(("python -m", "jaxafl ")):
            continue
        tree = ast.parse(code if code.startswith(("class ", "afl.", "sim.", "state,")) else f"dict({code})")
        for node in (node for node in ast.walk(tree) if isinstance(node, ast.Attribute)):
            if re.fullmatch(r"afl(\.\w+)+", name := ast.unparse(node)):
                assert eval(name, {"afl": afl}) is not None
        if code.startswith(("server=", "clock=", "durations=")):
            assert all(eval(f"dict({code})", {"afl": afl, "optax": optax}).values())
