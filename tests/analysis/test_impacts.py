"""Records of impacts against exact times: orders in h, accumulation, lasting contact, batches."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import catalogue
from jaximpact.analysis import impacts
from support.breadth import slow

SCHEMES = {"ps": ji.PaoliSchatzman(), "mj": ji.MoreauJean(), "ec": ji.EventCorrected()}


def slope(h, error):
    """The order in h of an error."""
    return np.polyfit(np.log(h), np.log(error), 1)[0]


def several(name, case, counts, scheme):
    """A case, and its impacts and the step for each number of steps, in one batch: as many steps for all,
    some beyond t1."""
    entry = catalogue.get(name)
    case = entry.case(case)
    h = case.t1 / np.array(counts)
    batch = ji.ensemble(
        entry.problem, case.q0, case.v0, t1=max(counts) * h, h=h, args=case.args, e=case.restitution, scheme=scheme,
        save=1
    )  # fmt: skip
    records = impacts(entry.problem, batch, args=case.args)
    return case, [(records.of(lane), step) for lane, step in enumerate(h)]


def found(name, case, steps, scheme):
    case, [(records, h)] = several(name, case, [steps], scheme)
    return case, records, h


@pytest.mark.parametrize("label", SCHEMES)
@pytest.mark.parametrize(
    ("name", "case"),
    [("resonant-oscillator", "e=1/2"), pytest.param("shaw-holmes", "damped", marks=pytest.mark.slow)],
)
def test_times_and_their_order(name, case, label):
    """Given the motion before it an impact is known to O(h^2); behind it the motion is late by O(h),
    except event-corrected.

    The phase of an impact in its step scatters the errors of the schemes of first order: the worst of all impacts, over
    three bands of three primes, and an order half of one off at most.
    """
    bands = [[499, 503, 509], [1999, 2003, 2011], [7993, 8009, 8011]]
    exact = catalogue.get(name).case(case)
    first, all_of = [], []
    for band in bands:
        errors = []
        for records, h in several(name, case, band, SCHEMES[label])[1]:
            which = records.t <= exact.t1
            found = records.t[which]
            times = exact.impacts[: len(found)]
            # the last may be missed, by a motion that is late
            assert len(exact.impacts) - 1 <= len(found) <= len(exact.impacts)
            errors.append(np.abs(found - times))
            # of first order, with a constant from speed and acceleration: |v| + |a| <= 6 here
            assert np.all(records.before < 0)
            # an impact that the end cuts in two, which takes a scheme with a rebound step, has no velocity after it
            known = np.isfinite(records.after)
            assert known[:-1].all() and (known[-1] or label == "ps")
            after, before, impulse = (x[which & known] for x in (records.after, records.before, records.impulse))
            np.testing.assert_allclose(after, -exact.restitution * before, atol=12 * h)
            np.testing.assert_allclose(impulse, after - before, atol=24 * h)
        first.append(max(error[0] for error in errors))
        all_of.append(max(np.max(error) for error in errors))
    h = np.array([1 / np.mean(band) for band in bands])
    if name == "resonant-oscillator":  # the other starts on the wall, which a scheme of first order leaves late
        assert slope(h, np.array(first)) == pytest.approx(2, abs=0.15)
    assert slope(h, np.array(all_of)) == pytest.approx(2 if label == "ec" else 1, abs=0.15 if label == "ec" else 0.5)


def test_paoli_schatzman_is_two_steps_late():
    """Where the force vanishes at the wall every impact delays the motion by 2 h, to O(h^2)."""
    case, records, h = found("free-oscillator", "e=0.7", 2003, SCHEMES["ps"])
    np.testing.assert_allclose((records.t - case.impacts) / h, 2 * np.arange(len(records)), atol=0.05)


def test_ball_without_error():
    """A parabola is followed and hit exactly: speeds and impulses are those of Newton's law to round-off."""
    case, records, _ = found("bouncing-ball", "e=4/5", 1009, SCHEMES["ec"])
    count = len(records) - 1  # the last impact begins lasting contact
    np.testing.assert_allclose(records.t[:count], case.impacts[:count], atol=1e-12)
    np.testing.assert_allclose(records.before[:count], -np.sqrt(2) * 0.8 ** np.arange(count), rtol=1e-9)
    np.testing.assert_allclose(records.after[:count], -0.8 * records.before[:count], rtol=1e-9)
    np.testing.assert_allclose(records.impulse[:count], -1.8 * records.before[:count], rtol=1e-9)
    assert not records.contact.any() and not records.lane.any()


