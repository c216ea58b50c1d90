"""Errors of `EventDriven`: the order of its substeps, what a tolerance means on the catalogue's exact motions, and the
estimate that a solution states."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import DOP853, RK45

import jaximpact as ji
from jaximpact import catalogue
from support.breadth import slow

FACTOR = 30  # of the tolerance: errors of substeps add up, and impacts make more of them
SHAW, DAMPED = catalogue.get("shaw-holmes"), catalogue.get("shaw-holmes").case("damped")
OF_DAMPED = {"args": DAMPED.args, "e": DAMPED.restitution, "save": "final"}


def cases(names):
    return [(name, case) for name in names for case in catalogue.get(name).cases]


FEW = ("bouncing-ball", "shaw-holmes", "lift-off", "adly-thieu")
# chains and boxes of a hundred bodies go through XLA, and take minutes
LARGE = {("skew-balls", "d=40"), ("hypercube", "d=100"), ("inelastic-chain", "N=100"), ("inelastic-chain", "N=8")}
OTHERS = [
    (name, case)
    for name, case in cases(x for x in catalogue.names() if x not in (*FEW, "non-uniqueness"))
    if catalogue.get(name).case(case).exact and not catalogue.get(name).problem.slip and (name, case) not in LARGE
]


@pytest.mark.parametrize("order", [5, 8])
def test_a_substep_is_that_of_the_method(order):
    """One step of a pendulum with friction, as scipy makes it; rounding of a dozen stages."""
    force = lambda t, q, v, args: jnp.sin(t) - jnp.sin(q) - 0.3 * v
    f = lambda t, y: np.array([y[1], np.sin(t) - np.sin(y[0]) - 0.3 * y[1]])
    other = {8: DOP853, 5: RK45}[order](f, 0.2, [0.5, -0.4], 0.9, first_step=0.7, rtol=1e3, atol=1e3)
    other.step()
    assert other.t == pytest.approx(0.9, abs=1e-15)
    scheme = ji.EventDriven(rtol=1e3, atol=1e3, order=order)
    found = ji.solve(ji.Problem(force), [0.5], [-0.4], t0=0.2, t1=0.9, steps=1, scheme=scheme, save="final")
    np.testing.assert_allclose([found.q[-1, 0], found.v[-1, 0]], other.y, rtol=0, atol=4e-15)


@pytest.mark.parametrize(("order", "steps"), [(5, [24, 96]), (8, [12, 36])])
def test_order_of_substeps(order, steps):
    """An anharmonic spring that keeps its energy, by one substep a step; the slope is that of the order,
    less a third of one."""
    scheme = ji.EventDriven(rtol=1e9, atol=1e9, order=order)
    problem = ji.Problem(lambda t, q, v, args: -(q**3))
    run = lambda n, by=scheme: ji.solve(problem, [1.0], [0.0], t1=6.0, steps=n, scheme=by, save="final").q[-1, 0]
    error = [abs(run(n) - run(4, ji.EventDriven(1e-14, 1e-14))) for n in steps]
    assert np.log(error[0] / error[1]) / np.log(steps[1] / steps[0]) > order - 1 / 3, error


def check_catalogue(name, label, tolerances=(1e-5, 1e-9, 1e-12), steps=16):
    """At a loose, a usual and the finest tolerance: they are numbers, so that one program serves all."""
    entry = catalogue.get(name)
    case = entry.case(label)
    for rtol in tolerances:
        found = ji.ensemble(
            entry.problem, case.q0, case.v0, t1=np.array([case.t1]), h=case.t1 / steps, e=case.restitution,
            args=case.args, scheme=ji.EventDriven(rtol, rtol), save=1,
        )  # fmt: skip
        exact = case.exact(np.asarray(found.t[0]))
        assert not np.any(found.failed)
        # of round-off: a few units of each of a hundred substeps
        near = FACTOR * rtol + 1e-13
        # velocities at the end: those of a row at an impact are of one side of it
        for x, y in zip((found.q[0], found.v[0, -1]), (exact[0], exact[1][-1]), strict=True):
            atol = near * max(1, np.max(np.abs(y)))
            np.testing.assert_allclose(x, y, rtol=0, atol=atol, err_msg=f"rtol = {rtol:.2e}")
    if case.impulse is not None:
        np.testing.assert_allclose(found.impulse[0, -1], case.impulse, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "label"), [*cases(FEW), *(slow(*x) for x in OTHERS)])
def test_catalogue(name, label):
    """To thirty tolerances where the exact motion is known: flight, rest, releases, accumulation, two walls. Of
    everything else tolerance by tolerance: M(q), curved and moving walls, grazing, balls that meet at once,
    stiff bars."""
    check_catalogue(name, label, *([] if name in FEW else [[10.0**-k for k in range(5, 13)]]))


@pytest.mark.slow
@pytest.mark.parametrize("steps", [4, 5, 16])
@pytest.mark.parametrize(("name", "label"), cases(FEW))
def test_every_tolerance(name, label, steps):
    """Four tolerances a decade: other substeps, one of which may fall upon what an
    estimate or a search does not see."""
    check_catalogue(name, label, 10.0 ** -np.arange(5, 12.1, 0.25), steps)


def test_derivatives_take_few_more_substeps():
    """A forced oscillator's, by order 5: their tolerance is the motion's, so that half as many more would be much;
    ninefold where a change of args was compared with what it leads to within one substep."""
    forced = ji.Problem(lambda t, q, v, args: -args["k"] * q - 0.1 * v + args["a"] * jnp.cos(2.2 * t))
    call = {"t1": 20.0, "steps": 1, "args": {"k": 1.0, "a": 1.0}, "sensitivity": "corrected"}
    schemes = [ji.EventDriven(order=5, changes=changes) for changes in (True, False)]
    taken = [jnp.sum(ji.solve(forced, [0.3], [0.0], scheme=scheme, **call).iterations) for scheme in schemes]
    assert taken[0] < 2 * taken[1], taken


def test_tolerance_is_of_each_coordinate():
    """A fast vibration of a thousand tolerances takes the same substeps beside a slow motion of 1e9,
    and beside what is at rest, as alone.

    q_i'' = -w_i^2 q_i. With one norm of all coordinates it was off by 23 tolerances there, and by .6 alone.
    """
    alone = ji.Problem(lambda t, q, v, args: -(args**2) * q)
    run = lambda w, q: ji.solve(alone, q, 0 * q, t1=20.0, steps=1, args=w, scheme=ji.EventDriven(), save="final").q[0]
    beside = run(np.array([10.0, 1.0, 3.0]), np.array([1e-6, 1.0, 0.0]))
    np.testing.assert_allclose(beside[0], run(np.array([10.0]), np.array([1e-6]))[0], rtol=0, atol=1e-14)


def test_the_estimate_bounds_the_error():
    """Of one motion, and of lanes with a fast and a failed one among them; None of schemes that go by steps.

    Of the substeps of order 8 the estimate is an upper one, ten to a thousand times the errors of motions
    that do not make errors grow.
    """
    start = DAMPED.q0, DAMPED.v0
    for rtol in (1e-5, 1e-11):
        run = {"scheme": ji.EventDriven(rtol, rtol), "steps": 4, "t1": DAMPED.t1} | OF_DAMPED
        found = ji.solve(SHAW.problem, *start, **run)
        exact = DAMPED.exact(np.asarray(found.t))[0]
        off = np.max(np.abs(found.q - exact) / (rtol * (1 + np.abs(exact))))
        assert off < found.error < 3000 * off
    # the second lane overflows
    run["args"] = DAMPED.args | {"amplitude": DAMPED.args["amplitude"] * np.array([1, 1e308, 1.01])}
    lanes = ji.ensemble(SHAW.problem, *start, args_axes=dict.fromkeys(DAMPED.args) | {"amplitude": 0}, **run)
    np.testing.assert_allclose(lanes.error[0], found.error, rtol=1e-6)
    assert np.isfinite(lanes.error[2]) and lanes.failed.tolist() == [False, True, False]
    assert ji.solve(SHAW.problem, *start, t1=0.1, steps=4, **OF_DAMPED).error is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "label", "steps"),
    [
        ("resonant-oscillator", "e=1/2", [24, 96]), ("polar-particle", "e=0.9", [16, 96]),
        ("magnetic-skipping", "e=1", [12, 48]), ("grazing-oscillator", "e=1/2", [12, 64]),
    ],
)  # fmt: skip
def test_order_of_substeps_across_impacts(name, label, steps):
    """By one substep a step, where no impact ends it: the slope from an error of some 1e-6 to one of 1e-13, less a half
    for phases of impacts."""
    entry = catalogue.get(name)
    case = entry.case(label)
    scheme = ji.EventDriven(rtol=1e9, atol=1e-11)  # contacts last below atol
    exact, _ = case.exact(np.array([case.t1]))
    error = []
    for n in steps:
        found = ji.solve(
            entry.problem, case.q0, case.v0, t1=case.t1, steps=n, e=case.restitution, args=case.args, scheme=scheme,
            save="final"
        )  # fmt: skip
        error.append(np.max(np.abs(np.asarray(found.q) - exact)))
    assert np.log(error[0] / error[1]) / np.log(steps[1] / steps[0]) > 7.5 and error[1] < 1e-10, error


@pytest.mark.slow
def test_the_estimate_through_xla_is_that_of_native_code():
    run = {"scheme": ji.EventDriven(1e-11, 1e-11), "steps": 4, "t1": DAMPED.t1} | OF_DAMPED
    native, xla = (ji.solve(SHAW.problem, DAMPED.q0, DAMPED.v0, execution=way, **run) for way in ("native", "xla"))
    # estimates near rounding are rounding
    np.testing.assert_allclose(xla.error, native.error, rtol=0.02)


def test_derivatives_by_loose_tolerances_are_trusted_and_right():
    """Of forced oscillators with no impact near t1; off by no more than a tolerance."""
    starts = np.linspace(0.9, 1.1, 32)[:, None] * DAMPED.q0 + 0.01
    still = np.broadcast_to(DAMPED.v0, starts.shape)
    given = {"t1": DAMPED.t1 - 0.5, "steps": 1, "args": DAMPED.args, "e": DAMPED.restitution, "wrt": ("q0", "v0")}
    run = lambda tol: ji.sensitivities(SHAW.problem, starts, still, scheme=ji.EventDriven(tol, tol), **given)
    exact, of = run(1e-11), lambda found: np.concatenate([x.ravel() for x in jax.tree.leaves(found.jacobian)])
    for tolerance in (1e-3, 1e-4):
        found = run(tolerance)
        assert np.mean(found.trusted) > 0.9
        right = np.repeat(np.asarray(found.trusted)[None], 4, axis=0).ravel()
        assert np.max(np.abs(of(found) - of(exact))[right]) < tolerance * (1 + np.max(np.abs(of(exact))))


def test_an_impact_within_the_error_of_the_motion_of_the_end_is_doubtful():
    """q'' = -q from q = .5 meets the wall q = 0 at v = -.5, and is thrown back: the exact derivative by q0 at t1 near
    pi/2 is known on either side of it."""
    problem = ji.Problem(lambda t, q, v, args: -q, lambda t, q, args: q)
    t1 = np.pi / 2 + np.linspace(-0.1, 0.1, 401)
    ones = np.ones((len(t1), 1))
    scheme = ji.EventDriven(1e-3, 1e-3, order=5)
    found = ji.sensitivities(problem, 0.5 * ones, 0 * ones, t1=t1, steps=1, e=0.5, scheme=scheme, wrt=("q0",))
    dv, trusted = np.asarray(found.jacobian["v"]["q0"]).ravel(), np.asarray(found.trusted)
    # the impact's time does not depend on q0: v = -sin t before it, .5 sin t after it, times q0
    exact = np.where(t1 < np.pi / 2, -np.sin(t1), 0.5 * np.sin(t1))
    assert not np.any(trusted & (np.abs(dv - exact) > 0.1))
    assert np.any(~trusted) and np.mean(trusted[np.abs(t1 - np.pi / 2) > 0.05]) == 1
