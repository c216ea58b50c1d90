"""All steps of a motion as one kernel: here imitated on a CPU, block by block of lanes, as a GPU would execute it."""

import dataclasses
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import methods
import numpy as np
import pytest
from jax._src import xla_bridge
from jax.interpreters import mlir

import jaximpact as ji
from jaximpact.compiler.gpu import branch_free, triton
from jaximpact.simulation import primitive
from jaximpact.simulation.arguments import for_lanes
from jaximpact.simulation.rows import RowBuffer
from jaximpact.simulation.trajectory import trajectory

# on a GPU: jax says so of what compiles the kernel, and has nothing yet in its place that takes branches
pytestmark = pytest.mark.filterwarnings("ignore:The Pallas Triton backend:DeprecationWarning")
M = 5  # lanes of the last block that are filled up


def force(t, q, v, args):
    # a lane's own clock may run out
    return jnp.stack([-args["k"] * q[0] + 2 * jnp.cos(3 * t), -9.81 + 0.0 * jnp.log(args["until"] - t)])


def mass(q, args):
    return jnp.eye(2) + 0.3 * jnp.outer(jnp.sin(q), jnp.sin(q))


def walls(t, q, args):
    """A moving floor, a slope, and the inside of a circle."""
    return jnp.stack([q[1] + 0.1 * jnp.sin(2 * t), q[1] - args["slope"] * q[0] + 0.2, 4 - q @ q])


PROBLEM = ji.Problem(force, walls, mass, energy=lambda t, q, v, args: 0.5 * v @ mass(q, args) @ v)
LANES = 32 + M
SCHEMES = [methods.SCHEMES[name].scheme for name in methods.KINDS]
WAYS = ("kernel", "xla")
FIELDS = ("t", "q", "v", "z", "impulse", "energy", "penetration", "residual", "iterations", "status", "failed_at")


def lanes(dtype=float):
    at = np.linspace(0, 1, LANES)
    q0 = np.stack([0.8 * np.cos(7 * at), 0.9 + 0.2 * at], -1).astype(dtype)
    v0 = np.stack([2 * np.sin(9 * at), -at], -1).astype(dtype)
    args = {"k": 3.0, "until": np.full(LANES, 10.0, dtype), "slope": 0.2 + 0.3 * at.astype(dtype)}
    return q0, v0, {"args": args, "args_axes": {"k": None, "until": 0, "slope": 0}, "t1": 0.6}


def compare(kernel, xla, tolerance=1e-11, leave_out=()):
    """The tolerance is that of two layouts: roundings grow with the motion."""
    for name in set(FIELDS) - set(leave_out):
        x, y = getattr(kernel, name), getattr(xla, name)
        if x is not None or y is not None:
            assert x.dtype == y.dtype and x.shape == y.shape, name
            np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance, err_msg=name)


def both(q0, v0, tolerance=1e-11, **given):
    """The two executions of the same lanes, compared; the kernel's result."""
    kernel, xla = (ji.ensemble(PROBLEM, q0, v0, execution=way, **given) for way in WAYS)
    compare(kernel, xla, tolerance)
    return kernel


def test_the_kernel_is_xla_for_a_ball():
    """What is quick to compile: all kinds of lanes, and a NaN."""
    until = np.full(LANES, 10.0)
    until[3] = 0.4
    gravity = lambda t, q, v, args: jnp.stack([-9.81 + 0.0 * jnp.log(args - t)])
    ball = ji.Problem(gravity, lambda t, q, args: jnp.append(q, 1.6 - q))
    at = np.linspace(0, 1, LANES)
    given = {"t1": 1.0, "h": np.where(np.arange(LANES) % 3, 0.005, 0.01), "e": at, "args": until, "args_axes": 0}
    kernel, xla = (ji.ensemble(ball, 0.5 + at[:, None], 3 * at[::-1, None], execution=way, **given) for way in WAYS)
    assert np.flatnonzero(kernel.failed).tolist() == [3] and np.isnan(kernel.q[3]).any()
    assert np.sum(np.any(kernel.impulse[:, -1] > 0, axis=-1)) > LANES // 2
    compare(
        kernel, xla, leave_out=["iterations"]
    )  # of flat walls XLA solves every step, the kernel those in which one may be met


