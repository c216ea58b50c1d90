"""nosnoc: finite elements with switch detection (FESD), impacts by time-freezing.

A. Nurkanović, T. Sartor, S. Albrecht, M. Diehl, A time-freezing approach for numerical optimal control of nonsmooth
differential equations with state jumps, IEEE Control Systems Letters 5 (2021) 439-444: behind a wall an auxiliary
spring and damper turn the velocity over, v to -e v, while the clock stands still, and the impact becomes two switches
of a piecewise smooth system. The spring is made such that each impact takes TURN of numerical time, whatever e and the
speed, so that t1 is reached after t1 + TURN for each impact.

nosnoc simulates by solving a complementarity problem for each step, and returns no derivative of it. Its equations have
one: those that hold at the solution, and the variables on their bounds, are differentiated here by the implicit
function theorem, step by step. Parameters are states that do not change. Walls are straight: behind curved ones the
auxiliary motion changes the direction of the impulse.
"""

import ast

import casadi as ca
import nosnoc
import numpy as np

CASES = ("grav1d", "grav1d-once", "harm1d", "moving1d", "struck", "unit-flight", "drag", "two-balls", "off-wall")
CASES += ("ball-e0.8", "ball-e0.5")
PACKAGES = ("nosnoc", "casadi")
HOW = (
    "NosnocSolver step by step, Radau IIA of three stages, two finite elements in ten h, complementarity to 1e-10; "
    "impacts by time-freezing; "
    "derivative of its equations by the implicit function theorem"
)
# switches are located wherever they fall: more steps find the same (`off-wall` to 1.9e-7 with 45 and 90), 20 and 10 are
# too few
STEPS = False
TURN = 0.25  # numerical time of an impact
COMPLEMENTARY = 1e-10
BOUND = 1e-5  # below which a variable is on its bound: pairs are complementary to 1e-10
known = {}


def value(text, names):
    return eval(compile(ast.parse(text, mode="eval"), text, "eval"), {"__builtins__": {}}, names)


def formulas(case, theta):
    """What formulas of a case may name: functions, and its parameters, the symbols theta."""
    functions = {"sin": ca.sin, "cos": ca.cos, "sqrt": ca.sqrt}
    return functions | dict(zip(case.parameters, ca.vertsplit(theta), strict=True))


def auxiliary_spring(e, gap, rate):
    """The acceleration behind a wall that turns the rate over, to -e times it, in TURN."""
    damping = -ca.log(e) / TURN
    return -((np.pi / TURN) ** 2 + damping**2) * gap - 2 * damping * rate


def model(case):
    """The piecewise smooth system of (q, v, t, theta), free in front of the wall and auxiliary behind it."""
    d, p = len(case.position), len(case.parameters)
    q, v, t, theta = (ca.SX.sym(name, n) for name, n in (("q", d), ("v", d), ("t", 1), ("theta", p)))
    names = formulas(case, theta) | {"q": q, "v": v, "t": t}
    gap = ca.SX(value(case.gaps[0], names))
    normal = ca.jacobian(gap, q)
    rate = normal @ v + ca.jacobian(gap, t)
    turn = normal.T / (normal @ normal.T)
    force = ca.vertcat(*(value(text, names) for text in case.force))
    rest = ca.SX.zeros(p)
    free = ca.vertcat(v, force, 1, rest)
    auxiliary = ca.vertcat(turn @ rate, turn @ auxiliary_spring(names["e"], gap, rate), 0, rest)
    x = ca.vertcat(q, v, t, theta)
    return nosnoc.NosnocModel(
        x=x, x0=np.zeros(x.numel()), F=[ca.horzcat(free, auxiliary)], c=[gap], S=[np.array([[1], [-1]])], name="impacts"
    )


def solver(model, length, complementary):
    options = nosnoc.NosnocOpts()
    if np.any(model.S[0] == 0):
        options.pss_mode = nosnoc.PssMode.STEP
    options.terminal_time, options.N_finite_elements, options.n_s = length, 2, 3
    options.irk_scheme = nosnoc.IrkSchemes.RADAU_IIA
    options.comp_tol = options.sigma_N = complementary
    return nosnoc.NosnocSolver(options, model)


def derivative(problem, equations, w, p, n, bound):
    """Of the state at the end of a step by that at its beginning, which stands last in the numbers p (n, n)."""
    by_w, by_p = (np.array(x) for x in equations(w, p))
    equal = np.ravel(problem.lbg) == np.ravel(problem.ubg)
    bounded = np.flatnonzero(np.minimum(w - np.ravel(problem.lbw), np.ravel(problem.ubw) - w) < bound)
    matrix = np.vstack([by_w[equal], np.eye(len(w))[bounded]])
    right = np.vstack([-by_p[equal], np.zeros((len(bounded), len(p)))])
    # where nothing switches the two elements of a step may be divided anyhow: the least change
    return np.linalg.lstsq(matrix, right, rcond=1e-12)[0][np.array(problem.ind_x[-1][-1][-1]), -n:]


def march(model, length, count, x, J, complementary=COMPLEMENTARY, bound=BOUND):
    """Carries the state x of a model and its derivative J through ``count`` steps of the given length."""
    made = solver(model, length, complementary)
    problem = made.problem
    equations = ca.Function(
        "equations", [problem.w, problem.p], [ca.jacobian(problem.g, problem.w), ca.jacobian(problem.g, problem.p)]
    )
    for _ in range(count):
        made.set("x0", x)
        found = made.solve()
        if found["status"] != nosnoc.Status.SUCCESS:
            raise RuntimeError(f"a step was not solved: {found['status']}")
        J = derivative(problem, equations, found["w_sol"], made.p_val, len(x), bound) @ J
        x = found["x_list"][-1]
    return x, J


def both(case, theta, steps):
    """(q, v) at t1 and its derivative by theta."""
    if case.name not in CASES:
        raise NotImplementedError(case.name)
    key = (case.name, tuple(theta), steps)
    if key in known:
        return known[key]
    names, d, p = list(case.parameters), len(case.position), len(theta)
    x = np.array([*(theta[names.index(name)] for name in (*case.position, *case.velocity)), 0.0, *theta])
    J = np.vstack([np.eye(p)[[names.index(name) for name in (*case.position, *case.velocity)]], np.zeros(p), np.eye(p)])
    count = max(4, round(steps / 10))
    x, J = march(model(case), (case.t1 + case.impacts * TURN) / count, count, x, J)
    known[key] = x[: 2 * d], J[: 2 * d]
    return known[key]


def final_state(case, theta, steps):
    return both(case, theta, steps)[0]


def jacobian(case, theta, steps):
    return both(case, theta, steps)[1]
