"""An event-driven reference motion with its exact derivative: no time-stepping scheme of jaximpact takes part.

Between events `scipy`'s DOP853 integrates the smooth motion together with its variational equation; persistent contacts
enter as constraints at the level of accelerations. Events are located to round-off. At an impact the velocity jumps by
Newton's law in the kinetic metric and the tangent by the saltation matrix

    dt* = -(df) / f'-,     dx+ = DR dx- + (DR F- + dR/dt - F+) dt*,     R(q, v) = (q, v+),

with F- and F+ the vector fields before and after, the latter with the contacts that stay closed (Leine & Nijmeijer,
Dynamics and Bifurcations of Non-Smooth Mechanical Systems, 2004, ch. 7). A contact opens where its multiplier changes
sign; the acceleration is continuous there, so the tangent needs no correction.

Of `jaximpact` only the statement of the problem is used: force, constraints, mass and args.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.integrate import DOP853
from scipy.optimize import brentq

from jaximpact import Problem

TOLERANCE = 1e-12  # of the integrator, relative and absolute
NODES = 9  # per step, where gaps and multipliers are looked at
STEPS = 16  # at least, per motion: with NODES, no excursion of a gap longer than 1/128 of the motion is overlooked
TOUCH = (
    1e-9  # gaps below which constraints are hit at the same instant, and from which an opened contact is watched again
)
ORDER = 1e-6  # relative difference of tangents from which the order of simultaneous impacts matters


class Impact(NamedTuple):
    """Time [s], constraint, and normal speed -f' > 0 before."""

    t: float
    constraint: int
    speed: float


@dataclass(frozen=True)
class Reference:
    """State at t1: ``q``, ``v`` (d,); ``jacobian`` maps a name to d(q, v)/d(name), (2d, size of it).

    The names are "q0", "v0", "e" and the keys of args where it is a dict, else "args" (flattened). ``impacts`` and
    ``releases``, (time, constraint) of every contact that opened, in order; ``closed`` the contacts closed at t1.
    """

    q: np.ndarray
    v: np.ndarray
    jacobian: dict[str, np.ndarray]
    impacts: tuple[Impact, ...]
    releases: tuple[tuple[float, int], ...]
    closed: tuple[int, ...]


# compiled pieces; a problem is a pytree whose functions are structure, so equal problems share one compilation


def _parts(problem, theta, unravel, t, q, v):
    """Gap (m,), its rate, G (m, d), M^-1 G' (d, m), Delassus (m, m), free acceleration (d,)
    and gap acceleration (m,)."""
    _, _, args = unravel(theta)

    def rate(t, q, v):
        return jax.jvp(lambda t, q: problem.gaps(t, q, args), (t, q), (jnp.ones_like(t), v))

    mass = problem.mass(q, args) if callable(problem.mass) else unravel(theta)[1]
    gradient = jax.jacfwd(lambda q: problem.gaps(t, q, args))(q)
    response, free = gradient.T, problem.generalised_force(t, q, v, args)
    if mass is not None:
        mass = jnp.asarray(mass)
        mass = mass if mass.ndim == 2 else jnp.diag(jnp.broadcast_to(mass, q.shape))
        solved = jnp.linalg.solve(mass, jnp.concatenate([response, free[:, None]], axis=1))
        response, free = solved[:, :-1], solved[:, -1]
    (gap, speed), (_, bend) = jax.jvp(rate, (t, q, v), (jnp.ones_like(t), v, free))
    return gap, speed, gradient, response, gradient @ response, free, bend


def _multiplier(delassus, residual, closed):
    """L with (S L + residual) = 0 on the closed contacts, 0 elsewhere."""
    if closed.size == 1:  # the common case, without a factorisation to compile
        return jnp.where(closed, -residual / delassus[0], 0.0)
    both = closed[:, None] & closed[None, :]
    return jnp.linalg.solve(jnp.where(both, delassus, jnp.eye(closed.size)), jnp.where(closed, -residual, 0.0))


def _parameters(problem, args):
    """All parameters as one vector (p,), restitution first, and the way back."""
    return ravel_pytree((problem.restitution, None if callable(problem.mass) else problem.mass, args))


def _field(problem, unravel, closed, t, x, theta):
    """x' = (v, a) with the contacts of the mask held closed."""
    q, v = jnp.split(x, 2)
    *_, response, delassus, free, bend = _parts(problem, theta, unravel, t, q, v)
    return jnp.concatenate([v, free + response @ _multiplier(delassus, bend, closed)])


