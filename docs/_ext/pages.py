"""Pages made from the package itself, so that they say what it does: status bits, the catalogue, the command line,
the gallery.

`texts()` gives them without building anything; the extension writes them into docs/generated
before Sphinx reads its sources.
"""

from __future__ import annotations

import argparse
import csv
import inspect
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
GENERATED = DOCS / "generated"
EXPERIMENTS = ROOT / "experiments"

NOTE = "% made by docs/_ext/pages.py: edit that\n\n"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def indexed(*entries: str) -> str:
    """Entries of the index, which the search knows."""
    return "```{index} " + ", ".join(entry if ";" in entry else f"!{entry}" for entry in entries) + "\n```\n\n"


# status bits


def kind(bit: Any) -> str:
    from jaximpact.mechanics.status import DERIVATIVES, FAILURES

    return "failure" if bit & FAILURES else "derivatives" if bit & DERIVATIVES else "remark"


def causes() -> dict[Any, str]:
    """Every bit with the text that the package has for it."""
    from jaximpact.mechanics.status import CAUSES

    return CAUSES


def sentences(text: str) -> tuple[str, str]:
    """What happened, and what to do or to know about it."""
    for remark in ("(remark) ", "(derivatives only) "):
        text = text.removeprefix(remark)
    happened, _, cure = text.partition(": ")
    capital = lambda s: s[:1].upper() + s[1:] + ("." if s and not s.endswith(".") else "")
    return capital(happened), capital(cure)


STATUS_SCRIPT = """\
```{raw} html
<div class="bits-tool">
<label>A status you have been given: <input id="bits-number" inputmode="numeric" value="33"></label>
<span id="bits-meaning" role="status"></span>
</div>
<script>
(function () {
  const bits = %s;
  const input = document.getElementById("bits-number");
  const meaning = document.getElementById("bits-meaning");
  const show = function () {
    const given = Number(input.value.trim());
    const known = Number.isInteger(given) && given >= 0 && given < 2 ** 31;
    const found = known ? bits.filter(([value]) => Math.floor(given / value) %% 2 === 1) : [];
    const rest = given - found.reduce((sum, [value]) => sum + value, 0);
    meaning.innerHTML = !known ? "is no status" : given === 0 ? "= 0: nothing happened" : rest ? "has unknown bits" :
      "= " + found.map(([value, name]) => `${value} (<a href="#${name}">${name}</a>)`).join(" + ");
  };
  input.addEventListener("input", show);
  show();
})();
</script>
```

"""


def status() -> str:
    from jaximpact import Status

    bits = [bit for bit in Status if bit in causes()]
    kinds = {
        "failure": "the motion is wrong or unfinished from `failed_at` on; `raise_if_failed` raises",
        "derivatives": "the motion is right; its derivative is not to be trusted",
        "remark": "the motion is right; something deserves a word",
    }
    out = [NOTE, "# What a status says, bit by bit\n\n"]
    out.append(
        indexed("status", "status bits", "failure", "remark", "status 33", *(f"status {int(bit)}" for bit in bits))
    )
    out.append(
        "A status is a **sum of bits**, OR-ed over the steps of a motion: status 33 is 32 + 1, "
        "`START_VELOCITY_PROJECTED` and "
        "`CONTACTS_NOT_SOLVED`. Zero means that nothing happened. `solution.describe_status()` gives the text below "
        "for the "
        "bits that are set, `jaximpact.Status(33)` their names, `solution.raise_if_failed()` an error that says which "
        "motions "
        "failed, when, and why. How to go about it: {doc}`/howto/status`.\n\n"
    )
    out.append(STATUS_SCRIPT % [[int(bit), bit.name] for bit in bits])
    out.append("".join(f"- **{name}**: {text}\n" for name, text in kinds.items()) + "\n")
    rows = [[f"{int(bit)}", f"[{bit.name}](#{bit.name})", kind(bit)] for bit in bits]
    out.append(table(["value", "bit", "kind"], rows) + "\n")
    for bit in bits:
        happened, cure = sentences(causes()[bit])
        out.append(f"({bit.name})=\n## {bit.name}\n\n*{kind(bit)}, value {int(bit)}.* {happened}\n\n")
        out.append(f"{cure}\n\n" if cure else "")
    out.append("## Sums of two\n\nFor looking up a number by search.\n\n:::{dropdown} status = sum of two bits\n\n")
    pairs = sorted((int(a) + int(b), a.name, b.name) for a, b in combinations(bits, 2))
    out.append(table(["status", "bits"], [[str(n), f"{a}, {b}"] for n, a, b in pairs]) + ":::\n")
    return "".join(out)


