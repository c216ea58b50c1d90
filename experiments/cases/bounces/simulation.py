"""Contact times of many bouncing balls from one ensemble of the Paoli-Schatzman scheme."""

import jax.numpy as jnp
import numpy as np

import jaximpact as ji

GRAVITY = 9.81  # [m/s^2]
ROWS = 512  # saved rows of a trajectory: 10 for a flight of 0.1 s in 5 s, the shortest that is recorded
FLAT = 1e-7  # rows that differ by less [horizon] show one contact: round-off is far below, a flight far above
SHORTEST = 3.5  # rows of a usable flight: a level needs 2 equal ones, and those beside a contact may be off


def next_contact(t, q, v, args):
    """When the present flight reaches the floor: v belongs to the middle of the step that ends at t."""
    g = args["g"]
    v = v[0] - 0.5 * args["h"] * g
    return t + (v + jnp.sqrt(jnp.maximum(v**2 + 2 * g * q[0], 0))) / g


def simulate(e: np.ndarray, height: np.ndarray, horizon: np.ndarray, steps: tuple[int, ...]) -> np.ndarray:
    """Contact times [s] since the first contact for each number of steps: shape (len(steps), *e.shape, contacts).

    NaN after the last usable contact. e, height [m] and horizon [s] have one shape. Time runs in units of the horizon,
    so that all lanes make the same number of steps. Trajectories are not stored: between two contacts the scheme's
    positions lie on a parabola exactly, so the time of the *next* contact, saved ROWS times, is a staircase whose
    levels are the contact times.
    """
    ball = ji.Problem(lambda t, q, v, args: -args["g"] * jnp.ones_like(q), lambda t, q, args: q)
    found = []
    for count in steps:
        solution = ji.ensemble(
            ball,
            height.reshape(-1, 1),
            np.zeros((height.size, 1)),
            t1=1.0,
            h=1 / count,
            e=e.ravel(),
            args={"g": GRAVITY * horizon.ravel() ** 2, "h": 1 / count},
            args_axes={"g": 0, "h": None},
            scheme=ji.PaoliSchatzman(),
            save=ji.Save(every=count // ROWS, function=next_contact),
        ).raise_if_failed()
        contacts = levels(solution.values[:, 1:])  # row 0 is the start, where v is not yet that of a step
        found.append((contacts - contacts[:, :1]).reshape(*e.shape, -1) * horizon[..., None])
    shared = min(contacts.shape[-1] for contacts in found)
    return np.stack([contacts[..., :shared] for contacts in found])


def levels(staircase: np.ndarray) -> np.ndarray:
    """Levels of each row of a staircase sampled at 1/ROWS, 2/ROWS, ..., 1; NaN after the last flight long enough."""
    same = np.abs(np.diff(staircase, axis=1)) < FLAT
    starts = same & ~np.pad(same, ((0, 0), (1, 0)))[:, :-1]
    lane, column = np.nonzero(starts)
    position = np.cumsum(starts, axis=1)[lane, column] - 1
    found = np.full((len(staircase), position.max(initial=0) + 1), np.nan)
    found[lane, position] = staircase[lane, column]
    found[:, 1:][~np.logical_and.accumulate(np.diff(found, axis=1) > SHORTEST / ROWS, axis=1)] = np.nan
    return found


def to_zero(values: np.ndarray, steps: tuple[int, ...]) -> np.ndarray:
    """Values (len(steps), ...) at h ~ 1/steps extrapolated linearly to h = 0, weights 1/h^2: their scatter is O(h)."""
    n = np.array(steps)
    design = np.stack([n, np.ones_like(n)], axis=1)  # a + b h, divided by h
    return np.tensordot(np.linalg.pinv(design)[0] * n, values, axes=1)
