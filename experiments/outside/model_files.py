"""Model files of robots out of folders, such as unpacked wheels of gymnasium and dm_control: which ones are read, and their accelerations beside MuJoCo's.

Each file that MuJoCo compiles and that has a joint is read with all contacts; where these are refused, without; where that is, too, with frictionloss, springs
and limits of tendons, and fluids set to zero. Accelerations are those at a random state without contacts, limits and equalities: the largest difference
by the largest of all. The table has a line for each file, with what was refused, by its name.

    python experiments/outside/model_files.py FOLDER [FOLDER ...] --out out/outside
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import mujoco  # noqa: E402
import numpy as np  # noqa: E402

from jaximpact import spatial  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from outside.tables import write_table  # noqa: E402

HINDRANCES = "dof_frictionloss", "tendon_stiffness", "tendon_damping", "tendon_limited", "tendon_frictionloss"


def compiled(path: Path) -> mujoco.MjModel | None:
    """A file's model; None of one that is a part of others, or in which nothing moves."""
    try:
        model = mujoco.MjModel.from_xml_path(str(path))
    except ValueError:
        return None
    return model if model.njnt else None


def as_it_is(model: mujoco.MjModel) -> mujoco.MjModel:
    return model


def without_hindrances(model: mujoco.MjModel) -> mujoco.MjModel:
    for name in HINDRANCES:
        getattr(model, name)[:] = 0
    model.opt.density = model.opt.viscosity = 0
    return model


def difference(model: mujoco.MjModel, found: spatial.Model) -> float:
    """The largest difference of accelerations by the largest of all, at a random state."""
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
    data, rng = mujoco.MjData(model), np.random.default_rng(0)
    mujoco.mj_integratePos(model, data.qpos, 0.3 * rng.normal(size=model.nv), 1.0)
    data.qvel[:], data.ctrl[:] = rng.normal(size=model.nv), rng.normal(size=model.nu)
    mujoco.mj_forward(model, data)
    free = spatial.from_mjcf(model)
    args = {"ctrl": jnp.asarray(data.ctrl)}
    q, v = free.start(data.qpos, data.qvel)
    a = jnp.linalg.solve(found.mass(q, args), found.force(0.0, q, v, args))
    own = jax.jvp(free.qvel, (q, v), (v, a))[1]
    return float(np.abs(own - data.qacc).max() / np.abs(data.qacc).max())


def line(path: Path, model: mujoco.MjModel) -> dict:
    """The table's line of a file."""
    refused, how, gaps, apart = [], "refused", "", ""
    for kind, contacts, of in (
        ("whole", "*", as_it_is),
        ("no contacts", (), as_it_is),
        ("less", (), without_hindrances),
    ):
        try:
            found = spatial.from_mjcf(of(model), contacts=contacts)
        except ValueError as error:
            refused.append(str(error).removeprefix("from_mjcf: ").split(", which is not read")[0])
            continue
        how, gaps = kind, str(sum(len(part.gap_names) for part in found.parts))
        with jax.disable_jit():
            apart = f"{difference(model, found):.1e}"
        break
    return {"file": "/".join(path.parts[-2:]), "freedoms": model.nv, "read": how, "gaps": gaps, "difference": apart,
            "refused": "; ".join(dict.fromkeys(refused))}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("out/outside"))
    options = parser.parse_args()
    models = ((path, compiled(path)) for folder in options.folders for path in sorted(folder.rglob("*.xml")))
    lines = []
    for path, model in models:
        if model is not None:
            lines.append(line(path, model))
            print("  ".join(f"{value!s:>12}" for value in lines[-1].values()), flush=True)
    write_table(options.out / "model_files.csv", lines)
    for how in ("whole", "no contacts", "less", "refused"):
        print(f"{sum(x['read'] == how for x in lines)} of {len(lines)}: {how}")


if __name__ == "__main__":
    main()
