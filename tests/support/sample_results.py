"""A result of every kind that takes no searching."""

import numpy as np

import jaximpact as ji
from jaximpact import analysis, catalogue, conformance, indices

BALL = catalogue.get("bouncing-ball")
CASE = BALL.case("e=1/2")
OPTIONS = {"t1": CASE.t1, "args": CASE.args, "e": 0.5}


def height(t, q, v, args):
    return q[0] - 0.3


def samples(problem=BALL.problem):
    """Results of every kind that is quick to compute, by name; ``problem`` is the ball,
    with or without names and units."""
    if problem is not BALL.problem:
        return computed(problem)
    if not KEPT:  # by a process, for all files of its tests
        KEPT.update(computed(problem))
    return dict(KEPT)


KEPT = {}


def computed(problem):
    motion = ji.solve(problem, CASE.q0, CASE.v0, steps=503, **OPTIONS)
    q0 = np.array(CASE.q0) + np.linspace(0, 0.1, 5)[:, None]
    batch = ji.ensemble(problem, q0, np.zeros((5, 1)), h=CASE.t1 / 101, save=1, **OPTIONS)
    states = np.random.default_rng(0).random((2, 7, 1))
    zeros, one = np.zeros(2), np.ones(1)
    section = analysis.Section(states[..., 0], states, -states, 1 + zeros, zeros.astype(int), np.nan * zeros)
    records = analysis.impacts(problem, batch, args=CASE.args)
    multipliers = np.array([[0.5 + 0.1j, 0.5 - 0.1j]])
    empty = np.zeros((1, 2))
    attractor = analysis.Attractor(1, one[:, None], one[:, None], 6)
    grid, labels = np.linspace(0, 1, 3), np.array([[0, 0, -1], [0, -2, 0], [0, 0, 0]])
    derivatives = ji.sensitivities(problem, CASE.q0, CASE.v0, h=0.07, wrt=("q0", "e", "args"), **OPTIONS | {"t1": 2.0})
    spread = derivatives.covariance({"q0": 0.01, "e": 0.01})
    share, half = {"S1": np.full((1, 2), 0.4), "ST": np.full((1, 2), 0.6)}, np.full((1, 2), 0.1)
    return {
        "sensitivities": derivatives,
        "ranking": derivatives.ranking(),
        "covariance": spread,
        "linearity": spread.check(8),
        "indices": indices.Indices(
            "Sobol' indices", ("v",), ("q0[0]", "e"), share, {"S1": half, "ST": half}, {"S1": "alone", "ST": "all"},
            ("S1", "ST"), None, one, 8, 7, {"NON_FINITE": 1}, ("1 of 8 blocks are left out",),
        ),
        "report": conformance.Report(
            ("corner",), (conformance.Column("mine", {"corner": conformance.Cell({1e-3: 0.1}, {1e-3: 0.0})}, {}),)
        ),
        "motion": motion,
        "batch": batch,
        "impacts": analysis.impacts(problem, motion, args=CASE.args),
        "slips": analysis.Slips(
            np.zeros(2, int), np.zeros(2, int), np.array([0.4, 0.8]), np.array(["stop", "break"]),
            np.array([[0.1], [0.0]]), np.array([[0.0], [0.2]]), np.array([3, 5]), np.linspace(0, 1, 6),
            np.array([[0, 2, 2, 1, 1, 2]]).T, np.array([0.3, 0.2, 0.1, 0.0, 0.0, 0.2])[:, None, None],
            np.linspace(0, -1, 6)[:, None],
        ),
        "balance": analysis.balance(problem, motion, args=CASE.args, e=0.5),
        "statistics": analysis.statistics(batch),
        "section": section,
        "crossings": analysis.crossings(batch, height, args=CASE.args),
        "impact section": analysis.ImpactSection(records, records.t % 1.0, section),
        "bifurcation": analysis.Bifurcation("w", np.array([1.0, 2.0]), 1, None, section),
        "map": analysis.ParameterMap(("w", "e"), grid, grid, np.ones((3, 3), int), np.ones((3, 3)), np.zeros((3, 3))),
        "orbit": analysis.PeriodicOrbit(
            empty[:, :1], empty[:, :1], 0 * one, one, multipliers, empty[None], 0 * one, one, one > 0, one.astype(int)
        ),
        "convergence": analysis.Convergence(
            np.array([10, 20]), *np.array([[0.1, 0.05]] * 4), *np.zeros((2, 2)), reference="exact"
        ),
        "basins": analysis.Basins((("q", 0), ("v", 0)), grid, grid, labels, (attractor,), 0 * labels),
        "exponents": analysis.Lyapunov(
            np.array([0.1, -0.2]), np.full(2, 0.01), np.ones((10, 2)), zeros[:1], zeros[:1], one[0], one[0].astype(int)
        ),
        "curve": analysis.BifurcationCurve(
            "fold", ("w", "gap"), grid, grid, grid, *np.ones((2, 3, 1)), grid, np.full((3, 2), 0.5 + 0j), grid, "bounds"
        ),
        "branch": analysis.Branch(
            "w", grid, *np.ones((2, 3, 1)), grid, np.full((3, 2), 0.5 + 0j), grid >= 0, labels[0] ** 2, labels[0] ** 2,
            grid, grid, grid, (), "bounds"
        ),
    }  # fmt: skip


def undrawn(found):
    """Results without a picture, by name, from those of `samples`."""
    batch = found["batch"]
    return {
        "hypotheses": analysis.check_hypotheses(BALL.problem, found["motion"], args=CASE.args),
        "runs": analysis.runs(batch.impulse, batch.timing),
        "intervals": found["impacts"].lasting,
        "attractor": found["basins"].attractors[0],
        "located impacts": ji.solve(
            BALL.problem, CASE.q0, CASE.v0, scheme=ji.EventDriven(), save=ji.Events(impacts=3), **OPTIONS
        ).events,
        "event": analysis.BranchEvent("fold", 1.0, *np.ones((2, 3)), np.ones(6), 2),
    }
