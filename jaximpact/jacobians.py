"""Dense Jacobians of motions, one or many at once, by the cheaper mode of automatic differentiation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from .ensemble import COMPILE, Axes, in_chunks, is_single, lane_axes, over_lanes, prepare
from .integrate import Lane, Plan, motion
from .problem import Problem
from .projection.base import ContactSolver
from .schemes.base import Scheme
from .solution import Solution
from .status import DOUBTS, FAILURES, Status, as_status, describe
from .validate import check_choice, told

NAMES = ("q0", "v0", "e", "args", "t0", "t1")


@dataclass(frozen=True)
class Sensitivities:
    """Outputs of motions and their Jacobians, numpy arrays; a batch adds a leading axis B to each.

    Attributes:
        value: the outputs, a dict or other pytree.
        jacobian: for each output a dict: name in ``wrt`` -> derivative of shape (*output, *input); for "args" a pytree
            like args, None where a leaf is not a real number.
        status: `Status` bits of each motion; those named DERIVATIVE_... say where not to trust the Jacobian.
        mode: "forward" or "reverse".
    """

    value: Any
    jacobian: Any
    status: np.ndarray
    mode: str

    @property
    def trusted(self) -> np.ndarray:
        """Whether the motion succeeded, its Jacobian is finite, and nothing is known against it."""
        return (self.status & int(FAILURES | DOUBTS)) == 0

    def describe_status(self) -> str:
        """The status bits set in any motion, in words."""
        return describe(int(np.bitwise_or.reduce(np.ravel(self.status))))


def state(solution: Solution) -> dict:
    """The default outputs: positions and velocities of the saved rows, without the row axis if there is one row only."""
    rows = 0 if solution.q.shape[0] == 1 else slice(None)
    return {"q": solution.q[rows], "v": solution.v[rows]}


def sensitivities(
    problem: Problem,
    q0: ArrayLike,
    v0: ArrayLike,
    *,
    t1: ArrayLike,
    h: ArrayLike,
    wrt: str | Sequence[str] = ("q0", "v0"),
    output: Callable[[Solution], Any] = state,
    t0: ArrayLike = 0.0,
    scheme: Scheme | None = None,
    projection: ContactSolver | None = None,
    args: Any = None,
    args_axes: Any = None,
    e: ArrayLike | None = None,
    save: Any = "final",
    sensitivity: str = "corrected",
    mode: str | None = None,
    chunk: int | None = None,
    progress: bool | None = None,
    layout: str = "array",
) -> Sensitivities:
    """Jacobians of what a motion, or each motion of a batch, gives, with respect to what it was given.

    Args:
        problem, q0, v0, t1, h, t0, scheme, projection, args, args_axes, e, save, chunk, progress, layout: as in
            `ensemble`, but layout "array" by default; where nothing carries a lane axis it is one motion, and results
            have no lane axis.
        wrt: names among "q0", "v0", "e", "args" (all its real numbers), "t0", "t1"; a name or several. With "t0" or
            "t1" the number of steps is kept, h stretches with t1 - t0.
        output: ``output(solution) -> pytree`` of arrays, of the `Solution` of one motion; by default {"q": ..., "v": ...},
            (d,) at t1, or (k, d) with saved rows. Keep the function: another one compiles anew.
        sensitivity: "corrected" or "discrete", as in `solve`.
        mode: "forward", "reverse", or by default the cheaper one: forward where inputs do not outnumber outputs.

    Returns:
        `Sensitivities`: ``found.jacobian["q"]["e"]`` is dq(t1)/de.

    Raises:
        ValueError, TypeError: as `ensemble`, or if ``wrt`` names something else.
    """
    if not isinstance(wrt, str | tuple | list):
        raise TypeError(f"wrt must be a name or several, among {', '.join(map(repr, NAMES))}, got {wrt!r}")
    wrt = (wrt,) if isinstance(wrt, str) else tuple(wrt)
    unknown = [name for name in wrt if name not in NAMES]
    if unknown or not wrt:
        raise ValueError(f"wrt={wrt!r}: name some of {', '.join(map(repr, NAMES))}")
    if "args" in wrt and args is None:
        raise ValueError("wrt names 'args', but args is None: hand the problem's numbers over in args")
    check_choice("sensitivity", sensitivity, ("corrected", "discrete"))
    check_choice("mode", mode, ("forward", "reverse", None))
    if not callable(output):
        raise TypeError("output must be a function output(solution) -> pytree of arrays")
    single = is_single(args_axes, (q0, 1), (v0, 1), (t0, 0), (t1, 0), (h, 0), (e, 0))
    q0 = np.asarray(q0)[None] if single else q0
    batch = prepare(problem, q0, v0, t0, t1, h, e, args, args_axes, scheme, projection, save, chunk, layout)
    if "args" in wrt and not any(jnp.issubdtype(x.dtype, jnp.floating) for x in jax.tree.leaves(batch.data.args)):
        raise ValueError("wrt names 'args', but args holds no real number: hand the problem's numbers over in args")
    plan = batch.plan._replace(sensitivity=sensitivity)
    system = (batch.data.problem, batch.scheme, batch.projection)

    def call(lane: Lane, leaves: tuple, structure: Any) -> Any:
        nonlocal mode
        choice = (batch.axes, structure, wrt, output)
        if mode is None:
            inputs, outputs = jax.eval_shape(partial(_sizes, *choice, plan=plan), *system, lane, leaves)
            mode = "forward" if inputs.size <= outputs.size + 1 else "reverse"
        # forward mode runs the loop of any number of steps, reverse mode one compiled for this number
        steps = plan._replace(length=None if mode == "forward" else int(lane.length))
        return _differentiate(*system, lane, leaves, *choice, steps, mode)

    (jacobian, (value, status)) = in_chunks(batch, call, progress)
    if single:
        jacobian, value, status = jax.tree.map(lambda x: x[0], (jacobian, value, status))
    assert mode is not None
    return Sensitivities(value, jacobian, status, mode)


def _motion(
    problem: Problem,
    scheme: Scheme,
    projection: ContactSolver,
    lane: Lane,
    leaves: tuple,
    structure: Any,
    wrt: tuple[str, ...],
    output: Callable[[Solution], Any],
    plan: Plan,
) -> tuple[Callable, dict[str, Any]]:
    """A function of the chosen inputs of one lane, and their values."""
    real = [jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in leaves]
    args = jax.tree.unflatten(structure, [leaf if r else None for leaf, r in zip(leaves, real, strict=True)])
    inputs = lane.inputs
    values = {"q0": lane.q0, "v0": lane.v0, "e": inputs.e, "args": args, "t0": inputs.t0, "t1": lane.t1}
    chosen = {name: values[name] for name in wrt}

    def function(chosen: dict[str, Any]) -> tuple[Any, tuple[Any, Array]]:
        now = values | chosen
        numbers = iter(jax.tree.leaves(now["args"]))
        full = jax.tree.unflatten(
            structure, [next(numbers) if r else leaf for leaf, r in zip(leaves, real, strict=True)]
        )
        stretch = (now["t1"] - now["t0"]) / (lane.t1 - inputs.t0)
        moved = lane._replace(q0=now["q0"], v0=now["v0"], t1=now["t1"])
        moved = moved._replace(inputs=inputs._replace(t0=now["t0"], h=inputs.h * stretch, e=now["e"], args=full))
        solution = motion(problem, scheme, projection, moved, plan)
        with told("output(solution)"):
            value = jax.tree.map(jnp.asarray, output(solution))
        return value, (value, solution.status)

    return function, chosen


def _sizes(
    axes: Axes,
    structure: Any,
    wrt: tuple[str, ...],
    output: Callable[[Solution], Any],
    problem: Problem,
    scheme: Scheme,
    projection: ContactSolver,
    lane: Lane,
    leaves: tuple,
    *,
    plan: Plan,
) -> Any:
    """Arrays as large as the inputs and the outputs of one lane."""

    def one(lane: Lane, leaves: tuple) -> tuple[Array, ...]:
        function, chosen = _motion(
            problem, scheme, projection, lane, leaves, structure, wrt, output, plan._replace(length=None)
        )
        value, _ = function(chosen)
        return tuple(jnp.zeros(sum(x.size for x in jax.tree.leaves(tree))) for tree in (chosen, value))

    sizes = jax.vmap(one, in_axes=lane_axes(axes, plan))(lane, leaves)
    return jax.tree.map(lambda x: x[0], sizes)


BLOCK = 256  # lanes of a small system differentiated together: their states stay in the cache


@partial(jax.jit, static_argnames=("axes", "structure", "wrt", "output", "plan", "mode"), compiler_options=COMPILE)
def _differentiate(
    problem: Problem,
    scheme: Scheme,
    projection: ContactSolver,
    lane: Lane,
    leaves: tuple,
    axes: Axes,
    structure: Any,
    wrt: tuple[str, ...],
    output: Callable[[Solution], Any],
    plan: Plan,
    mode: str,
) -> Any:
    transform = jax.jacfwd if mode == "forward" else jax.jacrev

    def one(lane: Lane, leaves: tuple) -> tuple[Any, tuple[Any, Array]]:
        function, chosen = _motion(problem, scheme, projection, lane, leaves, structure, wrt, output, plan)
        jacobian, (value, status) = transform(function, has_aux=True)(chosen)
        finite = [jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(jacobian)]
        lost = ~jnp.all(jnp.stack(finite)) if finite else jnp.asarray(False)
        return jacobian, (value, status | as_status(lost, Status.DERIVATIVE_NOT_FINITE))

    return over_lanes(one, lane_axes(axes, plan), plan, BLOCK)(lane, leaves)
