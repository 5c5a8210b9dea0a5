"""Differences that contain an entry minus itself: exact zeros, whatever multiplies them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import (
    divergence_ve,
    hessian_diagonal,
    hessve,
    jacve,
    laplacian_ve,
    second_order_operator,
)
from graphax_lapl.api.planning import prepare
from graphax_lapl.rules.lowering import local_partials

PARTICLES = 5
SOFTENED = 1e-12
#: float32 keeps 24 bits; one minus one times the slope 1e6 of a softened distance keeps none.
TOLERANCE = 3e-4
WEIGHTS = np.random.default_rng(0).normal(size=(4, 6))


def points():
    return np.random.default_rng(1).normal(size=(PARTICLES, 3))


def cast(value, like):
    return jnp.asarray(value, like.dtype)


def pairs(x):
    return x[:, None] - x[None]


def distance(d, **options):
    return jnp.sqrt(jnp.sum(d * d, -1, **options) + cast(SOFTENED, d))


def of_distances(x):
    return jnp.exp(-distance(pairs(x)))


def of_features(x):
    d = pairs(x)
    return jnp.tanh(jnp.concatenate([d, distance(d, keepdims=True)], -1) @ cast(WEIGHTS, x))


def of_directions(x):
    d = pairs(x)
    return jnp.exp(jnp.sin(d / distance(d, keepdims=True) @ cast(WEIGHTS[:3], x)))


def of_hidden(x):
    return of_distances(jnp.tanh(x @ cast(WEIGHTS[:3], x)))


def weighted(x):
    """Directions are summed by numbers of every pair."""
    d = pairs(x)
    return jnp.sin(jnp.einsum("ij,ijc->ic", 1.0 / distance(d), d)) * cast(WEIGHTS[0, :3], x)


def gathered(x):
    """The pairs of index arrays, one of which is a particle with itself."""
    first, second = np.array([0, 1, 2, 3]), np.array([1, 1, 0, 4])
    return jnp.exp(-distance(jnp.tanh(x)[first] - jnp.tanh(x)[second]))


def relative(x):
    """Positions relative to the first one."""
    return jnp.exp(-distance(x - x[0])) * cast(WEIGHTS[0, :PARTICLES], x)


def layered(x):
    """Layers behind a direction: no slope of theirs vanishes where a particle meets itself."""
    d = pairs(x)
    hidden = jax.nn.silu(d / distance(d, keepdims=True) @ cast(WEIGHTS[:3], x) + 0.3)
    return jnp.tanh(hidden @ cast(WEIGHTS.T, x) - 0.2)


def with_itself(x):
    """Differences that are not zero, of what moves alike."""
    d = (x[:, None] + 0.7) - x[None]
    return jnp.exp(-distance((d - 0.7) ** 2) * (d * d)[..., 0])


def crossed(x):
    """Two differences that are zero at different places."""
    d = pairs(x)
    other = d[:, ::-1]
    return jnp.exp(-distance(d * other / distance(d, keepdims=True)))


FUNCTIONS = [
    of_distances,
    of_features,
    of_directions,
    of_hidden,
    weighted,
    gathered,
    relative,
    layered,
    with_itself,
    crossed,
]


def total(fun):
    return lambda x: jnp.sum(fun(x))


def error(found, expected):
    found, expected = np.asarray(found, np.float64), np.asarray(expected)
    assert found.shape == expected.shape
    return np.max(np.abs(found - expected)) / np.max(np.abs(expected))


def hessian_of(fun):
    return lambda x: np.asarray(jax.hessian(total(fun))(x))


def trace(hessian):
    return np.einsum("iaia->", hessian)


SECOND = {
    "hessian": lambda fun: (hessve(fun), lambda h: h),
    "hessian, diagonal": lambda fun: (hessian_diagonal(fun), lambda h: np.einsum("iaia->ia", h)),
    "jacobian of the gradient": lambda fun: (jacve(jax.grad(fun)), lambda h: h),
    "divergence of the gradient": lambda fun: (divergence_ve(jax.grad(fun)), trace),
    "operator": lambda fun: (second_order_operator(fun, a=1.0), trace),
    **{
        f"laplacian, {order}": lambda fun, order=order: (laplacian_ve(fun, order=order), trace)
        for order in ("auto", "forward", "reverse", "markowitz")
    },
    **{
        f"jacobian of the gradient, {order}": lambda fun, order=order: (
            jacve(jax.grad(fun), order=order),
            lambda h: h,
        )
        for order in ("forward", "reverse", "markowitz")
    },
}


@pytest.mark.slow
@pytest.mark.every_case
@pytest.mark.parametrize("fun", FUNCTIONS)
@pytest.mark.parametrize("quantity", SECOND)
def test_second_derivatives_in_single_precision(fun, quantity):
    made, chosen = SECOND[quantity](total(fun))
    hessian = hessian_of(fun)(jnp.asarray(points()))
    x = jnp.asarray(points(), jnp.float32)
    allowed = TOLERANCE
    if "gradient" in quantity:  # whose program subtracts sums over pairs, and so does JAX's
        allowed = max(allowed, 3.0 * error(hessian_of(fun)(x), hessian))
    assert error(made(x), chosen(hessian)) < allowed


@pytest.mark.every_case
@pytest.mark.parametrize("fun", FUNCTIONS)
@pytest.mark.parametrize("order", ["auto", "forward", "reverse", "markowitz"])
def test_jacobians_in_single_precision(fun, order):
    """As exact as `jax.jacfwd`; `jax.jacrev` loses what cancels here."""
    summed = lambda x: jnp.tanh(jnp.sum(fun(x), 0))  # noqa: E731
    expected = jax.jacfwd(summed)(jnp.asarray(points()))
    x = jnp.asarray(points(), jnp.float32)
    assert error(jacve(summed, order=order)(x), expected) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("fun", FUNCTIONS)
def test_batches_in_single_precision(fun):
    x = jnp.asarray(points(), jnp.float32)
    batch = jnp.stack([x, x[::-1]] * 150)
    expected = hessian_of(fun)(jnp.asarray(points()))
    for operator, chosen in ((hessve, expected), (laplacian_ve, trace(expected))):
        assert error(jax.vmap(operator(total(fun)))(batch)[0], chosen) < TOLERANCE


def found_still(fun, x):
    """The entries of all arrays of a function that do not move, by the name of their primitive."""
    _, makers, still = local_partials(prepare(fun, (x,), {}, 0).listing)
    return {makers[v].name: table for v, table in still.at.items()}, still, makers


def test_what_is_found():
    found, still, makers = found_still(of_features, jnp.asarray(points()))
    own = np.eye(PARTICLES, dtype=bool)
    for name in ("sub", "mul", "reduce_sum", "sqrt", "concatenate", "dot_general", "tanh"):
        table = found[name]
        expected = np.broadcast_to(own[:, :, None], table.shape) if table.ndim == 3 else own
        if name in ("reduce_sum", "sqrt") and table.ndim == 3:
            assert table.shape == (PARTICLES, PARTICLES, 1)
        np.testing.assert_array_equal(table, expected)
    cancelling = {makers[v].name for v in still.cancelling}
    # Squares of zeros and what is scaled by zero slopes no longer cancel.
    assert cancelling == {"sub", "concatenate", "dot_general"}


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: jnp.sin(x[1:] - x[:-1]),
        lambda x: jnp.sin(x - jnp.roll(x, 1, 0)),
        lambda x: jnp.sin(x - jnp.tanh(x)),
        lambda x: jnp.sin(x - x.mean(0)),
        lambda x: jnp.sin(x - x.sum()),
        lambda x: jnp.sin(x[None] - 2.0 * x[:, None]),
        lambda x: jnp.sin(x[:, None] + x[None]),
    ],
    ids=["neighbours", "periodic", "functions", "mean", "total", "multiples", "sums"],
)
def test_nothing_is_found_where_everything_moves(fun):
    found, *_ = found_still(fun, jnp.asarray(points()))
    assert not found


def test_entries_that_are_moved_many_times():
    def fun(x):
        moved = x
        for _ in range(700):
            moved = moved[::-1]
        return jnp.exp(-distance(moved[:, None] - x[None]))

    found, *_ = found_still(fun, jnp.asarray(points()))
    own = np.broadcast_to(np.eye(PARTICLES, dtype=bool)[:, :, None], found["sub"].shape)
    np.testing.assert_array_equal(found["sub"], own)


def test_infinite_slopes_stay_those_of_jax():
    """Without softening JAX has no number where a particle meets itself, and so have we none."""

    def fun(x):
        return jnp.sum(jnp.sqrt(jnp.sum(pairs(x) ** 2, -1)))

    x = jnp.asarray(points())
    assert np.isnan(jax.grad(fun)(x)).all()
    assert np.isnan(jacve(fun, order="reverse")(x)).all()
