"""Loops whose bodies jax differentiates and batches once."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaximpact.jaxtools.loops import while_loop

asked = Counter()  # how often jax differentiated and batched a body
probe_p = Primitive("probe")
probe_p.def_abstract_eval(lambda x: x)
mlir.register_lowering(probe_p, lambda ctx, x: [x])


def _derived(primals, tangents):
    asked["derivative"] += 1
    return probe_p.bind(*primals), probe_p.bind(tangents[0])


def _batched(operands, axes):
    asked["batch"] += 1
    return probe_p.bind(*operands), axes[0]


ad.primitive_jvps[probe_p] = _derived
batching.primitive_batchers[probe_p] = _batched


def continues(constants, carry):
    return carry[0] < 5


def chain(constants, carry):
    """Numbers of which each follows the one before it a step later; the last has no derivative."""
    k, (a, b, c), fixed = carry
    return k + 1, (probe_p.bind(jnp.sin(a) + constants["rate"]), a * b, b + c * c), lax.stop_gradient(fixed + c)


def plain(continues, body, constants, carry):
    return lax.while_loop(lambda x: continues(constants, x), lambda x: body(constants, x), carry)


def results(loop):
    """Values, derivatives of two orders, and a batch of derivatives by a constant and a start."""

    def of(rate, fixed=1.0):
        start = jax.tree.map(jnp.asarray, (0, (0.3, 1.1, 0.7), fixed))
        return loop(continues, chain, {"rate": jnp.asarray(rate), "unused": jnp.asarray(2.0)}, start)

    real = lambda *x: of(*x)[1:]
    jacobian = jax.vmap(jax.jacfwd(real, argnums=(0, 1)))
    return (
        jax.jit(of)(0.2),
        jax.jit(jax.jacfwd(jax.jacfwd(real)))(0.2),
        jax.jit(jacobian)(0.2 + jnp.arange(3.0), 1 + jnp.arange(3.0)),
    )


def test_loop_is_the_plain_one_with_all_derivatives():
    for found, expected in zip(jax.tree.leaves(results(while_loop)), jax.tree.leaves(results(plain)), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_body_is_differentiated_once_and_batched_once_beside_the_search_for_its_axes():
    count = {}
    for loop in (while_loop, plain):
        asked.clear()
        start = (jnp.asarray(0), (jnp.asarray(0.3), jnp.asarray(1.1), jnp.asarray(0.7)), jnp.asarray(1.0))
        push = lambda change, loop=loop, start=start: jax.jvp(
            lambda rate: loop(continues, chain, {"rate": rate}, start)[1], (0.2,), (change,)
        )
        jax.make_jaxpr(jax.vmap(push))(jnp.arange(3.0))
        count[loop] = dict(asked)
    assert count[while_loop]["derivative"] == 1
    # once to see which axes come out, once with them; the plain one goes on until no more of the carry has one
    assert count[while_loop]["batch"] == 2 < count[plain]["batch"]
