"""Model files of robots out of folders, such as unpacked wheels of gymnasium and dm_control, or MuJoCo Menagerie: which
ones are read, their accelerations beside MuJoCo's, and where they land.

Each file that MuJoCo compiles and that has a joint is read with all contacts; where these are refused, with primitive
geoms over planes alone; where that is, too, without contacts, and then with tendons around bodies, and fluids, set to
zero. Accelerations are those at a random state without contacts, limits, equalities and dry friction: the largest
difference by the largest of all. With --drop each model moves for .3 s from its first keyframe, or its start, beside
MuJoCo with its stiffest contact: see `landing`. The table has a line for each file, with what was refused, by its name.

A drop that takes more than --limit seconds of processor is left, and its status says so.

    python experiments/outside/model_files.py FOLDER [FOLDER or FILE ...] [--drop] --out out/outside
"""

from __future__ import annotations

import argparse
import copy
import signal
import sys
import time
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import mujoco  # noqa: E402
import numpy as np  # noqa: E402

import jaximpact as ji  # noqa: E402
from jaximpact import spatial  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from outside.tables import write_table  # noqa: E402

TENDONS = "tendon_stiffness", "tendon_damping", "tendon_limited", "tendon_frictionloss"
PLANE, SPHERE, CAPSULE, ELLIPSOID, BOX = 0, 2, 3, 4, 6
SHAPES = (SPHERE, CAPSULE, ELLIPSOID, BOX), (SPHERE, CAPSULE), (SPHERE,), ()
T1, STEP, STIFF_STEP, STIFF, STIFFEST, HEIGHT = 0.3, 1e-3, 2e-4, 4e-4, 0.9999, 1e-3
SOFT = "geom_{}", "jnt_{}", "eq_{}", "dof_{}", "pair_{}", "tendon_{}_lim", "tendon_{}_fri"
MARGINS = "geom_margin", "geom_gap", "jnt_margin", "pair_margin", "pair_gap", "tendon_margin"
LANDED = "gaps of drop", "landing", "of", "half step", "twice as soft", "moved", "seconds", "status"
MOST_GAPS = 60  # of a drop, which falls on spheres and capsules, or on spheres, where there are more


def compiled(path: Path) -> mujoco.MjModel | None:
    """A file's model; None of one that is a part of others, or in which nothing moves."""
    try:
        model = mujoco.MjModel.from_xml_path(str(path))
    except ValueError:
        return None
    return model if model.njnt else None


def as_it_is(model: mujoco.MjModel) -> mujoco.MjModel:
    return model


def on_planes(model: mujoco.MjModel, shapes: tuple[int, ...] = SHAPES[0]) -> mujoco.MjModel:
    """The model with those contacts alone that geoms of some ``shapes`` have with planes."""
    touches = (model.geom_contype | model.geom_conaffinity) > 0
    model.geom_contype[:] = touches & np.isin(model.geom_type, shapes)
    model.geom_conaffinity[:] = touches & (model.geom_type == PLANE)
    return model


def without_hindrances(model: mujoco.MjModel) -> mujoco.MjModel:
    for name in TENDONS:
        getattr(model, name)[:] = 0
    model.opt.density = model.opt.viscosity = 0
    return model


def difference(model: mujoco.MjModel) -> float:
    """The largest difference of accelerations by the largest of all, at a random state."""
    flags = int(model.opt.disableflags)
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
    data, rng = mujoco.MjData(model), np.random.default_rng(0)
    mujoco.mj_integratePos(model, data.qpos, 0.3 * rng.normal(size=model.nv), 1.0)
    data.qvel[:], data.ctrl[:] = rng.normal(size=model.nv), rng.normal(size=model.nu)
    mujoco.mj_forward(model, data)
    free = spatial.from_mjcf(model)
    model.opt.disableflags = flags
    args = {"ctrl": jnp.asarray(data.ctrl)}
    q, v = free.start(data.qpos, data.qvel)
    a = jnp.linalg.solve(free.mass(q, args), free.force(0.0, q, v, args))
    own = jax.jvp(free.qvel, (q, v), (v, a))[1]
    return float(np.abs(own - data.qacc).max() / np.abs(data.qacc).max())


def gaps_of(found: spatial.Model) -> list[str]:
    return [name for part in found.parts for name, _ in part.gap_names]


def to_drop(model: mujoco.MjModel) -> spatial.Model:
    """The model's system with contacts on planes, of fewer shapes where there are many gaps; without contacts where
    pairs that the file states are refused. MuJoCo's contacts are then the same."""
    for shapes in SHAPES:
        try:
            found = spatial.from_mjcf(on_planes(model, shapes))
        except ValueError:
            model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
            return spatial.from_mjcf(model)
        if len(gaps_of(found)) <= MOST_GAPS:
            break
    return found


def lowered(model: mujoco.MjModel, found: spatial.Model, qpos: np.ndarray, args: dict) -> np.ndarray:
    """The position (nq,) within the limits of hinges and slides, and just above its planes, where the model falls
    freely or along a vertical slide."""
    limited, qpos = model.jnt_limited.astype(bool) & (model.jnt_type > 1), qpos.copy()
    places = model.jnt_qposadr[limited]
    qpos[places] = np.clip(qpos[places], *(model.jnt_range[limited].T + np.array([[1e-6], [-1e-6]])))
    over = np.repeat(*zip(*((isinstance(x, spatial.Plane), len(x.gap_names)) for x in found.parts), strict=True))
    carried = model.body_parentid[model.jnt_bodyid] == 0
    rises = (model.jnt_type == 0) | ((model.jnt_type == 2) & (np.abs(model.jnt_axis[:, 2]) > 0.99))
    for j in np.flatnonzero(carried & rises)[:1]:
        if over.any():
            lowest = np.asarray(found.gaps(0.0, found.start(qpos, args=args)[0], args))[over].min()
            qpos[model.jnt_qposadr[j] + 2 * (model.jnt_type[j] == 0)] += HEIGHT - lowest
    return qpos


