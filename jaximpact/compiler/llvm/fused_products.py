"""Fused multiply-add, decided in the text of a program, so that every level of optimisation and every
version of LLVM gives the same bits.

A product that is used once, by a sum in the same block, becomes one instruction with it. LLVM itself would decide so,
by a flag, where it selects instructions; without optimisation it does not.
"""

from __future__ import annotations

import re
from collections import Counter

NAME = re.compile(r"%[\w.]+", re.ASCII)
OPERAND = r"(splat \([^)]*\)|<[^>]*>|[^\s,]+)"
ARITHMETIC = re.compile(rf"  (%[\w.]+) = f(mul|add|sub) contract (<\d+ x \w+>|\w+) {OPERAND}, {OPERAND}$")
SUFFIXES = {"double": "f64", "float": "f32"}


def fuse_products(text: str) -> str:
    """Returns the IR of a module with ``llvm.fma`` where a flag allows it, and without these flags."""
    declared: dict[str, str] = {}
    end = "\n}\n"  # of a function
    parts = end.join(_of_function(part, declared) for part in text.split(end))
    return "\n".join([parts, *(x for x in declared.values() if x not in text)]) + "\n"


def _of_function(text: str, declared: dict[str, str]) -> str:
    """As `fuse_products` of one function; adds the declarations of intrinsics to ``declared``, by name."""
    uses, lines = Counter(NAME.findall(text)), text.split("\n")
    products: dict[str, tuple[int, str, str]] = {}  # of the current block: place and factors
    for i, line in enumerate(lines):
        if line.endswith(":"):
            products.clear()
        if " contract " not in line or (found := ARITHMETIC.match(line)) is None:
            continue
        name, kind, dtype, x, y = found.groups()
        if kind == "mul":
            if uses[name] == 2:  # where it is made, and once more
                products[name] = i, x, y
        elif (taken := x if x in products else y if y in products else None) is not None:
            place, *factors = products.pop(taken)
            rest = y if taken == x else x
            lines[place] = ""
            before, minus = "", f"{name}.minus"
            if kind == "sub" and taken == x:  # a b - c
                before, rest = f"  {minus} = fneg {dtype} {rest}\n", minus
            elif kind == "sub":  # c - a b
                before, factors[0] = f"  {minus} = fneg {dtype} {factors[0]}\n", minus
            lines[i] = f"{before}  {name} = {_call(dtype, (*factors, rest), declared)}"
    return "\n".join(filter(None, lines)).replace(" contract ", " ")


def _call(dtype: str, operands: tuple[str, ...], declared: dict[str, str]) -> str:
    """Returns the call of the intrinsic fused multiply-add, a b + c."""
    count, _, kind = dtype.strip("<>").rpartition(" x ")
    name = f"@llvm.fma.{f'v{count}' if count else ''}{SUFFIXES[kind]}"
    declared[name] = f"declare {dtype} {name}({dtype}, {dtype}, {dtype})"
    return f"call {dtype} {name}({', '.join(f'{dtype} {x}' for x in operands)})"