@pytest.mark.parametrize("label", SCHEMES)
def test_accumulating_impacts(label):
    """Bounces with e = 1/2 accumulate at t = 3 sqrt(2)."""
    zeno = 3 * np.sqrt(2)
    _, records, h = found("bouncing-ball", "e=1/2", 4001, SCHEMES[label])
    assert len(records.accumulations) == len(records.lasting) == 1
    assert records.accumulations.start[0] == pytest.approx(records.t[0])
    assert records.accumulations.impacts[0] == len(records) >= 8
    early = zeno - records.accumulations.end[0]
    if label == "ec":
        # contact lasts from a rebound slower than 2 h g on, that is 2 v / g / (1 - e) <= 8 h before the limit
        assert 0 <= early <= 8 * h
    else:
        # what lies under the resolution, about the same, and a delay of up to 2 h for every impact
        assert -2 * h * len(records) <= early <= 8 * h
    assert records.lasting.start[0] == records.accumulations.end[0]
    assert records.lasting.end[0] == pytest.approx(5.0)


@pytest.mark.parametrize("label", ["ps", "mj"])
def test_inelastic_impact_and_lasting_contact(label):
    """With e = 0 the ball stays where it falls, at t = sqrt(2): one impact, one lasting contact, no accumulation."""
    _, records, h = found("bouncing-ball", "e=0", 1009, SCHEMES[label])
    assert records.t == pytest.approx([np.sqrt(2)])
    # the impulse of one step of weight, or two, comes with that of the impact
    assert np.sqrt(2) <= records.impulse[0] <= np.sqrt(2) + 2 * h
    assert abs(records.after[0]) <= 2 * h
    assert records.lasting.start == pytest.approx([np.sqrt(2)])
    assert records.lasting.end == pytest.approx([5.0])
    assert len(records.accumulations) == 0


def between(t, q, args):
    """A slit of width 1 whose floor moves up with a speed."""
    return jnp.stack([q[0] - args["speed"] * t, 1.0 - q[0]])


def free(t, q, v, args):
    return jnp.zeros(1)


def test_two_contacts_a_moving_wall_and_lanes():
    """A free particle between a ceiling and a floor that moves: exact times and speeds, lane by lane."""
    slit = ji.Problem(free, between, restitution=0.5)
    speeds = np.array([0.0, 0.05, 0.1])
    batch = ji.ensemble(
        slit, [0.5], [1.0], t1=3.0, h=0.01, args={"speed": speeds}, args_axes=0, save=1, scheme=SCHEMES["ec"]
    )
    records = impacts(slit, batch, args={"speed": speeds}, args_axes=0)
    for lane, speed in enumerate(speeds):
        one = records.of(lane)
        ceiling, floor = one.contact == 1, one.contact == 0
        # up with 1, down with 1/2 from the ceiling at t = 1/2
        hit = (1 + 0.25) / (0.5 + speed)
        np.testing.assert_allclose(one.t[ceiling][:1], 0.5, rtol=1e-10)
        np.testing.assert_allclose(one.t[floor][:1], hit, rtol=1e-10)
        np.testing.assert_allclose(one.before[floor][:1], -0.5 - speed, rtol=1e-10)
        np.testing.assert_allclose(one.after[floor][:1], 0.5 * (0.5 + speed), rtol=1e-10)
        assert (np.diff(one.t[ceiling]) > 0).all() and (np.diff(one.t[floor]) > 0).all()
    assert len(records) == sum(len(records.of(lane)) for lane in range(3))


def test_motion_without_impacts_has_none():
    _, records, _ = found("grazing-oscillator", "e=1", 1009, SCHEMES["ps"])
    assert len(records) == len(records.lasting) == len(records.accumulations) == 0


def test_what_cannot_be_read_is_refused(tmp_path):
    ball = catalogue.get("bouncing-ball")
    case = ball.case("e=1/2")
    options = {"t1": case.t1, "h": 0.01, "args": case.args, "e": 0.5}
    with pytest.raises(ValueError, match="save='all'"):
        impacts(ball.problem, ji.solve(ball.problem, case.q0, case.v0, **options, save="final"))
    broken = ji.Problem(lambda t, q, v, args: -jnp.exp(args["k"] * t) * jnp.ones(1), lambda t, q, args: q)
    batch = ji.ensemble(broken, [1.0], [0.0], t1=1.0, h=0.01, args={"k": np.array([0.0, 1e4])}, args_axes=0, save=1)
    with pytest.raises(ValueError, match="motion 1 of the solution is not finite"):
        impacts(broken, batch, args={"k": np.array([0.0, 1e4])}, args_axes=0)
    kept = impacts(broken, batch, args={"k": np.array([0.0, 1e4])}, args_axes=0, lanes=~batch.failed)
    assert set(kept.lane) <= {0}
    assert kept.moved(3).plot(tmp_path / "few.png").stat().st_size > 5000


EVERY = [ji.PaoliSchatzman(), ji.MoreauJean(), ji.EventCorrected(), ji.Maury(), ji.Maury(half_kick=True)]


