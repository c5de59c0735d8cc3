"""One place for the version, and for what is cited."""

from __future__ import annotations

import pathlib
import re
import tomllib

import yaml

import jaxafl
from jaxafl.references import BIBTEX, citation

ROOT = pathlib.Path(jaxafl.__file__).parents[1]
PAPERS = ("wang2022asyncfeded", "hao2025", "wang2024fadas", "wang2024defedavg", "afl2025")


def test_the_version_stands_in_pyproject_and_heads_the_changelog() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)[1] == declared
    files = [*ROOT.glob("jaxafl/**/*.py"), ROOT / "CITATION.cff", ROOT / "CONTRIBUTING.md"]
    assert [path for path in files if f'"{declared}"' in path.read_text(encoding="utf-8")] == []


def test_the_five_papers_are_cited_as_they_are_in_the_package() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["title"] in citation()
    for key, paper in zip(PAPERS, cited["references"], strict=True):
        entry = re.sub(r"\s+", " ", re.sub(r"[{}]", "", BIBTEX[key]))
        assert f"title = {paper['title']}," in entry and f"year = {paper['year']} " in f"{entry} "
        authors = " and ".join(f"{one['family-names']}, {one['given-names']}" for one in paper["authors"])
        assert f"author = {authors}," in entry
