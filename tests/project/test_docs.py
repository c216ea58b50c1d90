"""The manual: its sources name every public thing and their links resolve; the built site works in a browser,
from files.

What opens the site is skipped where it is not built (`make docs`) or no chromium is installed.
"""

import ast
import inspect
import json
import re
import runpy
import shlex
import shutil
import subprocess
import zipfile
from pathlib import Path

import docstrings
import notebooks
import pages
import pytest

import jaximpact as ji
from jaximpact import analysis, bodies, catalogue, compiler, conformance, extend, indices, planar, plots, spatial, study

DOCS = Path(__file__).parents[2] / "docs"
SITE = DOCS / "_build" / "html"

SOURCES = sorted(path for path in DOCS.rglob("*.md") if not {"_build", "generated"} & {*path.relative_to(DOCS).parts})


@pytest.fixture(scope="module")
def generated():
    """Text of the pages that are made from the package, by name below docs/."""
    return {f"generated/{name}": text for name, text in pages.texts()}


# sources


MODULES = [ji, analysis, bodies, catalogue, compiler, conformance, extend, indices, planar, plots, spatial, study]
each_module = pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)


@each_module
def test_every_public_name_has_its_entry(module):
    reference = "\n".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
    entries = set(re.findall(r"^\.\. auto\w+:: jaximpact(?:\.\w+)*?\.(\w+)$", reference, re.MULTILINE))
    mentioned = set(
        re.findall(r"`(\w+)`", (DOCS / "reference" / f"{module.__name__.rpartition('.')[2]}.md").read_text())
    )
    for name in module.__all__:
        assert name in entries or (has_a_sentence(module, name) and name in mentioned), (
            f"{module.__name__}.{name} is not in docs/reference"
        )


def has_a_sentence(module, name):
    """Whether a constant or package is described by a sentence, in place of an entry."""
    return name.isupper() or inspect.ismodule(getattr(module, name))


def targets(text):
    """Pages that a page links to or includes."""
    text = re.sub(r"```(?:python|sh|text|toml|\{code-cell\}).*?```", "", text, flags=re.DOTALL)
    yield from re.findall(r"\{doc\}`(?:[^`<]*<)?([^`>]+)>?`", text)
    yield from (x.partition("#")[0] for x in re.findall(r"\]\(([^)\s]+)\)", text) if not x.startswith(("http", "#")))
    yield from re.findall(r"```\{(?:image|include|literalinclude)\} (\S+)", text)
    yield from re.findall(r"^:link: (\S+)", text, re.MULTILINE)
    for tree in re.findall(r"```\{toctree\}(.*?)```", text, re.DOTALL):
        yield from (line for line in tree.split("\n") if line and not line.startswith(":"))


def test_links_between_sources_resolve(generated):
    known = {str(path.relative_to(DOCS)) for path in SOURCES} | set(generated)
    missing = []
    texts = {str(path.relative_to(DOCS)): path.read_text() for path in SOURCES} | generated
    for name, text in texts.items():
        for target in targets(text):
            base = DOCS if target.startswith("/") else (DOCS / name).parent
            found = Path(*(base / target.lstrip("/")).resolve().parts)
            inside = found.relative_to(DOCS) if found.is_relative_to(DOCS) else None
            drawn = inside is not None and inside.suffix == ".png" and inside.parts[0] == "generated"
            if not (drawn or found.exists() or {str(inside), f"{inside}.md"} & known):
                missing.append(f"{name}: {target}")
    assert not missing


def test_every_page_is_in_a_table_of_contents(generated):
    trees = {"generated/catalogue/index.md": generated["generated/catalogue/index.md"]}
    listed = {"index", "generated/catalogue/index"}
    for name, text in {"index.md": (DOCS / "index.md").read_text(), **trees}.items():
        for tree in re.findall(r"```\{toctree\}(.*?)```", text, re.DOTALL):
            lines = [line for line in tree.split("\n") if line and not line.startswith(":")]
            listed |= {str(Path(name).parent / line).removeprefix("./") for line in lines}
    everything = {str(path.relative_to(DOCS)) for path in SOURCES} | {x for x in generated if "/parts/" not in x}
    assert {x.removesuffix(".md") for x in everything} == listed


def test_code_of_pages_is_python():
    count = 0
    for path in SOURCES:
        for code in re.findall(
            r"```(?:python|\{code-cell\} ipython3)\n((?::.*\n)*)(.*?)```", path.read_text(), re.DOTALL
        ):
            ast.parse(re.sub(r"^%.*$", "", code[1], flags=re.MULTILINE))
            count += 1
    assert count > 60