@pytest.mark.parametrize("scheme", EVERY, ids=repr)
def test_a_solution_knows_its_scheme(scheme):
    """One fall from q = 1 under g = -2: the impact is at t = 1, with 2; its velocity is that of the time of the impact.

    Positions of `PaoliSchatzman` and of the half kick lie on the parabola, so that times are exact but for rounding; of
    the other schemes of first order they fall behind or run ahead of it by up to h |v|/2. A wrong lag moves them by h/2
    too, and a velocity, exact here for every scheme, by h.
    """
    fall = ji.Problem(lambda t, q, v, args: -2.0 * jnp.ones(1), lambda t, q, args: q)
    h = 0.013
    solution = ji.solve(fall, [1.0], [0.0], t1=1.2, h=h, scheme=scheme, e=0.0)
    assert solution.timing == ("Maury" if isinstance(scheme, ji.Maury) else type(scheme).__name__, *solution.timing[1:])
    exact = not isinstance(scheme, ji.Maury) or scheme.half_kick
    found = impacts(fall, solution)
    np.testing.assert_allclose(found.t[0], 1.0, atol=1e-9 if exact else 0.6 * h)
    np.testing.assert_allclose(found.before[0], -2.0, atol=1e-8 if exact else 1.2 * h)
    # it goes through transformations, batches and numpy as it is
    batch = jax.vmap(lambda q: ji.solve(fall, q, jnp.zeros(1), t1=1.2, steps=9, scheme=scheme, e=0.0))(jnp.ones((2, 1)))
    assert jax.tree.map(np.asarray, batch).timing == solution.timing
    # where a step may fail before its end, the result says when and at which event
    assert len(jax.tree.leaves(solution)) == 10 + scheme.traits.locates


def test_another_scheme_is_refused():
    fall = ji.Problem(lambda t, q, v, args: -2.0 * jnp.ones(1), lambda t, q, args: q)
    solution = ji.solve(fall, [1.0], [0.0], t1=1.2, h=0.1)
    with pytest.raises(ValueError, match="scheme=MoreauJean, but the solution is of PaoliSchatzman"):
        impacts(fall, solution, scheme=ji.MoreauJean())
    unknown = dataclasses.replace(solution, timing=None)
    with pytest.raises(ValueError, match="does not know its scheme"):
        impacts(fall, unknown)
    assert impacts(fall, unknown, scheme=ji.PaoliSchatzman()).t == impacts(fall, solution).t


def test_a_rebound_that_no_step_shows():
    """e = 0.001: the ball rests at once as far as steps can show; with e known, that is an accumulation,
    with e = 0 it is none."""
    entry = catalogue.get("bouncing-ball")
    case = entry.case("e=1/2")
    options = {"t1": 5.0, "args": case.args}
    for e, steps, count in ((0.001, 500, 1), (0.0, 500, 0)):
        motion = ji.solve(entry.problem, case.q0, case.v0, h=5.0 / steps, e=e, scheme=ji.EventCorrected(), **options)
        assert len(impacts(entry.problem, motion, args=case.args, e=e).accumulations) == count
        assert len(impacts(entry.problem, motion, args=case.args).accumulations) == 0
    with pytest.raises(ValueError, match="e must be a number, or have shape"):
        impacts(entry.problem, motion, args=case.args, e=[0.1, 0.2, 0.3])


def test_functions_may_look_up_entries_of_args():
    """A force from a table, at the place of the time in it: `solve` takes it, and so what reads its motion."""
    table = np.array([-1.0, -2.0, -3.0])
    ball = ji.Problem(
        lambda t, q, v, args: args[jnp.floor(t).astype(int)] + 0 * q, lambda t, q, args: q, restitution=0.5
    )
    motion = ji.solve(ball, [0.3], [0.0], t1=0.9, h=0.01, args=table)
    found = impacts(ball, motion, args=table)
    assert found.t[0] == pytest.approx(np.sqrt(0.6), abs=0.02)  # a fall of 0.3 at -1, to O(h)


@pytest.mark.parametrize(
    "scheme",
    [ji.EventDriven(order=5), slow(ji.MoreauJean()), slow(ji.PaoliSchatzman())],
    ids=lambda s: type(s).__name__,
)
def test_another_restitution_is_refused(scheme):
    """With e = 0 for a ball that rebounds by .7, nothing accumulates; without e impacts of `EventDriven` had the
    velocities of a ball that stays."""
    ball = ji.Problem(lambda t, q, v, args: -9.81 + 0 * q, lambda t, q, args: q)
    found = ji.solve(ball, [1.0], [0.0], t1=3.0, h=0.01, e=0.7, scheme=scheme)
    given, plain = found.impacts(ball, e=0.7), found.impacts(ball)
    np.testing.assert_array_equal(given.t, plain.t)
    if scheme.traits.order is None:
        # under a constant acceleration rows say it to rounding
        np.testing.assert_allclose(plain.after, -0.7 * plain.before, rtol=1e-9)
        assert len(plain.accumulations) == len(given.accumulations) == 1
    with pytest.raises(ValueError, match="rebounds faster"):
        found.impacts(ball, e=0.0)
