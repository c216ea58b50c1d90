"""Systems out of model files of robots, MJCF and URDF, which MuJoCo reads: rigid contacts in place of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from jax import Array
from jax.typing import ArrayLike

from ..jaxtools.argument_checks import short
from ..planar.quantities import Number, Restitution
from .body import Body, Frame, composite
from .model import FileJoint, Model
from .model_arrays import BALL, FREE, KINDS, Arrays, matrix_of, point, quaternion_product, refuse
from .model_contacts import Geoms, check_patterns, matches
from .model_parts import (
    ANY,
    INVERSE,
    NONE,
    Actuator,
    Actuators,
    Arms,
    BallSpring,
    Brake,
    Chain,
    Cone,
    Connected,
    Drag,
    Geared,
    Lift,
    Limits,
    Springs,
)
from .parts import Part
from .shapes import Vector
from .tree import Motion


def inputs_of_args(t: ArrayLike, q: Array, v: Array, args: object) -> Any:
    """Inputs of the actuators: ``args["ctrl"]``, or zero where there is none."""
    return args["ctrl"] if isinstance(args, Mapping) and "ctrl" in args else 0.0


def from_mjcf(
    source: str | Path,
    restitution: Restitution = 0.0,
    friction: Number | str = "file",
    contacts: str | Sequence[str] = "*",
    limits: str | Sequence[str] = "*",
    parts: Sequence[Part] = (),
    control: Callable[..., ArrayLike] = inputs_of_args,
) -> Model:
    """Makes a `System` of a robot's model file, MJCF or URDF, which MuJoCo
    (``pip install '.[robots]'`` in a clone) reads.

    Its contacts are rigid: the file's parameters of soft ones are not read. What else is not read and would change the
    motion is refused by name.

    Args:
        source: path of the file, its text, or a `mujoco.MjModel`.
        restitution: Newton's coefficient of all contacts and limits, a number or a function of
            their speeds of approach and args.
        friction: Coulomb's coefficient of all contacts, a number or a function of args; "file" for those of the file.
        contacts: patterns of the names of contacts to be kept, such as "*-floor" or ("foot*", "hand*"); names are those
            of two geoms, "foot-floor".
        limits: patterns of the names of joints whose limits are kept.
        parts: other parts of `jaximpact.spatial` between bodies of the file, with points as it starts.
        control: inputs (n,) of the actuators, or one for all, ``control(t, q, v, args)``; by default ``args["ctrl"]``,
            zero without.

    Raises:
        ImportError: MuJoCo is not installed.
        ValueError: something of the file is refused, or a pattern matches nothing.
    """
    try:
        import mujoco
    except ImportError as error:
        raise ImportError("from_mjcf reads files by MuJoCo: pip install '.[robots]' in a clone") from error
    arrays = Arrays(_compiled(mujoco, source), mujoco.mjtDisableBit)
    arrays.check()
    if not arrays.model.njnt:
        raise ValueError("from_mjcf: the file has no joint: nothing in it moves")
    geoms = Geoms(arrays)
    builder = Builder(arrays)
    every = [
        *builder.chains(),
        *(Chain(key, body) for key, body in geoms.body.items()),
        *builder.forces(control),
        *builder.limits(limits, restitution),
        *geoms.contacts(contacts, friction, restitution),
        *builder.equalities(int(mujoco.mjtObj.mjOBJ_SITE)),
        *builder.brakes(),
        *parts,
    ]
    gravity = np.zeros(3) if arrays.disabled("GRAVITY") else arrays.model.opt.gravity
    model = arrays.model
    keys = zip(arrays.names_of("keyframe"), model.key_qpos, model.key_qvel, strict=True)
    return Model(
        bodies={**builder.bodies, **geoms.frames},
        parts=every,
        gravity=tuple(gravity.tolist()),
        file_joints=builder.joints,
        keyframes=tuple((name, tuple(at.tolist()), tuple(rates.tolist())) for name, at, rates in keys),
        sites=tuple((name, builder.site(i)) for i, name in enumerate(arrays.names_of("site"))),
        inputs=tuple(arrays.names_of("actuator")),
    )


def _compiled(mujoco: ModuleType, source: str | Path) -> Any:
    if isinstance(source, mujoco.MjModel):
        return source
    if not isinstance(source, str | PathLike):
        raise TypeError(
            f"from_mjcf: source must be a path, the text of a file or a mujoco.MjModel, got {short(source)}"
        )
    if isinstance(source, str) and source.lstrip().startswith("<"):
        return mujoco.MjModel.from_xml_string(source)
    return mujoco.MjModel.from_xml_path(str(source))


class Builder:
    """Bodies and parts of a file, as `System` takes them."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays, self.model = arrays, arrays.model
        self.bodies: dict[str, Body] = {}
        members: dict[int, list[int]] = {}
        for i in range(1, self.model.nbody):
            members.setdefault(arrays.carriers[i], []).append(i)
        for i in range(1, self.model.nbody):
            centre = arrays.at(i, self.model.body_ipos[i])
            found = [self._body(k) for k in members.get(i, []) if self.model.body_mass[k] > 0]
            found += [Body(x, np.full(3, x), self.arrays.at(i, np.zeros(3))) for x in self._rotor(i) if x]
            self.bodies[arrays.bodies[i]] = _as_one(found) if found else Frame(centre=centre)
        self.joints = tuple(self._joint(j) for j in range(self.model.njnt))

    def _rotor(self, i: int) -> list[float]:
        """The armature of a body that moves freely, a mass and inertia at its frame; none of others."""
        kinds = ((j, self.model.jnt_type[j]) for j in self.arrays.joints_of(i))
        return [float(self.arrays.of_dof("dof_armature", j)[0]) for j, kind in kinds if kind == FREE]

    def _body(self, i: int) -> Body:
        axes = self.arrays.axes(i, self.model.body_iquat[i])
        inertia = axes @ np.diag(self.model.body_inertia[i]) @ axes.T
        inertia = np.where(np.abs(inertia) < 1e-15 * np.abs(inertia).max(), 0, (inertia + inertia.T) / 2)
        try:
            return Body(float(self.model.body_mass[i]), inertia, self.arrays.at(i, self.model.body_ipos[i]))
        except ValueError as error:
            raise ValueError(f"from_mjcf: body {self.arrays.bodies[i]!r}: {error}") from None

    def _joint(self, j: int) -> FileJoint:
        model, kind, body = self.model, int(self.model.jnt_type[j]), int(self.model.jnt_bodyid[j])
        place, turn = int(model.jnt_qposadr[j]), self.arrays.turns[body]
        arm = np.zeros(3)
        if kind == FREE:
            centre = self.bodies[self.arrays.bodies[body]].centre
            arm = matrix_of(turn).T @ (np.array(centre) - self.arrays.places[body])
        ref = float(model.qpos0[place]) if kind > BALL else 0.0
        own = tuple(turn.tolist())
        return FileJoint(self.arrays.joints[j], KINDS[kind], place, int(model.jnt_dofadr[j]), ref, own, point(arm))

    def _ends(self, j: int) -> tuple[str, str]:
        """Names of the body of a joint and of what carries it."""
        body = int(self.model.jnt_bodyid[j])
        return self.arrays.bodies[body], self.arrays.bodies[self.model.body_parentid[body]]

    def chains(self) -> list[Part]:
        """Returns for each body the joints by which its parent carries it."""
        names, model = self.arrays.bodies, self.model
        return [
            Chain(names[i], names[model.body_parentid[i]], steps=tuple(map(self._motion, self.arrays.joints_of(i))))
            for i in range(1, model.nbody)
        ]

    def _motion(self, j: int) -> Motion:
        model, kind, body = self.model, int(self.model.jnt_type[j]), int(self.model.jnt_bodyid[j])
        name, armature = self.arrays.joints[j], self.arrays.of_dof("dof_armature", j)
        if kind == FREE:
            return Motion("free", self.bodies[self.arrays.bodies[body]].centre, name=name)
        axis = point(matrix_of(self.arrays.turns[body]) @ model.jnt_axis[j])
        at = self.arrays.at(body, model.jnt_pos[j])
        return Motion(KINDS[kind], at, axis if kind > BALL else (0.0, 0.0, 0.0), name, float(armature[0]))

    def forces(self, control: Callable[..., ArrayLike]) -> list[Part]:
        """Returns springs, dampers, actuators, and compensation of weights."""
        model, arrays = self.model, self.arrays
        springs = not (arrays.disabled("SPRING") or arrays.disabled("PASSIVE"))
        dampers = not (arrays.disabled("DAMPER") or arrays.disabled("PASSIVE"))
        found: list[Part] = []
        laws: list[tuple[Arms, float, float, tuple[float, float]]] = []
        for j, joint in enumerate(self.joints):
            k = float(np.ravel(model.jnt_stiffness[j])[0]) * springs
            c = arrays.of_dof("dof_damping", j) * float(dampers)
            if not k and not c.any():
                continue
            a, b = self._ends(j)
            if joint.kind == "free":
                if k:
                    raise refuse("joint", joint.name, "a stiffness of a body that moves freely")
                found.append(Drag(a, at=point(arrays.places[model.jnt_bodyid[j]]), damping=(float(c[0]), float(c[3]))))
            elif joint.kind == "ball":
                rest = quaternion_product(np.array(joint.turn), model.qpos_spring[joint.own])
                rest = quaternion_product(rest, INVERSE * joint.turn)
                found.append(
                    BallSpring(a, b, place=joint.place, stiffness=k, damping=float(c[0]), rest=tuple(rest.tolist()))
                )
            else:
                at_rest = float(model.qpos_spring[joint.place]) - joint.ref
                laws.append((joint.alone, k, float(c[0]), (at_rest, at_rest)))
        for t, name in enumerate(arrays.names_of("tendon")):
            k, damping = (float(np.ravel(x[t])[0]) for x in (model.tendon_stiffness, model.tendon_damping))
            if k * springs or damping * dampers:
                arms, at = self._cord(name, t)
                low, high = (float(x) - at for x in model.tendon_lengthspring[t])
                laws.append((arms, k * springs, damping * dampers, (low, high)))
        first = self._ends(0)
        if laws:
            found.append(Springs(*first, laws=tuple(laws)))
        if len(model.actuator_trntype) and not arrays.disabled("ACTUATION"):
            found.append(self._actuators(first, control))
        lifts = [(int(i), model.body_gravcomp[i] * model.body_mass[i], model.body_ipos[i]) for i in range(model.nbody)]
        lifts += [(i, x, np.zeros(3)) for i in range(model.nbody) for x in self._rotor(i)]
        for i, mass, place in lifts:
            if mass and arrays.carriers[i] and not arrays.disabled("GRAVITY"):
                force = tuple((-mass * model.opt.gravity).tolist())
                found.append(Lift(arrays.bodies[i], at=arrays.at(i, place), force=force))
        return found

    def _cord(self, name: str, t: int) -> tuple[Arms, float]:
        """A fixed tendon as a length, and what is added to that for the length of the file."""
        pulled = self._of_tendon(t)
        if not pulled or not {joint.kind for joint, _ in pulled} <= {"hinge", "slider"}:
            raise refuse("tendon", name, "a path other than the sum of hinges and slides")
        return tuple((joint.place, factor) for joint, factor in pulled), sum(f * joint.ref for joint, f in pulled)

    def brakes(self) -> list[Part]:
        """Returns the dry friction of joints and tendons, and adds to ``bodies`` the pads that make it."""
        model, arrays = self.model, self.arrays
        found: list[Part] = []
        lossy: list[tuple[str, Arms, float]] = []
        if arrays.disabled("FRICTIONLOSS"):
            return []
        for j, joint in enumerate(self.joints):
            loss = float(arrays.of_dof("dof_frictionloss", j)[0])
            if loss and joint.kind not in ("hinge", "slider"):
                raise refuse("joint", joint.name, "frictionloss of a ball joint or a body that moves freely")
            lossy.append((joint.name, joint.alone, loss))
        losses = np.flatnonzero(model.tendon_frictionloss).tolist()
        names = arrays.names_of("tendon")
        lossy += [(names[t], self._cord(names[t], t)[0], float(model.tendon_frictionloss[t])) for t in losses]
        for name, arms, loss in lossy:
            if loss:
                key = f"{name} brake"
                self.bodies[key] = Frame()
                pad = Motion("slider", (0.0, 0.0, 0.0), (0.0, 0.0, 1.0), name=f"{name} pad", armature=1.0)
                found.append(Chain(key, steps=(pad,)))
                place = model.nq + len(found) // 2
                found.append(Brake(key, arms=arms, place=place, friction=loss, name=key))
        return found

    def _actuators(self, ends: tuple[str, str], control: Callable[..., ArrayLike]) -> Part:
        model = self.model
        found = []
        clamps = not self.arrays.disabled("CLAMPCTRL")
        for i, name in enumerate(self.arrays.names_of("actuator")):
            pulled = [(joint, float(model.actuator_gear[i, 0]) * factor) for joint, factor in self._pulled(i)]
            if not pulled or not {joint.kind for joint, _ in pulled} <= {"hinge", "slider"}:
                raise refuse(
                    "actuator", name, "a transmission other than to a hinge, a slide, or a fixed tendon of these"
                )
            if model.actuator_dyntype[i] or max(model.actuator_gaintype[i], model.actuator_biastype[i]) > 1:
                raise refuse(
                    "actuator", name, "a state of its own, or a law other than those of motor, position and velocity"
                )
            if getattr(model, "actuator_ctrlnum", np.ones(i + 1))[i] != 1:
                raise refuse("actuator", name, "other than one input")
            length = sum(factor * joint.ref for joint, factor in pulled)
            gain, bias = model.actuator_gainprm[i, :3].copy(), model.actuator_biasprm[i, :3].copy()
            gain[1:] *= model.actuator_gaintype[i] == 1
            bias *= model.actuator_biastype[i] == 1
            for law in (gain, bias):
                law[0] += law[1] * length  # coordinates count from the start, lengths of the file from zero
            inputs = _range(model.actuator_ctrllimited[i] and clamps, model.actuator_ctrlrange[i])
            force = _range(model.actuator_forcelimited[i], model.actuator_forcerange[i])
            arms = tuple((joint.place, factor) for joint, factor in pulled)
            found.append(Actuator(name, arms, tuple(gain.tolist()), tuple(bias.tolist()), inputs, force))
        limited = [j for j in range(model.njnt) if model.jnt_actfrclimited[j]]
        for j in limited:
            if model.jnt_actgravcomp[j]:
                raise refuse(
                    "joint", self.joints[j].name, "a compensation of weight by its actuators, which are limited"
                )
        ranges = tuple((self.joints[j].place, _range(True, model.jnt_actfrcrange[j])) for j in limited)
        return Actuators(*ends, every=tuple(found), ranges=ranges, control=control)

    def _pulled(self, i: int) -> list[tuple[FileJoint, float]]:
        """Joints that an actuator moves, of itself or by a fixed tendon, and their factors in its length;
        none by other transmissions."""
        kind, target = int(self.model.actuator_trntype[i]), int(self.model.actuator_trnid[i, 0])
        if kind in (0, 1):
            return [(self.joints[target], 1.0)]
        return self._of_tendon(target) if kind == 3 else []

    def _of_tendon(self, t: int) -> list[tuple[FileJoint, float]]:
        """Joints of a fixed tendon, and their factors; none of a tendon with a path around bodies."""
        model, first = self.model, int(self.model.tendon_adr[t])
        path = range(first, first + int(model.tendon_num[t]))
        if any(model.wrap_type[k] != 1 for k in path):
            return []
        return [(self.joints[model.wrap_objid[k]], float(model.wrap_prm[k])) for k in path]

    def limits(self, chosen: str | Sequence[str], restitution: Restitution) -> list[Part]:
        """Returns limits of the joints and tendons whose names match a pattern of ``chosen``."""
        model, cords = self.model, self.arrays.names_of("tendon")
        of = lambda limited: [] if self.arrays.disabled("LIMIT") else np.flatnonzero(limited).tolist()
        limited, strung = of(model.jnt_limited), of(model.tendon_limited)
        names = [self.joints[j].name for j in limited] + [cords[t] for t in strung]
        check_patterns("limits", chosen, names, names)
        found: list[Part] = []

        def add(ends: tuple[str, str], name: str, arms: Arms, at: float, span: np.ndarray, unit: str) -> None:
            low, high = (float(x) - at for x in span)
            found.append(Limits(*ends, arms=arms, low=low, high=high, unit=unit, name=name, restitution=restitution))

        for j, joint in ((j, self.joints[j]) for j in limited if matches(self.joints[j].name, chosen)):
            if joint.kind == "ball":
                high = float(model.jnt_range[j, 1])
                cone = Cone(*self._ends(j), place=joint.place, high=high, name=joint.name, restitution=restitution)
                found.append(cone)
            else:
                unit = "rad" if joint.kind == "hinge" else "m"
                add(self._ends(j), joint.name, joint.alone, joint.ref, model.jnt_range[j], unit)
        for t in (t for t in strung if matches(cords[t], chosen)):
            add(self._ends(0), cords[t], *self._cord(cords[t], t), model.tendon_range[t], "")
        return found

    def equalities(self, site: int) -> list[Part]:
        """Returns equalities that are active at the start; ``site`` is the number by which they
        say that they are of sites."""
        active = [] if self.arrays.disabled("EQUALITY") else np.flatnonzero(self.model.eq_active0).tolist()
        names = self.arrays.names_of("equality")
        return [self._equality(i, names[i], site) for i in active]

    def _equality(self, i: int, name: str, site: int) -> Part:
        model, arrays = self.model, self.arrays
        kind, data = int(model.eq_type[i]), model.eq_data[i]
        one, other = int(model.eq_obj1id[i]), int(model.eq_obj2id[i])
        law = tuple(float(x) for x in data[:5])
        if kind == 2:
            a, b = self.joints[one].alone, self.joints[other].alone if other >= 0 else NONE
            unit = "rad" if self.joints[one].kind == "hinge" else "m"
            return Geared(*self._ends(one), arms=a, other=b, coefficients=law, name=name, unit=unit)
        if kind == 3:
            a, b = (self._cord(self.arrays.names_of("tendon")[t], t)[0] if t >= 0 else NONE for t in (one, other))
            return Geared(*self._ends(0), arms=a, other=b, coefficients=law, name=name, unit="")
        if kind > 3:
            raise refuse("equality", name, "a kind other than connect, weld, joint and tendon")
        if model.eq_objtype[i] == site:
            bodies = [int(model.site_bodyid[x]) for x in (one, other)]
            points = [model.site_pos[x] for x in (one, other)]
            turns = [arrays.axes(b, model.site_quat[x]) for b, x in zip(bodies, (one, other), strict=True)]
        else:
            bodies = [one, other]
            points = [data[3:6], data[0:3]] if kind == 1 else [data[0:3], data[3:6]]
            turns = [arrays.axes(one, quaternion_product(np.array([1.0, 0, 0, 0]), data[6:10])) if kind else np.eye(3)]
            turns.append(matrix_of(arrays.turns[other]))
        first, last = (arrays.at(b, p) for b, p in zip(bodies, points, strict=True))
        turn = turns[1] @ turns[0].T
        pair = arrays.bodies[bodies[0]], arrays.bodies[bodies[1]]
        return Connected(*pair, ends=(first, last), name=name, turn=tuple(map(tuple, turn.tolist())) if kind else ())

    def site(self, i: int) -> tuple[str, Vector]:
        """Returns the body of a site, and its point at the start."""
        body = int(self.model.site_bodyid[i])
        return self.arrays.bodies[body], self.arrays.at(body, self.model.site_pos[i])


def _range(limited: object, limits: np.ndarray) -> tuple[float, float]:
    return (float(limits[0]), float(limits[1])) if limited else ANY


def _as_one(bodies: list[Body]) -> Body:
    """Returns the body that several make which are fixed to each other."""
    mass, centre, inertia = composite(bodies, np.zeros(3), None)
    return Body(mass, inertia, point(centre))
