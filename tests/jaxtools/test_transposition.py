"""Transposes with branches that compute their values anew."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaximpact.jaxtools.jaxpr_tools import nested_jaxprs
from jaximpact.jaxtools.transposition import transpose


def conds(jaxpr):
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "cond":
            yield eqn
        for part in nested_jaxprs(eqn):
            yield from conds(part)


def branching(x):
    """Of three numbers; a branch computes seven on its way, in it are another branch, a loop and a scan."""

    def far(x):
        many = jnp.sin(jnp.outer(jnp.arange(7.0), x).sum(1))
        inner = lax.cond(many[1] > 0, lambda y: y * y * y[0], lambda y: jnp.exp(y), many)
        turns = lax.while_loop(lambda k: k[0] < 5 + x[0], lambda k: (k[0] + 1, 1.5 * k[1]), (0.0, 1.0))[1]
        steps = lax.scan(lambda y, z: (jnp.cos(y) * z, y * z), x, jnp.arange(1.0, 4.0))
        return inner[:3] * turns + steps[0], steps[1].sum(0) * lax.stop_gradient(turns)

    near = lambda x: (2 * x, jnp.ones(3))
    first, second = lax.cond(x[0] > 0, jax.jit(far), near, x)
    return lax.switch(x.size, [near, lambda x: (x, x), lambda y: (first * y, second)], x), first * second


@pytest.mark.parametrize("at", [[0.4, -0.3, 1.1], [-0.4, 0.2, 0.7]])
def test_transposes_with_branches_are_those_of_jax(at):
    at = jnp.asarray(at)
    change = jax.tree.map(lambda x: jnp.arange(1.0, 1 + x.size), jax.eval_shape(branching, at))

    def pulled(x):
        return transpose(lambda d: jax.jvp(branching, (x,), (d,))[1], x)(change)[0]

    expected = jax.vjp(branching, at)[1](change)[0]
    # sums of a few terms in another order
    np.testing.assert_allclose(jax.jit(pulled)(at), expected, rtol=1e-13, atol=1e-13)
    # no number of a branch leaves it for its derivative
    leaves = lambda f: any(v.aval.shape == (7,) for eqn in conds(jax.make_jaxpr(f)(at)) for v in eqn.outvars[1:])
    assert leaves(lambda x: jax.vjp(branching, x)[1](change)) and not leaves(pulled)
