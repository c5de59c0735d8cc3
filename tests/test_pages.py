"""Docstrings and pages name what exists: names of the package, fields of classes, files."""

from __future__ import annotations

import ast
import functools
import importlib
import pathlib
import re
import types
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

import jaxafl

ROOT = pathlib.Path(__file__).resolve().parent.parent
TREES = {path: ast.parse(path.read_text()) for path in sorted(ROOT.glob("jaxafl/**/*.py"))}
DOCS = ROOT / "docs"
GENERATED = {"engine.md", "results.md", "changelog.md", "options.md", "made", "algorithms", "clocks", "api"}
FOREIGN = {"examples/emnist_fed_avg.py"}  # a file of FedJAX
WRITTEN = [
    *(path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md"),  # which names what is gone
    ROOT / "jaxafl" / "README.md",
    *(path for path in DOCS.rglob("*.md") if path.relative_to(DOCS).parts[0] not in GENERATED),
    *(path for name in ("algorithms", "clocks", "api") if (path := DOCS / name / "index.md").exists()),
    ROOT / "experiments" / "benchmarks" / "README.md",
]


def definitions(tree: ast.AST) -> Iterator[str]:
    """Yields the names of the functions, classes, fields and attributes that a tree defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


@functools.cache
def classes() -> dict[str, set[str]]:
    """Returns the names that each class of the package defines or inherits; classes of one name share an entry."""
    names: defaultdict[str, set[str]] = defaultdict(set)
    bases: defaultdict[str, set[str]] = defaultdict(set)
    for node in (node for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        names[node.name] |= set(definitions(node))
        bases[node.name] |= {ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases}
    for _ in range(6):  # generations
        for name in list(names):
            names[name] |= {inherited for base in bases[name] for inherited in names.get(base, ())}
    return dict(names)


def resolves(reference: str) -> bool:
    """Returns whether a dotted name exists, if it begins with the package or with one of its classes."""
    parts, known = reference.split("."), classes()
    if parts[0] not in ("jaxafl", "afl"):
        return parts[0] not in known or parts[1] in known[parts[0]]
    found: Any = jaxafl
    for number, part in enumerate(parts[1:], 1):
        if not hasattr(found, part) and isinstance(found, types.ModuleType):
            try:
                importlib.import_module(".".join(["jaxafl", *parts[1 : number + 1]]))
            except ImportError:
                return False
        if not hasattr(found, part):
            return part in known.get(parts[number - 1], ())
        found = getattr(found, part)
    return True


def is_broken(reference: str, path: pathlib.Path) -> bool:
    """Returns True if the text between two backticks names something that does not exist."""
    if name := re.match(r"[A-Za-z_]\w*(?:\.\w+)+", reference):
        return not resolves(name[0])
    if re.fullmatch(r"(?:[\w-]+/)+[\w.-]+\.(?:py|md)", reference) and reference not in FOREIGN:
        return not any((folder / reference).exists() for folder in (ROOT, ROOT / "jaxafl", DOCS, path.parent))
    return False


def prose(path: pathlib.Path) -> str:
    return re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_references_of_a_page_resolve(path: pathlib.Path) -> None:
    assert not [reference for reference in re.findall(r"`([^`\n]+)`", prose(path)) if is_broken(reference, path)]


def test_references_of_docstrings_resolve() -> None:
    broken = []
    for path, tree in TREES.items():
        values = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
        texts = [v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)]
        names = re.findall(r"`([A-Za-z_]\w*(?:\.\w+)+)[^`/]*`", "\n".join(texts))
        broken += [(path, name) for name in names if not resolves(name)]
        broken += [(path, f) for f in re.findall(r"\bjaxafl/[\w/]+\.\w+", "\n".join(texts)) if not (ROOT / f).exists()]
    assert not broken


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "jaxafl/README.md"])
def test_names_of_pages_for_maintainers_exist(page: str) -> None:
    """Recipes name private functions, too, which a change may rename."""
    files = [path for folder in ("jaxafl", "tests") for path in (ROOT / folder).rglob("*.py")]
    known = {word for path in files for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    assert not set(re.findall(r"`(\w+)`", prose(ROOT / page))) - known


@pytest.mark.parametrize(
    ("reference", "broken"),
    [
        ("jaxafl.clock.Runs.client", False),
        ("afl.sweep(sim, axes)", False),
        ("Needs.base", False),
        ("engine/plan.py", False),
        ("Needs.delivery", True),
        ("jaxafl.no_such_name", True),
        ("engine/no_such_file.py", True),
    ],
)
def test_broken_references_are_found(reference: str, broken: bool) -> None:
    assert is_broken(reference, ROOT / "README.md") == broken
