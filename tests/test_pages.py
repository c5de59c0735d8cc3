"""Pages are plain English, and references in them, in docstrings and in comments name what exists."""

from __future__ import annotations

import ast
import functools
import importlib
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "jaxafl"
FOREIGN = {"examples/emnist_fed_avg.py"}  # a file of FedJAX
DOCS = ROOT / "docs"
GENERATED = {"engine.md", "results.md", "changelog.md", "made", "algorithms", "clocks", "api"}  # by docs/make.py
PAGES = [
    *(path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md"),  # which names what is gone
    PACKAGE / "README.md",
    *(ROOT / "experiments").glob("**/README.md"),
    *(path for path in DOCS.rglob("*.md") if path.relative_to(DOCS).parts[0] not in GENERATED),
    *(DOCS / name / "index.md" for name in ("algorithms", "clocks", "api")),
]


@functools.cache
def classes() -> dict[str, list[ast.ClassDef]]:
    """Returns the class definitions of the package by name."""
    found: dict[str, list[ast.ClassDef]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


@functools.cache
def members(name: str) -> set[str]:
    """Returns fields, methods and attributes of the classes of this name and of their bases."""
    found: set[str] = set()
    for one in classes().get(name, []):
        for node in ast.walk(one):
            if isinstance(node, ast.FunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.id if isinstance(node, ast.Name) else node.attr)
        found |= {member for base in one.bases for member in members(ast.unparse(base).rpartition(".")[2])}
    return found


def resolves(dotted: str) -> bool:
    """Returns True if a dotted name, such as `jaxafl.clock.Runs.client`, exists."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            if isinstance(value, type) and part in members(value.__name__):
                return True  # a field without a default is no attribute
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        return True
    return False


def is_broken(reference: str, path: pathlib.Path) -> bool:
    """Returns True if the text between two backticks names something that does not exist."""
    if name := re.match(r"(?:jaxafl|afl)((?:\.\w+)+)", reference):
        return not resolves(f"jaxafl{name[1]}")
    if (field := re.match(r"([A-Z]\w+)\.(\w+)", reference)) and field[1] in classes():
        return field[2] not in members(field[1])
    if re.fullmatch(r"(?:[\w-]+/)+[\w.-]+\.(?:py|md)", reference) and reference not in FOREIGN:
        return not any((folder / reference).exists() for folder in (ROOT, PACKAGE, DOCS, path.parent))
    return False


@pytest.mark.parametrize(
    "path", [*sorted(PACKAGE.rglob("*.py")), *PAGES], ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_references_resolve(path: pathlib.Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    assert not [reference for reference in re.findall(r"`([^`\n]+)`", text) if is_broken(reference, path)]


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
        ("`a word", False),
    ],
)
def test_broken_references_are_found(reference: str, broken: bool) -> None:
    assert is_broken(reference, PACKAGE / "README.md") == broken


FORBIDDEN = r"whoever|whom|nobody|somebody|likewise|besides|apart|one's"
WRITTEN = [path for path in PAGES if path.name != "options.md" and ROOT / "experiments" not in path.parents]


def sentences(path: pathlib.Path) -> list[str]:
    """Returns the sentences and table cells of a page, with `x` for code."""
    text = re.sub(r"\A---.*?\n---\n|^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    text = re.sub(r"`[^`]*`", "x", re.sub(r"\]\([^)]*\)", "]", text))
    paragraphs = re.split(r"\n\n|\n(?=[-*|#]|\d+\. )", text)
    return [
        " ".join(sentence.split())
        for paragraph in paragraphs
        for part in (paragraph.split("|") if paragraph.startswith("|") else [paragraph])
        for sentence in re.split(r"(?<=[.?!:])\s", part)
    ]


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_sentences_of_a_page_are_short_and_plain(path: pathlib.Path) -> None:
    """CONTRIBUTING asks for 25 words; names and numbers count too here."""
    long = [sentence for sentence in sentences(path) if len(re.findall(r"[A-Za-z']+|\d\S*", sentence)) > 30]
    assert not long
    assert not [sentence for sentence in sentences(path) if re.search(rf"\b({FORBIDDEN})\b", sentence, re.I)]
