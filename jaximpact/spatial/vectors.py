"""Vectors and rotations. Constants are numpy arrays, whose zeros fall out while a program is written (`written`);
everything else is an array of jax."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..jaxtools.argument_checks import is_traced

Tensor = np.ndarray | Array  # a number, vector or matrix: a constant, or an array of jax
ZERO = np.zeros(3)
IDENTITY = np.eye(3)


def is_zero(x: Tensor) -> bool:
    """Whether x is a constant, and zero."""
    return isinstance(x, np.ndarray) and not x.any()


def written(x: np.ndarray, like: Tensor) -> Tensor:
    """Returns a constant in the dtype of an array, so that a program of it knows its zeros, and of ones and zeros all.

    Native code takes other floats that a function closes over as inputs, so that programs that differ in them are one:
    it would multiply the zeros of the rotation about an axis of coordinates, too.
    """
    if x.all() or not is_traced(like):
        return x.astype(like.dtype)
    if np.isin(x, (-1, 0, 1)).all():
        return lax.convert_element_type(x.astype(np.int8), like.dtype)
    return lax.select(x != 0, x.astype(like.dtype), lax.full(x.shape, 0, like.dtype))


def alike(*xs: Tensor) -> tuple:
    """Returns the arrays with constants in the dtype of those of jax, as `written`."""
    of_jax = [x for x in xs if not isinstance(x, np.ndarray)]
    return tuple(written(x, of_jax[0]) if isinstance(x, np.ndarray) else x for x in xs) if of_jax else xs


def plus(*xs: Tensor) -> Tensor:
    """Returns the sum of vectors, or of matrices, some of which may be a column (3, 1) that is added to all."""
    some = alike(*(x for x in xs if not is_zero(x)))
    if not some:
        return max(xs, key=np.size)
    found, shape = sum(some[1:], some[0]), np.broadcast_shapes(*map(np.shape, xs))
    return found if found.shape == shape else jnp.broadcast_to(found, shape)


def scaled(factor: Tensor | float, x: Tensor) -> Tensor:
    return x if is_zero(x) else factor * x


def product(a: Tensor, b: Tensor) -> Tensor:
    """Returns the matrix a (m, n) times b (n,) or (n, k)."""
    if isinstance(a, np.ndarray) and a.shape == (3, 3) and np.array_equal(a, IDENTITY):
        return b
    if isinstance(b, np.ndarray) and b.shape == (3, 3) and np.array_equal(b, IDENTITY):
        return a
    if is_zero(a) or is_zero(b):
        return np.zeros(a.shape[:-1] + b.shape[1:])
    a, b = alike(a, b)
    return a @ b


def cross(a: Tensor, b: Tensor) -> Tensor:
    """Returns the cross product of a (3,) with b (3,), or with each column of b (3, k)."""
    if is_zero(a) or is_zero(b):
        return np.zeros(b.shape)
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.cross(a, b.T).T
    a, b = alike(a, b)
    a = a if b.ndim == 1 else a[:, None]
    # without gathers and stacks, which are operations of their own
    first = lambda x: np.concatenate if isinstance(x, np.ndarray) else jnp.concatenate
    once = lambda x: first(x)([x[1:], x[:1]])
    twice = lambda x: first(x)([x[2:], x[:2]])
    return once(a) * twice(b) - twice(a) * once(b)


def outer(a: Tensor, b: Tensor) -> Tensor:
    return a[:, None] * b[None, :]


def around(c: Tensor) -> Tensor:
    """Returns |c|^2 1 - c c' (3, 3): the inertia of a unit mass at c (3,) about the origin."""
    if is_zero(c):
        return np.zeros((3, 3))
    return (c @ c) * alike(IDENTITY, c)[0] - outer(c, c)


def turned(rotation: Tensor, inertia: Tensor) -> Tensor:
    """Returns R J R' for the inertia J (3, 3) of a body that is turned by R (3, 3)."""
    if isinstance(inertia, np.ndarray):
        moments = np.diag(inertia)
        if np.array_equal(inertia, np.diag(moments)) and not isinstance(rotation, np.ndarray):
            if np.ptp(moments) <= 1e-14 * moments.max():
                return inertia
            for axis in range(3):
                j, k = (moments[i] for i in range(3) if i != axis)
                if abs(j - k) <= 1e-14 * moments.max():
                    z = rotation[:, axis]
                    return j * alike(IDENTITY, z)[0] + (moments[axis] - j) * outer(z, z)
            rotation, moments = alike(rotation, moments)
            return (rotation * moments[None]) @ rotation.T
    return product(product(rotation, inertia), rotation.T)


