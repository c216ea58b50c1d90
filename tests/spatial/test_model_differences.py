"""What docs/howto/robots.md says of MuJoCo's side, by MuJoCo; and names of what is refused or chosen."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import spatial

mujoco = pytest.importorskip("mujoco")

SLIDES = "".join(f'<joint type="slide" axis="{axis}"/>' for axis in ("1 0 0", "0 1 0", "0 0 1"))
FLOOR = '<geom name="floor" type="plane" size="9 9 1"/>'
LEG = f"""<mujoco><worldbody>{FLOOR}<body name="leg" pos="0 0 1"><joint name="lift" type="slide" axis="0 0 1"/>
  <geom name="foot" size=".1" mass="3"/><site name="toe" pos="0 0 -.1"/></body></worldbody></mujoco>"""


def moved(text, steps, begin=lambda data: None):
    model = mujoco.MjModel.from_xml_string(text)
    data = mujoco.MjData(model)
    begin(data)
    for _ in range(steps):
        mujoco.mj_step(model, data)
    return data


def test_dry_friction_of_a_joint_creeps_in_mujoco_and_holds_here():
    text = """<mujoco><option gravity="0 0 0"/><worldbody><body><joint name="axle" axis="0 1 0" frictionloss=".4"/><inertial pos="0 0 0" mass="1"
      diaginertia=".2 .2 .2"/></body></worldbody><actuator><motor joint="axle"/></actuator></mujoco>"""  # noqa: E501
    data = moved(text, 1000, lambda data: data.ctrl.fill(0.2))
    assert 1e-4 < data.qvel[0] < 1e-2  # of half the loss
    wheel = spatial.from_mjcf(text)
    args = {"ctrl": jnp.array([0.2])}
    end = ji.solve(wheel.problem(), *wheel.start(), t1=2.0, h=1e-2, scheme=ji.MoreauJean(), args=args, save="final")
    np.testing.assert_allclose(end.v[-1], 0, atol=1e-14)


def test_contacts_of_mujoco_sink_in_and_its_pyramid_depends_on_the_direction():
    """A ball that slides at 45 degrees to the tangents has mu/sqrt(2) by the pyramid, on its steepest diagonal,
    where a cone has mu."""
    ball = f'<body pos="0 0 .1">{SLIDES}<geom size=".1" mass="1"/></body>'
    text = "<mujoco><option cone='{}'/><worldbody>{}{}</worldbody></mujoco>"
    assert 1e-4 < 0 - moved(text.format("pyramidal", FLOOR, ball), 1000).qpos[2] < 1e-3
    slowed = {}
    for cone in ("pyramidal", "elliptic"):
        for angle in (0, np.pi / 4):

            def begin(data, angle=angle):
                data.qvel[:2] = 3 * np.cos(angle), 3 * np.sin(angle)

            data = moved(text.format(cone, FLOOR, ball), 100, begin)
            slowed[cone, angle] = (3 - np.hypot(*data.qvel[:2])) / (9.81 * 0.2)
    # the first steps, in which the ball sinks in, press by some per cent more than its weight
    np.testing.assert_allclose(
        [slowed["pyramidal", 0], slowed["elliptic", 0], slowed["elliptic", np.pi / 4]], 1, rtol=0.05
    )
    assert slowed["pyramidal", np.pi / 4] < 0.8


def test_a_site_ends_a_motion_where_it_is():
    """Of a leg that falls from rest: the toe, .9 above the floor, is at the height .5 when g t^2/2 = .4."""
    leg = spatial.from_mjcf(LEG)
    until = lambda t, q, v, args: leg.site(q, "toe")[2] - 0.5
    end = ji.solve(leg.problem(), *leg.start(), t1=1.0, scheme=ji.EventDriven(), until=until, save="final")
    np.testing.assert_allclose(end.t[-1], np.sqrt(0.8 / 9.81), rtol=1e-9)
    np.testing.assert_allclose(leg.site(end.q[-1], "toe"), [0, 0, 0.5], atol=1e-9)


REFUSED = {
    "contact 'hill-foot' has the shapes height field and sphere": LEG.replace(
        FLOOR, '<geom name="hill" type="hfield" hfield="hill"/>'
    ).replace(
        "<worldbody>",
        '<asset><hfield name="hill" nrow="2" ncol="2" size="1 1 1 1" elevation="0 1 0 0"/></asset><worldbody>',
    ),
    "the file has a flex": LEG.replace(
        "</worldbody>",
        '<body name="cloth" pos="0 0 3"><flexcomp name="cloth" type="grid" count="2 2 1" spacing=".1 .1 .1" '
        'radius=".01"/></body></worldbody>',
    ),
    "the file has a plugin": LEG.replace(
        "<worldbody>", '<extension><plugin plugin="mujoco.pid"><instance name="pid"/></plugin></extension><worldbody>'
    ).replace(
        "</mujoco>",
        '<actuator><plugin name="servo" joint="lift" plugin="mujoco.pid" instance="pid"/></actuator></mujoco>',
    ),
}


@pytest.mark.parametrize("told", REFUSED)
def test_what_has_no_contact_or_law_here_is_refused_by_name(told):
    try:
        model = mujoco.MjModel.from_xml_string(REFUSED[told])
    except ValueError as error:
        pytest.skip(f"this mujoco does not read it: {error}")
    with pytest.raises(ValueError, match=f"from_mjcf: {told}"):
        spatial.from_mjcf(model)
