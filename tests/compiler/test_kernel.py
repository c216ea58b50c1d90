"""All steps of a motion as one kernel of a GPU: its code is made for one, and runs here,
a lane after the other (`kernels_on_host`)."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact.compiler.gpu import ptx
from jaximpact.compiler.scalar import Unsupported
from support import kernels_on_host, methods


def force(t, q, v, args):
    # a lane's own clock may run out
    driven = jnp.stack([-args["k"] * q[0] + 2 * jnp.cos(3 * t), -9.81 + 0.0 * jnp.log(args["until"] - t)])
    return driven - 0.3 * (jnp.cos(q) @ v**2) * jnp.sin(q)  # velocity terms of the mass below


def mass(q, args):
    return jnp.eye(2) + 0.3 * jnp.outer(jnp.sin(q), jnp.sin(q))


def walls(t, q, args):
    """A moving floor, a slope, and the inside of a circle."""
    return jnp.stack([q[1] + 0.1 * jnp.sin(2 * t), q[1] - args["slope"] * q[0] + 0.2, 4 - q @ q])


PROBLEM = ji.Problem(force, walls, mass, energy=lambda t, q, v, args: 0.5 * v @ mass(q, args) @ v)
LANES = 37
SCHEMES = [methods.SCHEMES[name].scheme for name in methods.KINDS]
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


@pytest.fixture
def on_gpu(monkeypatch):
    yield from kernels_on_host.pretend(monkeypatch)


def both(problem, q0, v0, tolerance=1e-11, **given):
    """The kernel and native code of the same lanes, compared; the kernel's result."""
    kernel, native = (ji.ensemble(problem, q0, v0, execution=way, **given) for way in ("kernel", "native"))
    compare(kernel, native, tolerance)
    return kernel


def test_the_kernel_is_native_code(on_gpu):
    """Lanes with numbers of steps, restitution and parameters of their own, one of which becomes NaN;
    of rows at times of their own."""
    until = np.full(LANES, 10.0)
    until[3] = 0.4
    gravity = lambda t, q, v, args: jnp.stack([-9.81 - 0.0 * jnp.sqrt(args - t)])
    ball = ji.Problem(gravity, lambda t, q, args: jnp.append(q, 1.6 - q**2))
    at = np.linspace(0, 1, LANES)
    given = {"t1": 1.0, "h": np.where(np.arange(LANES) % 3, 0.005, 0.01), "e": at, "args": until, "args_axes": 0}
    found = both(ball, 0.2 + at[:, None], 3 * at[::-1, None], save=[0.3, 0.31, 0.6], **given)
    assert np.flatnonzero(found.failed).tolist() == [3] and np.isnan(found.q[3]).any()
    assert np.sum(np.any(found.impulse[:, -1] > 0, axis=-1)) > LANES // 2
    [code] = on_gpu
    assert re.findall(r"\.entry (\w+)", code) == ["motion"] and ".extern" not in code


def motion(problem=None, **given):
    return lambda q0, v0, e: ji.solve(problem or BALL, q0, v0, e=e, t1=0.8, h=0.01, **given).q[-1, 0]


BALL = ji.Problem(lambda t, q, v, args: -9.81 - 0.3 * v, lambda t, q, args: q - 0.1 * t)
Q0, V0 = np.linspace(0.4, 0.9, 7)[:, None], np.linspace(-2, 1, 7)[:, None]
end = motion(save="final")


@pytest.mark.parametrize(
    "derivative",
    [
        pytest.param(lambda: jax.vmap(jax.grad(end, (0, 2)), (0, 0, None))(Q0, V0, 0.7), marks=pytest.mark.slow),
        pytest.param(lambda: end(Q0[0], V0[0], 0.7), marks=pytest.mark.slow),
        pytest.param(lambda: jax.grad(lambda e: jnp.sum(jax.vmap(lambda q, v: end(q, v, e))(Q0, V0)))(0.7),
        marks=pytest.mark.slow), pytest.param(lambda: jax.jacfwd(end, (0, 2))(Q0[0], V0[0], 0.7),
        marks=pytest.mark.slow),
        pytest.param(lambda: ji.sensitivities(BALL, Q0, V0, e=0.7, wrt=("q0", "e"), save=40, t1=0.8,
        h=0.01).jacobian["q"],
                     marks=pytest.mark.slow),
    ],
    ids=["gradients", "one-motion", "by-what-lanes-share", "jacobian-of-one", "jacobians-of-rows"],
)  # fmt: skip
def test_derivatives_are_those_of_native_code(monkeypatch, derivative):
    """Each direction is a lane of its own; to round-off."""
    expected = derivative()
    jax.clear_caches()
    for made in kernels_on_host.pretend(monkeypatch):
        found = derivative()
        assert made  # the derivative is one, and values may be another
        monkeypatch.undo()
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("projection", [ji.ActiveSet(), ji.ProjectedGradient()], ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: type(s).__name__)
def test_the_kernel_is_native_code_for_every_scheme(on_gpu, scheme, projection):
    q0, v0, given = lanes()
    e = 0.0 if isinstance(scheme, ji.Maury) else 0.6
    # iterations stop at 1e-12, which 120 steps carry on
    both(PROBLEM, q0, v0, 1e-9, h=0.005, e=e, scheme=scheme, projection=projection, **given)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [ji.EventDriven(), ji.MoreauJean()], ids=str)
