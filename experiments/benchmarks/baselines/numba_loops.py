"""Scalar loops of the same scheme for every work, one trajectory after the other, compiled by numba; float64.

    q1, v1 = numba_loops.run(works.WORKS["pile-16"], q0, v0)      # states at t1, (lanes, d) each

Every loop makes the step of Paoli and Schatzman (explicit force, Taylor start, gradients at the projected point),

    W = U + s (c V_ + k a),    V = V_ + k a + M(U)^-1 G(Z)' L,    0 <= L _|_ f(Z) >= 0,    U+ = U + h V,

with s = h/(1 + e), c = 1 - e, k = h, and in the first step s = h, c = 1, k = h/2. Where gaps curve, successive
linearisations bring the residual of the projection [velocity] to `TOLERANCE` or to round-off.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numba import njit

TOLERANCE = 1e-12
EPS = float(np.finfo(np.float64).eps)
LINEARISATIONS = 50

# no error checks inside the loops; a product and a sum may be fused
compiled = njit(error_model="numpy", fastmath={"contract"})


@compiled
def coefficients(n, h, e):
    """(s, c, k) of step n = 0, 1, ..."""
    if n == 0:
        return h, 1.0, 0.5 * h
    return h / (1.0 + e), 1.0 - e, h


@compiled
def factorise(a, n):
    """U' D U of a symmetric matrix in the place of its upper triangle, with 1/D on the diagonal; rows, to vectorise."""
    for j in range(n):
        inverse = 1.0 / a[j, j]
        for i in range(j + 1, n):
            ratio = a[j, i] * inverse
            for k in range(i, n):
                a[i, k] -= ratio * a[j, k]
        for i in range(j + 1, n):
            a[j, i] *= inverse
        a[j, j] = inverse


@compiled
def substitute(factor, n, x):
    """Solve U' D U x = b in place of b."""
    for i in range(n):
        for k in range(i + 1, n):
            x[k] -= factor[i, k] * x[i]
    for i in range(n - 1, -1, -1):
        x[i] *= factor[i, i]
        for k in range(i + 1, n):
            x[i] -= factor[i, k] * x[k]


@compiled
def closed(a, b, active, x, tolerance):
    """Whether closing the contacts ``active`` solves the problem of `complementary`; x are then their impulses."""
    member = np.flatnonzero(active)
    size = member.size
    matrix, y, w = np.empty((size, size)), np.empty(size), b.copy()
    for k in range(size):
        y[k] = -b[member[k]]
        for j in range(k, size):
            matrix[k, j] = a[member[k], member[j]]
    factorise(matrix, size)
    substitute(matrix, size, y)
    x[:] = 0.0
    for k in range(size):
        x[member[k]] = y[k]
        row = a[member[k]]
        for i in range(b.size):
            w[i] += y[k] * row[i]
    for i in range(b.size):
        if not abs(min(w[i], a[i, i] * x[i])) <= tolerance:
            return False
    for i in range(b.size):
        x[i] = max(x[i], 0.0)
    return True


@compiled
def pivot(table, beta, k):
    """Exchange variable k of x = table y + beta with its partner."""
    row, n = table[k], beta.size
    scale = beta[k] / row[k]
    for i in range(n):
        ratio = table[i, k] / row[k]
        if i != k and ratio != 0.0:
            target = table[i]
            for j in range(n):
                target[j] -= ratio * row[j]
            target[k] = ratio
            beta[i] -= ratio * beta[k]
    diagonal = row[k]
    for j in range(n):
        row[j] /= -diagonal
    row[k], beta[k] = 1.0 / diagonal, -scale


@compiled
def complementary(a, b, active, x, tolerance):
    """Impulses x >= 0 with w = a x + b >= 0 and w x = 0, for a positive semidefinite matrix a (m, m).

    ``active`` are the closed contacts, a guess before and the answer after. Where the guess is wrong: the dual method
    of D. Goldfarb and A. Idnani, Math. Programming 27 (1983), on the tableau of principal pivots: constraints enter one
    at a time, and leave where their impulse would turn negative.
    """
    if closed(a, b, active, x, tolerance):
        return
    m = b.size
    table, beta = a.copy(), b.copy()
    active[:] = False
    size = np.abs(b).max()
    threshold = max(0.1 * tolerance, 8 * EPS * size)
    entering = -1
    for _ in range(8 * m + 16):
        if entering < 0:
            worst = 0.0
            for i in range(m):
                violation = -beta[i] / math.sqrt(a[i, i])
                if not active[i] and beta[i] < -threshold and violation > worst:
                    entering, worst = i, violation
            if entering < 0:
                break
        # the impulse that closes the entering contact, or the smaller one that opens another
        diagonal = table[entering, entering]
        step, k = (-beta[entering] / diagonal if diagonal > 64 * EPS * a[entering, entering] else math.inf), entering
        for i in range(m):
            slope = table[i, entering]
            if active[i] and slope < 0.0 and -beta[i] / slope < step:
                step, k = -beta[i] / slope, i
        if step == math.inf:
            break  # depends on the active ones, which are closed
        pivot(table, beta, k)
        active[k] = k == entering
        if active[k]:
            entering = -1
    x[:] = np.where(active, beta, 0.0)
    # one refinement with the inverse that the tableau holds
    defect = np.zeros(m)
    for i in range(m):
        if active[i]:
            defect[i] = b[i]
            for j in range(m):
                defect[i] += a[i, j] * x[j]
    for i in range(m):
        if active[i]:
            for j in range(m):
                if active[j]:
                    x[i] -= table[i, j] * defect[j]
            x[i] = max(x[i], 0.0)


