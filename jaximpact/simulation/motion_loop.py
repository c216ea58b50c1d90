"""Start, steps and saved rows of one motion, for the loops of `lane_loop` and `batched_loop`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from ..jaxtools.array_types import B0, F0, I0, B_m, F_d, F_m
from ..jaxtools.batched_branch import run_where_pending
from ..jaxtools.derivative_rules import NO_DERIVATIVE, forward_first, guard_derivative
from ..jaxtools.jacobians import SMALL
from ..jaxtools.outlined import cold, outlined
from ..jaxtools.remembered import remember
from ..jaxtools.shapes import PyTree, as_array, as_array_tree, shape_of_result
from ..mechanics.contact import ContactLaw, Solved
from ..mechanics.linearisation import Metric, linearise
from ..mechanics.motion import Motion
from ..mechanics.noise import in_step
from ..mechanics.problem import Problem
from ..mechanics.saltation.corrected import Corrected, velocity_at_row_time
from ..mechanics.saltation.impact_times import status_at_end
from ..mechanics.saltation.jump_status import across_jumps, on_border_at_start, steep_status
from ..mechanics.saltation.starts import pressed_at_start, put_on_surfaces
from ..mechanics.saltation.tracked import Tracked
from ..mechanics.scheme import Info, JointInfo, State, Timing, finite
from ..mechanics.stability import state_switches, unstable
from ..mechanics.status import DERIVATIVES, FAILURES, Status, as_status
from ..mechanics.tunnelling import StepPath, looks_for_tunnelling, loses_the_gap, may_tunnel
from ..mechanics.unlocated import status_of_kinks
from ..results import LocatedImpacts, Solution
from .account import Account
from .admissible_start import admissible_start
from .ends import ALIGNED
from .partial_step import PartialStep
from .program import Program
from .rows import Row

if TYPE_CHECKING:
    from ..bodies.neighbours import Neighbours
    from ..mechanics.scheme import Scheme

_loses_the_gap = outlined(loses_the_gap)  # both of a full step and of one without contact

Carry = tuple[State, Row, Account]  # what a step takes and returns


class MotionLoop:
    """Parts of the time loop of one motion that `LaneLoop` and `BatchedLoop` share: start, step, rows, solution, and
    constants of the steps."""

    def __init__(self, program: Program, motion: Motion) -> None:
        self.program, self.problem, traits = program, motion.stated_in(program.problem), program.scheme.traits
        motion = motion._replace(by=program.by)
        # without restitution coupled impulses are the projection of the theory
        self.law = Solved(program.solver, couples=traits.restitution != "none")
        self.locates = traits.locates  # impacts, and makes part steps
        wanted = program.sensitivity in ("corrected", "discrete")
        self.touches = self.problem.constraints is not None
        differentiated = wanted and self.touches
        self.corrected = program.sensitivity == "corrected" and differentiated and not self.locates
        if self.corrected and self.problem.noise is not None:
            raise ValueError(
                "noise: the derivative across an impact depends on the random force of the very step in which it "
                "happens, which "
                f"{type(program.scheme).__name__} does not locate: give scheme=EventCorrected() or EventDriven(), or "
                "sensitivity='discrete' or 'none'"
            )
        if program.sensitivity == "discrete" and self.problem.listed and self.problem.rubs:
            raise ValueError(
                "sensitivity='discrete': of bodies in lists with friction only the derivative of the motion is known: "
                "give sensitivity='corrected', "
                "or of few bodies Bodies(lists=False), all pairs"
            )
        self.end = program.end
        if wanted and self.end.by_step:
            raise ValueError(
                f"sensitivity={program.sensitivity!r}: a motion that ends at rest or jammed, until=Until.at_rest(...), "
                "ends at a step, whose time has no "
                "derivative; give t1=solution.t[-1] in its place, or sensitivity='none'"
            )
        self.scheme: Scheme = program.scheme
        if self.corrected:
            self.scheme = Corrected(program.scheme, program.per_lane_branches, rubs=self.problem.rubs)
        self.tells = self.corrected or (differentiated and self.locates)  # where derivatives are not to be trusted
        self.tells_jumps = program.sensitivity == "corrected" or (wanted and self.locates)
        self.scheme = self.scheme if self.tells_jumps else self.scheme.for_values()
        self.listed = self.problem.listed  # constraints are those of near pairs of bodies
        if program.impacts or self.end.located:
            self.scheme = self.scheme.observing(program.impacts, program.until, program.kinds)
        self.scheme = self.problem.gaps.stepped(self.scheme)
        # what a step needs of the motion, and no more: the speed at the start where the force may jump
        begins = motion.q0 is not None
        jumps = begins and state_switches(self.problem, *motion.start) is not None
        v0 = lax.stop_gradient(motion.v0) if jumps or not begins else None
        self.moving = motion._replace(q0=None, v0=v0)
        # a scheme that can make part of a step makes the last one end at t1
        over = motion.time(motion.steps) - motion.t1
        self.over = jnp.where(over > ALIGNED * motion.h, over, 0) if self.locates else jnp.zeros_like(over)
        self.ended = self.moving._replace(t0=motion.t0 - self.over)  # the clock of the last state

    def admissible(self, motion: Motion, neighbours: Neighbours | None) -> tuple[Motion, F_m, JointInfo, I0]:
        """Makes the start admissible by `admissible_start`, and returns the same four results.

        Where derivatives are taken, the motion is differentiated as if its start were projected onto the surfaces of
        contacts that are closed and pressed together there, and the status includes the bits on derivatives at the
        start. ``neighbours``: the neighbour list, None without one.
        """
        law = replace(self.law, small_sets=False)
        problem = self.problem.near(neighbours)
        motion, impulse, joints, status = admissible_start(problem, law, motion)
        if self.tells:
            pressed, bits = pressed_at_start(problem, law, motion, self.program.per_lane_branches)
            # a velocity that is taken away is an impact at t0
            struck = (status & int(Status.START_VELOCITY_PROJECTED)) != 0
            status = status | bits | as_status(struck, Status.DERIVATIVE_AT_END)
            motion = put_on_surfaces(problem, motion, pressed)
        if self.tells_jumps and not self.locates:
            status = status | on_border_at_start(self.problem, motion)
        return motion, impulse, joints, status

    def begin(self, motion: Motion) -> tuple[State, Row, Account]:
        """The carry before the first step: state of the scheme, `Row` and `Account`."""
        neighbours = self.problem.gaps.neighbours(motion.t0, motion.q0, motion.args)
        motion, impulse, joints, status = cold(self.admissible)(motion._replace(by=self.program.by), neighbours)
        state, info = self.scheme.init(self.problem, self.law, motion)
        q0, v0 = motion.q0, motion.v0
        # a zero that depends on v0 as later chords do, so that jax derives one loop, not one for the first step and one
        # for others
        pairs, touched, held = self.problem.gaps.pairs_of(state), self.has_touched(impulse, False), joints.impulse
        # a zero of its own, which depends on v0 as later impulses do
        none = info.friction.impulse + 0 * v0[0]
        before = (state, (impulse, held, none)) if self.locates else None
        row = Row(q0, v0, q0, impulse, 0 * v0, impulse, before, pairs, touched)
        row = row._replace(joint_impulse=held, joint_last=held, friction_impulse=none, friction_last=none)
        row = self.end.begin(row, state, motion)
        account = Account.start(status, motion.t0, joints.residual, info.error, info.near)
        return state, row, account.with_step(self.problem, motion, 0, state, info._replace(joints=joints))

    # steps

    def scheme_of_step(self, k: ArrayLike) -> Scheme | PartialStep:
        """Scheme for step k: shortened to end at t1 if it is the last and the scheme can make part of a step."""
        return PartialStep(self.scheme, self.length(k)) if self.locates else self.scheme

    def length(self, k: ArrayLike) -> F0:
        """Time () that step k takes: the last one may be shorter."""
        h = self.moving.h
        return jnp.where(k == self.moving.steps, h - self.over, h)

    def make_step(self, carry: tuple, k: ArrayLike, loses_second_derivative: bool = False) -> tuple:
        """Makes step k, by XLA or in native code; returns the carry (state, row, account) after it.

        ``loses_second_derivative``: result of the method of this name; if True,
        reverse mode inside another derivative raises.
        """
        full = lambda: self.contact_step(carry, k, loses_second_derivative)
        # through XLA a branch of a lane would be work for all of them, and a selection
        new, new_row, account = self.free_step_or(full, carry) if self.program.per_lane_branches else full()
        found = self.across_jumps(carry, (new, new_row, account))
        return self.end.after(self.problem, self.moving, carry, found)

    def contact_step(self, carry: tuple, k: ArrayLike, loses_second_derivative: bool = False) -> tuple:
        """Makes step k with the contact law; returns the carry after it. Arguments as in `make_step`."""
        state, row, account = carry
        law = self.law if self.listed or self.locates else self.law_after(row)
        new, info = self.scheme_of_step(k).step(in_step(self.problem, self.moving, state), law, self.moving, state)
        if self.looks_for_tunnelling(state):
            bits = self.tunnelling_status(self.step_path(state, new), lax.stop_gradient(info.impulse))
            info = info._replace(status=info.status | bits)
        new = forward_first(new) if loses_second_derivative else new
        # of a lane by itself the gaps of the state that the step leaves are known, and those of the last state are
        # added at the end; XLA computes the gaps of the state that it reaches apart from the step, whose bits then do
        # not depend on the size of a neighbour list
        counted = state if self.program.per_lane_branches else new
        account = account.with_step(self.problem, self.moving, k, counted, info)
        return new, self.row_of(new, info, row, state), account

    def law_after(self, row: Row) -> ContactLaw:
        """The contact law with a warm start from the impulses of the last step, whose row is given,
        if there are many contacts or friction.

        Coulomb's law may have several solutions; with this start the solver finds the one that
        the motion has followed so far.
        """
        m, k = row.friction_last.shape
        if m <= (1 if k else SMALL):
            return self.law
        return self.law.beginning(jnp.concatenate(lax.stop_gradient([row.last[:, None], row.friction_last]), axis=1))

    def free_step_or(self, contact_step: Callable[[], tuple], carry: tuple) -> tuple:
        """Makes a step of one lane without contact, or ``contact_step()`` if the free step is not valid;
        returns the carry after it."""
        state, row, account = carry
        new, info = self.scheme.free_step(in_step(self.problem, self.moving, state), self.moving, state)
        # impulses, failures and penetrations are rare; the depth of these counts for the account alone
        right = ~needs_contact_step(new, info)
        if self.program.account or self.locates:
            right &= jnp.all(self.problem.gaps(self.moving.time(state.n), state.q, self.moving.args) >= 0)
        status_alone = row.last.size > SMALL and not self.locates
        if (looks := self.looks_for_tunnelling(state)) and not status_alone:
            # in a batch, where other lanes make a full step, to look without one took an eighth longer
            right &= ~may_tunnel(self.problem, self.step_path(state, new))
        makes_rows = self.program.rows > 0 or self.end.by_step
        if not makes_rows or self.locates:
            right &= new.n < self.moving.steps  # the last step has all of one
        right = remember(right)
        counted = account.with_joints(info)._replace(iterations=account.iterations + info.iterations)
        if info.remark is not None:
            counted = counted.with_status(info.remark, self.moving.time(new.n))
        if looks and status_alone:
            # of many contacts one may be lost in every tenth step, and nothing is computed where the status is not read
            counted = counted.with_status(self.status_of_free_step(state, new), self.moving.time(new.n))
        if makes_rows:
            free_row = self.row_of(new, info, row, state)
        else:
            # the last row alone counts, which a contact step makes
            held = row.joint_impulse + info.joints.impulse
            free_row = row._replace(impulse=row.impulse + info.impulse, joint_impulse=held)
            if info.friction.impulse.size:
                # contacts that rubbed in the step before do so no longer, which `law_after` reads
                now = {"last": info.impulse, "friction_last": info.friction.impulse}
                free_row = free_row._replace(friction_impulse=row.friction_impulse + info.friction.impulse, **now)

        # a call, since jax differentiates and batches branches twice, but calls inside of them once
        @jax.jit
        def unnumbered_contact_step() -> tuple:
            found, *rest = contact_step()
            return with_step_number(found, None), *rest

        # the number of the step is that of all lanes, which spares them a choice
        found, *rest = lax.cond(
            right, lambda: (with_step_number(new, None), free_row, counted), lambda: unnumbered_contact_step()
        )
        return with_step_number(found, new.n), *rest

    def part_step(self, part: PartialStep, state: State) -> tuple[State, Info]:
        """Makes a part of a step, from a state up to the time of a row: the new state and its `Info`."""
        problem = in_step(self.problem, self.moving, state)

        @jax.jit  # see `free_step_or`
        def contact() -> tuple[State, Info]:
            return part.step(problem, self.law, self.moving, state)

        if not self.touches or not self.program.per_lane_branches:
            return contact()
        free = part.free_step(problem, self.moving, state)
        return lax.cond(needs_contact_step(*free), lambda: contact(), lambda: free)

    def row_of(self, state: State, info: Info, row: Row, begin: State) -> Row:
        """The row after a step that ends at ``state`` with this `Info`; ``row``: the one before it, ``begin``: the
        state at its beginning."""
        before, earlier = map(self.problem.gaps.before, (row.impulse, row.friction_impulse))
        whole = finite(state)
        impulse, held, rubbed = (
            jnp.where(whole, x, jnp.nan) if x.size else x
            for x in (before + info.impulse, row.joint_impulse + info.joints.impulse, earlier + info.friction.impulse)
        )
        kept = (begin, (before, row.joint_impulse, row.friction_impulse)) if self.locates else None
        pairs, touched = self.problem.gaps.pairs_of(state), self.has_touched(info.impulse, row.touched)
        stop = self.end.stop(row, state)
        others = {"joint_impulse": held, "joint_last": info.joints.impulse}
        others |= {"friction_impulse": rubbed, "friction_last": info.friction.impulse}
        return Row(
            state.q, state.v, info.z, impulse, info.chord, info.impulse, kept, pairs, touched, stop, row.watch, **others
        )

    def has_touched(self, impulse: F_m, before: Any) -> B0 | None:
        """Whether any contact has had an impulse so far, (); ``before``: whether one had before the last step.

        None unless derivatives of bodies in lists are corrected: in other rows the accumulated impulses show it.
        """
        return jnp.any(impulse > 0) | before if self.listed and self.corrected else None

    def looks_for_tunnelling(self, state: State) -> bool:
        """Whether steps of this motion can lead through an obstacle; a scheme that chooses its substeps looks
        at the gaps in each of them."""
        if self.scheme.traits.by_tolerance:
            return False
        return looks_for_tunnelling(self.problem, self.moving.time(state.n), state.q, self.moving.args)

    def step_path(self, state: State, new: State) -> StepPath:
        """Path of the position in a step from ``state`` to ``new``: straight, or a parabola for schemes that locate
        impacts, whose velocities belong to the ends of steps."""
        motion, shift = self.moving, new.q - state.q
        length = self.length(state.n + 1) if self.locates else motion.h
        bend = length * state.v - shift if self.locates else None
        return lax.stop_gradient(StepPath(motion.time(state.n), length, state.q, shift, motion.args, bend))

    def status_of_free_step(self, state: State, new: State) -> I0:
        """GAP_UNRESOLVED () if the step without impulses from ``state`` to ``new`` leads through an obstacle,
        else 0."""
        path = self.step_path(state, new)
        none = jnp.zeros_like(self.problem.gaps(path.t, path.q, path.args))
        look = lambda: self.tunnelling_status(path, none)
        return lax.cond(may_tunnel(self.problem, path), look, lambda: jnp.zeros((), jnp.int32))

    def tunnelling_status(self, path: StepPath, impulse: F_m) -> I0:
        """GAP_UNRESOLVED () if the ``path`` of a step leads through an obstacle, else 0.

        ``impulse`` (m,): impulse of the contacts in the step. If the scheme located an impact in the step, the status
        is 0: the motion changes direction there, and ``path`` is not what it follows.
        """
        acting, problem = impulse > 0, lax.stop_gradient(self.problem)

        def status(problem: Problem, path: StepPath, acting: B_m) -> I0:
            one = ~jnp.any(acting) if self.locates else True
            return as_status(_loses_the_gap(problem, path, acting) & one, Status.GAP_UNRESOLVED)

        if self.program.per_lane_branches:
            return status(problem, path, acting)
        # a batch of XLA computes it only if one of its lanes may have it
        pending = may_tunnel(problem, path) | jnp.any(acting)
        work = lambda _, none, given: status(*given)
        return run_where_pending(work, pending, jnp.zeros((), jnp.int32), (problem, path, acting))

    def across_jumps(self, before: tuple[State, Row, Account], after: tuple[State, Row, Account]) -> tuple:
        """The carry after a step with its derivatives corrected, if the force has a jump in the step;
        ``before`` and ``after``: carries.

        Where the correction is not known, the account gets the bit DERIVATIVE_JUMP.
        """
        (old, old_row, old_account), (new, row, account) = before, after
        acts = jnp.any((old_row.last > 0) | (row.last > 0))
        kinks = status_of_kinks(self.problem, self.moving, (old, new), acts, self.scheme.traits)
        if kinks is not None:
            kinks = kinks if self.tells_jumps else kinks & int(FAILURES)
            after = new, row, account.with_status(kinks, self.moving.time(new.n))
        if not self.tells_jumps or self.scheme.traits.tells_jumps:
            return after
        account = after[2]
        bit, impulses = int(Status.DERIVATIVE_JUMP), (old_row.impulse, row.impulse)
        new_bits = account.status & ~old_account.status & bit
        again = self.program.again or self.locates
        problem = in_step(self.problem, self.moving, old)
        found = across_jumps(problem, self.scheme, self.moving, (old, new), impulses, new_bits != 0, again)
        if found is None:
            return after
        new, bits = found
        account = account._replace(status=account.status & ~new_bits).with_status(bits, self.moving.time(new.n))
        return new, row._replace(q=new.q, v=new.v), account

    def check_stability(self, state: State, account: Account) -> Account:
        """Adds a failure to the account if the force is too stiff for h; checked at intervals,
        since it costs two force evaluations."""
        state, motion = lax.stop_gradient((state, self.moving))
        traits = self.scheme.traits
        if traits.explicit <= 0 and not traits.damping:
            return account
        problem = self.scheme.on_piece(self.problem, motion, state)
        bits = as_status(unstable(traits, problem, motion, state), Status.STEP_UNSTABLE)
        steep = steep_status(traits, problem, motion, state) if self.tells_jumps else None
        return account.with_status(bits if steep is None else bits | steep, motion.time(state.n))

    # rows

    def in_time(self, t: F0, row: Row, back: F0) -> Row:
        """The row at time t, which is ``back`` before the end of its step: interpolated,
        or by a part of a step if the scheme can make one."""
        h = self.moving.h
        if self.end.by_step:
            back = jnp.where(row.stop < t, 0, back)
        found = row.interpolated(back, h)
        if self.corrected:
            touched = jnp.any(found.impulse > 0) if found.touched is None else found.touched
            at = (t, found.q, found.v, touched & ~jnp.any(found.last > 0))
            found = found._replace(v=velocity_at_row_time(self.problem, self.scheme, self.moving, *at))
        if row.before is None:
            return found
        before, (impulse, held, rubbed) = row.before
        inside = back > ALIGNED * h

        def again() -> Row:
            part = PartialStep(self.scheme, jnp.where(inside, h - back, h))
            new, info = self.part_step(part, before)
            last = row._replace(impulse=impulse, joint_impulse=held, friction_impulse=rubbed)
            return self.row_of(new, info, last, before)._replace(before=None)

        return lax.cond(inside, again, lambda: found._replace(before=None))

    def value(self, t: F0, row: Row) -> PyTree:
        """What is saved of a row: the row itself, or the value of the save function."""
        if self.program.function is None:
            return row
        return as_array_tree(self.program.function(row.time(t), row.q, row.v, self.moving.args))

    def energy(self, t: F0, row: Row) -> Array | None:
        """Energy () at a row; None if the problem defines none."""
        found, args = self.problem.energy, self.moving.args
        if found is None:
            return None
        v = self.smooth_velocity(row.time(t), row)
        return jnp.asarray(found(row.time(t), row.q, v, args), row.q.dtype)

    def smooth_velocity(self, t: F0, row: Row) -> F_d:
        """Velocity (d,) of a ``row`` at time t, outside of impacts.

        If the row lies in the middle of an impact that takes two steps, it is the velocity before the impact.
        """
        traits, h, e, args = self.program.scheme.traits, self.moving.h, self.moving.e, self.moving.args
        if traits.steps < 2 or self.listed or not self.touches or row.friction_last.size:
            return row.v
        # the velocity at t0 is what a projection has left
        last = jnp.where(t - self.moving.t0 > ALIGNED * h, row.last, 0)

        def before() -> F_d:
            contacts = linearise(self.problem, Metric.at(self.problem, row.q, args, t), t, row.q, args)
            old = contacts.gap_velocity(row.v - contacts.jump(last))
            begun = contacts.gap_velocity(row.v) + e * old < 1e-6 * old  # all but round-off
            return row.v - contacts.jump(jnp.where(begun, last, 0))

        return lax.cond(jnp.any(last > 0), before, lambda: row.v)

    def close_account(self, state: State, row: Row, account: Account) -> Account:
        """Completes the account at the end of the motion: adds the last state, the check whether the force is too
        stiff, and bits on derivatives.

        If no derivatives were asked for, bits on derivatives are removed.
        """
        if self.program.per_lane_branches:  # in which a step counts the state that it leaves
            joints = JointInfo(row.joint_last, account.joint_residual)
            still = Info.none(state.q, state.v, len(row.impulse))._replace(joints=joints)
            account = account.with_step(self.problem, self.ended, self.moving.steps, state, still)
        account = self.check_stability(state, account)
        if self.tells:
            near = self.problem.near(getattr(state, "neighbours", None))
            status = status_at_end(near, self.scheme, self.ended, self.moving.steps, state)
            return account._replace(status=account.status | status).closed()
        unasked = 0 if self.tells_jumps and not self.tells else int(DERIVATIVES)
        return (account._replace(status=account.status & ~unasked) if self.locates else account).closed()

    def row_at_end(self, row: Row) -> Row:
        """Row at t1, from the ``row`` after the last step."""
        back = self.ended.time(self.moving.steps) - self.moving.t1
        return self.in_time(self.moving.t1, row._replace(before=None), back)

    def solution(
        self, state: Any, row: Row, rows: tuple, values: object, account: Account, pairs: Array | None = None
    ) -> Solution:
        """Solution from the last state and row, saved rows (t, q, v, z, impulse, energy, joint impulse, friction
        impulse), values of the save function, and account."""
        t, q, v, z, impulse, energy, joint_impulse, friction_impulse = rows
        events = LocatedImpacts(*state.record) if self.program.impacts else None
        stopped = jax.tree.map(jnp.isfinite, row.stop)
        more = {"pairs": pairs, "events": events, "stopped": stopped}
        more |= {"joint_impulse": joint_impulse if joint_impulse.shape[-1] else None}
        more |= {"friction_impulse": friction_impulse if friction_impulse.shape[-1] else None}
        more |= account._asdict()
        found = Solution(t, q, v, z, impulse, energy, values, timing=Timing.of(self.program.scheme), **more)
        return guard_derivative(found, NO_DERIVATIVE) if self.program.sensitivity == "none" else found

    def loses_second_derivative(self, q: F_d) -> bool:
        """Whether the step or the mass has derivative rules that jax loses in reverse mode
        inside another derivative."""
        if self.corrected or self.program.sensitivity not in ("corrected", "discrete"):
            return False
        if self.touches:
            return True
        mass = self.problem.mass
        mass = shape_of_result(as_array, mass, q, self.moving.args) if callable(mass) else mass
        return np.ndim(mass) > 1


def needs_contact_step(state: State, info: Info) -> B0:
    """Whether a free step is invalid, so that a contact step is needed."""
    return info.acts | (info.status != 0) | ~finite(state)


def with_step_number(state: State, n: Any) -> State:
    """Copy of a state with another step number."""
    return state._replace(state=with_step_number(state.state, n)) if isinstance(state, Tracked) else state._replace(n=n)
