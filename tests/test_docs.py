"""The pages: their blocks run, their links and names lead somewhere, and generated pages cover the package."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest

import jaxafl
from tests.blocks import blocks_of, check_python, run_python, run_shell

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))
make = importlib.import_module("make")
sys.path.remove(str(DOCS))

GENERATED = r"(algorithms|clocks|api)/(?!index)|made/|results/|(engine|results|changelog)\.md"  # by make.py
PAGES = [path for path in sorted(DOCS.rglob("*.md")) if not re.match(GENERATED, path.relative_to(DOCS).as_posix())]
READMES = [*ROOT.glob("*.md"), ROOT / "jaxafl" / "README.md", *(ROOT / "experiments").rglob("README.md")]
QUICK = ("citing.md", "howto/algorithm.md", "howto/real_data.md")  # pages whose Python always runs
TRAINS = "start.md"  # trains a convolutional network for longer than programs compile
SHELL = ("pip ", "python -m", "git ", "sbatch ", ". ")  # how other lines of a shell may begin
SHORTER = ((r"(server_steps=)600\b", r"\g<1>50"), (r"(seeds=)6\b", r"\g<1>2"))  # the same calls, of smaller runs


def name_of(page: pathlib.Path) -> str:
    return page.relative_to(DOCS if DOCS in page.parents else ROOT).as_posix()


def text_of(page: pathlib.Path) -> str:
    """Returns the text without code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def runnable(language: str) -> list[Any]:
    """Returns the pages with blocks of a language that run; most are slow."""
    pages = [*PAGES, ROOT / "jaxafl" / "README.md", ROOT / "CONTRIBUTING.md"]
    found = [
        page
        for page in pages
        if any(b.language == language and not b.how.startswith("no-run") for b in blocks_of(page))
    ]
    marks: dict[str, Any] = dict.fromkeys(QUICK if language == "python" else (), ())
    marks[TRAINS] = (pytest.mark.slow, pytest.mark.optimised)
    return [pytest.param(page, id=name_of(page), marks=marks.get(name_of(page), pytest.mark.slow)) for page in found]


@pytest.mark.parametrize("page", runnable("python"))
def test_python_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    if "from sklearn" in page.read_text(encoding="utf-8"):
        pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(page):
        if block.language == "python" and block.runs:
            text = functools.reduce(lambda text, change: re.sub(*change, text), SHORTER, block.text)
            run_python(text, names, name_of(page))


