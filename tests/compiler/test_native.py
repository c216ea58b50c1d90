"""Ensembles as native code: the same motions as through XLA, whatever the lanes, and nothing compiled twice."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaximpact as ji
from jaximpact.compiler.llvm import call as native_run
from jaximpact.compiler.llvm import jit as native_compile
from jaximpact.compiler.llvm import over_lanes
from jaximpact.compiler.llvm.call import BoundCall, as_columns, compile_lanes
from jaximpact.compiler.scalar import Unsupported
from jaximpact.compiler.stream import stream
from support.native_table import lanewise

LANES = 37  # the last vector is filled up
FIELDS = ("t", "q", "v", "z", "impulse", "energy", "penetration", "residual", "status", "failed_at")
WAYS = ("native", "xla")


def ball(gravity=9.81):
    """Above a floor and below a ceiling; its clock may run out."""
    gravity = jnp.asarray(gravity)
    force = lambda t, q, v, args: jnp.stack([-gravity + 0.0 * jnp.log(args - t)])
    return ji.Problem(force, lambda t, q, args: jnp.append(q, 1.6 - q))


BALL = ball()


def balls(which=slice(None), problem=BALL, h=0.01, t1=1.0, factor=1.0, **options):
    """Lanes of different numbers of steps, restitution and clocks."""
    number = np.arange(LANES)[which]
    at = number / (LANES - 1)
    given = {"h": np.where(number % 3, h / 2, h), "e": factor * at, "args": np.where(number == 3, 0.4, 10.0)}
    return ji.ensemble(
        problem, 0.5 + at[:, None], 3 * factor * (1 - at[:, None]), t1=t1, args_axes=0, **given, **options
    )


def compare(native, xla, tolerance, share=1.0):
    """That so many lanes agree: where roundings move an impact to another step, positions differ by far more."""
    close = np.ones(len(native.status), bool)
    for name in FIELDS:
        x, y = getattr(native, name), getattr(xla, name)
        if x is not None or y is not None:
            assert x.dtype == y.dtype and x.shape == y.shape, name
            same = np.isclose(x, y, rtol=tolerance, atol=tolerance, equal_nan=True)
            close &= same.reshape(len(close), -1).all(axis=1)
    assert close.mean() >= share, np.flatnonzero(~close)


def same_bits(found, expected, lanes=slice(None)):
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(x, y[lanes])


@pytest.fixture(scope="module")
def bouncing():
    return balls(execution="native")


def test_a_lane_that_becomes_nan_is_flagged_and_no_other(bouncing):
    """As through XLA; a lane that becomes NaN is flagged, and no other notices."""
    assert np.flatnonzero(bouncing.failed).tolist() == [3] and np.isnan(bouncing.q[3]).any()
    assert np.sum(np.any(bouncing.impulse[:, -1] > 0, axis=-1)) > LANES // 2
    # 200 steps of a few units each
    compare(bouncing, balls(execution="xla"), 1e-12)


def test_without_constraints():
    """A spring, alone and with derivatives in both modes: q = cos(w t) to the scheme's order 2."""
    spring = ji.Problem(lambda t, q, v, args: -(args**2) * q)

    def end(w):
        return ji.solve(spring, [1.0], [0.0], t1=1.0, steps=200, args=w, save="final", execution="native").q[-1, 0]

    for found, exact in (
        (end(2.0), np.cos(2.0)),
        (jax.jacfwd(end)(2.0), -np.sin(2.0)),
        (jax.grad(lambda w: end(jnp.mean(w)))(jnp.full(40, 2.0)).sum(), -np.sin(2.0)),
    ):
        assert found == pytest.approx(exact, abs=1e-4)  # (w h)^2 w t / 24 and its derivative