@jax.jit
def _slope(problem, args, t, y, seed, closed):
    """Right-hand side of the motion and of its tangents X (2d, k); ``seed`` (p, k) are the
    tangents of the parameters."""
    theta, unravel = _parameters(problem, args)
    size = y.size // (1 + seed.shape[1])
    x, tangent = y[:size], y[size:].reshape(size, -1)
    field = lambda x, theta: _field(problem, unravel, closed, t, x, theta)
    by_x, by_theta = jax.jacfwd(field, argnums=(0, 1))(x, theta)
    return jnp.concatenate([field(x, theta), (by_x @ tangent + by_theta @ seed).ravel()])


@jax.jit
def _watch(problem, args, times, states, closed):
    """Gaps, their rates and the multipliers of the closed contacts at several states: (k, m) each."""
    theta, unravel = _parameters(problem, args)

    def at(t, x):
        gap, speed, *_, delassus, _, bend = _parts(problem, theta, unravel, t, *jnp.split(x, 2))
        return gap, speed, _multiplier(delassus, bend, closed)

    return jax.vmap(at)(times, states)


@jax.jit
def _probe(problem, args, t, x):
    """Gap, rate, M^-1 G', Delassus matrix and free gap acceleration at one state."""
    theta, unravel = _parameters(problem, args)
    gap, speed, _, response, delassus, _, bend = _parts(problem, theta, unravel, t, *jnp.split(x, 2))
    return gap, speed, response, delassus, bend


