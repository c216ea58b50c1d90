"""Results do not depend on the units of length, time and mass: scaled by powers of two they are the same,
bit for bit."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import catalogue
from support.breadth import slow

# exponents of 2 of length, time and mass, near 1e-18, 1e-9, 1e9 and 1e18; even, so that square roots of them are exact
UNITS = [(-60, 0, 0), (-30, 0, 0), (60, 0, 0), (0, -60, 0), (0, 60, 0), (0, 0, -60), (0, 0, 60), (-30, 30, 30)]
# below, derivatives that contacts have put out lie beside the smallest numbers
PUT_OUT = 1e-250
SCHEMES = {
    "paoli-schatzman": ji.PaoliSchatzman(),
    "moreau-jean": ji.MoreauJean(),
    "maury": ji.Maury(),
    "event-corrected": ji.EventCorrected(),
}
# one of each kind: one contact, a moving one, a curved one, many
KINDS = [
    ("bouncing-ball", "paoli-schatzman"),
    ("bouncing-ball", "moreau-jean"),
    ("bouncing-ball", "event-corrected"),
    ("lift-off", "maury"),
    ("bowl", "maury"),
]
EVERY = [
    (entry.name, name)
    for entry in catalogue.entries()
    for name, scheme in SCHEMES.items()
    if len(entry.case().q0) < 9 and entry.problem.slip is None and (name != "maury" or entry.case().restitution == 0)
]


def in_units(problem):
    """The problem in units of length, time and mass that its args give, all coordinates taken for lengths."""

    def force(t, q, v, args):
        length, time, mass, given = args
        return mass * length / time**2 * problem.generalised_force(t / time, q / length, v * (time / length), given)

    def gaps(t, q, args):
        length, time, _, given = args
        return length * problem.gaps(t / time, q / length, given)

    def mass(q, args):
        found = problem.mass(q / args[0], args[3]) if callable(problem.mass) else problem.mass
        return args[2] * (jnp.ones((), q.dtype) if found is None else jnp.asarray(found, q.dtype))

    return ji.Problem(force, gaps, mass)


def results(problem, case, scheme, units, steps, dtype, projection=None):
    """State at the end, its derivatives by that at the start and impulses, in the units of the catalogue;
    and the status."""
    length, time, mass = (dtype(2.0) ** dtype(x) for x in units)
    args = (length, time, mass, case.args)
    if hasattr(scheme, "atol"):  # in the units of the problem
        scheme = replace(scheme, atol=scheme.atol * float(length))

    def ended(q0, v0):
        found = ji.solve(
            problem, length * q0, length / time * v0, t1=time * dtype(case.t1), steps=steps, e=case.restitution,
            args=args, scheme=scheme, projection=projection, save="final",
        )  # fmt: skip
        q, v = found.q[-1] / length, found.v[-1] * (time / length)
        return (q, v), (q, v, found.impulse[-1] * (time / length / mass), found.status)

    start = jnp.asarray(case.q0, dtype), jnp.asarray(case.v0, dtype)
    jacobian, (q, v, impulse, status) = jax.jacfwd(ended, argnums=(0, 1), has_aux=True)(*start)
    return [np.asarray(x) for x in (q, v, impulse, *jax.tree.leaves(jacobian))], ji.Status(int(status))


def check_units(name, label, units, steps, dtype=np.float64, put_out=PUT_OUT):
    entry = catalogue.get(name)
    problem = in_units(entry.problem)
    args = problem, entry.case(), SCHEMES[label]
    expected, status = results(*args, (0, 0, 0), steps, dtype)
    for unit in units:
        found, told = results(*args, unit, steps, dtype)
        assert told == status, f"{unit}: {told!s} in place of {status!s}"
        for x, y in zip(found, expected, strict=True):
            # a scheme with a tolerance searches for events up to rounding
            rtol = 1e-14 if SCHEMES[label].traits.tells_error else 0
            np.testing.assert_allclose(x, y, rtol=rtol, atol=put_out, err_msg=str(unit))


@pytest.mark.filterwarnings("ignore::jaximpact.JaximpactWarning")
@pytest.mark.parametrize(("name", "label"), [kind if kind[1] == "event-corrected" else slow(*kind) for kind in KINDS])
def test_results_are_the_same_in_all_units(name, label):
    check_units(name, label, UNITS, 60)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::jaximpact.JaximpactWarning")
@pytest.mark.parametrize(("name", "label"), EVERY)
def test_results_of_the_catalogue_are_the_same_in_all_units(name, label):
    check_units(name, label, UNITS, 200)


@pytest.mark.filterwarnings("ignore::jaximpact.JaximpactWarning")
def test_results_in_float32_are_the_same_in_all_units():
    """Its range of 1e38 leaves little more than squares of these."""
    units = [(-20, 0, 0), (20, 0, 0), (0, 10, 0), (0, -10, 0), (0, 0, 20), (0, 0, -20)]
    check_units("bouncing-ball", "moreau-jean", units, 60, np.float32, 1e-25)


def column(masses):
    """Bodies above each other on a floor, in a field of gravity."""
    below = lambda q: jnp.concatenate([q[:1], q[1:] - q[:-1]])
    return ji.Problem(lambda t, q, v, args: -9.81 * jnp.asarray(masses), lambda t, q, args: below(q), mass=masses)


def rest(ratio, count, projection):
    """The column that falls and comes to rest, light bodies below heavy ones, by two schemes."""
    masses = np.where(np.arange(count) % 2, ratio, 1.0)
    q0 = 0.01 * np.arange(1.0, count + 1)
    for scheme in (ji.PaoliSchatzman(), ji.Maury()):
        options = {"t1": 0.2, "h": 1e-2, "e": 0.0, "scheme": scheme, "sensitivity": "none"}
        yield ji.solve(column(masses), q0, np.zeros(count), projection=projection, **options)


@pytest.mark.parametrize(("ratio", "count"), [slow(1e5, 2), slow(1e8, 2), (1e5, 4)])
def test_unequal_masses_leave_residuals_of_round_off(ratio, count):
    for found in rest(ratio, count, None):
        assert not int(found.status) & int(ji.Status.CONTACTS_NOT_SOLVED)
        # velocities are known to the round-off of impulses, a few units of eps times the ratio and g h, which 20 steps
        # add up
        assert np.max(np.abs(found.q[-1])) < 20 * 64 * 2.2e-16 * ratio * 9.81 * 1e-2 * 1e-2 + 1e-13


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [1e2, 1e5])
def test_admm_finds_the_impulses_of_unequal_masses(ratio):
    for found, exact in zip(rest(ratio, 6, ji.ADMM()), rest(ratio, 6, None), strict=True):
        assert not int(found.status) & int(ji.Status.CONTACTS_NOT_SOLVED)
        # eps times the ratio, of lengths of 0.06 over 20 steps
        np.testing.assert_allclose(found.q, exact.q, rtol=0, atol=20 * 2.2e-16 * ratio + 1e-12)
        assert int(found.iterations) <= 20 * 60  # they were 2000 a step
