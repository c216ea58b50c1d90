"""Global sensitivity indices over whole ranges of the inputs, from a study of a sampled design.

    plan = Sobol(256, {"q0[0]": (1.0, 2.0), "e": (0.5, 0.9)})
    study = Study("bounces.zarr", problem, plan.design(), ...)
    study.run()
    plan.indices(study, lambda solution: solution.v[-1, 0])

Inputs are independent and uniform between their bounds.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import numpy as np
from scipy.stats import norm, qmc

from .jaxtools.argument_checks import check_kind, check_whole, is_whole
from .jaxtools.optional_packages import import_optional
from .mechanics.labels import UNNAMED, Labels
from .mechanics.status import DOUBTS, FAILURES, Status
from .mechanics.user_functions import named_errors
from .results import LEVEL, Indices, Solution, components, unit_of
from .simulation.public import sensitivities
from .simulation.sensitivities import state
from .study import Design, Reading
from .study.design import Key

__all__ = ["DGSM", "Indices", "Morris", "Sobol"]

RESAMPLES = 200  # of the bootstrap of confidence intervals
FEWEST = 4  # blocks of lanes from which there are indices
CONSTANT = 1e-12  # relative, of outputs that do not vary


@dataclass(frozen=True)
class Plan(ABC):
    """Base class: how inputs are sampled, and how indices are computed from the outputs.

    Attributes:
        count: size of the sample; the number of lanes that follows from it is stated by each of `Sobol`,
            `Morris` and `DGSM`.
        bounds: (low, high) by quantity, named as in `Design`: "e", "q0[0]", "args.g".
        seed: seed of the sample, and of the bootstrap of confidence intervals.
    """

    count: int
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_whole(f"{name}: count", self.count, FEWEST)
        check_whole(f"{name}: seed", self.seed, 0)
        if not isinstance(self.bounds, Mapping) or not self.bounds:
            raise ValueError(f'{name}: bounds must be a dict of (low, high) by quantity, such as {{"e": (0.5, 0.9)}}')
        for key, pair in self.bounds.items():
            Key.of(key)
            if np.shape(pair) != (2,) or not np.all(np.isfinite(pair)) or not pair[0] < pair[1]:
                raise ValueError(f"{name}: bounds[{key!r}] must be (low, high), finite, low < high, got {pair!r}")

    @abstractmethod
    def sample(self) -> np.ndarray:
        """Sampled inputs of all lanes (B, N)."""

    @abstractmethod
    def indices(
        self, study: Reading, output: Callable[[Solution], Any] = state, units: Mapping[str, str] | None = None
    ) -> Indices:
        """Computes the indices from a finished study of this plan's design.

        Args:
            study: a `Study`.
            output: ``output(solution) -> pytree`` of numbers, computed with jax from the `Solution` of one lane as the
                study has saved it; by default {"q": ..., "v": ...} at t1.
            units: units of outputs and inputs by name, such as {"y": "m", "args.g": "m/s^2"}; the units of "q", "v",
                "q0", "v0", e and times are known from the problem.

        Raises:
            ValueError: the study has another design, ``units`` names no output or input, or too many lanes failed.
                RuntimeError: the study has not been run to its end.
        """

    def design(self) -> Design:
        """The design to give to `Study`."""
        columns = dict(zip(self.bounds, self.sample().T, strict=True))
        return Design("points", columns, f"{type(self).__name__}, seed {self.seed}")

    def _solution(self, study: Reading) -> Solution:
        """The study's solution; raises if the study has another design."""
        check_kind("study", study, Reading, "a jaximpact.Study")
        mine, found = self.design().values, study.design.values
        if (
            study.design.kind != "points"
            or [*mine] != [*found]
            or not all(np.array_equal(mine[k], found[k]) for k in mine)
        ):
            raise ValueError(f"study: {study.path} has another design than this plan makes: give it plan.design()")
        return study.solution()

    def _salib(self) -> dict:
        bounds = [[float(x) for x in pair] for pair in self.bounds.values()]
        return {"num_vars": len(bounds), "names": list(self.bounds), "bounds": bounds}

    def _names_and_units(self, outputs: tuple[str, ...], naming: Labels, units: Mapping[str, str] | None) -> dict:
        """Names and units of outputs and inputs, as fields of `Indices`."""
        inputs = tuple(_name(Key.of(text), naming) for text in self.bounds)
        strange = sorted({*(units or {})} - {*outputs, *inputs})
        if strange:
            raise ValueError(f"units: {strange[0]!r} is none of {', '.join((*outputs, *inputs))}")
        known = {name: unit_of(name, naming) for name in (*outputs, *inputs)} | dict(units or {})
        found = {
            f"{kind}_units": tuple(known[name] for name in names)
            for kind, names in (("output", outputs), ("input", inputs))
        }
        return {"outputs": outputs, "inputs": inputs} | found

    def _outputs(self, study: Reading, output: Callable) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
        """Names of the outputs, their values (B, n), and the statuses of the lanes (B,)."""
        solution = self._solution(study)
        if not callable(output):
            raise TypeError("output must be a function output(solution) -> pytree of arrays")
        with named_errors("output(solution)"):
            value = jax.vmap(output)(solution)
        names, y = components(jax.tree.map(np.asarray, value), 1, solution.naming)
        status = np.array(solution.status)
        lost = ~np.all(np.isfinite(y), axis=1) & ((status & int(FAILURES)) == 0)
        return names, np.asarray(y, np.float64), status | np.where(lost, int(Status.NON_FINITE), 0)

    def _by_blocks(
        self, study: Reading, output: Callable, units: Mapping[str, str] | None, size: int, analyse: Callable
    ) -> dict:
        """Applies ``analyse(y, kept)`` to each output: its values y in the lanes that are used,
        and the mask ``kept`` (B,) of these lanes.

        Lanes are used in blocks of ``size``; a block with a failed lane is left out. Returns fields of `Indices` by
        name, and as "found" the results of ``analyse``, stacked over the outputs.
        """
        names, y, status = self._outputs(study, output)
        named = self._names_and_units(names, study.problem.naming, units)
        bad = (status & int(FAILURES)) != 0
        kept = ~bad.reshape(-1, size).any(axis=1)
        self._enough(kept, status[bad], "failed")
        lanes = np.repeat(kept, size)
        remarks = []
        if not kept.all():
            remarks.append(
                f"{np.sum(~kept)} of {len(kept)} blocks are left out, for a lane of each failed: the indices are those "
                "of the rest"
            )
        varies = np.ptp(y[lanes], axis=0) > CONSTANT * np.max(np.abs(y[lanes]), axis=0)
        still = [name for name, some in zip(names, varies, strict=True) if not some]
        remarks += [f"{', '.join(still)}: does not vary, and has no indices"] if still else []
        nothing = None
        found = []
        for k in range(len(names)):
            found.append(analyse(y[lanes, k], lanes) if varies[k] else nothing)
        like = next((x for x in found if x is not None), None)
        if like is None:
            raise ValueError("output: none of the outputs varies over the study")
        empty = {key: np.full_like(x, np.nan) for key, x in like.items()}
        stacked = {key: np.stack([(x or empty)[key] for x in found]) for key in like}
        return {
            **named,
            "variance": y[lanes].var(axis=0),
            "blocks": len(kept),
            "used": int(kept.sum()),
            "causes": causes(status[bad]),
            "remarks": tuple(remarks),
            "found": stacked,
        }

    def _enough(self, kept: np.ndarray, status: np.ndarray, why: str) -> None:
        if kept.sum() < FEWEST:
            words = ", ".join(f"{count} {name}" for name, count in causes(status).items())
            raise ValueError(
                f"study: {kept.sum()} of {len(kept)} blocks of lanes are left, as lanes {why} ({words}): narrow the "
                "bounds"
            )


