"""Native solver of contact problems with friction between bodies: Gauss-Seidel sweeps over pairs, with conjugate
directions across sweeps.

    w = H' H x + b,    0 <= x_n _|_ w_n >= 0,    |x_t| <= mu x_n,   x_t = -mu x_n w_t / |w_t| where w_t is not zero,

for impulses x and velocities w, normal (n) and tangential (t), with 1 + k columns of H for each contact, scaled to unit
length and nonzero at its two bodies only; u = H x are velocities of the bodies. A sweep solves the law of one contact
after the other, normal before tangential impulses, with all other impulses fixed; sweeps alternate between forward and
backward order. The change by a pair of sweeps is taken as a gradient: the next pair starts from a point ahead along a
nonlinear conjugate direction, which is dropped if the change grows. Directions fail where contacts keep changing
between slip and stick; therefore some sweeps in between are made without them. If sweeps stall, as in piles that nearly
jam, `proximal_steps` follow, and then `central_path`.

References:
    M. Jean, The non-smooth contact dynamics method, Comput. Methods Appl. Mech. Engrg. 177 (1999).
    M. Silcowitz-Hansen, S. Niebe, K. Erleben, A nonsmooth nonlinear conjugate gradient method for interactive contact
    force problems, Visual Comput. 26 (2010).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from ..compiler.llvm.jit import compile_module
from .central_path import central_paths
from .kernel_writer import KernelWriter, call_lane, over_lanes
from .proximal_steps import ROWS, ConeSystem, proximal_steps

if TYPE_CHECKING:
    from llvmlite import ir

LED, PLAIN = 3000, 1500  # sweeps with conjugate directions, and without, in turn
# Newton steps before the central path: those that converge mostly need fewer; in space few converge at all, and of 2048
# spheres each takes as long as ten steps of a path
SHORT = {2: 20, 3: 0}
SLACK = 1.1  # by which the squared change of a pair of sweeps may grow before its direction is dropped
OPERANDS = ("i", "j", "candidates", "h", "b", "mu", "guess", "allowed", "limit")
GUESS, LIMIT = OPERANDS.index("guess"), OPERANDS.index("limit")


class SweepLoops:
    """Emits the LLVM code of this module's solver, for bodies of D coordinates and contacts with k tangents.

    ``real``: the floating dtype. Methods that emit code return LLVM values, which hold the numbers when the code runs.
    """

    def __init__(self, D: int, k: int, real: type) -> None:
        self.w, self.D, self.rows = KernelWriter(real), D, 1 + k
        w = self.w
        entries, results, _, work, self.contacts, self.bodies = w.function.args
        self.given = {name: w.entry(entries, n) for n, name in enumerate(OPERANDS)}
        self.impulse, self.iterations = w.entry(results, 0), w.entry(results, 1)
        names = ("i", "j", "slot", "h", "b", "x", "before", "p", "root", "mu", "allowed", "u", "u before", "up")
        self.own = {name: w.entry(work, n) for n, name in enumerate(names)}
        self.m, self.count = w.variable(w.whole(0)), w.variable(w.whole(0))
        self.worst, self.last = w.variable(w.number(0)), w.variable(w.number(0))
        self.done = w.variable(w.whole(0))
        self.write()

    # entries of arrays with several numbers a contact or body

    def at(self, k: ir.Value, width: int, a: int = 0) -> ir.Value:
        """Emits code that computes the index k * width + a."""
        w = self.w
        return w.at.add(w.at.mul(k, w.whole(width)), w.whole(a))

    def load(self, name: str, k: ir.Value, width: int, start: int = 0) -> list[ir.Value]:
        """Emits code that loads ``width`` numbers of contact or body k, from the ``start``-th on,
        from the array ``name``."""
        return [self.w.get(self.own[name], self.at(k, width, start + a)) for a in range(width)]

    def store(self, name: str, k: ir.Value, values: list[ir.Value]) -> None:
        for a, x in enumerate(values):
            self.w.put(self.own[name], self.at(k, len(values), a), x)

    def columns(self, array: ir.Value, k: ir.Value) -> list[list[ir.Value]]:
        """Emits code that loads the columns of H of contact k, normal and tangential, 2 D numbers each,
        from ``array``."""
        wide = 2 * self.D
        place = lambda row, a: self.at(k, self.rows * wide, row * wide + a)
        return [[self.w.get(array, place(row, a)) for a in range(wide)] for row in range(self.rows)]

    def dot(self, a: list[ir.Value], b: list[ir.Value]) -> ir.Value:
        return self.w.add(*(self.w.mul(x, y) for x, y in zip(a, b, strict=True)))

    def ahead(self, y: list[ir.Value], step: ir.Value, d: list[ir.Value]) -> list[ir.Value]:
        """Emits code that computes y + step d."""
        return [self.w.add(x, self.w.mul(step, z)) for x, z in zip(y, d, strict=True)]

    def velocities(self, k: ir.Value) -> tuple[ir.Value, ir.Value, list[ir.Value]]:
        """Emits code that loads the two bodies of contact k and their velocities u (2 D,)."""
        ends = [self.w.index(self.own[name], k) for name in ("i", "j")]
        return ends[0], ends[1], self.load("u", ends[0], self.D) + self.load("u", ends[1], self.D)

    def keep_velocities(self, i: ir.Value, j: ir.Value, u: list[ir.Value]) -> None:
        self.store("u", i, u[: self.D])
        self.store("u", j, u[self.D :])

    def length(self, x: list[ir.Value]) -> ir.Value:
        return self.w.size(x[0]) if len(x) == 1 else self.w.sqrt(self.dot(x, x))

    def within(self, x: list[ir.Value], bound: ir.Value) -> list[ir.Value]:
        """Emits code that computes the vector nearest to x among those whose length is at most ``bound``."""
        w, long = self.w, self.length(x)
        outside = w.less(bound, long)
        share = w.either(outside, w.div(bound, w.either(outside, long, w.number(1))), w.number(1))
        return [w.mul(share, y) for y in x]

    # the parts

    def roots(self, columns: list[list[ir.Value]]) -> tuple[ir.Value, ir.Value]:
        """Emits code that computes the length of a contact's normal column, and a bound on that of its tangential ones.

        The bound is one on the largest singular value of the tangential columns.
        """
        w = self.w
        normal, across = columns[0], columns[1:]
        largest = self.dot(across[0], across[0])
        if len(across) == 2:
            largest = w.larger(largest, self.dot(across[1], across[1]))
            largest = w.add(largest, w.size(self.dot(*across)))
        return w.sqrt(self.dot(normal, normal)), w.sqrt(largest)

    def pack(self) -> None:
        """Emits code that copies the contacts in the mask ``candidates`` into working memory,
        scaled to columns of unit length."""
        w, zero, one = self.w, self.w.number(0), self.w.number(1)
        given = self.given
        with w.over(self.contacts) as c:
            columns = self.columns(given["h"], c)
            root, across = self.roots(columns)
            for a in range(self.rows):
                w.put(self.impulse, self.at(c, self.rows, a), zero)
            taken = w.at.icmp_signed("!=", w.index(given["candidates"], c), w.whole(0))
            with w.at.if_then(w.at.and_(taken, w.less(zero, root))):
                k = self.m.get()
                w.put_index(self.own["slot"], k, c)
                for name in ("i", "j"):
                    w.put_index(self.own[name], k, w.index(given[name], c))
                rubs = w.less(zero, across)
                across = w.either(rubs, across, one)
                scales = [root] + [across] * (self.rows - 1)
                flat = [w.div(x, r) for column, r in zip(columns, scales, strict=True) for x in column]
                self.store("h", k, flat)
                of = lambda name: [w.get(given[name], self.at(c, self.rows, a)) for a in range(self.rows)]
                self.store("b", k, [w.div(x, r) for x, r in zip(of("b"), scales, strict=True)])
                mu = w.either(rubs, w.div(w.mul(w.get(given["mu"], c), across), root), zero)
                guess = [w.mul(x, r) for x, r in zip(of("guess"), scales, strict=True)]
                normal = w.larger(guess[0], zero)
                self.store("x", k, [normal, *self.within(guess[1:], w.mul(mu, normal))])
                self.store("root", k, [root, across])
                w.put(self.own["mu"], k, mu)
                w.put(self.own["allowed"], k, w.div(one, w.get(given["allowed"], c)))
                self.m.set(w.at.add(k, w.whole(1)))

    def gather(self) -> None:
        """Emits code that computes the velocities u = H x that the impulses x give to the bodies."""
        w = self.w
        with w.over(w.at.mul(w.at.add(self.bodies, w.whole(1)), w.whole(self.D))) as n:
            w.put(self.own["u"], n, w.number(0))
        with w.over(self.m.get()) as k:
            i, j, u = self.velocities(k)
            for column, x in zip(self.columns(self.own["h"], k), self.load("x", k, self.rows), strict=True):
                u = self.ahead(u, x, column)
            self.keep_velocities(i, j, u)

    def visit(self, k: ir.Value) -> None:
        """Emits code that solves the law of contact k with the impulses of all others fixed."""
        w, zero = self.w, self.w.number(0)
        i, j, u = self.velocities(k)
        normal, *across = self.columns(self.own["h"], k)
        b, x = (self.load(name, k, self.rows) for name in ("b", "x"))
        push = w.larger(w.sub(x[0], w.add(b[0], self.dot(normal, u))), zero)
        change = [w.sub(push, x[0])]
        u = self.ahead(u, change[0], normal)
        trial = [w.sub(y, w.add(c, self.dot(t, u))) for y, c, t in zip(x[1:], b[1:], across, strict=True)]
        rub = self.within(trial, w.mul(w.get(self.own["mu"], k), push))
        for y, old, t in zip(rub, x[1:], across, strict=True):
            change.append(w.sub(y, old))
            u = self.ahead(u, change[-1], t)
        self.keep_velocities(i, j, u)
        self.store("x", k, [push, *rub])
        root, wide = self.load("root", k, 2)
        moved = w.larger(w.mul(w.size(change[0]), root), w.mul(self.length(change[1:]), wide))
        self.worst.set(w.larger(self.worst.get(), w.mul(moved, w.get(self.own["allowed"], k))))

    def sweeps(self) -> None:
        """Emits code that makes a sweep forwards and one backwards."""
        w = self.w
        self.worst.set(w.number(0))
        with w.over(self.m.get()) as k:
            self.visit(k)
        with w.over(self.m.get()) as k:
            self.visit(w.at.sub(w.at.sub(self.m.get(), w.whole(1)), k))
        self.count.set(w.at.add(self.count.get(), w.whole(2)))

    def judge(self) -> None:
        """Emits code that computes the largest ratio of a contact's natural residual
        (`cones.residual`) to the allowed one.

        It ends the sweeps if this ratio is at most 1.
        """
        w, zero, one = self.w, self.w.number(0), self.w.number(1)
        self.gather()
        self.worst.set(zero)
        with w.over(self.m.get()) as k:
            *_, u = self.velocities(k)
            root, wide = self.load("root", k, 2)
            scales = [root] + [wide] * (self.rows - 1)
            b, x = (self.load(name, k, self.rows) for name in ("b", "x"))
            columns = self.columns(self.own["h"], k)
            speed = [
                w.mul(r, w.add(c, self.dot(h, u))) for r, c, h in zip(scales, b, columns, strict=True)
            ]  # [velocity]
            most = w.larger(root, wide)
            largest = w.mul(most, most)
            size = [w.div(w.mul(largest, y), r) for y, r in zip(x, scales, strict=True)]
            mu = w.div(w.mul(w.get(self.own["mu"], k), root), wide)
            error = self.defect(speed, size, mu)
            self.worst.set(w.larger(self.worst.get(), w.mul(error, w.get(self.own["allowed"], k))))
        met = w.at.fcmp_ordered("<=", self.worst.get(), one)
        self.done.set(w.at.select(met, w.whole(1), w.whole(0)))

    def defect(self, speed: list[ir.Value], size: list[ir.Value], mu: ir.Value) -> ir.Value:
        """Emits code that computes the largest entry of the natural residual x - P_K(x -
        (w + mu |w_t| n)) of a contact.

        P_K is the projection onto the friction cone, w the velocity ``speed``, x the impulse ``size``.
        """
        w, zero, one = self.w, self.w.number(0), self.w.number(1)
        moved = [w.sub(x, y) for x, y in zip(size, speed, strict=True)]
        normal, across = w.sub(moved[0], w.mul(mu, self.length(speed[1:]))), moved[1:]
        long = self.length(across)
        inside = w.at.and_(w.at.fcmp_ordered("<=", long, w.mul(mu, normal)), w.at.fcmp_ordered("<=", zero, normal))
        pushed = w.div(w.add(normal, w.mul(mu, long)), w.add(one, w.mul(mu, mu)))
        pushed = w.either(inside, normal, w.larger(pushed, zero))
        rubbed = w.either(inside, one, w.div(w.mul(mu, pushed), w.either(w.less(zero, long), long, one)))
        error = w.size(w.sub(size[0], pushed))
        for x, y in zip(size[1:], across, strict=True):
            error = w.larger(error, w.size(w.sub(x, w.mul(rubbed, y))))
        return error

    def lead(self) -> None:
        """Emits code that computes the conjugate direction after a pair of sweeps and makes a step along it."""
        w, zero = self.w, self.w.number(0)
        total = w.variable(zero)
        total.set(zero)
        impulses, coordinates = w.at.mul(self.m.get(), w.whole(self.rows)), w.at.mul(self.bodies, w.whole(self.D))
        with w.over(impulses) as n:
            change = w.sub(w.get(self.own["x"], n), w.get(self.own["before"], n))
            total.plus(w.mul(change, change))
        phase = w.at.srem(self.count.get(), w.whole(LED + PLAIN))
        last, one = self.last.get(), w.number(1)
        led = w.at.and_(w.less(total.get(), w.mul(w.number(SLACK), last)), w.at.icmp_signed("<", phase, w.whole(LED)))
        ratio = w.either(led, w.smaller(w.div(total.get(), w.either(led, last, one)), one), zero)
        self.last.set(total.get())
        for count, value, before, direction in ((impulses, "x", "before", "p"), (coordinates, "u", "u before", "up")):
            with w.over(count) as n:
                new, old = w.get(self.own[value], n), w.get(self.own[before], n)
                step = w.mul(ratio, w.get(self.own[direction], n))
                w.put(self.own[direction], n, w.add(step, w.sub(new, old)))
                w.put(self.own[value], n, w.add(new, step))
        # NaN ends the sweeps
        unknown = w.at.fcmp_unordered("uno", total.get(), zero)
        with w.at.if_then(unknown):
            self.done.set(w.whole(1))

    def remember(self) -> None:
        """Emits code that copies impulses and velocities, so that `lead` can compute their
        change by a pair of sweeps."""
        w = self.w
        impulses, coordinates = w.at.mul(self.m.get(), w.whole(self.rows)), w.at.mul(self.bodies, w.whole(self.D))
        for count, value, before in ((impulses, "x", "before"), (coordinates, "u", "u before")):
            with w.over(count) as n:
                w.put(self.own[before], n, w.get(self.own[value], n))

    def write(self) -> None:
        w, zero, one = self.w, self.w.number(0), self.w.number(1)
        self.pack()
        self.judge()
        for count, name in ((self.at(self.m.get(), self.rows), "p"), (self.at(self.bodies, self.D), "up")):
            with w.over(count) as n:
                w.put(self.own[name], n, zero)
        limit = w.index(self.given["limit"], w.whole(0))

        def goes_on() -> ir.Value:
            left = w.at.icmp_signed("<", self.count.get(), limit)
            return w.at.and_(left, w.at.icmp_signed("==", self.done.get(), w.whole(0)))

        with w.loop(goes_on):
            self.remember()
            self.sweeps()
            small = w.at.fcmp_ordered("<=", self.worst.get(), one)
            with w.at.if_then(small):
                self.judge()
            # the last sweep's impulses are in their cones
            with w.at.if_then(goes_on()):
                self.lead()
        with w.over(self.m.get()) as k:
            c = w.index(self.own["slot"], k)
            root, wide = self.load("root", k, 2)
            for a, x in enumerate(self.load("x", k, self.rows)):
                w.put(self.impulse, self.at(c, self.rows, a), w.div(x, wide if a else root))
        w.at.store(w.at.trunc(self.count.get(), w.int), self.iterations)
        w.at.ret_void()


@cache
def sweep_text(D: int, k: int, real: type) -> str:
    """LLVM IR of the solver of this module, by sweeps.

    D: coordinates of a body; k: tangents of a contact; ``real``: the floating dtype.
    """
    return str(SweepLoops(D, k, real).w.module)


def solver(D: int, k: int, real: type, bodies: int) -> Callable[[list[np.ndarray], list[np.ndarray]], None]:
    """Compiled solver: takes the `OPERANDS` of B lanes, fills in impulses (B, m, 1 + k) and iterations (B,), of sweeps
    and `steps_where_sweeps_stall`.

    Operands of a lane: bodies i and j (m,) of each contact, N for an obstacle; ``candidates`` (m,), 1 for contacts that
    may have an impulse, else 0; columns h (m, 1 + k, 2 D), body i first; velocities b (m, 1 + k); coefficients mu (m,);
    initial impulses ``guess`` (m, 1 + k); natural residuals ``allowed`` (m,) [velocity];
    and a ``limit`` (1,) of iterations.

    Raises:
        Unsupported, ImportError: as `compile_module`.
    """
    code = compile_module(sweep_text(D, k, real), loops=True)

    def sweeps(given: list[np.ndarray], found: list[np.ndarray]) -> None:
        m, rows, places = given[0].shape[0], 1 + k, (bodies + 1) * D
        sizes = [m * rows * 2 * D, *[m * rows] * 4, 2 * m, m, m, *[places] * 3]
        own = [np.empty(m, np.int32) for _ in range(3)] + [np.empty(size, real) for size in sizes]
        call_lane(code, (given, found, own), m, bodies)

    def lane(n: int, operands: list[np.ndarray], results: list[np.ndarray]) -> None:
        given, found = [np.ascontiguousarray(x[n]) for x in operands], [x[n : n + 1] for x in results]
        limit, spent = int(given[LIMIT][0]), 0
        for tries in itertools.count():
            share = min(limit - spent, LED + PLAIN)
            given[LIMIT] = np.array([share], np.int32)
            sweeps(given, found)
            spent += int(found[1][0])
            if found[1][0] < share:
                break
            if spent >= limit:
                # sweeps may lose what steps have gained
                if tries and taking_part(given).size and excess(given, given[GUESS]) < excess(given, found[0][0]):
                    found[0][0] = given[GUESS]
                break
            given[GUESS], steps = steps_where_sweeps_stall(given, found[0][0], tries)
            spent += steps
        found[1][0] = spent

    return lambda operands, results: over_lanes(lambda n: lane(n, operands, results), results[1].shape[0])


def taking_part(given: list[np.ndarray]) -> np.ndarray:
    """Numbers of the contacts that may have an impulse, from the operands of a lane."""
    candidates, h = given[2:4]
    return np.flatnonzero((candidates != 0) & np.any(h[:, 0] != 0, axis=1))


def system_of(given: list[np.ndarray], taken: np.ndarray) -> ConeSystem:
    """The system of the contacts of numbers ``taken``, in double precision."""
    i, j, _, h, b, mu, _, allowed, _ = given
    of = lambda x: x[taken].astype(float)
    return ConeSystem.of(np.stack([i[taken], j[taken]]), of(h), of(b), of(mu), of(allowed))


def excess(given: list[np.ndarray], impulse: np.ndarray) -> float:
    """Largest natural residual of impulses (m, 1 + k), divided by the allowed one."""
    taken = taking_part(given)
    system = system_of(given, taken)
    return system.excess(system.root * impulse[taken].astype(float))


def steps_where_sweeps_stall(given: list[np.ndarray], impulse: np.ndarray, tries: int) -> tuple[np.ndarray, int]:
    """Improves impulses (m, 1 + k) on which sweeps have stalled, by `proximal_steps` and `central_path`.

    Computes in double precision. ``given``: operands of a lane; ``tries``: number of times that sweeps have stalled
    before. Returns impulses (m, 1 + k) whose residual is not larger than that of ``impulse``, and the number of steps.
    """
    taken, rows = taking_part(given), impulse.shape[1]
    if not 0 < taken.size * rows <= ROWS or not np.all(np.isfinite(impulse)):
        return impulse.copy(), 0
    system = system_of(given, taken)
    x, spent = proximal_steps(system, system.root * impulse[taken].astype(float), SHORT[rows])
    if tries == 0 and system.excess(x) > 1:
        x, _, steps = central_paths(system, x)
        spent += steps
    found = impulse.copy()
    found[taken] = system.clean(x) / system.root
    return found, spent
