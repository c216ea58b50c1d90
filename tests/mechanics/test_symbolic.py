"""Systems from SymPy's mechanics: the same as written by hand; what cannot be taken is named."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sympy
from sympy.physics.mechanics import (
    KanesMethod,
    LagrangesMethod,
    Particle,
    Point,
    ReferenceFrame,
    dynamicsymbols,
)

import jaximpact as ji
from support.breadth import slow_but

T = dynamicsymbols._t
A, B = dynamicsymbols("alpha beta")
M, L, G, K = sympy.symbols("m l g k")
ARGS = {"m": 1.3, "l": 0.7, "g": 9.81, "wall": 0.5}
TIP = L * (sympy.sin(A) + sympy.sin(B))
WALL = sympy.Symbol("wall") - TIP
EXACT = 1e-12  # of numbers of about one, as few operations as these lose


def mass(q, args):
    c = jnp.cos(q[0] - q[1])
    return args["m"] * args["l"] ** 2 * jnp.array([[2.0, c], [c, 1.0]])


def force(t, q, v, args):
    """By hand: two equal masses on rods of equal length, angles from the downward vertical."""
    m, length, g = args["m"], args["l"], args["g"]
    s = jnp.sin(q[0] - q[1])
    coriolis = m * length**2 * s * jnp.array([-(v[1] ** 2), v[0] ** 2])
    return coriolis - m * g * length * jnp.array([2 * jnp.sin(q[0]), jnp.sin(q[1])])


def energy(t, q, v, args):
    return 0.5 * v @ mass(q, args) @ v - args["m"] * args["g"] * args["l"] * (2 * jnp.cos(q[0]) + jnp.cos(q[1]))


def gaps(t, q, args):
    return jnp.array([args["wall"] - args["l"] * (jnp.sin(q[0]) + jnp.sin(q[1]))])


BY_HAND = ji.Problem(force, gaps, mass, 0.6, energy)


def lagranges():
    v, w = A.diff(T), B.diff(T)
    kinetic = M * L**2 * (v**2 + w**2 / 2 + v * w * sympy.cos(A - B))
    return LagrangesMethod(kinetic + M * G * L * (2 * sympy.cos(A) + sympy.cos(B)), [A, B])


def kanes(kinematics=lambda u, v: [A.diff(T) - u, B.diff(T) - v], form=True, **options):
    """The same; the speeds u by their kinematic equations, zero."""
    u, v = dynamicsymbols("u v")
    frame, origin = ReferenceFrame("N"), Point("O")
    origin.set_vel(frame, 0)
    upper, lower = Point("P"), Point("Q")
    for point, angles in ((upper, (A,)), (lower, (A, B))):
        place = sum((L * sympy.sin(x) * frame.x - L * sympy.cos(x) * frame.y for x in angles), 0 * frame.x)
        point.set_pos(origin, place)
        point.set_vel(frame, place.dt(frame))
    equations = kinematics(u, v)
    rates = sympy.solve(equations, [A.diff(T), B.diff(T)])
    for point in (upper, lower):
        point.set_vel(frame, point.vel(frame).subs(rates))
    method = KanesMethod(frame, q_ind=[A, B], u_ind=[u, v], kd_eqs=equations, **options)
    if form:
        method.kanes_equations(
            [Particle("one", upper, M), Particle("two", lower, M)],
            [(upper, -M * G * frame.y), (lower, -M * G * frame.y)],
        )
    return method


STATEMENTS = {
    "Lagrange": lagranges,
    "Kane": kanes,
    "Kane, other speeds": lambda: kanes(lambda u, v: [A.diff(T) - u, B.diff(T) + A.diff(T) - 2 * v]),
    "Kane, speeds by configuration and time": lambda: kanes(
        lambda u, v: [A.diff(T) * (2 + sympy.cos(B)) - u - sympy.sin(T), B.diff(T) - v * (1 + A**2)]
    ),
}


# one of each method, the general one of Kane's
FEW = "Lagrange", "Kane, speeds by configuration and time"


@pytest.fixture(scope="module", params=slow_but(FEW, STATEMENTS))
def problem(request):
    return ji.from_sympy(STATEMENTS[request.param](), {"wall": WALL}, restitution=0.6)


def test_the_same_as_by_hand(problem):
    random = np.random.default_rng(0)
    for q, v in random.normal(size=(5, 2, 2)):
        for name, arguments in {
            "force": (0.3, q, v),
            "constraints": (0.3, q),
            "mass": (q,),
            "energy": (0.3, q, v),
        }.items():
            arguments = [x if isinstance(x, float) else jnp.asarray(x) for x in arguments]
            found, exact = getattr(problem, name), getattr(BY_HAND, name)
            if found is None:
                assert name == "energy"  # which Kane's method does not know
            elif name == "force":
                # where speeds are others the forcing is too; the acceleration is not
                found, exact = found(*arguments, ARGS), exact(*arguments, ARGS)
                np.testing.assert_allclose(found, exact, rtol=0, atol=30 * EXACT)
            else:
                np.testing.assert_allclose(found(*arguments, ARGS), exact(*arguments, ARGS), rtol=0, atol=EXACT)
    assert problem.coordinates == ("alpha", "beta") and problem.contacts == ("wall",) and problem.restitution == 0.6


@pytest.mark.slow
def test_the_same_motion_and_derivative():
    """Through impacts; rounding grows by what the motion amplifies it, less than a hundred times here."""
    problem = ji.from_sympy(lagranges(), [WALL], restitution=0.6)
    options = {"t1": 1.0, "steps": 200, "args": ARGS}
    found, exact = (ji.solve(x, [0.3, 0.1], [1.0, 2.0], **options) for x in (problem, BY_HAND))
    assert found.impulse[-1, 0] > 0.1
    for name in ("q", "v", "energy"):
        np.testing.assert_allclose(getattr(found, name), getattr(exact, name), rtol=0, atol=100 * EXACT)

    state = jnp.array([0.3, 0.1]), jnp.array([1.0, 2.0])
    slopes = [jax.jacrev(lambda args, x=x: x.force(0.0, *state, args))(ARGS) for x in (problem, BY_HAND)]
    for name in ("m", "l", "g"):
        np.testing.assert_allclose(slopes[0][name], slopes[1][name], rtol=0, atol=100 * EXACT, err_msg=name)


def test_single_precision_and_inequalities():
    x, floor = dynamicsymbols("x"), sympy.Symbol("floor")
    method = LagrangesMethod(M * x.diff(T) ** 2 / 2 - M * G * x, [x])
    problem = ji.from_sympy(method, [x >= floor * sympy.sin(T), sympy.Integer(3) > x], units="m")
    args = {"m": np.float32(2), "g": np.float32(9.81), "floor": np.float32(0.1)}
    found = ji.solve(problem, np.ones(1, np.float32), np.zeros(1, np.float32), t1=1.0, h=0.01, args=args)
    assert found.q.dtype == np.float32 and found.impulse.shape[-1] == 2 and not found.failed
    np.testing.assert_allclose(problem.constraints(0.5, jnp.ones(1), args), [1 - 0.1 * np.sin(0.5), 2.0], rtol=1e-6)
    assert problem.energy(0.0, jnp.ones(1), jnp.ones(1), args) == pytest.approx(1 + 2 * 9.81)
    # no parameters, no args
    free = ji.from_sympy(LagrangesMethod(x.diff(T) ** 2 / 2, [x]))
    assert free.constraints is None and ji.solve(free, [0.0], [1.0], t1=1.0, h=0.1).q[-1, 0] == pytest.approx(1.0)


def test_what_cannot_be_taken_is_named():
    u, v = dynamicsymbols("u v")
    x, load = dynamicsymbols("x load")
    free = x.diff(T) ** 2 / 2
    for method, constraints, kind, match in (
        (free, (), TypeError, "must be a KanesMethod or a LagrangesMethod .* got "),
        (LagrangesMethod(free, [x], nonhol_coneqs=[x.diff(T) - 1]), (), ValueError, "it has nonholonomic constraints"),
        (LagrangesMethod(free + load * x, [x]), (), ValueError, r"the forcing holds load\(t\), which is no coordinate"),
        (LagrangesMethod(T * free, [x]), (), ValueError, "the mass matrix depends on the time"),
        (LagrangesMethod(x.diff(T) ** 4, [x]), (), ValueError, "the mass matrix depends on the time or a velocity"),
        (LagrangesMethod(free, [x]), [x.diff(T)], ValueError, "constraint 0 depends on a velocity"),
        (LagrangesMethod(free, [x]), [x, load - x], ValueError, r"constraint 1 holds load\(t\)"),
        (LagrangesMethod(free, [x]), x, TypeError, r"for one gap write \[gap\]"),
        (LagrangesMethod(free, [x]), [sympy.true], TypeError, "constraints must be expressions, or x >= y, got True"),
        (LagrangesMethod(free, [x]), ["x"], TypeError, "got the text 'x'"),
        (kanes(form=False), (), ValueError, r"call method\.kanes_equations"),
    ):
        with pytest.raises(kind, match=match):
            ji.from_sympy(method, constraints)
    frame = ReferenceFrame("N")
    rolling = KanesMethod(
        frame,
        q_ind=[A, B],
        u_ind=[u],
        u_dependent=[v],
        velocity_constraints=[u - v],
        kd_eqs=[A.diff(T) - u, B.diff(T) - v],
    )
    with pytest.raises(ValueError, match=r"velocity constraints \(nonholonomic, such as rolling\), u\(t\) - v\(t\):"):
        ji.from_sympy(rolling)


def dependent(joints, rates, u, v, frame, q=(A, B)):
    """Kane's method with dependent coordinates and speeds."""
    return KanesMethod(
        frame,
        q_ind=q[:1],
        q_dependent=q[1:],
        configuration_constraints=joints,
        u_ind=[u],
        u_dependent=[v],
        velocity_constraints=rates,
        kd_eqs=[q[0].diff(T) - u, q[1].diff(T) - v],
    )


