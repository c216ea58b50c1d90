"""A problem restricted to some of its contacts, and steps that look at those alone."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact.compiler.llvm import over_lanes
from jaximpact.mechanics.contact import Solved
from jaximpact.mechanics.linearisation import Metric, gap_derivatives, linearise
from jaximpact.mechanics.motion import Motion
from jaximpact.mechanics.saltation.corrected import Corrected
from jaximpact.mechanics.some_contacts import rows_that_matter, with_contacts

DISKS, RADIUS = 10, 0.1
PAIRS = np.triu_indices(DISKS, 1)
CENTRES = np.stack(np.divmod(np.arange(DISKS), 4), axis=1) * 0.25 + 0.12


def gaps(t, q, args):
    centre = q.reshape(-1, 2)
    i, j = PAIRS
    distance = jnp.sqrt(jnp.sum((centre[i] - centre[j]) ** 2, axis=1))
    return jnp.concatenate([distance - 2 * args, q - args, 1 + t - args - q])


def mixed(t, q, args):
    """Rows of one dense product, which are not told apart."""
    return jnp.cumsum(q) + args * q[0] ** 2


GAS = ji.Problem(lambda t, q, v, args: -0.3 * q, gaps)
rng = np.random.default_rng(7)
PLACE = jnp.asarray(CENTRES.ravel() + rng.uniform(-0.02, 0.02, 2 * DISKS))
SPEED = jnp.asarray(rng.normal(size=2 * DISKS))


@pytest.mark.parametrize("gaps, args, rows", [(gaps, RADIUS, [3, 44, 45, 84]), (mixed, 2.0, [0, 5, 19])])
def test_some_contacts_are_rows_of_all(gaps, args, rows):
    """Gaps, gradients, drifts and accelerations; of gaps whose rows hang together, too."""
    problem, rows, t = GAS.replace(constraints=gaps), jnp.asarray(rows), jnp.asarray(0.1)

    def look(problem):
        contacts = linearise(problem, Metric.at(problem, PLACE, args), t, PLACE, args)
        return contacts.gap, contacts.drift, contacts.jacobian, *gap_derivatives(problem, t, PLACE, SPEED, args)

    every, some = jax.jit(lambda: (look(problem), look(with_contacts(problem, rows, problem.count(t, PLACE, args)))))()
    for whole, part in zip(every, some, strict=True):
        np.testing.assert_allclose(part, whole[rows], rtol=1e-14, atol=1e-14)


def test_rows_in_order_with_the_nearest_beside_them():
    matters = np.zeros(9, bool)
    matters[[7, 2]] = True
    gap = jnp.array([0.5, 3.0, 9.0, 0.1, jnp.inf, 0.2, 4.0, -jnp.inf, 1.0])
    rows, fit = rows_that_matter(jnp.asarray(matters), gap, 4)
    assert rows.tolist() == [2, 3, 5, 7] and fit
    assert not rows_that_matter(jnp.asarray(matters), gap, 1)[1]


class Whole(Corrected):
    """Looks at all contacts."""

    def sizes_of_sets(self, *_):
        return ()


class Part(Corrected):
    """Looks at more contacts than need be, but not all."""

    def sizes_of_sets(self, *_):
        return (1, 40)


@pytest.mark.slow
def test_a_step_among_few_contacts_leaves_a_state_as_it_found_it():
    """In shapes and types, by tracing alone."""
    scheme, law = Corrected(ji.MoreauJean(), branches=True), Solved(ji.ActiveSet())
    motion = Motion(PLACE, SPEED, *map(jnp.asarray, (0.0, 1.0, 1e-3, 1000, 0.5)), RADIUS)
    start, _ = scheme.init(GAS, law, motion)
    assert scheme.sizes_of_sets(GAS, motion, start)
    step = lambda q: scheme.step(GAS, law, motion, start._replace(state=start.state._replace(q=q)))
    (state, info), _ = jax.eval_shape(lambda q: jax.jvp(step, (q,), (SPEED,)), PLACE)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, start)
    assert info.impulse.shape == (GAS.count(0.0, PLACE, RADIUS),)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [ji.MoreauJean(), ji.PaoliSchatzman()], ids=["moreau-jean", "paoli-schatzman"])
def test_a_step_among_few_contacts_is_that_among_all(scheme):
    """State, history, impulses and status bits of a step with an impact, and their tangents."""
    motion = Motion(PLACE, SPEED, *map(jnp.asarray, (0.0, 1.0, 1e-3, 1000, 0.5)), RADIUS)
    touching = PLACE.at[0].set(RADIUS - 1e-6).at[2:4].set(PLACE[:2] + jnp.array([2 * RADIUS - 1e-6, 0.0]))
    speed = SPEED.at[0].set(-1.0).at[2].set(-3.0)
    law, among_some = Solved(ji.ActiveSet()), Corrected(scheme, branches=True)
    start, _ = among_some.init(GAS, law, motion._replace(q0=touching, v0=speed))
    start = start._replace(state=start.state._replace(n=jnp.asarray(3, jnp.int32)), gap=start.gap + 1e-3)
    assert among_some.sizes_of_sets(GAS, motion, start) == (8, 40)

    def pushed(q, of):
        def step(q):
            state = start._replace(state=start.state._replace(q=q))
            return of.step(GAS, law, motion._replace(q0=None, v0=None), state)

        (state, info), changes = jax.jvp(step, (q,), (SPEED,))
        real = [x for x in jax.tree.leaves(changes) if x.dtype != jax.dtypes.float0]
        return jax.tree.leaves((state, info)), real, jnp.sum(info.impulse > 0), jnp.max(state.times.latest)

    # native code: XLA takes minutes to compile it; one program each, since all three would be too large for it
    natively = lambda of: over_lanes(jax.jit(lambda q: pushed(q, of)), (None,))(touching)
    few, part, whole = map(natively, (among_some, Part(scheme, True), Whole(scheme, True)))
    assert few[2] >= 1 and few[3] == 4  # it had an impact
    for x, y, z in zip(*map(jax.tree.leaves, (few, part, whole)), strict=True):
        np.testing.assert_allclose(y, z, rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(x, z, rtol=1e-11, atol=1e-11)  # of other orders of elimination
