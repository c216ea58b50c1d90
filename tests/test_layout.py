"""Both layouts give the same motion and the same derivatives, whatever scheme, projection and problem."""

import warnings

import jax
import jax.numpy as jnp
import methods
import numpy as np
import pytest

import jaximpact as ji


def force(t, q, v, args):
    c = args["m"] * jnp.sin(q[0] - q[1])
    return jnp.stack([-c * v[1] ** 2 - 9.81 * jnp.sin(q[0]), c * v[0] ** 2 - args["m"] * 9.81 * jnp.sin(q[1])])


def mass(q, args):
    c = args["m"] * jnp.cos(q[0] - q[1])
    return jnp.array([[1.0 + args["m"], 0.0], [0.0, args["m"]]]) + c * jnp.array([[0.0, 1.0], [1.0, 0.0]])


def walls(t, q, args):
    x = jnp.sin(q[0]) + jnp.sin(q[1])
    return jnp.stack([args["wall"] - x, args["wall"] + x + 0.1 * jnp.sin(3 * t)])


PENDULUM = ji.Problem(force, walls, mass, energy=lambda t, q, v, args: 0.5 * v @ mass(q, args) @ v)
ARGS = {"m": 0.7, "wall": 0.4}
Q0, V0 = np.array([[0.1, -0.2], [0.0, 0.1], [-0.1, 0.2]]), np.array([[1.5, 1.0], [-2.0, 0.3], [0.5, -1.0]])
SCHEMES = [methods.SCHEMES[name].scheme for name in methods.KINDS]
# roundings differ, and grow with the motion: a thousand units over 200 steps
CLOSE = {"rtol": 1e-11, "atol": 1e-11}
FIELDS = ("t", "q", "v", "z", "impulse", "energy", "penetration", "residual", "iterations", "status", "failed_at")


def compare(found, expected):
    for name in FIELDS:
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), err_msg=name, **CLOSE)


def options(scheme):
    return {"scheme": scheme, "args": ARGS, "e": 0.0 if isinstance(scheme, ji.Maury) else 0.6, "t1": 1.0}


@pytest.mark.parametrize(
    "save",
    ["final", *(pytest.param(save, marks=pytest.mark.slow) for save in (40, [0.1, 0.1003, 0.77, 1.0]))],
    ids=["final", "every", "times"],
)
def test_ensemble(save):
    given = options(ji.PaoliSchatzman()) | {"h": 0.005, "save": save}
    found = ji.ensemble(PENDULUM, Q0, V0, layout="scalar", **given)
    assert np.sum(found.impulse[:, -1] > 0) >= 2
    compare(found, ji.ensemble(PENDULUM, Q0, V0, layout="array", **given))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: type(s).__name__)
def test_schemes(scheme):
    given = options(scheme) | {"h": 0.01}
    found = ji.ensemble(PENDULUM, Q0, V0, layout="scalar", **given)
    compare(found, ji.ensemble(PENDULUM, Q0, V0, layout="array", **given))


@pytest.mark.slow
@pytest.mark.parametrize("projection", [ji.ProjectedGradient(), ji.ADMM()], ids=lambda p: type(p).__name__)
def test_projections(projection):
    given = options(ji.MoreauJean()) | {"h": 0.01, "projection": projection}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ji.JaximpactWarning)  # ADMM's eigenvalues are found on arrays
        found = ji.ensemble(PENDULUM, Q0, V0, layout="scalar", **given)
    expected = ji.ensemble(PENDULUM, Q0, V0, layout="array", **given)
    for name in ("q", "v", "impulse"):
        # both stop at 1e-12, which 100 steps carry on
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [SCHEMES[0], SCHEMES[2]], ids=lambda s: type(s).__name__)
def test_derivatives(scheme):
    given = {k: v for k, v in options(scheme).items() if k != "e"}

    def end(x, e, layout):
        found = ji.solve(PENDULUM, x[:2], x[2:], e=e, steps=100, save="final", layout=layout, **given)
        return jnp.concatenate([found.q[0], found.v[0]])

    starts = jnp.concatenate([Q0, V0], axis=1)

    def jacobian(transform, layout):
        one = transform(lambda x, e: end(x, e, layout), (0, 1))
        return jax.jit(jax.vmap(one, (0, None)))(starts, 0.6)

    for transform in (jax.jacfwd, jax.jacrev):
        for x, y in zip(jacobian(transform, "scalar"), jacobian(transform, "array"), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9)  # derivatives of 1e2 amplify the roundings


def test_lanes_do_not_depend_on_their_neighbours():
    lanes = 37
    rng = np.random.default_rng(0)
    q0, v0 = rng.uniform(-0.1, 0.1, (lanes, 2)), rng.normal(size=(lanes, 2))
    given = options(ji.PaoliSchatzman()) | {"h": 0.01, "layout": "scalar"}
    together = ji.ensemble(PENDULUM, q0, v0, **given)
    parts = ji.ensemble(PENDULUM, q0, v0, chunk=36, **given)  # and one alone
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(parts, name), getattr(together, name), err_msg=name)


def test_bad_layout_and_unknown_operations():
    with pytest.raises(ValueError, match="layout='scalars': choose one of 'auto', 'scalar', 'array'"):
        ji.ensemble(PENDULUM, Q0, V0, layout="scalars", h=0.1, **options(ji.MoreauJean()))
    odd = ji.Problem(lambda t, q, v, args: -jnp.linalg.eigvalsh(jnp.diag(q))[:1] - q, lambda t, q, args: q)
    with pytest.warns(ji.JaximpactWarning, match="no elementwise rule for eigh"):
        found = ji.ensemble(odd, np.array([[0.5], [0.4]]), [0.0], t1=1.0, h=0.01, e=0.5, layout="scalar")
    expected = ji.ensemble(odd, np.array([[0.5], [0.4]]), [0.0], t1=1.0, h=0.01, e=0.5, layout="array")
    np.testing.assert_allclose(found.q, expected.q, rtol=1e-12)