def pendulum_force(t, q, v, args):
    turn = jnp.sin(q[0] - q[1]) * jnp.stack([-(v[1] ** 2), v[0] ** 2])
    return turn - 9.81 * jnp.stack([2.0, 1.0]) * jnp.sin(q)


def pendulum_mass(q, args):
    return jnp.array([[2.0, 0.0], [0.0, 1.0]]) + jnp.cos(q[0] - q[1]) * jnp.array([[0.0, 1.0], [1.0, 0.0]])


@pytest.mark.slow
def test_the_kernel_is_xla_for_a_double_pendulum():
    """Between a wall and its joint and tip, beside native code, which counts iterations otherwise; roundings grow with the motion."""
    pendulum = ji.Problem(pendulum_force, lambda t, q, args: 0.3 - jnp.cumsum(jnp.sin(q)), pendulum_mass)
    at = np.linspace(0, 1, LANES)
    q0, v0 = np.stack([-0.4 + 0.1 * at, -0.5 * at], -1), np.stack([2 + at, 3 - at], -1)
    given = {"t1": 0.6, "h": 0.005, "e": 0.5}
    kernel, native = (ji.ensemble(pendulum, q0, v0, execution=way, **given) for way in ("kernel", "native"))
    assert np.all(np.any(kernel.impulse[:, -1] > 0, axis=0))
    compare(kernel, dataclasses.replace(native, iterations=kernel.iterations), 1e-10)


def test_branch_free_steps_are_those_with_branches(monkeypatch):
    """Separate numbers of all lanes, in segments: lanes of their own steps, saved rows, a NaN, and a curved wall that takes three
    iterations, which are made without a branch, or four, for which a segment is made again with loops. They stop at 1e-12, which
    the motion carries on."""
    until = np.full(LANES, 10.0)
    until[3] = 0.4
    gravity = lambda t, q, v, args: jnp.stack([-9.81 + 0.0 * jnp.log(args - t)])
    ball = ji.Problem(gravity, lambda t, q, args: 1.6 - q**2)
    at = np.linspace(0, 1, LANES)
    given = {"t1": 0.77, "h": np.where(np.arange(LANES) % 3, 0.005, 0.01), "e": at, "args": until, "args_axes": 0}
    run = lambda save: ji.ensemble(ball, at[:, None], -5 * at[::-1, None], execution="xla", save=save, **given)
    expected = run([0.3, 0.31, 0.6])
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr("jaximpact.compiler.gpu.branch_free.MAX_UNROLLED_ITERATIONS", 3)
    found = run([0.3, 0.31, 0.6])
    assert np.flatnonzero(found.failed).tolist() == [3]
    assert np.sum(np.any(found.impulse[:, -1] > 0, axis=-1)) > LANES // 2 and np.max(found.iterations[:3]) > 5
    compare(found, expected, 1e-10)


@pytest.mark.slow
def test_lanes_of_all_kinds():
    """Numbers of steps, restitution and parameters of their own; one that becomes NaN, which no other lane notices."""
    q0, v0, given = lanes()
    given["args"]["until"][3] = 0.4
    h, e = np.where(np.arange(LANES) % 3, 0.005, 0.01), np.linspace(0, 0.9, LANES)
    found = both(q0, v0, h=h, e=e, **given)
    assert np.flatnonzero(found.failed).tolist() == [3] and np.isnan(found.q[3]).any()
    assert np.sum(np.any(found.impulse[:, -1] > 0, axis=-1)) > LANES // 2


@pytest.mark.slow
@pytest.mark.parametrize("projection", [ji.ActiveSet(), ji.ProjectedGradient()], ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: type(s).__name__)
def test_the_kernel_is_xla_for_every_scheme(scheme, projection):
    q0, v0, given = lanes()
    e = 0.0 if isinstance(scheme, ji.Maury) else 0.6
    # iterations stop at 1e-12, which 120 steps carry on
    both(q0, v0, 1e-9, h=0.005, e=e, scheme=scheme, projection=projection, **given)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: type(s).__name__)
