"""Formulas as MathML, which browsers draw by themselves: no script, no font, no network."""

from __future__ import annotations

import re

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util.math import get_node_equation_number

FUNCTIONS = r"\\(sin|cos|tan|exp|ln|log)\b"
MENDS = {  # what docutils makes of formulas otherwise than TeX
    r"(\\[td]?frac)\s*(\d)\s*(\d)": r"\1{\2}{\3}",  # \frac12, of which it takes the digits for the number 12
    rf"(?<=[\w}}])\s*{FUNCTIONS}": r"\\,\\\1",  # no space beside the names of functions
    rf"{FUNCTIONS}\s*(?=\\?[A-Za-z])": r"\\\1\\,",
}


def drawn(formula, **options):
    """MathML of a formula."""
    for pattern, better in MENDS.items():
        formula = re.sub(pattern, better, formula)
    return tex2mathml(formula, **options)


def inline(translator, node):
    translator.body.append(drawn(node.astext()))
    raise nodes.SkipNode


def block(translator, node):
    translator.body.append(translator.starttag(node, "div", CLASS="formula"))
    translator.body.append(f'<div class="wide">{drawn(node.astext(), as_block=True)}</div>')
    if node["number"]:
        number = get_node_equation_number(translator, node)
        translator.body.append(f'<span class="eqno">({number})')
        translator.add_permalink_ref(node, "Link to this formula")
        translator.body.append("</span>")
    translator.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx):
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True}