@jax.jit
def _saltation(problem, args, t, x, tangent, seed, hit, pushing, staying, before, after):
    """State and tangents after constraint ``hit`` (an index) is struck; the other arguments are masks (m,)."""
    theta, unravel = _parameters(problem, args)

    def jump(t, x, theta):
        q, v = jnp.split(x, 2)
        _, speed, _, response, delassus, _, _ = _parts(problem, theta, unravel, t, q, v)
        # e has no first-order effect on a motion that stays in contact
        e = jnp.where(staying, 0.0, jnp.broadcast_to(unravel(theta)[0], staying.shape))
        return jnp.concatenate([q, v + response @ _multiplier(delassus, (1 + e) * speed, pushing)])

    def gap(x, theta):
        return problem.gaps(t, x[: x.size // 2], unravel(theta)[2])[hit]

    along = lambda function, *tangents: jax.vmap(
        lambda *columns: jax.jvp(function, (t, x, theta)[-len(columns) :], columns)[1], in_axes=-1, out_axes=-1
    )(*tangents)
    after_x = jump(t, x, theta)
    old, new = _field(problem, unravel, before, t, x, theta), _field(problem, unravel, after, t, after_x, theta)
    speed = _parts(problem, theta, unravel, t, *jnp.split(x, 2))[1][hit]
    dt = -along(gap, tangent, seed) / speed
    return after_x, along(jump, dt, tangent + old[:, None] * dt[None, :], seed) - new[:, None] * dt[None, :]


@jax.jit
def _settle(problem, args, t, x, tangent, seed, closed):
    """The state and its tangents put onto gap = rate = 0 of the closed contacts, in the kinetic metric."""
    theta, unravel = _parameters(problem, args)

    def onto(x, theta):
        q, v = jnp.split(x, 2)
        gap, _, _, response, delassus, _, _ = _parts(problem, theta, unravel, t, q, v)
        q = q + response @ _multiplier(delassus, gap, closed)
        _, speed, _, response, delassus, _, _ = _parts(problem, theta, unravel, t, q, v)
        return jnp.concatenate([q, v + response @ _multiplier(delassus, speed, closed)])

    by_x, by_theta = jax.jacfwd(onto, argnums=(0, 1))(x, theta)
    return onto(x, theta), by_x @ tangent + by_theta @ seed


def complementary(matrix: np.ndarray, residual: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Mask of L > 0 in 0 <= L _|_ S L + r >= 0 restricted to ``among`` (a mask), by looking at every subset."""
    slack = 1e-10 * (1 + np.max(np.abs(residual), initial=0.0))
    places = np.flatnonzero(among)
    for size in range(places.size + 1):
        for subset in combinations(places, size):
            chosen = np.array(subset, int)
            multiplier = np.zeros(residual.size)
            multiplier[chosen] = np.linalg.solve(matrix[np.ix_(chosen, chosen)], -residual[chosen])
            if np.all(multiplier[chosen] > 0) and np.all((matrix @ multiplier + residual)[among] >= -slack):
                mask = np.zeros(residual.size, bool)
                mask[chosen] = True
                return mask
    raise ValueError("the contacts' gradients are dependent: no unique set of pushing contacts")


class _Motion:
    """A state (t, x, tangent) on its way, with the masks of closed contacts and of those not yet watched again."""

    def __init__(self, problem, args, t, x, tangent, seed, zeno_speed):
        self.problem, self.args, self.seed, self.zeno_speed = problem, args, seed, zeno_speed
        self.t, self.x, self.tangent = t, x, tangent
        self.impacts: list[Impact] = []
        self.releases: list[tuple[float, int]] = []
        gap, speed, *_, delassus, bend = self.probe()
        if np.any(gap < -1e-12):
            raise ValueError(f"q0 violates constraint {int(np.argmin(gap))}: its gap is {np.min(gap):.3g}")
        touching = gap <= 1e-12
        if np.any(touching & (speed < -1e-12)):
            raise ValueError("v0 points out of the admissible set: the motion would start with an impact")
        resting = touching & (np.abs(speed) <= 1e-12)
        self.closed = complementary(delassus, bend, resting)
        self.asleep = resting & ~self.closed
        self.settle()

    def probe(self, x=None):
        return [np.asarray(part) for part in _probe(self.problem, self.args, self.t, self.x if x is None else x)]

    def settle(self):
        """Take the drift off the closed contacts."""
        if not self.closed.any():
            return
        settled = _settle(self.problem, self.args, self.t, self.x, self.tangent, self.seed, self.closed)
        self.x, self.tangent = (np.asarray(part) for part in settled)

    def integrator(self, t_end, longest):
        def slope(t, y):
            return np.asarray(_slope(self.problem, self.args, t, y, self.seed, self.closed))

        y = np.concatenate([self.x, self.tangent.ravel()])
        return DOP853(slope, self.t, y, t_end, max_step=longest, rtol=TOLERANCE, atol=TOLERANCE)

    def follow(self, t_end):
        """Integrate to t_end without looking for events."""
        if abs(t_end - self.t) > 4 * np.finfo(float).eps * (1 + abs(self.t)):
            run = self.integrator(t_end, np.inf)
            while run.status == "running":
                run.step()
            if run.status == "failed":
                raise RuntimeError(f"the smooth motion could not be integrated beyond t = {run.t:g}")
            self.accept(run.t, run.y)

    def accept(self, t, y):
        self.t, self.x, self.tangent = t, y[: self.x.size], y[self.x.size :].reshape(self.tangent.shape)

    def advance(self, t1, longest):
        """Integrate to the next event and deal with it, or to t1."""
        run = self.integrator(t1, longest)
        while run.status == "running":
            run.step()
            if run.status == "failed":
                raise RuntimeError(f"the smooth motion could not be integrated beyond t = {run.t:g}")
            event = self.first_event(run.dense_output(), run.t_old, run.t)
            if event is not None:
                when, constraint, kind = event
                self.follow(when)
                self.strike(constraint) if kind == "impact" else self.release(constraint)
                return
            self.accept(run.t, run.y)

    def first_event(self, path, start, end):
        """(time, constraint, kind) of the first event of a step, or None."""
        times = np.linspace(start, end, NODES)
        states = path(times)[: self.x.size].T

        def look(t, which, constraint):
            return float(
                _watch(self.problem, self.args, np.array([t]), path(t)[None, : self.x.size], self.closed)[which][
                    0, constraint
                ]
            )

        gaps, speeds, multipliers = (np.asarray(a) for a in _watch(self.problem, self.args, times, states, self.closed))
        events = []
        for c in range(gaps.shape[1]):
            if self.closed[c]:
                below = np.flatnonzero(multipliers[:, c] < 0)
                if below.size:
                    i = below[0]
                    when = start if i == 0 else brentq(lambda t, c=c: look(t, 2, c), times[i - 1], times[i], xtol=1e-15)
                    events.append((when, c, "release"))
                continue
            first = 0
            if self.asleep[c]:
                above = np.flatnonzero(gaps[:, c] > TOUCH)
                first = above[0] if above.size else NODES
                if np.any(gaps[:first, c] < -TOUCH):
                    raise ValueError(
                        f"constraint {c} touches without pushing near t = {end:g}: the motion has a kink there"
                    )
                self.asleep[c] = not above.size
            for i in range(first, NODES - 1):
                when = self.crossing(
                    lambda t, which, c=c: look(t, which, c), times[i : i + 2], gaps[i : i + 2, c], speeds[i : i + 2, c]
                )
                if when is not None:
                    events.append((when, c, "impact"))
                    break
        return min(events) if events else None

    @staticmethod
    def crossing(look, times, gaps, speeds):
        """Where a gap first falls below 0 between two nodes, or None. The gap may start at 0, up to round-off,
        and rise."""
        (a, b), (s, r) = times, speeds
        if gaps[1] < 0:
            if gaps[0] <= 0:
                if s < 0:
                    return a
                a = brentq(lambda t: look(t, 1), a, b, xtol=1e-15)
                if look(a, 0) <= 0:
                    return a
        elif s < 0 < r and gaps[0] > 0:
            b = brentq(lambda t: look(t, 1), a, b, xtol=1e-15)
            if look(b, 0) >= 0:
                return None
        else:
            return None
        return brentq(lambda t: look(t, 0), a, b, xtol=1e-15)

    def release(self, constraint):
        self.releases.append((float(self.t), constraint))
        self.settle()
        self.closed = self.closed.copy()
        self.closed[constraint] = False
        self.asleep[constraint] = True

    def strike(self, constraint):
        """The impact of a constraint, and of those reached at the same instant."""
        for _ in range(2):  # Newton on the time of impact: the interpolant of a step is less exact than the step
            gap, speed, *_ = self.probe()
            self.follow(self.t - gap[constraint] / speed[constraint])
        gap, speed, *_ = self.probe()
        together = np.flatnonzero(~self.closed & ~self.asleep & (np.abs(gap) <= TOUCH) & (speed < 0))
        hits = [constraint, *(int(c) for c in together if c != constraint)]
        start = self.x, self.tangent, self.closed
        ends = []
        for order in (hits, hits[::-1])[: len(hits)]:
            self.x, self.tangent, self.closed = start
            struck = [self.strike_one(c) for c in order]
            ends.append((np.column_stack([self.x, self.tangent]), self.closed, struck))
        if len(ends) == 2 and np.max(np.abs(ends[0][0] - ends[1][0])) > ORDER * np.max(np.abs(ends[0][0])):
            raise ValueError(f"constraints {hits} are hit at once and not orthogonal: the motion has no derivative")
        self.impacts.extend(impact for impact in ends[-1][2] if impact is not None)
        self.settle()

    def strike_one(self, constraint) -> Impact | None:
        _, speed, response, delassus, _ = self.probe()
        if speed[constraint] >= 0:  # another impact of this instant has turned it round
            return None
        among = self.closed.copy()
        among[constraint] = True
        e = np.broadcast_to(np.asarray(self.problem.restitution), speed.shape)
        if abs(e[constraint] * speed[constraint]) < self.zeno_speed:
            e = np.where(among, 0.0, e)
        residual = (1 + e) * speed
        pushing = complementary(delassus, residual, among)
        impulse = np.asarray(_multiplier(delassus, residual, pushing))
        after = np.concatenate([self.x[: self.x.size // 2], self.x[self.x.size // 2 :] + response @ impulse])
        resting = pushing & (self.closed | (e == 0))
        *_, bend = self.probe(after)
        closed = complementary(delassus, bend, resting)
        masks = (pushing, closed, self.closed, closed)
        jumped = _saltation(self.problem, self.args, self.t, self.x, self.tangent, self.seed, constraint, *masks)
        self.x, self.tangent = (np.asarray(part) for part in jumped)
        self.asleep = np.where(resting & ~closed, True, self.asleep)
        self.closed = closed
        return Impact(float(self.t), constraint, float(-speed[constraint]))


def reference(
    problem: Problem, q0, v0, t1, args=None, e=None, *, t0=0.0, wrt=None, zeno_speed=1e-8, most_impacts=500
) -> Reference:
    """State at t1 and its derivative, to about 1e-10.

    Args:
        problem: force, constraints, mass; gradients of the constraints that touch at one time must be independent.
        q0, v0: start (d,), admissible. Contacts that rest at the start stay: their tangents are projected onto them.
        t1, t0: end and start [s]; t1 must not be an impact time.
        args: parameters of the problem's functions, a pytree of numbers.
        e: restitution in [0, 1], a scalar or one per constraint (m,); the problem's own by default.
        wrt: names of the columns wanted, all by default; ``()`` computes the motion alone, which is faster.
        zeno_speed: rebound speed below which a contact is taken to close (an error of this order in the Jacobian).
        most_impacts: RuntimeError beyond.

    Raises:
        ValueError: inadmissible start, simultaneous impacts on constraints that are not orthogonal, weak contact.
    """
    if not jax.config.read("jax_enable_x64"):
        raise ValueError("the reference needs float64: call jax.config.update('jax_enable_x64', True) first")
    if not t1 > t0:
        raise ValueError(f"t1 must be > t0 = {t0}, got {t1}")
    q0, v0 = (np.asarray(a, float) for a in (q0, v0))
    number = lambda tree: jax.tree.map(lambda a: np.asarray(a, float), tree)
    problem, args = number(problem if e is None else problem.replace(restitution=e)), number(args)
    if np.any((np.asarray(problem.restitution) < 0) | (np.asarray(problem.restitution) > 1)):
        raise ValueError(f"e must lie in [0, 1], got {problem.restitution}")

    tangent, seed, slices = _columns(q0, problem, args, wrt)
    motion = _Motion(problem, args, float(t0), np.concatenate([q0, v0]), tangent, seed, zeno_speed)
    events = 0
    while motion.t < t1:
        motion.advance(float(t1), (t1 - t0) / STEPS)
        events += 1  # bounces below the round-off of a gap would be neither impacts nor flights
        if len(motion.impacts) > most_impacts or events > 4 * most_impacts + 8:
            raise RuntimeError(
                f"more than {most_impacts} impacts before t = {motion.t:g}: raise zeno_speed or most_impacts"
            )
    q, v = np.split(motion.x, 2)
    jacobian = {name: motion.tangent[:, part] for name, part in slices.items()}
    closed = tuple(int(c) for c in np.flatnonzero(motion.closed))
    return Reference(q, v, jacobian, tuple(motion.impacts), tuple(motion.releases), closed)


def _columns(q0, problem, args, wrt):
    """Tangents of the state (2d, k) and of the parameters (p, k) at the start, and each name's columns."""
    d, e = q0.size, np.asarray(problem.restitution).size
    mass = 0 if callable(problem.mass) or problem.mass is None else np.asarray(problem.mass).size
    sizes = {"q0": d, "v0": d, "e": e, "mass": mass}
    if isinstance(args, dict):  # jax flattens a dict in the order of its sorted keys
        clash = set(args) & set(sizes)
        if clash:
            raise ValueError(
                f"args: the name {sorted(clash)[0]!r} is taken by an argument of the motion; choose another"
            )
        sizes |= {name: sum(np.size(leaf) for leaf in jax.tree.leaves(args[name])) for name in sorted(args)}
    else:
        sizes["args"] = sum(np.size(leaf) for leaf in jax.tree.leaves(args))
    ends = np.cumsum(list(sizes.values()))
    places = {name: np.arange(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True) if size}
    names = list(places) if wrt is None else list(wrt)
    unknown = [name for name in names if name not in places]
    if unknown:
        raise ValueError(f"wrt: no parameter {unknown[0]!r}; there are {', '.join(places)}")
    chosen = np.concatenate([np.zeros(0, int), *(places[name] for name in names)])
    identity = np.eye(int(ends[-1]))[:, chosen]
    stops = np.cumsum([places[name].size for name in names])
    slices = {name: slice(stop - places[name].size, stop) for name, stop in zip(names, stops, strict=True)}
    return identity[: 2 * d], identity[2 * d :], slices


def central_differences(problem: Problem, q0, v0, t1, args=None, e=None, *, wrt=None, step=1e-5, **options) -> dict:
    """The Jacobian of `reference` by central differences of its own motions: what its tangents are checked with.

    Error O(step^2) + 1e-11/step. The motions must have the same events on both sides; e must lie in (step, 1 - step).
    """
    names = ["q0", "v0", "e", *(sorted(args) if isinstance(args, dict) else ())] if wrt is None else list(wrt)
    e = problem.restitution if e is None else e
    given = {"q0": np.asarray(q0, float), "v0": np.asarray(v0, float), "e": np.asarray(e, float)}
    args = dict(args or {})

    def end(name, index, change):
        values = given | args
        moved = np.array(values[name], float)
        moved[index] += change
        values[name] = moved
        inner = {key: values[key] for key in args}
        found = reference(problem, values["q0"], values["v0"], t1, inner, values["e"], **options)
        return np.concatenate([found.q, found.v])

    jacobian = {}
    for name in names:
        shape = np.shape((given | args)[name])
        columns = [(end(name, i, step) - end(name, i, -step)) / (2 * step) for i in np.ndindex(shape)]
        jacobian[name] = np.stack(columns, axis=1)
    return jacobian