# bouncing ball --------------------------------------------------------------------------------------------------------


@compiled
def ball(q, v, steps, h, e, g):
    for lane in range(q.shape[0]):
        x, u = q[lane, 0], v[lane, 0]
        s, c, k = coefficients(0, h, e)
        for _ in range(steps):
            free = u - k * g
            u = free + max(0.0, -(x * (1.0 / s) + c * u - k * g))
            x += h * u
            s, c, k = coefficients(1, h, e)
        q[lane, 0], v[lane, 0] = x, u
    return True


# forced oscillator ----------------------------------------------------------------------------------------------------


@compiled
def oscillator(q, v, steps, h, e, frequency, damping, wall):
    shaken = np.cos(frequency * h * np.arange(steps))
    for lane in range(q.shape[0]):
        x, u = q[lane, 0] - wall, v[lane, 0]
        s, c, k = coefficients(0, h, e)
        for n in range(steps):
            kick = k * (shaken[n] - wall - x - 2.0 * damping * u)
            u = u + kick + max(0.0, -(x * (1.0 / s) + c * u + kick))
            x += h * u
            s, c, k = coefficients(1, h, e)
        q[lane, 0], v[lane, 0] = x + wall, u
    return True


# double pendulum ------------------------------------------------------------------------------------------------------


@compiled
def double_pendulum(q, v, steps, h, e, m1, m2, l1, l2, g, wall):
    first, second, coupling = (m1 + m2) * l1 * l1, m2 * l2 * l2, m2 * l1 * l2
    for lane in range(q.shape[0]):
        q0, q1, v0, v1 = q[lane, 0], q[lane, 1], v[lane, 0], v[lane, 1]
        for n in range(steps):
            s, c, k = coefficients(n, h, e)
            sin0, cos0, sin1, cos1 = math.sin(q0), math.cos(q0), math.sin(q1), math.cos(q1)
            off, coriolis = coupling * (cos0 * cos1 + sin0 * sin1), coupling * (sin0 * cos1 - cos0 * sin1)
            force0 = -coriolis * v1 * v1 - (m1 + m2) * g * l1 * sin0
            force1 = coriolis * v0 * v0 - m2 * g * l2 * sin1
            scale = 1.0 / (first * second - off * off)
            kick0 = k * scale * (second * force0 - off * force1)
            kick1 = k * scale * (first * force1 - off * force0)
            move0, move1 = s * (c * v0 + kick0), s * (c * v1 + kick1)
            v0 += kick0
            v1 += kick1
            # sin is 1-Lipschitz: a gap larger than this cannot close
            joint = wall - l1 * sin0
            if min(joint, joint - l2 * sin1) < l1 * abs(move0) + l2 * abs(move1):
                inverse = (second * scale, -off * scale, first * scale)
                jump0, jump1, converged = project_double(inverse, q0, q1, move0, move1, s, l1, l2, wall)
                if not converged:
                    return False
                v0 += jump0
                v1 += jump1
            q0 += h * v0
            q1 += h * v1
        q[lane, 0], q[lane, 1], v[lane, 0], v[lane, 1] = q0, q1, v0, v1
    return True


