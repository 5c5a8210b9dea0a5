"""Primitives that move elements: reshape, slice, pad, concatenate, gather, scatter, conversions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.rule_cases.case import Case, Table, sample

V, M, T3, T4 = sample((4,)), sample((2, 3)), sample((2, 3, 2)), sample((2, 1, 3, 2))
EMPTY, ONE, SCALAR = sample((0, 3)), sample((1,)), sample((), 0.2, 0.6)

SHAPES: Table = {
    "reshape": {
        "vector to matrix": Case(lambda x: x.reshape(2, 2), (V,)),
        "matrix to vector": Case(lambda x: x.reshape(6), (M,)),
        "matrix to other matrix": Case(lambda x: x.reshape(3, 2), (M,)),
        "merge inner": Case(lambda x: x.reshape(2, 6), (T3,)),
        "merge outer": Case(lambda x: x.reshape(6, 2), (T3,)),
        "split and merge across": Case(lambda x: x.reshape(3, 4), (T3,)),
        "four dimensions": Case(lambda x: x.reshape(3, 2, 2), (T4,)),
        "to scalar": Case(lambda x: x.reshape(()), (ONE,)),
        "from scalar": Case(lambda x: x.reshape(1, 1, 1), (SCALAR,)),
        "size 0": Case(lambda x: x.reshape(3, 0, 2), (EMPTY,)),
        "there and back": Case(lambda x: x.reshape(3, 2).T.reshape(6), (M,)),
    },
    "transpose": {
        "matrix": Case(lambda x: x.T, (M,)),
        "three dimensions": Case(lambda x: x.transpose(2, 0, 1), (T3,)),
        "four dimensions": Case(lambda x: x.transpose(3, 1, 0, 2), (T4,)),
        "size 0": Case(lambda x: x.T, (EMPTY,)),
        "square": Case(lambda x: x.T * x, (sample((3, 3)),)),
    },
    "squeeze and expand": {
        "squeeze one": Case(lambda x: jnp.squeeze(x, 1), (T4,)),
        "squeeze to scalar": Case(jnp.squeeze, (ONE,)),
        "expand front": Case(lambda x: x[None], (M,)),
        "expand middle": Case(lambda x: x[:, None, :, None], (M,)),
        "expand scalar": Case(lambda x: x[None, None], (SCALAR,)),
    },
    "broadcast_in_dim": {
        "scalar to matrix": Case(lambda x: jnp.broadcast_to(x, (2, 3)), (SCALAR,)),
        "vector to rows": Case(lambda x: jnp.broadcast_to(x, (2, 4)), (V,)),
        "vector to columns": Case(lambda x: lax.broadcast_in_dim(x, (4, 3), (0,)), (V,)),
        "size-1 dimension": Case(lambda x: jnp.broadcast_to(x, (2, 2, 3, 2)), (T4,)),
        "middle": Case(lambda x: lax.broadcast_in_dim(x, (2, 4, 3), (0, 2)), (M,)),
        "to size 0": Case(lambda x: jnp.broadcast_to(x, (0, 4)), (V,)),
        "same shape": Case(lambda x: jnp.broadcast_to(x, (2, 3)), (M,)),
    },
    "slice": {
        "range": Case(lambda x: x[1:3], (V,)),
        "stride": Case(lambda x: x[::3], (V,)),
        "negative stride": Case(lambda x: x[::-2], (V,)),
        "two dimensions": Case(lambda x: x[:1, 1:], (M,)),
        "strides in three dimensions": Case(lambda x: x[::2, ::2, 1:], (T3,)),
        "element": Case(lambda x: x[2], (V,)),
        "last element": Case(lambda x: x[-1], (V,)),
        "row": Case(lambda x: x[1], (M,)),
        "column": Case(lambda x: x[:, 1], (M,)),
        "empty": Case(lambda x: x[2:2], (V,)),
        "whole": Case(lambda x: x[:], (V,)),
        "overlapping parts": Case(lambda x: x[1:] * x[:-1], (V,)),
        "slice of a slice": Case(lambda x: x[1:][::2][1:], (V,)),
    },
    "pad": {
        "low and high": Case(lambda x: lax.pad(x, 0.5, [(1, 2, 0)]), (V,)),
        "interior": Case(lambda x: lax.pad(x, 0.0, [(0, 0, 2)]), (V,)),
        "negative": Case(lambda x: lax.pad(x, 0.0, [(-1, -1, 0)]), (V,)),
        "negative with interior": Case(lambda x: lax.pad(x, 0.0, [(-2, 1, 1)]), (V,)),
        "matrix": Case(lambda x: lax.pad(x, 0.0, [(1, 0, 1), (-1, 2, 0)]), (M,)),
        "variable filler": Case(lambda x, f: lax.pad(x, f, [(1, 0, 1)]), (V, SCALAR)),
        "only the filler": Case(lambda f: lax.pad(V, f, [(1, 2, 0)]), (SCALAR,)),
        "size 0": Case(lambda x: lax.pad(x, 1.0, [(1, 0, 0), (0, 0, 0)]), (EMPTY,)),
        "to size 0": Case(lambda x: lax.pad(x, 0.0, [(-2, -2, 0)]), (V,)),
        "wrap": Case(lambda x: jnp.pad(x, 2, mode="wrap"), (M,)),
        "reflect": Case(lambda x: jnp.pad(x, 1, mode="reflect"), (M,)),
        "edge": Case(lambda x: jnp.pad(x, 1, mode="edge"), (M,)),
    },
    "concatenate": {
        "two vectors": Case(lambda x, y: jnp.concatenate([x, y]), (V, ONE)),
        "with itself": Case(lambda x: jnp.concatenate([x, x]), (V,)),
        "columns": Case(lambda x, y: jnp.concatenate([x, y], 1), (M, sample((2, 1), seed=1))),
        "with a constant": Case(lambda x: jnp.concatenate([np.ones(2), x, np.ones(1)]), (V,)),
        "with an empty part": Case(lambda x, y: jnp.concatenate([x, y]), (M, EMPTY)),
        "middle of three dimensions": Case(lambda x: jnp.concatenate([x, x[:, :1]], 1), (T3,)),
        "stack": Case(lambda x, y: jnp.stack([x, y, x], 1), (V, V + 0.1)),
        "stack of scalars": Case(lambda x: jnp.stack([x, x * x]), (SCALAR,)),
    },
    "split": {
        "two parts": Case(lambda x: lax.split(x, (1, 3)), (V,)),
        "columns": Case(lambda x: lax.split(x, (1, 2), axis=1), (M,)),
        "one part used": Case(lambda x: lax.split(x, (1, 3))[1], (V,)),
        "array_split": Case(lambda x: jnp.array_split(x, 3), (V,)),
    },
    "rev and roll": {
        "vector": Case(lambda x: lax.rev(x, (0,)), (V,)),
        "both dimensions": Case(lambda x: lax.rev(x, (0, 1)), (M,)),
        "middle": Case(lambda x: lax.rev(x, (1,)), (T3,)),
        "size 1": Case(lambda x: lax.rev(x, (0,)), (ONE,)),
        "roll": Case(lambda x: jnp.roll(x, 1), (V,)),
        "roll of one axis": Case(lambda x: jnp.roll(x, -2, 1), (M,)),
        "roll of two axes": Case(lambda x: jnp.roll(x, (1, 2), (0, 1)), (M,)),
        "roll by nothing": Case(lambda x: jnp.roll(x, 4), (V,)),
    },
    "tile and repeat": {
        "tile": Case(lambda x: jnp.tile(x, (2, 1)), (M,)),
        "repeat": Case(lambda x: jnp.repeat(x, 2, 1), (M,)),
        "repeat unevenly": Case(lambda x: jnp.repeat(x, np.array([1, 0, 2, 1])), (V,)),
        "kron": Case(jnp.kron, (M, V[:2])),
        "meshgrid": Case(lambda x, y: jnp.meshgrid(x, y), (V, M[0])),
    },
    "diagonal": {
        "diagonal": Case(jnp.diagonal, (M,)),
        "offset diagonal": Case(lambda x: jnp.diagonal(x, 1), (M,)),
        "of three dimensions": Case(lambda x: jnp.diagonal(x, 0, 0, 2), (T3,)),
        "diag of a vector": Case(jnp.diag, (V,)),
        "trace": Case(jnp.trace, (M,)),
        "tril": Case(jnp.tril, (sample((3, 3)),)),
        "triu with offset": Case(lambda x: jnp.triu(x, 1), (M,)),
        "upper entries": Case(lambda x: x[jnp.triu_indices(3)], (sample((3, 3)),)),
    },
    "convert_element_type": {
        "same dtype": Case(lambda x: x.astype(float), (V,)),
        "complex and back": Case(lambda x: jnp.real(x.astype(complex)), (V,)),
        "through integers": Case(lambda x: (x * 3).astype(int).astype(float) * x, (V,), warp=False),
        "from booleans": Case(lambda x: (x > 0).astype(float) * x, (V,), warp=False),
    },
}

I2 = np.array([[0, 1], [1, 1], [1, -2]])

INDEXING: Table = {
    "gather": {
        "vector": Case(lambda x: x[np.array([3, 0, 0, -1])], (V,)),
        "rows": Case(lambda x: x[np.array([1, 0, 1])], (M,)),
        "columns": Case(lambda x: x[:, np.array([2, 2, 0])], (M,)),
        "matrix of indices": Case(lambda x: x[I2], (M,)),
        "pairs": Case(lambda x: x[I2[:, 0], I2[:, 1]], (M,)),
        "outer indices": Case(lambda x: x[np.ix_([1, 0], [2, 0])], (M,)),
        "middle of three": Case(lambda x: x[:, np.array([2, 0])], (T3,)),
        "apart": Case(lambda x: x[np.array([0, 1]), :, np.array([1, 0])], (T3,)),
        "mask": Case(lambda x: x[np.array([True, False, True, True])], (V,)),
        "no index": Case(lambda x: x[np.zeros(0, int)], (V,)),
        "take clip": Case(lambda x: jnp.take(x, np.array([0, 9, -9]), mode="clip"), (V,)),
        "take wrap": Case(lambda x: jnp.take(x, np.array([0, 9, -9]), mode="wrap"), (V,)),
        "take fill": Case(
            lambda x: jnp.take(x, np.array([0, 9]), mode="fill", fill_value=0.5), (V,)
        ),
        "take_along_axis": Case(
            lambda x: jnp.take_along_axis(x, np.array([[2, 0], [1, 1]]), 1), (M,)
        ),
        "size 1": Case(lambda x: x[np.array([0, 0])], (ONE,)),
        "by a computed index": Case(lambda x: x[jnp.argmax(x)] * x, (V,), warp=False),
        "traced indices": Case(lambda x: x[(jnp.abs(x) * 4).astype(int)], (V,), warp=False),
    },
    "scatter": {
        "add": Case(lambda x, u: x.at[np.array([0, 2, 0])].add(u), (V, M[0])),
        "add rows": Case(lambda x, u: x.at[np.array([1, 1])].add(u), (M, M + 0.1)),
        "add to zeros": Case(lambda u: jnp.zeros(4).at[np.array([1, 3, 1])].add(u), (M[0],)),
        "set": Case(lambda x, u: x.at[np.array([2, 0])].set(u), (V, M[0, :2])),
        "set a constant": Case(lambda x: x.at[np.array([2, 0])].set(1.0), (V,)),
        "set an element": Case(lambda x, u: x.at[1].set(u), (V, SCALAR)),
        "set a slice": Case(lambda x, u: x.at[1:3].set(u), (V, M[0, :2])),
        "set a column": Case(lambda x, u: x.at[:, 1].set(u), (M, V[:2])),
        "set every other": Case(lambda x: x.at[::2].set(x[1::2]), (V,)),
        "subtract": Case(lambda x, u: x.at[np.array([0, 1])].subtract(u), (V, M[0, :2])),
        "multiply": Case(lambda x: x.at[np.array([2, 0])].multiply(np.array([2.0, 3.0])), (V,)),
        "min": Case(lambda x: x.at[np.array([2, 0])].min(0.1), (V,), warp=False),
        "max": Case(lambda x: x.at[np.array([2, 0])].max(0.1), (V,), warp=False),
        "out of range dropped": Case(lambda x, u: x.at[np.array([1, 9])].add(u), (V, M[0, :2])),
        "pairs": Case(lambda x, u: x.at[I2[:2, 0], I2[:2, 1]].add(u), (M, V[:2])),
        "segment_sum": Case(
            lambda x: jax.ops.segment_sum(x, np.array([0, 1, 1, 0]), num_segments=3), (V,)
        ),
        "bincount": Case(lambda x: jnp.bincount(np.array([0, 2, 2, 1]), weights=x, length=4), (V,)),
    },
    "dynamic_slice": {
        "constant start": Case(lambda x: lax.dynamic_slice(x, (1,), (2,)), (V,)),
        "clamped start": Case(lambda x: lax.dynamic_slice(x, (3,), (2,)), (V,)),
        "negative start": Case(lambda x: lax.dynamic_slice(x, (-1,), (2,)), (V,)),
        "matrix": Case(lambda x: lax.dynamic_slice(x, (1, 1), (1, 2)), (M,)),
        "computed start": Case(
            lambda x: lax.dynamic_slice(x, (jnp.argmin(x),), (2,)), (V,), warp=False
        ),
        "index in dimension": Case(lambda x: lax.dynamic_index_in_dim(x, 1, 1, False), (M,)),
        "size 0": Case(lambda x: lax.dynamic_slice(x, (1,), (0,)), (V,)),
    },
    "dynamic_update_slice": {
        "constant start": Case(lambda x, u: lax.dynamic_update_slice(x, u, (1,)), (V, V[:2])),
        "clamped start": Case(lambda x, u: lax.dynamic_update_slice(x, u, (3,)), (V, V[:2])),
        "matrix": Case(lambda x, u: lax.dynamic_update_slice(x, u, (0, 1)), (M, M[:1, :2] + 1)),
        "constant update": Case(lambda x: lax.dynamic_update_slice(x, jnp.ones(2), (1,)), (V,)),
        "constant operand": Case(
            lambda u: lax.dynamic_update_slice(jnp.ones(4), u, (1,)), (V[:2],)
        ),
        "computed start": Case(
            lambda x, u: lax.dynamic_update_slice(x, u, (jnp.argmin(x),)),
            (V, V[:2] + 0.1),
            warp=False,
        ),
    },
}

CASES: Table = SHAPES | INDEXING
