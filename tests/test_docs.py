"""The site: its blocks run, its links lead somewhere, its pages name all that is public, and what is kept fits."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import pathlib
import re
import subprocess
import sys
import zlib
from typing import Any

import pytest

from tests.blocks import blocks_of, check_python, run_python, run_shell

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
ADOPTED = [DOCS / "engine.md", DOCS / "results.md", DOCS / "changelog.md"]  # written by make.py from READMEs
WRITTEN = sorted({*DOCS.rglob("*.md")} - {*ADOPTED, *DOCS.glob("made/*"), *DOCS.glob("notebooks/*")})
PAGES = [
    path for path in WRITTEN if path == DOCS / "options.md" or "literalinclude} ../../jaxafl" not in path.read_text()
]
READMES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *(ROOT / "jaxafl").glob("README.md"),
    *(ROOT / "experiments").rglob("README.md"),
]
QUICK = ("citing.md", "howto/algorithm.md", "howto/real_data.md")  # pages whose blocks always run
SHELL = ("pip ", "python -m", "git ", "sbatch ", ". ")  # how other lines of a shell may begin
TRAINS = "start.md"  # trains a convolutional network for longer than programs compile
SHORTER = ((r"(server_steps=)600\b", r"\g<1>50"), (r"(seeds=)6\b", r"\g<1>2"))  # the same calls, of smaller runs
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
IMAGE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)")


@pytest.fixture(scope="module")
def make() -> Any:
    """The script that makes pages."""
    sys.path.insert(0, str(DOCS))
    try:
        yield importlib.import_module("make")
    finally:
        sys.path.remove(str(DOCS))


def name_of(page: pathlib.Path) -> str:
    return page.relative_to(DOCS).as_posix()


def runnable(language: str) -> list[Any]:
    """Pages with blocks of a language that run; most are slow."""
    found = [
        page
        for page in PAGES
        if any(b.language == language and not b.how.startswith("no-run") for b in blocks_of(page))
    ]
    quick = {name for name in QUICK if language == "python"}
    marks = {name: () for name in quick} | {TRAINS: (pytest.mark.slow, pytest.mark.optimised)}
    return [pytest.param(page, id=(name := name_of(page)), marks=marks.get(name, pytest.mark.slow)) for page in found]


@pytest.mark.parametrize("page", runnable("python"))
def test_python_of_a_page_runs_from_top_to_bottom(
    page: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "from sklearn" in page.read_text(encoding="utf-8"):
        pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(page):
        if block.language == "python" and block.runs:
            text = functools.reduce(lambda text, change: re.sub(*change, text), SHORTER, block.text)
            run_python(text, names, name_of(page))
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("page", runnable("bash"))
def test_commands_of_a_page_run(page: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks_of(page):
        if block.language == "bash" and not block.how.startswith("no-run"):
            others = run_shell(block.text)
            assert all(line.startswith(SHELL) for line in others), others


def test_blocks_say_what_is_done_with_them() -> None:
    marked = [
        (name_of(page), block) for page in PAGES for block in blocks_of(page) if block.language in ("python", "bash")
    ]
    assert len(marked) > 30
    for page, block in marked:
        assert re.fullmatch(r"|slow|needs \w+|no-run: \S.+", block.how), (page, block.how)
        if block.language == "python":
            check_python(block.text)


def test_names_of_options_in_blocks_that_are_not_run(make: Any) -> None:
    """What needs data that is not here still names options that there are."""
    kinds = {"partition": "partitions", "server": "servers", "clock": "clocks", "data": "datasets"}
    every = (
        (part, option.name) for part in kinds for one in make.offered(kinds[part]).values() for option in one.options
    )
    known = {f"--{part}.{name.replace('_', '-')}" for part, name in every}
    lines = [block.text for page in PAGES for block in blocks_of(page) if block.how.startswith("no-run")]
    named = {option for line in lines if ":in_turns" not in line for option in re.findall(r"--\w+\.[\w-]+", line)}
    assert len(named) >= 2 and named <= known


def test_links_lead_somewhere(make: Any) -> None:
    """On GitHub, which has no generated pages; the site's own build checks its links."""
    made = {(DOCS / path).resolve() for path in make.pages()}
    missing = []
    for page in [one for one in (*PAGES, *READMES) if one.resolve() not in made]:  # a built site leaves its pages
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for target in LINK.findall(text) + IMAGE.findall(text):
            if target.startswith(("http://", "https://", "mailto:")):
                continue
            file, _, anchor = target.partition("#")
            there = (page.parent / file).resolve() if file else page
            if (
                there in made
                or not there.exists()
                or (anchor and there.suffix == ".md" and there.exists() and anchor not in anchors(there))
            ):
                missing.append((page.name, target))
    assert not missing


