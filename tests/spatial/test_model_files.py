"""Model files of robots against MuJoCo's own accelerations, without contacts, and against motions in closed form."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import spatial
from support.breadth import slow

mujoco = pytest.importorskip("mujoco")


def numbers(rng, count, scale=1.0):
    return " ".join(f"{x:.6f}" for x in scale * rng.normal(size=count))


def random_joint(rng, number, kind):
    common = f'name="j{number}" type="{kind}" pos="{numbers(rng, 3, 0.2)}" damping="{rng.random():.4f}" stiffness="{rng.random():.4f}"'  # noqa: E501
    common += f' armature="{0.1 * rng.random():.4f}"'
    if kind == "ball":
        return f"<joint {common}/>"
    common += f' frictionloss="{0.1 * rng.random():.4f}"' if rng.random() < 0.3 else ""
    return f'<joint {common} axis="{numbers(rng, 3)}" ref="{0.3 * rng.normal():.4f}" springref="{0.3 * rng.normal():.4f}"/>'  # noqa: E501


def random_file(rng, count):
    """A tree with every kind of joint, several of one body, bodies that are fixed, and some without a mass."""
    joints, bodies = [], []

    def own_joints(top):
        if top and rng.random() < 0.4:
            return "<freejoint/>" if rng.random() < 0.5 else '<joint type="free" damping="0.3" armature=".4"/>'
        kinds = list(rng.choice(["hinge", "slide"], rng.integers(1 if top else 0, 3)))
        if rng.random() < 0.3:
            kinds = [*(x for x in kinds if x == "slide"), "ball"]
        for kind in kinds:
            joints.append(random_joint(rng, len(joints), kind))
        return "".join(joints[len(joints) - len(kinds) :])

    def body(top):
        bodies.append(0)
        own = own_joints(top)
        factors = 0.1 * rng.normal(size=(3, 3))
        points = factors @ factors.T + 0.005 * np.eye(3)
        inertia = np.trace(points) * np.eye(3) - points
        full = " ".join(f"{inertia[i, j]:.8f}" for i, j in ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2)))
        inside = ""
        while len(bodies) < count and rng.random() < 0.7:
            inside += body(False)
        lift = f'gravcomp="{rng.random():.3f}"' if rng.random() < 0.3 else ""
        inertial = f'<inertial pos="{numbers(rng, 3, 0.2)}" mass="{0.3 + rng.random():.4f}" fullinertia="{full}"/>'
        return f'<body pos="{numbers(rng, 3, 0.3)}" quat="{numbers(rng, 4)}" {lift}>{own}{inertial}{inside}</body>'

    found = ""
    while len(bodies) < count:
        found += body(True)
    kinds = {f"j{i}": x for i, x in enumerate(joints) if "ball" not in x}
    laws = [
        '<motor joint="{}" gear="2.5"/>',
        '<position joint="{}" kp="3" kv="0.4" gear="1.5" forcerange="-2 2"/>',
        '<velocity joint="{}" kv="0.7" ctrlrange="-.4 .4" ctrllimited="true"/>',
    ]
    motors = "".join(laws[i % 3].format(name) for i, name in enumerate(kinds))
    cord = "".join(f'<joint joint="{name}" coef="{rng.normal():.3f}"/>' for name in kinds)
    motors += '<position tendon="cord" kp="2" kv=".3" gear="1.2"/>' if kinds else ""
    slack = " ".join(f"{x:.3f}" for x in np.sort(0.5 * rng.normal(size=2)))
    spring = ""
    if slack[0] != "-":
        spring = f'stiffness="{rng.random():.3f}" damping="{rng.random():.3f}" springlength="{slack}"'
    cord = f'<tendon><fixed name="cord" {spring}>{cord}</fixed></tendon>' if kinds else ""
    return (
        f'<mujoco><compiler angle="radian"/><option gravity="{numbers(rng, 3, 5)}"/><worldbody>{found}</worldbody>'
        f"{cord}<actuator>{motors}</actuator></mujoco>"
    )


def random_state(rng, model):
    data = mujoco.MjData(model)
    data.qpos[:] = model.qpos0
    for j in range(model.njnt):
        first, kind = model.jnt_qposadr[j], model.jnt_type[j]
        if kind < 2:
            place = first + (3 if kind == 0 else 0)
            p = rng.normal(size=4)
            data.qpos[place : place + 4] = p / np.linalg.norm(p)
        if kind != 1:
            data.qpos[first : first + (3 if kind == 0 else 1)] += rng.normal(size=3 if kind == 0 else 1)
    data.qvel[:] = rng.normal(size=model.nv)
    data.ctrl[:] = rng.normal(size=model.nu)
    return data


def accelerations_beside(found, model, data):
    """Accelerations by MuJoCo, and those of the system as MuJoCo has them, by their difference along the motion."""
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONSTRAINT
    mujoco.mj_forward(model, data)
    q, v = found.start(data.qpos, data.qvel)
    args = {"ctrl": data.ctrl}
    a = jnp.linalg.solve(found.mass(q, args), found.force(0.0, q, v, args))
    _, rates = jax.jvp(found.qvel, (q, v), (v, a))
    return np.asarray(rates), data.qacc


def check_tree(seed, count):
    rng = np.random.default_rng(seed)
    model = mujoco.MjModel.from_xml_string(random_file(rng, count))
    found = spatial.from_mjcf(model)
    data = random_state(rng, model)
    own, theirs = accelerations_beside(found, model, data)
    # both solve with the mass matrix: rounding grows with its condition
    full = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, full, data.qM) if hasattr(data, "qM") else mujoco.mj_fullM(model, data, full)
    assert np.abs(own - theirs).max() <= 1e-13 * max(100, np.linalg.cond(full)) * np.abs(theirs).max(), seed
    q, v = found.start(data.qpos, data.qvel)
    at = np.asarray(found.qpos(q))
    np.testing.assert_allclose(np.abs(at), np.abs(data.qpos), atol=1e-13)  # of a quaternion either sign
    np.testing.assert_allclose(found.qvel(q, v), data.qvel, atol=1e-12)
    # v' M v is twice the kinetic energy in either coordinates
    np.testing.assert_allclose(v @ found.mass(q, None) @ v, data.qvel @ full @ data.qvel, rtol=1e-11)
    for i in range(1, model.nbody):
        if model.body_jntnum[i]:
            name = f"body {i}"
            turn = data.xmat[i].reshape(3, 3)
            start = mujoco.MjData(model)
            mujoco.mj_kinematics(model, start)
            np.testing.assert_allclose(found.rotation(q, name), turn @ start.xmat[i].reshape(3, 3).T, atol=1e-12)
    return model.nv


SEEDS = [(range(0, 1), 1), (range(1, 2), 1), slow(range(2, 3), 1), slow(range(3, 4), 1), slow(range(100, 300), 201)]


@pytest.mark.parametrize(("seeds", "least"), SEEDS)
def test_accelerations_are_those_of_mujoco(seeds, least):
    with jax.disable_jit():  # operations one by one: less than their programs take to be compiled
        assert sum(check_tree(seed, 4 if seed < 100 else 1 + seed % 20) for seed in seeds) >= least


HOPPER = """<mujoco><compiler angle="radian"/><worldbody>
  <geom name="floor" type="plane" size="5 5 .1"/>
  <body name="torso" pos="0 0 1">
    <joint name="lift" type="slide" axis="0 0 1" ref="1"/>
    <geom name="trunk" type="capsule" fromto="0 0 -.1 0 0 .3" size=".05" mass="5"/>
    <body name="thigh" pos="0 0 -.1">
      <joint name="hip" axis="0 1 0" range="-1.5 1.5" limited="true" stiffness="40" damping=".5"/>
      <geom name="upper" type="capsule" fromto="0 0 0 .2 0 -.3" size=".03" mass="1"/>
      <body name="shank" pos=".2 0 -.3">
        <joint name="knee" axis="0 1 0" range="-1.5 1.5" limited="true"/>
        <geom name="lower" type="capsule" fromto="0 0 0 -.2 0 -.25" size=".02" mass=".5"/>
        <geom name="foot" type="sphere" pos="-.2 0 -.3" size=".03" friction=".7 0 0" mass=".1"/>
        <site name="toe" pos="-.2 0 -.33"/>
      </body>
    </body>
  </body></worldbody>
  <actuator><motor name="push" joint="hip" gear="10"/><position name="bend" joint="knee" kp="20"/></actuator>
  <keyframe><key name="high" qpos="1.5 .2 -.1" qvel="-1 0 0"/></keyframe>
