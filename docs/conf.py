"""How Sphinx builds the manual: `make docs`."""

import hashlib
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE / "_ext"), str(ROOT)]

from jaximpact.version import __version__  # noqa: E402

project = "jaximpact"
author = "The jaximpact developers"
copyright = author
release = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "docstrings",
    "mathml",
    "notebooks",
    "pages",
]
exclude_patterns = ["_build", "_ext", "generated/parts"]
suppress_warnings = ["config.cache"]

# pages
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
myst_links_external_new_tab = True

# Their code is executed in the build, and executed anew where the page or the package has changed; `make docs-fresh`
# executes all of it. Compiled programs are shared between pages.
BUILD = Path(os.environ.get("DOCS_BUILD", HERE / "_build"))
_package = hashlib.sha256()
for _source in sorted((ROOT / "jaximpact").rglob("*.py")):
    _package.update(_source.read_bytes())
nb_execution_mode = "cache"
nb_execution_cache_path = str(BUILD / "executed" / _package.hexdigest()[:12])
nb_execution_timeout = 1200  # of a cell, on a machine that has other things to do too
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_merge_streams = True
nb_execution_show_tb = True
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(BUILD / "compiled")
os.environ["JAX_PERSISTENT_COMPILATION_CACHE_MIN_COMPILE_TIME_SECS"] = "0.3"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
os.environ["JAXIMPACT_ROOT"] = str(ROOT)  # where pages find recorded results

# reference
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_use_param = False  # several names share a line: "q, v: ..."
napoleon_custom_sections = [("Attributes", "params_style")]
napoleon_use_rtype = False
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

# site: all of it works from the file system
html_theme = "furo"
html_title = "jaximpact"
pygments_dark_style = "github-dark"
html_static_path = ["_static"]
html_css_files = ["manual.css"]
html_show_search_summary = False  # it is fetched, which a browser refuses on files
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "navigation_with_keys": True,
    "light_css_variables": {"color-brand-primary": "#1f5fa8", "color-brand-content": "#1f5fa8"},
    "dark_css_variables": {"color-brand-primary": "#8ab8f0", "color-brand-content": "#8ab8f0"},
}
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True