def test_branch_free_steps_are_those_of_every_scheme(monkeypatch, scheme):
    """Tolerance as in `test_the_kernel_is_xla_for_every_scheme`."""
    q0, v0, given = lanes()
    e = 0.0 if isinstance(scheme, ji.Maury) else 0.6
    run = lambda: ji.ensemble(PROBLEM, q0, v0, h=0.005, e=e, scheme=scheme, save=10, execution="xla", **given)
    expected = run()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr("jaximpact.compiler.gpu.branch_free.MAX_UNROLLED_ITERATIONS", 2)
    compare(run(), expected, 1e-9)


@pytest.mark.slow
def test_the_kernel_is_xla_in_single_precision():
    q0, v0, given = lanes(np.float32)
    with jax.enable_x64(False):
        found = both(q0, v0, 1e-3, h=np.float32(0.005), e=np.float32(0.5), **given)
    assert found.q.dtype == np.float32


def test_what_it_cannot_take_is_named():
    q0, v0, given = lanes()
    with pytest.raises(ValueError, match=r"execution='kernel' keeps final states only: give save='final'"):
        ji.ensemble(PROBLEM, q0, v0, h=0.01, e=0.5, save="all", execution="kernel", **given)
    with pytest.raises(ValueError, match="execution"):
        ji.ensemble(PROBLEM, q0, v0, h=0.01, e=0.5, execution="gpu", **given)
    table = jnp.linspace(0, 1, 600)
    ball = ji.Problem(lambda t, q, v, args: -9.81 + 0 * jnp.interp(q, table, table), lambda t, q, args: q)
    with pytest.raises(ValueError, match=r"cannot take this problem \(.*\): give execution='xla'"):
        ji.ensemble(ball, np.ones((3, 1)), np.zeros((3, 1)), t1=0.1, h=0.01, e=0.5, execution="kernel")


def ball_force(t, q, v, args):
    return -9.81 - 0.3 * v


BALL = ji.Problem(ball_force, lambda t, q, args: q - 0.1 * jnp.sin(t))


def described_gpu():
    """A context in which newer versions of jax know for which GPU they lower."""
    if not hasattr(jax.sharding, "AbstractDevice") or jax.__version_info__ < (0, 11):
        return nullcontext()
    device = jax.sharding.AbstractDevice("NVIDIA H100 80GB HBM3", None, "cuda")
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((1,), ("x",), abstract_device=device))