</mujoco>"""


def test_names_and_starts_are_those_of_the_file():
    hopper = spatial.from_mjcf(HOPPER, restitution=0.2, contacts=("foot-*", "trunk-floor"))
    problem = hopper.problem()
    assert problem.coordinates == ("lift", "hip", "knee")
    limits = "hip low", "hip high", "knee low", "knee high"
    assert problem.contacts == (*limits, "trunk-floor end", "trunk-floor start", "foot-floor", "trunk-foot")
    assert hopper.inputs == ("push", "bend")
    q, v = hopper.start("high")
    np.testing.assert_allclose(q, [0.5, 0.2, -0.1])  # lift counts from ref
    np.testing.assert_allclose(v, [-1.0, 0.0, 0.0])
    np.testing.assert_allclose(hopper.qpos(q), [1.5, 0.2, -0.1])
    np.testing.assert_allclose(hopper.start()[0], 0)
    np.testing.assert_allclose(hopper.site(hopper.q0, "toe"), [0, 0, 0.27], atol=1e-15)
    gaps = problem.constraints(0.0, jnp.asarray(hopper.q0), None)
    np.testing.assert_allclose(gaps[-2], 0.27, atol=1e-15)
    np.testing.assert_allclose(gaps[:4], 1.5)
    q, v = hopper.start([1.5, 0.2, -0.1], [1.0, 2.0, 3.0])
    np.testing.assert_allclose(v, [1.0, 2.0, 3.0])
    for call, told in (
        (lambda: hopper.start("low"), "'low' is no keyframe; there are high"),
        (lambda: hopper.start([0.0]), "start: qpos has 3 numbers in the file"),
        (lambda: hopper.site(q, "heel"), "site: 'heel' is none of the file; there are toe"),
    ):
        with pytest.raises(ValueError, match=told):
            call()


def test_gaps_are_the_distances_of_mujoco():
    """Spheres, capsules, boxes and ellipsoids over a sloping plane, and against each other."""
    rng = np.random.default_rng(3)
    shapes = {
        "a": 'type="sphere" size=".1"', "b": 'type="capsule" size=".08 .2"', "c": 'type="box" size=".1 .2 .15"',
        "d": 'type="ellipsoid" size=".1 .2 .15"', "e": 'type="cylinder" size=".1 .2"', "f": 'type="sphere" size=".2"',
    }  # fmt: skip
    bodies = "".join(
        f'<body name="{x}" pos="{3 * i} 0 {rng.random()}" quat="{numbers(rng, 4)}"><freejoint/>'
        f'<geom name="{x}" {shape} pos="{numbers(rng, 3, 0.1)}" quat="{numbers(rng, 4)}"/></body>'
        for i, (x, shape) in enumerate(shapes.items())
    )
    deck = '<geom name="deck" type="plane" size="9 9 1" pos="1 2 -3" quat="1 .1 .2 0"/>'
    text = f"<mujoco><worldbody>{deck}{bodies}</worldbody></mujoco>"
    model = mujoco.MjModel.from_xml_string(text)
    found = spatial.from_mjcf(model, contacts=("?-deck", "a-b", "a-c", "a-f", "b-f", "c-f"), friction=0.3)
    problem = found.problem()
    data = random_state(rng, model)
    mujoco.mj_forward(model, data)
    q, _ = found.start(data.qpos, data.qvel)
    gaps = dict(zip(problem.contacts, problem.constraints(0.0, q, None), strict=True))
    assert len(gaps) == 1 + 2 + 8 + 1 + 2 + 1 + 5
    for pair in ("a-deck", "b-deck", "c-deck", "d-deck", "e-deck", "f-deck", "a-b", "a-c", "a-f", "b-f", "c-f"):
        one, other = (mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, x) for x in pair.split("-"))
        own = min(float(value) for name, value in gaps.items() if name.split(" ")[0] == pair)
        # an ellipsoid's distance is found there by steps to 1e-6
        distance = mujoco.mj_geomDistance(model, data, one, other, 100.0, None)
        assert abs(own - distance) < (1e-5 if pair == "d-deck" else 1e-9), (pair, own, distance)


def test_equalities_hold_where_those_of_mujoco_do():
    """A four-bar linkage closed by a connect, a gear with a polynomial, tendons likewise, and two bodies welded to each
    other, and one to a site of the world."""
    text = """<mujoco><compiler angle="radian"/><worldbody><site name="hook" pos="0 3 1" quat="1 0 1 0"/>
      <body name="crank"><joint name="first" axis="0 1 0"/><geom type="capsule" fromto="0 0 0 0 0 1" size=".05"/>
        <body name="rod" pos="0 0 1"><joint name="second" axis="0 1 0"/><geom type="capsule" fromto="0 0 0 1 0 0" size=".05"/></body></body>
      <body name="rocker" pos="1 0 0"><joint name="third" axis="0 1 0"/><geom type="capsule" fromto="0 0 0 0 0 1" size=".05"/></body>
      <body name="wheel" pos="0 1 0"><joint name="fourth" axis="0 1 0"/><geom type="sphere" size=".1"/></body>
      <body name="drum" pos="0 4 0"><joint name="fifth" axis="0 1 0" ref=".3"/><geom type="sphere" size=".1"/>
        <body name="slide" pos="0 4 0"><joint name="sixth" type="slide" axis="0 1 0"/><geom type="sphere" size=".1"/></body></body>
      <body name="one" pos="0 2 0" quat="1 .2 .3 .4"><freejoint/><geom type="box" size=".1 .2 .3"/></body>
      <body name="two" pos=".5 2 .2" quat="1 0 .3 .1"><freejoint/><geom type="box" size=".1 .2 .3"/></body>
      <body name="three" pos="0 3 1"><freejoint/><geom type="box" size=".1 .2 .3"/><site name="ring" pos=".1 .2 .3"/></body>
    </worldbody><equality>
      <connect name="pin" body1="rod" body2="rocker" anchor="1 0 0"/><joint name="gear" joint1="fourth" joint2="first" polycoef=".1 -2 .3 .1 .2"/>
      <weld name="glue" body1="one" body2="two"/><weld name="hang" site1="ring" site2="hook"/>
      <tendon name="loop" tendon1="long" tendon2="short" polycoef=".05 1.5 .2 0 0"/>
    </equality><tendon><fixed name="long"><joint joint="sixth" coef="2"/><joint joint="fifth" coef="-.5"/></fixed>
      <fixed name="short"><joint joint="fifth" coef="1"/></fixed></tendon><option><flag contact="disable"/></option></mujoco>"""  # noqa: E501
    model = mujoco.MjModel.from_xml_string(text)
    found = spatial.from_mjcf(text)
    problem = found.problem()
    assert problem.joint_names[0] == "pin x" and problem.joint_names[3] == "gear" and len(problem.joint_names) == 17
    data = random_state(np.random.default_rng(0), model)
    data.qpos[:] = model.qpos0 + 0.02 * np.random.default_rng(1).normal(size=model.nq)
    q, v = found.start(data.qpos, data.qvel)
    at, rates = np.asarray(found.qpos(q)), np.asarray(found.qvel(q, v))
    data.qpos[:], data.qvel[:] = at, rates
    mujoco.mj_forward(model, data)
    assert data.nefc == 17
    # both are solved to rounding; MuJoCo counts rotations by the quaternion, which is 1e-8 where it was put together of
    # rows of 1e-16
    np.testing.assert_allclose(data.efc_pos, 0, atol=1e-7)
    np.testing.assert_allclose(data.efc_vel, 0, atol=1e-7)


def test_a_leg_falls_and_bounces_as_a_ball_does():
    """On a slide alone, with a rotor: it falls with g m / (m + rotor), and leaves the floor with e of its speed."""
    text = """<mujoco><worldbody><geom name="floor" type="plane" size="1 1 1"/><body name="leg" pos="0 0 1">
      <joint name="lift" type="slide" axis="0 0 1" armature="1"/><geom name="foot" type="sphere" size=".1" mass="3"/></body></worldbody></mujoco>"""  # noqa: E501
    leg = spatial.from_mjcf(text, restitution=0.5)
    problem = leg.problem()
    assert problem.coordinates == ("lift",) and problem.contacts == ("foot-floor",)
    drop = ji.solve(problem, *leg.start(), t1=0.7, scheme=ji.EventDriven(order=5))
    g, fall = 9.81 * 3 / 4, 0.9
    impacts = drop.impacts(problem)
    np.testing.assert_allclose(impacts.t[0], np.sqrt(2 * fall / g), rtol=1e-9)
    np.testing.assert_allclose(impacts.after[0], 0.5 * np.sqrt(2 * fall * g), rtol=1e-9)
    rest = 0.7 - np.sqrt(2 * fall / g)
    np.testing.assert_allclose(drop.q[-1, 0], -fall + 0.5 * np.sqrt(2 * fall * g) * rest - g * rest**2 / 2, rtol=1e-8)


def test_limits_and_inputs_act_where_the_file_has_them():
    text = """<mujoco><compiler angle="radian"/><option gravity="0 0 0"/><worldbody><body name="arm"><joint name="elbow" axis="0 1 0" range="-1 .5"
      limited="true"/><inertial pos="0 0 0" mass="1" diaginertia="2 2 2"/></body></worldbody>
      <actuator><motor name="drive" joint="elbow" gear="4" ctrlrange="-1 1" ctrllimited="true"/></actuator></mujoco>"""  # noqa: E501
    arm = spatial.from_mjcf(text, restitution=0.25)
    problem = arm.problem()
    turn = ji.solve(problem, *arm.start(), t1=0.9, scheme=ji.EventDriven(order=5), args={"ctrl": np.array([3.0])})
    # acceleration 4/2, since the input is cut off at 1: it stands at .5 when t^2 = .5, with the rate 2 t
    at = np.sqrt(0.5)
    impacts = turn.impacts(problem, args={"ctrl": np.array([3.0])})
    assert problem.contacts[int(impacts.contact[0])] == "elbow high"
    np.testing.assert_allclose([impacts.t[0], impacts.after[0]], [at, 0.25 * 2 * at], rtol=1e-8)
    still = spatial.from_mjcf(text, limits=(), control=lambda t, q, v, args: jnp.array([-0.5]))
    problem, (q, v) = still.problem(), still.start()
    assert not problem.contacts
    np.testing.assert_allclose(problem.force(0.0, q, v, None), [-0.5 * 4], rtol=1e-12)


WHEEL = """<mujoco><option gravity="0 0 0"/><worldbody><body name="wheel"><joint name="axle" axis="0 1 0" frictionloss=".4"/><inertial pos="0 0 0" mass="1"
  diaginertia=".2 .2 .2"/></body></worldbody><actuator><motor name="drive" joint="axle"/></actuator></mujoco>"""  # noqa: E501


def test_dry_friction_of_a_joint_stops_it_and_holds_it():
    """A wheel with the moment a loss: its rate falls by loss/J t and it stays, also under a motor of less."""
    wheel = spatial.from_mjcf(WHEEL)
    problem = wheel.problem()
    assert problem.coordinates == ("axle", "axle pad") and problem.contacts == ("axle brake",)
    q, v = wheel.start(qvel=[1.0])
    speeds, ctrl = np.asarray(v) * np.array([1.5, 3.0, 0.0, 0.0])[:, None], np.array([[0.0], [0.0], [0.39], [0.6]])
    call = {"t1": 1.0, "steps": 20, "scheme": ji.MoreauJean(), "save": "final"}
    found = ji.ensemble(problem, q, speeds, args={"ctrl": ctrl}, args_axes=0, **call)
    assert not np.any(found.status)
    # moments are constant: steps are exact
    np.testing.assert_allclose(found.v[:, -1], np.outer([0, 3 - 0.4 / 0.2, 0, (0.6 - 0.4) / 0.2], [1, 0]), atol=1e-12)


@pytest.mark.slow
def test_the_angle_at_which_dry_friction_stops_a_joint_and_its_derivatives():
    """J w^2/(2 loss), located."""
    wheel = spatial.from_mjcf(WHEEL)
    problem = wheel.problem()

    def turned(speed, drive, t1=1.0):
        args = {"ctrl": jnp.reshape(drive, (1,))}
        start = wheel.start(qvel=jnp.reshape(speed, (1,)))
        return ji.solve(problem, *start, t1=t1, scheme=ji.EventDriven(), args=args, save="final")

    np.testing.assert_allclose(turned(1.5, 0.0).q[-1], [0.2 * 1.5**2 / 0.8, 0], atol=1e-10)
    np.testing.assert_allclose(turned(0.0, 0.39).q[-1], 0, atol=1e-12)
    np.testing.assert_allclose(turned(0.0, 0.6).q[-1, 0], (0.6 - 0.4) / 0.2 / 2, rtol=1e-9)
    slopes = jax.grad(lambda x: turned(*x).q[-1, 0])(jnp.array([1.5, 0.1]))
    np.testing.assert_allclose(slopes, [0.2 * 1.5 / 0.3, 0.2 * 1.5**2 / 2 / 0.3**2], rtol=1e-7)


def test_an_arm_of_two_hinges_rubs_along_its_circle():
    """Its tip is pressed on the floor by its weight, which the floor bears half of:
    friction 1 there slows it by m g/2 r/J, a constant."""
    text = """<mujoco><worldbody><geom name="floor" type="plane" size="9 9 1"/><body name="hub" pos="0 0 .05"><joint name="pan" axis="0 0 1"/>
      <inertial pos="0 0 0" mass="1" diaginertia=".1 .1 .1"/><body name="arm" euler="0 0 20"><joint name="lift" axis="0 1 0"/>
      <inertial pos=".5 0 0" mass="1" diaginertia=".1 .1 .1"/><geom name="tip" size=".05" pos="1 0 0"/></body></body></worldbody></mujoco>"""  # noqa: E501
    arm = spatial.from_mjcf(text)
    start = arm.start(qvel=[2.0, 0.0])
    end = ji.solve(arm.problem(), *start, t1=0.1, steps=20, scheme=ji.MoreauJean(), save="final")
    assert not end.status
    np.testing.assert_allclose(end.v[-1], [2 - 9.81 / 2 / (0.1 + 0.1 + 0.25) * 0.1, 0], atol=1e-12)


BESIDE = """<mujoco><worldbody><geom name="floor" type="plane" size="9 9 1" friction=".01 .0001 .0001"/>
  <body name="ball" pos="0 0 .1"><freejoint/><geom name="ball" size=".1" mass="2" condim="4" friction=".5 .02 0"/></body>
  <body name="other" pos="1 0 .1"><freejoint/><geom name="other" size=".1" mass="2" friction=".3"/></body>
  <body name="arm" pos="5 0 5"><joint name="axle" axis="0 0 1" frictionloss=".4"/><inertial pos="0 0 0" mass="1" diaginertia=".2 .2 .2"/></body>
  </worldbody></mujoco>"""  # noqa: E501


def test_friction_of_torsion_is_that_of_a_patch():
    """Of condim 4 a contact slips by its spin too, by the ratio of both coefficients; one of condim 3 does not."""
    system = spatial.from_mjcf(BESIDE, contacts="*-floor")
    problem, speeds = system.problem(), np.zeros(13)
    speeds[[5, 11]] = 30.0
    q, v = system.start(qvel=speeds)
    with jax.disable_jit():
        slip = dict(zip(problem.contacts, np.asarray(problem.slip_velocity(0.0, q, v, None)), strict=True))
    assert len(slip) == 3 and dict(zip(problem.contacts, problem.friction, strict=True))["ball-floor"] == 0.5
    np.testing.assert_allclose(np.abs(slip["ball-floor"]), [0, 0, 30 * 0.02 / 0.5], atol=1e-13)
    np.testing.assert_allclose(slip["other-floor"], 0, atol=1e-13)


@pytest.mark.slow
def test_friction_of_torsion_and_dry_friction_act_beside_that_of_sliding():
    """A ball that spins, of condim 4, beside one of condim 3 that slides and a joint with dry friction in space: each
    falls by its own law, in one system."""
    system = spatial.from_mjcf(BESIDE, contacts="*-floor")
    speeds = np.zeros(13)
    speeds[5], speeds[6], speeds[12] = 30.0, 1.0, 2.0
    call = {"t1": 0.3, "steps": 300, "scheme": ji.MoreauJean(), "save": "final"}
    end = ji.solve(system.problem(), *system.start(qvel=speeds), **call)
    assert not end.status
    v = system.qvel(end.q[-1], end.v[-1])
    # moments of inertia are 2 m r^2/5, and the second ball ends rolling, as of its speed it keeps 5/7; a step turns the
    # quaternion by .03, and its chord is shorter than the arc by .03^2/12
    np.testing.assert_allclose(v[5], 30 - 0.02 * 9.81 / (0.4 * 0.01) * 0.3, rtol=1e-4)
    np.testing.assert_allclose(v[6], 5 / 7, rtol=1e-5)
    np.testing.assert_allclose(v[12], 2 - 0.4 / 0.2 * 0.3, rtol=1e-9)


def test_limits_of_tendons_are_those_of_lengths():
    text = """<mujoco><option gravity="0 0 0"/><worldbody><body name="a"><joint name="a" axis="0 1 0" ref="10"/><geom size=".1"/></body>
      <body name="b" pos="1 0 0"><joint name="b" type="slide" axis="0 1 0"/><geom size=".1"/></body></worldbody>
      <tendon><fixed name="cord" limited="true" range="-.5 .4"><joint joint="a" coef="2"/><joint joint="b" coef="-1"/></fixed></tendon></mujoco>"""  # noqa: E501
    model = mujoco.MjModel.from_xml_string(text)
    found = spatial.from_mjcf(model, contacts=())
    problem = found.problem()
    assert problem.contacts == ("cord low", "cord high")
    data = mujoco.MjData(model)
    data.qpos[:] = 0.3, 0.2
    mujoco.mj_forward(model, data)
    q, _ = found.start(data.qpos)
    length = data.ten_length[0]
    np.testing.assert_allclose(problem.constraints(0.0, q, None), [length + 0.5, 0.4 - length], atol=1e-14)


def in_file(body="", other="", joint='<joint name="hinge"/>'):
    return f"""<mujoco><worldbody><geom name="floor" type="plane" size="1 1 1"/><body name="arm" pos="0 0 3">{joint}<geom name="rod" type="capsule"
      size=".1 .2" pos="0 0 .1"/>{body}</body></worldbody>{other}</mujoco>"""  # noqa: E501


REFUSED = {
    "joint 'joint' has frictionloss of a ball joint": in_file(
        joint='<joint name="joint" type="ball" frictionloss=".1"/>'
    ),
    "tendon 'cord' has a path other than the sum of hinges and slides": in_file(
        body='<site name="tip"/>',
        other='<tendon><spatial name="cord" stiffness="2"><site site="tip"/><site site="base"/></spatial></tendon>',
    ).replace("</worldbody>", '<site name="base" pos="1 0 0"/></worldbody>'),
    "actuator 'pull' has a transmission other than": in_file(
        body='<site name="tip"/>', other='<actuator><motor name="pull" site="tip"/></actuator>'
    ),
    "actuator 'flex' has a state of its own": in_file(
        other='<actuator><muscle name="flex" joint="hinge" lengthrange="0 1"/></actuator>'
    ),
    "option density": in_file(other='<option density="1.2"/>'),
    "contact 'hull-floor' has the shapes mesh and plane": in_file(
        body='<geom name="hull" type="mesh" mesh="stone" mass="1"/>',
        other='<asset><mesh name="stone" vertex="0 0 0  1 0 0  0 1 0  0 0 1"/></asset>',
    ),
    "contact 'block-brick' has the shapes box and box": in_file(
        joint='<freejoint/><geom name="brick" type="box" size=".1 .1 .1"/>'
    ).replace("</worldbody>", '<geom name="block" type="box" size=".1 .1 .1"/></worldbody>'),
    "contact 'pipe-floor' has a cylinder that stands on its end": in_file(
        body='<geom name="pipe" type="cylinder" size=".1 .2"/>'
    ),
    "contact 'ball-floor' has friction of torsion or rolling without that of sliding": in_file(
        body='<geom name="ball" size=".1" condim="6" friction="0 .1 0" priority="1"/>'
    ),
    "the file has no joint": in_file(joint=""),
}


# what is read, options, and what is told
CALLS = [(text, {}, f"from_mjcf: .*{told}") for told, text in REFUSED.items()]
CALLS += [
    (in_file(), {"contacts": "foot*"}, r"contacts: 'foot\*' matches no name; there are rod-floor"),
    (in_file(), {"limits": "knee"}, "limits: 'knee' matches no name; there are none"),
    (3, {}, "source must be a path, the text of a file or a mujoco"),
]


@pytest.mark.parametrize(("source", "options", "told"), CALLS, ids=range(len(CALLS)))
def test_what_is_not_read_is_refused_by_name(source, options, told):
    with pytest.raises(TypeError if source == 3 else ValueError, match=told):
        spatial.from_mjcf(source, **options)


def test_files_state_which_geoms_may_touch():
    """By types and affinities, parents, exclusions and pairs, as MuJoCo finds them where all overlap; friction is the
    larger of two, or the pair's."""
    body = lambda name, inside, mu, more="": (
        f'<body name="{name}"><joint axis="0 1 0"/><joint axis="1 0 0"/><geom name="{name}" size=".5" friction="{mu}" '
        f"{more}/>{inside}</body>"
    )
    inner = body("b", body("c", "", 0.6), 0.2) + body("d", "", 0.2, 'contype="2" conaffinity="2"')
    tree = body("a", inner, 0.3) + body("e", "", 0.5, 'priority="1"')
    text = f"""<mujoco><worldbody><geom name="floor" type="plane" size="1 1 1" friction=".4"/>{tree}</worldbody><contact>
      <exclude body1="a" body2="c"/><pair geom1="a" geom2="b" friction=".7 .7 0 0 0"/></contact></mujoco>"""  # noqa: E501
    model = mujoco.MjModel.from_xml_string(text)
    found = spatial.from_mjcf(model)
    problem = found.problem()
    data = mujoco.MjData(model)
    data.qpos[:] = 0.01 * np.arange(model.nq)  # centres of balls that coincide have no normal
    mujoco.mj_forward(model, data)
    touching = zip(data.contact.geom, data.contact.friction[:, 0], strict=True)
    number = lambda x: mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, x)
    own = zip(problem.contacts, problem.friction, strict=True)
    own = {frozenset(map(number, name.split("-"))): mu for name, mu in own}
    assert own == {frozenset(map(int, pair)): mu for pair, mu in touching} and len(own) == 8


