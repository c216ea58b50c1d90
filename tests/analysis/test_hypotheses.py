"""The diagnostic names the corners at which convergence theory stops, and no others."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import catalogue
from support.breadth import slow


def motion(name, case=None, steps=2003, **changes):
    entry = catalogue.get(name)
    case = entry.case(case)
    e = changes.get("e", case.restitution)
    solution = ji.solve(entry.problem, case.q0, case.v0, t1=case.t1, steps=steps, e=e, args=case.args)
    return entry.problem, solution, {"args": case.args, "e": e}


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("groove", "e=1/2"),
        ("skew-balls", "d=2"),
        pytest.param("groove", "corner", marks=pytest.mark.slow),
        pytest.param("inelastic-chain", "N=8", marks=pytest.mark.slow),
        pytest.param("bouncing-ball", "e=1/2", marks=pytest.mark.slow),
    ],
)
def test_nothing_to_say(name, case):
    """Orthogonal corners at e > 0 (in M^-1: skew-balls), acute ones at e = 0 (chain)."""
    problem, solution, options = motion(name, case)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = ji.check_hypotheses(problem, solution, **options)
    assert report.failures == ()
    assert str(report) == "no hypothesis fails along this motion"


def test_obtuse_corner_is_named():
    """B27: gradients (-1/2, 1) and (1/2, 1), cosine 3/5."""
    problem, solution, options = motion("obtuse-corner")
    with pytest.warns(ji.JaximpactWarning, match=r"obtuse corner .* constraints \(0, 1\)"):
        report = ji.check_hypotheses(problem, solution, **options)
    assert report.cosine[1] == pytest.approx(0.6)
    assert report.worst[0][1:3] == (0, 1)
    assert solution.t[report.worst[0][0]] == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("clearance", [0.0, 1e-9])
def test_opposite_gaps_closed_together_are_named(clearance):
    """A coordinate held by f and -f + clearance: their gradients are dependent,
    and which of them pushes is not defined."""
    gaps = lambda t, q, args: jnp.stack([q[0], clearance - q[0], q[1]])
    problem = ji.Problem(lambda t, q, v, args: jnp.array([0.0, -9.81]), gaps)
    solution = ji.solve(problem, [0.0, 1.0], [0.0, 0.0], t1=0.5, h=1e-2)
    with pytest.warns(ji.JaximpactWarning, match=r"\(H3\).* opposite gaps are closed together, constraints \(0, 1\)"):
        ji.check_hypotheses(problem, solution)


def test_cradle_is_not_orthogonal():
    """Chain of equal masses: neighbouring gradients have cosine -1/2; fatal at e > 0, harmless at e = 0."""
    gaps = lambda t, q, args: q[1:] - q[:-1] - 1
    problem = ji.Problem(lambda t, q, v, args: 0 * q, gaps, restitution=1.0)
    solution = ji.solve(problem, [-0.5, 1.0, 2.0], [1.0, 0.0, 0.0], t1=1.0, h=0.01)
    with pytest.warns(ji.JaximpactWarning, match=r"not orthogonal in M\^-1 \(H6\), constraints \(0, 1\)"):
        report = ji.check_hypotheses(problem, solution)
    assert report.cosine[0] == pytest.approx(-0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ji.check_hypotheses(problem, solution, e=0.0)


def test_dependent_gradients():
    walls = ji.Problem(lambda t, q, v, args: -jnp.ones(2), lambda t, q, args: jnp.stack([q[0], q[1], q[0] + q[1]]))
    solution = ji.solve(walls, [0.1, 0.1], [0.0, 0.0], t1=1.0, h=0.01)
    with pytest.warns(ji.JaximpactWarning) as caught:
        report = ji.check_hypotheses(walls, solution)
    assert any("dependent active gradients (H3)" in str(w.message) for w in caught)
    assert report.rank_deficit[-1] == 1
    np.testing.assert_array_equal(report.active[-1], True)


def test_batch_is_refused():
    problem = ji.Problem(lambda t, q, v, args: -jnp.ones(1), lambda t, q, args: q)
    batch = ji.ensemble(problem, np.ones((3, 1)), [0.0], t1=1.0, h=0.1, save="all")
    with pytest.raises(ValueError, match="pick a lane"):
        ji.check_hypotheses(problem, batch)


@pytest.mark.parametrize(
    ("power", "scheme"),
    [(2, ji.PaoliSchatzman()), (3, ji.MoreauJean()), slow(3, ji.PaoliSchatzman()), slow(2, ji.MoreauJean())],
    ids=repr,
)
def test_a_gradient_that_vanishes_is_named(power, scheme):
    """The gap q^2 or q^3, which closes without a gradient, beside one that is regular: the first is named."""
    gaps = lambda t, q, args: jnp.stack([q[0] ** power, 5.0 - q[0]])
    problem = ji.Problem(lambda t, q, v, args: -jnp.ones(1), gaps, restitution=0.0)
    solution = ji.solve(problem, [1.0], [0.0], t1=2.0, steps=200, scheme=scheme)
    with pytest.warns(ji.JaximpactWarning, match=r"a gradient vanishes where its gap closes, constraints \[0\]"):
        assert len(ji.check_hypotheses(problem, solution).failures) == 1


def test_another_problems_solution_is_refused():
    """Of another dimension, of other constraints, of walls elsewhere: the motion's own records tell."""
    problem, solution, options = motion("bouncing-ball", "e=1/2")
    force = lambda t, q, v, args: -jnp.ones_like(q)
    build = lambda gaps, **more: ji.Problem(force, gaps, **more)
    others = {
        "of another problem: it has 1 coordinates and 1 constraints": build(
            lambda t, q, args: jnp.stack([q[0], 9 - q[0]])
        ),
        "has q of 1 components, on which the problem's functions fail": build(lambda t, q, args: q @ jnp.ones((2, 1))),
        "a gap is -0.5": build(lambda t, q, args: q - 0.5),
        "records impulses where gaps are 0.5": build(lambda t, q, args: q + 0.5),
    }
    for words, other in others.items():
        with pytest.raises(ValueError, match=words):
            ji.check_hypotheses(other, solution, **options)
    for wrong in (float("nan"), -1.0):
        with pytest.raises(ValueError, match="tolerance must"):
            ji.check_hypotheses(problem, solution, tolerance=wrong, **options)


