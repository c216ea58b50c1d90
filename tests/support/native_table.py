"""Functions of jax that native code has to compute as XLA does; `native_expressions.txt` has families of them,
one expression in each line.

x, y: numbers of every kind, side by side in all pairs; z, w: of order one, and what is none; k, l: whole numbers of
every size; u: such without sign; p, o: booleans; i, j: places within and without four entries, near and far; s: a
place; m: regular matrices, symmetric positive ones c, and r, which may be neither; all are of one lane.
"""

from itertools import product
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaximpact.compiler.llvm import over_lanes

TABLE = (Path(__file__).parent / "native_expressions.txt").read_text()


@jax.custom_jvp
def OWN_JVP(z):
    return jnp.sin(z)


OWN_JVP.defjvp(lambda primals, tangents: (OWN_JVP(*primals), 3 * tangents[0]))


@jax.custom_vjp
def OWN_VJP(z):
    return jnp.sin(z)


OWN_VJP.defvjp(lambda z: (jnp.sin(z), z), lambda z, g: (5 * g * z,))


def NEWTON(f, start):
    return lax.fori_loop(0, 60, lambda _, a: a - f(a) / jax.grad(f)(a), start)


def families():
    """Expressions by family of primitives."""
    found = {}
    for block in TABLE.strip().split("\n\n"):
        name, *lines = block.splitlines()
        found[name] = [line.strip() for line in lines]
    return found


NAMES = ("x", "y", "z", "w", "k", "l", "u", "p", "o", "i", "j", "s", "m", "c", "r")
PLACES = {"jax": jax, "jnp": jnp, "lax": lax, "OWN_JVP": OWN_JVP, "OWN_VJP": OWN_VJP, "NEWTON": NEWTON}


def function(expression):
    """Function of all operands that evaluates an expression."""
    return eval(f"lambda {', '.join(NAMES)}: {expression}", dict(PLACES))


def operands(dtype):
    """Operands of all lanes; neither they nor most of their products are denormal,
    since XLA flushes denormals to zero."""
    info, random = np.finfo(dtype), np.random.default_rng(0)
    tiny, most = float(info.tiny) ** 0.94, info.max
    real = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 3.0, np.pi / 2, 1e4 / 3, -1e6 / 3, tiny, -tiny, most, -most,
        np.inf, -np.inf, np.nan,
            info.eps, 1 - info.eps, 0.3, 88.1, -104.2]  # fmt: skip
    pairs = np.array(list(product(real, real)), dtype)
    lanes = -(-len(pairs) // 4)
    pairs = np.resize(pairs, (lanes * 4, 2))
    x, y = pairs.T.reshape(2, lanes, 4)
    z, w = random.normal(size=(2, lanes, 4)).astype(dtype)
    odd = random.random((lanes, 4)) < 0.1
    z[odd] = random.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], odd.sum())
    whole = [0, 1, -1, 2, 3, -3, 7, 31, 32, 33, -8, 2**31 - 1, -(2**31), 12345, -99, 100]
    k, l = np.resize(np.array(list(product(whole, whole)), np.int32), (lanes * 4, 2)).T.reshape(2, lanes, 4)  # noqa: E741
    u = k.astype(np.uint32)
    p, o = random.random((2, lanes, 4)) < 0.5
    i, j = random.integers(-6, 8, (2, lanes, 4)).astype(np.int32)
    far = random.random((lanes, 4)) < 0.05
    i[far] = random.choice([2**31 - 1, -(2**31), 100, -100], far.sum())
    m = random.normal(size=(lanes, 3, 3))
    c = m @ m.swapaxes(1, 2) + 2 * np.eye(3)
    r = m + m.swapaxes(1, 2)
    r[::7] = 0
    r[3::7, 1, 1] = np.nan
    r[5::7, 0, 1] = np.inf
    r[2::7] = c[2::7]
    m, c, r = (a.astype(dtype) for a in (m + 4 * np.eye(3), c, r))
    return [x, y, z, w, k, l, u, p, o, i, j, i[:, 0], m, c, r]


def lanewise(function, *lanes):
    """A function of one lane as native code, at the given lanes."""
    return over_lanes(jax.jit(function), (0,) * len(lanes))(*lanes)
