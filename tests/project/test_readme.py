"""The README is a door: its Python runs as printed, in order, and gives what it says; what it shows and links to is there.

The pages that it leads to are executed whole in the build of the manual, and assert their claims there.
"""

import re
from pathlib import Path

import jax
import pytest

README = Path(__file__).parents[2] / "README.md"
TEXT = README.read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture(scope="module")
def namespace():
    """What the blocks define: they are for a user's jax, not for the strict one of the tests."""
    settings = {name: getattr(jax.config, name) for name in ("jax_numpy_rank_promotion", "jax_numpy_dtype_promotion")}
    jax.config.update("jax_numpy_rank_promotion", "allow")
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    names: dict = {}
    exec(compile(BLOCKS[0], str(README), "exec"), names)
    yield names
    for name, value in settings.items():
        jax.config.update(name, value)


def test_five_lines(namespace):
    """Besides the imports, a problem is set up, stated, solved and printed in five lines at most."""
    lines = [line for line in BLOCKS[0].splitlines() if line.strip() and not line.startswith("import")]
    assert len(lines) <= 5
    solution = namespace["solution"]
    assert solution.q.shape == (3001, 1)
    # momentum: sum of impulses = v(T) + g T, less half a step of the velocity's age
    assert float(solution.impulse[-1, 0]) == pytest.approx(float(solution.v[-1, 0]) + 9.81 * 3.0, abs=9.81e-3)


@pytest.mark.slow
def test_the_derivative_is_that_of_the_closed_form(namespace, capsys):
    exec(compile(BLOCKS[1], str(README), "exec"), namespace)
    # y = y0 - 1.3 t - g t^2/2 meets 0.05: dv/dy0 = (1 + e) g/|v|, up to O(h)
    assert float(capsys.readouterr().out.split()[-1]) == pytest.approx(3.698792, abs=1e-2)
    plain = namespace["ji"].solve
    namespace["ji"].solve = lambda *args, **options: plain(*args, **options, sensitivity="discrete")
    try:
        assert float(jax.grad(namespace["speed"])(1.0)) == pytest.approx(0.0, abs=1e-9)  # what it says of plain AD
    finally:
        namespace["ji"].solve = plain


def test_it_is_a_door():
    assert len(TEXT.splitlines()) <= 120 and len(BLOCKS) == 2
    assert "frictionless" in " ".join(TEXT.splitlines()[:5])
    assert TEXT.count("](experiments/gallery/") - TEXT.count("](experiments/gallery/README.md)") == 4


def test_links_and_commands_exist():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", TEXT) if not link.startswith("http")]
    assert len(links) > 25
    for link in links:
        path, _, anchor = link.partition("#")
        assert (README.parent / path).exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", (README.parent / path).read_text(), re.MULTILINE)
            assert anchor in [heading.lower().replace(" ", "-") for heading in headings]
    targets = re.findall(r"^([a-z-]+(?: [a-z-]+)*):", (README.parent / "Makefile").read_text(), re.MULTILINE)
    named = {name for line in targets for name in line.split()}
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", TEXT, re.MULTILINE)) <= named


def test_the_catalogue_has_as_many_as_it_says():
    from jaximpact import catalogue

    assert int(re.search(r"catalogue of (\d+) problems", TEXT)[1]) == len(catalogue.entries())