@pytest.mark.parametrize(("steps", "deep"), [slow(60, True), (1200, False)])
def test_penetrations_that_add_up_along_a_chain_are_named(steps, deep):
    """MoreauJean lets every contact of a chain sink in by O(h): at 60 steps by as much as gaps open,
    at 1200 by a twentieth."""
    problem = catalogue.get("inelastic-chain").problem
    case = catalogue.get("inelastic-chain").case("N=8")
    data = {"t1": case.t1, "args": case.args, "e": case.restitution}
    solution = ji.solve(problem, case.q0, case.v0, steps=steps, scheme=ji.MoreauJean(), sensitivity="none", **data)
    error = np.max(np.abs(solution.q - case.exact(np.asarray(solution.t))[0]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = ji.check_hypotheses(problem, solution, args=case.args, e=case.restitution)
    assert any("h is too large" in failure for failure in found.failures) == deep
    # the exact motion is admissible, and a gap of two coordinates: one of them is off by half the penetration or more
    assert error >= 0.5 * float(solution.penetration)


@pytest.mark.parametrize("place", [0.0, 0.3])
def test_a_body_at_rest_has_no_step_that_is_too_large(place):
    """It sinks by round-off, of which the widest gap is made too."""
    body = ji.Problem(lambda t, q, v, args: -9.81 * jnp.ones_like(q), lambda t, q, args: q - args)
    solution = ji.solve(body, [place], [0.0], t1=1.0, h=0.01, args=place, save="all")
    sunk = solution.__class__(
        **(vars(solution) | {"penetration": np.float64(5.6e-17), "q": solution.q.at[3].add(5.6e-17)})
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ji.check_hypotheses(body, sunk, args=place).failures == ()


def test_friction_is_told_by_its_bound_and_its_theorems():
    """A rod's end on a floor: mu |A_nt| / A_nn = mu 3 |cos sin| / (1 + 3 cos^2),
    at an angle of 1 above 1 from mu = 1.375 on."""
    rod = ji.Problem(
        lambda t, q, v, args: jnp.stack([0 * q[0], 0 * q[0] - 9.81, 0 * q[0]]),
        lambda t, q, args: (q[1] - jnp.sin(q[2]))[None],
        jnp.array([1.0, 1.0, 1 / 3]),
        slip=lambda t, q, v, args: (v[0] + jnp.sin(q[2]) * v[2])[None],
        friction=1.0,
    )
    start = [0.0, np.sin(1.0), 1.0], [-3.0, 0.5 * np.cos(1.0), 0.5]
    run = lambda mu: ji.solve(rod, *start, t1=0.002, h=1e-3, friction=mu, scheme=ji.MoreauJean())
    report = ji.check_hypotheses(rod, run(1.0), friction=1.0)
    ratio = 3 * np.cos(1) * np.sin(1) / (1 + 3 * np.cos(1) ** 2)
    assert report.failures == () and np.allclose(report.painleve, ratio, rtol=2e-3)  # the angle moves by 1e-3
    assert "constraint 0 0.7" in str(report) and "Stewart 1998" in str(report) and "not proved: orders" in str(report)
    with pytest.warns(ji.JaximpactWarning, match="beyond Painleve's bound"):
        jammed = ji.check_hypotheses(rod, run(1.5), friction=1.5)
    assert jammed.painleve > 1
    assert "e > 0: no theorem" in str(ji.check_hypotheses(rod, run(1.0), friction=1.0, e=0.5))
