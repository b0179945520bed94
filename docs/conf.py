"""How Sphinx builds the documentation: `make docs`."""

from structloss import __version__

project = "structloss"
author = "The structloss developers"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"structloss {release}"

default_role = "code"  # docstrings write `name` for code
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

napoleon_numpy_docstring = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
