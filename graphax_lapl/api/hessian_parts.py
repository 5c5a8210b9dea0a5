"""The diagonal of a Hessian and its products with vectors, without the Hessian."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, dtypes, tree_util

from ..errors import InvalidArgumentError, InvalidTypeError
from ..graph.tracing import check_callable, check_flags, normalized_argnums
from ..program.hessian_diagonal import build_hessian_diagonal
from .jacobian import jacve, nested, rebuild_aux
from .orders import EliminationOrder
from .plan import Plan
from .planning import Prepared, Rows, prepare, programmed
from .twice import check_real_inputs, follows_rules_of_rules, hessian_blocks, reverse_only

__all__ = ["diagonal_plan", "hessian_diagonal", "hessian_vector_product"]

#: Orders that "auto" chooses from.
CARRYING_ORDERS = ("forward", "reverse")


def hessian_diagonal(
    fun: Callable[..., Any],
    order: Any = "auto",
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    strict: bool = False,
) -> Callable[..., Any]:
    """All `d2f/dx_d^2`, the diagonal of the Hessian, which is not formed.

    Every nonlinear operation contributes one column per input number, `H_v[du/dx_d, du/dx_d]`,
    carried to the outputs as the single column of a Laplacian is: for a network of width m on n
    inputs about m n multiplications per layer after the Jacobians, instead of m n^2.

    Args:
        fun: a function of real arrays (pytrees) that returns real or complex ones. Where it holds
            loops, branches, linear algebra or rules whose second derivative is taken of JAX's own
            first one, the dense Hessian is formed and its diagonal returned.
        order: how columns are carried, as for `laplacian_ve`.
        argnums: which positional arguments to differentiate with respect to.
        has_aux: whether `fun` returns a pair `(value, aux)`.
        strict: raise `FallbackError` where a part of `fun` has no rule, as for `laplacian_ve`.

    Returns:
        A function with the signature of `fun` that returns a tree like `jax.jacrev`: for every
        output leaf and every input leaf an array of shape `(*output.shape, *input.shape)`; with
        has_aux `(diagonal, aux)`.

    Raises:
        InvalidArgumentError: for argnums out of range.
        InvalidTypeError: for complex or integer arguments.
        InvalidOrderError: for an order that does not fit the function.
        FallbackError: with strict, naming the primitive and the line of the user's code.

    Example:
        >>> import jax.numpy as jnp
        >>> from graphax_lapl import hessian_diagonal
        >>> print(hessian_diagonal(lambda x: x[0] ** 3 * x[1] ** 2)(jnp.array([1.0, 2.0])))
        [24.  2.]
    """
    check_callable(fun)
    check_flags(has_aux=has_aux, strict=strict)

    @functools.wraps(fun, updated=())
    def diagonal(*args: Any, **kwargs: Any) -> Any:
        prepared = prepare(fun, args, kwargs, argnums, has_aux, 2, strict)
        check_real_inputs(prepared.traced)

        def compute(own: Prepared, _: Any) -> Rows:
            if follows_rules_of_rules(own) or own.second.unknown:
                return own.aux_values(), _diagonals_of_blocks(own, order)
            return own.run(diagonal_plan(own, order))

        values, rows = prepared.within(compute, prepared.columns)
        tree = nested(prepared, rows)
        return (tree, rebuild_aux(prepared, values)) if has_aux else tree

    return diagonal


def diagonal_plan(prepared: Prepared, order: Any) -> Plan:
    """The plan of a Hessian's diagonal."""

    def best(orders: Sequence[EliminationOrder]) -> Plan:
        plans = [
            Plan(
                prepared.graph,
                order,
                build_hessian_diagonal(prepared.second, order.vertices),
                pieces=True,
            )
            for order in orders
        ]
        return min(plans, key=lambda plan: plan.predicted_work)

    return programmed(prepared, order, "hessian diagonal", best, CARRYING_ORDERS)


def _diagonals_of_blocks(prepared: Prepared, order: Any) -> list[list[Array]]:
    shapes = [aval.shape for aval in prepared.traced.in_types]
    rows = []
    for blocks in hessian_blocks(prepared, order, False):
        row = []
        for k, shape in enumerate(shapes):
            block = blocks[k][k]
            out, size = block.shape[: block.ndim - 2 * len(shape)], math.prod(shape)
            found = jnp.diagonal(block.reshape(*out, size, size), axis1=-2, axis2=-1)
            row.append(found.reshape(*out, *shape))
        rows.append(row)
    return rows


