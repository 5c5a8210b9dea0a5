"""Kinks, ties and singular points: JAX's numbers, and its NaN.

Of a function of one number NaN stands exactly where JAX has it, but for the exceptions that are
listed. Of several numbers JAX multiplies infinite partials with the zeros of basis vectors; here
those zeros are structural, so that fewer entries are NaN, and every other one is JAX's.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import hessve, jacve, laplacian_ve
from tests.checks import assert_same
from tests.second_order.checks import laplacian_of

ZERO = np.zeros(2)
AT_ZERO = np.array([0.0, 0.7])
TIES = np.array([0.4, 0.4, -0.3])
PARTICLES = np.array([[0.1, 0.2, 0.3], [0.1, 0.2, 0.3], [0.5, -0.2, 0.1]])


def distances(r: Any) -> Any:
    """All pair distances by their coordinates, the zero ones of a particle with itself included."""
    difference = r[:, None] - r[None]
    return jnp.sqrt(jnp.sum(difference**2, -1))


def guarded_distances(r: Any) -> Any:
    """Pair distances that are differentiable at coincidence."""
    square = jnp.sum((r[:, None] - r[None]) ** 2, -1)
    away = square > 0.0
    return jnp.where(away, jnp.sqrt(jnp.where(away, square, 1.0)), 0.0)


def pair_norms(r: Any) -> Any:
    rows, columns = np.triu_indices(3, 1)
    return jnp.linalg.norm(r[rows] - r[columns], axis=-1)


def safe_log(x: Any) -> Any:
    return jnp.where(x > 0.0, jnp.log(jnp.where(x > 0.0, x, 1.0)), 0.0)


Table = dict[str, tuple[Callable[..., Any], np.ndarray]]

ELEMENTWISE: Table = {
    "abs": (jnp.abs, AT_ZERO),
    "abs times x": (lambda x: jnp.abs(x) * x, AT_ZERO),
    "square of abs": (lambda x: jnp.abs(x) ** 2, AT_ZERO),
    "abs cubed": (lambda x: jnp.abs(x) ** 3, AT_ZERO),
    "sign": (lambda x: jnp.sign(x) * x**2, AT_ZERO),
    "relu": (lambda x: jax.nn.relu(x) * x, AT_ZERO),
    "square of relu": (lambda x: jax.nn.relu(x) ** 2, AT_ZERO),
    "maximum with zero": (lambda x: jnp.maximum(x, 0.0) * jnp.exp(x), AT_ZERO),
    "where": (lambda x: jnp.where(x > 0.0, x**2, x**3), AT_ZERO),
    "elu": (jax.nn.elu, AT_ZERO),
    "selu": (jax.nn.selu, AT_ZERO),
    "leaky_relu": (lambda x: jax.nn.leaky_relu(x) ** 2, AT_ZERO),
    "relu6 at its ends": (lambda x: jax.nn.relu6(x) ** 2, np.array([0.0, 6.0, 3.0])),
    "hard_tanh at its ends": (lambda x: jax.nn.hard_tanh(x) ** 2, np.array([-1.0, 1.0, 0.3])),
    "clip at its ends": (lambda x: jnp.clip(x, -1.0, 1.0) ** 3, np.array([-1.0, 1.0, 0.3])),
    "clamp at its ends": (lambda x: lax.clamp(-1.0, x, 1.0) ** 3, np.array([-1.0, 1.0, 0.3])),
    "softplus": (jax.nn.softplus, AT_ZERO),
    "squareplus": (jax.nn.squareplus, AT_ZERO),
    "log_sigmoid": (jax.nn.log_sigmoid, AT_ZERO),
    "maximum of itself": (lambda x: jnp.maximum(x**2, x**2), AT_ZERO),
    "sqrt": (jnp.sqrt, AT_ZERO),
    "sqrt of square": (lambda x: jnp.sqrt(x**2), AT_ZERO),
    "square of sqrt": (lambda x: jnp.sqrt(x) ** 2, AT_ZERO),
    "rsqrt": (lax.rsqrt, AT_ZERO),
    "cbrt": (jnp.cbrt, AT_ZERO),
    "reciprocal": (lambda x: 1.0 / x, AT_ZERO),
    "log": (jnp.log, AT_ZERO),
    "x log x": (lambda x: x * jnp.log(x), AT_ZERO),
    "xlogy": (lambda x: jax.scipy.special.xlogy(x, x), AT_ZERO),
    "entr": (jax.scipy.special.entr, AT_ZERO),
    "safe log": (safe_log, AT_ZERO),
    "careless log": (lambda x: jnp.where(x > 0.0, jnp.log(x), 0.0), AT_ZERO),
    "power 2.0": (lambda x: x**2.0, AT_ZERO),
    "power 1.0": (lambda x: x**1.0, AT_ZERO),
    "power 0.0": (lambda x: x**0.0, AT_ZERO),
    "power 1.5": (lambda x: x**1.5, AT_ZERO),
    "power 0.5": (lambda x: x**0.5, AT_ZERO),
    "power -1.0": (lambda x: x**-1.0, AT_ZERO),
    "power 3": (lambda x: x**3, AT_ZERO),
    "power 1": (lambda x: x**1, AT_ZERO),
    "power 0": (lambda x: x**0, AT_ZERO),
    "power of itself": (lambda x: x**x, AT_ZERO),
    "power of a negative": (lambda x: x**2.0, np.array([-0.5, 0.7])),
    "sinc": (jnp.sinc, AT_ZERO),
    "arccos at its end": (jnp.arccos, np.array([1.0, 0.3])),
    "arcsin at its end": (jnp.arcsin, np.array([-1.0, 0.3])),
    "arccosh at its end": (jnp.arccosh, np.array([1.0, 1.3])),
    "arctanh at its end": (jnp.arctanh, np.array([1.0, 0.3])),
    "tanh far out": (jnp.tanh, np.array([400.0, -400.0])),
    "logistic far out": (jax.nn.sigmoid, np.array([800.0, -800.0])),
    "exp overflowing": (jnp.exp, np.array([800.0, -800.0])),
    "rem at a multiple": (lambda x: jnp.remainder(x, 0.5) ** 2, np.array([1.0, 0.7])),
    "floor": (lambda x: jnp.floor(x) * x**2, np.array([1.0, 0.7])),
    "nan masked out": (lambda x: jnp.where(jnp.isnan(x), 0.0, x**2), np.array([np.nan, 0.3])),
    "nan_to_num": (lambda x: jnp.nan_to_num(x) ** 2, np.array([np.nan, 0.3])),
    "abs of a complex zero": (lambda x: jnp.abs(lax.complex(x, x)), AT_ZERO),
    "square of abs of a complex zero": (lambda x: jnp.abs(lax.complex(x, x)) ** 2, AT_ZERO),
}

JOINT: Table = {
    "max over ties": (lambda x: jnp.max(x) ** 2, TIES),
    "min over ties": (lambda x: jnp.min(x**2), np.array([0.3, -0.3, 0.9])),
    "max of squares over ties": (lambda x: jnp.max(x**2), np.array([0.3, -0.3, 0.1])),
    "maximum of ties": (lambda x: jnp.maximum(x, x[::-1]) ** 2, np.array([0.3, 0.5, 0.3])),
    "minimum of ties": (lambda x: jnp.minimum(x**2, x[::-1] ** 3), np.array([1.0, 1.0])),
    "sort with ties": (lambda x: jnp.sort(x) ** 2 * jnp.arange(3.0), TIES),
    "median with ties": (lambda x: jnp.median(x) ** 2, TIES),
    "cummax with ties": (lambda x: lax.cummax(x**2), np.array([0.3, -0.3, 0.1])),
    "max pooling with ties": (
        lambda x: lax.reduce_window(x**2, -jnp.inf, lax.max, (2,), (1,), "VALID"),
        np.array([0.3, -0.3, 0.1]),
    ),
    "logsumexp with ties": (jax.nn.logsumexp, TIES),
    "norm": (jnp.linalg.norm, ZERO),
    "norm at one zero": (jnp.linalg.norm, AT_ZERO),
    "norm of order 1": (lambda x: jnp.linalg.norm(x, 1) ** 2, AT_ZERO),
    "norm of order 3": (lambda x: jnp.linalg.norm(x, 3), AT_ZERO),
    "norm of order inf": (lambda x: jnp.linalg.norm(x, jnp.inf) ** 2, TIES),
    "square of norm": (lambda x: jnp.linalg.norm(x) ** 2, ZERO),
    "guarded norm": (lambda x: jnp.where(jnp.sum(x) == 0.0, 0.0, jnp.linalg.norm(x)), ZERO),
    "normalized": (lambda x: x / jnp.linalg.norm(x), ZERO),
    "hypot": (lambda x: jnp.hypot(x[0], x[1]), ZERO),
    "xlogy of zero": (lambda x: jax.scipy.special.xlogy(x, x[::-1]), AT_ZERO),
    "rel_entr": (lambda x: jax.scipy.special.rel_entr(x, x[::-1] + 0.5), AT_ZERO),
    "jnp.power with a float array": (lambda x: jnp.power(x, jnp.array([2.0, 3.0])), AT_ZERO),
    "power of an operand": (lambda x: jnp.power(x, x[::-1]), np.array([0.0, 2.0])),
    "arctan2": (lambda x: jnp.arctan2(x[0], x[1]), ZERO),
    "arctan2 on the axis": (lambda x: jnp.arctan2(x[0], x[1]), AT_ZERO),
    "softmax far out": (jax.nn.softmax, np.array([800.0, -800.0])),
    "logsumexp of infinities": (jax.nn.logsumexp, np.array([-np.inf, 0.3])),
    "distances": (distances, PARTICLES),
    "sum of squared distances": (lambda r: jnp.sum(distances(r) ** 2), PARTICLES),
    "guarded distances": (guarded_distances, PARTICLES),
    "pair norms": (pair_norms, PARTICLES),
    "prod with a zero": (jnp.prod, np.array([2.0, 0.0, 3.0])),
    "prod with two zeros": (jnp.prod, np.array([2.0, 0.0, 0.0])),
    "cumprod with a zero": (lax.cumprod, np.array([2.0, 0.0, 3.0])),
    "nan input": (lambda x: jnp.sin(x) * x[::-1], np.array([np.nan, 0.3])),
    "inf input": (lambda x: x**2 + x[::-1], np.array([np.inf, 0.3])),
    "std of equal numbers": (jnp.std, np.array([0.3, 0.3])),
    "var of equal numbers": (jnp.var, np.array([0.3, 0.3])),
    "slogdet at a singular matrix": (
        lambda x: jnp.linalg.det(jnp.outer(x, x)),
        np.array([0.3, 0.7]),
    ),
}

FINITE_HERE = {"careless log": 0.0, "arctanh at its end": np.inf}
"""Where JAX has NaN: the limit of the second derivative inside the branch that was taken."""


def in_groups(table: Table, size: int) -> list[Any]:
    """Names in groups that are compiled together, which takes a fraction of the time."""
    names = list(table)
    groups = [names[k : k + size] for k in range(0, len(names), size)]
    return [pytest.param(group, id=f"{group[0]} to {group[-1]}") for group in groups]


@pytest.mark.slow
@pytest.mark.parametrize("names", in_groups(ELEMENTWISE, 14))
def test_of_one_number(names: list[str]) -> None:
    @jax.jit
    def every_way(all_points: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for name, points in all_points.items():
            fun = ELEMENTWISE[name][0]
            ways = [hessve(fun), *(laplacian_ve(fun, order=o) for o in ("forward", "reverse"))]
            found[name] = [jax.vmap(way)(points) for way in (jax.hessian(fun), *ways)]
        return found

    found = every_way({name: jnp.asarray(ELEMENTWISE[name][1]) for name in names})
    for name, (expected, *results) in found.items():
        if name in FINITE_HERE:
            assert not np.isfinite(expected[0])  # NaN or an infinity, by the version of JAX
            expected = expected.at[0].set(FINITE_HERE[name])
        for result in results:
            assert_same(result, expected, context=name)


@pytest.mark.slow
@pytest.mark.parametrize("names", in_groups(ELEMENTWISE, 14))
def test_of_each_number(names: list[str]) -> None:
    """Elementwise on a vector: the diagonal of the numbers' own derivatives."""

    @jax.jit
    def every_way(all_points: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for name, x in all_points.items():
            fun = ELEMENTWISE[name][0]
            found[name] = jax.vmap(hessve(fun))(x), hessve(fun)(x), laplacian_ve(fun)(x)
        return found

    found = every_way({name: jnp.asarray(ELEMENTWISE[name][1]) for name in names})
    for name, (alone, hessian, laplacian) in found.items():
        assert_same(laplacian, alone, context=name)
        diagonal = np.arange(len(alone))
        expected = np.zeros((len(alone),) * 3)
        expected[diagonal, diagonal, diagonal] = alone
        assert_same(hessian, expected, context=name)


@pytest.mark.slow
@pytest.mark.parametrize("names", in_groups(JOINT, 10))
def test_of_several_numbers(names: list[str]) -> None:
    """JAX's numbers where it has any; NaN only where it has NaN."""

    @jax.jit
    def every_way(all_points: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for name, x in all_points.items():
            fun = JOINT[name][0]
            hessian = jax.jit(jax.hessian(fun))(x)
            trace = laplacian_of(hessian, fun(x), x)
            laplacians = [laplacian_ve(fun, order=o)(x) for o in ("forward", "reverse")]
            found[name] = [(hessve(fun)(x), hessian), *((found, trace) for found in laplacians)]
        return found

    found = every_way({name: jnp.asarray(JOINT[name][1]) for name in names})
    for name, pairs in found.items():
        for result, reference in pairs:
            known = ~np.isnan(reference)
            assert_same(np.where(known, result, 0.0), np.where(known, reference, 0.0), context=name)


@pytest.mark.parametrize("dilation", [1, 2])
def test_largest_of_a_dilated_window(dilation: int) -> None:
    """JAX has no reverse mode of it."""

    def fun(x: Any) -> Any:
        largest = lax.reduce_window(
            x, -np.inf, lax.max, (2,), (1,), [(1, 2)], (dilation,), window_dilation=(2,)
        )
        return jnp.sum(jnp.sin(largest * x[0]))

    x = np.array([0.7, -0.4, 1.3, 0.2])
    assert_same(jacve(fun)(x), jax.jit(jax.jacfwd(fun))(x))
    assert_same(hessve(fun)(x), jax.jit(jax.jacfwd(jax.jacfwd(fun)))(x))
