"""Which entries of a function depend on which: what has a derivative is found,
and what moves by itself is told apart."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaximpact.jaxtools.coupling import dependence, smallest_parts

MATRIX = np.arange(1.0, 10.0).reshape(3, 3)
PLACES = np.array([0, 1, 2, 4, 3, 5])


def of_bodies(q, v):
    x = q.reshape(2, 3)
    return (x * jnp.linalg.norm(x, axis=1, keepdims=True) - 2 * v.reshape(2, 3)).ravel()


def by_columns(q, v):
    x, y, z = q.reshape(2, 3).T
    return jnp.stack([0 * x, -y, jnp.where(z > 0, x, v[::3])], axis=1).ravel()


FORCES = {
    "known": (lambda q, v: jnp.full(6, -9.81), 1),
    "each": (lambda q, v: -3 * q * jnp.sin(v), 1),
    "bodies": (of_bodies, 3),
    "columns": (by_columns, 3),
    "product": (lambda q, v: (q.reshape(2, 3) @ MATRIX).ravel(), 3),
    "lanes": (lambda q, v: jax.vmap(lambda a, b: MATRIX @ a - b * b[::-1])(q.reshape(2, 3), v.reshape(2, 3)).ravel(),
    3), "swapped": (lambda q, v: jnp.stack([q[1], q[0], q[2], v[3], q[5], q[4]]), 2),
    "picked": (lambda q, v: q[PLACES], 3),
    "sum": (lambda q, v: jnp.cumsum(q), 6),
    "springs": (lambda q, v: jnp.diff(q, append=0.0) - jnp.diff(q, prepend=0.0), 6),
}  # fmt: skip


@pytest.mark.parametrize("name", FORCES)
def test_what_depends_on_what(name):
    force, size = FORCES[name]
    q, v = np.random.default_rng(1).uniform(0.5, 1.5, (2, 6))
    assert smallest_parts(force, (jnp.asarray(q), jnp.asarray(v))) == size
    both = lambda x: force(x[:6], x[6:])
    slopes = jax.jacfwd(both)(jnp.concatenate([q, v]))
    assert not np.any((np.asarray(slopes) != 0) & ~dependence(both, jnp.zeros(12)))


def test_parts_are_multiples_and_values_may_be_traced():
    assert smallest_parts(lambda q: -q, (jnp.zeros(6),), least=3) == 3
    sizes = []

    def traced(k, places):
        sizes.append(smallest_parts(lambda q: k * q, (jnp.zeros(6),)))
        # places that are not known when the program is made
        sizes.append(smallest_parts(lambda q: q[places], (jnp.zeros(6),)))
        return k

    jax.jit(traced)(2.0, jnp.arange(6))
    assert sizes == [1, 6]
