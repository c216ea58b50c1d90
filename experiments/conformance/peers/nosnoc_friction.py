"""nosnoc with friction: impacts by time-freezing, and Coulomb's law as a piecewise smooth system.

Impacts with rebound are those of `nosnoc_freezing`: behind the floor a spring and damper turn the velocity over in a
numerical time TURN while the clock stands still. Friction is added there: an impact with the approach speed u pushes
with (1 + e) u, and the force mu (1 + e) u / TURN against the slip gives the body mu times that, or ends the slip, which
is one more switch. u is a state, the speed at which the floor is approached before the impact, so that there is one
impact. In space slip keeps its direction and, in this case, does not end.

Plastic impacts and contact that lasts are as in A. Nurkanović, S. Albrecht, B. Brogliato, M. Diehl, The time-freezing
reformulation for numerical optimal control of complementarity Lagrangian systems with state jumps, Automatica, arXiv
2111.06759: behind the floor a force PUSH along the normal and mu PUSH against the slip brake a body that sinks, while
clock and place stand still, and contact is the sliding mode between this motion and the free one. What is behind the
floor is told by a copy of the gap that sinks on: the gap itself would stay on the border of the regions. In contact the
clock is slower than numerical time; the last step is scaled by a state of its own, such that it ends at t1.
"""

import casadi as ca
import nosnoc
import numpy as np
from nosnoc_freezing import PACKAGES as PACKAGES
from nosnoc_freezing import TURN, auxiliary_spring, formulas, march, value

FRICTION = True
HOW = (
    "NosnocSolver step by step, Radau IIA of three stages, two finite elements in 0.025 s, complementarity to 1e-11, "
    "of blocks 1e-12; impacts by time-freezing, with friction in the auxiliary motions; "
    "derivative of its equations by the implicit function theorem"
)
STEPS = False
LENGTH = 0.025  # of a step in numerical time
PUSH = 10.0
BOUNCE = {"complementary": 1e-11, "bound": 1e-5}  # with 1e-12 a step of disk-sticks is not solved
# at a break-away the force is continuous, and variables leave their bounds slowly
SHARP = {"complementary": 1e-12, "bound": 1e-6}
known = {}


def mechanics(case):
    """Symbols q, v, t, theta, the acceleration without contact, normal and tangential directions of acceleration,
    rate of the gap, slip."""
    d, p = len(case.position), len(case.parameters)
    q, v, t, theta = (ca.SX.sym(name, n) for name, n in (("q", d), ("v", d), ("t", 1), ("theta", p)))
    names = formulas(case, theta) | {"q": q, "v": v, "t": t}
    inverse = [1 / value(case.mass[i][i], names) if case.mass else 1 for i in range(d)]
    a = ca.vertcat(*(value(text, names) * by for text, by in zip(case.force, inverse, strict=True)))
    gap = ca.SX(value(case.gaps[0], names))
    slip = ca.vertcat(*(value(text, names) for text in case.slip[0]))
    normal = ca.jacobian(gap, q)
    along = ca.diag(ca.vertcat(*inverse)) @ ca.jacobian(slip, v).T
    return (q, v, t, theta), names, a, gap, normal, slip, along


def bounces(case):
    """Free in front of the floor, the impact behind it; the approach speed stands behind the velocity."""
    (q, v, t, theta), names, a, gap, normal, slip, along = mechanics(case)
    u, rest = ca.SX.sym("u"), ca.SX.zeros(theta.numel())
    rate = normal @ v
    spring = auxiliary_spring(names["e"], gap, rate)
    force = names[case.friction[0]] * (1 + names["e"]) * u / TURN
    free = ca.vertcat(v, a, -normal @ a, 1, rest)
    behind = lambda way: ca.vertcat(normal.T @ rate, normal.T @ spring - along @ (force * way), 0, 0, rest)
    if slip.numel() > 1:
        fields, borders, signs = [free, behind(slip / ca.norm_2(slip))], [gap], [[1], [-1]]
    else:
        fields, borders = [free, behind(1), behind(-1)], [gap, slip]
        signs = [[1, 0], [-1, 1], [-1, -1]]
    x = ca.vertcat(q, v, u, t, theta)
    return x, fields, borders, signs, -rate


