"""Reductions, cumulative operations, contractions, convolutions, windows and sorting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.rule_cases.case import Case, Table, sample

V, M, T3 = sample((4,), 0.3, 1.4), sample((2, 3), 0.3, 1.4), sample((2, 3, 2), 0.3, 1.4)
EMPTY, ONE = sample((0, 3), 0.3, 1.4), sample((1,), 0.3, 1.4)


def _reductions() -> Table:
    functions: dict[str, Callable[..., Any]] = {
        "reduce_sum": jnp.sum,
        "reduce_prod": jnp.prod,
        "reduce_max": jnp.max,
        "reduce_min": jnp.min,
        "mean": jnp.mean,
        "logsumexp": jax.nn.logsumexp,
        "var": jnp.var,
    }
    table: Table = {}
    for name, fun in functions.items():
        table[name] = {
            "vector": Case(lambda x, f=fun: f(x), (V,)),
            "rows": Case(lambda x, f=fun: f(x, axis=1), (M,)),
            "columns": Case(lambda x, f=fun: f(x, axis=0), (M,)),
            "everything": Case(lambda x, f=fun: f(x), (T3,)),
            "two axes": Case(lambda x, f=fun: f(x, axis=(0, 2)), (T3,)),
            "middle, kept": Case(lambda x, f=fun: f(x, axis=1, keepdims=True), (T3,)),
            "size 1": Case(lambda x, f=fun: f(x), (ONE,)),
            "empty result": Case(lambda x, f=fun: f(x, axis=1), (EMPTY,)),
        }
    table["reduce_sum"]["of nothing"] = Case(lambda x: jnp.sum(x, 0), (EMPTY,))
    table["reduce_prod"]["of nothing"] = Case(lambda x: jnp.prod(x, 0), (EMPTY,))
    table["reduce_prod"]["with a zero"] = Case(jnp.prod, (np.array([2.0, 0.0, 3.0]),))
    table["reduce_prod"]["with two zeros"] = Case(jnp.prod, (np.array([2.0, 0.0, 0.0]),))
    table["general reduce"] = {
        "product by lax.reduce": Case(lambda x: lax.reduce(x, 1.0, lax.mul, (0,)), (M,)),
        "sum with start": Case(lambda x: lax.reduce(x, 0.0, lax.add, (1,)), (M,)),
        "logarithm of a sum": Case(lambda x: lax.reduce(x, -np.inf, jnp.logaddexp, (1,)), (M,)),
        "two sums": Case(
            lambda x: lax.reduce(
                (x, x**2), (0.0, 0.0), lambda a, b: (a[0] + b[0], a[1] + b[1]), (0, 2)
            ),
            (T3,),
        ),
        "of nothing": Case(lambda x: lax.reduce(x, 1.0, jnp.logaddexp, (0,)), (EMPTY,)),
    }
    table["norm"] = {
        "vector": Case(jnp.linalg.norm, (V,)),
        "Frobenius": Case(jnp.linalg.norm, (M,)),
        "order 1": Case(lambda x: jnp.linalg.norm(x, 1), (V,)),
        "order inf": Case(lambda x: jnp.linalg.norm(x, jnp.inf), (V,)),
        "order 3, rows": Case(lambda x: jnp.linalg.norm(x, 3, axis=1), (M,)),
    }
    return table


def _cumulative() -> Table:
    table: Table = {}
    for fun in (lax.cumsum, lax.cumprod, lax.cummax, lax.cummin, lax.cumlogsumexp):
        table[fun.__name__] = {
            "vector": Case(lambda x, f=fun: f(x), (V,)),
            "reversed": Case(lambda x, f=fun: f(x, reverse=True), (V,)),
            "rows": Case(lambda x, f=fun: f(x, axis=1), (M,)),
            "columns reversed": Case(lambda x, f=fun: f(x, axis=0, reverse=True), (M,)),
            "middle": Case(lambda x, f=fun: f(x, axis=1), (T3,)),
            "size 1": Case(lambda x, f=fun: f(x), (ONE,)),
            "size 0": Case(lambda x, f=fun: f(x, axis=1), (EMPTY,)),
        }
    return table


def dot(contract: Sequence[Sequence[int]], batch: Sequence[Sequence[int]] = ((), ())) -> Any:
    """dot_general with the given dimension numbers."""
    return lambda x, y: lax.dot_general(x, y, (contract, batch))


def of(left: Sequence[int], right: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Two operands of the given shapes."""
    return sample(left), sample(right, seed=1)


A, B = of((2, 3), (3, 2))
SQUARE = sample((3, 3))