@dataclass(frozen=True)
class Sobol(Plan):
    """Sobol' indices, shares of the output's variance: S1 of one input alone, ST including all its interactions;
    needs SALib.

    ``count`` is a power of two. For N inputs there are count (N + 2) lanes or, with ``second``, which adds indices of
    pairs of inputs, count (2 N + 2).

    References: I. M. Sobol', Math. Comput. Simulation 55 (2001) 271-280; estimators of A. Saltelli et al., Comput.
    Phys. Comm. 181 (2010) 259-270, table 2 (b) and (f), in SALib.
    """

    second: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.count & (self.count - 1):
            raise ValueError(
                f"Sobol: count must be a power of two, got {self.count}: {2 ** self.count.bit_length()} say"
            )

    def sample(self) -> np.ndarray:
        salib("sample.sobol")
        from SALib.sample import sobol

        return np.asarray(sobol.sample(self._salib(), self.count, calc_second_order=self.second, seed=self.seed))

    def indices(
        self, study: Reading, output: Callable[[Solution], Any] = state, units: Mapping[str, str] | None = None
    ) -> Indices:
        salib("analyze.sobol")
        from SALib.analyze import sobol

        def analyse(y: np.ndarray, _: np.ndarray) -> dict[str, np.ndarray]:
            # SALib takes seed 0 for none
            found = sobol.analyze(self._salib(), y, self.second, RESAMPLES, LEVEL, seed=self.seed + 1)
            return {key: np.asarray(found[key]) for key in found if not key.endswith("all")}

        size = (2 if self.second else 1) * len(self.bounds) + 2
        about = self._by_blocks(study, output, units, size, analyse)
        found = about.pop("found")
        meaning = {"S1": "S1, of the input alone", "ST": "ST, with interactions"}
        index = {kind: found[kind] for kind in meaning}
        confidence = {kind: found[f"{kind}_conf"] for kind in meaning}
        return Indices(
            "Sobol' indices",
            index=index,
            confidence=confidence,
            meaning=meaning,
            shown=("S1", "ST"),
            second=found.get("S2"),
            **about,
        )