def blocks(case):
    """Free, and braked behind the floor; a copy of the gap stands behind the velocity,
    and the scale of numerical time at the end."""
    (q, v, t, theta), names, a, gap, normal, slip, along = mechanics(case)
    copy, scale, rest = ca.SX.sym("copy"), ca.SX.sym("scale"), ca.SX.zeros(theta.numel() + 1)
    rate, mu = normal @ v, names[case.friction[0]]
    free = scale * ca.vertcat(v, a, rate, 1, rest)
    braked = lambda way: scale * ca.vertcat(0 * v, PUSH * (normal.T - mu * along * way), rate, 0, rest)
    signs = [[1, 0, 0], [-1, 1, 0], [-1, -1, 1], [-1, -1, -1]]
    x = ca.vertcat(q, v, copy, t, theta, scale)
    return x, [free, free, braked(1), braked(-1)], [copy, rate, slip], signs, gap


MODELS = {
    "disk-slips": bounces,
    "disk-sticks": bounces,
    "sphere-slips": bounces,
    "turns-back": blocks,
    "stick-slip": blocks,
}


def start(case, x, between, last, theta):
    """The initial state and its derivative by theta; ``between`` stands behind the velocity, ``last`` at the end."""
    d, p = len(case.position), len(theta)
    names = list(case.parameters)
    given = ca.SX.sym("given", p)
    moving = ca.vertcat(*(given[names.index(name)] for name in (*case.position, *case.velocity)))
    between = ca.substitute(between, ca.vertcat(x[: 2 * d], x[2 * d + 2 : 2 * d + 2 + p]), ca.vertcat(moving, given))
    made = ca.vertcat(moving, between, 0, given, *last)
    both = ca.Function("start", [given], [made, ca.jacobian(made, given)])
    y, J = both(theta)
    return np.ravel(y), np.array(J)


def until(model, t1, time, y, J):
    """Steps of LENGTH until the clock, entry ``time`` of the state, shows t1;
    the last step is scaled by the last entry of the state."""
    one = np.eye(len(y))
    while True:
        new, D = march(model, LENGTH, 1, y, one, **SHARP)
        if new[time] >= t1:
            break
        y, J = new, D @ J
    while abs(new[time] - t1) > 1e-12:
        y[-1] -= (new[time] - t1) / D[time, -1]
        new, D = march(model, LENGTH, 1, y, one, **SHARP)
    by_scale = D[:, -1]
    J = D @ J
    return new, J - np.outer(by_scale, J[time] / by_scale[time])


def both(case, theta, steps):
    """(q, v) at t1 and its derivative by theta."""
    if case.name not in MODELS:
        raise NotImplementedError(case.name)
    key = (case.name, tuple(theta))
    if key in known:
        return known[key]
    made = MODELS[case.name]
    x, fields, borders, signs, between = made(case)
    model = nosnoc.NosnocModel(
        x=x, x0=np.zeros(x.numel()), F=[ca.horzcat(*fields)], c=[ca.vertcat(*borders)], S=[np.array(signs)], name="rubs"
    )
    d = len(case.position)
    if made is bounces:
        y, J = start(case, x, between, [], theta)
        length = case.t1 + TURN
        count = round(length / LENGTH)
        y, J = march(model, length / count, count, y, J, **BOUNCE)
    else:
        y, J = start(case, x, between, [1.0], theta)
        y, J = until(model, case.t1, 2 * d + 1, y, J)
    known[key] = y[: 2 * d], J[: 2 * d]
    return known[key]


def final_state(case, theta, steps):
    return both(case, theta, steps)[0]


def jacobian(case, theta, steps):
    return both(case, theta, steps)[1]
