"""Bad input: each a clear error that names the argument, what was wrong and what to do, or a status."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import Status


def force(t, q, v, args):
    return -jnp.ones(2)


def gaps(t, q, args):
    return q


def no_gaps(t, q, args):
    return q[:0]


def no_slip(t, q, v, args):
    return v[:0]


BOX = ji.Problem(force, gaps)


def run(problem=BOX, q0=(1.0, 1.0), v0=(0.0, 0.0), **options):
    return ji.solve(problem, list(q0), list(v0), **{"t1": 1.0, "h": 0.01, **options})


CASES = [
    ({"q0": [[1.0, 1.0]]}, ValueError, r"q0 must have shape \(d,\), got \(1, 2\).*ensemble"),
    ({"q0": []}, ValueError, "q0 must have shape"),
    ({"v0": [0.0]}, ValueError, r"v0 must have the shape of q0, \(2,\), got \(1,\)"),
    ({"q0": [1.0, float("nan")]}, ValueError, "q0 must be finite"),
    ({"v0": [float("inf"), 0.0]}, ValueError, "v0 must be finite"),
    ({"q0": ["a", "b"]}, TypeError, "q0 must be real numbers"),
    ({"q0": [1.0, 1j]}, TypeError, "q0 must be real numbers"),
    ({"args": {"k": float("nan")}, "problem": BOX}, ValueError, r"args\['k'\] .*not finite"),
    ({"args": {"k": "stiff"}}, TypeError, r"args\['k'\] is a str"),
    ({"h": 0.0}, ValueError, "h must be positive, got 0"),
    ({"h": -0.1}, ValueError, "h must be positive, got -0.1"),
    ({"h": 2.0}, ValueError, "h must not exceed t1 - t0 = 1, got 2"),
    ({"h": [0.1, 0.2]}, ValueError, "h must be one number.*ensemble"),
    ({"t1": 0.0}, ValueError, "t1 must be later than t0"),
    ({"t1": float("inf")}, ValueError, "t1 must be finite"),
    ({"steps": 10}, ValueError, "give either h.*or steps"),
    ({"h": None, "steps": 0}, ValueError, "steps must be a whole number >= 1"),
    ({"e": 1.1}, ValueError, r"restitution must lie in \[0, 1\], got 1.1"),
    ({"e": -0.1}, ValueError, r"restitution must lie in \[0, 1\]"),
    ({"e": [0.5, 0.5]}, ValueError, "restitution must be one number for PaoliSchatzman.*MoreauJean"),
    ({"e": [0.5] * 3, "scheme": ji.MoreauJean()}, ValueError, r"restitution has shape \(3,\).*\(2,\)"),
    ({"e": 0.5, "scheme": ji.Maury()}, ValueError, "restitution is 0.5, but Maury treats inelastic impacts only"),
    ({"scheme": ji.PaoliSchatzman(force="implicit")}, ValueError, "force='implicit'.*choose one of 'explicit'"),
    ({"scheme": ji.PaoliSchatzman(metric="geodesic")}, ValueError, "exactly one constraint, the problem has 2"),
    ({"scheme": ji.MoreauJean(theta=1.5)}, ValueError, r"theta must lie in \[0, 1\]"),
    ({"q0": [1.0, -0.25]}, ValueError, "q0 is not admissible: constraint 1 has gap -0.25"),
    ({"save": "everything"}, ValueError, "save='everything'"),
    ({"save": 0}, ValueError, "every must be a whole number >= 1, got 0"),
    ({"save": [0.5, 0.2]}, ValueError, "strictly increasing"),
    ({"save": [0.5, 1.2]}, ValueError, r"must lie in \[t0, t1\]"),
    ({"save": ji.Save(every=2, times=[0.5])}, ValueError, "either every or times"),
    ({"save": ji.Save(times=[0.5, 0.501], function=lambda *x: x[1])}, ValueError, "at least h apart"),
    ({"problem": "ball"}, TypeError, "problem must be a jaximpact.Problem"),
]
PROBLEMS = [
    (ji.Problem(lambda t, q, v, args: -jnp.ones(3), gaps), ValueError, r"force.*\(2,\).*got \(3,\)"),
    (ji.Problem(force, lambda t, q, args: q[0]), ValueError, r"constraints.*\(m,\), got \(\)"),
    (ji.Problem(force, no_gaps, slip=no_slip, friction=0.3), ValueError, "returns none.*leave slip"),
    (ji.Problem(force, gaps, mass=jnp.eye(3)), ValueError, r"mass must be.*got \(3, 3\)"),
    (ji.Problem(force, gaps, mass=-1.0), ValueError, "mass is not positive definite"),
    (ji.Problem(force, gaps, mass=jnp.array([[1.0, 2.0], [2.0, 1.0]])), ValueError, "mass is not positive"),
    (ji.Problem(force, gaps, mass=jnp.ones((2, 2))), ValueError, "mass is not positive definite"),
    (ji.Problem(force, gaps, mass=jnp.array([[2.0, 1.0], [0.0, 2.0]])), ValueError, "mass is not symmetric"),
    (ji.Problem(lambda t, q, v, args: q / 0.0, gaps), ValueError, "force is not finite"),
    (ji.Problem(force, lambda t, q, args: jnp.log(q - 1.0)), ValueError, "constraints are not finite"),
    (ji.Problem(force, gaps, energy=lambda t, q, v, args: q), ValueError, "energy.*scalar"),
    (ji.Problem(lambda t, q, v, args: args["k"] * q, gaps), TypeError, "force.* failed.*args is None: give"),
    (ji.Problem.from_lagrangian(lambda q, v: v @ v, gaps), TypeError, r"^lagrangian\(t, q, v, args\) failed"),
    (ji.Problem.from_lagrangian(lambda t, q, v, args: -v @ v, gaps), ValueError, "of a Lagrangian d2L/dv2"),
    (ji.Problem.from_potential(lambda q: q @ q, gaps), TypeError, r"^potential\(q, args\) failed"),
    (
        ji.Problem.from_potential(lambda q, args: q @ q, gaps, force=lambda t, q: q),
        TypeError,
        r"^potential\(q, args\) or force\(t, q, v, args\) failed",
    ),
]
CASES += [({"problem": problem}, *told) for problem, *told in PROBLEMS]


def test_gaps_of_none_are_no_constraints():
    """Derivatives ended in numpy's error on the largest of no numbers; they are traced only,
    as of a problem without constraints."""
    end = lambda problem: jax.jacfwd(lambda q: ji.solve(problem, q, jnp.zeros(2), t1=1.0, steps=3).q)
    found, plain = (jax.make_jaxpr(end(ji.Problem(force, x)))(jnp.ones(2)) for x in (no_gaps, None))
    assert str(found) == str(plain)


@pytest.mark.parametrize(("change", "error", "message"), CASES, ids=lambda x: x if isinstance(x, str) else "")
def test_a_bad_argument_raises_the_error_that_names_it(change, error, message):
    with pytest.raises(error, match=message):
        run(**change)


def test_problem_construction():
    for call, error, words in (
        (lambda: ji.Problem(1.0), TypeError, "force must be a function"),
        (lambda: ji.Problem(force, constraints=[1.0]), TypeError, "constraints must be a function"),
        (lambda: BOX.replace(gravity=1.0), TypeError, "no field 'gravity'"),
        (lambda: setattr(BOX, "mass", 2.0), AttributeError, "immutable"),
    ):
        with pytest.raises(error, match=words):
            call()


def test_velocity_out_of_the_set_is_told_and_projected():
    """v0 = (1, -1) at a wall: the normal part is lost as in an inelastic impact, in the kinetic metric."""
    mass = jnp.array([[2.0, 1.0], [1.0, 2.0]])
    problem = ji.Problem(lambda t, q, v, args: jnp.zeros(2), lambda t, q, args: q[1:], mass=mass)
    with pytest.warns(ji.JaximpactWarning, match="v0 points out of the admissible set: constraint 0"):
        found = run(problem, q0=(0.0, 0.0), v0=(1.0, -1.0))
    assert int(found.status) == Status.START_VELOCITY_PROJECTED
    found.raise_if_failed()  # a remark, not a failure
    # v + M^-1 G' L with G v+ = 0: M^-1 = [[2, -1], [-1, 2]] / 3, L = 1 / (2/3)
    np.testing.assert_allclose(found.v[0], [0.5, 0.0], atol=1e-14)
    np.testing.assert_allclose(found.v[-1], [0.5, 0.0], atol=1e-12)
    np.testing.assert_allclose(found.impulse[0], [1.5], atol=1e-14)


def test_a_wall_within_the_first_step_takes_the_approach():
    """The first step of `PaoliSchatzman` has no restitution, and ends on the wall: what it leaves is e gap/h. From two
    steps off the wall it is e |v|."""
    problem = ji.Problem(lambda t, q, v, args: jnp.zeros(2), gaps, restitution=0.6)
    near, far = (run(problem, q0=(1.0, y), v0=(0.0, -0.5), h=0.01) for y in (0.001, 0.01))
    assert [int(found.status) for found in (near, far)] == [Status.START_VELOCITY_PROJECTED, 0]
    np.testing.assert_allclose([near.v[-1, 1], far.v[-1, 1]], [0.6 * 0.1, 0.6 * 0.5], atol=1e-12)


def test_saved_times_that_are_traced_and_wrong_are_told():
    """They cannot raise: out of order a row was that of another time, and beyond t1 that at t1, with a clean status."""
    times = jnp.array([[0.2, 0.7], [0.7, 0.2], [0.2, 1.5]])
    fall = ji.Problem(lambda t, q, v, args: 0 * q - 1.0)
    found = jax.vmap(lambda x: ji.solve(fall, [1.0], [0.0], t1=1.0, steps=4, save=x).status)(times)
    assert found.tolist() == [0, Status.INPUT_INVALID, Status.INPUT_INVALID]


def test_a_random_key_in_a_force_and_empty_args():
    """Under `jax.jit` and `jax.grad` a key ended in an error of the compiler, derivatives by args with an array of no
    entries in one of indices."""

    def end(key, args):
        drift = ji.Problem(lambda t, q, v, args: jax.random.normal(key, (1,)) + args["g"] + jnp.sum(args["none"]))
        return ji.solve(drift, jnp.ones(1), jnp.zeros(1), t1=1.0, steps=4, args=args).v[-1, 0]

    key, args = jax.random.key(1), {"g": 2.0, "none": np.zeros(0)}
    value, slope = jax.jit(jax.value_and_grad(end, argnums=1))(key, args)
    # the first step takes half of the force
    np.testing.assert_allclose(value, 0.875 * (jax.random.normal(key, (1,))[0] + 2.0), rtol=1e-12)
    np.testing.assert_allclose(slope["g"], 0.875, rtol=1e-12)


def test_moving_wall_at_the_start():
    """A wall that moves into a ball at rest on it pushes it: relative velocity counts."""
    problem = ji.Problem(lambda t, q, v, args: jnp.zeros(1), lambda t, q, args: q - 0.5 * t)
    with pytest.warns(ji.JaximpactWarning, match="gap would change at -0.5"):
        found = run(problem, q0=(0.0,), v0=(0.0,))
    np.testing.assert_allclose(found.v[-1], [0.5], atol=1e-12)


CLOSING = ji.Problem(lambda t, q, v, args: 0 * q, lambda t, q, args: jnp.stack([q[0] + 1 - 2 * t, 1 - 2 * t - q[0]]))
SLOWED = ji.Problem(lambda t, q, v, args: 0.5 * v**2, mass=lambda q, args: jnp.reshape(1 - q, (1, 1)))
STIFF = ji.Problem(lambda t, q, v, args: -1e8 * q)
NO_ROOM = Status.CONTACTS_NOT_SOLVED, 0.5, "CONTACTS_NOT_SOLVED: the contact problem of a step has no solution"
FAILURES = {
    # M = 1 - q falls to zero at q = 1, reached at t = 1/3, as v = 2 / sqrt(1 - q)
    "no mass": (SLOWED, 0.0, 2.0, {}, Status.MASS_INVALID, 1 / 3, "MASS_INVALID: the mass matrix was not positive def"),
    "no room": (CLOSING, 0.0, 0.0, {}, *NO_ROOM),
    "no room by Maury": (CLOSING, 0.0, 0.0, {"scheme": ji.Maury()}, *NO_ROOM),
    "overflow": (STIFF, 1.0, 0.0, {"t1": 10.0}, Status.NON_FINITE, None, "h is too large for an explicit scheme"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failures_have_a_bit_a_time_and_words(name):
    """What overflows is left visible."""
    problem, q, v, options, bit, time, words = FAILURES[name]
    found = run(problem, q0=(q,), v0=(v,), **options)
    assert int(found.status) & bit and np.all(np.isfinite(found.q[-1])) <= (bit != Status.NON_FINITE)
    if time:
        assert float(found.failed_at) == pytest.approx(time, abs=0.02)  # within two steps
    with pytest.raises(RuntimeError, match=words):
        found.raise_if_failed()


def test_fixed_point_that_does_not_converge():
    scheme = ji.PaoliSchatzman(force="centred", fixed_point_count=2)
    problem = ji.Problem(lambda t, q, v, args: -50.0 * v)
    found = run(problem, q0=(0.0,), v0=(1.0,), scheme=scheme)
    assert int(found.status) == Status.STEP_UNSTABLE


def test_unknown_number_of_steps():
    with pytest.raises(ValueError, match="steps=N in place of h"):
        jax.jit(lambda h: run(h=h).q)(0.01)
    # with the number of steps given, the same sweep is one trace
    ends = jax.jit(jax.vmap(lambda t1: run(h=None, steps=50, t1=t1, save="final").q[-1]))(np.array([0.5, 1.0]))
    np.testing.assert_allclose(ends[:, 0], 1 - np.array([0.5, 1.0]) ** 2 / 2, atol=1e-12)


def test_double_precision_data_without_x64():
    jax.config.update("jax_enable_x64", False)
    try:
        with pytest.warns(ji.JaximpactWarning, match="q0 is float64 but jax computes in float32"):
            found = ji.solve(BOX, np.ones(2), [0.0, 0.0], t1=1.0, h=0.1)
        assert found.q.dtype == jnp.float32
    finally:
        jax.config.update("jax_enable_x64", True)
