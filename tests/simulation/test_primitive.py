"""`solve` under transformations of jax: native code gives what XLA gives, in every nesting,
and nothing is lost on the way."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import sparse
from jax.interpreters import partial_eval

import jaximpact as ji
from support.breadth import slow

LANES = 5
H, STEPS = 0.01, 60


def force(t, q, v, args):
    turning = jnp.stack([0.05 * v[1] ** 2, -0.1 * v[0] * v[1]])  # of the mass below
    return jnp.stack([-9.81 - args["drag"] * v[0], -args["k"] * q[1]]) + turning


def walls(t, q, args):
    return jnp.stack([q[0] - 0.1 * q[1], 1.5 - q[1]])


PROBLEM = ji.Problem(force, walls, mass=lambda q, args: jnp.diag(jnp.stack([jnp.ones_like(q[0]), 2.0 + 0.1 * q[0]])))
Q0 = np.stack([np.linspace(0.3, 0.6, LANES), np.linspace(0.5, 1.0, LANES)], 1)
V0 = np.array([-1.0, 2.0])
ARGS = {"k": 3.0, "drag": 0.1}
BALL = ji.Problem(lambda t, q, v, args: -9.81 - 0.1 * v, lambda t, q, args: q, restitution=0.6)
HEIGHT = np.array([0.3])
SCHEMES = [ji.PaoliSchatzman(), ji.MoreauJean(), ji.EventCorrected()]
OTHERS = [ji.Maury()]


def end(q, v, e, args, execution="auto", scheme=None, **options):
    given = {"t1": STEPS * H, "steps": STEPS, "save": "final"} | options
    s = ji.solve(PROBLEM, q, v, e=e, args=args, execution=execution, scheme=scheme, **given)
    return jnp.concatenate([s.q[-1], s.v[-1]])


def nestings(function):
    """Each nesting of jax transformations, as a function of (q0, v0, e, args)."""
    total = lambda *given: jnp.sum(function(*given) * jnp.arange(1.0, 5.0))
    lanes = jax.vmap(function, in_axes=(0, None, None, None))
    summed = lambda q, *given: jnp.sum(lanes(q, *given) ** 2)
    grid = jax.vmap(jax.vmap(function, in_axes=(None, None, 0, None)), in_axes=(0, None, None, None))
    return {
        "jit": lambda q, v, e, args: jax.jit(function)(q[0], v, e, args),
        "vmap": lambda q, v, e, args: lanes(q, v, e, args),
        "vmap of vmap": lambda q, v, e, args: grid(q, v, jnp.stack([e, 0.5 * e]), args),
        "jacfwd": lambda q, v, e, args: jax.jacfwd(function, (0, 2, 3))(q[0], v, e, args),
        "grad": lambda q, v, e, args: jax.grad(total, (0, 1, 2, 3))(q[0], v, e, args),
        "vmap of grad": lambda q, v, e, args: jax.vmap(jax.grad(total, (0, 3)), in_axes=(0, None, None, None))(
            q, v, e, args
        ),
        "grad of vmap": lambda q, v, e, args: jax.grad(summed, (0, 1, 3))(q, v, e, args),
    }


def close(found, expected, tolerance):
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


WEIGHTS = np.arange(1.0, 5.0)
BY_NAME = pytest.mark.parametrize(
    "scheme",
    [SCHEMES[0], *(pytest.param(s, marks=pytest.mark.slow) for s in [*SCHEMES[1:], *OTHERS])],
    ids=lambda s: type(s).__name__,
)


def restitution(scheme):
    return 0.0 if isinstance(scheme, ji.Maury) else 0.6


# which hold every transformation but forward mode, of `test_rows_are_ends_of_shorter_motions`
HOLD_ALL = ("vmap of vmap", "grad of vmap")


@pytest.mark.parametrize("execution", ["native", slow("xla")])
def test_results_vary_over_devices_as_inputs_do(execution):
    """In `jax.shard_map`: derivatives are those without it, and a result that differs between devices is not
    taken for one that they share.

    A mesh of one device has all of its rules.
    """
    part, shared = jax.sharding.PartitionSpec("x"), jax.sharding.PartitionSpec()
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

    def on_devices(function, results):
        return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=(part, shared), out_specs=results))

    def fall(q, g):
        problem = ji.Problem(lambda t, q, v, args: -args * jnp.ones_like(v), lambda t, q, args: q, restitution=0.6)
        return ji.solve(problem, q, [-1.0], args=g, t1=0.6, steps=60, save="final", execution=execution).q[-1, 0]

    lanes = jax.vmap(fall, in_axes=(0, None))
    slopes = jax.grad(lambda q, g: jnp.sum(lanes(q, g)), (0, 1))
    given = jnp.array([[0.3], [0.4]]), jnp.asarray(9.81)
    close(on_devices(slopes, (part, shared))(*given), slopes(*given), 1e-12)  # the sum of two lanes, in another order
    with pytest.raises(ValueError, match="out_specs which require replication"):
        on_devices(lanes, shared)(*given)


def test_what_a_force_prints_is_printed(capfd):
    """By XLA; native code, which does not print, would lose it without a word."""

    def force(t, q, v, args):
        jax.debug.print("at {}", t)
        return jnp.full_like(v, -9.81)

    options = {"q0": [1.0], "v0": [0.0], "t1": 0.2, "steps": 2, "scheme": ji.Maury(), "save": "final"}
    with pytest.raises(ValueError, match=r"an effect, such as of jax\.debug\.print.*give execution='xla'"):
        ji.solve(ji.Problem(force), **options, execution="native")
    capfd.readouterr()
    ji.solve(ji.Problem(force), **options)
    jax.effects_barrier()
    assert "at 0.1" in capfd.readouterr().out


@pytest.mark.slow
def test_without_jit_functions_see_numbers():
    """`jax.disable_jit`, to look at what a force is given: the operations of a motion run one by one,
    and the motion is the same."""
    seen = []

    def force(t, q, v, args):
        seen.append(q)
        return jnp.full_like(v, -9.81)

    fall = lambda problem: ji.solve(problem, [0.5], [0.0], t1=0.1, steps=1, scheme=ji.Maury(), save="final").q[-1, 0]
    expected = fall(ji.Problem(force))
    seen.clear()
    with jax.disable_jit():
        found = fall(ji.Problem(force))
    assert abs(found - expected) < 1e-15
    assert any(isinstance(q, jax.Array) and not isinstance(q, jax.core.Tracer) and 0 < q[0] < 1 for q in seen)


@pytest.mark.slow
def test_no_traced_value_outlives_its_trace():
    """What `jax.checking_leaks` looks for, which must not report what a user did not do."""
    fall = lambda g: ji.solve(
        BALL.replace(force=lambda t, q, v, args: -args + 0 * q), [1.0], [0.0], t1=0.2, steps=2, args=g, save="final"
    ).q[-1, 0]
    with jax.checking_leaks():
        assert abs(jax.grad(fall)(9.81) + 0.2**2 / 2) < 1e-3


@pytest.mark.slow
@BY_NAME
@pytest.mark.parametrize("others", [True, False])
def test_every_nesting(scheme, others):
    """What each nesting of transformations gives follows from the values and Jacobians of single lanes."""
    e = restitution(scheme)
    found = ji.sensitivities(
        PROBLEM, Q0, V0, t1=STEPS * H, h=H, e=e, args=ARGS, scheme=scheme, wrt=("q0", "v0", "e", "args"),
        output=outcome,
    )  # fmt: skip
    assert np.all(found.value["impulse"][:, 0] > 0) and np.any(found.value["impulse"][:, 1] > 0)
    x, by = found.value["x"], found.jacobian["x"]
    half = ji.ensemble(PROBLEM, Q0, V0, t1=STEPS * H, h=H, e=0.5 * e, args=ARGS, scheme=scheme)
    pull = lambda w, name: jax.tree.map(lambda j: np.einsum("bi,bi...->b...", w, j), by[name])
    one = np.broadcast_to(WEIGHTS, x.shape)
    first = lambda tree: jax.tree.map(lambda j: j[0], tree)
    total = lambda tree: jax.tree.map(lambda j: j.sum(axis=0), tree)
    expected = {
        "jit": x[0],
        "vmap": x,
        "vmap of vmap": np.stack([x, np.concatenate([half.q[:, -1], half.v[:, -1]], axis=1)], axis=1),
        "jacfwd": first((by["q0"], by["e"], by["args"])),
        "grad": first(tuple(pull(one, name) for name in ("q0", "v0", "e", "args"))),
        "vmap of grad": (pull(one, "q0"), pull(one, "args")),
        "grad of vmap": (pull(2 * x, "q0"), total(pull(2 * x, "v0")), total(pull(2 * x, "args"))),
    }
    given = (jnp.asarray(Q0), jnp.asarray(V0), jnp.asarray(e), ARGS)
    for name, nested in nestings(lambda *given: end(*given, scheme=scheme)).items():
        if (name not in HOLD_ALL) == others:
            # roundings of 60 steps, amplified across impacts
            close(nested(*given), expected[name], 1e-9)


def outcome(s):
    return {"x": jnp.concatenate([s.q[-1], s.v[-1]]), "impulse": s.impulse[-1]}


def test_rows_are_ends_of_shorter_motions():
    """They and their derivatives."""
    run = lambda q, steps, save: ji.solve(BALL, q, [-1.0], t1=steps * H, steps=steps, save=save).q
    slopes_of = lambda f: jax.jit(jax.jacfwd(lambda q: (f(q),) * 2, has_aux=True))
    forward, every = slopes_of(lambda q: run(q, STEPS, "all"))(HEIGHT)
    # another number of steps, the same arithmetic
    k = STEPS // 2
    slope, end = slopes_of(lambda q: run(q, k, "final")[-1])(HEIGHT)
    close(every[k], end, 1e-12)
    close(forward[k], slope, 1e-9)


def test_numbers_that_functions_close_over():
    """They are differentiated and batched too."""

    def height(g):
        mass = lambda q, args: args["m"] + 0.1 * g * jnp.eye(1)
        problem = ji.Problem(
            lambda t, q, v, args: -g * jnp.ones(1), lambda t, q, args: q - 1e-3 * g, mass, restitution=0.5
        )
        save = ji.Save(function=lambda t, q, v, args: {"height": q[0] + g * args["m"]})
        given = {"t1": 0.3, "steps": 50, "save": save, "args": {"m": 1.0}, "scheme": ji.EventCorrected()}
        return ji.solve(problem, [0.2], [0.0], execution="native", **given).values["height"][-1]

    step = 1e-6  # differences of second order: h^2 f''' and rounding / h are near 1e-9
    given = np.array([9.81 - step, 9.81, 9.81 + step])
    (behind, _, ahead), slopes = jax.jit(jax.vmap(lambda g: jax.jvp(height, (g,), (jnp.ones(()),))))(given)
    close(slopes[1], (ahead - behind) / (2 * step), 1e-7)


SPRING = ji.Problem(
    lambda t, q, v, args: -jnp.tanh(args @ jnp.append(q, v))[:1], lambda t, q, args: q + 0.2, restitution=0.7
)
MANY = jnp.asarray(np.random.default_rng(0).normal(size=(20, 2)) * np.array([1.0, 1.1])[:, None, None])


def led(args, save="final"):
    """Of a spring, by forty weights."""
    found = ji.solve(SPRING, [0.3], [-1.0], t1=1.0, steps=50, args=args, save=save, execution="native")
    return found.q[-1, 0] + found.impulse[-1, 0]


def test_value_and_tangent_are_one_program():
    """Forward mode takes the steps once, and so does reverse mode by few numbers."""
    height = lambda q: ji.solve(BALL, q, [-1.0], t1=STEPS * H, steps=STEPS, save="final").q[-1, 0]
    given = jnp.asarray(HEIGHT)
    for program, count in (
        (lambda q: jax.jvp(height, (q,), (q,)), 1),
        (jax.jacfwd(height), 1),
        (jax.value_and_grad(height), 1),
    ):
        assert len(set(re.findall(r"jaximpact_\w+", jax.jit(program).lower(given).as_text()))) == count


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint", [False, True])
def test_gradients_of_motions_in_a_loop(checkpoint):
    """Where jax takes a JVP apart, in a scan, one whose states are computed again, or a linear function, tangents are
    those of forward mode."""
    step = lambda q: end(q, V0, 0.6, ARGS)[:2]
    body = jax.checkpoint(step) if checkpoint else step
    chain = lambda q: jax.lax.scan(lambda q, _: (body(q), None), q, None, length=3)[0]
    given = jnp.asarray(Q0[0])
    one = jax.jit(lambda q: (step(q), jax.jacfwd(step)(q)))
    now, forward = given, jnp.eye(2)
    for _ in range(3):
        now, slopes = one(now)
        forward = slopes @ forward
    close(jax.jacrev(chain)(given), forward, 1e-12)
    pushed = jax.jit(lambda change: jax.jvp(chain, (given,), (change,))[1])
    close(jax.linear_transpose(pushed, given)(jnp.ones(2))[0], forward.sum(0), 1e-12)


def test_a_gradient_walks_back_through_the_states_of_its_value():
    """The states that two motions leave behind for their ways back are told apart, and last for a second way back."""

    def both(w):
        (first, back), (second, other) = jax.vjp(led, w), jax.vjp(led, 1.1 * w)
        return (first, second), (back(1.0)[0], other(2.0)[0], back(3.0)[0])

    values, slopes = jax.jit(both)(MANY[0])
    close(values, (led(MANY[0]), led(1.1 * MANY[0])), 1e-13)
    one, other = (jax.jacfwd(led)(w) for w in (MANY[0], 1.1 * MANY[0]))
    close(slopes, (one, 2 * other, 3 * one), 1e-11)


def unread_modes(spring):
    """Programs of forty weights w by what they do with ``spring(w)``, which returns a number
    and what is read beside it."""
    jvp = lambda w: jax.jvp(spring, (w,), (jnp.ones_like(w),), has_aux=True)
    body = jax.checkpoint(lambda w: (lambda x, told: (w + 0.01 * x, told))(*spring(w)))
    loop = lambda w: (lambda last, told: (jnp.sum(last), told))(*jax.lax.scan(lambda w, _: body(w), w, None, length=2))
    grad = lambda function: jax.value_and_grad(function, has_aux=True)
    return {
        "value": spring,
        "jvp": jvp,
        "reverse": grad(spring),
        "lanes": jax.vmap(grad(spring), in_axes=0),
        "second": lambda w: jax.jvp(lambda w: jax.jvp(spring, (w,), (w,), has_aux=True)[:2], (w,), (w,)),
        "loop": grad(loop),
    }


@pytest.mark.parametrize("way", ["jvp", *map(slow, ("value", "reverse", "lanes", "second", "loop"))])
def test_an_account_that_nobody_reads_is_not_computed(way):
    """Results are those beside a status that is read, which is that of the motion by itself.

    To rounding: in one motion, which products are fused with sums depends on what else is computed of them.
    """
    told = []

    def spring(w, reads):
        options = {"sensitivity": "discrete" if way == "second" else None, "execution": "native", "save": "final"}
        found = ji.solve(SPRING, [0.3], [-1.0], t1=1.0, steps=50, args=w, **options)
        return found.q[-1, 0] + found.impulse[-1, 0], (found.status, found.residual) if reads else ()

    given = MANY if way == "lanes" else MANY[0]
    for reads in (False, True):
        run = unread_modes(lambda w, reads=reads: spring(w, reads))[way]
        drops = "tells=False" in str(partial_eval.dce_jaxpr(jax.make_jaxpr(run)(given).jaxpr, True)[0])
        assert drops if not reads else way not in ("value", "jvp") or not drops
        told.append(jax.jit(run)(given))
    without, beside = (jax.tree.leaves(x) for x in told)
    every = iter(beside)
    for x in without:
        assert any(x.shape == y.shape and np.allclose(x, y, rtol=1e-11, atol=1e-12) for y in every)
    if way in ("value", "reverse"):
        alone = jax.jit(lambda w: spring(w, True)[1])(given)
        status = [x for x in beside if x.dtype == jnp.int32]
        assert way == "reverse" or status == [alone[0]]


@pytest.mark.slow
def test_cotangents_that_differ_where_motions_do_not():
    """All rows of a Jacobian go back through the states of one motion."""
    several = lambda w: led(w) * jnp.arange(1.0, 4.0)
    close(jax.jit(jax.jacrev(several))(MANY[0]), jax.jit(jax.jacfwd(several))(MANY[0]), 1e-11)


@pytest.mark.parametrize(
    "d, scheme, way",
    [
        (2, None, "ValueAndJacobian"),
        (6, None, "Cotangent"),
        (6, ji.EventDriven(trials=50), "ValueAndJacobian"),
    ],
)
def test_one_motion_goes_backwards_where_that_is_cheaper(d, scheme, way):
    """From some ten inputs on; a scheme that chooses its steps would walk back through every trial."""
    problem = ji.Problem(lambda t, q, v, args: -q, lambda t, q, args: q[:1])

    def end(q, v):
        return ji.solve(problem, q, v, t1=0.1, steps=10, e=0.5, save="final", scheme=scheme).q[-1].sum()

    assert f"{way}(" in str(jax.make_jaxpr(jax.grad(end, (0, 1)))(jnp.ones(d), jnp.ones(d)))


@pytest.mark.parametrize("count, native", [slow(900, 2), (20_001, 1)])
def test_gradients_by_many_numbers_of_all_lanes_go_through_xla(count, native):
    """There products over all lanes may be the faster way back; the way there stays native."""
    problem = ji.Problem(lambda t, q, v, args: jnp.sum(args) - 9.81 + 0 * q, lambda t, q, args: q)
    one = lambda w, q: ji.solve(problem, q, 0 * q, t1=0.1, steps=10, e=0.5, args=w, save="final").q[-1, 0]
    loss = jax.value_and_grad(lambda w, q: jnp.sum(jax.vmap(one, (None, 0))(w, q)))
    text = jax.jit(loss).lower(jnp.zeros(count), jnp.ones((3, 1))).as_text()
    assert len(set(re.findall(r"jaximpact_\w+", text))) == native


SPARSE = sparse.BCOO.fromdense(jnp.eye(1))
STRANGE = {"digamma": jax.scipy.special.digamma, "bcoo_dot_general": lambda x: SPARSE @ x}


@pytest.mark.slow  # as test_native asks of lanes
@pytest.mark.parametrize("name", STRANGE)
def test_what_native_code_cannot_take(name):
    """A primitive without a rule, elementwise or not, goes through XLA, with the same derivative."""
    strange = ji.Problem(
        lambda t, q, v, args: -9.81 + 0 * STRANGE[name](1 + q**2), lambda t, q, args: q, restitution=0.5
    )
    usual = strange.replace(force=lambda t, q, v, args: -9.81 + 0 * q)

    def height(q, problem, way):
        return ji.solve(problem, q, [0.0], t1=0.3, steps=30, save="final", execution=way).q[-1, 0]

    given = jnp.array([0.2])
    close(jax.jacfwd(height)(given, strange, "auto"), jax.jacfwd(height)(given, usual, "native"), 1e-12)
    with pytest.raises(ValueError, match=rf"execution='native' cannot take this problem \({name}"):
        jax.jit(lambda q: height(q, strange, "native"))(given)


def test_status_and_refusals():
    """Remarks on derivatives come where derivatives are taken, also at no cost where not; "none" refuses them."""
    q = jnp.asarray(HEIGHT)

    def status(q, t1, **options):
        s = ji.solve(BALL, q, [-1.0], t1=t1, steps=STEPS, save="final", **options)
        return s.q[-1], s.status

    at_end = int(ji.Status.DERIVATIVE_AT_END)
    with_derivative, without = jax.jit(jax.jacfwd(status, has_aux=True)), jax.jit(status)
    told = []
    for t1 in np.arange(0.4, 0.6, 0.03):  # the second impact is at .49
        told.append(bool(with_derivative(q, t1)[1] & at_end))
        assert not without(q, t1)[1] & at_end
    assert any(told) and not all(told)
    with pytest.raises(ValueError, match="has no derivative"):
        jax.grad(lambda q: status(q, 0.4, sensitivity="none")[0][0])(q)
