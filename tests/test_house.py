"""The structure of the package: which room imports which, no circles, nothing too long, no algorithm in the engine."""

from __future__ import annotations

import ast
import functools
import graphlib
import pathlib
import subprocess
import sys
import tokenize

import pytest

import jaxafl
from jaxafl import clock, server

PACKAGE = pathlib.Path(jaxafl.__file__).parent
FILES = sorted(path for path in PACKAGE.rglob("*.py"))
RANKS = {
    "options": 0, "references": 0, "device": 1, "readers": 1, "data": 2, "models": 2, "client": 3,
    "clock": 3, "server": 4, "engine": 5, "results": 6, "plot": 7, "callbacks": 8, "simulation": 9,
    "presets": 5, "sweep": 10, "theory": 10, "study": 11, "cli": 12, "__init__": 13, "__main__": 13,
}  # fmt: skip
"""Arrows go from a higher number to a lower one."""


def module_of(path: pathlib.Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


MODULES = {module_of(path): path for path in FILES}


@functools.cache
def imported(path: pathlib.Path, at_the_top: bool = False) -> set[str]:
    """The modules of the package that a file imports, at the top, in functions or for type checkers only."""
    found: set[str] = set()
    tree = ast.parse(path.read_text())
    for node in tree.body if at_the_top else ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in (name for name in names if name.split(".")[0] == "jaxafl"):
            while name not in MODULES and "." in name:
                name = name.rpartition(".")[0]
            found.add("jaxafl.__init__" if name == "jaxafl" else name)
    return found


def room(module: str) -> str:
    return module.split(".")[1]


def test_every_package_is_in_the_order_and_there_are_few() -> None:
    rooms = {room(module) for module in MODULES}
    assert rooms == set(RANKS)
    assert len(rooms - {"__main__"}) <= 20  # a file for `python -m jaxafl`


@pytest.mark.parametrize("package", RANKS)
def test_no_package_imports_a_higher_one(package: str) -> None:
    upwards = {
        (module, other)
        for module, path in MODULES.items()
        if room(module) == package
        for other in imported(path)
        if room(other) != package and RANKS[room(other)] >= RANKS[package]
    }
    assert not upwards


def test_imports_have_no_cycle() -> None:
    graph = {module: imported(path) - {module} for module, path in MODULES.items()}
    tuple(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


def test_files_are_short() -> None:
    lines = {module: len(path.read_text().splitlines()) for module, path in MODULES.items()}
    assert not {module: count for module, count in lines.items() if count > 600}


@pytest.mark.parametrize("package", ["engine", "simulation", "results"])
def test_the_engine_knows_no_algorithm_and_no_protocol(package: str) -> None:
    protocols = {name for name, one in vars(clock).items() if isinstance(one, type) and issubclass(one, clock.Clock)}
    protocols -= {"Clock"}
    algorithms = {name for name in server.__all__ if name.islower()} - {"norm", "mean_delta", "weighted_sum"}
    known = algorithms | protocols
    found = set()
    for module, path in MODULES.items():
        nodes = list(ast.walk(ast.parse(path.read_text()))) if room(module) == package else []
        words = {node.id for node in nodes if isinstance(node, ast.Name)}
        words |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        words |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        found |= {(module, word) for word in words & known}
    assert not found


def test_importing_is_quick_and_shows_the_public_names_only() -> None:
    """Seconds are no test; what takes them is imported when it is used."""
    slow = ("matplotlib", "xarray", "h5py", "tensorflow", "tensorflow_datasets", "flax.nnx", "torch", "torchax", "tyro")
    code = f"""if True:
        import sys, jaxafl
        jaxafl.data, jaxafl.models.from_torch
        print(sorted({{*{slow}, "jaxafl.plot"}} & set(sys.modules)), dir(jaxafl) == sorted(jaxafl.__all__))
        import jaxafl.plot
        print("matplotlib.pyplot" in sys.modules)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "True", "False"]


LEAVES = (
    "callbacks.trackers", "cli", "client.attack", "client.correction", "client.upload", "clock.accounts",
    "clock.durations", "clock.protocols", "data.partition", "data.sources", "models.adapters", "models.networks",
    "plot", "presets", "readers", "results.privacy", "results.tables", "server.aggregate", "server.algorithms",
    "sweep.executors", "study", "theory",
)  # fmt: skip
"""Folders that nobody has to read: the core imports their contracts, and `__init__` files list them."""
CONTRACTS = {"clock.durations.duration", "data.partition.base", "readers.replacing"}
DOORS = {
    "callbacks.limits": {"clock.accounts.privacy"},
    "clock.schedule": {"clock.accounts.energy", "clock.accounts.privacy"},
    "data.federated": {"data.partition.statistics"},
    "results.accessor": {"clock.accounts.privacy"},
    "results.dataset": {"results.privacy.claims"},
    "simulation": {"results.privacy.claims"},
    "sweep.run": {"sweep.executors.tasks"},
}
"""Leaves that a method of the core imports in its body."""


def is_leaf(module: str) -> bool:
    name = module.removeprefix("jaxafl.")
    inside = any(f"{name}.".startswith(f"{folder}.") for folder in LEAVES)
    return inside and name not in CONTRACTS and not name.endswith(".contract")


CORE = {module: path for module, path in MODULES.items() if not is_leaf(module)}


def test_the_core_is_small() -> None:
    """Lines of code, without blank lines, comments and docstrings."""
    count, silent = 0, {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    for path in CORE.values():
        tokens = [one for one in tokenize.generate_tokens(path.open().readline) if one.type not in silent]
        lines = {line for one in tokens[:-1] for line in range(one.start[0], one.end[0] + 1)}
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
                lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
        count += len(lines)
    assert 5000 < count <= 11_000


def test_the_core_opens_leaves_by_few_doors() -> None:
    found = {
        module.removeprefix("jaxafl."): {leaf.removeprefix("jaxafl.") for leaf in filter(is_leaf, imported(path))}
        for module, path in CORE.items()
        if path.name not in ("__init__.py", "__main__.py")
    }
    assert {module: leaves for module, leaves in found.items() if leaves} == DOORS
    assert sum(map(len, DOORS.values())) <= 8
    assert not [leaf for module in found for leaf in imported(CORE[f"jaxafl.{module}"], True) if is_leaf(leaf)]