def test_the_kernel_takes_friction_and_tolerances(on_gpu, scheme):
    """A disk that slides and rolls, by a scheme of its own steps too; the frictional law by one that has it."""
    friction = 0.3 if isinstance(scheme, ji.MoreauJean) else None
    slip = {"slip": lambda t, q, v, args: v[:1] + 0.2 * v[2:], "friction": friction} if friction else {}
    disk = ji.Problem(lambda t, q, v, args: jnp.array([0.0, -9.81, 0.0]), lambda t, q, args: q[1:2] - 0.2, **slip)
    at = np.linspace(0, 1, LANES)
    q0, v0 = np.stack([0 * at, 0.3 + at, 0 * at], -1), np.stack([at, -at, 3 * at], -1)
    found = both(disk, q0, v0, 1e-10, t1=1.0, h=0.01, e=0.5, scheme=scheme)
    assert np.all(np.any(found.impulse[:, -1] > 0, axis=-1))


@pytest.mark.slow
def test_the_kernel_is_native_code_in_single_precision(on_gpu):
    q0, v0, given = lanes(np.float32)
    with jax.enable_x64(False):
        found = both(PROBLEM, q0, v0, 1e-4, h=np.float32(0.005), e=np.float32(0.5), **given)
    assert found.q.dtype == np.float32


def test_what_a_kernel_cannot_take_is_named(monkeypatch):
    given = {"t1": 0.1, "h": 0.01, "e": 0.5, "execution": "kernel"}
    with pytest.raises(ValueError, match="execution='kernel' needs a GPU"):
        ji.ensemble(BALL, Q0, V0, **given)
    with pytest.raises(ValueError, match="execution"):
        ji.ensemble(BALL, Q0, V0, **given | {"execution": "gpu"})
    for _ in kernels_on_host.pretend(monkeypatch):
        monkeypatch.setattr("jaximpact.compiler.gpu.kernel.MAX_OPS_KERNEL", 10)
        with pytest.raises(
            ValueError, match=r"cannot take this problem \(a program of .* operations, more than 10\): give"
        ):
            ji.ensemble(BALL, Q0, V0, **given)
        found = ji.ensemble(BALL, Q0, V0, **given | {"execution": "auto"})  # through XLA
        with (
            jax.default_device(jax.devices("cpu")[0]),
            pytest.raises(ValueError, match="execution='kernel' needs a GPU"),
        ):
            ji.ensemble(BALL, Q0, V0, **given)
        monkeypatch.undo()
    expected = ji.ensemble(BALL, Q0, V0, **given | {"execution": "native"})
    np.testing.assert_allclose(found.q, expected.q, rtol=1e-11)


@pytest.mark.parametrize(
    ("function", "message"),
    [("sin", "no CUDA toolkit with libdevice: set CUDA_HOME"), ("no_such", "no function .*no_such")],
)
def test_functions_that_a_gpu_lacks_are_named(monkeypatch, tmp_path, function, message):
    """``no_such`` even where there is a library."""
    text = f"""
        declare double @{function}(double)
        define ptx_kernel void @motion(ptr %x) {{
            %y = load double, ptr %x
            %z = call double @{function}(double %y)
            store double %z, ptr %x
            ret void
        }}
    """
    library = tmp_path / "nvvm" / "libdevice"
    library.mkdir(parents=True)
    binding = pytest.importorskip("llvmlite.binding")
    (library / "libdevice.10.bc").write_bytes(binding.parse_assembly("").as_bitcode())
    monkeypatch.setattr(ptx, "_library", ptx._library.__wrapped__)
    monkeypatch.setattr(ptx, "_toolkits", lambda: [tmp_path] if function == "no_such" else [])
    with pytest.raises(Unsupported, match=message):
        ptx.compile_kernel(text, "motion")
