"""Values and observed orders of every scheme x projection x problem that theory covers, with prime step counts.

The expected orders stand in the catalogue (`Case.orders`); an observed order is the least-squares slope over a sweep
of prime step counts and must lie within 0.15 of theory. Where theory says that the nodes are exact, what is left is
round-off and the KKT tolerance: each contact step may leave a velocity error of its residual, each step one of a few
rounding units of the largest velocity, both carried along for the remaining time.
"""

import itertools

import numpy as np
import pytest

import jaximpact as ji
from jaximpact import catalogue
from jaximpact.analysis import prime_steps
from support.methods import SCHEMES, SOLVERS

TOLERANCE = 0.15  # of an observed order, as stated by the project's specification
PHASES = 8  # an error is the worst of this many consecutive primes: it depends on where in its step an impact falls

# (first, last, bands) of step counts, and phases, where the default will not do, and why
SWEEPS = {
    # 32 impacts, each late by the sum of the earlier delays: the flights must stay long against 2h
    ("bouncing-ball", "e=4/5"): (20_000, 600_000, 5, 3),
    ("bouncing-ball", "e=1"): (3_000, 60_000, 5, PHASES),
    ("magnetic-skipping", "e=1"): (3_000, 60_000, 5, PHASES),
    # an impact close to t1 is missed while its delay exceeds the time left, and with it its impulse
    ("shaw-holmes", "damped"): (6_000, 80_000, 4, PHASES),
    ("lift-off", "e=1/2"): (4_000, 80_000, 4, PHASES),
    ("falling-block", "tall"): (1_500, 30_000, 4, PHASES),
    # second-order errors meet round-off
    ("cylinder", "e=0"): (200, 4_000, 4, PHASES),
    ("cylinder", "e=1/2"): (200, 4_000, 4, PHASES),
    # the bar's highest wave asks for h well below dx/c
    ("elastic-bar", "n=20"): (2_000, 30_000, 4, 3),
    ("elastic-bar", "n=100"): (4_000, 20_000, 3, 1),
    # many coordinates are many phases
    ("skew-balls", "d=40"): (1_000, 20_000, 4, 1),
    ("hypercube", "d=100"): (2_000, 20_000, 3, 1),
    ("inelastic-chain", "N=100"): (500, 2_000, 3, 1),
}
DEFAULT = (600, 20_000, 5, PHASES)
# of many coordinates or gaps, which take long to compile, and of a mass that varies, of which `test_methods` asks all
# schemes
LONG = ("spheres", "growing-spheres", "inelastic-chain", "cradle", "hypercube", "skew-balls", "falling-block",
    "adly-thieu",
        "adly-thieu-corner", "polar-particle")  # fmt: skip

COMBINATIONS = [
    (entry, name, label, projection)
    for entry in catalogue.entries()
    for name, case in entry.cases.items()
    for label in case.orders
    for projection in SOLVERS
]


SHORT = ("bouncing-ball", "shaw-holmes", "lift-off", "groove", "bowl", "cylinder")


def parameters():
    """The default suite holds a few problems once, their schemes in turn, with each projection;
    `test_catalogue_values.py` has all."""
    names = [entry.name for entry in catalogue.entries() if entry.name not in LONG]
    other = dict(zip(names, itertools.cycle(["projected-gradient", *[None] * 6, "admm", *[None] * 6]), strict=False))
    turn = dict(zip(names, itertools.count(), strict=False))
    for entry, name, label, projection in COMBINATIONS:
        small, labels = entry.case(name).q0.size < 20, list(entry.case(name).orders)
        first = name == next((name for name, case in entry.cases.items() if case.orders), None)
        exact = projection == "active-set" and label == labels[turn.get(entry.name, 0) % len(labels)]
        iterated = projection == other.get(entry.name) and label == labels[0]
        # has an order of its own, two
        leapfrog = (entry.name, label, projection) == ("bowl", "maury-half-kick", "active-set")
        short = first and small and entry.name in SHORT
        marks = [] if short and (exact or iterated or leapfrog) else [pytest.mark.slow]
        yield pytest.param(entry, name, label, projection, id=f"{entry.name}-{name}-{label}-{projection}", marks=marks)


@pytest.mark.parametrize(("entry", "name", "label", "projection"), list(parameters()))
def test_value_and_order(entry, name, label, projection):
    case, expected = entry.cases[name], entry.cases[name].orders[label]
    first, last, bands, phases = SWEEPS.get((entry.name, name), DEFAULT)
    options = {"t1": case.t1, "exact": case.exact, "impulse": case.impulse, "args": case.args, "e": case.restitution}
    options |= {"scheme": SCHEMES[label].scheme}
    if projection != "active-set":
        # the same problems by another method: the same errors, to the tolerance over the shortest time between impacts
        options |= {"steps": prime_steps(first, 3 * first, 2)}
        found, exact = (
            ji.convergence(entry.problem, case.q0, case.v0, projection=SOLVERS[method].solver, **options)
            for method in (projection, "active-set")
        )
        np.testing.assert_allclose(found.position, exact.position, rtol=1e-3, atol=1e-8)
        return
    found = ji.convergence(
        entry.problem, case.q0, case.v0, steps=prime_steps(first, last, bands), phases=phases, **options
    )
    observed = found.orders()
    for quantity in ("velocity", "impulse"):
        theory = getattr(expected, quantity)
        if theory is not None:
            assert observed[quantity] == pytest.approx(theory, abs=TOLERANCE), f"{quantity}\n{found.table()}"
    if expected.exact:
        # a projection may leave a gap velocity of its tolerance, raised to its floor of rounding units of q over h
        size = np.max(np.abs(case.exact(np.linspace(0, case.t1, 1001))[0]))
        floor = 8 * np.finfo(float).eps * size / found.h
        assert np.all(found.position <= 10 * case.t1 * (1e-12 + floor)), found.table()
    elif expected.position is not None:
        assert observed["position"] == pytest.approx(expected.position, abs=TOLERANCE), found.table()


def test_every_scheme_is_among_the_default():
    kept = [p.values for p in parameters() if not p.marks]
    assert {label for *_, label, _ in kept} == {label for *_, label, _ in COMBINATIONS}
    assert {projection for *_, projection in kept} == set(SOLVERS)
