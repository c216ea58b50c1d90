"""A scheme of one's own runs in commands; what every scheme owes is asked of it in
`test_methods` and `test_executions`."""

import warnings
from dataclasses import dataclass, fields

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import catalogue, extend
from jaximpact.cli import main
from support.breadth import slow
from support.methods import SCHEMES
from support.symplectic_euler import SymplecticEuler, Unfinished


def test_commands_take_a_scheme_of_ones_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(
        [
            "run",
            "bouncing-ball",
            "--scheme",
            "support.symplectic_euler:SymplecticEuler",
            "--h",
            "1e-2",
            "--out",
            "motion",
        ]
    )
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


def made_of(scheme):
    """The same scheme as an object of a class of its own, `Mine`, in which nothing is changed."""
    kind = type(scheme)
    mine = jax.tree_util.register_dataclass(type("Mine", (kind,), {}))
    return mine(**{option.name: getattr(scheme, option.name) for option in fields(scheme)})


def alike(one, other):
    """Asserts that two results have the same numbers, bit for bit."""
    assert type(one) is type(other)
    for name, x in vars(one).items():
        if isinstance(x, np.ndarray | jax.Array):
            np.testing.assert_array_equal(x, getattr(other, name), err_msg=name)


def read_by_traits(entry, case, scheme, steps, again=True):
    """Motions, tables of impacts, interpolation and derivatives of a case of the catalogue through a scheme
    and through a class made of it.

    ``again``: whether motions are run again from rows, and differentiated, which takes seconds.
    """
    e = 0.0 if scheme.traits.restitution == "none" else case.restitution
    options = {"t1": case.t1, "steps": steps, "args": case.args, "e": e}
    both = []
    for one in (scheme, made_of(scheme)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks
            motion = ji.solve(entry.problem, case.q0, case.v0, scheme=one, **options)
            found = [motion, motion.at(np.linspace(0, case.t1, 7 * steps // 2))]
            if len(motion.impulse[0]) and np.all(np.isfinite(motion.impulse)):
                found.append(motion.impacts(entry.problem, args=case.args, e=e))
            if one.traits.locates and again:
                found.append(motion.at([0.4 * case.t1], entry.problem, args=case.args, e=e))
                found.append(ji.sensitivities(entry.problem, case.q0, case.v0, wrt=("v0",), scheme=one, **options))
        both.append(found)
    for one, other in zip(*both, strict=True):
        alike(one, other)
    assert both[1][0].timing == ("Mine", *both[0][0].timing[1:])


@pytest.mark.parametrize(
    "name", ["event-corrected", *map(slow, ["event-driven", "paoli-schatzman", "maury", "moreau-jean"])]
)
def test_a_class_made_of_a_scheme_is_read_as_that_scheme(name):
    """Nothing asks the class for its name: all numbers are the same bit for bit, those between rows too."""
    entry = catalogue.get("bouncing-ball")
    read_by_traits(entry, entry.case("e=1/2"), SCHEMES[name].scheme, 40, again=False)


@pytest.mark.slow
@pytest.mark.parametrize("entry", catalogue.entries(), ids=lambda entry: entry.name)
def test_the_catalogue_through_classes_made_of_its_schemes(entry):
    """As above, for every problem through every scheme that covers it."""
    covered = 0
    for scheme in (ji.EventCorrected(), ji.EventDriven(), ji.PaoliSchatzman(), ji.Maury(), ji.MoreauJean()):
        try:
            ji.solve(entry.problem, entry.case().q0, entry.case().v0, t1=entry.case().t1, steps=40,
                args=entry.case().args, scheme=scheme, save="final",
                     e=0.0 if scheme.traits.restitution == "none" else entry.case().restitution)  # fmt: skip
        except ValueError:
            continue
        read_by_traits(entry, entry.case(), scheme, 40)
        covered += 1
    assert covered >= 2


def test_a_class_made_of_a_scheme_records_impacts_with_steps_of_its_own():
    """What a class changes is kept where impacts are recorded: here a tolerance of 1e-3 in place of 1e-9."""

    @jax.tree_util.register_dataclass
    @dataclass(frozen=True)
    class Loose(ji.EventDriven):
        worse: float = 1e6

        def tolerance(self, dtype):
            return jax.tree.map(lambda x: self.worse * x, super().tolerance(dtype))

    problem = ji.Problem(lambda t, q, v, args: -1000 * q, lambda t, q, args: q + 0.1)
    errors = []
    for scheme in (ji.EventDriven(), Loose()):
        found = ji.solve(problem, [0.0], [-4.0], t1=3.0, e=1.0, scheme=scheme, save=ji.Events(impacts=10)).events
        # it swings from -0.1 upwards and back in a time that is the same each time
        times = np.asarray(found.t)
        errors.append(np.abs(np.diff(times) - np.diff(times)[0]).max())
    # tolerances of 1e-9 and 1e-3
    assert errors[0] < 1e-8 and errors[1] > 1e-6


def test_a_class_that_jax_does_not_know_is_told():
    class Mine(ji.EventCorrected):
        pass

    with pytest.raises(
        TypeError, match=r"Mine is a class that jax does not know: write @jax\.tree_util\.register_dataclass"
    ):
        ji.solve(ji.Problem(lambda t, q, v, a: -q), [1.0], [0.0], t1=1.0, h=0.1, scheme=Mine())
