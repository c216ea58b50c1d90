"""Numbers that others published, beside ours."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "experiments"))

from outside import siconos_examples


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
