"""How Sphinx makes a site of the reports: make site, or sphinx-build notebooks site."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

project = html_title = "The Nonlinearity Budget"
author = "The Nonlinearity Budget contributors"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx-mathjax-offline", "lib.reports.extension"]
exclude_patterns = ["**.ipynb_checkpoints", "**.part.ipynb", "pages/start.md", "pages/contents.md"]
suppress_warnings = ["mystnb.unknown_mime_type"]
smartquotes = False

# What was executed is shown; nothing is executed here.
nb_execution_mode = "off"
nb_render_markdown_format = "myst"
nb_code_prompt_show, nb_code_prompt_hide = "Show code", "Hide code"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

autodoc_typehints_format = "short"
autodoc_inherit_docstrings = False
autodoc_default_options = {"members": True, "undoc-members": True}
add_module_names = False
toc_object_entries_show_parents = "hide"
autodoc_member_order = "bysource"
maximum_signature_line_length = 80

html_static_path = ["../lib/reports/static"]
html_css_files = ["site.css"]
html_favicon = "../lib/reports/static/icon.svg"
html_theme = "sphinx_book_theme"
html_context = {"default_mode": "auto"}
html_show_copyright = False
html_theme_options = {
    "home_page_in_toc": True,
    "use_fullscreen_button": False,
    "show_navbar_depth": 1,
    "show_toc_level": 2,
    # the search stands in the side bar
    "navbar_start": [],
    "navbar_center": [],
    "navbar_end": [],
    "navbar_persistent": [],
}