@pytest.mark.parametrize("page", [one for one in runnable("bash") if one.id != "CONTRIBUTING.md"])
def test_commands_of_a_page_run(page: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks_of(page):
        if block.language == "bash" and not block.how.startswith("no-run"):
            others = run_shell(block.text)
            assert all(line.startswith(SHELL) for line in others), others


def test_blocks_parse_and_say_what_is_done_with_them() -> None:
    for page in PAGES:
        for block in blocks_of(page):
            if block.language in ("python", "bash"):
                assert re.fullmatch(r"|slow|needs \w+|no-run: \S.+", block.how), (page, block.how)
            if block.language == "python":
                check_python(block.text)


def test_links_lead_somewhere_on_github() -> None:
    """GitHub has no generated pages; the build of the site checks the links of the site."""
    made = {(DOCS / path).resolve() for path in make.pages()}
    missing = []
    for page in [*PAGES, *READMES]:
        for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
            file, _, anchor = target.partition("#")
            there = (page.parent / file).resolve() if file else page
            if not target.startswith(("http://", "https://", "mailto:")) and (
                there in made or not there.exists() or (anchor and anchor not in anchors(there))
            ):
                missing.append((page.name, target))
    assert not missing


def anchors(page: pathlib.Path) -> set[str]:
    """Returns the anchors of headings, as GitHub and MyST make them."""
    found: set[str] = set()
    included = {"benchmarks.md": "beside-other-simulators", "durations.md": "device_trace"}
    for heading in re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.add(f"{slug}-1" if slug in found else slug)
    return found | {included.get(page.name, "")}


@pytest.mark.parametrize("page", [page for page in [*PAGES, *READMES] if page.name != "CHANGELOG.md"], ids=name_of)
def test_names_and_files_that_a_page_names_exist(page: pathlib.Path) -> None:
    named = re.findall(r"`([^`\n]+)`", text_of(page))
    names = [found[1] for one in named if (found := re.match(r"((?:afl|jaxafl)(?:\.\w+)+)", one))]
    files = [one for one in named if re.fullmatch(r"(?:[\w-]+/)+[\w.-]+\.(?:py|md)", one)]
    places = (ROOT, ROOT / "jaxafl", DOCS, page.parent)
    assert not [name for name in names if not exists(name.split(".")[1:])]
    own = [one for one in files if any((folder / one.partition("/")[0]).is_dir() for folder in places)]
    assert not [file for file in own if not any((folder / file).exists() for folder in places)]


def exists(path: list[str]) -> bool:
    """Returns True if the package has a module, an attribute or a field of that path."""
    found: Any = jaxafl
    for depth, part in enumerate(path, 1):
        if not hasattr(found, part) and inspect.ismodule(found):
            try:
                importlib.import_module(".".join(["jaxafl", *path[:depth]]))
            except ImportError:
                return False
        if not hasattr(found, part):
            return part in getattr(found, "__annotations__", {}) or not inspect.isclass(found)
        found = getattr(found, part)
    return True


def test_committed_pages_fit_what_generates_them() -> None:
    """The short page of options, the page of the benchmarks, and the pictures with their numbers."""
    short = (DOCS / "options.md").read_text(encoding="utf-8")
    assert short == make.short_options(), "run python docs/make.py --options"
    headings = re.findall(r"^##+ .*", make.options(), re.M)
    assert headings == re.findall(r"^##+ .*", short, re.M) and len(headings) > 100  # the same anchors
    folder = ROOT / "experiments" / "benchmarks"
    names: dict[str, Any] = {"__file__": str(folder / "page.py"), "__name__": "page"}
    exec(compile((folder / "page.py").read_text(encoding="utf-8"), "page.py", "exec"), names)
    assert (folder / "README.md").read_text(encoding="utf-8") == names["page"](), "run experiments/benchmarks/page.py"
    assert make.complaints() == []


def test_every_public_name_has_its_place_and_says_what_it_is() -> None:
    pages, public = make.pages(), make.reference.public
    assert {value.__name__ for value in public("jaxafl").values() if inspect.ismodule(value)} <= {*make.reference.ROOMS}
    for room in make.reference.rooms():
        page = pages[f"api/{'jaxafl.theory' if 'theory.' in room else room}.md"]
        part = page.partition(f"currentmodule:: {room}\n")[2].partition("currentmodule::")[0]
        for name, value in public(room).items():
            home = make.reference.homes()[room, name]
            if home == f"{room}.{name}" and not inspect.ismodule(value):
                assert re.search(rf"^\.\. (auto\w+|py:data):: {name}$", part, re.M), home
                documented = re.search(rf":: {name}\n\n   \S", part)
                assert documented or (callable(value) and inspect.getdoc(value)), f"{home} has no docstring"
            else:
                assert f"`{value.__name__ if inspect.ismodule(value) else home}`" in page, home


def test_every_algorithm_and_clock_has_its_page() -> None:
    pages = make.pages()
    for name, one in make.methods().items():
        page = pages[f"algorithms/{name}.md"]
        assert f":pyobject: {one.call.__name__}\n" in page and f"pictures/{name}.png" in page
        assert all(f"`{option.name}`" in page for option in one.options)
        assert pages["made/algorithms.md"].count(f"| [`{name}`](../algorithms/{name}.md) |") == 1
    assert {f"clocks/{name}.md" for name in make.offered("clocks")} <= set(pages)


@pytest.mark.slow
def test_the_table_says_what_servers_read_and_keep() -> None:
    numbers = json.loads(make.problem.NUMBERS.read_text())
    found = {name: make.overview.facts(sim) for name, sim in make.problem.methods().items()}
    assert found == {name: {part: numbers[name][part] for part in ("reads", "keeps")} for name in found}
    assert found["fedasync"]["reads"] == ["Δ", "x_s", "τ", "client"] and found["fedadam"]["keeps"] == ["2 models"]


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("sphinx", reason="needs the extra docs")
    pytest.importorskip("myst_nb", reason="needs the extra docs")
    how = ("-q", "-W", "--keep-going", "-b", "html", "-t", "check")
    command = [sys.executable, "-m", "sphinx", *how, str(DOCS), str(tmp_path)]
    built = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert built.returncode == 0 and not built.stderr, built.stderr


@pytest.mark.slow
def test_scripts_of_benchmarks_find_what_they_import() -> None:
    folder = ROOT / "experiments" / "benchmarks"
    names = sorted({path.stem for path in folder.glob("*.py")} - {"peers", "peers_fedjax", "peers_torch"})
    subprocess.run([sys.executable, "-c", f"import {', '.join(names)}"], cwd=folder, check=True)
