"""Plain English: first words of docstrings, identifiers, references that resolve, and the public signatures.

`python -m tests.test_english` lowers the counts of `tests/english.txt` and writes `tests/signatures.txt`.
"""

from __future__ import annotations

import ast
import enum
import functools
import importlib
import inspect
import pathlib
import re
import types
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import flax.linen

import jaxafl

ROOT = pathlib.Path(jaxafl.__file__).parents[1]
TREES = {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in sorted(ROOT.glob("jaxafl/**/*.py"))}
EXCEPTIONS = pathlib.Path(__file__).with_name("english.txt")
SIGNATURES = pathlib.Path(__file__).with_name("signatures.txt")
FIRST = {"What", "Whether", "Which", "Who", "Whose", "Where", "Of", "Those", "That", "As", "Its", "How", "Likewise"}
PARTICLES = {"apart", "beside", "here", "there", "alone", "together", "told", "made", "own", "whole"}
PUBLIC = {
    ("jaxafl/device/compilation.py", "whole"): "an option of `compiled` that callers pass by name",
    ("jaxafl/sweep/run.py", "together"): "an option of `sweep` that users pass by name",
    ("jaxafl/sweep/outlook.py", "together"): "the same option of `outlook`, and a field of its result",
}
"""Names that stay, with the reason."""


def texts(tree: ast.AST) -> Iterator[str]:
    """Yields every docstring, of modules, classes, functions and fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def definitions(tree: ast.AST) -> Iterator[str]:
    """Yields the name of every function, class, parameter, module variable, field and attribute that a file defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        if isinstance(node, ast.ClassDef | ast.Module):
            targets = [t for s in node.body if isinstance(s, ast.Assign) for t in s.targets]
            targets += [statement.target for statement in node.body if isinstance(statement, ast.AnnAssign)]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def wrong(path: str) -> tuple[list[str], list[str]]:
    """Returns the docstrings with a forbidden first word, and the identifiers that are a particle."""
    first = [text for text in texts(TREES[path]) if (m := re.match(r"\W*(\w+)", text)) and m[1] in FIRST]
    names = [name for name in definitions(TREES[path]) if name.strip("_").lower() in PARTICLES]
    return first, [name for name in names if (path, name) not in PUBLIC]


def listed() -> dict[str, tuple[int, int]]:
    rows = (line.split() for line in EXCEPTIONS.read_text().splitlines())
    return {path: (int(docstrings), int(names)) for path, docstrings, names in rows}


def test_docstrings_begin_plainly_and_no_identifier_is_a_particle() -> None:
    """The list of exceptions only shrinks: `python -m tests.test_english` lowers it."""
    exceptions, found = listed(), {path: wrong(path) for path in TREES}
    counts = {path: (len(first), len(names)) for path, (first, names) in found.items()}
    assert not {path: found[path] for path, count in counts.items() if count != exceptions.get(path, (0, 0))}


def test_every_exception_is_of_a_file() -> None:
    assert set(listed()) <= set(TREES)


@functools.cache
def classes() -> dict[str, set[str]]:
    """Returns the names that each class of the package defines or inherits; classes of one name share an entry."""
    names: defaultdict[str, set[str]] = defaultdict(set)
    bases: defaultdict[str, set[str]] = defaultdict(set)
    for tree in TREES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                names[node.name] |= set(definitions(node))
                bases[node.name] |= {ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases}
    for _ in range(6):  # generations
        for name in list(names):
            names[name] |= {inherited for base in bases[name] for inherited in names.get(base, ())}
    return dict(names)


def resolves(reference: str, known: dict[str, set[str]]) -> bool:
    parts = reference.split(".")
    if parts[0] in ("jaxafl", "afl"):
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
    return parts[0] not in known or parts[1] in known[parts[0]]


def test_references_resolve() -> None:
    """A dotted name in backticks that begins with `jaxafl` or a class of it exists, and so does a file `jaxafl/...`."""
    unresolved = []
    for path, tree in TREES.items():
        text = "\n".join(texts(tree))
        names = re.findall(r"`([A-Za-z_]\w*(?:\.\w+)+)[^`/]*`", text)
        files = re.findall(r"\bjaxafl/[\w/]+\.\w+", text)
        unresolved += [(path, name) for name in names if not resolves(name, classes())]
        unresolved += [(path, name) for name in files if not (ROOT / name).exists()]
    assert not unresolved


def signature(value: Any) -> str:
    """Returns the parameters with their defaults, without annotations; empty if another library declares them."""
    foreign = inspect.isclass(value) and issubclass(value, enum.Enum | BaseException | flax.linen.Module)
    if foreign or not (inspect.isfunction(value) or inspect.isclass(value)):
        return ""
    words: list[str] = []
    for p in inspect.signature(value).parameters.values():
        if p.kind is p.KEYWORD_ONLY and not any(word.startswith("*") for word in words):
            words.append("*")
        simple = type(p.default) in (types.NoneType, bool, int, float, str, tuple)
        default = "" if p.default is p.empty else f"={p.default!r}" if simple else "=..."
        words.append({p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "") + p.name + default)
    return f"({', '.join(words)})"


def public(module: types.ModuleType = jaxafl, prefix: str = "") -> list[str]:
    """Returns one line for each public name of a module and its submodules, and each method of a class at the top."""
    lines = []
    defined = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    for name in getattr(module, "__all__", sorted(name for name in defined if name[0] != "_")):
        value = getattr(module, name)
        if isinstance(value, types.ModuleType):
            lines += public(value, f"{prefix}{name}.")
            continue
        lines.append(prefix + name + signature(value))
        if not prefix and isinstance(value, type):
            methods = inspect.getmembers(value, inspect.isfunction)
            lines += [f"{name}.{key}{signature(method)}" for key, method in methods if key[0] != "_"]
    return lines


def test_public_signatures_are_the_recorded_ones() -> None:
    """After a deliberate change, with its alias and its line in CHANGELOG.md: `python -m tests.test_english`."""
    assert public() == SIGNATURES.read_text().splitlines()


if __name__ == "__main__":
    before = listed()
    counts = {path: tuple(map(len, wrong(path))) for path in TREES if path in before}
    rows = {path: tuple(map(min, counts[path], before[path])) for path in counts}
    EXCEPTIONS.write_text("".join(f"{path} {a} {b}\n" for path, (a, b) in rows.items() if a or b))
    SIGNATURES.write_text("\n".join(public()) + "\n")