def test_parameters_are_named():
    problem = ji.from_sympy(lagranges(), {"wall": WALL})
    with pytest.raises(ValueError, match=r"args has no 'g'.*: the parameters are g, l, m"):
        ji.solve(problem, [0.0, 0.0], [0.0, 0.0], t1=1.0, h=0.1, args={"m": 1.0, "l": 1.0})
    with pytest.raises(TypeError, match="args must be a dict with g, l, m"):
        ji.solve(problem, [0.0, 0.0], [0.0, 0.0], t1=1.0, h=0.1, args=(1.0, 2.0))
    twin = sympy.Symbol("m", positive=True)
    with pytest.raises(ValueError, match="two different symbols are called 'm'"):
        ji.from_sympy(lagranges(), [twin - M * A])
    with pytest.raises(ValueError, match="contacts: the names are given twice"):
        ji.from_sympy(lagranges(), {"wall": WALL}, contacts=("wall",))


def test_a_joint_is_an_expression():
    """A rod in the plane, from the Lagrangian of a free particle: its length, and its pull at rest."""
    x, y = dynamicsymbols("x y")
    free = LagrangesMethod(M * (x.diff(T) ** 2 + y.diff(T) ** 2) / 2 - M * G * y, [x, y])
    free.form_lagranges_equations()
    rod = ji.from_sympy(free, joints=[(x**2 + y**2 - L**2) / 2])
    found = ji.solve(rod, [0.0, -0.7], [0.0, 0.0], t1=1.0, steps=10, args=ARGS, scheme=ji.MoreauJean())
    np.testing.assert_allclose(found.q[-1], [0.0, -0.7], atol=EXACT)
    # J' l = m g
    np.testing.assert_allclose(found.joint_impulse[-1], -1.3 * 9.81 / 0.7, atol=100 * EXACT)
    # and as a constraint of either method
    length = (x**2 + y**2 - L**2) / 2
    bound = LagrangesMethod(M * (x.diff(T) ** 2 + y.diff(T) ** 2) / 2 - M * G * y, [x, y], hol_coneqs=[length])
    frame, (u, v), origin = ReferenceFrame("N"), dynamicsymbols("u v"), Point("O")
    origin.set_vel(frame, 0)
    place = origin.locatenew("P", x * frame.x + y * frame.y)
    place.set_vel(frame, u * frame.x + v * frame.y)
    kane = dependent([length], [x * u + y * v], u, v, frame, (x, y))
    kane.kanes_equations([Particle("bob", place, M)], [(place, -M * G * frame.y)])
    swings = [
        ji.solve(problem, [0.7, 0.0], [0.0, 0.0], t1=1.0, steps=10, args=ARGS, scheme=ji.MoreauJean())
        for problem in (rod, ji.from_sympy(bound), ji.from_sympy(kane))
    ]
    for found in swings[1:]:
        np.testing.assert_allclose(found.q, swings[0].q, rtol=0, atol=EXACT)
        np.testing.assert_allclose(found.joint_impulse, swings[0].joint_impulse, rtol=0, atol=100 * EXACT)
    other = dependent([length], [u + y * v], u, v, frame, (x, y))
    other.kanes_equations([Particle("bob", place, M)], [(place, -M * G * frame.y)])
    with pytest.raises(ValueError, match=r"velocity constraints, u\(t\) \+ v\(t\)\*y\(t\), are not the derivatives"):
        ji.from_sympy(other)
    with pytest.raises(ValueError, match="joint 0 depends on a velocity"):
        ji.from_sympy(free, joints=[x.diff(T)])
    with pytest.raises(TypeError, match="joints must be a sequence"):
        ji.from_sympy(free, joints=x - y)


