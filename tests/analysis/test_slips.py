"""Stops, breaks and reversals of slip, modes of contacts and the work of friction, against closed forms."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact.analysis import ContactMode

G, MU, PULL = 9.81, 0.3, 4.0
SCHEME = ji.MoreauJean()
# a block at 1 m/s on a rough floor, pulled ever harder: 1 - mu g t + F t^2 / 2 = 0 where it stops, F t = mu g where it
# breaks away
BLOCK = ji.Problem(
    lambda t, q, v, args: jnp.stack([args["F"] * t, -G]),
    lambda t, q, args: q[1:],
    slip=lambda t, q, v, args: v[:1],
    friction=MU,
)
CALL = {"t1": 1.5, "h": 1e-3, "args": {"F": PULL}, "scheme": SCHEME}


def stop_and_break(mu):
    return [min(np.roots([PULL / 2, -mu * G, 1.0])), mu * G / PULL]


def test_stop_and_break_of_a_block():
    motion = ji.solve(BLOCK, [0.0, 0.0], [1.0, 0.0], **CALL)
    found = motion.slips(BLOCK, args=CALL["args"])
    assert found.kind.tolist() == ["stop", "break"] and found.contact.tolist() == [0, 0]
    # both are continued with forces that are linear in time: h^2
    np.testing.assert_allclose(found.t, stop_and_break(MU), rtol=0, atol=1e-5)
    stop, begin = found.row
    # rounding opens the gap for a step now and then
    for rows, mode in (
        (slice(1, stop), ContactMode.SLIP),
        (slice(stop, begin), ContactMode.STICK),
        (slice(begin, None), ContactMode.SLIP),
    ):
        assert np.mean(found.modes[rows] == mode) > 0.99 and set(np.unique(found.modes[rows])) <= {
            mode,
            ContactMode.OPEN,
        }
    # the trapezoidal rule is exact for the speed of the floor's normal force, and the scheme's energies
    pull = PULL * 0.5 * (motion.t[1:] + motion.t[:-1]) * 0.5 * (motion.v[1:, 0] + motion.v[:-1, 0]) * np.diff(motion.t)
    gained = 0.5 * motion.v[:, 0] ** 2 - 0.5 - np.concatenate([[0.0], np.cumsum(pull)])
    np.testing.assert_allclose(found.work[:, 0], gained, rtol=0, atol=1e-12)
    assert found.lost == -found.work[-1, 0]


def test_lanes_float32_and_files(tmp_path):
    mu = np.array([0.2, 0.3, 0.4])
    batch = ji.ensemble(BLOCK, [0.0, 0.0], [1.0, 0.0], friction=mu, save=1, **CALL)
    found = batch.slips(BLOCK, args=CALL["args"], friction=mu)
    assert found.lane.tolist() == [1, 1, 2, 2]  # the first never stops
    np.testing.assert_allclose(found.t, [*stop_and_break(0.3), *stop_and_break(0.4)], rtol=0, atol=1e-5)
    assert found.modes.shape == (3, 1501, 1) and found.lost.shape == (3,)
    single = ji.solve(BLOCK, np.zeros(2, np.float32), np.float32([1, 0]), **CALL).slips(BLOCK, args=CALL["args"])
    assert single.kind.tolist() == ["stop", "break"]
    # accumulated impulses of 15 N s have steps of 1e-6, a hundredth of what the force grows by in 3 ms
    np.testing.assert_allclose(single.t, stop_and_break(MU), rtol=0, atol=4e-3)
    assert np.array_equal(ji.load(found.save(tmp_path / "slips.npz")).kind, found.kind)


def test_reversals_of_a_shaken_block():
    """A cos(w t) against mu g < A: v has the sign of the phase before,
    and never rests while the pull exceeds friction."""
    shaken = BLOCK.replace(force=lambda t, q, v, args: jnp.stack([12 * jnp.cos(5 * t), -G]), friction=0.2)
    ends = [ji.solve(shaken, [0.0, 0.0], [0.0, 0.0], t1=1.0, steps=n, scheme=SCHEME).slips(shaken) for n in (150, 1500)]
    assert all(one.kind.tolist() == ["reversal"] for one in ends)
    # up to the first reversal v = 12 sin(5 t) / 5 - mu g t
    t = ends[1].t[0]
    assert abs(12 * np.sin(5 * t) / 5 - 0.2 * G * t) < 1e-2 and abs(ends[0].t[0] - t) < 1e-3  # h times the rate of v
    assert np.all(ends[1].before < 0) != np.all(ends[1].after < 0)


def test_in_space_and_for_a_contact_that_opens():
    thrown = ji.Problem(
        lambda t, q, v, args: jnp.array([0.0, 0.0, -G]),
        lambda t, q, args: q[2:],
        slip=lambda t, q, v, args: v[None, :2],
        friction=MU,
    )
    motion = ji.solve(thrown, [0.0, 0.0, 0.1], [1.0, 0.5, 0.0], t1=1.0, h=1e-3, scheme=SCHEME)
    found = motion.slips(thrown)
    assert np.all(found.modes[:140] == ContactMode.OPEN) and found.modes[-1] == ContactMode.STICK
    assert found.kind[-1] == "stop" and np.isclose(found.lost, 0.5 * (1 + 0.25), rtol=1e-9)
    # sliding takes mu times what the floor gives: impulses of impacts and weight
    assert np.isclose(np.hypot(1, 0.5), MU * np.interp(found.t[-1], motion.t, motion.impulse[:, 0]), rtol=2e-2)


def test_pictures():
    motion = ji.solve(BLOCK, [0.0, 0.0], [1.0, 0.0], **CALL)
    axes = motion.slips(BLOCK, args=CALL["args"]).plot()
    labels = axes.get_legend_handles_labels()[1]
    assert {"sticks", "stop", "break"} <= set(labels) and "m/s" in axes.get_ylabel()


def test_what_has_no_slips_is_refused():
    smooth = ji.Problem(lambda t, q, v, args: -q, lambda t, q, args: q)
    with pytest.raises(ValueError, match="the problem has no friction"):
        ji.solve(smooth, [1.0], [0.0], t1=0.1, h=0.01).slips(smooth)
    final = ji.solve(BLOCK, [0.0, 0.0], [1.0, 0.0], save="final", **CALL)
    with pytest.raises(ValueError, match="every step of a motion"):
        final.slips(BLOCK, args=CALL["args"])
    given = BLOCK.replace(force=lambda t, q, v, args: jnp.array([0.0, -G]), friction=lambda args: args["mu"])
    call = CALL | {"t1": 0.01, "args": {"mu": MU}}
    motion = ji.solve(given, [0.0, 0.0], [1.0, 0.0], **call)
    with pytest.raises(TypeError, match=r"^friction\(args\) failed.*args is None: give"):
        motion.slips(given)


def test_a_scheme_that_locates_events_has_slips_at_the_ends_of_its_steps():
    """Its steps may hold a stop within: times to h^2, modes of all steps but those;
    the work is that of the scheme's energies."""
    call = CALL | {"h": 1e-2, "scheme": ji.EventCorrected()}
    motion = ji.solve(BLOCK, [0.0, 0.0], [1.0, 0.0], **call)
    found = motion.slips(BLOCK, args=call["args"])
    assert found.kind.tolist() == ["stop", "break"]
    np.testing.assert_allclose(found.t, stop_and_break(MU), rtol=0, atol=5e-3)
    begin, end = np.searchsorted(motion.t, stop_and_break(MU))
    assert np.all(found.modes[begin + 1 : end] == ContactMode.STICK) and np.all(
        found.modes[1:begin] == ContactMode.SLIP
    )
    assert np.all(found.modes[end + 1 :] == ContactMode.SLIP)


def test_the_balance_of_energy_has_the_work_of_friction():
    motion = ji.solve(BLOCK, [0.0, 0.0], [1.0, 0.0], **CALL)
    kept = ji.analysis.balance(BLOCK, motion, args=CALL["args"])
    # both of second order in h = 1e-3, in a force that grows: 4 h^2 is measured
    assert np.allclose(kept.friction, -motion.slips(BLOCK, args=CALL["args"]).work.sum(axis=1), rtol=0, atol=1e-5)