def test_lanes_do_not_depend_on_each_other(bouncing):
    same_bits(balls(execution="native", chunk=5), bouncing)
    with jax.default_matmul_precision("highest"):  # a setting of this thread alone, which then computes by itself
        same_bits(balls(execution="native"), bouncing)
    backwards = np.arange(LANES)[::-1]
    same_bits(balls(backwards, execution="native"), bouncing, backwards)
    few = np.arange(20, 23)
    same_bits(balls(few, execution="native"), bouncing, few)


def test_lanes_shared_out_under_jit():
    """More lanes than one thread is given: those of an ensemble, bit for bit."""
    start = np.linspace(0.5, 1.5, 301)[:, None]
    fixed = {"t1": 1.0, "args": 10.0, "e": 0.5, "save": "final"}
    one = lambda q: ji.solve(BALL, q, [0.0], steps=100, **fixed).q
    found = jax.jit(jax.vmap(one))(start)
    same_bits(found, ji.ensemble(BALL, start, [0.0], h=0.01, execution="native", **fixed).q)


def test_numbers_do_not_compile_anew(bouncing):
    before = native_compile.compilations
    balls(execution="native", h=0.02)
    balls(execution="native", t1=0.7)
    balls(execution="native", factor=0.5)
    # neither do those that the functions close over as arrays
    balls(problem=ball(3.7), execution="native")
    assert native_compile.compilations == before
    # nor does a single motion, whatever its number of steps
    single_backend = lambda steps, t1, e: ji.solve(BALL, [0.5], [1.0], t1=t1, steps=steps, e=e, args=10.0, save="final")
    single_backend(50, 0.5, 0.5)
    before = native_compile.compilations
    single_backend(70, 0.8, 0.3)
    assert native_compile.compilations == before


def test_auto_is_native_where_it_can_be(bouncing):
    same_bits(balls(), bouncing)


@pytest.mark.parametrize(
    "save",
    [[0.0, 0.25, 0.3001, 0.7], pytest.param(20, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.slow)],
    ids=["times", "every", "all"],
)
def test_saved_rows_are_those_of_xla_and_their_number_compiles_nothing(save, bouncing):
    """The same rows as through XLA; another number of them compiles nothing anew."""
    given = {
        "problem": BALL,
        "q0": np.linspace(0.5, 1.5, LANES)[:, None],
        "v0": [1.0],
        "h": 0.01,
        "args": 10.0,
        "e": 0.5,
    }
    native, xla = (ji.ensemble(**given, t1=1.003, save=save, execution=way) for way in WAYS)
    assert native.q.shape[1] > 4 and np.all(np.any(native.impulse[:, -1] > 0, axis=-1))
    compare(native, xla, 1e-12)
    before = native_compile.compilations
    ji.ensemble(**given, t1=1.2, save=save if isinstance(save, int) else [0.1, 0.2], execution="native")
    assert native_compile.compilations == before


def test_what_it_cannot_take_goes_through_xla():
    strange = ji.Problem(lambda t, q, v, args: -9.81 + 0 * jax.scipy.special.digamma(1 + q**2), lambda t, q, args: q)
    given = {"t1": 0.5, "h": 0.01, "e": 0.5}
    q0, v0 = np.full((3, 1), 0.2), np.zeros((3, 1))
    with pytest.raises(
        ValueError, match=r"execution='native' cannot take this problem \(digamma\): give execution='xla'"
    ):
        ji.ensemble(strange, q0, v0, execution="native", **given)
    same_bits(ji.ensemble(strange, q0, v0, **given), ji.ensemble(strange, q0, v0, execution="xla", **given))


# functions of one lane


def test_a_gap_that_is_bounded_is_met_no_later():
    """A wall behind a sine, met by the native step that looks at bounds and by XLA, which looks at gaps,
    in the same step."""
    problem = ji.Problem(lambda t, q, v, args: -q, lambda t, q, args: jnp.sin(q) + args, restitution=0.5)
    runs = [
        ji.ensemble(problem, np.linspace(0.1, 1, 9)[:, None], [-1.0], t1=3.0, h=0.01, args=0.3, execution=way)
        for way in ("native", "xla")
    ]
    assert np.all(runs[0].impulse[:, -1] > 0) and not np.any(runs[0].status)
    # 300 steps of a few roundings each
    np.testing.assert_allclose(runs[0].q, runs[1].q, rtol=0, atol=1e-12)
    np.testing.assert_allclose(runs[0].impulse, runs[1].impulse, rtol=0, atol=1e-11)


