"""Ensembles: the numbers of a loop, whatever the chunking; work near the sum of the steps."""

import os
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact.jaxtools import trace_context
from jaximpact.jaxtools.threads import InlineExecutor, worker_count
from jaximpact.simulation import arguments, backends, chunked_runs, known_calls, lane_functions
from jaximpact.simulation.chunk_sizes import divide
from jaximpact.simulation.limits import MAX_WORK_RATIO
from support.breadth import slow

FIELDS = ("t", "q", "v", "z", "impulse", "penetration", "residual", "iterations", "status")


def force(t, q, v, args):
    return jnp.stack(
        [-args["k"] * q[0] + args["drive"][0] * jnp.cos(args["drive"][1] * t), -9.81 - 0.1 * args["k"] * v[1]]
    )


def gaps(t, q, args):
    return jnp.stack([q[0] + 1.0, 1.5 - q[0], q[1] - 0.1 * jnp.sin(q[0])])


OSCILLATOR = ji.Problem(force, gaps, mass=jnp.array([1.0, 2.0]))
# an ensemble has no derivatives, and reports nothing of them
solve = partial(ji.solve, sensitivity="none")
LANES = 23


def options():
    rng = np.random.default_rng(5)
    return {
        "q0": np.stack([rng.uniform(-0.5, 0.5, LANES), rng.uniform(0.5, 1.0, LANES)], axis=1),
        "v0": rng.normal(size=(LANES, 2)),
        "e": rng.uniform(0, 1, LANES),
        "args": {"k": rng.uniform(1, 3, LANES), "drive": np.array([2.0, 1.3])},
        "args_axes": {"k": 0, "drive": None},
    }


def lane(i, given):
    return {
        "q0": given["q0"][i],
        "v0": given["v0"][i],
        "e": given["e"][i],
        "args": {"k": given["args"]["k"][i], "drive": given["args"]["drive"]},
    }


@pytest.mark.parametrize("dtype", [np.float64, pytest.param(np.float32, marks=pytest.mark.slow)])
def test_chunking_changes_nothing(dtype):
    given = options()
    given |= {"q0": given["q0"].astype(dtype), "v0": given["v0"].astype(dtype)}
    whole = ji.ensemble(OSCILLATOR, t1=2.0, h=0.01, **given)
    for chunk in (1, 5, 8):
        parts = ji.ensemble(OSCILLATOR, t1=2.0, h=0.01, chunk=chunk, **given)
        for name in FIELDS:
            # a lane alone compiles to scalar instructions: rounding units of numbers of order one, over 200 steps
            np.testing.assert_allclose(
                getattr(parts, name),
                getattr(whole, name),
                rtol=0,
                atol=200 * np.finfo(dtype).eps,
                err_msg=f"{name}, chunk {chunk}",
            )


@pytest.mark.slow
def test_threads_and_settings_of_this_thread():
    """Chunks run in threads, unless this thread has settings of jax that those would not see."""
    given = options() | {"t1": 0.5, "h": 0.01}
    usual = worker_count()
    assert usual == len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else usual == 1
    parallel = ji.ensemble(OSCILLATOR, chunk=5, **given)
    with jax.enable_x64(False):
        assert worker_count() == 1
        single = jax.tree.map(lambda x: x.astype(np.float32) if isinstance(x, np.ndarray) else x, given)
        assert ji.ensemble(OSCILLATOR, chunk=5, **single).q.dtype == np.float32
    with jax.default_matmul_precision("highest"):
        assert worker_count() == 1
        serial = ji.ensemble(OSCILLATOR, chunk=5, **given)
    np.testing.assert_array_equal(parallel.q, serial.q)


def test_an_error_in_a_chunk_reaches_the_caller():
    def force(t, q, v, args):
        def refuse(x):
            raise RuntimeError("no force today")

        return jax.pure_callback(refuse, jax.ShapeDtypeStruct(q.shape, q.dtype), q, vmap_method="sequential")

    with pytest.raises(Exception, match="no force today"):
        ji.ensemble(ji.Problem(force, gaps), [[0.0, 1.0]] * 9, [0.0, 0.0], t1=0.1, h=0.01, chunk=3)


