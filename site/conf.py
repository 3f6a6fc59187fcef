"""How Sphinx turns the pages that ``build.py`` gathers into the site. Options: https://www.sphinx-doc.org."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from reference import source_page  # noqa: E402

from course_lib.notebooks.opening import Addresses  # noqa: E402

project = "Training large models, by hand"
author = "its contributors"
language = "en"
html_title = project
# Where the site stands, for search engines: pyproject.toml knows. Its own links do without.
addresses = Addresses.of(HERE.parent)
html_baseurl = addresses.site if addresses else ""

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.linkcode",
    "sphinx.ext.mathjax",
]
exclude_patterns = ["parts"]  # pieces of pages
suppress_warnings = ["myst.header"]  # an exercise has a heading of the third level below the title

# Notebooks are shown as they are committed.
nb_execution_mode = "off"
nb_merge_streams = True
nb_code_prompt_show = "Show the {type}"
nb_code_prompt_hide = "Hide the {type}"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4

# The reference: types stand in the signature, each parameter on a line of its own where they are many.
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 88

html_theme = "furo"
html_static_path = ["static", os.environ["SITE_STATIC"]]  # our own files, and those that the build makes
html_favicon = "static/icon.svg"
html_css_files = ["site.css", "game.css"]
html_js_files = ["results.js", ("bets.js", {"type": "module"})]
html_show_sourcelink = False
html_copy_source = False
html_show_copyright = False
# From our own folder: at view time a page asks no other server for anything.
mathjax_path = "mathjax/tex-svg.js"
mathjax3_config = {"svg": {"fontCache": "global"}, "options": {"enableMenu": False}}


def linkcode_resolve(domain, info):
    """The page of the course's source that holds a documented name; pages of the reference lie one folder deep."""
    return f"../{source_page(info['module'])}" if info.get("module") else None