def test_lanes_leave_loops_and_take_branches_of_their_own():
    """Lanes leave a loop when they are done; a branch is taken by those that ask for it,
    the nearest if there is none."""

    def function(k, x):
        inner = lambda x: lax.while_loop(lambda y: y > 1, lambda y: y / 2, x)
        branches = [lambda x: x, lambda x: lax.fori_loop(0, 5, lambda i, y: y + i, x), inner, lambda x: -x]
        chosen = lax.switch(k, branches, x)
        turns = lax.while_loop(
            lambda c: c[0] < k * k, lambda c: (c[0] + 1, lax.cond(c[1] > 3, inner, lambda y: y + 1, c[1])), (0, x)
        )
        return chosen, turns

    k, x = np.arange(-3, 8, dtype=np.int32), np.linspace(0.25, 40, 11)
    for found, expected in zip(
        jax.tree.leaves(lanewise(function, k, x)), jax.tree.leaves(jax.vmap(function)(k, x)), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


def test_branches_asked_for_by_what_conditions_are_made_of():
    """Conjunctions, their opposites and bits of a status; of numbers that are none, infinite,
    shared by all lanes or not."""
    numbers = np.array([0.0, -1.5, np.nan, np.inf, -np.inf, 1e308, 2.5, -0.0, 7.0])
    x, y = (z.ravel() for z in np.meshgrid(numbers, numbers))
    bits = np.arange(len(x), dtype=np.int32) % 4

    def one(x, y, bits, shared, mask):
        finite = jnp.isfinite(x) & jnp.isfinite(y) & jnp.isfinite(shared)
        status = jnp.where(finite, 0, 4) | jnp.where(x < y, 32, 0)
        asked = [
            finite & (x >= y) & (shared > 1),
            ~((x < y) | (shared < 1)),
            (status & ~jnp.where(shared > 1, 0, 8)) != 0,
            (status & ~jnp.where(shared > 1, 32, 0)) != 0,
            (status & mask) == 0,
            ~(x == y) | ~(x > shared) | (bits > 1),
            (bits != 0) & ~(x != x) & ~(y <= x),
            # of a status that no lane has of its own
            (jnp.where(shared > 1, 4, 0) & ~jnp.where(x < y, 8, 0)) != 0,
        ]
        return [lax.cond(c, lambda: jnp.sin(x) + jnp.exp(-jnp.abs(y)) + 3, lambda: jnp.zeros_like(x)) for c in asked]

    for shared, mask in ((2.0, 4), (0.5, 36), (np.nan, 0)):
        given = (x, y, bits, np.float64(shared), np.int32(mask))
        axes = (0, 0, 0, None, None)
        found = over_lanes(jax.jit(one), axes)(*given)
        expected = jax.jit(jax.vmap(one, in_axes=axes))(*given)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a == 0, b == 0)
            np.testing.assert_allclose(a, b, rtol=1e-15, atol=0)


def test_reverse_mode_of_rows_is_compiled_once():
    """Another e, length, or time of a row compiles nothing."""
    problem = ji.Problem(lambda t, q, v, args: -9.81 + 0.1 * jnp.tanh(args @ q)[:1], lambda t, q, args: q)

    def slope(weights, e, save, **given):
        given |= {"e": e, "save": save, "args": weights, "execution": "native"}
        return jax.grad(lambda w: jnp.sum(ji.solve(problem, [0.2], [0.0], **given | {"args": w}).q))(weights)

    weights = jnp.ones((40, 1))
    slope(weights, 0.5, [0.11, 0.29], t1=0.3, steps=30)
    before = native_compile.compilations
    found = slope(weights, 0.6, [0.1, 0.105], t1=0.7, steps=300)
    assert np.any(found) and np.all(np.isfinite(found))
    assert native_compile.compilations == before


