"""`save=Events(impacts=k)`: times, places and velocities of impacts, with the derivatives of the motion.

Closed forms hold to the tolerance of the scheme, 1e-9; motions of these tests are polynomials between impacts, so that
all is exact to rounding.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from support.breadth import slow

EXACT = {"rtol": 1e-11, "atol": 1e-11}  # rounding of some dozens of operations, of numbers up to 10
SCHEME = ji.EventDriven()
BALL = ji.Problem(lambda t, q, v, args: jnp.full_like(q, -args["g"]), lambda t, q, args: q)
AT = (1.3, 0.8, 9.81)  # drop height, restitution, gravity: four impacts before t = 2.6
COUNT, KEPT = 4, 6


def dropped(height, e, g, **options):
    """Of a ball dropped at rest from a height."""
    options = {"t1": 2.6, "scheme": SCHEME, "save": ji.Events(impacts=KEPT)} | options
    return ji.solve(BALL, jnp.reshape(height, 1), jnp.zeros(1), e=e, args={"g": g}, **options).events


def times(height, e, g):
    """Of its impacts: the fall, and flights of e, e^2, ... times twice that."""
    flights = jnp.stack([jnp.ones_like(e), *(2 * e**k for k in range(1, COUNT))])
    return jnp.sqrt(2 * height / g) * jnp.cumsum(flights)


def numbers(found):
    """Real numbers of those that happened, in one array."""
    some = slice(COUNT)
    parts = (found.t[some], found.q[some], found.before[some], found.after[some], found.impulse[some])
    return jnp.concatenate([x.ravel() for x in parts])


def expected(height, e, g):
    before = -jnp.sqrt(2 * g * height) * e ** jnp.arange(COUNT, dtype=float)
    return jnp.concatenate([times(height, e, g), 0 * before, before, -e * before, -(1 + e) * before])


def test_ball_has_the_exact_impacts_and_their_derivatives():
    both = lambda *x: (numbers(found := dropped(*x)), found)
    jacobian, found = jax.jit(jax.jacfwd(both, (0, 1, 2), has_aux=True))(*AT)
    at = tuple(map(jnp.asarray, AT))
    np.testing.assert_allclose(jax.jit(numbers)(found), jax.jit(expected)(*at), **EXACT)
    assert found.count == COUNT
    assert found.contact.tolist() == [0] * COUNT + [-1] * (KEPT - COUNT)
    np.testing.assert_allclose(jacobian, jax.jit(jax.jacfwd(expected, (0, 1, 2)))(*at), **EXACT)


def test_impacts_that_do_not_happen_have_no_time_and_no_derivative():
    found, change = jax.jvp(lambda e: dropped(AT[0], e, AT[2]), (AT[1],), (1.0,))
    late = slice(COUNT, None)
    for x, dx in zip(jax.tree.leaves(found)[:-1], jax.tree.leaves(change)[:-1], strict=True):
        if jnp.issubdtype(x.dtype, jnp.floating):
            assert np.all(np.isnan(x[late])) and np.all(np.isfinite(x[:COUNT]))
            np.testing.assert_array_equal(dx[late], 0)


@pytest.mark.slow
def test_the_gradient_of_a_sum_over_those_that_happen_is_finite():
    """What a fit asks for; and exact."""
    loss = lambda e: jnp.sum(jnp.where((found := dropped(AT[0], e, AT[2])).happened, found.t, 0) ** 2)
    exact = jax.grad(lambda e: jnp.sum(times(AT[0], e, AT[2]) ** 2))(AT[1])
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(AT[1]), exact, **EXACT)


@pytest.mark.slow
def test_impacts_beyond_those_kept_are_counted():
    found = dropped(*AT, save=ji.Events(impacts=2))
    np.testing.assert_allclose(found.t, times(*map(jnp.asarray, AT))[:2], **EXACT)
    assert found.count == COUNT


@pytest.mark.slow
def test_an_ensemble_has_those_of_each_motion():
    """Lanes of different numbers of impacts, one of none; rows beside them are those of `Save`."""
    heights = np.array([1.3, 0.4, 40.0])
    options = {"t1": 2.6, "e": 0.8, "args": {"g": 9.81}, "scheme": SCHEME}
    found = ji.ensemble(BALL, heights[:, None], [0.0], save=ji.Events(impacts=KEPT, times=[1.0, 2.0]), **options)
    rows = ji.ensemble(BALL, heights[:, None], [0.0], save=[1.0, 2.0], **options)
    np.testing.assert_allclose(found.q, rows.q, rtol=0, atol=1e-13)
    assert rows.events is None
    assert found.events.t.shape == (3, KEPT) and found.events.q.shape == (3, KEPT, 1)
    for lane, height in enumerate(heights):
        alone = dropped(height, 0.8, 9.81)
        for x, y in zip(jax.tree.leaves(found[lane].events), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("differentiated", [slow(True), False])
def test_contacts_are_told_apart(differentiated):
    """To and fro between walls at 0 and 1 without a force, e = 1/2 at the wall on the left alone."""
    problem = ji.Problem(lambda t, q, v, args: 0 * q, lambda t, q, args: jnp.concatenate([q, args - q]))

    def run(x):
        options = {"t1": 6.0, "scheme": SCHEME, "e": jnp.array([0.5, 1.0]), "args": x[1]}
        return ji.solve(problem, [0.25], x[:1], save=ji.Events(impacts=4), **options).events

    exact = lambda x: jnp.stack([(x[1] - 0.25), (2 * x[1] - 0.25), (4 * x[1] - 0.25), (6 * x[1] - 0.25)]) / x[0]
    x = jnp.array([1.0, 1.0])
    found = run(x)
    assert found.contact.tolist() == [1, 0, 1, 0]
    np.testing.assert_allclose(found.t, exact(x), **EXACT)
    np.testing.assert_allclose(found.impulse, [2, 1.5, 1, 0.75], **EXACT)
    if differentiated:
        np.testing.assert_allclose(jax.jacfwd(lambda x: run(x).t)(x), jax.jacfwd(exact)(x), **EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("coupled", [False, True])
def test_impacts_at_once_are_entries_of_their_own(coupled):
    """Two balls dropped from one height, or one point that falls into a corner of 60 degrees: contacts in order,
    at one time."""
    normals = jnp.array([[0.5, np.sqrt(0.75)], [-0.5, np.sqrt(0.75)]]) if coupled else jnp.eye(2)
    force = lambda t, q, v, args: jnp.array([0.0 if coupled else -1.0, -1.0])
    problem = ji.Problem(force, lambda t, q, args: normals @ q)
    found = ji.solve(
        problem, [0.0 if coupled else 0.5, 0.5], [0.0, 0.0], t1=1.5, scheme=SCHEME, save=ji.Events(impacts=3)
    ).events
    assert found.contact.tolist() == [0, 1, -1] and found.count == 2
    np.testing.assert_allclose(found.t[:2], [1, 1], **EXACT)
    # inelastic: in the corner each normal takes half of the momentum, 1 / (2 sin 60)
    np.testing.assert_allclose(found.impulse[:2], 1 / np.sqrt(3) if coupled else 1, **EXACT)
    np.testing.assert_allclose(found.after[1], 0, **EXACT)


@pytest.mark.slow
def test_lasting_contact_is_one_impact_and_its_force_none():
    """A point slides on the floor after an inelastic impact, against an elastic wall, which is another impact."""
    force = lambda t, q, v, args: jnp.array([0.0, -2.0])
    problem = ji.Problem(force, lambda t, q, args: jnp.stack([q[1], 2.0 - q[0]]))
    options = {"e": jnp.array([0.0, 1.0]), "scheme": SCHEME}
    found = ji.solve(problem, [0.0, 1.0], [1.0, 0.0], t1=3.0, save=ji.Events(impacts=4), **options).events
    assert found.contact.tolist() == [0, 1, -1, -1]
    np.testing.assert_allclose(found.t[:2], [1, 2], **EXACT)
    np.testing.assert_allclose(found.impulse[:2], [2, 2], **EXACT)
    np.testing.assert_allclose(found.q[:2], [[1, 0], [2, 0]], **EXACT)
    np.testing.assert_allclose(found.after[:2], [[1, 0], [-1, 0]], **EXACT)


@pytest.mark.slow
def test_sensitivities_take_impacts_as_outputs():
    options = {"t1": 2.6, "e": 0.8, "args": {"g": 9.81}, "scheme": SCHEME, "save": ji.Events(impacts=KEPT)}
    found = ji.sensitivities(BALL, [1.3], [0.0], wrt="e", output=lambda solution: solution.events.t, **options)
    exact = jax.jacfwd(times, 1)(*map(jnp.asarray, AT))
    np.testing.assert_allclose(found.jacobian["e"][:COUNT], exact, **EXACT)


@pytest.mark.slow
def test_impacts_as_tables():
    found = ji.solve(BALL, [1.3], [0.0], t1=2.6, e=0.8, args={"g": 9.81}, scheme=SCHEME, save=ji.Events(impacts=KEPT))
    assert found.to_xarray().events_before.dims == ("impact", "coordinate")
    table = found.events.to_pandas()
    assert len(table) == COUNT and table["t"].tolist() == found.events.t[:COUNT].tolist()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scheme": None, "steps": 100}, "PaoliSchatzman does not locate .* scheme=EventDriven"),
        ({"save": ji.Events(impacts=0)}, "impacts"),
    ],
)
def test_what_cannot_be_is_said(options, words):
    for call, height in ((ji.solve, [1.3]), (ji.ensemble, [[1.3]])):
        with pytest.raises(ValueError, match=words):
            call(
                BALL, height, [0.0],
                **({"t1": 1.0, "args": {"g": 1.0}, "scheme": SCHEME, "save": ji.Events(impacts=2)} | options),
            )  # fmt: skip


def test_a_study_keeps_rows_only(tmp_path):
    with pytest.raises(ValueError, match=r"Events\(...\) is for solve"):
        ji.Study(tmp_path / "study", "bouncing-ball", ji.Design.grid(e=[0.5]), scheme=SCHEME, h=0.1, save=ji.Events())


@pytest.mark.parametrize("scheme", [ji.EventDriven(), ji.EventCorrected()], ids=["EventDriven", "EventCorrected"])
def test_a_contact_that_leaves_takes_no_part_in_an_impact_beside_it(scheme):
    """An end of a rod hits a floor while the other, half a thousandth of the tolerance above it, leaves: the impact
    throws that end back, and it hits a moment later. Taken as one impact, the rod would turn otherwise."""
    e, half = 0.5, 0.5
    rows, mass = np.array([[1.0, -half], [1.0, half]]), np.array([1.0, 1 / 12])
    gaps, speeds = np.array([1e-8, 5e-13]), np.array([-1.0, 1e-6])
    q0, v0 = np.linalg.solve(rows, gaps), np.linalg.solve(rows, speeds)
    q, v, hits = q0, v0, 0
    while np.any(rows @ v < 0):  # free flights, and one impact after the other
        times = np.where(rows @ v < 0, np.maximum(rows @ q, 0) / np.maximum(-(rows @ v), 1e-300), np.inf)
        k = np.argmin(times)
        q, response, hits = q + times[k] * v, rows[k] / mass, hits + 1
        v = v - (1 + e) * (rows[k] @ v) / (rows[k] @ response) * response
    assert hits >= 2
    rod = ji.Problem(lambda t, q, v, args: jnp.zeros(2), lambda t, q, args: rows @ q, mass, restitution=e)
    found = ji.solve(rod, q0, v0, t1=1e-3, steps=1, scheme=scheme, save="final")
    np.testing.assert_allclose(found.v[-1], v, rtol=1e-9)
