"""Some rows of a function and their Jacobian are those of the whole function,
or it says that they cannot be told apart."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaximpact.jaxtools.row_structure import RowsOf
from jaximpact.jaxtools.row_walk import Unstructured
from support.breadth import slow_but

N = 7
FIRST, SECOND = np.triu_indices(N, 1)
TREE = np.array([[0, 1, 2], [3, 4, 5], [6, 0, 3], [2, 2, 1]])  # bodies of which a row is made, one twice
WALLS = np.array([[1.0, 0.0, -1.0], [0.0, 1.0, -2.0]])
MATRIX = np.random.default_rng(0).normal(size=(5, 4, 2 * N))


def distances(q):
    centre = q.reshape(-1, 2)
    return jnp.linalg.norm(centre[FIRST] - centre[SECOND], axis=1) - 0.1


FUNCTIONS = {
    "pairs": distances,
    "pairs and walls": lambda q: jnp.concatenate([distances(q), q - 0.1, 1.0 - q[::-1], q[2:9:3] ** 2]),
    "triples": lambda q: jnp.sum(jnp.sin(q.reshape(-1, 2))[TREE] ** 2 * jnp.arange(1.0, 4)[None, :, None], axis=(1, 2)),
    "selections": lambda q: jnp.where(q[:-1] > 0, jnp.exp(q[:-1]) * q[1:], jnp.maximum(q[1:], 0.3) / (1 + q[:-1] ** 2)),
    "columns": lambda q: (q.reshape(2, -1).T @ jnp.array([2.0, -1.0])) + q[:7] * q[7:],
    "constant matrices": lambda q: jnp.tanh(q.reshape(-1, 2)).T[0] * jnp.arange(1.0, N + 1),
    "split": lambda q: jnp.multiply(*jnp.split(q, 2)),
    "one coordinate": lambda q: q[3] - jnp.arange(6.0),
    "walls as a matrix": lambda q: jnp.concatenate([(q.reshape(-1, 2) - 0.1).ravel(),
    ((1 - q * q).reshape(2, -1).T @ WALLS).ravel()]),
    "pairs of a matrix": lambda q: jnp.sum((q.reshape(-1, 2)[:, None] - q.reshape(-1, 2)[None]) ** 2, -1)[FIRST,
    SECOND],
    "pairs by vmap": lambda q: jax.vmap(lambda i, j: jnp.linalg.norm(q.reshape(-1, 2)[i] - q.reshape(-1, 2)[j]))(FIRST,
    SECOND), "scalar products": lambda q: jax.vmap(jnp.dot)(q.reshape(-1, 2)[FIRST], jnp.sin(q).reshape(-1, 2)[SECOND]),
    "products of all": lambda q: jnp.einsum("ik,jk->ij", q.reshape(-1, 2), q.reshape(-1, 2))[FIRST, SECOND],
    "turned and repeated": lambda q: jnp.tile((q**3)[::-1], 2) * jnp.repeat(jnp.cos(q), 2) - jnp.roll(jnp.tile(q, 2),
    3), "beside one column": lambda q: ((q**2).reshape(-1, 2)[:, 1:] * jnp.sin(q).reshape(-1, 2)).ravel(),
    "single numbers": lambda q: jnp.stack([q[0] * q[1], jnp.sin(q[2]) - q[0], q[5] + 2 * q[6]]),
    "boxes": lambda q: jax.vmap(lambda x: jnp.stack([x[0] - 0.1, 1 - x[0] * x[1]]))(q.reshape(-1, 2)).ravel(),
    "blocks of a table": lambda q: jnp.swapaxes((q[:12] ** 2).reshape(2, 3, 2), 0, 1)[:, ::-1].reshape(6, 2).sum(1),
}  # fmt: skip
WHOLE = {
    "sums of all": lambda q: jnp.cumsum(q),
    "a mean": lambda q: q - jnp.mean(q),
    "sorted": lambda q: jnp.sort(q),
    "products": lambda q: MATRIX[0] @ q,
    "places that move": lambda q: q[jnp.argsort(q)],
    "many single numbers": lambda q: jnp.stack([jnp.sin(q[i % 14]) for i in range(17)]),
}


@pytest.fixture(scope="module")
def q():
    return jnp.asarray(np.random.default_rng(1).uniform(-1, 1, 2 * N))


@pytest.mark.parametrize(
    "name",
    slow_but(
        FUNCTIONS.keys() - {"pairs", "triples", "walls as a matrix", "pairs by vmap", "beside one column"}, FUNCTIONS
    ),
)
def test_rows_are_those_of_the_whole(name, q):
    function = FUNCTIONS[name]
    (m,) = jax.eval_shape(function, q).shape
    rows = jnp.asarray(np.random.default_rng(2).integers(0, m, 6))
    change = jnp.linspace(-1, 1, 6)

    @jax.jit
    def of_rows(q):
        found = RowsOf.at(function, q, rows)
        return found.values, found.jacobian(), found.pull(change), found.by_entry(q, q)

    matrix, whole = (np.asarray(jax.jit(f)(q))[rows] for f in (jax.jacobian(function), function))
    values, jacobian, pulled, sizes = of_rows(q)
    # a few roundings of numbers of order 1
    np.testing.assert_allclose(values, whole, rtol=1e-14)
    np.testing.assert_allclose(jacobian, matrix, rtol=1e-13, atol=1e-15)
    size, here, again = sizes
    np.testing.assert_allclose(np.sum(size * here * again, axis=0), np.abs(matrix) @ q**2, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(pulled, change @ matrix, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", WHOLE)
def test_what_hangs_together_is_refused(name, q):
    with pytest.raises(Unstructured):
        RowsOf.at(WHOLE[name], q, jnp.array([0, 2]))


def test_rows_and_places_may_be_traced_and_differentiated(q):
    """Derivatives of the Jacobian, by q and by what the function closes over."""
    radius = jnp.linspace(0.1, 0.7, N)

    def picked(q, radius, rows):
        pairs = lambda q: distances(q) * (radius[FIRST] + radius[SECOND])
        return RowsOf.at(pairs, q, rows).jacobian()

    def whole(q, radius, rows):
        return jax.jacobian(lambda q: distances(q) * (radius[FIRST] + radius[SECOND]))(q)[rows]

    rows = jnp.array([3, 0, 17])
    for argument in (0, 1):
        found, expected = (jax.jit(jax.jacfwd(f, argument))(q, radius, rows) for f in (picked, whole))
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


def test_an_infinite_derivative_stays_in_its_place(q):
    function = lambda q: jnp.concatenate([jnp.sqrt(q[:3]), q[3:]])
    found = jax.jit(lambda q: RowsOf.at(function, q, jnp.array([0, 5])).jacobian())(q.at[0].set(0.0))
    np.testing.assert_array_equal(found, np.where(np.arange(14) == [[0], [5]], [[np.inf], [1.0]], 0))


def _random_change(x, q, draw):
    """Moves, joins, repeats, picks, multiplies or sums entries of x."""
    axis, n = int(draw.integers(x.ndim)), int(draw.integers(1, 6))
    whole, some = (slice(None),) * axis, draw.integers(0, x.shape[axis], n)
    wide = x.reshape(x.shape[0], -1)
    size = int(draw.choice([k for k in range(1, x.size + 1) if x.size % k == 0]))
    made = (
        lambda: x.reshape(size, -1),
        lambda: x.transpose(draw.permutation(x.ndim)),
        lambda: x[(*whole, slice(int(draw.integers(x.shape[axis])), None, 2))],
        lambda: jnp.flip(x, axis),
        lambda: jnp.sum(x * x, axis=axis) if x.ndim > 1 else x,
        lambda: jnp.concatenate([x, jnp.sin(x)], axis=axis),
        lambda: jnp.stack([x, x * x + 1], axis=axis),
        lambda: jnp.tile(x, draw.integers(1, 3, x.ndim)),
        lambda: jnp.repeat(x, 2, axis=axis),
        lambda: x[(*whole, some)],
        lambda: wide[draw.integers(0, wide.shape[0], n), draw.integers(0, wide.shape[1], n)],
        lambda: wide[:, -1:] * wide - jnp.exp(-(wide[:1] ** 2)),
        lambda: wide @ draw.normal(size=(wide.shape[1], 3)),
        lambda: jnp.einsum("ij,ij->i", wide, jnp.sin(wide)),
        lambda: jnp.einsum("ij,kj->ik", wide, jnp.cos(wide)),
        lambda: jnp.where(x > 0.2, x, jnp.roll(x, 1, axis=0) * q[0]),
    )
    found = made[int(draw.integers(len(made)))]()
    return found if found.size < 300 else found.ravel()[:50]


def _random_function(seed):
    """Returns a function (d,) -> (m,) of operations drawn at random."""

    def function(q):
        draw = np.random.default_rng(seed)
        x, before = q, q
        for _ in range(draw.integers(2, 9)):
            before, x = (x, _random_change(x if draw.random() < 0.7 else before, q, draw))
        return x.ravel()

    return function


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 100, 20))
def test_rows_of_random_functions_are_those_of_the_whole(first):
    told = 0
    for seed in range(first, first + 20):
        draw = np.random.default_rng(seed)
        q = jnp.asarray(draw.normal(size=draw.integers(4, 13)))
        function = _random_function(seed)
        whole, matrix = np.asarray(function(q)), np.asarray(jax.jacobian(function)(q))
        rows = draw.integers(0, len(whole), 5)
        try:
            found = RowsOf.at(function, q, jnp.asarray(rows))
        except Unstructured:
            told += 1
            continue
        near = 1e-13 * (1 + np.abs(whole).max() + np.abs(matrix).max())  # some hundred roundings
        np.testing.assert_allclose(found.values, whole[rows], atol=near, err_msg=str(seed))
        np.testing.assert_allclose(found.jacobian(), matrix[rows], atol=near, err_msg=str(seed))
    assert told < 10
