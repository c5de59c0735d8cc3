"""Configuration of the site: `pip install -e ".[docs]" && sphinx-build -W -b html docs site`."""

import pathlib
import re
import sys

DOCS = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS), str(DOCS.parent)]  # make.py, and the package of this checkout
import make  # noqa: E402

from jaxafl.references import version as installed  # noqa: E402

make.write()

project, author, release = "jaxafl", "the jaxafl authors", installed()
copyright = "the jaxafl authors, Apache-2.0"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["made", "_build", "Thumbs.db", ".DS_Store"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"
default_role = "code"
autosummary_generate = False
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_type_aliases = {"Number": "Number"}
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False  # Returns are sentences
nitpicky = True  # for names of the package; names of other projects need inventories from the network
nitpick_ignore = [
    ("py:class", "jaxafl.data.held_out.HeldOut"),
    ("py:class", "jaxafl.clock.accounts.contract.Mechanism"),
    ("py:class", "jaxafl.clock.schedule.Source"),
    ("py:class", "jaxafl.clock.schedule.Unused"),
]
nitpick_ignore_regex = [("py:.*", r"(?!jaxafl).*")]
python_use_unqualified_type_names = True
html_theme = "sphinx_book_theme"
html_title = "jaxafl"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "show_toc_level": 2,
    "home_page_in_toc": False,
    "use_download_button": False,
    "navbar_persistent": [],
}

if tags.has("check"):  # noqa: F821  # the test of the site: half of the time goes to navigation and pages of sources
    html_sidebars = {"**": []}
else:
    extensions.append("sphinx.ext.viewcode")


def for_docutils(app, what, name, obj, options, lines):
    """Rewrites what docutils would misread in docstrings: several names with one description, and bars."""
    text = "\n".join(lines)
    text = re.sub(r"^( +(?:\w+, )*\w+,)\n +((?:\w+, )*\w+: )", r"\1 \2", text, flags=re.M)
    text = re.sub(r"^ +(\w+, )+\w+:", lambda found: found[0].replace(", ", ","), text, flags=re.M)
    lines[:] = re.sub(r"`[^`]*`|\|", lambda found: r"\|" if found[0] == "|" else found[0], text).split("\n")


def to_pages(app, name, source):
    """Rewrites links to what GitHub shows into links to pages of the site, which shows all options in full."""
    source[0] = make.options() if name == "options" else make.with_pages(source[0], (DOCS / name).parent)


def setup(app):
    app.connect("source-read", to_pages)
    app.connect("autodoc-process-docstring", for_docutils, priority=1)