def test_lanes_of_different_steps_are_those_of_solve():
    given = options()
    h = np.geomspace(0.002, 0.05, LANES)[np.random.default_rng(1).permutation(LANES)]
    times = [0.3, 1.0, 1.7]
    found = ji.ensemble(OSCILLATOR, t1=2.0, h=h, save=times, **given)
    assert found.q.shape == (LANES, 4, 2)
    for i in (0, 7, 22):
        single = solve(OSCILLATOR, t1=2.0, h=h[i], save=times, **lane(i, given))
        for name in FIELDS:
            np.testing.assert_allclose(
                getattr(found, name)[i], getattr(single, name), rtol=1e-12, atol=1e-13, err_msg=name
            )


@pytest.mark.parametrize("seed", range(20))
def test_work_stays_near_the_sum_of_steps(seed):
    rng = np.random.default_rng(seed)
    lanes = int(rng.integers(1, 3000))
    counts = [
        np.exp(rng.uniform(2, 10, lanes)).astype(int),
        rng.choice([100, 200, 400], lanes),
        np.where(rng.random(lanes) < 0.01, 100_000, 50),
    ][seed % 3]
    work = divide(counts, int(rng.integers(1, 500)))
    assert sorted(np.concatenate([members for members, _ in work])) == list(range(lanes))
    total = sum(len(padded) * counts[padded].max() for _, padded in work)
    assert total <= MAX_WORK_RATIO * counts.sum()
    for members, padded in work:
        assert set(padded) == set(members)


@pytest.mark.parametrize("execution", ["xla", "native"])
def test_one_trace_for_a_sweep_over_h(execution):
    """Another h, or another number of steps, asks the force no more than the same one again."""
    calls = []

    def force(t, q, v, args):
        calls.append(1)
        return -jnp.ones(1)

    problem = ji.Problem(force, lambda t, q, args: q)

    def asked(h):
        calls.clear()
        ji.ensemble(problem, np.ones((6, 1)), [0.0], t1=1.0, h=h, e=np.linspace(0, 1, 6), execution=execution)
        return len(calls)

    first, other, again = asked(0.01), asked(0.003), asked(0.003)
    assert first > other == again


def test_a_lane_that_blows_up_does_not_touch_the_others():
    given = options()
    single_backend = ji.ensemble(OSCILLATOR, t1=2.0, h=0.01, **given)
    wild = given | {"args": {"k": given["args"]["k"].copy(), "drive": given["args"]["drive"]}}
    wild["args"]["k"][4] = 1e9  # drag far beyond the explicit stability limit
    found = ji.ensemble(OSCILLATOR, t1=2.0, h=0.01, **wild)
    others = np.arange(LANES) != 4
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(found, name)[others], getattr(single_backend, name)[others])
    assert found.failed[4]
    assert 0 < found.failed_at[4] <= 2.0
    assert not np.any(found.failed[others])
    assert np.all(np.isnan(found.failed_at[others]))
    with pytest.raises(RuntimeError, match=r"1 of 23 trajectories failed .*trajectory 4 at t = "):
        found.raise_if_failed()


def test_per_contact_restitution_by_lane():
    walls = ji.Problem(lambda t, q, v, args: jnp.zeros(2), lambda t, q, args: q)
    e = np.array([[0.5, 1.0], [0.2, 0.3]])
    found = ji.ensemble(walls, [0.5, 0.5], [-1.0, -1.0], t1=1.0, h=0.003, e=e, scheme=ji.MoreauJean())
    np.testing.assert_allclose(found.v[:, -1], e, atol=1e-14)
    shared = ji.ensemble(
        walls, [0.5, 0.5], [-1.0, -1.0], t1=np.array([1.0, 2.0]), h=0.003, e=[[0.5, 1.0]], scheme=ji.MoreauJean()
    )
    np.testing.assert_allclose(shared.v[:, -1], [[0.5, 1.0]] * 2, atol=1e-14)


