"""Comparison of Laplacians and Hessians with JAX's own, whole program by whole program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from graphax_lapl import hessve, laplacian_ve
from tests.checks import assert_same, dense, shuffled_vertices

ORDERS = ("forward", "reverse", "auto", "explicit")
"""Orders of a Laplacian; "explicit" is a random permutation of the vertices' ids."""


def reference_hessian(fun: Callable[..., Any], *args: Any, argnums: Any = 0, **kwargs: Any) -> Any:
    """What `jax.hessian` returns; forward over forward where JAX's reverse mode raises.

    It does so for a while loop, and for padding that only the filler moves through.
    """
    try:
        jax.eval_shape(lambda args: jax.jacrev(fun, argnums)(*args, **kwargs), args)
    except (ValueError, TypeError):
        return jax.jit(jax.jacfwd(jax.jacfwd(fun, argnums), argnums))(*args, **kwargs)
    return jax.jit(jax.hessian(fun, argnums))(*args, **kwargs)


def laplacian_of(hessian: Any, outputs: Any, inputs: Any) -> Any:
    """The sum of the diagonals of a Hessian pytree.

    Args:
        hessian: as `jax.hessian` returns it.
        outputs: the function's value.
        inputs: the differentiated argument, or the tuple of them.
    """
    leaves = jax.tree.leaves(inputs)
    count = len(leaves)
    blocks = jax.tree.leaves(hessian)
    values, tree = jax.tree.flatten(outputs)
    totals = []
    for k, value in enumerate(values):
        total = jnp.zeros(value.shape, value.dtype)
        for i, leaf in enumerate(leaves):
            block = blocks[(k * count + i) * count + i]
            square = jnp.reshape(block, (*value.shape, leaf.size, leaf.size))
            total = total + jnp.trace(square, axis1=-2, axis2=-1).astype(value.dtype)
        totals.append(total)
    return jax.tree.unflatten(tree, totals)


def differentiated(args: Sequence[Any], argnums: Any) -> Any:
    """The arguments that `argnums` names, as one pytree."""
    return args[argnums] if isinstance(argnums, int) else tuple(args[n] for n in argnums)


def value_and_gradient(operator: Callable[..., Any], params: Any, xs: Any) -> Any:
    """Gradient by the parameters of a loss of an operator's values over a batch, and the values."""

    def loss(params: Any) -> Any:
        values = jax.vmap(operator, (None, 0))(params, xs)
        return jnp.sum(jnp.sin(values)), values

    return jax.jit(jax.value_and_grad(loss, has_aux=True))(params)


def check_second_order(
    fun: Callable[..., Any],
    *args: Any,
    argnums: Any = 0,
    orders: Sequence[str] = ORDERS,
    hessians: Sequence[bool] = (False, True),
    tolerance: float = 1e-9,
    seed: int = 0,
    reference: Callable[..., Any] = reference_hessian,
    context: str = "",
    **kwargs: Any,
) -> None:
    """Compare Laplacians by every order and both forms of the Hessian with JAX's Hessian.

    All are compiled together, see `tests.checks.check_orders`.

    Args:
        fun: the function to differentiate.
        *args: its arguments, arrays in pytrees.
        argnums: as `jax.hessian` takes it.
        orders: of `ORDERS`.
        hessians: for each Hessian whether it is sparse.
        tolerance: see `tests.checks.assert_same`.
        seed: of the explicit order.
        reference: makes the Hessian to compare with.
        context: printed on failure.
        **kwargs: further arguments of ``fun``.
    """

    @jax.jit
    def every_way(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        def bound(*args: Any) -> Any:
            return fun(*args, **kwargs)

        expected = reference(bound, *args, argnums=argnums)
        trace = laplacian_of(expected, bound(*args), differentiated(args, argnums))
        laplacians = []
        for name in orders:
            order: Any = name
            if name == "explicit":
                order = shuffled_vertices(seed, bound, *args, argnums=argnums, kind="laplacian")
            laplacians.append(laplacian_ve(bound, order=order, argnums=argnums)(*args))
        found = [
            dense(hessve(bound, argnums=argnums, sparse_representation=sparse)(*args))
            for sparse in hessians
        ]
        return expected, trace, laplacians, found

    args = jax.tree.map(jnp.asarray, args)
    expected, trace, laplacians, found = every_way(args, kwargs)
    for name, result in zip(orders, laplacians, strict=True):
        note = f"Laplacian, order {name}; {context}"
        assert_same(result, trace, tolerance=tolerance, context=note)
    for sparse, result in zip(hessians, found, strict=True):
        note = f"Hessian, sparse {sparse}; {context}"
        assert_same(result, expected, tolerance=tolerance, context=note)