@pytest.mark.parametrize(
    ("scheme", "friction"),
    [
        (ji.EventCorrected(), None),
        (ji.MoreauJean(), 0.3),
        pytest.param(ji.PaoliSchatzman(), None, marks=pytest.mark.slow),
        pytest.param(ji.EventCorrected(), 0.3, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_kernel_is_lowered_for_a_gpu(monkeypatch, scheme, friction):
    """To the code of Triton, which has no rule for some of what the imitation executes."""
    known = xla_bridge.canonicalize_platform
    # without a GPU jax does not know the name of the platform
    monkeypatch.setattr(xla_bridge, "canonicalize_platform", lambda name: "cuda" if name == "gpu" else known(name))
    if friction is None:
        problem, d = BALL, 1
    else:
        # a disk, its spin last
        problem, d = ji.Problem(lambda t, q, v, args: jnp.array([0.0, -9.81, 0.0]), lambda t, q, args: q[1:2] - 0.2,
                                slip=lambda t, q, v, args: v[:1] + 0.2 * v[2:], friction=friction), 3  # fmt: skip
    program, lanes = for_lanes(problem, np.ones((64, d)), np.zeros((64, d)), 0.0, 1.0, 0.01, 0.5, None, None, scheme, None, "final", None)  # fmt: skip
    program = program.replace(per_lane_branches=True)
    call = triton.over_lanes(lambda one: trajectory(program, one), (lanes.in_axes,), 10**9)
    with described_gpu():
        text = jax.jit(call).trace(lanes.motion).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("stablehlo.custom_call") == 1 and "triton" in text


def test_the_first_of_largest_entries():
    """Of arrays with one axis, whose entries are arrays over lanes, and of NaN."""
    x = np.array([[1.0, 3.0, 3.0], [np.nan, 4.0, 5.0], [2.0, 1.0, 0.0]])
    both = lambda x: (jnp.argmax(x), jnp.argmin(x))
    found = jax.jit(triton.over_lanes(both, (0,), interpret=True))(x)
    np.testing.assert_array_equal(np.array(found), [[1, 0, 0], [0, 0, 2]])


def _lower(rule):
    for one in (primitive.motion_p, primitive.motion_with_tangent_p):
        mlir.register_lowering(one, rule, platform="cpu")


@pytest.fixture
def on_gpu(monkeypatch):
    """Has programs made as for a GPU, though XLA compiles them for this CPU; the numbers of lanes that went without branches."""
    taken, make = [], branch_free._scalar_step

    def note(*given):
        taken.append(given[-1])
        return make(*given)

    monkeypatch.setattr(branch_free, "_scalar_step", note)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    _lower(primitive._on_gpu)
    yield taken
    _lower(primitive._natively)
    jax.clear_caches()


@jax.custom_jvp
def stop(x):
    return jnp.maximum(x, 0.0)


@stop.defjvp
def _(values, changes):
    (x,), (change,) = values, changes
    return stop(x), jnp.where(x > 0, change, 7.0)  # a rule that no differentiation of its operations gives


def test_the_derivative_of_a_segment(on_gpu):
    """By what its body closes over, too, with whole numbers in the carry, rows that are kept, and a rule of the body for derivatives."""

    def one(x, rate):
        body = lambda now: [stop(now[0] - rate * now[0] ** 2), now[1] + 1]
        add = lambda kept, now: RowBuffer(kept.buffer.at[now[1] % 2].set(now[0] ** 2), now[1])
        rows = RowBuffer(jnp.zeros(2), jnp.zeros((), jnp.int32))
        carry, rows = branch_free.run_segment(body, [x, jnp.zeros((), jnp.int32)], rows, add, 3)
        return carry[0], rows.buffer

    def loop(x, rate):
        found = [x]
        for _ in range(3):
            found.append(stop(found[-1] - rate * found[-1] ** 2))
        return found[3], jnp.stack([found[2], found[3]]) ** 2

    x, rates = np.array([0.5, 2.0, 1.0]), np.array([0.4, 1.2, 0.1])
    change = lambda f: jax.jit(jax.vmap(lambda *xs: jax.jvp(f, xs, (0 * xs[0] + 1, 0 * xs[1] + 2))))(x, rates)
    for found, expected in zip(jax.tree.leaves(change(one)), jax.tree.leaves(change(loop)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-14)
    assert set(on_gpu) == {3}


Q0, V0 = np.linspace(0.4, 0.9, 7)[:, None], np.linspace(-2, 1, 7)[:, None]


def end(q0, v0, e):
    return ji.solve(BALL, q0, v0, e=e, save="final", t1=0.8, h=0.01).q[-1, 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("derivative", "lanes"),
    [
        (lambda: jax.grad(lambda e: jnp.sum(jax.vmap(lambda q, v: end(q, v, e))(Q0, V0)))(0.7), 7),
        pytest.param(lambda: jax.vmap(jax.grad(end, (0, 2)), (0, 0, None))(Q0, V0, 0.7), 15, marks=pytest.mark.slow),
        pytest.param(lambda: ji.sensitivities(BALL, Q0, V0, e=0.7, wrt=("q0", "e"), save=40, t1=0.8, h=0.01).jacobian["q"],
                     15, marks=pytest.mark.slow),
    ],
    ids=["by-what-lanes-share", "gradients", "jacobians-of-rows"],
)  # fmt: skip
def test_derivatives_without_branches(on_gpu, monkeypatch, derivative, lanes):
    """Each direction is a lane of its own, and one is added to make them odd; beside native code, to round-off."""
    found = derivative()
    assert set(on_gpu) >= {lanes}
    monkeypatch.undo()
    _lower(primitive._natively)
    jax.clear_caches()
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(derivative()), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-12)
