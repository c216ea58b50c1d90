"""Every paper's own scheme runs on a problem its theory covers and converges to the exact motion at its order."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import catalogue
from jaximpact.analysis import prime_steps
from jaximpact.extend import Metric, Solved, Target

# paper, problem, case, scheme as the paper states it, order of the position
PAPERS = [
    # Paoli and Schatzman 1999: one constraint, M(q), projection along geodesics, centred force, Euler start
    # (1.13)-(1.17)
    ("PS", "polar-wall", None, ji.PaoliSchatzman(force="centred", metric="geodesic", start="euler"), 1.0),
    # Paoli 2010: several constraints, M(q), kinetic metric, backward velocity, e in (0, 1], any consistent start
    # (4)-(7)
    ("P2", "polar-particle", "e=0.9", ji.PaoliSchatzman(start="euler"), 1.0),
    ("P2", "groove", "e=1/2", ji.PaoliSchatzman(start="euler"), 1.0),
    ("P2", "hypercube", "d=3", ji.PaoliSchatzman(start="euler"), 1.0),
    # Bernicot and Lefebvre-Lepot 2010: N spheres, constant and growing radii, different masses, e = 0
    ("BL", "spheres", "e=0", ji.Maury(), 1.0),
    ("BL", "growing-spheres", "scattered", ji.Maury(), 1.0),
    # Adly and Thieu 2022: moving C^{1,1} constraints, e = 0, mean force entering the start as h^2 F
    ("AT", "adly-thieu", "c", ji.PaoliSchatzman(force="mean", start="full"), 1.0),
    ("AT", "vibrating-table", "e=0", ji.PaoliSchatzman(force="mean", start="full"), 1.0),
]
# in the default suite; the first paper's takes a minute
ONE_OF_EACH = ("polar-particle", "adly-thieu")  # spheres: `test_bodies`


def polar_wall():
    """The polar particle against one wall: the other is out of reach until the second impact."""
    entry = catalogue.get("polar-particle")
    case = entry.case("e=0.9")
    problem = entry.problem.replace(constraints=lambda t, q, args: entry.problem.constraints(t, q, args)[:1])
    return problem, case, 3.0


@pytest.mark.parametrize(
    ("paper", "name", "case_name", "scheme", "order"),
    [pytest.param(*p, marks=() if p[1] in ONE_OF_EACH else pytest.mark.slow) for p in PAPERS],
    ids=lambda x: str(x)[:20],
)
def test_scheme_of_the_paper(paper, name, case_name, scheme, order):
    if name == "polar-wall":
        problem, case, t1 = polar_wall()
        assert case.impacts[0] < t1 < case.impacts[1]
    else:
        entry = catalogue.get(name)
        problem, case = entry.problem, entry.case(case_name)
        t1 = case.t1
    found = ji.convergence(
        problem, case.q0, case.v0, t1=t1, steps=prime_steps(1_000, 15_000, 4), phases=6, exact=case.exact,
        scheme=scheme, args=case.args, e=case.restitution,
    )  # fmt: skip
    assert found.orders()["position"] == pytest.approx(order, abs=0.15), found.table()
    assert np.all(found.residual <= 1e-9)


@pytest.mark.parametrize(("scheme", "cases"), [(ji.PaoliSchatzman(), "abd"), (ji.Maury(), "ab")])
def test_exact_straight_pieces_of_adly_thieu(scheme, cases):
    """Straight pieces are exact at the nodes: KKT tolerance 1e-12 and its floor over h, over a time of 5.

    The first slope ends smoothly, which `Maury` must not take for an edge.
    """
    entry = catalogue.get("adly-thieu")
    for name in cases:
        case = entry.case(name)
        found = ji.solve(entry.problem, case.q0, case.v0, t1=case.t1, steps=2003, e=0.0, args=case.args, scheme=scheme)
        assert np.max(np.abs(found.q - case.exact(np.asarray(found.t))[0])) < 1e-9


def test_maury_keeps_convex_constraints():
    """Every position of the scheme is admissible where distances are convex (BL, section 4)."""
    entry = catalogue.get("growing-spheres")
    case = entry.case("scattered")
    found = ji.solve(entry.problem, case.q0, case.v0, t1=case.t1, steps=211, e=0.0, args=case.args, scheme=ji.Maury())
    assert float(found.penetration) <= 1e-14


@pytest.mark.slow
def test_geodesic_and_kinetic_projections_differ_by_higher_order():
    """At a distance s from the boundary the two projections of one point differ by O(s^2)."""
    problem, case, _ = polar_wall()
    base = jnp.array([1 / np.cos(0.6), 0.6])  # on the boundary r cos th = 1
    metric, law = Metric.at(problem, base, case.args), Solved(ji.ActiveSet())

    @jax.jit
    def apart(distance):
        target = Target(jnp.zeros(()), base, distance * jnp.array([1.0, -0.4]), jnp.ones(()))
        kinetic, geodesic = (
            law.position(problem, metric, replace(target, normal=normal), case.args)
            for normal in ("implicit", "geodesic")
        )
        return jnp.max(jnp.abs(kinetic.jump - geodesic.jump)), geodesic.impulse[0]

    distances = 0.1 * 0.5 ** np.arange(5.0)
    gaps, impulses = zip(*(apart(jnp.asarray(d)) for d in distances), strict=True)
    assert min(impulses) > 1e-3
    order = np.polyfit(np.log(distances), np.log(gaps), 1)[0]
    assert order == pytest.approx(2.0, abs=0.3)