DOTS: Table = {
    "dot_general": {
        "inner product": Case(dot(((0,), (0,))), of((4,), (4,))),
        "outer product": Case(dot(((), ())), of((2,), (3,))),
        "scalar times array": Case(dot(((), ())), of((), (2, 3))),
        "matrix and vector": Case(dot(((1,), (0,))), of((2, 3), (3,))),
        "vector and matrix": Case(dot(((0,), (0,))), of((3,), (3, 2))),
        "matrices": Case(dot(((1,), (0,))), of((2, 3), (3, 4))),
        "left transposed": Case(dot(((0,), (0,))), of((3, 2), (3, 4))),
        "right transposed": Case(dot(((1,), (1,))), of((2, 3), (4, 3))),
        "square matrices": Case(dot(((1,), (0,))), of((3, 3), (3, 3))),
        "square by the other dimension": Case(dot(((0,), (1,))), of((3, 3), (3, 3))),
        "two contracted": Case(dot(((0, 1), (0, 1))), of((2, 3), (2, 3))),
        "two contracted crosswise": Case(dot(((0, 1), (1, 0))), of((2, 3), (3, 2))),
        "batch leading": Case(dot(((2,), (1,)), ((0,), (0,))), of((2, 3, 2), (2, 2, 3))),
        "batch trailing": Case(dot(((0,), (0,)), ((2,), (2,))), of((3, 2, 2), (3, 1, 2))),
        "batch in the middle": Case(dot(((0,), (2,)), ((1,), (0,))), of((3, 2, 2), (2, 1, 3))),
        "batch of different positions": Case(
            dot(((1,), (1,)), ((2,), (0,))), of((1, 3, 2), (2, 3))
        ),
        "two batches": Case(dot(((3,), (2,)), ((0, 1), (1, 0))), of((2, 1, 2, 2), (1, 2, 2, 1))),
        "only batches": Case(dot(((), ()), ((0, 1), (1, 0))), of((2, 3), (3, 2))),
        "contracted size 1": Case(dot(((1,), (0,))), of((2, 1), (1, 3))),
        "contracted size 0": Case(dot(((1,), (0,))), of((2, 0), (0, 3))),
        "free size 0": Case(dot(((1,), (0,))), of((0, 2), (2, 3))),
        "repeated operand": Case(lambda x: dot(((1,), (0,)))(x, x), (SQUARE,)),
        "repeated, transposed": Case(lambda x: dot(((1,), (1,)))(x, x), (A,)),
        "repeated inner product": Case(lambda x: dot(((0,), (0,)))(x, x), (V,)),
        "constant left": Case(lambda y: dot(((1,), (0,)))(A, y), (B,)),
        "constant right": Case(lambda x: dot(((1,), (0,)))(x, B), (A,)),
        "zero constant": Case(lambda x: x @ jnp.zeros((3, 2)), (A,)),
        "identity constant": Case(lambda x: x @ jnp.eye(3), (A,)),
    },
    "einsum": {
        formula: Case(lambda x, y, f=formula: jnp.einsum(f, x, y), of(left, right))
        for formula, left, right in [
            ("ij,jk->ki", (2, 3), (3, 2)),
            ("ij,ij->", (2, 3), (2, 3)),
            ("ii,i->i", (3, 3), (3,)),
            ("ijk,kj->i", (2, 3, 2), (2, 3)),
            ("bij,bkj->bik", (2, 2, 3), (2, 1, 3)),
            ("ibj,jkb->kbi", (2, 2, 3), (3, 1, 2)),
            ("i,j->ij", (2,), (3,)),
            ("ij,k->kji", (2, 1), (3,)),
            ("abcd,dc->ba", (2, 1, 2, 2), (2, 2)),
        ]
    },
    "products": {
        "three factors": Case(lambda x, y: x @ y @ x, (A, B)),
        "matrix power": Case(lambda x: jnp.linalg.matrix_power(x, 3), (SQUARE,)),
        "cross": Case(jnp.cross, of((3,), (3,))),
        "outer": Case(jnp.outer, of((2,), (3,))),
        "tensordot": Case(lambda x, y: jnp.tensordot(x, y, 1), of((2, 3), (3, 2, 2))),
        "polyval": Case(jnp.polyval, of((3,), (2,))),
        "vander": Case(lambda x: jnp.vander(x, 3), (V,)),
        "quadratic form": Case(lambda x, y: x @ y @ x, of((3,), (3, 3))),
        "weighted sum": Case(lambda x, y: (x[:, None] * y).sum(0), of((2,), (2, 3))),
    },
}


def convolution(**options: Any) -> Callable[[Any, Any], Any]:
    """conv_general_dilated with unit strides and no padding unless given."""
    options = {"window_strides": (1,), "padding": [(0, 0)], **options}
    return lambda x, k: lax.conv_general_dilated(x, k, **options)


IMAGE, KERNEL = of((1, 2, 5), (3, 2, 2))
PLANE, SQUARE_KERNEL = of((1, 1, 3, 4), (2, 1, 2, 2))
TWO = {"window_strides": (1, 1), "padding": [(0, 0), (0, 0)]}