def test_progress_bar(capsys):
    given = options()
    ji.ensemble(OSCILLATOR, t1=0.1, h=0.01, chunk=8, progress=True, **given)
    assert "23 motions" in capsys.readouterr().err
    ji.ensemble(OSCILLATOR, t1=0.1, h=0.01, chunk=8, **given)
    assert capsys.readouterr().err == ""  # not a terminal


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"q0": np.ones((3, 2))}, ValueError, "lane axes must have one length"),
        ({"q0": np.ones((LANES, 2, 1))}, ValueError, r"q0 must have shape \(d,\) or \(B, d\)"),
        ({"v0": np.ones((LANES, 3))}, ValueError, "same d"),
        ({"h": np.full(LANES, -1.0)}, ValueError, "h must be positive"),
        ({"e": np.full(LANES, 1.5)}, ValueError, r"restitution must lie in \[0, 1\]"),
        ({"args_axes": {"nothing": 0}}, ValueError, "args_axes"),
        ({"args_axes": {"k": 1, "drive": None}}, ValueError, "args_axes"),
        ({"chunk": 0}, ValueError, "chunk"),
        ({"h": np.linspace(0.01, 0.02, LANES), "save": 10}, ValueError, "give times"),
        ({"q0": np.tile([[0.0, -0.5]], (LANES, 1))}, ValueError, "q0 of trajectory .* constraint 2 has gap -0.5"),
        ({"scheme": ji.Maury()}, ValueError, "inelastic"),
    ],
)
def test_bad_arguments_are_refused_by_name(change, error, message):
    given = {"t1": 2.0, "h": 0.01, **options(), **change}
    with pytest.raises(error, match=message):
        ji.ensemble(OSCILLATOR, **given)


def test_no_lane_axis():
    with pytest.raises(ValueError, match="call solve"):
        ji.ensemble(OSCILLATOR, [0.0, 1.0], [0.0, 0.0], t1=1.0, h=0.1, args={"k": 1.0, "drive": jnp.ones(2)})


def test_is_jax_free_result():
    found = ji.ensemble(OSCILLATOR, t1=0.1, h=0.01, **options())
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(found))


@pytest.mark.parametrize("lanes", [4, 5])
def test_the_same_functions_are_not_called_again(lanes):
    """Neither for their shapes nor for the check of the start, whatever the numbers; of as many lanes or of others."""
    calls = []

    def force(t, q, v, args):
        calls.append(1)
        return -args * jnp.ones_like(q)

    problem = ji.Problem(force, lambda t, q, args: q)
    run = lambda lanes, g: ji.ensemble(problem, np.ones((lanes, 1)), [0.0], t1=0.5, h=0.01, args=g)
    run(4, 9.81)
    calls.clear()
    run(lanes, 3.7)
    assert not calls


def jacobians(problem, **given):
    found = ji.sensitivities(problem, wrt="q0", **given)
    return found.value, found.jacobian, found.status


@pytest.mark.parametrize("call", [ji.ensemble, slow(jacobians)])
def test_results_of_an_accelerator(monkeypatch, call):
    """They stay there as jax arrays, of several chunks in the order of the lanes,
    unless they take much of its memory."""
    ball = ji.Problem(lambda t, q, v, args: -9.81 + 0 * q, lambda t, q, args: q)
    given = {"q0": np.linspace(0.5, 1.5, 5)[:, None], "v0": [0.0], "e": 0.5, "t1": 1.0, "h": 0.05, "execution": "xla"}
    expected = call(ball, **given)
    monkeypatch.setattr(chunked_runs, "platform", lambda: "gpu")
    for room, chunk in ((np.inf, 5), (np.inf, 2), (1.0, 5), (1.0, 2)):
        monkeypatch.setattr(chunked_runs, "free_memory", lambda room=room: room)
        found = call(ball, **given, chunk=chunk)
        for here, there in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert isinstance(here, jax.Array) == (room > 1)
            np.testing.assert_allclose(
                here, there, rtol=0, atol=1e-13
            )  # roundings of other lanes side by side, 20 steps
        if call is ji.ensemble:
            # to go through the motions copies each array once
            assert all(isinstance(x, np.ndarray | np.generic) for one in found for x in jax.tree.leaves(one))


@pytest.mark.parametrize("setting, found", [(None, {"Precision.HIGHEST"}), ("tensorfloat32", {"Precision.HIGH"})])
def test_products_in_float32_keep_their_digits_on_a_gpu(monkeypatch, setting, found):
    """By jax's default they do not; a user's setting stays."""
    texts = []
    problem = ji.Problem(lambda t, q, v, args: args @ q, lambda t, q, args: args @ q)

    def watch(place, name):
        program = getattr(place, name)
        traced = lambda *given, **static: texts.append(str(program.trace(*given, **static).jaxpr))
        monkeypatch.setattr(
            place, name, lambda *given, **static: (traced(*given, **static), program(*given, **static))[1]
        )

    watch(backends, "_vmap_program")
    watch(arguments, "_of_lanes")
    monkeypatch.setattr(arguments, "execution_of", lambda *_: "xla")
    with monkeypatch.context() as gpu, jax.default_matmul_precision(setting):
        gpu.setattr(trace_context, "platform", lambda: "gpu")
        q0 = np.ones((3, 2), np.float32)
        ji.ensemble(problem, q0, q0, args=np.eye(2, dtype=np.float32), t1=1.0, steps=2, execution="xla")
        lanes = lane_functions.lanewise(lambda x: jnp.dot(x, x), (0,), 3)
        texts.append(str(jax.make_jaxpr(lanes)(q0)))
    assert len(texts) == 3
    for text in texts:
        products = text.count("dot_general[")
        precisions = re.findall(r"precision=\(([\w.]+)", text)
        assert len(precisions) == products > 0 and set(precisions) == found, text


