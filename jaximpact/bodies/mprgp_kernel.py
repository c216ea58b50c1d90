"""Native solver of contact problems between bodies: matrix-free conjugate gradients with projections (MPRGP),
looping over pairs.

    min 1/2 x' A x + b' x,  x >= 0,    A = H' H,

for impulses x, with gap velocities A x + b and a column of H for each contact, of unit length and nonzero at its two
bodies only. On the face of contacts with x > 0 it takes conjugate gradient steps. A step that would leave the face ends
at its boundary, followed by a projected gradient step. Once the free gradient (contacts with x > 0) is smaller than the
chopped one (the others), a projected gradient step changes the face.

Reference: Z. Dostal, J. Schoberl, Minimizing quadratic functions over non-negative cone with the rate of convergence
and finite termination, Comput. Optim. Appl. 30 (2005), algorithm MPRGP.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from ..compiler.llvm.jit import compile_module
from .kernel_writer import KernelWriter, LoopVariable, call_lane, over_lanes

if TYPE_CHECKING:
    from llvmlite import ir

POWER = 8  # steps of the power method for the largest eigenvalue
SAFETY = 1.25  # by which it may be too small
STEP = 1.9  # of a projected gradient step, over the largest eigenvalue: 2 is the bound of descent
INTEGERS = ("i", "j", "slot")
REALS = ("x", "g", "p", "y", "b", "root", "allowed")


class ContactLoops:
    """Emits the LLVM code of this module's solver, for bodies of D coordinates; ``real``: the floating dtype.

    Arguments of methods are LLVM values, which hold numbers when the code runs.
    """

    def __init__(self, D: int, real: type) -> None:
        self.w, self.D = KernelWriter(real), D
        w = self.w
        entries, results, _, work, self.contacts, self.bodies = self.w.function.args
        self.i, self.j, self.hi, self.hj, self.offset, self.guess, self.tolerance, self.limit = (
            w.entry(entries, k) for k in range(8)
        )
        self.impulse, self.iterations = w.entry(results, 0), w.entry(results, 1)
        tables = iter(range(100))
        self.own = {name: w.entry(work, next(tables)) for name in (*INTEGERS, *REALS)}
        self.h = [[w.entry(work, next(tables)) for _ in range(D)] for _ in range(2)]
        self.v = [w.entry(work, next(tables)) for _ in range(D)]
        self.m = w.variable(w.whole(0))
        self.count = w.variable(w.whole(0))
        self.largest = w.variable(w.number(2))
        self.write()

    def text(self) -> str:
        return str(self.w.module)

    # arrays of the solver, by contact

    def get(self, name: str, k: ir.Value) -> ir.Value:
        return self.w.get(self.own[name], k)

    def put(self, name: str, k: ir.Value, value: ir.Value) -> None:
        self.w.put(self.own[name], k, value)

    # the products

    def clear_velocities(self) -> None:
        """Emits code that sets the velocities v of all bodies to 0."""
        w = self.w
        for v in self.v:
            with w.over(w.at.add(self.bodies, w.whole(1))) as b:
                w.put(v, b, w.number(0))

    def push_bodies(self, k: ir.Value, x: ir.Value) -> None:
        """Emits code that adds H_k x to the velocities v of the bodies, for an impulse x of contact k."""
        w = self.w
        for end, name in enumerate(("i", "j")):
            body = w.index(self.own[name], k)
            for v, h in zip(self.v, self.h[end], strict=True):
                w.put(v, body, w.add(w.get(v, body), w.mul(x, w.get(h, k))))

    def velocity(self, k: ir.Value) -> ir.Value:
        """Emits code that computes the gap velocity H_k' v of contact k."""
        w = self.w
        terms = []
        for end, name in enumerate(("i", "j")):
            body = w.index(self.own[name], k)
            terms += [w.mul(w.get(h, k), w.get(v, body)) for v, h in zip(self.v, self.h[end], strict=True)]
        return w.add(*terms)

    def gradient(self) -> None:
        """Emits code that computes the gradient g = A x + b."""
        w = self.w
        self.clear_velocities()
        with w.over(self.m.get()) as k:
            self.push_bodies(k, self.get("x", k))
        with w.over(self.m.get()) as k:
            self.put("g", k, w.add(self.velocity(k), self.get("b", k)))

    # the parts

    def select_contacts(self, cut: ir.Value) -> None:
        """Emits code that copies the contacts that may need an impulse to working memory, scaled to unit columns.

        These are contacts whose gap velocity without impulses is below ``cut``, or whose guessed impulse is positive.
        """
        w = self.w
        self.m.set(w.whole(0))
        with w.over(self.contacts) as c:
            diagonal = w.number(0)
            columns = []
            for h in (self.hi, self.hj):
                for a in range(self.D):
                    x = w.get(h, w.at.add(w.at.mul(c, w.whole(self.D)), w.whole(a)))
                    columns.append(x)
                    diagonal = w.add(diagonal, w.mul(x, x))
            offset, guess = w.get(self.offset, c), w.get(self.guess, c)
            some = w.at.or_(w.less(offset, cut), w.less(w.number(0), guess))
            with w.at.if_then(w.at.and_(some, w.less(w.number(0), diagonal))):
                k = self.m.get()
                w.put_index(self.own["slot"], k, c)
                for name, source in (("i", self.i), ("j", self.j)):
                    w.put_index(self.own[name], k, w.index(source, c))
                root = w.sqrt(diagonal)
                scale = w.div(w.number(1), root)
                for place, x in zip([*self.h[0], *self.h[1]], columns, strict=True):
                    w.put(place, k, w.mul(x, scale))
                self.put("root", k, root)
                self.put("allowed", k, w.div(root, w.get(self.tolerance, c)))
                self.put("b", k, w.mul(offset, scale))
                self.put("x", k, w.mul(w.larger(guess, w.number(0)), root))
                self.m.set(w.at.add(k, w.whole(1)))

    def estimate_largest_eigenvalue(self) -> None:
        """Emits code that estimates the largest eigenvalue of A by the power method."""
        w = self.w
        with w.over(self.m.get()) as k:
            part = w.real_of(w.at.srem(k, w.whole(5)))
            self.put("p", k, w.add(w.number(1), w.mul(w.number(0.3), part)))
        square = w.variable(w.number(0))
        with w.over(w.whole(POWER)) as _:
            self.clear_velocities()
            with w.over(self.m.get()) as k:
                self.push_bodies(k, self.get("p", k))
            before, after = w.variable(w.number(0)), w.variable(w.number(0))
            before.set(w.number(0))
            after.set(w.number(0))
            with w.over(self.m.get()) as k:
                p, q = self.get("p", k), self.velocity(k)
                before.plus(w.mul(p, p))
                after.plus(w.mul(p, q))
                square.set(q)
                self.put("p", k, q)
            # only ratios count; a power of the eigenvalue would overflow
            self.largest.set(w.div(after.get(), before.get()))
            shrink = w.div(w.number(1), w.larger(self.largest.get(), w.number(1e-30)))
            with w.over(self.m.get()) as k:
                self.put("p", k, w.mul(self.get("p", k), shrink))
        self.largest.set(w.mul(w.number(SAFETY), w.larger(self.largest.get(), w.number(1))))

    def add_measures(self, k: ir.Value, x: ir.Value, g: ir.Value, of: dict[str, LoopVariable], step: ir.Value) -> None:
        """Emits code that adds contact k, with impulse x and gradient g, to the measures ``of``.

        They are the residual, relative to the tolerance, and the sizes of the free and the chopped gradient. ``step``:
        length of a projected gradient step, by which the free gradient is limited where the step would end at x = 0.
        """
        w, zero = self.w, self.w.number(0)
        free = w.less(zero, x)
        excess = w.mul(w.size(w.smaller(g, x)), self.get("allowed", k))
        of["residual"].set(w.larger(of["residual"].get(), excess))
        reduced = w.mul(g, w.smaller(g, w.div(x, step)))
        of["free"].plus(w.either(free, reduced, zero))
        chopped = w.either(free, zero, w.smaller(g, zero))
        of["chopped"].plus(w.mul(chopped, chopped))

    def set_direction(self) -> None:
        """Emits code that sets the direction p to the free gradient: g for contacts with x > 0, 0 for the others."""
        w, zero = self.w, self.w.number(0)
        with w.over(self.m.get()) as k:
            self.put("p", k, w.either(w.less(zero, self.get("x", k)), self.get("g", k), zero))

    def projection_step(self, step: ir.Value, free: bool) -> None:
        """Emits code for a projected gradient step of all contacts, or of those with x > 0 only (``free``).

        It also computes the new gradient and direction.
        """
        w, zero = self.w, self.w.number(0)
        with w.over(self.m.get()) as k:
            x = self.get("x", k)
            moved = w.larger(w.sub(x, w.mul(step, self.get("g", k))), zero)
            self.put("x", k, w.either(w.less(zero, x), moved, zero) if free else moved)
        self.gradient()
        self.set_direction()

    def iterate(self) -> None:
        """Emits the loop of iterations on the selected contacts, up to the tolerance or the limit."""
        w = self.w
        zero, one = w.number(0), w.number(1)
        self.estimate_largest_eigenvalue()
        self.gradient()
        self.set_direction()
        step = w.div(w.number(STEP), self.largest.get())
        of = {name: w.variable(zero) for name in ("residual", "free", "chopped")}
        exact = w.variable(one)

        def measure() -> None:
            for x in of.values():
                x.set(zero)
            with w.over(self.m.get()) as k:
                self.add_measures(k, self.get("x", k), self.get("g", k), of, step)

        measure()
        limit = w.index(self.limit, w.whole(0))

        def continues() -> ir.Value:
            known = w.at.fcmp_ordered(">=", w.add(of["free"].get(), of["chopped"].get()), w.number(-np.inf))
            unfinished = w.at.or_(w.less(one, of["residual"].get()), w.less(exact.get(), one))
            return w.at.and_(w.at.and_(unfinished, known), w.at.icmp_signed("<", self.count.get(), limit))

        with w.loop(continues):
            self.count.set(w.at.add(self.count.get(), w.whole(1)))
            finished = w.at.fcmp_ordered("<=", of["residual"].get(), one)
            proportional = w.at.fcmp_ordered("<=", of["chopped"].get(), of["free"].get())
            with w.at.if_else(finished) as (then, otherwise):
                with then:
                    # the gradient, updated over many steps, is computed afresh before the iteration ends
                    self.gradient()
                    self.set_direction()
                    measure()
                    exact.set(one)
                with otherwise, w.at.if_else(proportional) as (face, change):
                    with face:
                        self.conjugate(step, of, exact, measure)
                    with change:
                        self.projection_step(step, free=False)
                        measure()
                        exact.set(one)

    def conjugate(
        self, step: ir.Value, of: dict[str, LoopVariable], exact: LoopVariable, measure: Callable[[], None]
    ) -> None:
        """Emits code for a conjugate gradient step on the face, or for one to its boundary
        and a projected gradient step.

        ``step``: length of the projected step; ``of``: measures of `add_measures`, which are computed anew, after the
        projected step by the function ``measure``; ``exact``: variable, 1 if the gradient was computed by its
        definition, 0 if it was updated.
        """
        w, zero = self.w, self.w.number(0)
        self.clear_velocities()
        with w.over(self.m.get()) as k:
            self.push_bodies(k, self.get("p", k))
        curvature, slope, longest = (w.variable(zero) for _ in range(3))
        curvature.set(zero)
        slope.set(zero)
        longest.set(w.number(np.inf))
        with w.over(self.m.get()) as k:
            p, y = self.get("p", k), self.velocity(k)
            self.put("y", k, y)
            curvature.plus(w.mul(p, y))
            slope.plus(w.mul(p, self.get("g", k)))
            limit = w.either(w.less(zero, p), w.div(self.get("x", k), p), w.number(np.inf))
            longest.set(w.smaller(limit, longest.get()))
        length = w.div(slope.get(), curvature.get())
        inside = w.at.and_(w.less(zero, curvature.get()), w.at.fcmp_ordered("<=", length, longest.get()))
        with w.at.if_else(inside) as (then, otherwise):
            with then:
                product = w.variable(zero)
                product.set(zero)
                for x in of.values():
                    x.set(zero)
                with w.over(self.m.get()) as k:
                    p, y, old = self.get("p", k), self.get("y", k), self.get("x", k)
                    x = w.larger(w.sub(old, w.mul(length, p)), zero)
                    g = w.sub(self.get("g", k), w.mul(length, y))
                    self.put("x", k, x)
                    self.put("g", k, g)
                    product.plus(w.either(w.less(zero, x), w.mul(g, y), zero))
                    self.add_measures(k, x, g, of, step)
                ratio = w.div(product.get(), curvature.get())
                with w.over(self.m.get()) as k:
                    free = w.either(w.less(zero, self.get("x", k)), self.get("g", k), zero)
                    self.put("p", k, w.sub(free, w.mul(ratio, self.get("p", k))))
                exact.set(zero)
            with otherwise:
                # a direction without curvature goes on for ever, or to the boundary
                far = w.either(w.less(longest.get(), w.number(np.inf)), longest.get(), w.number(0))
                with w.over(self.m.get()) as k:
                    self.put("x", k, w.larger(w.sub(self.get("x", k), w.mul(far, self.get("p", k))), zero))
                    self.put("g", k, w.sub(self.get("g", k), w.mul(far, self.get("y", k))))
                self.projection_step(step, free=True)
                measure()
                exact.set(w.number(1))

    def write(self) -> None:
        w, zero = self.w, self.w.number(0)
        deepest, left = w.variable(zero), w.variable(w.whole(1))
        with w.over(self.contacts) as c:
            w.put(self.impulse, c, zero)
            offset = w.get(self.offset, c)
            deepest.set(w.larger(deepest.get(), w.sub(zero, offset)))
        cut = w.variable(w.mul(w.number(2), deepest.get()))
        with w.loop(lambda: w.at.icmp_signed(">", left.get(), w.whole(0))):
            self.select_contacts(cut.get())
            self.iterate()
            left.set(w.whole(0))
            with w.over(self.m.get()) as k:
                c = w.index(self.own["slot"], k)
                w.put(self.impulse, c, w.div(self.get("x", k), self.get("root", k)))
            # what was left out must stay open; the velocities are those of impulses x
            self.clear_velocities()
            with w.over(self.m.get()) as k:
                self.push_bodies(k, self.get("x", k))
            with w.over(self.contacts) as c:
                offset = w.get(self.offset, c)
                terms = [offset]
                for name, h in ((self.i, self.hi), (self.j, self.hj)):
                    body = w.index(name, c)
                    for a, v in enumerate(self.v):
                        x = w.get(h, w.at.add(w.at.mul(c, w.whole(self.D)), w.whole(a)))
                        terms.append(w.mul(x, w.get(v, body)))
                violated = w.less(w.add(*terms), w.sub(zero, w.get(self.tolerance, c)))
                outside = w.at.fcmp_ordered(">=", offset, cut.get())
                with w.at.if_then(w.at.and_(violated, outside)):
                    left.set(w.whole(1))
            # the second time with all
            cut.set(w.number(np.inf))
            with w.over(self.contacts) as c:
                w.put(self.guess, c, w.get(self.impulse, c))
        w.at.store(w.at.trunc(self.count.get(), w.int), self.iterations)
        w.at.ret_void()


