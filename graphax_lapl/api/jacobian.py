"""`jacve` and `value_and_jacve`: Jacobians accumulated by vertex elimination."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import tree_util

from ..edges.terms import intern_structure
from ..emit.stored import block_storage
from ..graph.tracing import Traced, check_callable, check_flags
from ..program.instructions import Block, Program
from .plan import Plan
from .planning import Prepared, Rows, plan_for, prepare
from .sparse import SparseJacobian

__all__ = ["jacve", "nested", "rebuild_aux", "sparse_leaves", "value_and_jacve"]


def jacve(
    fun: Callable[..., Any],
    order: Any = "auto",
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    count_ops: bool = False,
    sparse_representation: bool = False,
    strict: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[..., Any]:
    """The Jacobian of `fun`, accumulated by eliminating vertices in `order`.

    Args:
        fun: any function that JAX can differentiate, of pytrees, returning a pytree of real or
            complex floating-point arrays.
        order: "auto", "forward" ("fwd"), "reverse" ("rev"), "markowitz", "search", "optimal" or
            another name of `elimination_orders.ORDERS`; "autotune" or an `Autotune`, which time
            candidates; a strategy such as `elimination_orders.Annealing(max_time=5)`; a permutation
            of the vertex ids that `computational_graph` lists; an `EliminationOrder` or a `Plan`.
            Or not eliminated but evaluated with few products, by colouring: "compressed",
            "compressed_forward",
            "compressed_reverse", "compressed_both", "compressed_symmetric", or a `Compressed`.
        argnums: which positional arguments to differentiate with respect to.
        has_aux: whether `fun` returns a pair `(value, aux)`; aux is returned as it is.
        count_ops: also return the `OpCounts` of the accumulation.
        sparse_representation: leaves are `SparseJacobian`s instead of dense arrays.
        strict: raise `FallbackError` where a part of `fun` has no rule: an unknown primitive, or a
            loop or branch that is differentiated as a whole. Without it such parts are opaque
            linear maps, right but with less structure, and the log of "graphax_lapl" names them
            once.
        holomorphic: a promise that `fun` is holomorphic, as in `jax.jacrev`: raise
            `InvalidTypeError` where an input or output is not complex. It changes no result:
            holomorphic functions are differentiated without it too, and functions that are not
            holomorphic are refused with it too, where JAX returns what means nothing.
        allow_int: whether arguments at argnums may hold integers and booleans. Their derivatives
            are zeros of their own dtype, as in `jax.jacrev`.

    Returns:
        A function with the signature of `fun` that returns what `jax.jacrev(fun, argnums,
        has_aux)` returns: for every output leaf and every input leaf an array of shape
        `(*output.shape, *input.shape)`. With has_aux `(jacobian, aux)`; with count_ops
        `(jacobian, OpCounts)` or `(jacobian, aux, OpCounts)`.

    Raises:
        InvalidArgumentError: for argnums out of range or arguments without arrays.
        InvalidTypeError: for inputs or outputs that cannot be differentiated.
        InvalidOrderError: for an order that does not fit the function.
        FallbackError: with strict, naming the primitive and the line of the user's code.

    Example:
        >>> import jax.numpy as jnp
        >>> from graphax_lapl import jacve
        >>> jacve(lambda x: jnp.sin(x) * x, order="reverse")(jnp.array([0.0, 1.0])).shape
        (2, 2)
    """
    check_callable(fun)
    check_flags(
        has_aux=has_aux,
        count_ops=count_ops,
        sparse_representation=sparse_representation,
        strict=strict,
        holomorphic=holomorphic,
        allow_int=allow_int,
    )

    @functools.wraps(fun, updated=())
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        prepared = prepare(
            fun,
            args,
            kwargs,
            argnums,
            has_aux,
            strict=strict,
            holomorphic=holomorphic,
            allow_int=allow_int,
        )
        plan = plan_for(prepared, order, sparse_representation)
        values, tree = _evaluate(prepared, plan, with_values=False, sparse=sparse_representation)
        results: list[Any] = [tree]
        if has_aux:
            results.append(rebuild_aux(prepared, values))
        if count_ops:
            results.append(plan.counts)
        return tuple(results) if len(results) > 1 else tree

    return jacobian


def value_and_jacve(
    fun: Callable[..., Any],
    order: Any = "auto",
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    count_ops: bool = False,
    sparse_representation: bool = False,
    strict: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[..., Any]:
    """Value and Jacobian of `fun` in one program, like `jax.value_and_grad`.

    Arguments and errors are those of `jacve`.

    Returns:
        A function that returns `(value, jacobian)`, or with has_aux `((value, aux), jacobian)`;
        with count_ops the `OpCounts` follow.
    """
    check_callable(fun)
    check_flags(
        has_aux=has_aux,
        count_ops=count_ops,
        sparse_representation=sparse_representation,
        strict=strict,
        holomorphic=holomorphic,
        allow_int=allow_int,
    )

    @functools.wraps(fun, updated=())
    def value_and_jacobian(*args: Any, **kwargs: Any) -> Any:
        prepared = prepare(
            fun,
            args,
            kwargs,
            argnums,
            has_aux,
            strict=strict,
            holomorphic=holomorphic,
            allow_int=allow_int,
        )
        plan = plan_for(prepared, order, sparse_representation)
        values, tree = _evaluate(prepared, plan, with_values=True, sparse=sparse_representation)
        count = prepared.traced.n_out
        value = tree_util.tree_unflatten(prepared.traced.out_tree, values[:count])
        if has_aux:
            value = (value, rebuild_aux(prepared, values[count:]))
        return (value, tree, plan.counts) if count_ops else (value, tree)

    return value_and_jacobian


def _evaluate(
    prepared: Prepared, plan: Plan, with_values: bool, sparse: bool
) -> tuple[list[Any], Any]:
    """Run a plan on the call's values; kept output values and the tree of Jacobian leaves."""

    def compute(own: Prepared, _: Any) -> Rows:
        values, blocks = own.run(plan, with_values, sparse)
        return values, sparse_leaves(plan.pruned(with_values), blocks) if sparse else blocks

    values, rows = prepared.within(compute, prepared.columns)
    return values, nested(prepared, _with_integers(prepared.traced, rows, sparse))