# catalogue

FAMILY_TITLES = {
    "balls": "Balls",
    "oscillators": "Oscillators",
    "moving": "Moving walls",
    "corners": "Corners",
    "curved": "Curved walls, M(q)",
    "billiards": "Billiards",
    "chains": "Chains",
    "bar": "Elastic bar",
    "spheres": "Spheres",
    "linkages": "Joints",
    "friction": "Friction",
    "counterexamples": "Counterexamples",
}


def family(entry: Any) -> str:
    from importlib import import_module

    from jaximpact.catalogue import FAMILIES

    modules = {name: import_module(f"jaximpact.catalogue.{name}") for name in FAMILIES}
    return next(name for name, module in modules.items() if entry in module.ENTRIES)


def source_of(function: Callable | None) -> str:
    """Its lines, if it is a plain function of a module; closures would show names whose values stand elsewhere."""
    if function is None or not inspect.isfunction(function) or function.__closure__ or function.__name__ == "<lambda>":
        return ""
    return inspect.getsource(function)


def recorded(name: str) -> list[dict[str, str]]:
    with open(DOCS / "recorded" / f"{name}.csv", newline="") as file:
        return list(csv.DictReader(file))


def recorded_orders() -> list[dict[str, str]]:
    return recorded("orders")


def orders_table(case: Any, measured: dict[str, str]) -> str:
    rows = []
    for label, orders in case.orders.items():
        word = lambda x: "–" if x is None else f"{x:g}"
        position = "exact" if orders.exact else word(orders.position)
        row = [f"`{label}`", position, word(orders.velocity), word(orders.impulse)]
        rows.append([*row, measured.get(label, "")] if measured else row)
    head = ["scheme", "position", "velocity", "impulse", *(["position, measured"] if measured else [])]
    return table(head, rows) if rows else "No scheme has a predicted order here.\n"


def case_text(entry: Any, name: str, case: Any, picture: bool) -> str:
    import jax.numpy as jnp

    m = entry.problem.count(0.0, jnp.asarray(case.q0), case.args)
    facts = f"d = {case.q0.size}, m = {m}, e = {case.restitution:g}, until t = {case.t1:g} s."
    facts += " The exact motion is known." if case.exact else ""
    if case.impacts is not None and len(case.impacts):
        shown = ", ".join(f"{t:.6g}" for t in case.impacts[:5]) + (", …" if len(case.impacts) > 5 else "")
        facts += f" Impacts at t = {shown} s."
    text = f"## Case `{name}`\n\n{facts}\n\n" + (f"{case.note}\n\n" if case.note else "")
    if picture:
        text += f"```{{image}} {entry.name}-{slug(name)}.png\n:alt: exact motion of {entry.name}, case {name}\n:class: picture\n```\n\n"  # noqa: E501
    measured = {
        row["scheme"]: row["observed"]
        for row in recorded_orders()
        if (row["problem"], row["case"]) == (entry.name, name)
    }
    text += "Orders that theory predicts as h → 0 (position in the sup norm, velocity in L¹, total impulse):\n\n"
    return text + orders_table(case, measured) + f"\n```sh\njaximpact run {entry.name} --case '{name}'\n```\n\n"


def slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name)


def drawable(case: Any) -> bool:
    return case.exact is not None and case.q0.size <= 12


