"""A scheme of one's own runs in commands and in reverse mode; what every scheme owes is asked of it in `test_methods`."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from symplectic_euler import SymplecticEuler, Unfinished

import jaximpact as ji
from jaximpact import catalogue, extend
from jaximpact.cli import main

T1, E = 0.9, 0.7


def ball(y0, steps, e=E):
    problem = ji.Problem(lambda t, q, v, args: jnp.array([-9.81]), lambda t, q, args: q)
    found = ji.solve(problem, jnp.stack([y0]), [-1.3], t1=T1, steps=steps, e=e, scheme=SymplecticEuler())
    return jnp.stack([found.q[-1, 0], found.v[-1, 0]])


def test_commands_take_a_scheme_of_ones_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(["run", "bouncing-ball", "--scheme", "symplectic_euler:SymplecticEuler", "--h", "1e-2", "--out", "motion"])
    assert "SymplecticEuler" in capsys.readouterr().out


def test_a_contact_solver_of_ones_own():
    """Projected Gauss-Seidel, in ten lines, finds what the exact solver finds, to its tolerance."""

    @jax.tree_util.register_dataclass
    @dataclass(frozen=True)
    class GaussSeidel(extend.ContactSolver):
        tolerance: float = 1e-12
        max_linearisations: int = 50

        def impulses(self, contacts, offset, tolerance, guess):
            a, d = contacts.delassus(), jnp.where(contacts.diagonal() > 0, contacts.diagonal(), 1)

            def sweep(_, x):
                for i in range(len(offset)):
                    x = x.at[i].set(jnp.maximum(0, x[i] - (a[i] @ x + offset[i]) / d[i]))
                return x

            none = jnp.zeros((), jnp.int32)
            return extend.Impulses(jax.lax.fori_loop(0, 200, sweep, guess), none + 200, none)

    entry = catalogue.get("groove")
    case = entry.case("e=1/2")
    options = {"t1": case.t1, "steps": 200, "args": case.args, "e": case.restitution, "save": "final"}
    found, exact = (
        ji.solve(entry.problem, case.q0, case.v0, projection=projection, **options)
        for projection in (GaussSeidel(), ji.ActiveSet())
    )
    # both to 1e-12 a step
    np.testing.assert_allclose(found.q, exact.q, atol=1e-9)
    np.testing.assert_allclose(found.impulse, exact.impulse, atol=1e-9)


@pytest.mark.slow
def test_reverse_mode_is_forward_mode():
    forward, backward = (
        transform(lambda y, e: ball(y, 300, e), (0, 1))(1.0, E) for transform in (jax.jacfwd, jax.jacrev)
    )
    np.testing.assert_allclose(backward, forward, rtol=1e-9)  # the transposed program, to round-off


def test_what_is_no_scheme_is_told():
    with pytest.raises(TypeError, match="abstract method"):
        Unfinished()
    with pytest.raises(TypeError, match="scheme must be a scheme such as PaoliSchatzman"):
        ji.solve(ji.Problem(lambda t, q, v, a: -q), [1.0], [0.0], t1=1.0, h=0.1, scheme=object())


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Plastic(SymplecticEuler):
    """A scheme for e = 0 alone with an implicit force, and so without a bound of stability."""

    traits = extend.Traits(restitution="none", explicit=0.0)


def test_traits_say_what_is_covered():
    # the wall is out of reach: one that is near stops the body in the air, at no velocity along which to look
    problem = ji.Problem(lambda t, q, v, args: -1e6 * q, lambda t, q, args: q + 1e300)
    options = {"t1": 1.0, "steps": 50, "save": "final"}
    with pytest.raises(ValueError, match=r"restitution is 0.5, but Plastic treats inelastic impacts only"):
        ji.solve(problem, [0.1], [0.0], e=0.5, scheme=Plastic(), **options)
    # jax takes two classes without fields for one, and its tables confuse them now and then
    motions = [
        jax.make_jaxpr(lambda q, s=scheme: ji.solve(problem, q, [0.0], e=0.0, scheme=s, **options).q)(jnp.array([0.1]))
        for scheme in (SymplecticEuler(), Plastic())
    ]
    of_one, of_other = (motion.eqns[-1].params["function"] for motion in motions)
    assert of_one != of_other
    # h^2 K = 400, far beyond 4: told of the explicit scheme alone
    bits = [
        int(ji.solve(problem, [0.1], [0.0], e=0.0, scheme=scheme, **options).status) & int(ji.Status.STEP_UNSTABLE)
        for scheme in (SymplecticEuler(), Plastic())
    ]
    assert bits == [int(ji.Status.STEP_UNSTABLE), 0]
