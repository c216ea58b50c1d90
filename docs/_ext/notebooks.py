"""Every page with code as a Jupyter notebook: the pages are text notebooks, and these are made of them,
without outputs.

`notebook(text)` gives one without building anything; the extension writes them beside the built pages,
and links each from its page.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

FOLDER = "_notebooks"
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n((?::[^\n]*\n)*)(.*?)^```\n", re.DOTALL | re.MULTILINE)
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


def is_notebook(text: str) -> bool:
    """Whether a page's source has cells of code."""
    return text.startswith("---\nfile_format: mystnb") and CELL.search(text) is not None


def notebook(text: str) -> dict[str, Any]:
    """The notebook of a page, as its JSON (nbformat 4.5): its code cells,
    and between them its text as plain Markdown."""
    body = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    cells: list[dict[str, Any]] = []
    for i, piece in enumerate(CELL.split(body)):  # text, options, code in turn
        if i % 3 == 1:
            tags = re.findall(r"[\w-]+", (re.search(r":tags: \[(.*)\]", piece) or ["", ""])[1])
        elif i % 3 == 2:
            cells.append({"cell_type": "code", "source": piece.strip(), "outputs": [], "execution_count": None})
            cells[-1]["metadata"] = {"tags": tags} if tags else {}
        elif plain(piece):
            cells.append({"cell_type": "markdown", "source": plain(piece), "metadata": {}})
    for i, cell in enumerate(cells):
        cell["id"] = f"cell-{i}"  # of each build the same
    return {"cells": cells, "metadata": {"kernelspec": KERNEL}, "nbformat": 4, "nbformat_minor": 5}


def plain(text: str) -> str:
    """Markdown without what Sphinx alone understands: entries of the index, roles, links to other pages."""
    text = re.sub(r"^```\{index\}.*?^```\n", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^```\{\w+\} (\S+)\n(?::.*\n)*?```\n", r"*(in the manual: \1)*\n", text, flags=re.MULTILINE)
    text = re.sub(r"^\((?:[\w-]+)\)=\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"\{doc\}`([^`<]*?)\s*<[^`>]*>`", r"\1", text)
    text = re.sub(r"\{doc\}`/?(?:[\w-]+/)*([\w-]+)`", r"*\1*", text)
    text = re.sub(r"\{(?:py:\w+|ref|numref)\}`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text)
    text = re.sub(r"\{(?:ref|eq)\}`[^`]*`", "", text)
    return text.strip()


def link(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Beneath the heading of a page that is one."""
    if doctree is None or not is_notebook(Path(app.env.doc2path(pagename)).read_text()):
        return
    root = context["pathto"](FOLDER, resource=True)
    note = f'<p class="as-notebook"><a href="{root}/{pagename}.ipynb" download>This page as a notebook</a></p>'
    context["body"] = context["body"].replace("</h1>", f"</h1>\n{note}", 1)


def write(app: Any, error: Exception | None) -> None:
    """All of them, once the site is built."""
    if error is not None or app.builder.format != "html":
        return
    for name in app.env.found_docs:
        text = Path(app.env.doc2path(name)).read_text()
        if is_notebook(text):
            path = Path(app.outdir) / FOLDER / f"{name}.ipynb"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(notebook(text), indent=1) + "\n")


def setup(app: Any) -> dict[str, Any]:
    app.connect("html-page-context", link)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
