"""Dense results whose terms differ in single positions, products of listed triangles, and masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import jacve
from graphax_lapl.emit.masked import _compared
from tests.checks import assert_same

RANDOM = np.random.default_rng(5)
POINTS = RANDOM.normal(size=(7, 3))
WEIGHTS = RANDOM.normal(size=(9, 5))


def turned(q):
    """Points turned by a quaternion, one at a time."""
    once = jax.vmap(lambda p: jnp.cross(q[1:], p) + q[0] * p)(POINTS)
    return POINTS + 2 * jax.vmap(lambda p: jnp.cross(q[1:], p))(once)


def turned_with_points(q, points):
    q = q / jnp.linalg.norm(q)
    once = jnp.cross(q[None, 1:], points)
    return points + 2 * (q[0] * once + jnp.cross(q[None, 1:], once))


def turned_in_columns(q):
    """The same points, components first, with others beside them."""
    return jnp.concatenate([turned(q).T, jnp.ones((3, 2)) * q[0]], axis=1)


def some_turned(q):
    """Terms along a part of the points, and in a part of the components."""
    return jnp.zeros((9, 5)).at[1:8, 1:4].set(turned(q))


def returns(rewards, rates):
    """Discounted sums from the end: a triangle times a triangle."""
    discount = jnp.concatenate([jnp.ones(1), jnp.cumprod(rates)[:-1]])
    return jnp.cumsum((rewards * discount)[::-1])[::-1] / discount


def summed_roots(x):
    h = jnp.tanh(WEIGHTS @ x)
    return jnp.cumsum(jnp.sqrt(jnp.abs(h - h[3]))) * jnp.sin(x[0])


def summed_layers(x):
    return jnp.cumsum(jnp.exp(WEIGHTS @ x) * jnp.cumsum(WEIGHTS @ jnp.sin(x))[::-1])


def growth(rates, flows):
    """Triangles on both sides of a diagonal."""
    discount = jnp.exp(-jnp.cumsum(rates))
    return jnp.cumsum(flows * discount) / discount


def shares(x):
    """A triangle times a dense matrix that may hold infinite slopes."""
    share = jax.nn.softmax(WEIGHTS @ x)
    return jnp.cumsum(share) / jnp.sqrt(jnp.cumsum(share**2))


def neighbours(x):
    return x * jnp.exp(-x) * jnp.roll(x, 1) + jnp.roll(x, -2) ** 2


def stencil(x):
    padded = jnp.pad(x, 1)
    return (padded[:-2] - 2 * x + padded[2:]) * 4 + x**3


CASES = {
    "turned": (turned, 0, (4,)),
    "turned_with_points": (turned_with_points, (0, 1), (4,), (6, 3)),
    "turned_in_columns": (turned_in_columns, 0, (4,)),
    "some_turned": (some_turned, 0, (4,)),
    "returns": (returns, (0, 1), (11,), (11,)),
    "summed_layers": (summed_layers, 0, (5,)),
    "growth": (growth, (0, 1), (9,), (9,)),
    "shares": (shares, 0, (5,)),
    **{f"neighbours_{n}": (neighbours, 0, (n,)) for n in (4, 17, 20, 33)},
    **{f"stencil_{n}": (stencil, 0, (n,)) for n in (5, 18, 22)},
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("samples", [0, 3, 300])
def test_jacobians_are_those_of_jax(name, samples):
    fun, argnums, *shapes = CASES[name]
    random = np.random.default_rng(1)
    lead = (samples,) if samples else ()
    args = [random.uniform(0.4, 1.4, (*lead, *shape)) for shape in shapes]
    both = [jacve(fun, argnums=argnums), jax.jacfwd(fun, argnums)]
    if samples:
        both = [jax.vmap(jacobian) for jacobian in both]
    assert_same(*jax.jit(lambda *args: [jacobian(*args) for jacobian in both])(*args))


@pytest.mark.parametrize("name", CASES)
def test_their_derivatives_are_exact(name):
    fun, argnums, *shapes = CASES[name]
    random = np.random.default_rng(2)
    args = [random.uniform(0.4, 1.4, shape) for shape in shapes]

    def gradient(jacobian):
        def total(*args):
            return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(jacobian(*args)))

        return jax.grad(total)

    both = [gradient(jacve(fun, argnums=argnums)), gradient(jax.jacfwd(fun, argnums))]
    assert_same(*jax.jit(lambda *args: [own(*args) for own in both])(*args))


def test_terms_are_written_side_by_side():
    q = np.array([0.5, -0.2, 0.7, 0.1])
    jacobian = jacve(some_turned)
    assert str(jax.make_jaxpr(jacobian)(q)).count("select_n") <= 2
    assert_same(jacobian(q), jax.jit(jax.jacfwd(some_turned))(q))


def test_an_infinite_value_stays_at_its_entry():
    def scaled(s, p):
        return jnp.stack([p * s[0], jnp.sqrt(p) * s[1], p * s[2], p[::-1] * s[0]], axis=1)

    s, p = np.array([2.0, np.inf, 3.0]), np.array([1.0, 4.0, 9.0, 2.0, 3.0])
    found = jacve(scaled, argnums=(0, 1))(s, p)
    finite = np.isfinite(found[0]).all() and np.isfinite(np.delete(found[1], 1, axis=1)).all()
    assert finite
    assert np.isinf(np.asarray(found[1])[np.arange(5), 1, np.arange(5)]).all()


@pytest.mark.parametrize("order", ["auto", "forward", "reverse", "markowitz"])
def test_infinite_slopes_stay_in_the_sums_that_hold_them(order):
    x = np.random.default_rng(1).normal(size=5)
    found = jacve(summed_roots, order=order)(x)
    wanted = jax.jit(jax.jacfwd(summed_roots))(x)
    assert_same(found[:3], wanted[:3])
    assert not np.isfinite(found[3:]).any()


def test_discounts_may_be_zero():
    rewards, rates = np.arange(1.0, 12.0), np.full(11, 0.9)
    rates[4] = 0.0
    found = jacve(returns, argnums=(0, 1))(rewards, rates)
    wanted = jax.jit(jax.jacfwd(returns, (0, 1)))(rewards, rates)
    assert_same([leaf[:4] for leaf in found], [leaf[:4] for leaf in wanted])


def test_products_of_triangles_keep_their_zeros():
    x, rates = np.arange(1.0, 12.0), np.full(11, 0.9)
    first, second = jacve(returns, argnums=(0, 1), sparse_representation=True)(x, rates)
    assert first.nse == 11 * 12 // 2
    assert second.nse < 11 * 11
    assert_same(second.todense(), jax.jit(jax.jacfwd(returns, 1))(x, rates))


def masks():
    rows, columns = np.indices((6, 9))
    yield np.eye(6, 9, dtype=bool)
    yield columns <= rows
    yield columns - rows >= -2
    yield abs(columns - rows) <= 1
    yield (columns - rows) % 4 == 1
    yield columns == (2 * rows) % 9
    yield (columns == rows) & (rows != 3)
    yield (columns >= rows % 3) & (columns <= 2 + rows)
    yield RANDOM.uniform(size=(6, 9)) < 0.5
    yield np.zeros((6, 9), bool)


@pytest.mark.parametrize("there", [*masks()])
def test_masks_are_what_is_compared(there):
    np.testing.assert_array_equal(_compared(there), there)
    assert _compared(np.ones((3, 2), bool)) is None