@compiled
def project_double(inverse, q0, q1, move0, move1, s, l1, l2, wall):
    """Velocity jump of the projection, and whether it converged: M^-1 = [[a, b], [b, c]];
    gradients (x, 0) and (x, y)."""
    a, b, c = inverse
    jump0 = jump1 = impulse0 = impulse1 = 0.0
    for _ in range(LINEARISATIONS + 1):
        z0, z1 = q0 + (move0 + s * jump0), q1 + (move1 + s * jump1)
        joint, x, y = wall - l1 * math.sin(z0), -l1 * math.cos(z0), -l2 * math.cos(z1)
        gap0, gap1 = joint / s, (joint - l2 * math.sin(z1)) / s
        r00, r10 = a * x, b * x
        r01, r11 = r00 + b * y, r10 + c * y
        a00, a01 = x * r00, x * r01
        a11 = a01 + y * r11
        mismatch = max(
            abs(r00 * impulse0 + r01 * impulse1 - jump0),
            abs(r10 * impulse0 + r11 * impulse1 - jump1),
        )
        residual = max(mismatch, abs(min(gap0, a00 * impulse0)), abs(min(gap1, a11 * impulse1)))
        sum0 = abs(x) * ((abs(q0) + abs(move0)) / s + abs(jump0))
        sum1 = sum0 + abs(y) * ((abs(q1) + abs(move1)) / s + abs(jump1))
        if residual <= max(TOLERANCE, 32 * EPS * max(sum0 + abs(gap0), sum1 + abs(gap1))):
            return jump0, jump1, True
        b0, b1 = gap0 - x * jump0, gap1 - x * jump0 - y * jump1
        impulse0, impulse1 = max(0.0, -b0 / a00), 0.0
        if b1 + a01 * impulse0 < 0.0:
            impulse0, impulse1 = 0.0, max(0.0, -b1 / a11)
            if b0 + a01 * impulse1 < 0.0:
                ratio = a01 / a00
                impulse1 = -(b1 - ratio * b0) / (a11 - ratio * a01)
                impulse0 = -(b0 + a01 * impulse1) / a00
        jump0, jump1 = r00 * impulse0 + r01 * impulse1, r10 * impulse0 + r11 * impulse1
    return jump0, jump1, False


# pendulum of n links --------------------------------------------------------------------------------------------------


@cache
def links(n):
    """The loop for n links, n being known to the compiler."""

    @compiled
    def loop(q, v, steps, h, e, g, stop):
        sin, cos, kick, move, gap = np.empty(n), np.empty(n), np.empty(n), np.empty(n), np.empty(n)
        factor, response, delassus = np.empty((n, n)), np.empty((n, n)), np.empty((n, n))
        active, impulse = np.empty(n, np.bool_), np.empty(n)
        for lane in range(q.shape[0]):
            x, u = q[lane], v[lane]
            for step in range(steps):
                s, c, k = coefficients(step, h, e)
                for i in range(n):
                    sin[i], cos[i] = math.sin(x[i]), math.cos(x[i])
                for i in range(n):
                    force = -g * (n - i) * sin[i]
                    for j in range(n):
                        force -= (n - max(i, j)) * (sin[i] * cos[j] - cos[i] * sin[j]) * (u[j] * u[j])
                    for j in range(i + 1):
                        factor[j, i] = (n - i) * (cos[i] * cos[j] + sin[i] * sin[j])
                    kick[i] = force
                factorise(factor, n)
                substitute(factor, n, kick)
                lowest = 0.0
                for i in range(n):
                    kick[i] *= k
                    move[i] = s * (c * u[i] + kick[i])
                    u[i] += kick[i]
                    before = x[i - 1] + move[i - 1] if i > 0 else 0.0
                    gap[i] = (stop - (x[i] + move[i] - before)) / s
                    lowest = min(lowest, gap[i])
                if lowest < 0.0:
                    # gaps are linear: one linearisation is exact
                    for i in range(n):
                        response[i] = 0.0
                        response[i, i] = -1.0
                        if i > 0:
                            response[i, i - 1] = 1.0
                        substitute(factor, n, response[i])
                    for i in range(n):
                        for j in range(n):
                            delassus[i, j] = (response[j, i - 1] if i > 0 else 0.0) - response[j, i]
                    for i in range(n):
                        active[i] = gap[i] < 0.0
                    complementary(delassus, gap, active, impulse, TOLERANCE)
                    for i in range(n):
                        for j in range(n):
                            u[j] += impulse[i] * response[i, j]
                for i in range(n):
                    x[i] += h * u[i]
        return True

    return loop


# elastic bar ----------------------------------------------------------------------------------------------------------


@compiled
def bar(q, v, steps, h, e, density, modulus, length):
    n = q.shape[1]
    dx = length / (n - 1)
    rate = modulus / (density * dx * dx)  # stiffness of an element over the mass of an inner node
    for lane in range(q.shape[0]):
        x, u = q[lane], v[lane]
        for step in range(steps):
            s, c, k = coefficients(step, h, e)
            kick = 2.0 * k * rate * (x[1] - x[0])
            jump = max(0.0, -(x[0] / s + c * u[0] + kick))
            u[0] += kick + jump
            for i in range(1, n - 1):
                u[i] += k * rate * (x[i + 1] - 2.0 * x[i] + x[i - 1])
            u[n - 1] -= 2.0 * k * rate * (x[n - 1] - x[n - 2])
            for i in range(n):
                x[i] += h * u[i]
    return True


