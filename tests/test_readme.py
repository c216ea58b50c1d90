"""The README's Python runs as printed, in order, and gives what it says."""

import contextlib
import re
from pathlib import Path

import jax
import numpy as np
import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


class Names(dict):
    """What the blocks that have run define."""

    def __init__(self):
        super().__init__()
        self.done = set()

    def after(self, *blocks: int):
        """These names, with the blocks run that have not been."""
        for i in sorted({*blocks} - self.done):
            exec(compile(BLOCKS[i], str(README), "exec"), self)
            self.done.add(i)
        return self


# numbers of the blocks
FIVE_LINES, PENDULUM, ENSEMBLE, STUDY, GRADIENT, SENSITIVITIES, ORBITS, CONVERGENCE = range(8)


@pytest.fixture(scope="module")
def namespace(tmp_path_factory):
    """The examples are for a user's jax, not for the strict one of the tests, and write into the current folder."""
    settings = {name: getattr(jax.config, name) for name in ("jax_numpy_rank_promotion", "jax_numpy_dtype_promotion")}
    jax.config.update("jax_numpy_rank_promotion", "allow")
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    with contextlib.chdir(tmp_path_factory.mktemp("readme")):
        yield Names()
    for name, value in settings.items():
        jax.config.update(name, value)


def test_five_lines(namespace):
    """Besides the imports, a problem is set up, stated, solved and printed in five lines at most."""
    lines = [line for line in BLOCKS[0].splitlines() if line.strip() and not line.startswith("import")]
    assert len(lines) <= 5
    solution = namespace.after(FIVE_LINES)["solution"]
    assert solution.q.shape == (3001, 1)
    # momentum: sum of impulses = v(T) + g T, less half a step of the velocity's age
    assert float(solution.impulse[-1, 0]) == pytest.approx(float(solution.v[-1, 0]) + 9.81 * 3.0, abs=9.81e-3)


def test_pendulum(namespace):
    motion = namespace.after(FIVE_LINES, PENDULUM)["motion"]
    assert int(motion.status) == 0
    assert float(motion.impulse[-1, 0]) > 0.1  # it hits the wall
    # energy: kept in flight up to O(h), lost at impacts
    assert float(motion.energy[-1]) < float(motion.energy[0]) - 0.1


def test_ensemble(namespace):
    namespace.after(FIVE_LINES, ENSEMBLE)
    assert namespace["batch"].q.shape == (303, 3, 1)
    assert not np.any(namespace["batch"].failed)


@pytest.mark.slow
def test_study(namespace):
    namespace.after(FIVE_LINES, ENSEMBLE, STUDY)
    dataset = namespace["study"].dataset()
    assert dataset.q.dims == ("e", "frequency", "time", "coordinate")
    assert not np.any(np.isnan(dataset.q)) and namespace["study"].failed() == []


@pytest.mark.slow
def test_derivatives(namespace, capsys):
    namespace.after(FIVE_LINES, PENDULUM, GRADIENT)
    # y = y0 - 1.3 t - g t^2/2 meets 0.05: dv/dy0 = (1 + e) g/|v|, up to O(h)
    assert float(capsys.readouterr().out.split()[-1]) == pytest.approx(3.698792, abs=1e-2)
    namespace.after(SENSITIVITIES)  # asserts itself


@pytest.mark.slow
def test_orbits(namespace):
    """Determinant of the monodromy matrix of an orbit with one impact a period: e^2 exp(-damping T)."""
    namespace.after(FIVE_LINES, ORBITS)
    orbit, (event, *_) = namespace["orbit"], namespace["branch"].events
    assert np.prod(orbit.multipliers) == pytest.approx(0.64 * np.exp(-0.1 * 2 * np.pi / 2.2), abs=1e-6)
    assert event.kind == "period doubling" and 2.3 < event.parameter < 2.6
    # where the branch has lost its stability motions do not go there
    before, behind = namespace["diagram"].periods().ravel()
    assert before == 1 and behind != 1


@pytest.mark.slow
def test_convergence(namespace):
    namespace.after(FIVE_LINES, CONVERGENCE)
    # six step counts, one phase each: 0.02 of scatter in this stable motion
    assert namespace["result"].orders()["position"] == pytest.approx(1.0, abs=0.1)