def test_derivatives_of_a_stream():
    """Those of a scan; what does not change has no tangent, and what is the same in all directions stays one."""
    turns = np.array([0.5, 0.25, 2.0])

    def body(scale, carry, turn):
        n, x, y = carry
        matrix = scale * jnp.stack([jnp.cos(x), jnp.sin(x)])
        x_new = matrix @ x + turn * y
        return (n + 1, x_new, y * 0.5), (n, x_new * y, jnp.sum(y))

    def looped(x, scale, loop):
        (n, last, _), rows = loop(lambda carry, turn: body(scale, carry, turn), (jnp.int32(0), x, jnp.float64(3.0)))
        return {"last": last, "rows": rows[1], "number": n.astype(float), "numbers": rows[0], "same": rows[2]}

    native = lambda x, scale: looped(x, scale, lambda f, c: stream(f, c, jax.ShapeDtypeStruct((), float)))
    scanned = lambda x, scale: looped(x, scale, lambda f, c: lax.scan(f, c, turns))

    def both(function):
        real = lambda x, scale: {k: v for k, v in function(x, scale).items() if k != "numbers"}
        pushed = lambda x, scale: jax.jvp(lambda s: function(x, s)["rows"], (scale,), (1.0,))[1]
        return lambda x, scale: (function(x, scale), jax.jacfwd(real, (0, 1))(x, scale), pushed(x, scale))

    x, scale = np.random.default_rng(0).normal(size=(2, 5, 2))
    scale = scale[:, 0]
    found = over_lanes(jax.jit(both(native)), (0, 0), [turns])(x, scale)
    expected = jax.jit(jax.vmap(both(scanned)))(x, scale)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-13)  # sums of a few units


@pytest.mark.parametrize("lanes", [None, 5])
def test_a_stream_by_row_is_read_backwards(lanes):
    """Rows of several types lie as a loop back reads them, of one lane in packs of entries: the body of a scan,
    and of one in reverse."""
    states = np.random.default_rng(0).normal(size=(lanes or 1, 19))

    def there(carry):
        x, n = carry
        return (jnp.sin(x + n.astype(float)), n + 1), (x, n, x[:3] > 0, jnp.stack([x[:2], jnp.ones(2)]))

    def back(total, row):
        x, n, positive, pair = row
        return jnp.cos(total) * x + n.astype(float) + jnp.sum(jnp.where(positive, x[:3], 0)) + jnp.sum(pair)

    def rows_of(x):
        return stream(lambda carry, _: there(carry), (x, jnp.int32(0)), (), by_row=True)[1]

    def total_of(total, like):
        each = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in like]
        return stream(lambda total, row: (back(total, row), ()), total, each, by_row=True, backwards=True)[0]

    def scanned(x):
        _, rows = lax.scan(lambda carry, _: there(carry), (x, jnp.int32(0)), length=6)
        return rows, lax.scan(lambda total, row: (back(total, row), ()), x, rows, reverse=True)[0]

    one, many = jax.ShapeDtypeStruct((19,), float), lanes is not None
    expected, total = jax.vmap(scanned)(states)
    shapes = [jax.ShapeDtypeStruct(x.shape[2:], x.dtype) for x in expected]
    forth = compile_lanes(jax.jit(rows_of), (one,), [many])
    whole = forth.padded_count(len(states))
    start = as_columns(states, whole) if many else states[0]
    rows = [np.empty((6, x.size, whole), x.dtype) for x in shapes]
    BoundCall(forth, [(start, None)], rows, whole, 1)(0, rows=6)
    close = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-13, atol=1e-13)  # sums and sines of a few units
    for x, y in zip(rows, expected, strict=True):
        close(x[..., : len(states)], np.moveaxis(y.reshape(*y.shape[:2], -1), 0, -1))

    # operands that nothing reads say what the rows of each lane are
    returned = compile_lanes(jax.jit(total_of), (one, tuple(shapes)), [many] * 5)
    unread = [np.empty((x.size, whole) if many else x.shape, x.dtype) for x in shapes]
    found = np.empty((19, whole))
    operands = [(start, None), *((x, None) for x in unread)]
    BoundCall(returned, operands, [found], whole, 1, [(x, 0) for x in rows])(0, rows=6)
    close(found[:, : len(states)].T, total)


