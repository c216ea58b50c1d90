"""Traces motions of several kinds while the shapes that annotations state are checked: ``-m support.checked_motions``.

Nothing is compiled: shapes are known where a program is traced.
"""

from . import shapes  # before the package, whose modules it checks as they are loaded

import jax  # isort: skip
import jax.numpy as jnp
import numpy as np

import jaximpact as ji
from jaximpact import catalogue
from jaximpact.bodies import ConjugateGradients
from jaximpact.extend import ContactSolver, solve_contact

SOLVERS = (ji.ActiveSet(), ji.ADMM(), ji.ProjectedGradient(), ConjugateGradients())
MOTIONS = {
    "groove": (ji.PaoliSchatzman(), ji.Maury(), ji.MoreauJean(), ji.EventDriven(trials=8)),
    "block-on-slope": (ji.MoreauJean(),),
    "ball-on-incline": (ji.MoreauJean(),),
    "four-bar": (ji.MoreauJean(), ji.Maury()),
    "spheres": (ji.MoreauJean(),),
}


def motion(name, scheme):
    entry = catalogue.get(name)
    case = next(iter(entry.cases.values()))
    e = 0.0 if isinstance(scheme, ji.Maury) else case.restitution
    options = {"steps": 4, "args": case.args, "e": e, "scheme": scheme}
    end = lambda q0: ji.solve(entry.problem, q0, case.v0, t1=case.t1, **options).q[-1].sum()
    start = jnp.asarray(case.q0, float)
    assert jax.eval_shape(end, start).shape == ()
    if name == "groove":
        assert jax.eval_shape(jax.grad(end), start).shape == start.shape


def contact_problem(solver: ContactSolver, m, k):
    rows = np.random.default_rng(0).normal(size=(m * (1 + k), m * (1 + k)))
    offset = jnp.ones((m, 1 + k) if k else m)
    solve = lambda b: solve_contact(rows @ rows.T, b, 0.3 if k else None, solver=solver).impulse
    assert jax.eval_shape(solve, offset).shape == offset.shape
    assert jax.eval_shape(jax.jacfwd(solve), offset).shape == 2 * offset.shape


def main():
    jax.config.update("jax_enable_x64", True)
    for name, schemes in MOTIONS.items():
        for scheme in schemes:
            motion(name, scheme)
    for solver in SOLVERS:
        for m, k in ((3, 0), (9, 0), (2, 1), (3, 2)) if solver == SOLVERS[0] else ((9, 0), (3, 2)):
            contact_problem(solver, m, k)
    try:
        ji.ActiveSet().allowed(jnp.zeros(3))  # of one speed
    except shapes.jaxtyping.TypeCheckError:
        print(f"{len(shapes.MODULES)} modules, {len(shapes.CHECKED)} functions")


if __name__ == "__main__":
    main()