def _with_integers(traced: Traced, rows: list[list[Any]], sparse: bool) -> list[list[Any]]:
    """Blocks of all leaves, with zeros where a leaf is an integer."""
    if all(type_ is None for type_ in traced.in_leaves):
        return rows

    def zeros(shape: tuple[int, ...], type_: Any) -> Any:
        if sparse:
            return SparseJacobian(intern_structure(shape, type_.shape, ()), (), type_.dtype)
        return jnp.zeros((*shape, *type_.shape), type_.dtype)

    whole = []
    for variable, row in zip(traced.closed.jaxpr.outvars, rows, strict=False):
        blocks, shape = iter(row), variable.aval.shape
        whole.append([next(blocks) if t is None else zeros(shape, t) for t in traced.in_leaves])
    return whole


def sparse_leaves(
    program: Program, blocks: Sequence[Sequence[Sequence[Any]]]
) -> list[list[SparseJacobian]]:
    """Blocks as a user sees them, from the arrays that each of them keeps."""
    return [
        [_sparse_leaf(block, program, arrays) for block, arrays in zip(row, kept, strict=True)]
        for row, kept in zip(program.blocks, blocks, strict=True)
    ]


def _sparse_leaf(block: Block, program: Program, arrays: Sequence[Any]) -> SparseJacobian:
    if block.structure is None:
        empty = intern_structure(block.out_shape, block.in_shape, ())
        return SparseJacobian(empty, (), block.dtype)
    storage = block_storage(block, program)
    return SparseJacobian(storage.structure, tuple(arrays), block.dtype, storage.sources)


def nested(prepared: Prepared, blocks: list[list[Any]]) -> Any:
    """Nest the blocks as `jax.jacrev` does: output tree, then argnums, then input trees."""
    traced = prepared.traced
    rows = []
    for row in blocks:
        leaves = iter(row)  # in the order of the arguments, which argnums may not keep
        trees = sorted(zip(traced.argnums, traced.in_trees, strict=True), key=lambda pair: pair[0])
        by_position = {
            position: tree_util.tree_unflatten(tree, [next(leaves) for _ in range(tree.num_leaves)])
            for position, tree in trees
        }
        per_argument = [by_position[position] for position in traced.argnums]
        rows.append(per_argument[0] if traced.single else tuple(per_argument))
    return tree_util.tree_unflatten(traced.out_tree, rows)


def rebuild_aux(prepared: Prepared, values: Sequence[Any]) -> Any:
    """The auxiliary output from its array leaves."""
    assert prepared.traced.aux is not None
    return prepared.traced.aux(values)