@cache
def walk_text(D: int, real: type) -> str:
    """LLVM IR of the solver of this module (MPRGP, a walk over the pairs) for bodies of D coordinates; ``real``:
    the floating dtype."""
    return ContactLoops(D, real).text()


def solver(D: int, real: type, bodies: int) -> Callable[[list[np.ndarray], list[np.ndarray]], None]:
    """Compiled solver: a function of two lists of arrays, operands (i, j, hi, hj, offset, guess, tolerance,
    limit) of B lanes, and results.

    It fills in the results: impulses (B, m) and iterations (B,). Operands of a lane: bodies i and j (m,) of each
    contact, N for an obstacle; hi and hj (m, D), the gap's gradients by either body times H; gap velocities ``offset``
    (m,) without impulses; impulses ``guess`` (m,) to start from; ``tolerance``: residual [velocity]; ``limit`` (1,):
    largest number of iterations.

    Raises:
        Unsupported, ImportError: as `compile_module`.
    """
    code = compile_module(walk_text(D, real), loops=True)

    def lane(k: int, operands: list[np.ndarray], results: list[np.ndarray]) -> None:
        given = [np.ascontiguousarray(x[k]) for x in operands]
        given[5] = given[5].copy()  # it becomes the guess of a second try
        m = given[0].shape[0]
        own = [np.empty(m, np.int32) for _ in INTEGERS] + [np.empty(m, real) for _ in range(len(REALS) + 2 * D)]
        own += [np.empty(bodies + 1, real) for _ in range(D)]
        call_lane(code, (given, [x[k : k + 1] for x in results], own), m, bodies)

    return lambda operands, results: over_lanes(lambda k: lane(k, operands, results), results[1].shape[0])
