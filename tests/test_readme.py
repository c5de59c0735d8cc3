"""The README's Python examples run as they stand, and its package table names what is there."""

from __future__ import annotations

import pathlib
import re

import pytest

README = (pathlib.Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.S)


@pytest.mark.parametrize("block", range(len(BLOCKS)))
def test_example_runs(block: int, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(BLOCKS[block], f"README.md, example {block}", "exec", dont_inherit=True), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 2


def test_every_server_is_named() -> None:
    from jaxafl import server

    names = [name for name in server.__all__ if name.islower() and callable(getattr(server, name))]
    constructors = [name for name in names if "References" in (getattr(server, name).__doc__ or "")]
    assert constructors
    assert [name for name in constructors if f"`{name}`" not in README] == []
