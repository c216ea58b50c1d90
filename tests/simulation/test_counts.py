"""Counts beyond what a loop can count to, and results beyond memory: refused by name, before anything starts."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji

MOST = 2**31 - 2  # steps of one motion
BALL = ji.Problem(lambda t, q, v, args: -jnp.ones(1), lambda t, q, args: q)
STATE = ([1.0], [0.0])
LANES = ([[1.0], [2.0]], [0.0])


@pytest.mark.parametrize(
    ("call", "state", "options", "message"),
    [
        (ji.solve, STATE, {"h": 0.5 / 2**40}, r"h = 4\.5.*e-13 makes 2\.2e\+12 steps.*2147483646.*larger h"),
        (ji.solve, STATE, {"steps": 2**40}, "steps must not exceed 2147483646"),
        (ji.solve, STATE, {"h": 0.5, "save": 2**40}, "save: every must not exceed"),
        (ji.solve, STATE, {"h": 1e-3, "t1": 1e300}, "h = 0.001 makes 1e.303 steps"),
        (ji.solve, STATE, {"h": 1e-12, "t1": 1e300}, "h = 1e-12 makes inf steps"),
        (ji.ensemble, LANES, {"h": 0.5 / 2**40}, r"h = 4\.5.*e-13 makes"),
        (ji.ensemble, LANES, {"h": [0.5, 1e-12]}, "h = 1e-12 of trajectory 1 makes 1e.12 steps"),
        (ji.ensemble, LANES, {"h": 0.5, "save": 2**40}, "save: every must not exceed"),
        (ji.ensemble, LANES, {"h": 0.5, "chunk": 2**40}, "chunk must not exceed"),
        (ji.sensitivities, STATE, {"h": 1e-12}, "h = 1e-12 makes 1e.12 steps"),
    ],
)
def test_too_many_steps_are_refused_by_name(call, state, options, message):
    with pytest.raises(ValueError, match=message):
        call(BALL, *state, **{"t1": 1.0, **options})


@pytest.mark.parametrize("bad", [True, 0, -1, 1.0, "2", None, MOST + 1])
def test_bad_counts_are_refused(bad):
    with pytest.raises(ValueError, match="count must"):
        ji.analysis.prime_steps(1, 10, bad)


def test_largest_count_of_steps():
    """MOST steps are counted exactly; one more is refused. Numbers are binary fractions: no round-off."""
    wide = np.ones(10**5)  # coordinates, of which no memory holds so many rows

    still = ji.Problem(lambda t, q, v, args: -q, lambda t, q, args: q[:1])

    def call(steps):
        with pytest.raises(ValueError) as refusal:
            ji.solve(still, wide, 0 * wide, t1=steps * 2.0**-10, h=2.0**-10, save="all")
        return str(refusal.value)

    assert f"a motion of {MOST} steps" in call(MOST)
    assert "at most 2147483646 (2^31 - 2) are possible" in call(MOST + 1)