@pytest.mark.parametrize(
    ("limit", "scheme"),
    [
        ("", {"steps": 20, "scheme": ji.MoreauJean()}),
        slow('range="-1 .8" limited="true"', {"scheme": ji.EventDriven()}),
    ],
    ids=["swings", "meets its limit"],
)
def test_a_derivative_by_the_start_and_by_a_spring_is_that_of_the_motion(limit, scheme):
    """Of an arm, against central differences, of a truncation of 1e-8."""
    text = f"""<mujoco><compiler angle="radian"/><worldbody><body name="arm" pos="0 0 1">
      <joint name="elbow" axis="0 1 0" {limit}/>
      <geom type="capsule" fromto="0 0 0 .5 0 0" size=".05" mass="1"/></body></worldbody></mujoco>"""
    spring = spatial.AngleSpring("arm", stiffness=lambda args: args["k"])
    arm = spatial.from_mjcf(text, restitution=0.6, parts=[spring])
    problem = arm.problem()

    @jax.jit
    def end(x):
        q0, v0 = arm.start(x[:1], x[1:2])
        return ji.solve(problem, q0, v0, t1=1.0, args={"k": x[2]}, save="final", **scheme).q[-1, 0]

    x, along = jnp.array([0.1, 2.0, 1.5]), jnp.array([1.0, 0.5, -2.0])
    _, slope = jax.jvp(end, (x,), (along,))
    np.testing.assert_allclose(slope, (end(x + 1e-4 * along) - end(x - 1e-4 * along)) / 2e-4, rtol=1e-5)


