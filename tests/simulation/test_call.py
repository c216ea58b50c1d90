"""The record of a call: every function that computes motions takes the same numbers, and hands on each that it is given."""

import inspect
from dataclasses import fields

import pytest

import jaximpact as ji
from jaximpact import analysis, study
from jaximpact.mechanics.motion import STATED, Motion
from jaximpact.simulation import public
from jaximpact.simulation.call import Call, MotionOptions

PUBLIC = (ji.solve, ji.ensemble, ji.sensitivities)
ANALYSES = [getattr(analysis, name) for name in analysis.__all__ if inspect.isfunction(getattr(analysis, name))]


def keywords(function):
    return inspect.signature(function).parameters


def computes(function):
    """Whether a function computes motions of a problem, rather than looking at those of a solution."""
    return {"problem", "q0", "v0", "scheme"} <= set(keywords(function))


def test_every_function_that_computes_motions_takes_their_numbers():
    found = [*PUBLIC, ji.Study, study.Run, *filter(computes, ANALYSES)]
    assert len(found) >= 15
    for function in found:
        given = keywords(function)
        assert set(MotionOptions.__annotations__) <= set(given), function.__name__
        assert all(given[name].default is None for name in MotionOptions.__annotations__), function.__name__
    assert set(STATED) <= set(Motion._fields) & set(MotionOptions.__annotations__)
    assert {field.name for field in fields(Call)} == set(keywords(ji.ensemble))


@pytest.mark.parametrize("function", PUBLIC, ids=lambda function: function.__name__)
def test_every_keyword_arrives(function, monkeypatch):
    module, arrived = getattr(public, f"_{function.__name__}"), []
    monkeypatch.setattr(module, function.__name__, lambda call, **own: arrived.append(vars(call) | own))
    given = {name: object() for name in keywords(function)}
    with pytest.raises(AttributeError):  # of no result
        function(**given)
    assert {name: x for name, x in arrived[0].items() if name in given} == given
