"""`solve`, `ensemble` and `sensitivities` as users call them: their results have the problem's names and units."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from jax import Array
from numpy.typing import ArrayLike

from ..mechanics.contact.solver import ContactSolver
from ..mechanics.problem import Problem
from ..mechanics.scheme import Scheme
from ..mechanics.trials.stops import UntilLike
from ..results import Sensitivities, Solution
from ..results.save import SaveLike
from . import ensemble as _ensemble
from . import sensitivities as _sensitivities
from . import solve as _solve
from .call import Arguments, Call
from .sensitivities import state


def solve(
    problem: Problem,
    q0: ArrayLike,
    v0: ArrayLike,
    *,
    t1: ArrayLike,
    h: ArrayLike | None = None,
    steps: int | None = None,
    t0: ArrayLike = 0.0,
    scheme: Scheme | None = None,
    projection: ContactSolver | None = None,
    args: object = None,
    e: ArrayLike | None = None,
    friction: ArrayLike | None = None,
    static_friction: ArrayLike | None = None,
    key: Array | int | None = None,
    save: SaveLike = "all",
    until: UntilLike = None,
    sensitivity: str | None = None,
    progress: bool = False,
    execution: str = "auto",
) -> Solution:
    """Integrates one motion from (q0, v0) at t0 to t1.

    Steps of size h are made until the last lands at or beyond t1; the last row of the solution is the state at t1,
    interpolated between the two steps around it where t1 - t0 is no multiple of h. One trace serves all numbers of the
    same shapes and the same count of steps.

    Differentiable, in forward and reverse mode, and vmappable with respect to q0, v0, args, e, friction,
    static_friction, numbers that the problem's functions close over and, if ``steps`` is given in place of h, t0 and
    t1. Traced numbers are not checked. By default derivatives converge, as h -> 0, to those of the motion, also across
    impacts; the status says where they are not to be trusted (`Status`, DERIVATIVE_...).

    Args:
        problem: the mechanical system.
        q0: initial position (d,), admissible: every gap >= 0. Its dtype (float64 or float32) is that of the run.
        v0: initial velocity (d,); where it points out of the admissible set it is projected, with a warning.
        t1: final time > t0 [s].
        h: step [s], 0 < h <= t1 - t0; or ``steps``, their number, and h = (t1 - t0)/steps. Without both the scheme
            chooses its steps; there are then as many rows as ``save`` asks for, 200 for "all".
        scheme: by default, without h and steps, `EventDriven()`, to nine digits. With h or steps `PaoliSchatzman()`;
            `MoreauJean()` with joints, friction or a restitution that is a function; `EventDriven()` with ``reset``;
            for listed bodies `Maury()`, with friction `MoreauJean()`.
            Others: `Maury()` and `EventCorrected()`.
        projection: `ActiveSet()` (default, except for listed bodies), `ProjectedGradient()` or `ADMM()`.
        args: parameters handed to the problem's functions, any pytree of numbers and arrays.
        e: restitution in [0, 1], in place of the problem's own.
        friction: coefficients of friction >= 0, a number or (m,), in place of the problem's own;
            only for a problem that states ``slip``.
        static_friction: coefficients >= friction up to which contacts at rest stick, a number or (m,),
            in place of the problem's own.
        key: key of the random numbers of a problem with ``noise``, an int or `jax.random.key`. Steps count from t = 0:
            a motion continued from t0 > 0 with the same key and h has the numbers that it would have had.
        save: "all" steps, "final", every k-th step (k), an array of times, or `Save`.
        until: with `EventDriven`, a function (t, q, v, args) -> () or `Until`: the motion ends where it changes its
            sign, located to the accuracy of the scheme. ``solution.t[-1]`` and the last state have the derivative of
            the motion; ``solution.stopped`` says whether the function ended the motion before t1.
            With schemes of fixed steps `Until.at_rest` or, for listed bodies, `Until.jammed`: the motion ends at a
            step, without derivatives.
        sensitivity: which derivative the solution has. "corrected": that of the motion, to O(h), which is the discrete
            map's on smooth pieces and in lasting contact, with the saltation at impacts; "discrete": that of the
            discrete map, exactly (wrong across impacts for every h); "none": differentiation raises. The values are the
            same in all three. By default "corrected" under a transformation of jax, else "none", which costs nothing
            and sets no status bits on derivatives. Second derivatives must have forward mode inside: `EventCorrected`
            and `EventDriven` give those of the motion, "discrete" those of the discrete map; otherwise they raise.
        progress: show a progress bar; not under a transformation of jax.
        execution: "xla", compiled by XLA anew for every number of steps; "native", as native code of a CPU, compiled
            once for the problem and the methods, also within programs that jax transforms; "auto", native where the
            problem allows it, but XLA for one motion of many contacts. Values are equal up to rounding; ``iterations``
            of "native" are counted only in steps in which a contact may act.

    Returns:
        A `Solution`. Nothing raises inside the computation: see its ``status`` and ``raise_if_failed()``.

    Raises:
        ValueError, TypeError: an argument has a wrong shape, type or value; the message names it and says what to do.

    Reference: the schemes' own files; the limit as h -> 0 is the measure differential inclusion of Paoli (2010),
    (P1)-(P4).
    """
    call = _call(locals(), "sensitivity")
    return _solve.solve(call, sensitivity)._with_labels(problem.naming, call.saves_steps)


def ensemble(
    problem: Problem,
    q0: ArrayLike,
    v0: ArrayLike,
    *,
    t1: ArrayLike,
    h: ArrayLike | None = None,
    steps: int | None = None,
    t0: ArrayLike = 0.0,
    scheme: Scheme | None = None,
    projection: ContactSolver | None = None,
    args: object = None,
    args_axes: object = None,
    e: ArrayLike | None = None,
    friction: ArrayLike | None = None,
    static_friction: ArrayLike | None = None,
    key: Array | int | None = None,
    save: SaveLike = "final",
    until: UntilLike = None,
    chunk: int | None = None,
    progress: bool | None = None,
    execution: str = "auto",
) -> Solution:
    """Integrates B motions at once; B is the common length of the lane axes.

    Every argument may carry one leading axis of length B more than `solve` takes; without it the argument is shared by
    all lanes. Shapes with it: q0 and v0 (B, d); t0, t1 and h (B,); e, friction and static_friction (B,) or (B, 1), with
    one number for each contact (B, m), or (1, m) if shared. An e of shape (m,) is refused if m could be the number of
    lanes or of contacts. Lanes of different h over the same time make different numbers of steps; the total work stays
    within 1.3 times the sum of the steps.

    Args:
        problem, q0, v0, t1, h, t0, scheme, projection, args, e, friction, static_friction: as in `solve`,
            or with a lane axis.
        key: one key for all, of which lane i has ``jax.random.fold_in(key, i)``, or one for each lane, (B,), as
            `jax.random.split` returns.
        steps: in place of h, the number of steps of every lane; without both as in `solve`.
        args_axes: which leaves of args carry a lane axis, as `in_axes` of `jax.vmap`: 0 for all, None for none, or a
            pytree prefix of args of 0 and None.
        save: as in `solve`; "final" by default. With lanes of different step counts give times or "final".
        until: as in `solve`; each lane ends at its own time.
        chunk: number of lanes computed at once; by default as many as keep the saved rows of a chunk under 256 MB.
        progress: show a progress bar; by default on a terminal, for more than one chunk.
        execution: "xla", compiled by XLA as operations on all lanes, on every platform; "native", all steps of a motion
            as one loop of native code on a CPU; "kernel", this loop as a kernel of an NVIDIA GPU, a thread for each
            motion; "native" and "kernel" take small and middle-sized systems only; "auto", native or kernel where the
            problem and ``save`` allow it. Values are equal up to rounding; ``iterations`` of "native" are counted only
            in steps in which a contact may act.

    Returns:
        A `Solution` of numpy arrays with a leading axis B; of jax arrays that stay on the GPU if one computed them, and
        they take at most an eighth of its memory (`jax.device_get` copies them). Failed lanes are flagged in
        ``status``; once infinite or NaN they stay so. The other lanes are not affected.

    Raises:
        ValueError, TypeError: as `solve`, naming the trajectory where one is at fault.
    """
    call = _call(locals())
    return _ensemble.ensemble(call)._with_labels(problem.naming, call.saves_steps)


def sensitivities(
    problem: Problem,
    q0: ArrayLike,
    v0: ArrayLike,
    *,
    t1: ArrayLike,
    h: ArrayLike | None = None,
    steps: int | None = None,
    wrt: str | Sequence[str] = ("q0", "v0"),
    output: Callable[[Solution], object] = state,
    t0: ArrayLike = 0.0,
    scheme: Scheme | None = None,
    projection: ContactSolver | None = None,
    args: object = None,
    args_axes: object = None,
    e: ArrayLike | None = None,
    friction: ArrayLike | None = None,
    static_friction: ArrayLike | None = None,
    key: Array | int | None = None,
    save: SaveLike = "final",
    until: UntilLike = None,
    sensitivity: str = "corrected",
    mode: str | None = None,
    direction: Mapping[str, object] | None = None,
    chunk: int | None = None,
    progress: bool | None = None,
    execution: str = "auto",
) -> Sensitivities:
    """Jacobians of the outputs of one motion, or of each motion of a batch, with respect to its inputs.

    Args:
        problem, q0, v0, t1, h, steps, t0, scheme, projection, args, args_axes, e, friction, static_friction, key, save,
        chunk, progress,
            execution:
            as in `ensemble`. If no argument has a lane axis, there is one motion, and the results have no lane axis.
            Native code is used for forward mode with saved rows only for the default output, and for reverse mode on a
            CPU for lanes of as many steps.
        wrt: names among "q0", "v0", "e", "friction", "static_friction", "args" (all its real numbers), "t0", "t1"; a
            name or several. With "t0" or "t1" the number of steps is kept, h stretches with t1 - t0.
        output: ``output(solution) -> pytree`` of arrays, of the `Solution` of one motion; by default {"q": ...,
            "v": ...}, (d,) at t1, or (k, d) with saved rows, and with ``until`` the time "t" too. Pass the same
            function object in every call: a new one is compiled again.
        until: as in `ensemble`: for a motion that ends before t1, the derivatives are those of the time and the state
            at which it reaches the surface.
        sensitivity: "corrected" or "discrete", as in `solve`.
        mode: "forward", "reverse", or by default the cheaper one: forward if there are at most as many inputs as
            outputs, or up to 32 inputs and native code, and always for `EventDriven` with more than 100 trials.
        direction: changes of inputs by name, {"q0": (d,), ...}, broadcast to the inputs; of args a pytree with None for
            leaves that stay. The Jacobian is then one-sided: the limit of the Jacobians of motions displaced in this
            direction, to about the tolerance of `EventDriven`, which it needs. Where two impacts coincide and the
            motion is only piecewise smooth, this Jacobian times the direction is the derivative along the direction,
            the B-derivative of arXiv 2102.10702.

    Returns:
        `Sensitivities`: ``found.jacobian["q"]["e"]`` is dq(t1)/de. Arrays of a batch stay on a
            GPU as those of `ensemble` do.

    Raises:
        ValueError, TypeError: as `ensemble`, or if ``wrt`` names something else.
    """
    call = _call(locals(), "wrt", "output", "sensitivity", "mode", "direction")
    return _sensitivities.sensitivities(call, wrt, output, sensitivity, mode, direction)._with_labels(
        problem.naming, call.saves_steps
    )


def _call(given: Arguments, *others: str) -> Call:
    """The call of a function with the arguments ``given`` by name, ``others`` left out."""
    for name in others:
        del given[name]
    return Call(**given)


for _function in (solve, ensemble, sensitivities):
    _function.__module__ = "jaximpact"  # where they are found by name
