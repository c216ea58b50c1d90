"""Marked values of a function, which another one gets as inputs in place of computing them."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import jaxpr_as_fun

from jaximpact.jaxtools.jaxpr_tools import used_inputs
from jaximpact.jaxtools.remembered import marked_types, remember, with_marked_inputs, with_marked_outputs


def step(x):
    positive = remember(x > 0)
    root = jax.jit(lambda x: x * remember(jnp.sqrt(x)))
    return lax.cond(positive, root, lambda x: x - remember(jnp.stack([x, 2.0 * x]))[1], x)


def test_values_in_branches_are_given_and_taken():
    traced = jax.make_jaxpr(step)(1.0)
    assert [(x.shape, x.dtype.name) for x in marked_types(traced)] == [((), "bool"), ((2,), "float64"), ((), "float64")]
    forward, back = map(jaxpr_as_fun, (with_marked_outputs(traced), with_marked_inputs(traced)))

    @jax.jit
    def every(x):
        found, *known = forward(x)
        # what is given counts, and has no derivative
        others = [k if k.dtype == bool else k + 1.0 for k in known]
        again, other = (jax.value_and_grad(lambda x, some=some: back(x, *some)[0])(x) for some in (known, others))
        return (found, known), (again, other), jax.value_and_grad(step)(x)

    for x, marked, slope in ((4.0, (True, [0, 0], 2), 2), (-3.0, (False, [-3, -6], 0), 1)):
        (found, known), (again, other), right = every(x)
        assert right == again == (found, slope)
        for one, expected in zip(known, marked, strict=True):
            np.testing.assert_array_equal(one, expected)
        assert other == ((12, 3) if x > 0 else (2, 1))
    assert used_inputs(with_marked_inputs(traced)) == [True] * 4