def rotation_of(p: Tensor) -> Tensor:
    """Returns the rotation (3, 3) of the quaternion p/|p|, p (4,) = (w, x, y, z)."""
    w, x, y, z = p
    a = (2 / (p @ p)) * p
    ax, ay, az = a[1], a[2], a[3]
    wx, wy, wz, xx, xy, xz, yy, yz, zz = w * ax, w * ay, w * az, x * ax, x * ay, x * az, y * ay, y * az, z * az
    rows = [1 - yy - zz, xy - wz, xz + wy, xy + wz, 1 - xx - zz, yz - wx, xz - wy, yz + wx, 1 - xx - yy]
    return jnp.stack(rows).reshape(3, 3)


def rates_inside(p: Tensor) -> Tensor:
    """Returns the matrix 2 E(p)/|p|^2 (3, 4): its product with p' is the angular velocity in the axes of the body."""
    w, x, y, z = (2 / (p @ p)) * p
    return jnp.stack([-x, w, z, -y, -y, -z, w, x, -z, y, -x, w]).reshape(3, 4)


def rates_outside(p: Tensor) -> Tensor:
    """Returns the matrix 2 G(p)/|p|^2 (3, 4): its product with p' is the angular velocity in the axes outside of the
    body."""
    w, x, y, z = (2 / (p @ p)) * p
    return jnp.stack([-x, w, -z, y, -y, z, w, -x, -z, -y, x, w]).reshape(3, 4)


def quaternion_rate(p: Tensor, spin: Tensor) -> Tensor:
    """Returns p' (4,), with p . p' = 0, of a body with an angular velocity (3,) in the axes outside of the body."""
    return 0.25 * (p @ p) * (rates_outside(p).T @ spin)


def rotation_about(axis: np.ndarray, sine: Tensor, cosine: Tensor) -> Tensor:
    """Returns the rotation (3, 3) about a constant unit vector by the angle with this sine and cosine."""
    x, y, z = axis
    turn = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    square = turn @ turn
    still, odd, even = (written(x, sine) for x in (IDENTITY + square, turn, square))
    return still + sine * odd - cosine * even


def half_turned(rotation: Tensor) -> list:
    """Returns 2 sin(angle/2) times the axis of a rotation, as 3 numbers: twice the vector part of its quaternion.

    They are zero only where nothing is turned. At half a turn their sign is undefined, and they are of no use.
    """
    size = jnp.sqrt(jnp.maximum(1 + jnp.trace(rotation), 1e-2))
    return [(rotation[i, j] - rotation[j, i]) / size for i, j in ((2, 1), (0, 2), (1, 0))]


def times_quaternion(a: Tensor, b: Tensor) -> Tensor:
    """Returns the quaternion (4,) of the rotation b followed by the rotation a."""
    return jnp.concatenate([(a[0] * b[0] - a[1:] @ b[1:])[None], a[0] * b[1:] + b[0] * a[1:] + cross(a[1:], b[1:])])


def quaternion_by(vector: Tensor) -> Tensor:
    """Returns the unit quaternion (4,) of a rotation vector (3,): its direction is the axis,
    its length the angle [rad]."""
    square = vector @ vector
    small = square < 1e-8  # the series is then exact to 1e-18
    half = 0.5 * jnp.sqrt(jnp.where(small, 1, square))
    w = jnp.where(small, 1 - square / 8, jnp.cos(half))
    return jnp.concatenate([w[None], jnp.where(small, 0.5 - square / 48, 0.5 * jnp.sin(half) / half) * vector])


def rotation_vector(p: Tensor) -> Tensor:
    """Returns the rotation vector (3,), of a length up to pi, of the quaternion p (4,), of any length."""
    p = jnp.where(p[0] < 0, -p, p)
    square = p[1:] @ p[1:]
    small = square < 1e-8 * p[0] ** 2
    length, w = jnp.sqrt(jnp.where(small, 1, square)), jnp.where(p[0] == 0, 1, p[0])
    ratio = square / w**2
    return jnp.where(small, (2 - 2 * ratio / 3) / w, 2 * jnp.arctan2(length, p[0]) / length) * p[1:]


def basis_across(axis: np.ndarray) -> np.ndarray:
    """Returns two unit vectors (2, 3) across a constant unit vector (3,) and each other,
    along the axes of coordinates where they can be."""
    first = np.cross(np.eye(3)[np.argmin(np.abs(axis))], axis)
    first /= np.linalg.norm(first)
    across = np.stack([first, np.cross(axis, first)])
    across[np.abs(across) < 1e-15] = 0
    return across
