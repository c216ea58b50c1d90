"""Second derivatives: right, to the order of the scheme, or an error that says what to use; in every nesting."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact.extend import Motion, Solved
from support.breadth import slow_but

G, E, T1 = 9.81, 0.7, 0.7
BALL = ji.Problem(lambda t, q, v, args: jnp.full_like(q, -G), lambda t, q, args: q, restitution=E)
BOWL = ji.Problem(
    lambda t, q, v, args: jnp.array([0.0, -G]), lambda t, q, args: jnp.stack([1 - q @ q]), restitution=0.5
)
FORWARD = {
    "forward in forward": lambda f: jax.jacfwd(jax.jacfwd(f)),
    "forward in reverse": lambda f: jax.jacrev(jax.jacfwd(f)),
}
REVERSE = {
    "hessian": jax.hessian,
    "grad of grad": lambda f: jax.grad(jax.grad(f)),
    "reverse in forward": lambda f: jax.jacfwd(jax.jacrev(f)),
    "tangent of grad": lambda f: lambda x: jax.jvp(jax.grad(f), (x,), (1.0,))[1],
    "in jit and vmap": lambda f: lambda x: jax.jit(jax.vmap(jax.hessian(f)))(jnp.stack([x, x])),
}


def height(scheme, sensitivity="corrected", steps=7, execution="auto", save="final"):
    """y0 -> q(t1) of a ball that bounces once."""

    def final(y):
        options = {
            "t1": T1,
            "steps": steps,
            "scheme": scheme,
            "save": save,
            "sensitivity": sensitivity,
            "execution": execution,
        }
        return ji.solve(BALL, jnp.stack([y]), [0.0], **options).q[-1, 0]

    return final


def exact(y):
    """The same: it falls for sqrt(2 y/g), and leaves at E times its speed."""
    speed = jnp.sqrt(2 * G * y)
    left = T1 - speed / G
    return E * speed * left - 0.5 * G * left**2


@pytest.mark.parametrize("nesting", slow_but(["grad of grad"], FORWARD | REVERSE))
@pytest.mark.parametrize(
    "scheme",
    [ji.PaoliSchatzman(), pytest.param(ji.MoreauJean(), marks=pytest.mark.slow)],
    ids=lambda s: type(s).__name__,
)
def test_corrected_steps_have_no_second_derivative(scheme, nesting):
    with pytest.raises(
        ValueError, match=r"second derivatives through solve\(sensitivity='corrected'\).*Use scheme=EventC"
    ):
        (FORWARD | REVERSE)[nesting](height(scheme))(jnp.asarray(1.0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nesting", "steps"),
    [
        *((name, 7) for name in REVERSE),
        ("hessian", 40),  # from 32 on in segments
    ],
)
def test_reverse_mode_inside_is_refused_or_right(nesting, steps):
    """Where it walks back through the steps: refused by versions of jax that forget rules there,
    else exact but for rounding."""
    try:
        found = REVERSE[nesting](height(ji.EventCorrected(), steps=steps, execution="xla"))(jnp.asarray(1.0))
    except ValueError as error:
        assert re.search(r"reverse mode inside.*Use forward mode inside", str(error)), error
    else:
        np.testing.assert_allclose(found, jax.hessian(exact)(1.0) * np.ones(np.shape(found)), rtol=1e-10)


@pytest.mark.parametrize("nesting", slow_but(["grad of grad"], REVERSE))
def test_reverse_mode_of_few_inputs_is_forward_mode_inside(nesting):
    """There it has a second derivative, of all rows too: exact but for rounding, as parabolas are."""
    found = REVERSE[nesting](height(ji.EventCorrected(), save="all"))(jnp.asarray(1.0))
    np.testing.assert_allclose(found, jax.jit(jax.hessian(exact))(1.0) * np.ones(np.shape(found)), rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("nesting", FORWARD | REVERSE)
def test_every_nesting_with_all_rows_by_steps_of_any_length(nesting):
    """Exact but for rounding: Runge-Kutta methods are, of parabolas."""
    found = (FORWARD | REVERSE)[nesting](height(ji.EventDriven(), save="all"))(jnp.asarray(1.0))
    np.testing.assert_allclose(found, jax.grad(jax.grad(exact))(1.0) * np.ones(np.shape(found)), rtol=1e-10)


def test_second_derivatives_are_operations_as_first_ones_are():
    """So that native code makes them: written out, XLA compiled their steps in six times the time."""
    for second in (jax.jacfwd(jax.jacfwd(height(ji.EventCorrected()))), jax.hessian(height(ji.EventCorrected()))):
        program = str(jax.make_jaxpr(second)(1.0))
        assert "motion" in program and "while" not in program and "scan" not in program


@pytest.mark.slow
@pytest.mark.parametrize("order", [2, 3])
def test_one_located_step(order):
    """Across an impact a step of parabolas is exact, and so are its second and third derivatives."""
    scheme, solved, h = ji.EventCorrected(), Solved(ji.ActiveSet()), 0.02

    def step(x):
        motion = Motion(x[:1], x[1:], jnp.zeros(()), h, jnp.asarray(h), 1, jnp.asarray(E), None)
        first, _ = scheme.init(BALL, solved, motion)
        last, _ = scheme.step(BALL, solved, motion, first)
        return jnp.concatenate([last.q, last.v])

    def law(x):
        speed = jnp.sqrt(x[1] ** 2 + 2 * G * x[0])
        left = h - (x[1] + speed) / G
        return jnp.stack([E * speed * left - 0.5 * G * left**2, E * speed - G * left])

    x = jnp.array([0.01, -2.0])
    of = [step, law]
    for _ in range(order):
        of = [jax.jacfwd(f) for f in of]
    found, expected = jax.jit(of[0])(x), of[1](x)
    np.testing.assert_allclose(found, expected, atol=1e-12 * np.max(np.abs(expected)))


@pytest.mark.slow
@pytest.mark.parametrize("nesting", FORWARD)
def test_second_derivatives_across_located_impacts_are_exact(nesting):
    np.testing.assert_allclose(
        jax.jit(FORWARD[nesting](height(ji.EventCorrected())))(1.0), jax.grad(jax.grad(exact))(1.0), rtol=1e-12
    )


@pytest.mark.slow
@pytest.mark.parametrize("nesting", FORWARD)
def test_second_derivatives_of_the_discrete_map_are_differences_of_first_ones(nesting):
    """In a bowl, with an impact: the second derivative is the difference of first ones, or of the map itself."""

    def final(x):
        options = {"t1": 0.8, "steps": 11, "save": "final", "sensitivity": "discrete"}
        return ji.solve(BOWL, jnp.stack([x, 0.1]), [0.3, 0.0], **options).q[-1, 0]

    value = jax.jit(final)
    x, d = 0.2, 1e-3
    difference = (value(x + d) - 2 * value(x) + value(x - d)) / d**2
    # d^2/12 times the fourth derivative, and round-off 4 eps/d^2
    assert jax.jit(FORWARD[nesting](final))(x) == pytest.approx(float(difference), abs=1e-4)


@pytest.mark.slow
def test_without_constraints_all_nestings_work():
    """A spring: q(t1) = x cos(t1) is linear, x^2 of it is not; by every nesting."""
    spring = ji.Problem(lambda t, q, v, args: -q * (1 + q * q))

    def final(x):
        return ji.solve(spring, jnp.stack([x]), [0.0], t1=0.5, steps=5, save="final").q[-1, 0]

    found = [nest(final)(0.7) for nest in (FORWARD | {"hessian": jax.hessian}).values()]
    np.testing.assert_allclose(found, found[0], rtol=1e-12)
    slope = jax.jit(jax.grad(final))
    assert found[0] == pytest.approx(float(slope(0.7 + 1e-5) - slope(0.7 - 1e-5)) / 2e-5, rel=1e-6)