@dataclass(frozen=True)
class Morris(Plan):
    """Elementary effects (Morris): output changes over the whole range of one input, for screening many inputs;
    needs SALib.

    ``count`` is the number of trajectories through the space of inputs; for N inputs there are count (N + 1) lanes.
    ``levels``: how many values each input takes, an even number.

    References: M. D. Morris, Technometrics 33 (1991) 161-174; mu* of F. Campolongo, J. Cariboni, A. Saltelli, Environ.
    Model. Softw. 22 (2007) 1509-1518.
    """

    levels: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_whole(self.levels, 2) or self.levels % 2:
            raise ValueError(f"Morris: levels must be an even number, got {self.levels!r}")

    def sample(self) -> np.ndarray:
        salib("sample.morris")
        from SALib.sample import morris

        return np.asarray(morris.sample(self._salib(), self.count, num_levels=self.levels, seed=self.seed))

    def indices(
        self, study: Reading, output: Callable[[Solution], Any] = state, units: Mapping[str, str] | None = None
    ) -> Indices:
        salib("analyze.morris")
        from SALib.analyze import morris

        sample = self.sample()

        def analyse(y: np.ndarray, lanes: np.ndarray) -> dict[str, np.ndarray]:
            options: dict = {
                "num_resamples": RESAMPLES,
                "conf_level": LEVEL,
                "num_levels": self.levels,
                "seed": self.seed + 1,
            }
            found = morris.analyze(self._salib(), sample[lanes], y, **options)
            return {key: np.asarray(found[key], float) for key in ("mu", "mu_star", "sigma", "mu_star_conf")}

        about = self._by_blocks(study, output, units, len(self.bounds) + 1, analyse)
        found, used = about.pop("found"), about["used"]
        meaning = {
            "mu": "mu, mean effect",
            "sigma": "sigma, spread of the effects: interactions and curvature",
            "mu_star": "mu*, mean size of the effects",
        }
        # of a mean, and of a standard deviation of normal effects
        wide = norm.ppf(0.5 + LEVEL / 2) * found["sigma"]
        confidence = {
            "mu": wide / np.sqrt(used),
            "sigma": wide / np.sqrt(2 * (used - 1)),
            "mu_star": found["mu_star_conf"],
        }
        index = {kind: found[kind] for kind in meaning}
        return Indices(
            "elementary effects",
            index=index,
            confidence=confidence,
            meaning=meaning,
            shown=("sigma", "mu_star"),
            second=None,
            **about,
        )


