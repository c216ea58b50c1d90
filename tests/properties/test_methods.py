"""What every scheme and every contact solver owes, a property a test: a new one is a row of `methods`."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import catalogue
from support.methods import KINDS, SCHEMES, SOLVERS

DERIVATIVES = ("moreau-jean", "symplectic-euler")  # the others in the default suite: `test_sensitivity`
G, FALL, T1 = 9.81, 1.3, 0.9
BALL = ji.Problem(lambda t, q, v, args: jnp.array([-G]), lambda t, q, args: q)
BALLS = ji.Problem(lambda t, q, v, args: -jnp.ones(2), lambda t, q, args: jnp.stack([q[0], q[1] - q[0] - 0.1]))


def every(names):
    """A test for each scheme; variants of the same step in the slow suite."""
    return pytest.mark.parametrize(
        "name",
        [pytest.param(name, marks=() if name in (*KINDS, "symplectic-euler") else pytest.mark.slow) for name in names],
    )


def bounce(y0, e):
    """Position and velocity at T1 of a ball thrown down with FALL, after its one impact;
    at rest after an inelastic one."""
    if isinstance(e, float) and e == 0:
        return 0 * jnp.stack([y0, y0])
    v = -jnp.sqrt(FALL**2 + 2 * G * y0)
    left = T1 - (-v - FALL) / G
    return jnp.stack([-e * v * left - G / 2 * left**2, -e * v - G * left])


@cache
def jacobians(name):
    """Values and Jacobians of position and velocity with respect to (y0, e), for two step sizes at once."""
    row = SCHEMES[name]
    h = T1 / np.array([450.0, 1800.0])
    return ji.sensitivities(
        BALL, np.ones((2, 1)), [-FALL], t1=T1, h=h, e=row.restitution(0.7), scheme=row.scheme, wrt=["q0", "e"]
    )


@every(SCHEMES)
def test_order_of_convergence(name):
    """As theory says, across impacts, with a mass matrix that varies, in the sup norm: observed within 0.15."""
    row = SCHEMES[name]
    entry = catalogue.get("polar-particle")
    case = entry.case("e=0" if row.inelastic else "e=0.9")
    measured = partial(
        ji.convergence, entry.problem, case.q0, case.v0, t1=case.t1, args=case.args, e=case.restitution,
        exact=case.exact, scheme=row.scheme, phases=4,
    )  # fmt: skip
    if row.order is None:
        with pytest.raises(ValueError, match="phases and graph belong to fixed steps"):
            measured()
        return
    found = measured()
    assert found.orders()["position"] == pytest.approx(row.order, abs=0.15), found.table()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in DERIVATIVES else pytest.mark.slow) for name in SCHEMES]
)
def test_derivatives_across_an_impact(name):
    """They converge to those of the motion: O(h), a step or two of what g/|v| = 2.1 makes
    of a derivative in a second."""
    row, found = SCHEMES[name], jacobians(name)
    e = row.restitution(0.7)
    exact = np.stack(jax.jit(jax.jacfwd(bounce, (0, 1)))(1.0, e) if e else [jax.jacfwd(bounce)(1.0, e), np.zeros(2)], 1)
    keep = slice(0, 1) if row.inelastic else slice(0, 2)
    errors = [np.max(np.abs((jacobian(found, i) - exact)[:, keep])) for i in range(2)]
    # exact up to rounding errors, or first order
    assert errors[1] < 1e-9 or (errors[1] < 0.5 * errors[0] and errors[1] < 10 * T1 / 1800 * np.max(np.abs(exact)))


def jacobian(found, i):
    """(2, 2): of position and velocity with respect to (y0, e)."""
    return np.array([[found.jacobian[x][y][i].item() for y in ("q0", "e")] for x in ("q", "v")])


@every(SCHEMES)
def test_ensembles_find_what_solve_finds(name):
    row = SCHEMES[name]
    options = {"t1": T1, "e": row.restitution(0.7), "scheme": row.scheme, "save": "final"}
    one = ji.solve(BALL, [1.0], [-FALL], steps=300, **options)
    many = ji.ensemble(BALL, [[0.8], [1.0]], [-FALL], h=T1 / 300, **options)
    assert many.status[1] == one.status
    for x in ("q", "v", "impulse"):
        # a few units in the last place a step
        np.testing.assert_allclose(getattr(many, x)[1], getattr(one, x), rtol=1e-12, atol=1e-12)


@every(SCHEMES)
def test_momentum_balance(name):
    """Impulses account for every change of momentum, p(T) - p(0) = g T + their sum: to round-off, but for the steps
    that the velocity is late."""
    row = SCHEMES[name]
    e = row.restitution(0.5)
    found = ji.solve(BALLS, [0.5, 0.9], [0.0, -1.0], t1=3.0, steps=3001, e=e, scheme=row.scheme, save="final")
    impulse = found.impulse[-1]
    assert np.all(impulse > 1) and not found.failed  # of the weight, 2 and 1 for three seconds, or of the falls
    change = found.v[-1] - np.array([0.0, -1.0]) + 3.0
    slack = row.lag * 3.0 / 3001 + 1e-10
    np.testing.assert_allclose(change, [impulse[0] - impulse[1], impulse[1]], atol=slack)


@every(SCHEMES)
def test_float32_stays_and_a_nan_is_told(name):
    """One program: a lane of float32 numbers, and one whose force becomes NaN half way."""
    row = SCHEMES[name]
    broken = ji.Problem(
        lambda t, q, v, args: -10 * jnp.sqrt(args - t) / jnp.sqrt(args - t) + 0 * v, lambda t, q, args: q
    )
    args = np.float32([9.0, 0.5])
    found = ji.ensemble(
        broken, np.float32([1.0]), np.float32([0.0]), t1=1.0, h=np.float32(0.01), args=args, args_axes=0,
        e=row.restitution(0.5), scheme=row.scheme, save="final",
    )  # fmt: skip
    assert found.q.dtype == np.float32
    assert not found.failed[0] and np.isfinite(found.q[0, -1, 0])
    assert found.status[1] & int(ji.Status.NON_FINITE) and found.failed_at[1] == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("name", SCHEMES)
def test_restitution_that_is_not_covered_is_refused(name):
    row = SCHEMES[name]
    with pytest.raises(ValueError, match=r"restitution|e must|e ="):
        ji.solve(BALL, [1.0], [0.0], t1=1.0, steps=10, e=0.5 if row.inelastic else 1.5, scheme=row.scheme)


@pytest.mark.parametrize("name", SOLVERS)
def test_contact_solvers_agree(name):
    """On a motion with several contacts: to their tolerance of 1e-12 a step, which 300 steps carry on."""
    entry = catalogue.get("groove")
    case = entry.case("e=1/2")
    options = {"t1": case.t1, "steps": 300, "args": case.args, "e": case.restitution, "save": "final"}
    found, exact = (
        ji.solve(entry.problem, case.q0, case.v0, projection=solver, **options)
        for solver in (SOLVERS[name].solver, ji.ActiveSet())
    )
    atol = 1e-12 if SOLVERS[name].exact else 1e-9
    np.testing.assert_allclose(found.q, exact.q, atol=atol)
    np.testing.assert_allclose(found.impulse, exact.impulse, atol=atol)