def test_slip_friction_and_switches_are_expressions():
    """A disk thrown along a rough floor rolls at two thirds of its speed from t* = v0 / (3 mu g) on,
    a third of t* v0 / 2 ahead of that."""
    x, y, turn = dynamicsymbols("x y theta")
    radius, mu = sympy.symbols("R mu")
    inertia = M * radius**2 / 2
    kinetic = M * (x.diff(T) ** 2 + y.diff(T) ** 2) / 2 + inertia * turn.diff(T) ** 2 / 2
    disk = ji.from_sympy(
        LagrangesMethod(kinetic - M * G * y, [x, y, turn]),
        {"floor": y - radius},
        slip=[x.diff(T) + radius * turn.diff(T)],
        friction=mu,
    )

    args = ARGS | {"R": 0.2, "mu": 0.3}
    found = ji.solve(disk, [0.0, 0.2, 0.0], [1.0, 0.0, 0.0], t1=1.0, steps=2000, args=args, scheme=ji.MoreauJean())
    assert found.status == 0
    np.testing.assert_allclose(found.v[-1], [2 / 3, 0, -2 / 3 / 0.2], atol=1e-9)
    # of first order: h times the speed
    assert found.q[-1, 0] == pytest.approx(2 / 3 + 1 / (18 * 0.3 * 9.81), abs=5e-4)

    pushed = ji.from_sympy(LagrangesMethod(M * x.diff(T) ** 2 / 2, [x]), switches=[x - K])
    assert pushed.switch_values(0.0, jnp.array([2.0]), jnp.zeros(1), ARGS | {"k": 0.5}) == 1.5
    with pytest.raises(
        TypeError, match=r"slip must be a sequence of expressions: for one contact write \[expression\]"
    ):
        ji.from_sympy(lagranges(), [WALL], slip=A.diff(T), friction=0.1)
    with pytest.raises(ValueError, match="friction 0 depends on the time or the motion"):
        ji.from_sympy(lagranges(), [WALL], slip=[A.diff(T)], friction=A)
