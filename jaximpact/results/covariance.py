"""Covariance of outputs from the covariance of inputs by a Jacobian (delta method),
and its check against a small ensemble."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from ..jaxtools.argument_checks import check_whole, dotted_entries
from ..mechanics.status import DOUBTS, FAILURES, Status
from .result import Arrays, Drawable

LINES = 12  # outputs that are printed
ROUNDING = 1e-10  # relative, of eigenvalues and symmetry of a covariance matrix that is given


@dataclass(frozen=True, repr=False)
class Covariance(Drawable):
    """Result of `Sensitivities.covariance`: covariance of outputs by the delta method, C_y = J C_x J', of first order.

    Attributes:
        outputs, inputs: names, (n,) and (N,).
        value: values of the outputs (n,).
        matrix: covariance C_y of the outputs (n, n).
        at: values of the inputs (N,).
        spread: covariance C_x of the inputs (N, N).
        jacobian: J (n, N).
        status: `Status` bits of the motion; those named DERIVATIVE_... say that J, and with it this covariance,
            is not to be trusted.
        units: units of the outputs (n,), "" where not known.
    """

    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    value: np.ndarray
    matrix: np.ndarray
    at: np.ndarray
    spread: np.ndarray
    jacobian: np.ndarray
    status: np.ndarray
    units: tuple[str, ...]
    again: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None = field(default=None, repr=False, compare=False)

    @property
    def deviation(self) -> np.ndarray:
        """Standard deviations of the outputs (n,)."""
        return np.sqrt(np.maximum(np.diagonal(self.matrix), 0.0))

    @property
    def correlation(self) -> np.ndarray:
        """Correlations of the outputs (n, n); NaN for an output that does not vary."""
        scale = np.where(self.deviation > 0, self.deviation, np.nan)
        return self.matrix / scale / scale[:, None]

    @property
    def shares(self) -> np.ndarray:
        """Share of each input in the variance of each output (n, N), J_ij (C_x J')_ji / var_i.

        Shares of an output add up to 1; one may be negative if inputs are correlated.
        NaN for an output that does not vary.
        """
        variance = np.diagonal(self.matrix)[:, None]
        return self.jacobian * (self.jacobian @ self.spread) / np.where(variance > 0, variance, np.nan)

    @property
    def trusted(self) -> bool:
        """Whether the motion succeeded and no status bit casts doubt on its Jacobian."""
        return not int(self.status) & int(FAILURES | DOUBTS)

    def check(self, samples: int = 100, seed: int = 0, tolerance: float = 0.2) -> Linearity:
        """Compares the linearised outputs with a small ensemble of motions whose inputs are normally distributed.

        Args:
            samples: number of motions to compute; each with its Jacobian, which may be untrusted at some of them.
            seed: seed of the random inputs.
            tolerance: root-mean-square deviation from the linearisation that still counts as linear,
                in standard deviations.

        Returns:
            `Linearity`: the samples with their statuses, and the deviation from the linearisation by output.

        Raises:
            ValueError: fewer than 2 samples, no input varies, or the covariance comes from a file or from a batch.
        """
        if self.again is None:
            raise ValueError(
                "check needs the motion: take the covariance of what sensitivities returned for one motion; one from a "
                "file has none"
            )
        check_whole("samples", samples, 2)
        if not np.any(self.spread):
            raise ValueError("check: no input varies")
        x = np.random.default_rng(seed).multivariate_normal(self.at, self.spread, samples, method="eigh")
        y, status = self.again(x)
        linear = self.value + (x - self.at) @ self.jacobian.T
        return Linearity(self.outputs, self.inputs, x, y, linear, status, self.deviation, float(tolerance), self.units)

    def _facts(self) -> list[tuple[str, str]]:
        if self._is_traced():
            return super()._facts()
        lines = []
        for name, value, deviation, shares in list(
            zip(self.outputs, self.value, self.deviation, self.shares, strict=True)
        )[:LINES]:
            most = np.argsort(-np.abs(np.nan_to_num(shares)), kind="stable")[:3]
            owed = [f"{self.inputs[i]} {100 * shares[i]:.3g} %" for i in most if np.isfinite(shares[i]) and shares[i]]
            lines.append(
                (name, f"{value:.6g} ± {deviation:.3g}" + (f", of the variance {', '.join(owed)}" if owed else ""))
            )
        if len(self.outputs) > LINES:
            lines.append(("...", f"{len(self.outputs) - LINES} more"))
        word = "trusted" if self.trusted else "not to be trusted"
        return [*lines, ("status", f"{Status(int(self.status))}, {word}")]

    def _arrays(self) -> Arrays:
        fields = self._along("output", "value", "deviation") | self._along("output output_", "matrix")
        fields |= self._along("input", "at") | self._along("input input_", "spread") | self._along("", "status")
        return self._dimension_names() | fields | self._along("output input", "jacobian", "shares")

    def _dimension_names(self) -> Arrays:
        """Labels along the named dimensions of the arrays."""
        of = {"output": self.outputs, "output_": self.outputs, "input": self.inputs, "input_": self.inputs}
        return {name: ((name,), x) for name, x in of.items()}

    def _columns(self) -> dict[str, np.ndarray]:
        """One row for each output: value, deviation, and the share of each input."""
        table = {"output": np.array(self.outputs), "value": self.value, "deviation": self.deviation}
        return table | {f"share {name}": self.shares[:, i] for i, name in enumerate(self.inputs)}


@dataclass(frozen=True, repr=False)
class Linearity(Drawable):
    """Result of `Covariance.check`: sampled motions compared with their linearisation; S samples, n outputs, N inputs.

    Attributes:
        outputs, inputs: names.
        sample: inputs (S, N).
        value: outputs (S, n); NaN where a motion could not start.
        linear: outputs as the linearisation predicts them (S, n).
        status: `Status` bits of each sample (S,); INPUT_INVALID for one that could not start.
        deviation: standard deviations of the outputs by the delta method (n,).
        tolerance: root mean square of `off` up to which the linearisation holds.
        units: units of the outputs, "" where not known.
    """

    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    sample: np.ndarray
    value: np.ndarray
    linear: np.ndarray
    status: np.ndarray
    deviation: np.ndarray
    tolerance: float
    units: tuple[str, ...]

    @property
    def sound(self) -> np.ndarray:
        """Mask of the samples that did not fail (S,)."""
        return ((self.status & int(FAILURES)) == 0) & np.all(np.isfinite(self.value), axis=1)

    @property
    def doubtful(self) -> np.ndarray:
        """Mask (S,) of sound samples with an untrusted Jacobian: grazing, an impact at the end,
        or accumulating impacts."""
        return self.sound & ((self.status & int(DOUBTS)) != 0)

    @property
    def off(self) -> np.ndarray:
        """Distance of each output of each sample from its linearisation, in units of ``deviation`` (S, n).

        0 for an output that neither varies nor deviates; infinite for one that varies although its derivative is zero.
        """
        apart, scale = np.abs(self.value - self.linear), np.broadcast_to(self.deviation, self.value.shape)
        noise = 1e-12 * (np.abs(self.linear) + np.abs(self.value))
        rest = np.where(apart > noise, np.inf, np.where(np.isnan(apart), np.nan, 0.0))
        return np.where(scale > noise, apart / np.where(scale > 0, scale, 1.0), rest)

    @property
    def error(self) -> np.ndarray:
        """Root mean square of ``off`` over the sound samples (n,); NaN without any sound sample."""
        kept = self.off[self.sound]
        return np.sqrt(np.mean(kept**2, axis=0)) if len(kept) else np.full(len(self.outputs), np.nan)

    @property
    def sampled(self) -> np.ndarray:
        """Standard deviations of the outputs over the sound samples (n,); NaN with fewer than two samples."""
        kept = self.value[self.sound]
        return kept.std(axis=0, ddof=1) if len(kept) > 1 else np.full(len(self.outputs), np.nan)

    @property
    def holds(self) -> np.ndarray:
        """Whether the linearisation holds to the tolerance, by output (n,); False for all where a sample failed."""
        return np.asarray((self.error <= self.tolerance) & bool(np.all(self.sound)))

    def _facts(self) -> list[tuple[str, str]]:
        if self._is_traced():
            return super()._facts()
        lines = []
        for i, name in list(enumerate(self.outputs))[:LINES]:
            word = "holds" if self.holds[i] else "FAILS"
            lines.append(
                (
                    name,
                    f"{word}: off by {self.error[i]:.2g} deviations; deviation {self.deviation[i]:.3g} linear, "
                    f"{self.sampled[i]:.3g} sampled",
                )
            )
        if len(self.outputs) > LINES:
            lines.append(("...", f"{len(self.outputs) - LINES} more"))
        lost = len(self.status) - int(self.sound.sum())
        lines.append(
            ("samples", f"{len(self.status)}, {lost} failed, {int(self.doubtful.sum())} with a doubtful derivative")
        )
        bits = Status(int(np.bitwise_or.reduce(self.status, initial=0)))
        counts = [f"{bit.name} {int(np.sum((self.status & int(bit)) != 0))}" for bit in Status if bit & bits]
        lines.append(("status", ", ".join(counts) or "OK"))
        if self.sound.any():
            worst = int(np.argmax(np.where(self.sound, np.max(np.nan_to_num(self.off), axis=1), -1.0)))
            where = ", ".join(
                f"{name} = {x:.6g}" for name, x in zip(self.inputs, self.sample[worst], strict=True) if x != 0
            )
            lines.append(("worst at", where))
        return lines

    def _arrays(self) -> Arrays:
        fields = self._along("sample output", "value", "linear") | self._along("output", "deviation")
        fields |= self._along("sample input", "sample") | self._along("sample", "status")
        return {"output": (("output",), self.outputs), "input": (("input",), self.inputs)} | {
            "at" if name == "sample" else name: x for name, x in fields.items()
        }

    def _columns(self) -> dict[str, np.ndarray]:
        """One row for each sample: inputs, status, outputs, their linearisations."""
        table = {name: self.sample[:, i] for i, name in enumerate(self.inputs)} | {"status": self.status}
        for i, name in enumerate(self.outputs):
            table |= {name: self.value[:, i], f"linear {name}": self.linear[:, i]}
        return table


def joint(given: Mapping | ArrayLike, names: tuple[str, ...], groups: Mapping[str, list[int]]) -> np.ndarray:
    """Joint covariance (N, N) of all inputs, ``given`` in one of the forms that `Sensitivities.covariance` takes.

    ``names``: names of the N inputs; ``groups``: for each common name, such as "q0", the indices of its inputs.
    ValueError or TypeError if ``given`` is in none of these forms.
    """
    count = len(names)
    if not isinstance(given, Mapping):
        return _semidefinite("inputs", _numbers("inputs", given), count)
    places = dict(groups) | {name: [i] for i, name in enumerate(names)}
    spread, taken = np.zeros((count, count)), np.zeros(count, bool)
    for name, value in dotted_entries(given):
        if name not in places:
            raise ValueError(f"inputs: {name!r} is none of {', '.join(dict.fromkeys((*groups, *names)))}")
        where = np.array(places[name])
        if taken[where].any():
            raise ValueError(f"inputs: {name!r} has been given a spread before, under another name")
        taken[where] = True
        array = _numbers(f"inputs[{name!r}]", value)
        if array.ndim == 2 and array.shape == (where.size, where.size) and where.size > 1:
            spread[np.ix_(where, where)] = _semidefinite(f"inputs[{name!r}]", array, where.size)
            continue
        if array.size not in (1, where.size):
            raise ValueError(
                f"inputs[{name!r}] must be one number, {where.size} standard deviations or a covariance matrix, got "
                f"shape {array.shape}"
            )
        if np.any(array < 0):
            raise ValueError(f"inputs[{name!r}]: a standard deviation must not be negative, got {value!r}")
        spread[where, where] = np.broadcast_to(array.ravel(), where.size) ** 2
    return spread


def _numbers(what: str, value: ArrayLike) -> np.ndarray:
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} must be real numbers, got {value!r}") from error
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{what} must be finite numbers, got {value!r}")
    return array


def _semidefinite(what: str, matrix: np.ndarray, count: int) -> np.ndarray:
    if matrix.shape != (count, count):
        raise ValueError(f"{what} must be a covariance matrix of shape ({count}, {count}), got {matrix.shape}")
    size = np.max(np.abs(matrix), initial=0.0)
    if np.max(np.abs(matrix - matrix.T), initial=0.0) > ROUNDING * size:
        raise ValueError(f"{what} must be symmetric, as covariance matrices are")
    if np.linalg.eigvalsh(matrix).min(initial=0.0) < -ROUNDING * size * count:
        raise ValueError(f"{what} has a negative eigenvalue: no covariance matrix has")
    return matrix