def of_matrices(a, b, x):
    """Of one lane: what decompositions, solves and a choice of the largest give, and what is looked up by it."""
    solved = {
        f"{left} {lower} {turned} {unit}": lax.linalg.triangular_solve(
            a / 40 if unit else a,
            b.T if left else b,
            left_side=left,
            lower=lower,
            transpose_a=turned,
            unit_diagonal=unit,
        )
        for left, lower, turned, unit in np.ndindex(2, 2, 2, 2)
    }
    largest, where = lax.top_k(x, 4)
    return lax.linalg.cholesky(a), solved, largest, where, jnp.argmax(x), jnp.cumsum(b, 1), b[:, where], jnp.sort(b[0])


@pytest.mark.parametrize("small", ["numbers", "memory"])
def test_matrices_are_those_of_jax_as_numbers_or_in_memory(monkeypatch, small):
    """Whether their entries are numbers or lie in memory; cond(a) < 10, so that n = 24 roundings are 1e-14."""
    monkeypatch.setattr(native_run, "LONG_PROGRAM_OPS", 10**9 if small == "numbers" else 0)
    random, n = np.random.default_rng(0), 24 if small == "memory" else 6
    a = random.uniform(-1, 1, (3, n, n))
    a = a + a.swapaxes(1, 2) + 4 * n * np.eye(n)
    b, x = random.uniform(-1, 1, (3, 3, n)), random.integers(-3, 4, (3, n)).astype(np.float32)  # equal ones: the first
    x[1, 4], x[2] = np.nan, -np.inf
    found, expected = lanewise(of_matrices, a, b, x), jax.jit(jax.vmap(of_matrices))(a, b, x)
    for y, z in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert y.dtype == z.dtype
        np.testing.assert_allclose(y, z, rtol=1e-13, atol=1e-13)


@pytest.mark.slow
def test_large_programs_are_loops_over_memory(monkeypatch):
    """Disks that fall into a box with one corner: the same motion as through XLA, up to roundings."""
    i, j = np.triu_indices(4, 1)

    def gaps(t, q, args):
        centres = q.reshape(4, 2)
        return jnp.concatenate([jnp.hypot(*(centres[i] - centres[j]).T) - 0.2, (centres - 0.1).ravel()])

    problem = ji.Problem(lambda t, q, v, args: jnp.tile(jnp.array([-1.0, -9.81]), 4), gaps)
    monkeypatch.setattr(native_run, "LONG_PROGRAM_OPS", 20_000)  # of 70,000
    q0 = np.array([[0.2, 0.15, 0.41, 0.2, 0.2, 0.37, 0.43, 0.44]])
    q0 = q0 + np.linspace(-0.01, 0.01, 3)[:, None]
    given = {"t1": 0.3, "h": 0.01, "scheme": ji.Maury(), "save": "final"}
    found, expected = (ji.ensemble(problem, q0, 0 * q0, execution=way, **given) for way in WAYS)
    compare(found, expected, 1e-10)  # the solver's tolerance is 1e-12; contacts close and stay so


