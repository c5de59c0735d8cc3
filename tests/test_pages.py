"""Pages are plain English, and name what exists: names of the package, fields of classes, files."""

from __future__ import annotations

import pathlib
import re

import pytest

from tests.test_english import classes, resolves

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
GENERATED = {"engine.md", "results.md", "changelog.md", "made", "algorithms", "clocks", "api"}  # by docs/make.py
FOREIGN = {"examples/emnist_fed_avg.py"}  # a file of FedJAX
MEASURED = ROOT / "experiments" / "benchmarks" / "README.md"  # lists of figures
WRITTEN = [
    *(path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md"),  # which names what is gone
    ROOT / "jaxafl" / "README.md",
    *(path for path in DOCS.rglob("*.md") if path.relative_to(DOCS).parts[0] not in {*GENERATED, "options.md"}),
    *(DOCS / name / "index.md" for name in ("algorithms", "clocks", "api")),
]
FORBIDDEN = r"whoever|whom|nobody|somebody|likewise|besides|apart|one's"


def is_broken(reference: str, path: pathlib.Path) -> bool:
    """Returns True if the text between two backticks names something that does not exist."""
    if name := re.match(r"[A-Za-z_]\w*(?:\.\w+)+", reference):
        return not resolves(name[0], classes())
    if re.fullmatch(r"(?:[\w-]+/)+[\w.-]+\.(?:py|md)", reference) and reference not in FOREIGN:
        return not any((folder / reference).exists() for folder in (ROOT, ROOT / "jaxafl", DOCS, path.parent))
    return False


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


@pytest.mark.parametrize("path", [*WRITTEN, MEASURED], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_references_of_a_page_resolve(path: pathlib.Path) -> None:
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    assert not [reference for reference in re.findall(r"`([^`\n]+)`", text) if is_broken(reference, path)]


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "jaxafl/README.md"])
def test_names_of_pages_for_maintainers_exist(page: str) -> None:
    """Recipes name private functions, too, which a change may rename."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.M | re.S)
    files = [path for folder in ("jaxafl", "tests") for path in (ROOT / folder).rglob("*.py")]
    known = {word for path in files for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    assert not set(re.findall(r"`(\w+)`", text)) - known


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_sentences_of_a_page_are_short_and_plain(path: pathlib.Path) -> None:
    """CONTRIBUTING asks for 25 words; names and numbers count too here."""
    long = [sentence for sentence in sentences(path) if len(re.findall(r"[A-Za-z']+|\d\S*", sentence)) > 30]
    assert not long
    assert not [sentence for sentence in sentences(path) if re.search(rf"\b({FORBIDDEN})\b", sentence, re.I)]


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
