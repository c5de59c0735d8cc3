"""Gives every notebook its badge and its first cell, and writes its `.ipynb`.

python docs/notebooks/sync.py            # after a change to a notebook's text (`.md`) or to this file
python docs/notebooks/sync.py --check    # exit code 1 if something would change
"""

from __future__ import annotations

import importlib.metadata
import pathlib
import re
import sys

import jupytext

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = "https://github.com/jaxafl/jaxafl"  # where notebooks are opened from
SOURCE = f"git+{REPOSITORY}@v{importlib.metadata.version('jaxafl')}"  # what is installed; or a package index's "=="

HEADER = """---
jupytext:
  formats: md:myst,ipynb
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---
"""
BADGE = (
    "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/"
    "github/{owner}/blob/main/docs/notebooks/{name}.ipynb)"
)
CELL = f"""```{{code-cell}} ipython3
:tags: [hide-input]

# Installs jaxafl if it is missing, as on Colab; with a GPU, for the CUDA version that its driver supports.
import importlib.util
import re
import shutil
import subprocess
import sys

if importlib.util.find_spec("jaxafl") is None:
    smi = shutil.which("nvidia-smi")
    said = subprocess.run([smi], capture_output=True, text=True).stdout if smi else ""
    cuda = re.search(r"CUDA Version: (\\d+)", said)
    extras = ["bert", *(["cuda13" if int(cuda[1]) >= 13 else "cuda12"] if cuda else [])]
    source = f"jaxafl[{{','.join(extras)}}] @ {SOURCE}"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", source], check=True)
```
"""


def synced(text: str, name: str) -> str:
    """Returns the text of a notebook with the current header, badge and first cell."""
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.S).lstrip("\n")
    title, _, rest = text.partition("\n")
    rest = re.sub(r"\A\s*\[!\[Open in Colab\].*?\n", "", rest)
    rest = re.sub(r"\A\s*```\{code-cell\}[^\n]*\n:tags: \[hide-input\]\n.*?```\n", "", rest, flags=re.S)
    badge = BADGE.format(owner=REPOSITORY.removeprefix("https://github.com/"), name=name)
    return f"{HEADER}\n{title}\n\n{badge}\n\n{CELL}\n{rest.lstrip()}"


def paired(text: str, name: str) -> str:
    """Returns the text as a notebook file without output; cells have stable ids."""
    notebook = jupytext.reads(text, fmt="md:myst")
    for number, cell in enumerate(notebook.cells):
        cell.id = f"{name}-{number}"
    return jupytext.writes(notebook, fmt="ipynb").rstrip() + "\n"


def main() -> int:
    """Writes changed notebooks; with `--check` returns 1 if one would change."""
    changed = []
    for path in sorted(HERE.glob("*.md")):
        if path.stem == "index":
            continue
        text = synced(path.read_text(encoding="utf-8"), path.stem)
        for file, made in ((path, text), (path.with_suffix(".ipynb"), paired(text, path.stem))):
            if not file.exists() or file.read_text(encoding="utf-8") != made:
                changed.append(file.name)
                if "--check" not in sys.argv:
                    file.write_text(made, encoding="utf-8")
    print(*changed, sep="\n")
    return int(bool(changed) and "--check" in sys.argv)


if __name__ == "__main__":
    raise SystemExit(main())
