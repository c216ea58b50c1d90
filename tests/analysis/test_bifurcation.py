"""Diagrams and maps over parameters: exact solutions, hysteresis, and the event-by-event reference on a grid."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact.analysis import bifurcation, impact_section, stroboscopic, two_parameter_map
from support.experiments.gallery import PROBLEM, args_of, exact_section, forcing_period

DAMPING, WALL, E = 0.05, -0.3, 0.8


def particular(w):
    """State at t = 0 of the oscillation that never reaches the wall."""
    size = (1 - w**2) ** 2 + (2 * DAMPING * w) ** 2
    return np.stack([(1 - w**2) / size, 2 * DAMPING * w**2 / size], axis=-1)


def test_continuation_follows_its_attractor():
    """Both ways over frequencies at which an oscillation free of impacts (amplitude below 0.3) and
    an orbit of period 2 coexist.

    From the free one, the exact particular solution, to second order; from the other one, the period 2 that the
    reference finds there. One start for each lane.
    """
    values = np.array([3.0, 3.2, 3.1])
    q, v, count = exact_section(args_of(3.0, DAMPING, WALL), E, 0.5, 0.0, skip=300, cycles=2)
    assert count > 0 and abs(q[0] - q[1]) > 0.01
    hitting = np.array([q[-1], v[-1]])
    q0, v0 = np.stack([particular(3.0), hitting]).T[..., None]
    common = {"parameter": "frequency", "values": values, "period": forcing_period, "steps": 100, "cycles": 8}
    options = common | {"args": args_of(1.0, DAMPING, WALL), "e": E}
    for sweep in ("up", "down"):
        found = bifurcation(PROBLEM, q0, v0, skip=150, sweep=sweep, **options)
        np.testing.assert_array_equal(found.values, values)
        assert found.q.shape == (3, 2, 8, 1)
        assert not found.status.any()
        np.testing.assert_array_equal(found.periods(), [[1, 2]] * 3)
        h = 2 * np.pi / 3.0 / 100
        states = np.concatenate([found.q, found.v], axis=-1)
        np.testing.assert_allclose(states[:, 0], np.repeat(particular(values)[:, None], 8, axis=1), atol=10 * h**2)
        for i, w in enumerate(values):
            q, v, _ = exact_section(args_of(w, DAMPING, WALL), E, *hitting, skip=300, cycles=2)
            np.testing.assert_allclose(np.sort(found.q[i, 1, -2:, 0]), np.sort(q), atol=10 * h**2)


def swing(t, q, v, args):
    return -args["body"]["stiffness"] * q - v + args["drive"][0] * jnp.cos(args["drive"][1] * t)


def test_values_in_one_batch_and_nested_parameters():
    """Amplitudes of a linear oscillator are proportional to the drive;
    every lane is what `stroboscopic` gives alone."""
    problem = ji.Problem(swing, lambda t, q, args: q + 100.0)
    args, values = {"body": {"stiffness": 2.0}, "drive": (1.0, 2.0)}, np.array([0.5, 1.0, 2.0, 4.0])
    options = {"period": np.pi, "steps": 40, "cycles": 4, "skip": 12, "scheme": ji.MoreauJean()}
    found = bifurcation(problem, [0.0], [0.0], parameter=("drive", 0), values=values, args=args, **options)
    assert found.parameter == "drive.0"
    np.testing.assert_allclose(
        found.q[:, 0] / values[:, None, None], np.broadcast_to(found.q[1, :1], (4, 4, 1)), rtol=1e-9
    )
    single_backend = stroboscopic(problem, [0.0], [0.0], args=args, **options)
    np.testing.assert_allclose(found.q[1], single_backend.q, rtol=1e-12)
    with pytest.raises(
        KeyError, match=r"drive.2: args has no such number, but \['body.stiffness', 'drive.0', 'drive.1'\]"
    ):
        bifurcation(problem, [0.0], [0.0], parameter=("drive", 2), values=values, args=args, **options)
    with pytest.raises(ValueError, match="parameter body must be one number"):
        bifurcation(problem, [0.0], [0.0], parameter="body", values=values, args=args, **options)
    with pytest.raises(ValueError, match="rebounds in the next one"):
        bifurcation(
            problem,
            [0.0],
            [0.0],
            parameter="e",
            values=[0.5],
            args=args,
            sweep="up",
            **options | {"scheme": ji.PaoliSchatzman()},
        )


def amplitudes(motion, args):
    assert motion.t.shape == (6 * 100 + 1,)
    return [np.ptp(motion.q), args["frequency"]]


def test_what_stands_over_the_parameter(tmp_path):
    """Impact velocities are those of `impact_section`, as many as the reference counts; rms and span of the oscillation
    that meets no wall are its amplitude's.

    One start on it, the other on the orbit of period 2; values out of order and swept,
    so that points must find their lanes.
    """
    values = np.array([3.1, 3.0])
    q, v, _ = exact_section(args_of(3.0, DAMPING, WALL), E, 0.5, 0.0, skip=300, cycles=2)
    q0, v0 = np.array([particular(3.0), [q[-1], v[-1]]]).T[..., None]
    common = {"period": forcing_period, "steps": 100, "cycles": 6, "skip": 150, "e": E}
    run = lambda of, sweep="up": bifurcation(
        PROBLEM,
        q0,
        v0,
        parameter="frequency",
        values=values,
        of=of,
        sweep=sweep,
        args=args_of(1.0, DAMPING, WALL),
        **common,
    )
    hits, batch = run("impact velocity"), run("impact velocity", None)
    for i, w in enumerate(values):
        alone = impact_section(PROBLEM, q0[1], v0[1], args=args_of(w, DAMPING, WALL), **common)
        _, _, count = exact_section(args_of(w, DAMPING, WALL), E, q[-1], v[-1], skip=150, cycles=6)
        assert np.sum(hits.lane == 2 * i + 1) == np.sum(batch.lane == 2 * i + 1) == count > 0
        # the same limit, approached from elsewhere
        np.testing.assert_allclose(
            np.sort(hits.points[hits.lane == 2 * i + 1, 0]), np.sort(alone.impacts.before), rtol=1e-4
        )
    assert not np.any(hits.lane % 2 == 0)
    amplitude = 1 / np.sqrt((1 - values**2) ** 2 + (2 * DAMPING * values) ** 2)
    rms, span, own = run("rms"), run("peak to peak"), run(amplitudes)
    # means over rows of whole periods are exact; the largest row is within (pi/100)^2/2 of the apex; h^2 of the scheme
    np.testing.assert_allclose(rms.points[rms.lane % 2 == 0, 0], amplitude / np.sqrt(2), rtol=2e-3)
    np.testing.assert_allclose(span.points[span.lane % 2 == 0, 0], 2 * amplitude, rtol=2e-3)
    np.testing.assert_array_equal(
        own.points[own.lane % 2 == 0, 0].reshape(2, 2), np.stack([span.points[::2, 0], values], axis=1)
    )
    assert (
        own.of == "amplitudes"
        and "amplitudes" in own.to_pandas()
        and hits.to_xarray().points.shape == hits.points.shape
    )
    loaded = ji.load(hits.save(tmp_path / "hits.npz"))
    np.testing.assert_array_equal(loaded.points, hits.points)
    assert "gap velocity before the impact" in hits.plot()[0].get_ylabel()
    for words, kind, options in (
        ("choose 'impact velocity', 'rms', 'peak to peak'", ValueError, {"of": "speed"}),
        ("of must be a name or a function", TypeError, {"of": 3}),
        ("give one of them", ValueError, {"of": "rms", "surface": lambda t, q, v, args: v[0]}),
        ("not finite", ValueError, {"of": lambda motion, args: np.nan}),
        (r"must return shape \(\), \(n,\) or \(n, k\)", ValueError, {"of": lambda motion, args: np.zeros((1, 1, 1))}),
    ):
        with pytest.raises(kind, match=words):
            bifurcation(
                PROBLEM,
                q0,
                v0,
                parameter="frequency",
                values=values,
                args=args_of(1.0, DAMPING, WALL),
                **common,
                **options,
            )


@pytest.mark.slow
def test_map_over_frequency_and_restitution():
    """Period and impacts in a period, at every point of a grid, as the reference finds them."""
    frequencies, es = np.array([2.2, 3.8, 5.6]), np.array([0.5, 0.6])
    found = two_parameter_map(
        PROBLEM, [0.5], [0.0], parameters=("frequency", "e"), values=(frequencies, es), period=forcing_period,
        steps=100, cycles=12, skip=300, args=args_of(1.0, 0.05),
    )  # fmt: skip
    assert found.period.shape == found.impacts.shape == (2, 3)
    assert not found.status.any()
    for j, e in enumerate(es):
        for i, w in enumerate(frequencies):
            q, _, count = exact_section(args_of(w, 0.05), e, 0.5, 0.0, skip=300, cycles=12)
            period = min(p for p in range(1, 7) if np.max(np.abs(q[p:] - q[:-p])) < 1e-6)
            assert (found.period[j, i], found.impacts[j, i]) == (period, pytest.approx(count / 12))
    assert len(np.unique(found.period)) == 3
