"""Builds the documentation: `make docs`, then open docs/_build/index.html."""

from __future__ import annotations

import sys
from pathlib import Path

import django
from django.conf import settings

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]

settings.configure(
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_delayq"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    DELAYQ={"REDIS": "redis://127.0.0.1:6379/0"},
    USE_TZ=True,
)
django.setup()

project = "django-delayq"
extensions = ["myst_parser", "sphinx.ext.autodoc", "reference_from_code"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "django-delayq"

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

# Docstrings are plain text with `code` in single backquotes.
default_role = "literal"
# No typographic dashes: an option is `--all`.
smartquotes = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "no-value": True}
autodoc_preserve_defaults = True
add_module_names = False
# Types of other projects, and the modules in which our own are defined, have no page here.
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]
# The fence is a diagram or a command line, and no language that can be highlighted.
highlight_language = "none"
suppress_warnings = ["misc.highlighting_failure"]
