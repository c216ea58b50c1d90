"""The progress bar of one motion: shown however it is computed, and no other numbers for it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji

HAMMER = ji.Problem(lambda t, q, v, args: jnp.cos(t) - q - 0.1 * v, lambda t, q, args: q + 0.1, restitution=0.8)
OPTIONS = {"q0": [1.0], "v0": [0.0], "t1": 40.0, "h": 0.002}


@pytest.mark.parametrize(
    ("execution", "save"),
    [
        ("native", 1000),
        ("xla", "final"),
        *(pytest.param(*x, marks=pytest.mark.slow) for x in [("native", "final"), ("xla", 1000)]),
    ],
)
def test_a_bar_and_the_same_motion(execution, save, capsys):
    """The same bits natively; XLA may round what is told in another order, by an ulp a step of a stable motion."""
    quiet = ji.solve(HAMMER, save=save, execution=execution, **OPTIONS)
    assert capsys.readouterr().err == ""
    shown = ji.solve(HAMMER, save=save, execution=execution, progress=True, **OPTIONS)
    told = capsys.readouterr().err
    assert "1 motion: 100%" in told and "20.0k/20.0k" in told
    for x, y in zip(jax.tree.leaves(quiet), jax.tree.leaves(shown), strict=True):
        np.testing.assert_allclose(x, y, rtol=0 if execution == "native" else 1e-12)


def test_no_bar_of_a_motion_that_is_traced(capsys):
    def end(y):
        return ji.solve(HAMMER, jnp.stack([y]), [0.0], t1=1.0, steps=10, save="final", progress=True).q[0, 0]

    for transformed in (jax.jit(end), jax.grad(end), lambda y: jax.vmap(end)(jnp.stack([y, y]))):
        with pytest.raises(ValueError, match="progress=True shows a bar of a motion whose numbers are known"):
            transformed(1.0)
    with pytest.raises(TypeError, match="progress must be True or False"):
        ji.solve(HAMMER, **OPTIONS, progress="yes")
    assert capsys.readouterr().err == ""


def test_bars_follow_each_other(capsys):
    """One of a motion that fails on its way, and one behind it."""
    lost = ji.Problem(lambda t, q, v, args: jnp.sqrt(20.0 - t) - q, lambda t, q, args: q + 0.1)
    found = ji.solve(lost, save="final", progress=True, **OPTIONS)
    assert bool(found.failed)
    ji.solve(HAMMER, save="final", progress=True, **OPTIONS)
    # each ends its line
    assert capsys.readouterr().err.count("\n") == 2
