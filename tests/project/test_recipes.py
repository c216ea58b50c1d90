"""The recipes for developers do what they say."""

import re
from pathlib import Path

import pytest

from jaximpact.compiler.llvm import elementwise
from jaximpact.mechanics import method_names

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
RECIPES = re.findall(r"^## (.+?)$.*?```python\n(.*?)```", PAGE.read_text(), flags=re.M | re.S)
TABLES = elementwise.RULES, method_names.SCHEMES, method_names.PROJECTIONS


@pytest.fixture
def tables():
    """The tables that recipes add to, as they were before."""
    before = [dict(table) for table in TABLES]
    yield
    for table, entries in zip(TABLES, before, strict=True):
        table.clear()
        table.update(entries)


def test_there_is_a_recipe_for_each_kind():
    assert [name.split()[-1] for name, _ in RECIPES] == [
        "scheme",
        "solver",
        "bit",
        "call",
        "impact",
        "friction",
        "catalogue",
        "code",
    ]


@pytest.mark.parametrize("code", [code for _, code in RECIPES], ids=[name for name, _ in RECIPES])
def test_a_recipe_runs(code, tables):
    """Each asserts what it is for."""
    exec(compile(code, str(PAGE), "exec"), {})