def catalogue_page(entry: Any) -> str:
    out = [NOTE, f"# {entry.title}\n\n", indexed(entry.name, entry.id, f"catalogue; {entry.name}")]
    out.append(f"`{entry.name}` ({entry.id}) of the {{doc}}`catalogue <index>`.\n\n{entry.statement}\n\n")
    out.append(f"**Hypotheses.** {entry.hypotheses}\n\n" + (f"**Source.** {entry.source}\n\n" if entry.source else ""))
    problem = entry.problem
    functions = [("force", problem.force), ("constraints", problem.constraints), ("mass", problem.mass)]
    sources = [text for name, f in functions if (text := source_of(f if callable(f) else None))]
    if sources:
        out.append("As the package states it:\n\n```python\n" + "\n\n".join(dict.fromkeys(sources)) + "```\n\n")
    out.append(
        f'```python\nentry = jaximpact.catalogue.get("{entry.name}")\nproblem, case = entry.problem, '
        "entry.case()\n```\n\n"
    )
    out += [case_text(entry, name, case, drawable(case)) for name, case in entry.cases.items()]
    return "".join(out)


def catalogue_index() -> str:
    from jaximpact import catalogue

    entries = catalogue.entries()
    out = [NOTE, "# The catalogue\n\n", indexed("catalogue", "benchmark problems", "exact motions")]
    out.append(
        f"{len(entries)} problems with exact motions, for tests, for measuring orders, and to begin from. In Python "
        "`jaximpact.catalogue.get(name)`, on the command line `jaximpact list`, `show`, `run` and `converge`.\n\n"
    )
    by_family: dict[str, list] = {}
    for entry in entries:
        by_family.setdefault(family(entry), []).append(entry)
    for name, title in FAMILY_TITLES.items():
        rows = [[entry.id, f"[{entry.title}]({entry.name}.md)", f"`{entry.name}`"] for entry in by_family.get(name, [])]
        out.append(f"## {title}\n\n" + table(["id", "problem", "name"], rows) + "\n")
    out.append("```{toctree}\n:hidden:\n\n" + "\n".join(entry.name for entry in entries) + "\n```\n")
    return "".join(out)


# command line


def command_line() -> str:
    from jaximpact.cli import _parser

    os.environ |= {"COLUMNS": "100", "NO_COLOR": "1"}
    parser = _parser()
    out = [NOTE, "# The command line\n\n", indexed("command line", "jaximpact COMMAND")]
    out.append(f"`jaximpact` or `python -m jaximpact`.\n\n```text\n{parser.format_help()}```\n\n")
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for name, command in commands.choices.items():
        out.append(f"## jaximpact {name}\n\n```text\n{command.format_help()}```\n\n")
    return "".join(out)


# recorded results


def gallery_plates() -> dict[str, Any]:
    place = str(EXPERIMENTS / "gallery")
    sys.path.insert(0, place)
    try:
        import draw
    finally:
        sys.path.remove(place)
    return draw.PLATES


def gallery() -> str:
    out = [NOTE, "# Gallery\n\n", indexed("gallery", "pictures")]
    out.append(
        "Every picture is drawn by the command under it, from a clone of the repository; all of them by `make "
        "gallery`.\n\n"
    )
    for name, plate in gallery_plates().items():
        out.append(f"## {plate.title}\n\n{plate.text}\n\n")
        out.append(
            f"```{{image}} gallery/{name}.png\n:alt: {plate.title}\n:class: "
            f"picture\n```\n\n```sh\n{plate.command}\n```\n\n"
        )
    return "".join(out)


def benchmark_tables() -> str:
    """experiments/benchmarks/results/table.md as it stands."""
    return (EXPERIMENTS / "benchmarks" / "results" / "table.md").read_text().replace("## ", "### ")


def benchmark_record() -> dict[str, Any]:
    return json.loads((EXPERIMENTS / "benchmarks" / "results" / "results.json").read_text())


def benchmark_summary() -> str:
    """The rows that the README quotes too."""
    sys.path.insert(0, str(ROOT))
    try:
        from experiments.benchmarks import report
    finally:
        sys.path.remove(str(ROOT))
    return report.summary(benchmark_record()["rows"])