def after(model: mujoco.MjModel, begin: mujoco.MjData, softness: float) -> np.ndarray:
    """Where MuJoCo has a model (nq,) after the drop, with contacts of a time constant [s]."""
    model.opt.timestep = STIFF_STEP
    for name in SOFT:
        getattr(model, name.format("solref"))[:] = softness, 1.0
        getattr(model, name.format("solimp"))[:, :2] = STIFFEST
    for name in MARGINS:
        getattr(model, name)[:] = 0
    data = copy.copy(begin)
    for _ in range(round(T1 / STIFF_STEP)):
        mujoco.mj_step(model, data)
    return data.qpos.copy()


def landing(model: mujoco.MjModel) -> dict:
    """Where a model is after a drop, beside MuJoCo: the largest difference of its coordinates, in m or rad, how far one
    moved, and by how much the same coordinate is elsewhere with half the step here,
    and with contacts twice as soft there."""
    found, data = to_drop(model), mujoco.MjData(model)
    if model.nkey:
        mujoco.mj_resetDataKeyframe(model, data, 0)
    args, began = {"ctrl": jnp.asarray(data.ctrl)}, time.process_time()
    q, v = found.start(lowered(model, found, data.qpos, args), data.qvel, args)
    data.qpos[:], data.qvel[:] = found.qpos(q), found.qvel(q, v)
    start, problem = data.qpos.copy(), found.problem()

    def own(step: float) -> tuple[np.ndarray, ji.Solution]:
        end = ji.solve(problem, q, v, t1=T1, h=step, scheme=ji.MoreauJean(), args=args, save="final")
        return np.asarray(found.qpos(end.q[-1])), end

    def apart(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        between = np.zeros(model.nv)
        mujoco.mj_differentiatePos(model, between, 1.0, one, other)
        return np.abs(between)

    (here, end), (finer, _) = own(STEP), own(STEP / 2)
    spent = time.process_time() - began
    there, softer = (after(model, data, x) for x in (STIFF, 2 * STIFF))
    differences = apart(there, here)
    i = int(np.argmax(differences))
    return {"gaps of drop": len(gaps_of(found)), "landing": f"{differences[i]:.1e}",
        "of": model.joint(model.dof_jntid[i]).name,
            "half step": f"{apart(finer, here)[i]:.1e}", "twice as soft": f"{apart(softer, there)[i]:.1e}",
            "moved": f"{apart(start, there).max():.2f}", "seconds": f"{spent:.0f}",
            "status": str(ji.Status(int(end.status)))}  # fmt: skip


def landing_within(limit: float, model: mujoco.MjModel) -> dict:
    """Where a model lands, or in its status why that is not known: a refusal, or ``limit`` seconds of processor."""

    def stop(*_):
        raise TimeoutError

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, limit)
    try:
        return landing(model)
    except ValueError as error:
        return {"status": f"refused: {error}"[:200]}
    except TimeoutError:
        return {"status": f"not within {limit:.0f} s"}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def line(path: Path, drop: float) -> dict:
    """The table's line of a file, which is dropped where ``drop`` seconds of processor are given."""
    refused, how, gaps, brakes, apart = [], "refused", "", "", ""
    landed = dict.fromkeys(LANDED, "")
    for kind, contacts, of in (
        ("whole", "*", as_it_is),
        ("on planes", "*", on_planes),
        ("no contacts", (), as_it_is),
        ("less", (), without_hindrances),
    ):
        model = of(compiled(path))
        try:
            found = spatial.from_mjcf(model, contacts=contacts)
        except ValueError as error:
            refused.append(str(error).removeprefix("from_mjcf: ").split(", which is not read")[0])
            continue
        names = gaps_of(found)
        how, brakes = kind, str(sum(name.endswith(" brake") for name in names))
        gaps = str(len(names) - int(brakes))
        with jax.disable_jit():
            apart = f"{difference(model):.1e}"
        if drop:
            landed |= landing_within(drop, model)
        break
    return {"file": "/".join(path.parts[-2:]), "freedoms": model.nv, "read": how, "gaps": gaps, "brakes": brakes,
        "difference": apart,
            **landed, "refused": "; ".join(dict.fromkeys(refused))}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--drop", action="store_true", help="move each model beside MuJoCo, a minute each")
    parser.add_argument("--limit", type=float, default=120.0, help="processor seconds of a drop")
    parser.add_argument("--out", type=Path, default=Path("out/outside"))
    options = parser.parse_args()
    lines = []
    for path in (
        x for folder in options.folders for x in (sorted(folder.rglob("*.xml")) if folder.is_dir() else [folder])
    ):
        if compiled(path) is not None:
            lines.append(line(path, options.limit * options.drop))
            print("  ".join(f"{value!s:>12}" for value in lines[-1].values()), flush=True)
            write_table(options.out / "model_files.csv", lines)
    for how in ("whole", "on planes", "no contacts", "less", "refused"):
        print(f"{sum(x['read'] == how for x in lines)} of {len(lines)}: {how}")


if __name__ == "__main__":
    main()