def test_pages_as_notebooks():
    """Every page with code becomes one: its cells and no more, in order,
    and nothing in its text that Sphinx alone reads."""
    count = 0
    for path in SOURCES:
        text = path.read_text()
        cells = re.findall(r"```\{code-cell\} ipython3\n((?::[^\n]*\n)*)(.*?)```", text, re.DOTALL)
        assert notebooks.is_notebook(text) == bool(cells), path
        if not cells:
            continue
        made = notebooks.notebook(text)
        found = [cell["source"] for cell in made["cells"] if cell["cell_type"] == "code"]
        assert found == [code.strip() for _, code in cells], path
        words = "\n".join(cell["source"] for cell in made["cells"] if cell["cell_type"] == "markdown")
        assert not re.search(r"^```\{|\{(?:doc|index|ref|py:\w+)\}`", words, re.MULTILINE), path
        assert len({cell["id"] for cell in made["cells"]}) == len(made["cells"]) and made["nbformat"] == 4
        assert json.loads(json.dumps(made)) == made
        count += 1
    assert count >= 20
    tagged = notebooks.notebook((DOCS / "howto" / "status.md").read_text())
    assert [cell["metadata"] for cell in tagged["cells"]].count({"tags": ["raises-exception"]}) == 1


def test_pages_made_from_the_package_say_all_of_it(generated):
    status = generated["generated/status.md"]
    assert set(pages.causes()) == set(ji.Status)
    for bit, text in pages.causes().items():
        assert f"## {bit.name}\n" in status and f"status {int(bit)}" in status
        happened, cure = pages.sentences(text)
        # nothing of the message is left out
        assert len(happened) + len(cure) >= len(re.sub(r"^\((remark|derivatives only)\) ", "", text)) - 2
    # the number that people meet
    assert "| 33 | CONTACTS_NOT_SOLVED, START_VELOCITY_PROJECTED |" in status
    for entry in catalogue.entries():
        page = generated[f"generated/catalogue/{entry.name}.md"]
        assert entry.statement in page and all(f"## Case `{name}`" in page for name in entry.cases)
    for command in ("list", "show", "run", "converge", "study", "resume"):
        assert f"## jaximpact {command}\n" in generated["generated/command-line.md"]


def test_recorded_orders_are_those_predicted():
    """What the manual shows as measured agrees with theory, to the scatter of eight phases."""
    rows = pages.recorded_orders()
    assert len(rows) >= 10
    for row in rows:
        assert row["scheme"] in catalogue.get(row["problem"]).case(row["case"]).orders
        assert abs(float(row["observed"]) - float(row["theory"])) < 0.1, row


def test_docstrings_are_made_safe():
    assert docstrings.tame("2 h (|G a|) of DERIVATIVE_... and `q0[None]`") == (
        r"2 h (\|G a\|) of DERIVATIVE\_... and ``q0[None]``"
    )
    assert docstrings.tame("``x | y`` and `solve`") == "``x | y`` and `solve`"


def test_the_archive_holds_the_site_and_no_more(tmp_path):
    """Below a folder with the version in its name; what Sphinx keeps for itself is left out;
    twice made it is the same."""
    site = tmp_path / "html"
    (site / "howto").mkdir(parents=True)
    (site / ".doctrees").mkdir()
    for place in ("index.html", "howto/choose.html", ".doctrees/index.doctree", ".buildinfo"):
        (site / place).write_text(place)
    archive = runpy.run_path(str(DOCS.parent / ".ci" / "docs_archive.py"))["archive"]
    made = archive(site, tmp_path / "dist")
    name = f"jaximpact-{ji.__version__}-docs"
    assert made.name == f"{name}.zip"
    with zipfile.ZipFile(made) as found:
        assert found.namelist() == [f"{name}/howto/choose.html", f"{name}/index.html"]
        assert found.read(f"{name}/index.html") == b"index.html"
    before = made.read_bytes()
    assert archive(site, tmp_path / "dist").read_bytes() == before
    with pytest.raises(SystemExit, match="make docs"):
        archive(tmp_path, tmp_path)


# what a new user takes


def calls(code):
    """Functions of the library and of jax that code calls, by the names that a reader sees;
    ``jnp`` counts as arithmetic."""
    for node in ast.walk(ast.parse(code)):
        name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if re.fullmatch(r"(ji|plots|jax)(\.\w+)+", name):
            yield name.removeprefix("ji.")


