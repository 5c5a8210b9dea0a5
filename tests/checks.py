"""Comparison of Jacobians leaf by leaf, vertices of functions, and primitives of programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import numpy as np

from graphax_lapl import SparseJacobian, computational_graph, jacve

ORDERS = ("forward", "reverse", "markowitz")
"""The orders that every comparison goes through."""


def assert_same(actual: Any, expected: Any, *, tolerance: float = 1e-10, context: str = "") -> None:
    """Same pytree, shapes, dtypes and values.

    Args:
        actual: what the library returned.
        expected: the reference.
        tolerance: largest difference, relative to the largest magnitude of the reference leaf
            (at least 1).
        context: printed on failure.
    """
    found, wanted = jax.tree.structure(actual), jax.tree.structure(expected)
    assert found == wanted, f"pytree {found}, expected {wanted}\n{context}"
    paths = jax.tree_util.tree_leaves_with_path(expected)
    for (path, right), left in zip(paths, jax.tree.leaves(actual), strict=True):
        where = f"at {jax.tree_util.keystr(path) or 'the only leaf'}\n{context}"
        left, right = np.asarray(left), np.asarray(right)
        assert left.shape == right.shape, f"shape {left.shape}, expected {right.shape} {where}"
        assert left.dtype == right.dtype, f"dtype {left.dtype}, expected {right.dtype} {where}"
        error, scale = largest_difference(left, right)
        assert error <= tolerance * scale, (
            f"differs by {error:.3g} (scale {scale:.3g}) {where}\n{left}\nexpected\n{right}"
        )


def largest_difference(left: np.ndarray, right: np.ndarray) -> tuple[float, float]:
    """Largest elementwise difference, and the largest magnitude of ``right`` (at least 1).

    Equal infinities and NaN at the same place count as equal.
    """
    wide = np.complex128 if np.iscomplexobj(right) else np.float64
    left, right = left.astype(wide), right.astype(wide)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    difference = np.abs(np.where(same, 0, left) - np.where(same, 0, right))
    finite = np.abs(right[np.isfinite(right)])
    error = float(np.max(np.where(np.isnan(difference), np.inf, difference), initial=0.0))
    return error, float(np.max(finite, initial=1.0))


def check_orders(
    fun: Callable[..., Any],
    *args: Any,
    argnums: Any = 0,
    orders: Sequence[Any] = ORDERS,
    tolerance: float = 1e-10,
    reference: Callable[..., Any] = jax.jacfwd,
    context: str = "",
    **kwargs: Any,
) -> None:
    """Compare ``fun``'s Jacobian by every order with JAX's own.

    Reference and candidates are compiled together, with all arguments traced: one compilation of a
    whole program is about ten times faster than its operations one by one.

    Args:
        fun: the function to differentiate.
        *args: its arguments, arrays in pytrees.
        argnums: as `jax.jacfwd` takes it.
        orders: what to pass as ``order``; a function is called with the (traced) arguments first.
        tolerance: see `assert_same`.
        reference: `jax.jacfwd` or `jax.jacrev`.
        context: printed on failure.
        **kwargs: further arguments of ``fun``.
    """

    @jax.jit
    def every_way(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[Any]]:
        found = [order(*args) if callable(order) else order for order in orders]
        results = [jacve(fun, order=order, argnums=argnums)(*args, **kwargs) for order in found]
        return reference(fun, argnums)(*args, **kwargs), results

    expected, results = every_way(args, kwargs)
    for order, result in zip(orders, results, strict=True):
        assert_same(result, expected, tolerance=tolerance, context=f"order {order}; {context}")


def is_sparse(leaf: Any) -> bool:
    """Whether a leaf is a sparse block."""
    return isinstance(leaf, SparseJacobian)


def dense(tree: Any) -> Any:
    """All sparse blocks written out."""
    return jax.tree.map(
        lambda leaf: leaf.todense() if is_sparse(leaf) else leaf, tree, is_leaf=is_sparse
    )


def eliminable(fun: Callable[..., Any], *args: Any, argnums: Any = 0, **kwargs: Any) -> list[int]:
    """Ids of the eliminable vertices of ``fun``, in topological order; ``kind`` may be passed."""
    nodes = computational_graph(fun, *args, argnums=argnums, **kwargs).to_networkx().nodes
    return sorted(node for node in nodes if isinstance(node, int))


def shuffled_vertices(
    seed: int, fun: Callable[..., Any], *args: Any, argnums: Any = 0, kind: str = "jacobian"
) -> tuple[int, ...]:
    """A random elimination order, drawn from a seed."""
    vertices = eliminable(fun, *args, argnums=argnums, kind=kind)
    return tuple(int(v) for v in np.random.default_rng(seed).permutation(vertices))


def primitives(jaxpr: Any, names: Collection[str]) -> Counter[tuple[int, ...]]:
    """How often a program has some primitives for each shape, nested programs included."""
    counts: Counter[tuple[int, ...]] = Counter()
    for equation in jaxpr.eqns:
        if equation.primitive.name in names:
            counts[equation.outvars[0].aval.shape] += 1
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    counts += primitives(inner, names)
    return counts
