"""Errors without an exact motion agree with those against it; what the reference does not know is shown as such."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import catalogue
from jaximpact.analysis import Convergence, prime_steps

STEPS = [211, 503, 1201]


def both(name, case, scheme, **options):
    """A sweep of a case against its exact motion, and without."""
    entry = catalogue.get(name)
    case = entry.case(case)
    options = {"t1": case.t1, "args": case.args, "e": case.restitution, "scheme": scheme, "steps": STEPS} | options
    run = lambda **more: ji.convergence(entry.problem, case.q0, case.v0, **options, **more)
    return run(exact=case.exact, impulse=case.impulse), run()


@pytest.mark.parametrize("scheme", [ji.PaoliSchatzman(), ji.MoreauJean(), ji.EventCorrected()], ids=repr)
def test_errors_are_those_against_the_exact_motion(scheme):
    """Every error is known up to the reference's own, which is estimated: the difference is below it,
    or a tenth of the error."""
    exact, found = both("resonant-oscillator", "e=1/2", scheme)
    assert "EventDriven" in found.reference and found.steps.tolist() == STEPS
    for name in ("position", "velocity"):
        error, truth = getattr(found, name), getattr(exact, name)
        np.testing.assert_allclose(error, truth, rtol=0.1, atol=1.5 * found.floor[name])
        # that is of second order, with four times the steps of the finest run; and it is small against a first order
        assert found.floor[name] < 0.5 * truth[-1]
        assert found.known(name).all()
        assert found.orders()[name] == pytest.approx(exact.orders()[name], abs=0.1)


def test_what_the_reference_does_not_know_is_no_error():
    """Event-located parabolas are exact: all errors are rounding, shown as such, and no order is taken from them."""
    ball = ji.Problem(lambda t, q, v, args: -jnp.ones(1), lambda t, q, args: q, restitution=0.7)
    found = ji.convergence(ball, [1.0], [0.0], t1=3.0, steps=[53, 101], scheme=ji.EventCorrected())
    assert found.floor["position"] < 1e-11 and np.all(found.position < 1e-11)
    assert found.table().count("<") >= 2 and np.isnan(found.orders()["position"])


def test_a_limit_of_its_own():
    """An obtuse corner at e = 0, which `Maury` leaves wrongly: it is measured against itself, and that is said."""
    found = both("obtuse-corner", None, ji.Maury())[1]
    assert "same scheme" in found.reference and len(found.steps) == 2
    assert 0.1 * found.position[-1] < found.floor["position"] < 10 * found.position[-1]


def test_a_table_for_a_paper():
    """Every row of the LaTeX table has as many cells as columns, and the numbers of the text; what is unknown is a
    dash, or below a bound."""
    found = Convergence(
        np.array([101, 1009]), np.array([1e-2, 1e-3]), np.array([3e-3, 1e-17]), np.array([0.25, 0.0]),
        np.full(2, np.nan), np.zeros(2), np.zeros(2), "the exact motion",
        {"position": 1e-16, "velocity": 0.0, "impulse": 0.0},
    )  # fmt: skip
    lines = found.table(latex=True).splitlines()
    assert lines[0] == r"\begin{tabular}{rrrrrr}" and lines[-3] == r"\end{tabular}"
    rows = [line for line in lines if "&" in line]
    assert {row.count("&") for row in rows} == {5} and all(row.endswith(r"\\") for row in rows)
    assert rows[1] == r"101 & $1.00 \times 10^{-2}$ & $3.00 \times 10^{-3}$ & $2.50 \times 10^{-1}$ & -- & $0$ \\"
    assert rows[2] == r"1009 & $1.00 \times 10^{-3}$ & $< 2.00 \times 10^{-16}$ & $0$ & -- & $0$ \\"
    assert lines[-2] == "% against the exact motion" and rows[3] == r"order &  & -- & -- & -- &  \\"


def test_bad_arguments_are_named():
    ball = ji.Problem(lambda t, q, v, args: -jnp.ones(1), lambda t, q, args: q)
    run = lambda **options: ji.convergence(ball, [1.0], [0.0], **{"t1": 0.4, "steps": [11, 23]} | options)
    zero = lambda t: np.zeros((len(t), 1))
    for words, kind, options in (
        ("phases must be a whole number", ValueError, {"phases": 1.5}),
        ("steps must be at least two", ValueError, {"steps": 11}),
        ("must not exceed", ValueError, {"steps": [11, 2**40]}),
        ("must be real numbers", TypeError, {"exact": lambda t: (1j * zero(t), zero(t))}),
        ("is a masked array", TypeError, {"exact": lambda t: (np.ma.masked_array(zero(t), zero(t) == 0), zero(t))}),
        (r"must return a pair \(q, v\)", ValueError, {"exact": zero}),
        ("exact must be a function", TypeError, {"exact": 3}),
        ("impulse is a masked array", TypeError, {"exact": zero, "impulse": np.ma.masked_array([0.0], [True])}),
    ):
        with pytest.raises(kind, match=words):
            run(**options)
    for first, last in ((0, 10), (10, 3), (1, float("inf"))):
        with pytest.raises(ValueError, match=r"first|last"):
            prime_steps(first, last, 3)


# over tolerances

DAMPED = catalogue.get("shaw-holmes"), catalogue.get("shaw-holmes").case("damped")
RTOLS = [1e-5, 1e-7, 1e-9]


def by_tolerance(**options):
    entry, case = DAMPED
    given = {"t1": case.t1, "args": case.args, "e": case.restitution, "rtols": RTOLS} | options
    return ji.convergence(entry.problem, case.q0, case.v0, **given)


def test_errors_over_tolerances_are_in_proportion(tmp_path):
    """The scheme follows from rtols; order 1 over rtol, and the errors against a hundredth of the smallest are those
    against the exact motion."""
    case = DAMPED[1]
    exact, found = by_tolerance(exact=case.exact, impulse=case.impulse), by_tolerance(scheme=ji.EventDriven())
    np.testing.assert_array_equal(exact.rtols, RTOLS)
    for name in ("position", "velocity", "impulse"):
        assert exact.orders()[name] == pytest.approx(1, abs=0.15)
        np.testing.assert_allclose(getattr(found, name), getattr(exact, name), rtol=0.02)
    assert np.all(exact.position < exact.estimate * exact.rtols)
    assert "EventDriven with rtol = 1e-11" in found.reference and "error/rtol" in found.table()
    assert found.plot(tmp_path / "tolerances.png").stat().st_size > 5000
    found.save(tmp_path / "tolerances.npz")
    np.testing.assert_array_equal(ji.load(tmp_path / "tolerances.npz").estimate, found.estimate)


def test_tolerances_that_cannot_be_are_said():
    for words, kind, options in (
        ("rtols must be at least two", ValueError, {"rtols": [1e-6]}),
        ("rtols must be at least two", ValueError, {"rtols": [1e-6, -1e-7]}),
        ("below what float64 can hold", ValueError, {"rtols": [1e-6, 1e-16]}),
        ("MoreauJean goes by steps", ValueError, {"scheme": ji.MoreauJean()}),
        ("phases and graph belong to fixed steps", ValueError, {"phases": 3}),
        ("EventDriven chooses its own", ValueError, {"steps": [11, 23]}),
    ):
        with pytest.raises(kind, match=words):
            by_tolerance(**options)