@pytest.mark.parametrize("slope_too", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_own_system_in_the_calls_that_the_start_page_counts(slope_too):
    """Two coordinates and a wall, from energies: its code is run, solves, draws and differentiates,
    and calls no more."""
    page = (DOCS / "start.md").read_text()
    own = page[page.index("## A system of your own") : page.index("## Where to go")]
    cells = re.findall(r"```\{code-cell\} ipython3\n(.*?)```", own, re.DOTALL)
    counted = re.search(r"That is one page and (\w+) calls: (.*?)\.\n", own, re.DOTALL)
    named = re.findall(r"`([\w.]+)`", counted[2])
    assert named.pop() == "jax.config.update"
    assert counted[1] == {4: "four"}[len(named)] and {x for cell in cells for x in calls(cell)} == set(named)
    # what the cells before it have brought in, and no more of them
    space = {}
    exec("import jax, jax.numpy as jnp, jaximpact as ji\nfrom jaximpact import plots", space)
    assert {"import jax", "import jax.numpy as jnp, jaximpact as ji", "from jaximpact import plots"} <= set(
        page[: page.index(own)].splitlines()
    )
    for cell in cells if slope_too else [cell for cell in cells if "jax.grad" not in cell]:
        exec(cell, space)
    motion = space["motion"]
    assert motion.q.shape == (201, 2) and motion.impulse[-1, 0] > 0  # it meets the wall
    assert len(plots.draw(motion)) == 4
    if not slope_too:
        return
    # by another located scheme, of order 2: 1e-6, and 1e-2 of a difference of 2e-4
    exact = lambda place: ji.solve(
        space["pendulum"], [-0.5, -0.2], [0.0, 0.0], t1=1.5, h=1e-3, args=space["args"] | {"wall": place}, e=0.6,
        scheme=ji.EventCorrected(), save="final",
    ).q[-1, 1]  # fmt: skip
    difference = (exact(0.3 + 1e-4) - exact(0.3 - 1e-4)) / 2e-4
    assert abs(space["slope"] - difference) < 0.01 * abs(difference)


def test_formulas_are_drawn_as_tex_reads_them():
    """docutils alone takes \\tfrac12 q for 12/q, and sets no space beside the names of functions."""
    pytest.importorskip("sphinx")
    import mathml

    without_space = lambda formula: re.sub(r"\s+", "", mathml.drawn(formula))
    assert "<mn>1</mn><mn>2</mn></mfrac><mi>q</mi>" in without_space(r"\tfrac12 q")
    assert without_space(r"g \sin a").count("<mspace") == 2 and "<mspace" not in without_space(r"\sin(a)")


# the built site

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
OPTIONS = shlex.split(
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --allow-file-access-from-files --enable-logging=stderr --log-level=0"
)
site = pytest.mark.skipif(
    CHROMIUM is None or not (SITE / "index.html").exists(), reason="needs the built site (`make docs`) and chromium"
)


built = pytest.mark.skipif(not (SITE / "index.html").exists(), reason="needs the built site (`make docs`)")


@built
@each_module
def test_every_public_name_is_two_clicks_from_the_start_page(module):
    """One to a page that the start page links to, and one, within that page or from it, to the name's own entry."""
    first = {*re.findall(r'href="([^"#:]+\.html)', (SITE / "index.html").read_text())}
    texts = {page: (SITE / page).read_text() for page in first}
    entries = {name for text in texts.values() for name in re.findall(r'id="jaximpact(?:\.\w+)*?\.(\w+)"', text)}
    linked = {name for text in texts.values() for name in re.findall(r'href="[^"]*#jaximpact(?:\.\w+)*?\.(\w+)"', text)}
    words = {name for text in texts.values() for name in re.findall(r'<span class="pre">(\w+)</span>', text)}
    for name in module.__all__:
        assert name in (words if has_a_sentence(module, name) else entries | linked), f"{module.__name__}.{name}"


@pytest.fixture
def browse(tmp_path):
    """Opens a page in the browser: its document after its scripts have run, and the errors they logged."""

    def opened(url, budget=20_000):
        command = [
            CHROMIUM,
            *OPTIONS,
            f"--user-data-dir={tmp_path / 'user'}",
            f"--virtual-time-budget={budget}",
            "--dump-dom",
            url,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        errors = [line for line in done.stderr.splitlines() if ":CONSOLE" in line and not re.search(r"DevTools", line)]
        return done.stdout, errors

    return opened


SEARCHES = {
    "restitution": "howto/systems.html",
    "hopper": "howto/hopper.html",
    "status 33": "generated/status.html",
    "gradient wrong": "faq.html",
    "MoreauJean": "reference/jaximpact.html",
    "bowl": "generated/catalogue/bowl.html",
}
# what a page of results asks of the index; its own script, without the page
QUERIES = """
const fs = require("fs"), vm = require("vm"), [root, ...queries] = process.argv.slice(1);
globalThis.window = globalThis;
globalThis.SPHINX_HIGHLIGHT_ENABLED = false;
globalThis.document = { getElementById: () => ({ childNodes: [], removeChild() {} }), documentElement: { dataset: {} } };
globalThis._ready = () => undefined;
globalThis._ = (text) => text;
const load = (name) => vm.runInThisContext(fs.readFileSync(`${root}/${name}`, "utf8"));
["_static/language_data.js", "_static/searchtools.js"].forEach(load);
vm.runInThisContext("globalThis.Search = Search");
load("searchindex.js");
const first = (query) => Search._performSearch(...Search._parseQuery(query)).pop();
console.log(JSON.stringify(Object.fromEntries(queries.map((query) => [query, first(query)?.[0]]))));
"""  # noqa: E501


@built
@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_index_finds_the_page_of_each_search():
    """In the order of the page of results, whose last is its first; without a browser."""
    done = subprocess.run(
        ["node", "-e", QUERIES, "--", str(SITE), *SEARCHES], capture_output=True, text=True, check=True
    )
    assert {query: f"{page}.html" for query, page in json.loads(done.stdout).items()} == SEARCHES


@site
@pytest.mark.parametrize(("query", "page"), SEARCHES.items())
def test_a_search_finds_its_page_first(browse, query, page):
    document, errors = browse((SITE / "search.html").as_uri() + "?q=" + query.replace(" ", "+"))
    found = re.findall(r'<ul[^>]*class="search".*?<a href="([^"]+)"', document, re.DOTALL)
    assert found and found[0].partition("#")[0].partition("?")[0] == page
    assert not errors


HARNESS = """<!doctype html><meta charset="utf-8"><title>pages</title><pre id="found">unfinished</pre><script>
const pages = %s, found = {};
const next = function () {
  const page = pages.shift();
  if (!page) { document.getElementById("found").textContent = JSON.stringify(found); return; }
  const frame = document.createElement("iframe");
  frame.width = 1200; frame.height = 900;
  frame.onload = function () {
    const pictures = [...frame.contentDocument.images];
    const broken = pictures.filter((x) => !x.complete || x.naturalWidth === 0).map((x) => x.src);
    found[page] = { pictures: pictures.length, broken: broken, title: frame.contentDocument.title };
    frame.remove(); next();
  };
  frame.src = page;
  document.body.append(frame);
};
window.onload = next;
</script><body></body>"""


@site
def test_no_broken_picture_and_no_error_in_the_console(browse, tmp_path):
    names = sorted(path for path in SITE.rglob("*.html") if "_static" not in path.parts)
    harness = tmp_path / "harness.html"
    harness.write_text(HARNESS % json.dumps([path.as_uri() for path in names]))
    document, errors = browse(harness.as_uri(), budget=120_000)
    found = json.loads(re.search(r'<pre id="found">(.*?)</pre>', document, re.DOTALL)[1].replace("&amp;", "&"))
    assert len(found) == len(names) > 50
    assert sum(page["pictures"] for page in found.values()) > 60
    assert not [picture for page in found.values() for picture in page["broken"]]
    assert not errors


@site
def test_the_page_of_bits_takes_a_number_apart(browse):
    document, errors = browse((SITE / "generated" / "status.html").as_uri())
    meaning = re.search(r'<span id="bits-meaning".*?</span>', document, re.DOTALL)[0]
    assert "CONTACTS_NOT_SOLVED" in meaning and "START_VELOCITY_PROJECTED" in meaning
    assert not errors


@site
def test_nothing_comes_from_the_network():
    """Scripts, styles, fonts and pictures of every page lie beside it."""
    for path in SITE.rglob("*.html"):
        text = path.read_text()
        loaded = re.findall(r'<(?:script|img|iframe)[^>]*?\ssrc="([^"]+)"', text)
        loaded += re.findall(r'<link[^>]*?rel="(?:stylesheet|preload|icon)"[^>]*?href="([^"]+)"', text)
        assert not [x for x in loaded if x.startswith(("http", "//"))], path
