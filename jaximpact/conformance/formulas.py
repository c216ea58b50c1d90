"""Formulas of the cases, as text, turned into functions: arithmetic, a few functions of mathematics, and names."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from types import CodeType
from typing import Any

FUNCTIONS = ("sin", "cos", "sqrt")
NODES = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Constant, ast.Name, ast.Load, ast.Call, ast.Subscript,
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.USub,
)  # fmt: skip


def parse(text: str) -> CodeType:
    """A formula, ready to be evaluated.

    Raises:
        ValueError: it is no formula, or calls what is not sin, cos or sqrt.
    """
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError as error:
        raise ValueError(f"no formula: {text!r} ({error.msg})") from None
    for node in ast.walk(tree):
        calls = isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS)
        if not isinstance(node, NODES) or calls:
            raise ValueError(f"no formula: {text!r} holds {type(node).__name__}")
    return compile(tree, text, "eval")


def evaluate(formula: CodeType, names: Mapping[str, Any], module: Any) -> Any:
    """Its value, with sin, cos and sqrt of a module: jax.numpy, math, mpmath."""
    functions = {name: getattr(module, name) for name in FUNCTIONS}
    return eval(formula, {"__builtins__": {}}, {**functions, **names})