def test_urdf_is_read_by_the_same_door():
    text = """<robot name="arm"><link name="base"/><link name="upper"><inertial><origin xyz="0 0 .2"/><mass value="2"/>
      <inertia ixx=".1" iyy=".1" izz=".05" ixy="0" ixz="0" iyz="0"/></inertial></link>
      <joint name="shoulder" type="revolute"><parent link="base"/><child link="upper"/><axis xyz="0 1 0"/><limit lower="-1" upper="1" effort="1" velocity="1"/></joint></robot>"""  # noqa: E501
    arm = spatial.from_mjcf(text, restitution=0.3)
    problem = arm.problem()
    assert problem.coordinates == ("shoulder",) and problem.contacts == ("shoulder low", "shoulder high")
    q = jnp.array([0.3])
    np.testing.assert_allclose(arm.mass(q, None), [[0.1 + 2 * 0.04]])
    np.testing.assert_allclose(arm.force(0.0, q, 0 * q, None), [2 * 9.81 * 0.2 * np.sin(0.3)])


@pytest.mark.slow
def test_programs_of_the_guide_run(capsys):
    """What they print of the first motion is there; its last place to the digits that other machines have."""
    page = (Path(__file__).parents[2] / "docs" / "howto" / "robots.md").read_text()
    names = {}
    for program in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(program, names)
    printed, toe = re.search(r"```text\n(.*)\n\[(.*)\]\n```", page).groups()
    out = capsys.readouterr().out
    of_rounding = re.compile(r"\d\.\d+e-1[5-9]")  # depths of contacts that last, which no two processors share
    assert of_rounding.sub("rounding", printed) in of_rounding.sub("rounding", out)
    assert "[0.59 0.59 0.   0.  ]" in page and "[0.59 0.59 0.   0.  ]" in out  # the gait's multipliers
    found = names["hopper"].site(names["motion"].q[-1], "toe")
    np.testing.assert_allclose(found, [float(x) for x in toe.split()], atol=1e-6)


def test_a_model_is_drawn():
    """Its primitive geoms, each with an outline, over a floor."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    hopper = spatial.from_mjcf(HOPPER, contacts="foot-floor")
    figure, ax = pyplot.subplots()
    hopper.draw(ax, 0.0, np.asarray(hopper.q0))
    names = [name for name, body in hopper.bodies if body.shape is not None]
    assert names == ["geom trunk", "geom upper", "geom lower", "geom foot"]
    assert len(ax.patches) == 2 * len(names)  # each fills its outline, and its shadow
    pyplot.close(figure)
