"""Formulas of the cases: texts turned into functions, with arithmetic, sin, cos, sqrt and names."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from types import CodeType, ModuleType
from typing import Any

FUNCTIONS = ("sin", "cos", "sqrt")
NODES = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Constant, ast.Name, ast.Load, ast.Call, ast.Subscript,
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.USub,
)  # fmt: skip


def parse(text: str) -> CodeType:
    """Parses a formula for `evaluate`.

    Raises:
        ValueError: the text is not a formula, or calls another function than sin, cos or sqrt.
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


def evaluate(formula: CodeType, names: Mapping[str, Any], module: ModuleType) -> Any:
    """Value of a formula, with sin, cos and sqrt from ``module``: jax.numpy, math or mpmath."""
    functions = {name: getattr(module, name) for name in FUNCTIONS}
    return eval(formula, {"__builtins__": {}}, {**functions, **names})
