"""Pytest plugin: folx's own tests, with the forward Laplacian of graphax_lapl in place of its own.

`python -m tests.peers folx` loads it. Results are folx's own classes, filled with our numbers, so
that what its tests ask of them is answered by its code. A nonzero sparsity threshold asks for
our structure: the entries of a sparse Jacobian with the inputs that they belong to.
"""

import sys
from collections.abc import Callable
from typing import Any

import folx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from folx.api import FwdJacobian, FwdLaplArray
from jax import lax
from jax.flatten_util import ravel_pytree

from graphax_lapl import LaplacianResult, forward_laplacian as ours, laplacian_ve

#: Parts of test ids, each with the reason why it says nothing about derivatives of ours.
DESELECTED: dict[str, str] = {
    **dict.fromkeys(
        (
            "test_slogdet_sparse_0_row_sparse",
            "test_slogdet_sparse_1_two_rows",
            "test_slogdet_sparse_2_columns",
            "test_slogdet_sparse_3_two_columns",
            "test_slogdet_sparse_5_batched",
            "test_slogdet_element_sparse",
        ),
        "counts calls of a function of folx's for sparse matrices",
    ),
    "test_custom_hessian": "folx's registry of rules, with a rule that is wrong on purpose",
}


def pytest_configure(config: pytest.Config) -> None:
    """Puts ours in the place of `folx.forward_laplacian`, wherever it was imported by name."""
    del config
    original = folx.forward_laplacian
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "folx" and getattr(module, "forward_laplacian", None) is original:
            module.forward_laplacian = forward_laplacian


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what `DESELECTED` names."""
    out = [item for item in items if any(part in item.nodeid for part in DESELECTED)]
    items[:] = [item for item in items if item not in out]
    config.hook.pytest_deselected(items=out)


def forward_laplacian(
    function: Callable[..., Any], sparsity_threshold: float = 0, disable_jit: bool = False
) -> Callable[..., Any]:
    """Stands for `folx.forward_laplacian`: the same arguments, the same kind of result."""

    def call(*args: Any, weights: Any = None, **kwargs: Any) -> Any:
        shapes = jax.eval_shape(lambda *a: function(*a, **kwargs), *args)
        if not any(jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in jax.tree.leaves(shapes)):
            return function(*args, **kwargs)
        if any(map(jnp.iscomplexobj, jax.tree.leaves(args))):
            # Folx differentiates a complex argument along the real axis.
            imaginary, real = jax.tree.map(jnp.imag, args), jax.tree.map(jnp.real, args)

            def along_real(*x: Any) -> Any:
                return function(*jax.tree.map(_with_imaginary, x, args, imaginary), **kwargs)

            return forward_laplacian(along_real, sparsity_threshold, disable_jit=True)(
                *real, weights=weights
            )
        positions = tuple(range(len(args)))
        sizes = [np.size(leaf) for leaf in jax.tree.leaves(args)]
        threshold = sparsity_threshold
        if 0 < threshold < 1:
            threshold = int(threshold * sum(sizes))
        result = ours(function, argnums=positions)(*args, **kwargs)
        scale = None if weights is None else _per_entry(weights, args)
        is_result = {"is_leaf": lambda leaf: isinstance(leaf, LaplacianResult)}
        if scale is not None:
            weighted = laplacian_ve(function, argnums=positions, weights=jnp.square(scale))
            values = weighted(*args, **kwargs)
            result = jax.tree.map(
                lambda leaf, laplacian: LaplacianResult(leaf.x, leaf.jacobian, laplacian),
                result,
                values,
                **is_result,
            )
        return jax.tree.map(lambda leaf: _converted(leaf, threshold, scale), result, **is_result)

    return call if disable_jit else jax.jit(call)


def _with_imaginary(real: Any, argument: Any, imaginary: Any) -> Any:
    """The argument again, from its parts, where it is complex."""
    return lax.complex(real, imaginary) if jnp.iscomplexobj(argument) else real


def _per_entry(weights: Any, args: Any) -> jax.Array:
    """Folx's weights (a tree that broadcasts to the arguments) as one vector over all entries."""
    trees = weights if isinstance(weights, tuple) else (weights,) * len(args)
    full = [
        jax.tree.map(lambda leaf, w=tree: jnp.broadcast_to(w, jnp.shape(leaf)), argument)
        for tree, argument in zip(trees, args, strict=True)
    ]
    return ravel_pytree(full)[0]


def _converted(leaf: Any, threshold: float, scale: Any) -> Any:
    """A result of ours as folx's; an output that depends on no input is a bare array there."""
    if not isinstance(leaf, LaplacianResult):
        return leaf
    inputs = _inputs_of_entries(leaf)
    if not len(inputs):
        return leaf.x
    dense = leaf.jacobian.dense_array
    if scale is not None:
        dense = dense * scale
    if len(inputs) > threshold:
        jacobian = FwdJacobian(jnp.moveaxis(dense, -1, 0))
    else:
        columns = jnp.asarray(np.moveaxis(inputs, 0, -1))
        entries = jnp.where(
            columns < 0, 0, jnp.take_along_axis(dense, jnp.maximum(columns, 0), axis=-1)
        )
        jacobian = FwdJacobian(jnp.moveaxis(entries, -1, 0), inputs)
    return FwdLaplArray(leaf.x, jacobian, leaf.laplacian)


def _inputs_of_entries(leaf: LaplacianResult) -> np.ndarray:
    """For every output entry the inputs it depends on, and -1 up to the largest number of them.

    Returns:
        int32 of shape `(most inputs of an entry, *output)`, as folx keeps it.
    """
    size = int(np.prod(leaf.x.shape))
    rows: list[list[int]] = [[] for _ in range(size)]
    offset = 0
    for block in leaf.jacobian.blocks:
        at, columns = block._rows_and_columns()
        for row, column in zip(at.tolist(), columns.tolist(), strict=True):
            rows[row].append(column + offset)
        offset += int(np.prod(block.in_shape))
    most = max(map(len, rows), default=0)
    table = np.full((size, most), -1, np.int32)
    for row, found in enumerate(rows):
        table[row, : len(found)] = found
    return np.moveaxis(table.reshape(*leaf.x.shape, most), -1, 0)
