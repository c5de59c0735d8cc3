"""The code blocks of a page, and how they run: Python as it stands, `jaxafl` lines of a shell with few server steps.

The words after a block's language say what to do with it: nothing (run it), `slow` (run it with the slow tests),
`needs torchax` (run it if that is installed), or `no-run: why` (only read it).
"""

from __future__ import annotations

import ast
import importlib.util
import pathlib
import re
import shlex
from typing import Any, NamedTuple

from jaxafl.cli import main

_FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.M | re.S)


class Block(NamedTuple):
    """A fenced block."""

    language: str
    how: str  # "", "slow", "needs package" or "no-run: why"
    text: str

    @property
    def runs(self) -> bool:
        """True if it is to be run, and can be with the installed packages."""
        needed = self.how.removeprefix("needs ") if self.how.startswith("needs ") else "jaxafl"
        return not self.how.startswith("no-run") and importlib.util.find_spec(needed) is not None


def blocks_of(page: pathlib.Path) -> list[Block]:
    """All blocks of a page, in their order."""
    found = _FENCE.findall(page.read_text(encoding="utf-8"))
    return [Block(language, how.strip(), text) for language, how, text in found]


def run_python(text: str, names: dict[str, Any] | None = None, page: str = "README.md") -> dict[str, Any]:
    """The names that a block makes, among those that it is given."""
    names = {"__name__": "__main__"} if names is None else names
    exec(compile(text, page, "exec", dont_inherit=True), names)
    return names


def check_python(text: str) -> None:
    """Raises `SyntaxError` for what is no Python."""
    ast.parse(text)


def run_shell(text: str, server_steps: int = 4) -> list[str]:
    """Runs the `jaxafl` lines of a block; returns the others. Runs and sweeps make few server steps."""
    others = []
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] != ["jaxafl"]:
            others += [line] if words else []
            continue
        arguments = words[1:]
        if arguments[0] in ("run", "sweep"):
            arguments = [*arguments, "--no-progress"]
        if "--server-steps" in arguments:
            arguments[arguments.index("--server-steps") + 1] = str(server_steps)
        assert main(arguments) == 0, line
    return others
