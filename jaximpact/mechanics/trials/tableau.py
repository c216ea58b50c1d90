"""Explicit Runge-Kutta methods with an error estimate, in the form of Nystrom for q'' = a(t, q, v):
only accelerations are kept.

    v_i = v + s sum_j a_ij A_j,     q_i = q + s (c_i v + s sum_j (a a)_ij A_j),     A_i = a(t + c_i s, q_i, v_i)

which is the method itself, since its positions are sums of its velocities.

References:
    J. R. Dormand, P. J. Prince, A family of embedded Runge-Kutta formulae, J. Comput. Appl. Math. 6 (1980).
    E. Hairer, S. P. Norsett, G. Wanner, Solving Ordinary Differential Equations I, Springer (1993), II.10: DOP853.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from ...jaxtools.linalg import nonzero


class Rows(NamedTuple):
    """A `Tableau` as arrays over its k + 1 stages, for a scan in which the newest acceleration comes first.

    For each stage: ``node`` c_i; coefficients ``velocity`` and ``position`` (k + 1,) of the accelerations so far; the
    weights of its own acceleration in the ``errors`` (n,), and in the new velocity (``weight``).
    """

    node: np.ndarray
    velocity: np.ndarray
    position: np.ndarray
    errors: np.ndarray
    weight: np.ndarray


@dataclass(frozen=True, eq=False)
class Tableau:
    """Tableau of an explicit Runge-Kutta method with k + 1 stages, the last of which is at the new state.

    Attributes:
        order: order of the new state.
        velocity: coefficients a_ij (k + 1, k + 1), whose last row are the weights of the new state.
        position: the same (k + 1, k + 1) for positions, (a a)_ij but for order 2.
        nodes: the c_i (k + 1,).
        errors: weights (n, k + 1) of the accelerations in the n error estimates of velocities;
            two estimates are combined as in DOP853.
        halvings: the error of a step is proportional to its length to the power of 2^halvings.
        stable: times of decay of a part of the motion, which a step may take without harm to others.

    A method without error estimates (n = 0) has substeps of the step h.
    """

    order: int
    velocity: np.ndarray
    position: np.ndarray
    nodes: np.ndarray
    errors: np.ndarray
    halvings: int
    stable: float

    @property
    def estimates(self) -> bool:
        """Whether the error of a step is estimated."""
        return len(self.errors) > 0

    @property
    def position_errors(self) -> np.ndarray:
        """Weights (n, k + 1) of the accelerations in the error estimates of positions,
        by way of the velocities of the stages."""
        return self.errors @ self.velocity

    def rows(self) -> Rows:
        """Returns the rows of all stages; the coefficients of the first stage are zero."""
        count = len(self.nodes)
        turned = lambda matrix: np.array([[*matrix[i, :i][::-1], *np.zeros(count - i)] for i in range(count)])
        weight = np.append(self.velocity[-1], 0.0)[:count]
        return Rows(self.nodes, turned(self.velocity), turned(self.position), self.errors.T, weight)


def estimate(errors: Array) -> Array:
    """Combines the n error estimates (n, ...) of numbers into one error (...) for each.

    Each number is treated by itself. A mean over all numbers would allow one of them a larger error the more others are
    at rest, and DOP853's combination of two norms would mix the low-order estimate of one number with the
    high-order estimate of another.
    """
    if len(errors) == 1:
        return jnp.abs(errors[0])
    square = errors[0] ** 2
    both = square + 0.01 * errors[1] ** 2
    return square / jnp.sqrt(nonzero(both))


def _tableau(
    order: int,
    rows: Sequence[Mapping[int, float]],
    errors: Sequence[Mapping[int, float]],
    halvings: int,
    positions: Sequence[Mapping[int, float]] = (),
) -> Tableau:
    """Makes a tableau from the coefficients of the stages after the first, the last of which is the new state; those of
    ``positions`` are by default the products of these."""
    count = len(rows) + 1
    dense = lambda rows: np.array([[row.get(j, 0.0) for j in range(count)] for row in rows]).reshape(-1, count)
    velocity = dense(({}, *rows))
    position = dense(({}, *positions)) if positions else velocity @ velocity
    return Tableau(order, velocity, position, np.sum(velocity, axis=1), dense(errors), halvings, 4.0 if errors else 0.5)


_ROWS_8 = (
    {0: 0.05260015195876773},
    {0: 0.0197250569845379, 1: 0.0591751709536137},
    {0: 0.02958758547680685, 2: 0.08876275643042054},
    {0: 0.2413651341592667, 2: -0.8845494793282861, 3: 0.924834003261792},
    {0: 0.037037037037037035, 3: 0.17082860872947386, 4: 0.12546768756682242},
    {0: 0.037109375, 3: 0.17025221101954405, 4: 0.06021653898045596, 5: -0.017578125},
    {
        0: 0.03709200011850479,
        3: 0.17038392571223998,
        4: 0.10726203044637328,
        5: -0.015319437748624402,
        6: 0.008273789163814023,
    },
    {
        0: 0.6241109587160757,
        3: -3.3608926294469414,
        4: -0.868219346841726,
        5: 27.59209969944671,
        6: 20.154067550477894,
        7: -43.48988418106996,
    },
    {
        0: 0.47766253643826434,
        3: -2.4881146199716677,
        4: -0.590290826836843,
        5: 21.230051448181193,
        6: 15.279233632882423,
        7: -33.28821096898486,
        8: -0.020331201708508627,
    },
    {
        0: -0.9371424300859873,
        3: 5.186372428844064,
        4: 1.0914373489967295,
        5: -8.149787010746927,
        6: -18.52006565999696,
        7: 22.739487099350505,
        8: 2.4936055526796523,
        9: -3.0467644718982196,
    },
    {
        0: 2.273310147516538,
        3: -10.53449546673725,
        4: -2.0008720582248625,
        5: -17.9589318631188,
        6: 27.94888452941996,
        7: -2.8589982771350235,
        8: -8.87285693353063,
        9: 12.360567175794303,
        10: 0.6433927460157636,
    },
)
_WEIGHTS_8 = {
    0: 0.054293734116568765,
    5: 4.450312892752409,
    6: 1.8915178993145003,
    7: -5.801203960010585,
    8: 0.3111643669578199,
    9: -0.1521609496625161,
    10: 0.20136540080403034,
    11: 0.04471061572777259,
}
_FIFTH = {
    0: 0.01312004499419488,
    5: -1.2251564463762044,
    6: -0.4957589496572502,
    7: 1.6643771824549864,
    8: -0.35032884874997366,
    9: 0.3341791187130175,
    10: 0.08192320648511571,
    11: -0.022355307863886294,
}
_THIRD = {
    0: -0.18980075407240762,
    5: 4.450312892752409,
    6: 1.8915178993145003,
    7: -5.801203960010585,
    8: -0.4226823213237919,
    9: -0.1521609496625161,
    10: 0.20136540080403034,
    11: 0.02265179219836082,
}

_ROWS_5 = (
    {0: 1 / 5},
    {0: 3 / 40, 1: 9 / 40},
    {0: 44 / 45, 1: -56 / 15, 2: 32 / 9},
    {0: 19372 / 6561, 1: -25360 / 2187, 2: 64448 / 6561, 3: -212 / 729},
    {0: 9017 / 3168, 1: -355 / 33, 2: 46732 / 5247, 3: 49 / 176, 4: -5103 / 18656},
    {0: 35 / 384, 2: 500 / 1113, 3: 125 / 192, 4: -2187 / 6784, 5: 11 / 84},
)
_FOURTH = {0: -71 / 57600, 2: 71 / 16695, 3: -71 / 1920, 4: 17253 / 339200, 5: -22 / 525, 6: 1 / 40}

# the acceleration varies linearly between both ends of a step, of which the new one is predicted by a parabola
_ROWS_2 = ({0: 1.0}, {0: 1 / 2, 1: 1 / 2})
_POSITIONS_2 = ({0: 1 / 2}, {0: 1 / 3, 1: 1 / 6})

TABLEAUS = {
    2: _tableau(2, _ROWS_2, (), 0, _POSITIONS_2),
    5: _tableau(5, _ROWS_5, (_FOURTH,), 2),
    8: _tableau(8, (*_ROWS_8, _WEIGHTS_8), (_FIFTH, _THIRD), 3),
}
