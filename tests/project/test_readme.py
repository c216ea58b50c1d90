"""The README is a door: its Python runs as printed, in order, and gives what it says;
what it shows and links to is there.

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
    lines = BLOCKS[0].split("def ")[0].splitlines()
    assert len([line for line in lines if line.strip() and not line.startswith("import")]) <= 5
    solution = namespace["solution"]
    assert solution.q.shape == (201, 1) and solution.timing.scheme == "EventDriven"
    # momentum: sum of impulses = v(T) + g T, to the tolerance of 1e-9 of each of some ten bounces
    assert float(solution.impulse[-1, 0]) == pytest.approx(float(solution.v[-1, 0]) + 9.81 * 3.0, abs=1e-7)


def test_the_derivative_is_that_of_the_closed_form(namespace):
    # y = y0 - 1.3 t - g t^2/2 meets 0.05: dv/dy0 = (1 + e) g/|v|; the comment beside it has six digits
    exact = 1.7 * 9.81 / (1.3**2 + 2 * 9.81 * 0.95) ** 0.5
    printed = float(re.search(r"print\(jax.grad\(speed\)\(1.0\)\)  # ([0-9.]+)", BLOCKS[0])[1])
    assert printed == pytest.approx(exact, abs=5e-7)
    assert float(jax.grad(namespace["speed"])(1.0)) == pytest.approx(exact, abs=1e-7)


@pytest.mark.slow
def test_plain_differentiation_and_the_ensemble_are_what_it_says(namespace, capsys):
    plain = namespace["ji"].solve
    scheme = {"h": 1e-3, "scheme": namespace["ji"].PaoliSchatzman(), "sensitivity": "discrete"}
    namespace["ji"].solve = lambda *args, **options: plain(*args, **options, **scheme)
    try:
        assert float(jax.grad(namespace["speed"])(1.0)) == pytest.approx(0.0, abs=1e-9)
    finally:
        namespace["ji"].solve = plain
    exec(compile(BLOCKS[1], str(README), "exec"), namespace)
    assert capsys.readouterr().out.strip() == re.search(r"# (\(10000.*)", BLOCKS[1])[1]


def test_it_is_a_door():
    lines = TEXT.splitlines()
    assert len(lines) <= 90 and max(map(len, lines)) <= 100 and len(BLOCKS) == 2
    assert "frictionless" in " ".join(lines[:5])


def test_the_numbers_of_others_are_the_records():
    """The table of Jacobians quotes the conformance suite's row of a ball that bounces once, rounded."""
    page = (README.parent / "experiments/conformance/README.md").read_text().split("<!-- table -->")[1]
    cells = lambda line: [x.strip() for x in line.strip("|").split("|")]
    rows = [cells(line) for line in page.splitlines() if line.startswith("|")]
    recorded = dict(zip(rows[0], next(row for row in rows if row[0] == "grav1d-once"), strict=True))
    shown = [cells(line) for line in TEXT.splitlines() if line.startswith("|")]
    of = {
        "jaximpact": "jaximpact EventDriven", "MuJoCo MJX": "MuJoCo MJX", "brax (positional)": "brax positional",
        "Newton (semi-implicit)": "Newton SemiImplicit", "jaxonomy": "jaxonomy", "nosnoc": "nosnoc, time-freezing",
    }  # fmt: skip
    for name, number in zip(shown[0], shown[2], strict=True):
        # one digit, or two
        assert float(number) == pytest.approx(float(recorded[of[name]].split()[1]), rel=0.1), name


def test_links_and_commands_exist():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", TEXT) if not link.startswith("http")]
    assert len(links) > 15
    for link in links:
        path, _, anchor = link.partition("#")
        assert (README.parent / path).exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", (README.parent / path).read_text(), re.MULTILINE)
            assert anchor in [heading.lower().replace(" ", "-") for heading in headings]
    targets = re.findall(r"^([a-z-]+(?: [a-z-]+)*):", (README.parent / "Makefile").read_text(), re.MULTILINE)
    named = {name for line in targets for name in line.split()}
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", TEXT, re.MULTILINE)) <= named