def anchors(page: pathlib.Path) -> set[str]:
    """As GitHub and MyST make them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    found: set[str] = set()
    for heading in headings:
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.add(f"{slug}-1" if slug in found else slug)
    return (
        found | {"beside-other-simulators", "device_trace"} if page.name in ("benchmarks.md", "durations.md") else found
    )


def test_what_is_kept_fits_the_package(make: Any) -> None:
    assert make.complaints() == []


def test_every_public_name_has_its_place_and_says_what_it_is(make: Any) -> None:
    pages = make.pages()
    for room in (
        "jaxafl",
        *(value.__name__ for value in make.reference.public("jaxafl").values() if inspect.ismodule(value)),
    ):
        assert room in make.reference.ROOMS, room
    for room in make.reference.rooms():
        page = pages[f"api/{'jaxafl.theory' if 'theory.' in room else room}.md"]
        part = page.partition(f"currentmodule:: {room}\n")[2].partition("currentmodule::")[0]
        for name, value in make.reference.public(room).items():
            inner = f"{room}.{name}"
            home = make.reference.homes()[room, name]
            if inspect.ismodule(value):
                assert f"`{value.__name__}`" in page, inner
            elif home == inner:
                assert re.search(rf"^\.\. (auto\w+|py:data):: {name}$", part, re.M), inner
            else:
                assert f"`{home}`" in page, inner
            said = inspect.getdoc(value) if callable(value) else True
            assert said or re.search(rf"py:data:: {name}\n\n   \S", part), f"{inner} has no docstring"


def test_every_algorithm_and_clock_has_its_page(make: Any) -> None:
    pages = make.pages()
    for name in make.afl.server.__all__:
        value = getattr(make.afl.server, name)
        if inspect.isclass(value) and name.islower() and issubclass(value, make.afl.server.Server):
            page = pages[f"algorithms/{name}.md"]
            assert all(f"`{option}`" in page for option in (o.name for o in make.offered("servers")[name].options))
            assert f":pyobject: {name}\n" in page and f"pictures/{name}.png" in page
    assert {f"clocks/{name}.md" for name in make.offered("clocks")} <= set(pages)
    for name in make.offered("presets"):
        assert f":pyobject: {name}\n" in pages[f"algorithms/{name}.md"]
    of = {name: make.methods()[name] for name in ("fedvarp", "kardam", "naive_optimal", "picky_sgd", "ringmaster")}
    assert [make.overview.tag(one) for one in of.values()] == ["T", "T", "T", "reading", "P, A"]
    assert (of["fedvarp"].clocks, of["naive_optimal"].clocks) == (("synchronous",), ("free_running",))
    table = pages["made/algorithms.md"]
    assert all(table.count(f"| [`{name}`](../algorithms/{name}.md) |") == 1 for name in make.methods())


@pytest.mark.slow
def test_the_table_says_what_servers_read_and_keep(make: Any) -> None:
    numbers = json.loads(make.problem.NUMBERS.read_text())
    found = {name: make.overview.facts(sim) for name, sim in make.problem.methods().items()}
    assert found == {name: {part: numbers[name][part] for part in ("reads", "keeps")} for name in found}
    assert found["fedasync"]["reads"] == ["Δ", "x_s", "τ", "client"]  # its paper mixes models by staleness
    assert found["fedadam"]["keeps"] == ["2 models"]  # moments m and v
    assert found["ringleader"]["keeps"][0] == "2 rows per client"


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_lists_every_public_name(make: Any, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("sphinx", reason="needs the extra docs")
    pytest.importorskip("myst_nb", reason="needs the extra docs")
    how = ("-q", "-W", "--keep-going", "-b", "html", "-t", "check")
    command = [sys.executable, "-m", "sphinx", *how, str(DOCS), str(tmp_path)]
    built = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert built.returncode == 0 and not built.stderr, built.stderr
    packed = (tmp_path / "objects.inv").read_bytes().split(b"\n", 4)[4]
    listed = {line.split()[0] for line in zlib.decompress(packed).decode().splitlines() if " py:" in line}
    homes = make.reference.homes()
    wanted = {home for (room, name), home in homes.items() if not inspect.ismodule(make.reference.public(room)[name])}
    assert len(wanted) > 150 and wanted <= listed, sorted(wanted - listed)


def test_links_of_the_site_lead_to_generated_pages(make: Any) -> None:
    text = "[`a`](../options.md#fedbuff), [b](../options.md#ringleader-1), [c](../options.md#cifar10), [d](speed.md#x)"
    text += ", [e](../../jaxafl/README.md#layers), [f](../../README.md#licence), [g](https://example.org/options.md)"
    assert re.findall(r"\]\(([^)]*)\)", make.with_pages(text, DOCS / "howto")) == [
        *("../algorithms/fedbuff.md", "../clocks/ringleader.md", "../options.md#cifar10", "speed.md#x"),
        *("../engine.md#layers", "../../README.md#licence", "https://example.org/options.md"),
    ]