# disks in a box -------------------------------------------------------------------------------------------------------


@compiled
def closer(x, y, shift, reach):
    """How many pairs (i, i + shift mod n) are closer than ``reach``; x and y hold all centres twice, (2n,)."""
    other_x, other_y, square, count = x[shift:], y[shift:], reach * reach, 0
    for i in range(x.size // 2):
        dx, dy = x[i] - other_x[i], y[i] - other_y[i]
        count += dx * dx + dy * dy < square
    return count


@compiled
def overlap(x, y, radius, side, slack):
    """Whether any gap is below -slack."""
    n, found = x.size // 2, 0
    for i in range(n):
        found += (x[i] < radius - slack) + (y[i] < radius - slack)
        found += (x[i] > side - radius + slack) + (y[i] > side - radius + slack)
    for shift in range(1, n // 2 + 1):
        found += closer(x, y, shift, 2.0 * radius - slack)
    return found > 0


@compiled
def near(x, y, radius, side, margin, first, second):
    """Contacts (first, second) whose gap is below ``margin``; second >= n are the walls left, bottom, right, top."""
    n, count = x.size // 2, 0
    reach = 2.0 * radius + margin
    for shift in range(1, n // 2 + 1):
        if closer(x, y, shift, reach) > 0:
            for i in range(n // 2 if 2 * shift == n else n):
                if (x[i] - x[i + shift]) ** 2 + (y[i] - y[i + shift]) ** 2 < reach**2:
                    first[count], second[count] = min(i, (i + shift) % n), max(i, (i + shift) % n)
                    count += 1
    for i in range(n):
        for wall in range(4):
            if wall_gap(x[i], y[i], radius, side, wall) < margin:
                first[count], second[count] = i, n + wall
                count += 1
    return count


@compiled
def wall_gap(x, y, radius, side, wall):
    position = x if wall % 2 == 0 else y
    return (position if wall < 2 else side - position) - radius


@compiled
def linearise(x, y, radius, side, count, first, second, gap, normal):
    """Gaps, and gradients with respect to the first disk; the second has the opposite ones."""
    n = x.size // 2
    for k in range(count):
        i, j = first[k], second[k]
        if j < n:
            dx, dy = x[i] - x[j], y[i] - y[j]
            distance = math.sqrt(dx * dx + dy * dy)
            gap[k] = distance - 2.0 * radius
            normal[k, 0], normal[k, 1] = dx / distance, dy / distance
        else:
            wall = j - n
            gap[k] = wall_gap(x[i], y[i], radius, side, wall)
            normal[k] = 0.0
            normal[k, wall % 2] = 1.0 if wall < 2 else -1.0


@compiled
def push(count, first, second, normal, impulse, jump):
    """Velocity jump G' L, of unit masses."""
    jump[:] = 0.0
    n = jump.shape[1]
    for k in range(count):
        for axis in range(2):
            jump[axis, first[k]] += normal[k, axis] * impulse[k]
            if second[k] < n:
                jump[axis, second[k]] -= normal[k, axis] * impulse[k]


@compiled
def project_disks(wx, wy, s, radius, side, margin, touched, jump):
    """Jump (2, n) from the point (wx, wy), and whether it converged.

    Only gaps below ``margin`` take part, more where that was not enough; ``touched`` (n, n + 4) are the contacts closed
    last, the first guess of those closed now.
    """
    n = wx.size // 2
    first, second = np.empty(n * (n + 8) // 2, np.int64), np.empty(n * (n + 8) // 2, np.int64)
    # round-off of the gap velocities
    tolerance = max(TOLERANCE, 32 * EPS * 2.0 * math.sqrt(2.0) * side / s)
    zx, zy, other = np.empty(2 * n), np.empty(2 * n), np.empty_like(jump)
    converged = False
    while True:
        count = near(wx, wy, radius, side, margin, first, second)
        gap, normal, offset = np.empty(count), np.empty((count, 2)), np.empty(count)
        impulse, active, delassus = np.zeros(count), np.empty(count, np.bool_), np.empty((count, count))
        linearise(wx, wy, radius, side, count, first, second, gap, normal)
        for k in range(count):
            active[k] = touched[first[k], second[k]]
        jump[:] = 0.0
        for _ in range(LINEARISATIONS):
            for k in range(count):
                i, j = first[k], second[k]
                offset[k] = gap[k] / s
                for axis in range(2):
                    offset[k] -= normal[k, axis] * (jump[axis, i] - (jump[axis, j] if j < n else 0.0))
                for other_k in range(k + 1):
                    a, b = first[other_k], second[other_k]
                    sign = int(i == a) - int(i == b) - int(j == a) + int(j == b and j < n)
                    dot = normal[k, 0] * normal[other_k, 0] + normal[k, 1] * normal[other_k, 1] if sign != 0 else 0.0
                    delassus[k, other_k] = delassus[other_k, k] = sign * dot
            complementary(delassus, offset, active, impulse, 0.25 * tolerance)
            push(count, first, second, normal, impulse, jump)
            for i in range(2 * n):
                zx[i], zy[i] = wx[i] + s * jump[0, i % n], wy[i] + s * jump[1, i % n]
            linearise(zx, zy, radius, side, count, first, second, gap, normal)
            push(count, first, second, normal, impulse, other)
            residual = 0.0
            for k in range(count):
                own = delassus[k, k] * impulse[k]
                residual = max(residual, abs(min(gap[k] / s, own)))
            for i in range(n):
                residual = max(residual, abs(jump[0, i] - other[0, i]), abs(jump[1, i] - other[1, i]))
            converged = residual <= tolerance
            if converged:
                break
        if not converged or not overlap(zx, zy, radius, side, tolerance * s):
            break
        margin *= 2.0  # pushed into a disk that was not looked at
    touched[:] = False
    for k in range(count):
        touched[first[k], second[k]] = active[k]
    return converged


@compiled
def disks(q, v, steps, h, e, g, radius, side):
    n = q.shape[1] // 2
    x, y, ux, uy = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    wx, wy, jump = np.empty(2 * n), np.empty(2 * n), np.empty((2, n))
    touched = np.empty((n, n + 4), np.bool_)
    for lane in range(q.shape[0]):
        touched[:] = False
        for i in range(n):
            x[i], y[i], ux[i], uy[i] = q[lane, 2 * i], q[lane, 2 * i + 1], v[lane, 2 * i], v[lane, 2 * i + 1]
        for step in range(steps):
            s, c, k = coefficients(step, h, e)
            fastest = 0.0
            for i in range(n):
                wx[i] = wx[n + i] = x[i] + s * c * ux[i]
                wy[i] = wy[n + i] = y[i] + s * (c * uy[i] - k * g)
                uy[i] -= k * g
                fastest = max(fastest, abs(ux[i]), abs(uy[i]))
            if overlap(wx, wy, radius, side, 0.0):
                if not project_disks(wx, wy, s, radius, side, 4.0 * h * fastest, touched, jump):
                    return False
                for i in range(n):
                    ux[i] += jump[0, i]
                    uy[i] += jump[1, i]
            for i in range(n):
                x[i] += h * ux[i]
                y[i] += h * uy[i]
        for i in range(n):
            q[lane, 2 * i], q[lane, 2 * i + 1], v[lane, 2 * i], v[lane, 2 * i + 1] = x[i], y[i], ux[i], uy[i]
    return True


# by the first word of the work's name: the loop for d coordinates, and the parameters it is given after h and e
LOOPS = {
    "ball": (lambda d: ball, ("g",)),
    "forced": (lambda d: oscillator, ("frequency", "damping", "wall")),
    "double": (lambda d: double_pendulum, ("m1", "m2", "l1", "l2", "g", "wall")),
    "links": (links, ("g", "stop")),
    "bar": (lambda d: bar, ("density", "modulus", "length")),
    "gas": (lambda d: disks, ("g", "radius", "side")),
    "pile": (lambda d: disks, ("g", "radius", "side")),
}


def run(work, q0, v0, steps: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """States (q, v) after ``steps`` steps, by default the work's own, from q0 and v0 (lanes, d).

    The first call of a loop compiles it. RuntimeError where a projection did not converge.
    """
    loop_for, names = LOOPS[work.name.split("-")[0]]
    q, v = np.array(q0, np.float64, order="C"), np.array(v0, np.float64, order="C")
    if q.ndim != 2 or q.shape != v.shape:
        raise ValueError(f"q0 and v0 must both have shape (lanes, d), got {q.shape} and {v.shape}")
    numbers = [float(work.args[name]) for name in names]
    if not loop_for(q.shape[1])(q, v, work.steps if steps is None else steps, work.h, work.restitution, *numbers):
        raise RuntimeError(f"a projection of {work.name} did not converge")
    return q, v