def hessian_vector_product(
    fun: Callable[..., Any], order: Any = "auto", argnums: int | Sequence[int] = 0
) -> Callable[..., Any]:
    """The product of the Hessian with a vector, without the Hessian.

    It is the directional derivative of the accumulated first derivatives, whose cost is a small
    multiple of theirs and does not grow with the number of inputs. For many products at one point
    `hessve(fun, sparse_representation=True)(x) @ v` reads the stored entries instead.

    Args:
        fun: a function of real arrays (pytrees) that returns real or complex ones.
        order: how the first derivatives are accumulated, as for `jacve`.
        argnums: which positional arguments to differentiate with respect to.

    Returns:
        A function of the arguments of `fun` followed by the vector, a pytree like the argument (for
        argnums as a tuple: like the tuple of arguments). It returns a tree like `jax.jacrev`:
        for every output leaf and input leaf an array of shape `(*output.shape, *input.shape)`.

    Raises:
        InvalidArgumentError: where the vector is not like the arguments, and for argnums out of
            range.
        InvalidTypeError: for integer arguments, and for a complex vector of real ones.
        InvalidOrderError: for an order that does not fit the function.

    Example:
        >>> import jax.numpy as jnp
        >>> from graphax_lapl import hessian_vector_product
        >>> product = hessian_vector_product(lambda x: x[0] ** 2 * x[1])
        >>> print(product(jnp.array([1.0, 2.0]), jnp.array([1.0, 0.0])))
        [4. 2.]
    """
    check_callable(fun)

    @functools.wraps(fun, updated=())
    def product(*arguments: Any, **kwargs: Any) -> Any:
        if len(arguments) < 2:
            raise InvalidArgumentError(
                f"The product with the Hessian of {getattr(fun, '__name__', type(fun).__name__)} "
                "takes the arguments and then a vector, by position: "
                "hessian_vector_product(fun)(x, vector); got "
                f"{len(arguments)} positional argument{'s' * (len(arguments) != 1)}."
            )
        *args, vector = arguments
        prepared = prepare(fun, tuple(args), kwargs, argnums)
        # JAX's own reverse mode applies the user's rules before the product meets them.
        by_rules = reverse_only(prepared.traced.closed.jaxpr)
        first = jax.jacrev(fun, argnums) if by_rules else jacve(fun, order, argnums)
        positions, single = normalized_argnums(argnums, len(args), "fun")
        chosen = tuple(args[position] for position in positions)
        vectors = (vector,) if single else vector
        tangents = _tangents(chosen, vectors)

        def gradient(*moving: Any) -> Any:
            whole = list(args)
            for position, value in zip(positions, moving, strict=True):
                whole[position] = value
            return first(*whole, **kwargs)

        return jax.jvp(gradient, chosen, tangents)[1]

    return product


def _tangents(chosen: tuple[Any, ...], vectors: Any) -> tuple[Any, ...]:
    """The vector in the structure and dtypes of the arguments."""
    tree: Any = tree_util.tree_structure(chosen)
    leaves, given = tree_util.tree_flatten(vectors if isinstance(vectors, tuple) else (vectors,))
    targets = tree_util.tree_leaves(chosen)
    shapes = [jnp.shape(leaf) for leaf in targets]
    if given != tree or [jnp.shape(leaf) for leaf in leaves] != shapes:
        found = [jnp.shape(leaf) for leaf in leaves]
        expected, got = ("", "") if given == tree else (f"{tree} with ", f"{given} with ")
        raise InvalidArgumentError(
            "The last argument must be a vector like the differentiated arguments, "
            f"{expected}shapes {shapes}; got {got}shapes {found}."
        )
    for leaf, target in zip(leaves, targets, strict=True):
        dtype = getattr(leaf, "dtype", None) or np.asarray(leaf).dtype
        is_real = dtypes.issubdtype(dtype, np.floating) or dtypes.issubdtype(dtype, np.integer)
        if not is_real and not (jnp.iscomplexobj(target) and dtypes.issubdtype(dtype, np.number)):
            raise InvalidTypeError(
                "The last argument must be a vector like the differentiated arguments, of dtype "
                f"{dtypes.result_type(target)}; got dtype {dtype}. Take the products with the real "
                "and imaginary parts of a complex vector."
            )
    return tuple(
        tree_util.tree_unflatten(
            tree,
            [
                jnp.asarray(leaf).astype(dtypes.result_type(target))
                for leaf, target in zip(leaves, targets, strict=True)
            ],
        )
    )
