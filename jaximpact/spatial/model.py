"""A `System` out of a model file, and its states as MuJoCo has them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from ..jaxtools.argument_checks import is_traced, real, short
from ..simulation.assemble import assemble
from .model_arrays import matrix_of
from .model_parts import (
    INVERSE,
)
from .pictures import Drawing, drawing_of
from .shapes import Vector
from .system import System
from .tree import RATES, SIZE
from .vectors import Tensor, quaternion_rate, rates_outside, rotation_of, times_quaternion

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class FileJoint:
    """A joint as its file has it.

    Attributes:
        name, kind: its name, and "free", "ball", "hinge" or "slider".
        place, dof: the first of its numbers in qpos and of those in qvel.
        ref: its coordinate at the start, of a hinge or slider.
        turn: quaternion of its body at the start.
        arm: centre of mass from its body's frame, in the axes of that, of a free one.
    """

    name: str
    kind: str
    place: int
    dof: int
    ref: float
    turn: tuple[float, ...]
    arm: Vector

    @property
    def own(self) -> slice:
        """Its numbers in qpos, and its coordinates."""
        return slice(self.place, self.place + SIZE[self.kind])

    @property
    def alone(self) -> tuple[tuple[int, float], ...]:
        """The coordinate of a hinge or slider, as a length of `model_parts`."""
        return ((self.place, 1.0),)


@dataclass(frozen=True)
class Model(System):
    """A `System` out of a model file, by `from_mjcf`.

    Its coordinates are as many as numbers in MuJoCo's ``qpos``, in the same order. Those of hinges and slides count
    from where the joint is at the start (``ref``, mostly 0); of free bodies they are the centre of mass and a
    quaternion since the start, of ball joints a quaternion since the start. Behind them come those of the pads of
    brakes, ``knee pad``, one for each joint or tendon with ``frictionloss``: they stay at zero.

    Attributes:
        file_joints: joints of the file.
        keyframes: name, qpos and qvel of each keyframe.
        sites: for each site, by name, its body and the point of that at the start.
        inputs: names of the actuators.
    """

    file_joints: tuple[FileJoint, ...] = ()
    keyframes: tuple[tuple[str, tuple[float, ...], tuple[float, ...]], ...] = ()
    sites: tuple[tuple[str, tuple[str, Vector]], ...] = ()
    inputs: tuple[str, ...] = ()

    def start(  # type: ignore[override]
        self, qpos: str | ArrayLike | None = None, qvel: ArrayLike | None = None, args: object = None, t0: float = 0.0
    ) -> tuple[Array, Array]:
        """Position and velocity (d,) at the start, consistent with equalities of the file.

        Args:
            qpos: position as MuJoCo has it (nq,), or the name of a keyframe of the file;
                by default the file's own start.
            qvel: velocity as MuJoCo has it (nv,); by default that of the keyframe, or zero.
            args, t0: parameters handed to functions, and time of the start [s].

        Raises:
            ValueError: there is no such keyframe, or the numbers are not as many as in the file,
                or a quaternion is zero.
        """
        own: Any = np.concatenate([self._file_start(x) for x in self.file_joints])
        speeds: Any = np.zeros(sum(RATES[x.kind] for x in self.file_joints))
        if isinstance(qpos, str):
            known = {name: state for name, *state in self.keyframes}
            if qpos not in known:
                raise ValueError(f"start: {qpos!r} is no keyframe; there are {', '.join(known) or 'none'}")
            own, speeds = known[qpos]
        elif qpos is not None:
            own = _numbers("qpos", qpos, len(own))
        if qvel is not None:
            speeds = _numbers("qvel", qvel, len(speeds))
        at, rates = (jnp.asarray(x, jnp.result_type(float)) for x in (own, speeds))
        turning = [x for x in self.file_joints if x.kind in ("free", "ball")]
        empty = [] if is_traced(at) else [x.name for x in turning if not np.any(np.asarray(at)[x.own][-4:])]
        if empty:
            raise ValueError(f"start: qpos of {empty[0]!r} has the quaternion 0: give one with a length")
        q, v = _states_from_file(self.file_joints, self.tree.size, at, rates)
        if not self._equations():
            return q, v
        return assemble(self.problem(), q, v, t0=t0, args=args)

    def qpos(self, q: ArrayLike) -> Array:
        """Position (nq,) as MuJoCo has it, at coordinates q (d,)."""
        return _states_to_file(self.file_joints, jnp.asarray(q), jnp.asarray(q))[0]

    def qvel(self, q: ArrayLike, v: ArrayLike) -> Array:
        """Velocity (nv,) as MuJoCo has it, at a state q, v (d,)."""
        return _states_to_file(self.file_joints, jnp.asarray(q), jnp.asarray(v))[1]

    def site(self, q: ArrayLike, name: str) -> Array:
        """Position (3,) of a site of the file, at coordinates q (d,)."""
        known = dict(self.sites)
        if name not in known:
            raise ValueError(f"site: {name!r} is none of the file; there are {', '.join(known) or 'none'}")
        body, at = known[name]
        return jnp.asarray(self.pose(jnp.asarray(q)).point(body, at))

    def view(self, azimuth: float = -60.0, elevation: float = 20.0) -> Drawing:
        shaped = [(name, body) for name, body in self.bodies if body.shape is not None]
        seen = SimpleNamespace(
            pose=self.pose, parts=self.parts, bodies=shaped or [x for x in self.bodies if x[1].weighs]
        )
        return drawing_of(seen, azimuth, elevation)

    def draw(self, ax: Axes, t: float, q: np.ndarray) -> None:
        self.view()(ax, t, q)

    def _file_start(self, joint: FileJoint) -> np.ndarray:
        if joint.kind == "ball":
            return np.array([1.0, 0.0, 0.0, 0.0])
        if joint.kind != "free":
            return np.array([joint.ref])
        centre = self.q0[joint.place : joint.place + 3]
        return np.concatenate([centre - matrix_of(np.array(joint.turn)) @ joint.arm, joint.turn])


def _numbers(name: str, given: ArrayLike, count: int) -> Any:
    found = given if is_traced(given) else real(name, given)
    if np.shape(found) != (count,):
        raise ValueError(f"start: {name} has {count} numbers in the file, got {short(given)}")
    return found


@partial(jax.jit, static_argnums=(0, 1))
def _states_from_file(joints: tuple[FileJoint, ...], size: int, at: Array, rates: Array) -> list[Array]:
    """Coordinates and their velocities (size,), from numbers in qpos and qvel; those of pads of brakes are zero. One
    program: of parts each is compiled."""
    pairs = [_from_file(x, at[x.own], rates[x.dof :]) for x in joints]
    pads = jnp.zeros(size - len(at), at.dtype)
    return [jnp.concatenate([*x, pads]) for x in zip(*pairs, strict=True)]


@partial(jax.jit, static_argnums=0)
def _states_to_file(joints: tuple[FileJoint, ...], q: Array, v: Array) -> list[Array]:
    """The inverse of `_states_from_file`; quaternions of length one."""
    pairs = [_to_file(x, q[x.own], v[x.own]) for x in joints]
    return [jnp.concatenate(x) for x in zip(*pairs, strict=True)]


def _from_file(joint: FileJoint, at: Array, rates: Array) -> tuple[Tensor, Tensor]:
    """Coordinates of a joint and their velocities, from its numbers in qpos, and those in qvel from its first on."""
    if joint.kind in ("hinge", "slider"):
        return at - joint.ref, rates[:1]
    before, back = (jnp.asarray(sign * np.array(joint.turn), at.dtype) for sign in (1.0, INVERSE))
    turn = at[-4:] / jnp.sqrt(at[-4:] @ at[-4:])
    if joint.kind == "ball":
        whole = times_quaternion(before, turn)
        p = times_quaternion(whole, back)
        return p, quaternion_rate(p, rotation_of(whole) @ rates[:3])
    p = times_quaternion(turn, back)
    rotation = rotation_of(turn)
    spin, arm = rotation @ rates[3:6], rotation @ jnp.asarray(joint.arm, at.dtype)
    return jnp.concatenate([at[:3] + arm, p]), jnp.concatenate(
        [rates[:3] + jnp.cross(spin, arm), quaternion_rate(p, spin)]
    )


def _to_file(joint: FileJoint, q: Array, v: Array) -> tuple[Tensor, Tensor]:
    """The inverse of `_from_file`."""
    if joint.kind in ("hinge", "slider"):
        return q + joint.ref, v
    before, back = (jnp.asarray(sign * np.array(joint.turn), q.dtype) for sign in (1.0, INVERSE))
    p = q[-4:] / jnp.sqrt(q[-4:] @ q[-4:])
    whole, spin = times_quaternion(p, before), rates_outside(q[-4:]) @ v[-4:]
    rotation = rotation_of(whole)
    if joint.kind == "ball":
        return times_quaternion(back, whole), rotation.T @ spin
    arm = rotation @ jnp.asarray(joint.arm, q.dtype)
    at = jnp.concatenate([q[:3] - arm, whole])
    return at, jnp.concatenate([v[:3] - jnp.cross(spin, arm), rotation.T @ spin])
