"""A mask leaves out slopes that are infinite or NaN, as JAX, which selects tangents, does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphax_lapl as gl
from graphax_lapl.program.covers import View
from graphax_lapl.program.selections import with_selections

ORDERS = ("auto", "forward", "reverse", "markowitz")
ROWS = np.random.default_rng(0).normal(size=(3, 4))
ZERO_ROW = np.where(np.arange(3)[:, None] == 1, 0.0, ROWS)
SOME = np.array([0.0, -1.0, 2.0, 0.5])
FULLY_MASKED = np.array([[1.0, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]])
WEIGHTS = np.random.default_rng(1).normal(size=(4, 5))
RANK_TWO = np.diag([1.0, 2.0, 0.0, 0.0])


def attention(x, there):
    return jax.nn.softmax(x @ x.T, where=there > 0) @ x


def norms(x):
    squares = (x * x).sum(1)
    return jnp.where(squares > 0, jnp.sqrt(squares), 0.0)


def directions(x):
    squares = (x * x).sum(1, keepdims=True)
    return jnp.where(squares > 0, x / jnp.sqrt(squares), 0.0)


def inverse_distances(x):
    squares = ((x[:, None] - x[None]) ** 2).sum(-1)
    return jnp.where(squares > 0, 1 / jnp.sqrt(squares), 0.0).sum()


def stable_logistic(x):
    small = jnp.exp(x) / (1 + jnp.exp(x))
    return jnp.where(x >= 0, 1 / (1 + jnp.exp(-x)), small)


CASES = {
    "softmax": (lambda x, m: jax.nn.softmax(x, where=m > 0), ROWS, FULLY_MASKED),
    "softmax masked by x": (
        lambda x: jax.nn.softmax(x, where=x > 0),
        np.where(np.arange(3)[:, None] == 1, -np.abs(ROWS), ROWS),
    ),
    "attention": (attention, ROWS, np.array([[1.0, 1, 0], [0, 0, 0], [1, 0, 1]])),
    "spence": (jax.scipy.special.spence, np.array([0.0, 0.3, 1.0, 2.0])),
    "two wheres": (lambda x: jnp.where(x > 0, jnp.log(jnp.where(x > 0, x, 1)), 0), SOME),
    "within a chain": (lambda x: jnp.sin(3 * jnp.where(x > 0, 2 * jnp.log(1.5 * x), 0)), SOME),
    "mean": (lambda x, n: jnp.where(n[:, None] > 0, x / n[:, None], 0), ROWS, np.arange(3.0)),
    "norms": (norms, ZERO_ROW),
    "sum of norms": (lambda x: norms(x).sum() ** 2, ZERO_ROW),
    "directions": (directions, ZERO_ROW),
    "slope behind the mask": (lambda x: 1 / jnp.where(x > 0, x, 0.0), SOME),
    "sum behind the mask": (lambda x: 1 / jnp.where(x > 0, x, 0.0)[:2].sum(), SOME),
    "overflow": (stable_logistic, np.array([0.0, -1000, 2, 1000])),
    "between products": (
        lambda x: jnp.tanh(jnp.where(x @ WEIGHTS > 0, jnp.sqrt(x @ WEIGHTS), 0)) @ WEIGHTS.T,
        np.zeros(4),
    ),
    "one mask for all": (lambda x: jnp.where(x.sum() > 0, jnp.log(x.sum()) * x, 0), np.zeros(4)),
    "number": (lambda x: jnp.where((x == 0).any(), 0, jnp.log(x).sum()), np.array([0.0, 1, 2])),
    "overwritten": (lambda x: jnp.log(x).at[jnp.argmin(x)].set(0.0), np.array([0.0, 1, 2])),
    "clipped": (lambda x: jnp.clip(jnp.log(x), -3.0, 3.0), np.array([0.0, 1e-3, 2, 1e3])),
    "inverse distances": (inverse_distances, ROWS),
    "mask of rows": (
        lambda x: jnp.where((x > 0)[:, None], jnp.log(x)[:, None] * jnp.arange(1.0, 4), 0).sum(0),
        SOME,
    ),
    "det": (jnp.linalg.det, RANK_TWO),
    "relu": (lambda x: jnp.log(jax.nn.relu(x)), SOME),
}


def expected(fun, args):
    """What each of JAX's modes has, and what either has."""
    both = jax.jit(lambda *args: [mode(fun)(*args) for mode in (jax.jacfwd, jax.jacrev)])
    forward, reverse = map(np.asarray, both(*args))
    either = np.where(np.isfinite(reverse), reverse, forward)
    return {"forward": forward, "reverse": reverse, "auto": either, "markowitz": either}


