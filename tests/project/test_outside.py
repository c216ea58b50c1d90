"""Numbers that others published, beside ours."""

import numpy as np
import pytest
from outside import (
    bounce_gradient,
    compiled_functions,
    conservative_orbits,
    control_problems,
    siconos_examples,
    tossed_cube,
)

STARTS = bounce_gradient.STARTS
# further than two steps of 0.1 from the kinks of the loss
CLEAR = np.min(np.abs(STARTS[:, None] - np.arange(4)), axis=1) > 0.2


def differences(name):
    return [float(line["ours - theirs"]) for line in siconos_examples.compare(siconos_examples.EXAMPLES[name]())]


def test_a_ball_is_that_of_siconos_to_round_off():
    # the same scheme: 1600 steps of round-off; events: their tolerance of 1e-12 through eighty impacts
    assert max(differences("ball")) < 1e-12 and max(differences("ball by events")) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rolling ball", "stick", "woodpecker"])
def test_examples_with_friction_are_those_of_siconos_to_the_order_of_the_scheme(name):
    """Of first order, both; velocities of a ball that bounces are off by g h, and by as much again for each impact."""
    for line in siconos_examples.compare(siconos_examples.EXAMPLES[name]()):
        assert float(line["ours - theirs"]) < 0.2 * max(1.0, float(line["size"])) and line["status"] == "OK"


@pytest.mark.slow
def test_the_first_control_problem_has_its_optimum():
    """The least loss over time and angle of the impact, by descent over forces: two ways to the same number,
    and just below the grid's."""
    control = control_problems.PROBLEMS["single"]
    best, when = control_problems.optimum(control)
    found = control_problems.affine(control)
    assert found["last"] == pytest.approx(best, abs=1e-9) and found["impact"] == pytest.approx(when, abs=1e-4)
    assert best < control.printed < best + 1e-3


@pytest.mark.slow
def test_a_bounce_has_the_right_slope_from_every_start():
    assert (
        np.abs(bounce_gradient.ours(20, bounce_gradient.ji.EventCorrected()) - bounce_gradient.exact(STARTS))[CLEAR]
        < 1e-12
    ).all()
    turned = bounce_gradient.of_a_step_that_turns_round(20)[CLEAR]
    assert np.mean(turned != bounce_gradient.exact(STARTS)[CLEAR]) == pytest.approx(2 / 3, abs=0.01)


@pytest.mark.slow
def test_a_tossed_cube_has_one_derivative_by_both_modes_and_by_differences():
    """Differences of 1e-5 of a motion of second order at h = 2.5e-4, which has curvature between its kinks: 1e-5."""
    line = {name: float(value) for name, value in tossed_cube.hard(0.1).items() if name != "contact"}
    assert line["forward mode"] == line["reverse mode"] == pytest.approx(line["difference of 1e-5"], abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", conservative_orbits.FAMILIES)
def test_families_of_conservative_systems_have_their_periods(name):
    """To the tolerance of orbits, 4e-11 of states, whose error the period has, too; a branch point as well."""
    for line in conservative_orbits.compare(name):
        assert float(line["difference"]) < 1e-10, line


def test_programs_of_others_have_the_numbers_of_xla():
    """A few steps, in which round-off does not grow."""
    for line in compiled_functions.compare(lanes=(5,), least_steps=True):
        assert float(line["difference"]) < 1e-12, line["program"]