WINDOWS: Table = {
    "conv_general_dilated": {
        "plain": Case(convolution(), (IMAGE, KERNEL)),
        "strides": Case(convolution(window_strides=(2,)), (IMAGE, KERNEL)),
        "padding": Case(convolution(padding=[(2, 1)]), (IMAGE, KERNEL)),
        "negative padding": Case(convolution(padding=[(-1, 0)]), (IMAGE, KERNEL)),
        "same": Case(convolution(padding="SAME"), (IMAGE, KERNEL)),
        "input dilation": Case(convolution(lhs_dilation=(2,)), (IMAGE, KERNEL)),
        "kernel dilation": Case(convolution(rhs_dilation=(2,)), (IMAGE, KERNEL)),
        "everything": Case(
            convolution(
                window_strides=(2,), padding=[(1, 2)], lhs_dilation=(2,), rhs_dilation=(3,)
            ),
            (IMAGE, KERNEL),
        ),
        "feature groups": Case(convolution(feature_group_count=2), of((1, 2, 4), (4, 1, 2))),
        "batch groups": Case(convolution(batch_group_count=2), of((2, 1, 4), (2, 1, 2))),
        "batch": Case(convolution(), of((3, 1, 3), (1, 1, 2))),
        "channels last": Case(
            convolution(dimension_numbers=("NHC", "HIO", "NHC")), of((1, 4, 2), (2, 2, 1))
        ),
        "two dimensions": Case(convolution(**TWO), (PLANE, SQUARE_KERNEL)),
        "two dimensions, strides": Case(
            convolution(window_strides=(2, 1), padding=[(1, 0), (0, 2)]), (PLANE, SQUARE_KERNEL)
        ),
        "constant kernel": Case(lambda x: convolution()(x, KERNEL), (IMAGE,)),
        "constant input": Case(lambda k: convolution()(IMAGE, k), (KERNEL,)),
        "transposed": Case(
            lambda x, k: lax.conv_transpose(x, k, (2,), "SAME"), of((1, 3, 2), (2, 2, 1))
        ),
        "jnp.convolve": Case(jnp.convolve, of((4,), (3,))),
        "jnp.correlate": Case(lambda x, k: jnp.correlate(x, k, "same"), of((4,), (3,))),
        "patches": Case(
            lambda x: lax.conv_general_dilated_patches(x, (2,), (1,), [(0, 0)]), (IMAGE,)
        ),
        "no output": Case(convolution(), of((1, 1, 1), (1, 1, 2))),
    },
    "reduce_window": {
        "sum": Case(lambda x: lax.reduce_window(x, 0.0, lax.add, (2,), (1,), "VALID"), (V,)),
        "sum, strides": Case(
            lambda x: lax.reduce_window(x, 0.0, lax.add, (2,), (2,), "SAME"), (V,)
        ),
        "sum, matrix": Case(
            lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 2), (1, 1), [(1, 0), (0, 1)]), (M,)
        ),
        "sum, dilation": Case(
            lambda x: lax.reduce_window(
                x, 0.0, lax.add, (2,), (1,), [(1, 1)], base_dilation=(2,), window_dilation=(2,)
            ),
            (V,),
        ),
        "average": Case(
            lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 1), (1, 1), "VALID") / 2.0, (M,)
        ),
        "max": Case(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2,), (1,), "VALID"), (V,)),
        "min, strides": Case(
            lambda x: lax.reduce_window(x, jnp.inf, lax.min, (2, 2), (1, 2), "SAME"), (M,)
        ),
        "max, three dimensions": Case(
            lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2), (1, 1, 1), "VALID"), (T3,)
        ),
        "size 1": Case(lambda x: lax.reduce_window(x, 0.0, lax.add, (1,), (1,), "VALID"), (ONE,)),
    },
    "sort": {
        "vector": Case(jnp.sort, (V,), warp=False),
        "rows": Case(lambda x: jnp.sort(x, 1), (M,), warp=False),
        "columns, descending": Case(lambda x: jnp.sort(x, 0, descending=True), (M,), warp=False),
        "key and value": Case(lambda x, y: lax.sort((x, y), num_keys=1), (V, V[::-1] * 2.0)),
        "value only": Case(lambda y: lax.sort((V, y), num_keys=1)[1], (V * 2.0,)),
        "size 1": Case(jnp.sort, (ONE,)),
        "size 0": Case(lambda x: jnp.sort(x, 1), (sample((0, 3)),)),
        "argsort and take": Case(lambda x: x[jnp.argsort(-x)], (V,), warp=False),
        "median": Case(jnp.median, (V,), warp=False),
        "top_k": Case(lambda x: lax.top_k(x, 2)[0], (V,), warp=False),
        "percentile": Case(lambda x: jnp.percentile(x, 30.0), (V,), warp=False),
    },
}

CASES: Table = _reductions() | _cumulative() | DOTS | WINDOWS