def assert_finite_where(expected, found):
    """Equal wherever the expected entries are numbers."""
    found = np.asarray(found)
    there = np.isfinite(expected)
    assert there.any()
    np.testing.assert_allclose(found[there], expected[there], rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_first_order(name):
    fun, *args = CASES[name]
    args = [jnp.asarray(a, jnp.float64) for a in args]
    wanted = expected(fun, args)
    for order in ORDERS:
        if np.isfinite(wanted[order]).any():
            assert_finite_where(wanted[order], gl.jacve(fun, order)(*args))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["attention", "directions", "spence", "sum behind the mask", "inverse distances"]
)
def test_batched_jitted_and_sparse(name):
    fun, *args = CASES[name]
    args = [jnp.asarray(a, jnp.float64) for a in args]
    wanted = expected(fun, args)["auto"]
    batch = [jnp.stack([a] * 3) for a in args]
    assert_finite_where(np.stack([wanted] * 3), jax.vmap(gl.jacve(fun))(*batch))
    assert_finite_where(wanted, jax.jit(gl.jacve(fun))(*args))
    sparse = gl.jacve(fun, sparse_representation=True)(*args)
    assert_finite_where(wanted, sparse.todense())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["attention", "norms", "sum of norms", "within a chain", "mean"])
def test_second_order(name):
    fun, *args = CASES[name]
    args = [jnp.asarray(a, jnp.float64) for a in args]
    weights = np.random.default_rng(3).normal(size=np.shape(fun(*args)))

    def weighted(*args):
        return (weights * fun(*args)).sum()

    hessian = np.asarray(jax.jacfwd(jax.jacfwd(weighted))(*args))
    assert_finite_where(hessian, gl.hessve(weighted)(*args))
    laplacian = np.trace(hessian.reshape(args[0].size, args[0].size))
    for order in ("auto", "forward"):
        assert_finite_where(np.asarray(laplacian), gl.laplacian_ve(weighted, order=order)(*args))


def test_slopes_that_are_not_left_out_stay_infinite():
    def fun(x):
        return jnp.where(x > -1, jnp.sqrt(x), 0.0)

    found = np.asarray(gl.jacve(fun)(jnp.asarray([0.0, 4.0, -2.0])))
    np.testing.assert_array_equal(np.diag(found), [np.inf, 0.25, 0.0])


def test_masks_come_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever order a set of them has, which hashes decide."""
    first, second = jnp.ones((16, 4)) / 3, jnp.ones((16, 16)) / 2

    def energy(x: jax.Array) -> jax.Array:
        return jnp.sum(jax.nn.softplus(second @ jax.nn.softplus(first @ x)))

    program = gl.make_plan(jax.grad(energy), jnp.ones(4)).program
    texts = []
    for sign in (1, -1):
        monkeypatch.setattr(View, "__hash__", lambda view, sign=sign: sign * view.slot)
        selected = with_selections(program)
        texts.append([(i.inputs, i.outputs) for i in selected.instructions])
    assert selected is not program
    assert texts[0] == texts[1]


LABELS = np.array([1.0, 0, 0, 1, 0, 1, 1, 0, 0, 0, 1, 0, 1, 0, 0, 1])
DATA = np.random.default_rng(3).normal(size=(16, 4))


def log_likelihood(p):
    """Logistic regression, as libraries guard it: by whether logits are finite numbers."""
    logits = DATA @ p[:4] * jnp.exp(p[4])
    safe = jnp.where(jnp.isfinite(logits), logits, 0.0)
    terms = jnp.log1p(jnp.exp(-jnp.abs(safe))) + jnp.maximum(safe, 0) - LABELS * safe
    return -jnp.sum(jnp.where(jnp.isfinite(logits), terms, jnp.inf))


@pytest.mark.parametrize("order", ORDERS)
def test_labels_stay_whole(order: str) -> None:
    """Few entries are picked out of data, and many are multiplied where they are."""
    p = np.linspace(-0.4, 0.5, 5)
    program = jax.jit(gl.jacve(log_likelihood, order=order))
    np.testing.assert_allclose(program(p), jax.jit(jax.grad(log_likelihood))(p), rtol=1e-10)
    text = program.lower(p).as_text()
    assert "stablehlo.scatter" not in text
    assert "stablehlo.gather" not in text
    x = np.linspace(0.1, 1.0, 16)
    matrix = gl.jacve(lambda x: jnp.sin(x) * LABELS, order, sparse_representation=True)(x)
    assert matrix.nse == np.count_nonzero(LABELS)
    np.testing.assert_allclose(matrix.todense(), np.diag(np.cos(x) * LABELS), rtol=1e-12)


def test_an_overflow_is_left_out_entry_by_entry_only() -> None:
    """By whether a mask has a one anywhere what has a pole is left out: that is a sum more."""
    assert "reduce_or" not in str(jax.make_jaxpr(gl.jacve(log_likelihood))(np.zeros(5)))
    x = np.array([800.0, -1.0, 3.0])

    def guarded(x):
        return jnp.where(x > 50, x, jnp.log1p(jnp.exp(x)))

    for order in ORDERS:
        np.testing.assert_allclose(gl.jacve(guarded, order=order)(x), jax.jacfwd(guarded)(x))