def spring(stiffness=1.0):
    return ji.Problem(lambda t, q, v, args: -args * q, lambda t, q, args: q + 1, mass=stiffness, restitution=0.5)


def test_a_second_call_looks_at_the_entries_of_its_arrays():
    """What a call has in common with an earlier one is kept; numbers that may be wrong are not part of it."""
    problem, q0, v0 = spring(), np.linspace(0.0, 0.5, 6)[:, None], np.zeros((6, 1))
    call = lambda q0=q0, v0=v0, args=2.0, **more: ji.ensemble(problem, q0, v0, args=args, t1=1.0, steps=20, **more)
    first, second = call(), call()
    np.testing.assert_array_equal(first.q, second.q)
    # another start and parameter, beside a call by itself of a problem that no call has had
    changed = call(q0 + 0.25, args=3.0)
    alone = ji.ensemble(spring(), q0 + 0.25, v0, args=3.0, t1=1.0, steps=20)
    np.testing.assert_array_equal(changed.q, alone.q)
    assert not np.array_equal(changed.q, first.q)
    np.testing.assert_array_equal(call().q, first.q)
    lost = q0.copy()
    lost[3] = np.nan
    with pytest.raises(ValueError, match="q0 must be finite"):
        call(lost)
    with pytest.raises(ValueError, match="args is not finite"):
        call(args=np.nan)
    with pytest.raises(ValueError, match="q0 of trajectory 0 is not admissible"):
        call(q0 - 2)
    with pytest.raises(ValueError, match=r"restitution must lie in \[0, 1\]"):
        call(e=2.0)
    with pytest.warns(ji.JaximpactWarning, match="v0 of trajectory 0 points out"):
        call(0 * q0 - 1, v0 - 1)


def test_calls_that_differ_are_told_apart(monkeypatch):
    """By the class of the scheme, even where its options are those of another class; by numbers of the problem, the
    type of a number, and the dtype."""
    q0, v0 = np.linspace(0.0, 0.5, 6)[:, None], np.zeros((6, 1))
    problem = spring()
    keys = set()
    keep = known_calls.keep
    monkeypatch.setattr(known_calls, "keep", lambda key, *made: (keys.add(key), keep(key, *made)))
    calls = [
        {}, {"scheme": ji.MoreauJean()}, {"scheme": ji.EventCorrected()}, {"e": 0.25}, {"args": np.float32(2)},
        {"args": np.full(1, 2.0)}, {"steps": 21}, {"save": "all"}, {"problem": spring(2.0)},
        {"q0": q0.astype(np.float32)}, {"v0": np.zeros(1)},
    ]  # fmt: skip
    for changed in calls:
        ji.ensemble(**{"problem": problem, "q0": q0, "v0": v0, "args": 2.0, "t1": 1.0, "steps": 20} | changed)
    assert len(keys) == len(calls) and None not in keys


def test_a_call_like_one_that_was_short_runs_in_the_calling_thread(monkeypatch):
    q0, v0 = np.linspace(0.0, 0.5, 20)[:, None], np.zeros((20, 1))
    made, make = [], chunked_runs.make_executor
    monkeypatch.setattr(chunked_runs, "make_executor", lambda *given: made.append(make(*given)) or made[-1])
    call = partial(ji.ensemble, spring(), q0, v0, args=2.0, t1=1.0, steps=1000)
    found = []
    for longest in (1e9, 1e9, 0.0):
        monkeypatch.setattr(chunked_runs, "MAX_INLINE_SECONDS", longest)
        found.append(call())
    # a step whose error a tolerance bounds may be as long as any number of others
    call(steps=1, scheme=ji.EventDriven())
    assert [isinstance(x, InlineExecutor) for x in made] == [False, True, False, False]
    for other in found[1:]:  # the same instructions
        np.testing.assert_array_equal(other.q, found[0].q)