@dataclass(frozen=True)
class DGSM(Plan):
    """Derivative-based indices nu = E[(dy/dp)^2], from Jacobians that are right across impacts,
    and the upper bounds on ST that follow.

    ``count``, a power of two, is the number of lanes, points of a scrambled Sobol' sequence. For y without jumps over
    the bounds, ST <= nu (high - low)^2 / (pi^2 Var y) (I. M. Sobol', S. Kucherenko, Math. Comput. Simulation 79 (2009)
    3009-3017, theorem 2). For y with jumps the bound does not hold: a velocity at a fixed time, for instance, jumps
    where an input moves an impact across that time.
    """

    shown: ClassVar = ("bound",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.count & (self.count - 1):
            raise ValueError(
                f"DGSM: count must be a power of two, got {self.count}: {2 ** self.count.bit_length()} say"
            )
        if any(Key.of(key).root == "h" for key in self.bounds):
            raise ValueError("DGSM: there is no derivative by h; leave it out of the bounds")

    def sample(self) -> np.ndarray:
        unit = qmc.Sobol(len(self.bounds), rng=self.seed).random(self.count)
        low, high = np.array(list(self.bounds.values()), float).T
        return low + (high - low) * unit

    def indices(
        self, study: Reading, output: Callable[[Solution], Any] = state, units: Mapping[str, str] | None = None
    ) -> Indices:
        status = np.array(self._solution(study).status)
        begun = (status & int(FAILURES)) == 0
        self._enough(begun, status[~begun], "failed")
        names, y, jacobian, found = self._jacobians(study, begun, output)
        status[begun] |= found
        trusted = (found & int(FAILURES | DOUBTS)) == 0
        kept = begun.copy()
        kept[begun] = trusted
        self._enough(kept, status[~kept], "failed or have no derivative that is to be trusted")
        y, jacobian = y[trusted], jacobian[trusted]
        width = np.array([high - low for low, high in self.bounds.values()])
        random = np.random.default_rng(self.seed + 1)
        draws = random.integers(len(y), size=(RESAMPLES, len(y)))
        index = dgsm(y, jacobian, width)
        spread = [dgsm(y[some], jacobian[some], width) for some in draws]
        z = norm.ppf(0.5 + LEVEL / 2)
        confidence = {kind: z * np.std([x[kind] for x in spread], axis=0, ddof=1) for kind in index}
        # ST of all inputs add up to 1 at least
        total = np.sum(index["bound"], axis=1) + np.sum(confidence["bound"], axis=1)
        jumps = [name for name, x in zip(names, total, strict=True) if x < 1]
        remarks = (
            [f"{np.sum(~kept)} of {len(kept)} lanes are left out, failed or without a derivative to be trusted"]
            if not kept.all()
            else []
        )
        if Status.DERIVATIVE_AT_END.name in causes(status[~kept]):
            remarks.append(
                "an impact passes t0 or t1 within the bounds: velocities jump there, and these are no bounds of their "
                "ST"
            )
        remarks += (
            [
                f"{', '.join(jumps)}: varies more than its derivatives allow: it jumps within the bounds, and these "
                "are no bounds of ST"
            ]
            if jumps
            else []
        )
        meaning = {"nu": "nu, mean square of the derivative", "bound": "upper bound of ST"}
        return Indices(
            "derivative-based indices", index=index, confidence=confidence, meaning=meaning, shown=self.shown,
            second=None,
            variance=y.var(axis=0), blocks=len(kept), used=int(kept.sum()), causes=causes(status[~kept]),
            remarks=tuple(remarks), **self._names_and_units(names, study.problem.naming, units),
        )  # fmt: skip

    def _jacobians(
        self, study: Reading, which: np.ndarray, output: Callable
    ) -> tuple[tuple[str, ...], np.ndarray, np.ndarray, np.ndarray]:
        """Returns, for the B lanes in the mask ``which``: output names, outputs (B, n),
        derivatives by the inputs (B, n, N), statuses (B,)."""
        keys = [Key.of(text) for text in self.bounds]
        wrt = tuple(dict.fromkeys(key.root for key in keys))
        with study.settings():
            found = sensitivities(study.problem, **study.arguments(which), wrt=wrt, output=output, progress=False)
        names, y = components(found.value, 1, study.problem.naming)
        _, _, _, _, jacobian = found._flat()
        inputs, _ = components(found.inputs, 1, UNNAMED)
        places = [inputs.index(_text(key)) for key in keys]
        return names, y, jacobian[:, :, places], np.asarray(found.status)


def dgsm(y: np.ndarray, jacobian: np.ndarray, width: np.ndarray) -> dict[str, np.ndarray]:
    """nu and the upper bound on ST, (n, N), from outputs (B, n) and Jacobians (B, n, N); ``width`` (N,):
    high - low of each input."""
    nu, variance = np.mean(jacobian**2, axis=0), y.var(axis=0)[:, None]
    varies = variance > (CONSTANT * np.max(np.abs(y), axis=0)[:, None]) ** 2
    return {"nu": nu, "bound": nu * width**2 / (np.pi**2 * np.where(varies, variance, np.nan))}


def causes(status: np.ndarray) -> dict[str, int]:
    """Number of lanes by name of each failure or doubt about derivatives in ``status`` (B,);
    names that no lane has are left out."""
    against = [bit for bit in Status if bit & (FAILURES | DOUBTS)]
    counts = {str(bit.name): int(np.sum((status & int(bit)) != 0)) for bit in against}
    return {name: count for name, count in counts.items() if count}


def salib(module: str) -> None:
    """Imports a module of SALib and silences the warnings of the import;
    ImportError that says how to install it if it is missing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_optional(f"SALib.{module}", "Sobol and Morris")


def _name(key: Key, naming: Labels) -> str:
    """Name of a varied quantity, with the coordinate's name if the problem has one: "q0[0]" is q0[y]."""
    names = naming.coordinates
    if names is None or key.root not in ("q0", "v0") or key.component is None:
        return key.text
    return f"{key.root}[{names[key.component[-1]]}]"


def _text(key: Key) -> str:
    index = "" if key.component is None else f"[{','.join(map(str, key.component))}]"
    return ".".join((key.root, *key.path)) + index
