"""What the functions that compute motions have in common: the same keywords, each of which is looked at."""

import inspect

import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import analysis, study

PUBLIC = (ji.solve, ji.ensemble, ji.sensitivities)
OPTIONS = {"args", "e", "friction", "static_friction", "scheme", "projection"}
NAMED_AS = {"e": "restitution", "v0": "q0"}  # v0 by the dtype that it shares with q0
FALL = ji.Problem(
    lambda t, q, v, args: jnp.array([0.0, -1.0]),
    lambda t, q, args: q[1:],
    slip=lambda t, q, v, args: v[:1],
    friction=0.1,
    static_friction=0.2,
)
RIGHT = {
    "problem": FALL,
    "q0": np.ones(2),
    "v0": np.ones(2),
    "t1": 1.0,
    "h": 0.1,
    "e": 0.5,
    "friction": 0.1,
    "args": 1.0,
}


def keywords(function):
    return set(inspect.signature(function).parameters)


def test_every_function_that_computes_motions_takes_the_same_options():
    functions = [getattr(analysis, name) for name in analysis.__all__ if inspect.isfunction(getattr(analysis, name))]
    computing = [function for function in functions if {"q0", "v0", "scheme"} <= keywords(function)]
    assert len(computing) >= 10
    for function in (*PUBLIC, ji.Study, study.Run, *computing):
        assert keywords(function) >= OPTIONS, function.__name__
    assert keywords(ji.sensitivities) > keywords(ji.ensemble) > keywords(ji.solve) - {"sensitivity"}


@pytest.mark.parametrize("function", PUBLIC, ids=lambda function: function.__name__)
def test_every_keyword_is_looked_at(function):
    """What is no value of any argument is refused by the name of the one that it is given for."""
    lanes = {} if function is ji.solve else {"q0": np.ones((2, 2))}
    for name in keywords(function) - {"progress"}:  # true or false, like any object
        given = RIGHT | lanes | {name: object()}
        if name == "steps":
            del given["h"]
        with pytest.raises((ValueError, TypeError)) as error:
            function(**given)
        assert name in str(error.value) or NAMED_AS.get(name, name) in str(error.value), (name, error.value)