@pytest.mark.slow
def test_derivatives_of_many_contacts_are_native():
    """Of nine disks with 54 gaps, which have times of impact of their own;
    an operation without a rule would leave them to XLA."""
    i, j = np.triu_indices(9, 1)

    def gaps(t, q, args):
        centres = q.reshape(9, 2)
        return jnp.concatenate([jnp.hypot(*(centres[i] - centres[j]).T) - 0.2, (centres - 0.1).ravel()])

    problem = ji.Problem(lambda t, q, v, args: args * jnp.tile(jnp.array([-1.0, -9.81]), 9), gaps, restitution=0.5)
    q0 = (
        0.15 + 0.25 * np.stack(np.meshgrid(np.arange(3), np.arange(3)), -1) + 0.01 * np.eye(9, 2).reshape(3, 3, 2)
    ).ravel()
    end = lambda pull, way: ji.solve(problem, q0, 0 * q0, t1=0.2, h=2e-3, args=pull, save="final", execution=way)
    moved = lambda way: jax.jit(lambda pull: jax.jvp(lambda pull: end(pull, way).q[-1], (pull,), (1.0,)))(1.0)
    found, expected = map(moved, WAYS)
    # the solver's tolerance, enlarged by impacts one after the other
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)
    assert end(1.0, "native").impulse.sum() > 0


def test_bits_do_not_depend_on_registers(monkeypatch):
    """Of motions with impacts, and of loops over memory, for registers of 16, 32 and 64 bytes."""
    host, found = native_compile.host(), []
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(30, 20)))
    layers = lambda x: jnp.tanh(weights.T @ jnp.sin(weights @ jnp.full(20, x)))
    for size in (16, 32, 64):
        monkeypatch.setattr(host, "vector_bytes", size)
        native_run._by_jaxpr.clear()
        native_run._by_call.clear()
        found.append([balls(execution="native", save="final").q, lanewise(layers, np.linspace(-3, 3, LANES))])
    for these in found[1:]:
        for x, y in zip(these, found[0], strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("place", [pytest.param(lambda q: 0, marks=pytest.mark.slow), jnp.argmax])
def test_a_function_at_places_is_applied(place):
    """`x.at[i].apply(f)` at known and unknown places; in large arrays it is refused."""
    gap = lambda t, q, args: q + 10
    problem = ji.Problem(lambda t, q, v, args: (-q).at[place(q)].apply(jnp.sin), gap)
    ends = [ji.solve(problem, [0.7, 0.3], [0.0, 0.0], t1=1.0, h=0.01, execution=way).q[-1] for way in WAYS]
    np.testing.assert_allclose(*ends, rtol=1e-13)
    np.testing.assert_allclose(ends[0][0], 0.39886, atol=1e-4)  # of the equation, to O(h^2)
    with pytest.raises(Unsupported, match="scatter"):
        lanewise(lambda x: (jnp.arange(600.0) * x).at[3].apply(jnp.sin), np.arange(3.0))


def test_no_entry_is_a_number_where_a_matrix_is_not_positive():
    """As LAPACK has it, of small matrices and large ones."""
    for n in (3, 30):
        a = np.stack([np.eye(n)] * 3)
        a[1, 1, 1], a[2, n - 1, n - 1] = -1.0, 0.0
        found = lanewise(lax.linalg.cholesky, a)
        np.testing.assert_array_equal(found, jax.vmap(lax.linalg.cholesky)(a))
        assert np.isnan(found[1:, 0, 0]).all()


# breadth


def test_padding_makes_no_turns_of_a_loop():
    """Lanes beyond the last select no branch, so that a loop whose branches bring it on would turn until its bound:
    ten seconds."""
    free = ji.Problem(lambda t, q, v, args: -q)
    scheme = ji.EventDriven(trials=10**7)
    taken = {}
    for lanes in (8, 3):  # without and with padding
        run = lambda lanes=lanes: ji.ensemble(free, np.ones((lanes, 1)), [0.0], t1=0.1, scheme=scheme)
        run()
        begin = time.process_time()
        assert not np.any(run().status)
        taken[lanes] = time.process_time() - begin
    # some milliseconds each, of the call
    assert taken[3] < 100 * taken[8]
