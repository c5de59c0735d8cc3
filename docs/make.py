"""Generates pages of the site: algorithms, clocks, options, every public name, tables of results, READMEs.

    python docs/make.py              # conf.py does this before every build; generated pages are not committed
    python docs/make.py --options    # writes docs/options.md, the short page of options that is committed
    python docs/make.py --check      # checks that committed pictures and their numbers fit the package

`problem.py` draws the pictures.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import pathlib
import re
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))  # before the scripts that import the package
import overview
import problem
import reference

import jaxafl as afl
from experiments.__main__ import PAPERS, details
from jaxafl.cli.catalogue import KINDS, QUESTIONS, REQUIRED, Constructor, Option, offered
from jaxafl.options import Bounds, bounds_of, kinds_of
from jaxafl.references import BIBTEX

DOCS = pathlib.Path(__file__).resolve().parent
ROOT = DOCS.parent
_ADOPTED = {  # page -> its source; links between sources become links between pages
    "engine": "jaxafl/README.md",
    "results": "experiments/README.md",
    "made/benchmarks": "experiments/benchmarks/README.md",
    "changelog": "CHANGELOG.md",
}
_SHORT = """# Options

These are all parts, with the names of their options. The site describes each.
"""
_PAGES = {"README.md": "index", "experiments/benchmarks/README.md": "benchmarks", "docs/clusters.md": "clusters"}
_PAGES |= {"docs/decisions/index.md": "decisions/index"}
# indices and powers of a letter, perhaps with an accent, or of a parenthesis
_INDEX = re.compile(
    r"(?:(?<=[^\W\d_])|(?<=[\u0300-\u036f)\d]))(?<![A-Za-z]{2})(?:[_^](?:\{[^}]*\}|\([^)]*\)|[^\W_]+))+"
)
_HEADING = re.compile(r"^(Args|Attributes|Returns|Raises|References):$", re.M)


def pages() -> dict[str, str]:
    """Returns the text of every generated page by its path below `docs`."""
    numbers = json.loads(problem.NUMBERS.read_text(encoding="utf-8"))
    made = {f"algorithms/{name}.md": _algorithm(one, numbers) for name, one in methods().items()}
    made |= {f"clocks/{name}.md": _clock(name) for name in problem.clocks()}
    made |= {f"api/{name}.md": reference.page_of(name, title) for name, title in reference.ROOMS.items()}
    made |= {f"{page}.md": _adopted(ROOT / path) for page, path in _ADOPTED.items()}
    made["results.md"] += "\n```{toctree}\n:hidden:\n:glob:\n\nresults/*\n```\n"
    for package, text in details("../../experiments/results").items():
        made[f"results/{package}.md"] = with_pages(text, DOCS / "results")
    tables = {"algorithms": _algorithms(numbers), "matrix": _matrix(), "clocks": _clocks()}
    tables |= {kind: _summaries(kind) for kind in ("datasets", "partitions", "models")} | {"durations": _durations()}
    return made | {f"made/{name}.md": table for name, table in tables.items()}


def methods() -> dict[str, Constructor]:
    """Returns the servers and the presets by name; a preset runs on the clock that it comes with."""
    presets = {
        name: one._replace(clocks=tuple(re.findall(r"--clock\s+(\w+)", inspect.getdoc(one.call) or "")))
        for name, one in offered("presets").items()
    }
    return dict(sorted((offered("servers") | presets).items()))


def options() -> str:
    """Returns the page of all options: every part, and local training, with a table of its options."""
    lines = ["# Options\n\nAll parts for `jaxafl run` and `jaxafl sweep`.\n"]
    for kind in (*KINDS, "local training"):
        lines.append(f"## {kind.capitalize()}\n")
        for one in offered(kind).values():
            lines.append(f"### {one.name}\n\n{one.summary}\n")
            if one.clocks:
                lines.append(f"Runs on {', '.join(f'`{clock}`' for clock in one.clocks)}.\n")
            if one.options:
                lines.append("| option | type | default | allowed | help |\n| --- | --- | --- | --- | --- |")
                for o in one.options:
                    default = "required" if o.default is REQUIRED else f"`{o.default!r}`"
                    cells = [f"`{o.name}`", o.type, default, _allowed(one, o), o.help]
                    lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
                lines.append("")
    return "\n".join(lines).rstrip()


def short_options() -> str:
    """Returns the committed page of options: the headings of the full page, each with the names of its options."""
    lines = [_SHORT]
    for title, text in re.findall(r"^(##+ .*)\n((?:(?!##).*\n?)*)", options(), re.M):
        names = re.findall(r"^\| (`\w+`) \|", text, re.M)
        lines.append(f"{title}\n" if title.startswith("## ") else f"{title}\n\n{', '.join(names) or 'no options'}\n")
    return "\n".join(lines)


def write() -> None:
    """Writes the generated pages that changed."""
    for path, text in pages().items():
        file = DOCS / path
        file.parent.mkdir(exist_ok=True)
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


def complaints() -> list[str]:
    """Returns the committed pictures and numbers that no longer fit the package, with what to do."""
    kept = json.loads(problem.NUMBERS.read_text(encoding="utf-8"))
    found, sims = [], problem.methods()
    if list(sims) != list(methods()):
        found.append(f"docs/problem.py runs {', '.join(sims)}, the package has {', '.join(methods())}")
    shipped = {*offered("clocks"), "trace"}
    if {*problem.clocks()} != shipped:
        found.append(f"docs/problem.py draws {', '.join(problem.clocks())}, the package has {', '.join(shipped)}")
    for name, sim in sims.items():
        now, then = problem.described(sim), {part: kept.get(name, {}).get(part) for part in problem.described(sim)}
        found += [
            f"{name} ran with {part} {then[part]}, it is now {now[part]}" for part in now if now[part] != then[part]
        ]
    whole = {"updates_per_second", "reads", "keeps"}
    found += [f"{name} lacks its speed or facts" for name in sims if not whole <= set(kept.get(name, {}))]
    pictures = {path.stem for path in problem.FOLDER.glob("*.png")}
    ideas = {"timeline", "waiting", "plan", "staleness", "privacy", "attacks", "uploads"}
    wanted = {*sims, *(f"clock_{name}" for name in problem.clocks()), *ideas}
    found += [f"docs/pictures/{name}.png is missing" for name in sorted(wanted - pictures)]
    found += [f"docs/pictures/{name}.png belongs to no algorithm or clock" for name in sorted(pictures - wanted)]
    return [f"{one}: run python docs/problem.py" for one in found]


def _split(documented: Any) -> tuple[str, str, dict[str, str]]:
    """Returns the first paragraph of a docstring, the text up to its sections, and the sections by name."""
    head, *parts = _HEADING.split(inspect.getdoc(documented) or "")
    first, _, rest = _set(head.strip()).partition("\n\n")
    dedent = inspect.cleandoc
    return first, rest, {name: dedent(text) for name, text in zip(parts[::2], parts[1::2], strict=True)}


def _set(text: str) -> str:
    """Returns the text with indices and powers of formulas as sub- and superscripts, except in code."""

    def placed(found: re.Match[str]) -> str:
        return "".join(
            f"{{{'sub' if mark == '_' else 'sup'}}}`{inner.strip('{}()')}`"
            for mark, inner in re.findall(r"([_^])(\{[^}]*\}|\([^)]*\)|\w+)", found[0])
        )

    pieces = re.split(r"(`[^`]*`)", text)
    pieces[::2] = [_INDEX.sub(placed, piece) for piece in pieces[::2]]
    return "".join(pieces)


def _algorithm(one: Constructor, numbers: dict[str, Any]) -> str:
    first, rest, sections = _split(one.call)
    ran = numbers[one.name]
    if one.name == "fedprox":
        first, rest = _set(one.summary), f"{first}\n\n{rest}"
    bibtex = "\n\n".join(BIBTEX[key] for key in overview.keys_of(one))
    preset = one.name in offered("presets")
    home = f"{{py:func}}`jaxafl.presets.{one.name}`" if preset else f"{{py:class}}`jaxafl.server.{one.call.__name__}`"
    spread = f"{100 * ran['accuracy']:.1f} ± {100 * ran['spread']:.1f} %"
    lines = [
        f"# {one.name}\n\n:::{{div}} formula\n{first}\n:::\n\n{rest}\n",
        f"**From:** {' '.join(sections.get('References', '').split())}\n",
        f"**Runs on:** {', '.join(f'[`{clock}`](../clocks/{clock}.md)' for clock in one.clocks)}.\n",
        f"**Name:** {home}{'' if preset else f', `jaxafl run --server {one.name}`'}.\n",
        f"## Options\n\n{_options(one)}\n" if one.options else "It has no options.\n",
        f"## On one common problem\n\n![Test accuracy against simulated time](../pictures/{one.name}.png)\n",
        f"[The problem of all these pages](index.md#the-common-problem), with `{ran['server']}`, `{ran['clock']}` and "
        f"`{ran['client']}`: test accuracy {spread} (mean and standard deviation of {problem.SEEDS} seeds) after "
        f"{ran['seconds']:,.0f} simulated seconds; mean staleness {ran['staleness']}, at most {ran['stalest']}. "
        "Nothing is tuned, so this does not rank methods.\n",
        f"## Source\n\n{_source(one.call)}\n",
        f"## Citing it\n\n```bibtex\n{bibtex}\n```\n" if bibtex else "",
    ]
    return "\n".join(lines)


def _clock(name: str) -> str:
    one = offered("clocks").get(name)
    call = one.call if one else afl.clock.trace
    first, rest, sections = _split(call)
    made, _ = problem.clocks()[name]
    servers = [server_name for server_name, found in offered("servers").items() if name in found.clocks]
    lines = [
        f"# {name}\n\n:::{{div}} formula\n{first}\n:::\n\n{rest}\n",
        f"**From:** {' '.join(sections['References'].split())}\n" if "References" in sections else "",
        f"**Runs:** {', '.join(f'[`{own}`](../algorithms/{own}.md)' for own in servers)}.\n" if one else "",
        f"**Its arrivals are:** {_delivered(call)} ({{py:class}}`jaxafl.clock.Delivery`).\n"
        if one and call.delivers
        else "",
        f"![Timeline of eight clients](../pictures/clock_{name}.png)\n\n`{made!r}`, eight clients: a bar is a run, "
        "dark if its update was stale, crossed if it was refused, stopped or lost; grey lines are server steps.\n",
        f"## Options\n\n{_options(one)}\n" if one and one.options else _arguments(sections),
        f"## Source\n\n{_source(call)}\n",
    ]
    return "\n".join(line for line in lines if line)


def _arguments(sections: dict[str, str]) -> str:
    return f"## Arguments\n\n```text\n{sections['Args']}\n```\n" if "Args" in sections else ""


def _delivered(call: Any) -> str:
    return ", ".join(str(flag.name).lower().replace("_", " ") for flag in call.delivers)


def _source(call: Any) -> str:
    path = pathlib.Path(inspect.getsourcefile(call) or "").resolve().relative_to(ROOT)
    return f"`{path}`:\n\n```{{literalinclude}} ../../{path}\n:language: python\n:pyobject: {call.__name__}\n```"


def _options(one: Constructor) -> str:
    default = {option.name: "" if option.default is REQUIRED else f"`{option.default!r}`" for option in one.options}
    rows = [(f"`{o.name}`", o.type, default[o.name], _allowed(one, o), _set(o.help)) for o in one.options]
    return _table(("option", "type", "default", "allowed", "what it is"), rows)


def _allowed(one: Constructor, option: Option) -> str:
    """Returns the values or bounds of an option in words."""
    fields = dataclasses.fields(one.call) if dataclasses.is_dataclass(one.call) else ()
    bounds = next((bounds_of(field) for field in fields if field.name == option.name), Bounds())
    kinds = kinds_of(option.hint)
    given = bounds.limits.items() if {int, float} & kinds.kinds else ()
    limits = [f"{sign} {limit:g}" for sign, limit in given if limit is not None]
    return ", ".join([*map(str, kinds.choices), *limits, *["also one per client"] * bounds.per_client])


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _algorithms(numbers: dict[str, Any]) -> str:
    parts = []
    for key, question in QUESTIONS.items():
        entries = {name: one for name, one in methods().items() if one.question == key}
        rows = [overview.row(one, numbers[name]) for name, one in entries.items()]
        lines = [f"- [`{name}`](../algorithms/{name}.md): {_set(one.summary)}" for name, one in entries.items()]
        text = _table(overview.HEAD, [tuple(map(_set, row)) for row in rows])
        parts.append(f"## {question}\n\n{text}\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def _matrix() -> str:
    clocks = [name for name in problem.clocks() if name != "trace"]
    head = ("", *(f"[{clock}](../clocks/{clock}.md)" for clock in clocks))
    rows = [
        (f"[{name}](../algorithms/{name}.md)", *("✓" if clock in one.clocks else "" for clock in clocks))
        for name, one in offered("servers").items()
    ]
    return _table(head, rows)


def _clocks() -> str:
    rows = []
    for name in problem.clocks():
        call = getattr(afl.clock, name)
        first = " ".join(_split(call)[0].split())
        rows.append(
            (
                f"[`{name}`](../clocks/{name}.md)",
                first,
                _delivered(call) if name != "trace" else "as the clock it replays",
            )
        )
    return _table(("clock", "in one line", "its arrivals are"), rows)


def _summaries(kind: str) -> str:
    rows = [
        (f"`{name}`", one.summary, ", ".join(f"`{o.name}`" for o in one.options)) for name, one in offered(kind).items()
    ]
    return _table(("name", "what it is", "options"), rows)


def _durations() -> str:
    made = []
    for name, one in offered("durations").items():
        first, rest, _ = _split(one.call)
        made.append(f"## {name}\n\n{first}\n\n{rest}\n\n{_options(one)}\n")
    return "\n".join(made)


def with_pages(text: str, folder: pathlib.Path) -> str:
    """Returns the text of a page with links to generated pages: committed links lead to files that GitHub shows."""
    anchors = {name: f"algorithms/{name}" for name in methods()}
    anchors = {name: f"clocks/{name}" for name in problem.clocks()} | anchors | {"ringleader-1": "clocks/ringleader"}
    adopted = {ROOT / source: _PAGES.get(source, page) for page, source in _ADOPTED.items()}

    def link(found: re.Match[str]) -> str:
        file, _, anchor = found[1].partition("#")
        target = (folder / file).resolve()
        page = anchors.get(anchor) if target == DOCS / "options.md" else adopted.get(target)
        if page is None:
            return found[0]
        kept = f"#{anchor}" if anchor and target in adopted else ""
        return f"]({pathlib.Path(os.path.relpath(DOCS / page, folder)).as_posix()}.md{kept})"

    return re.sub(r"\]\(([^)\s:]+)\)", link, text)


def _adopted(path: pathlib.Path) -> str:
    """Returns a README as a page: links to other READMEs lead to their pages, links to other files become text."""
    pages = _PAGES | {kept: own for own, kept in _ADOPTED.items() if kept not in _PAGES}

    def link(found: re.Match[str]) -> str:
        shown, text, target = found.groups()
        file, _, anchor = target.partition("#")
        if target.startswith(("http", "#")):
            return found[0]
        kept = (path.parent / file).resolve().relative_to(ROOT).as_posix()
        if shown:  # an image
            return f"![{text}](../{kept})"
        if kept in pages:
            return f"[{text}]({pages[kept]}.md{'#' + anchor if anchor and kept != 'README.md' else ''})"
        if kept.startswith("experiments/results/"):
            package = next(name for name in PAPERS if pathlib.Path(kept).name.startswith(f"{name}_"))
            return f"[{text}](results/{package}.md)"
        return f"[{text}](options.md)" if kept == "docs/options.md" else text

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", link, path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        wrong = complaints()
        print("\n".join(wrong) or "all pictures and their numbers fit the package")
        sys.exit(bool(wrong))
    if sys.argv[1:] == ["--options"]:
        (DOCS / "options.md").write_text(short_options(), encoding="utf-8")
    else:
        write()