def benchmark_about() -> str:
    about = benchmark_record()["about"]
    return "Recorded with: " + ", ".join(f"{name} {value}" for name, value in about.items() if value) + "\n"


def conformance_table() -> str:
    """The recorded table of experiments/conformance/README.md."""
    text = (EXPERIMENTS / "conformance" / "README.md").read_text()
    return text.partition("<!-- table -->")[2].partition("<!-- end of table -->")[0].strip() + "\n"


def linked(rows: list[dict[str, str]]) -> list[list[str]]:
    """Rows whose problems lead to their pages."""
    return [[f"{{doc}}`{r['problem']} </generated/catalogue/{r['problem']}>`", *list(r.values())[1:]] for r in rows]


def measured_orders() -> str:
    heading = ["problem", "case", "scheme", "theory", "observed", "smallest h", "error there"]
    return table(heading, linked(recorded_orders()))


def measured_tolerances() -> str:
    """Of the motions that substeps do not follow to round-off."""
    rows = [r for r in recorded("tolerance") if any(x > 0.05 for x in map(float, list(r.values())[2:-3]))]
    return table(list(rows[0]), linked(rows))


def measured_substeps() -> str:
    rows = recorded("substeps")
    return table(["problem", "case", *(f"{n} steps" for n in list(rows[0])[2:-1]), "order"], linked(rows))


def texts() -> Iterator[tuple[str, str]]:
    """Path below docs/generated, and text, of every page."""
    from jaximpact import catalogue

    yield "status.md", status()
    yield "command-line.md", command_line()
    yield "gallery.md", gallery()
    yield "parts/benchmarks.md", benchmark_tables()
    yield "parts/summary.md", benchmark_summary()
    yield "parts/about.md", benchmark_about()
    yield "parts/conformance.md", conformance_table()
    yield "parts/orders.md", measured_orders()
    yield "parts/tolerance.md", measured_tolerances()
    yield "parts/substeps.md", measured_substeps()
    yield "catalogue/index.md", catalogue_index()
    for entry in catalogue.entries():
        yield f"catalogue/{entry.name}.md", catalogue_page(entry)


# pictures


def draw_exact(case: Any, path: Path) -> None:
    """The exact motion: positions over time, or the path of a point in the plane where that says more."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
    import numpy as np

    t = np.linspace(0.0, case.t1, 1201)
    q, _ = case.exact(t)
    planar = q.shape[1] == 2
    fig, axes = plt.subplots(
        1, 1 + planar, figsize=(7.2, 2.6), width_ratios=[2, 1][: 1 + planar], layout="constrained", squeeze=False
    )
    for i in range(q.shape[1]):
        axes[0, 0].plot(t, q[:, i], lw=1.1, label=f"q[{i}]")
    axes[0, 0].set(xlabel="t [s]", ylabel="q")
    if 1 < q.shape[1] <= 4:
        axes[0, 0].legend(fontsize=8, frameon=False)
    if planar:
        axes[0, 1].plot(*q.T, lw=1.0)
        axes[0, 1].plot(*q[0], "o", ms=4)
        axes[0, 1].set(xlabel="q[0]", ylabel="q[1]")
    fig.savefig(path, dpi=110)
    plt.close(fig)


def write(app: Any) -> None:
    """Write what has changed; draw what is missing."""
    from jaximpact import catalogue

    for name, text in texts():
        path = GENERATED / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    for entry in catalogue.entries():
        for name, case in entry.cases.items():
            path = GENERATED / "catalogue" / f"{entry.name}-{slug(name)}.png"
            if drawable(case) and not path.exists():
                draw_exact(case, path)
    for folder in (EXPERIMENTS / "gallery", EXPERIMENTS / "benchmarks" / "results", EXPERIMENTS / "conformance"):
        (GENERATED / folder.name).mkdir(exist_ok=True)
        for picture in folder.glob("*.png"):
            shutil.copy2(picture, GENERATED / folder.name / picture.name)


def setup(app: Any) -> dict:
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True}
