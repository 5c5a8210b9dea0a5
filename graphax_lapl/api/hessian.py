"""Hessians by vertex elimination."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from jax import tree_util

from ..graph.tracing import check_callable, check_flags
from ..program.hessian import build_hessian
from ..program.repetition import layers
from ..program.row_hessian import build_row_hessian, most_products
from .compression import COMPRESSED_ORDERS, Compressed
from .hessian_of_layers import plan_of_layers
from .jacobian import rebuild_aux, sparse_leaves
from .orders import EliminationOrder
from .plain import hessian_ways
from .plan import Plan
from .planning import Prepared, Rows, plan_for, prepare, programmed
from .twice import (
    check_real_inputs,
    follows_rules_of_rules,
    has_complex_inputs,
    hessian_blocks,
    is_complex_linear,
)

__all__ = ["hessian_plan", "hessve", "value_and_hessve"]

#: Where rows of few numbers do not mix, elimination is given up after so many operations on
#: partials for each product that would do instead: XLA takes long to compile them, and blocks that
#: full are computed faster by products.
OPERATIONS_PER_PRODUCT = 12


def hessve(
    fun: Callable[..., Any],
    order: Any = "auto",
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    sparse_representation: bool = False,
    strict: bool = False,
    holomorphic: bool = False,
) -> Callable[..., Any]:
    """The Hessian of `fun`, with the sparsity that it has.

    The Hessian is the sum over nonlinear operations v of `dy/dv H_v[du/dx, du/dx]`, with u the
    arguments of v: adjoints and Jacobians are accumulated once, and every term of the sum is a
    product of structured factors (the edge pushing of Gower and Mello, 2012, in closed form). Of
    a symmetric block pair one is computed. In networks the columns of `dy/dv H_v du/dx` are pulled
    back through layers first, where that has less to do.

    Args:
        fun: a function of real arrays (pytrees) that returns real or complex ones, or with
            `holomorphic` of complex arrays.
        order: as for `jacve`; it decides how first derivatives are accumulated where the Hessian is
            taken as the Jacobian of the gradient (functions with loops, branches or linear
            algebra), and is checked in all cases. "compressed", "compressed_symmetric" and
            `Compressed(...)` colour the Hessian and evaluate products with it; "autotune" and an
            `Autotune` time the plan against `jax.hessian` (also an order: "jax.hessian").
        argnums: which positional arguments to differentiate with respect to.
        has_aux: whether `fun` returns a pair `(value, aux)`.
        sparse_representation: leaves are `SparseJacobian`s, maps from the second argument's
            dimensions to those of the output and the first argument.
        strict: raise `FallbackError` where a part of `fun` has no rule: an unknown primitive, a
            loop or branch that is differentiated as a whole, or a second derivative without closed
            form. Without it such parts are opaque linear maps or differentiated twice, right but
            with less structure, and the log of "graphax_lapl" names them once.
        holomorphic: a promise that `fun` is a holomorphic function of complex arrays, as in
            `jax.hessian`; complex second derivatives are returned. It is checked.

    Returns:
        A function with the signature of `fun` that returns what `jax.hessian(fun, argnums,
        has_aux)` returns: for every output leaf and every two input leaves an array of shape
        `(*output.shape, *first.shape, *second.shape)`; with has_aux `(hessian, aux)`.

    Raises:
        InvalidArgumentError: for argnums out of range or arguments without arrays.
        InvalidTypeError: for integer arguments, and for complex ones without `holomorphic`; with it
            for real inputs or outputs, and for functions that are not holomorphic.
        InvalidOrderError: for an order that does not fit the function.
        FallbackError: with strict, naming the primitive and the line of the user's code.

    Example:
        >>> import jax.numpy as jnp
        >>> from graphax_lapl import hessve
        >>> print(hessve(lambda x: x[0] ** 2 * x[1])(jnp.array([1.0, 2.0])))
        [[4. 2.]
         [2. 0.]]
    """
    check_callable(fun)
    check_flags(
        has_aux=has_aux,
        sparse_representation=sparse_representation,
        strict=strict,
        holomorphic=holomorphic,
    )

    @functools.wraps(fun, updated=())
    def hessian(*args: Any, **kwargs: Any) -> Any:
        prepared = _prepared(fun, args, kwargs, argnums, has_aux, strict, holomorphic)
        aux, tree = _evaluate(prepared, order, False, sparse_representation)
        return (tree, rebuild_aux(prepared, aux)) if has_aux else tree

    return hessian


def value_and_hessve(
    fun: Callable[..., Any],
    order: Any = "auto",
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    sparse_representation: bool = False,
    strict: bool = False,
    holomorphic: bool = False,
) -> Callable[..., Any]:
    """Value and Hessian of `fun` in one program, like `jax.value_and_grad`.

    Arguments and errors are those of `hessve`. For the gradient and the Hessian, as a Newton
    step wants them, take `value_and_jacve(jax.grad(fun))`.

    Returns:
        A function that returns `(value, hessian)`, or with has_aux `((value, aux), hessian)`.

    Example:
        >>> import jax.numpy as jnp
        >>> from graphax_lapl import value_and_hessve
        >>> value, hessian = value_and_hessve(lambda x: x[0] ** 2 * x[1])(jnp.array([1.0, 2.0]))
        >>> print(value, hessian[0])
        2.0 [4. 2.]
    """
    check_callable(fun)
    check_flags(
        has_aux=has_aux,
        sparse_representation=sparse_representation,
        strict=strict,
        holomorphic=holomorphic,
    )

    @functools.wraps(fun, updated=())
    def value_and_hessian(*args: Any, **kwargs: Any) -> Any:
        prepared = _prepared(fun, args, kwargs, argnums, has_aux, strict, holomorphic)
        values, tree = _evaluate(prepared, order, True, sparse_representation)
        count = prepared.traced.n_out
        value = tree_util.tree_unflatten(prepared.traced.out_tree, values[:count])
        if has_aux:
            return (value, rebuild_aux(prepared, values[count:])), tree
        return value, tree

    return value_and_hessian


def _prepared(
    fun: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    argnums: int | Sequence[int],
    has_aux: bool,
    strict: bool,
    holomorphic: bool,
) -> Prepared:
    """The traced call, where the Hessian of its function is defined."""
    prepared = prepare(fun, args, kwargs, argnums, has_aux, 2, strict, holomorphic, entries=True)
    if not holomorphic:
        check_real_inputs(prepared.traced)
    elif not is_complex_linear(prepared.graph):
        first = prepare(fun, args, kwargs, argnums, has_aux, holomorphic=True)
        plan_for(first, "reverse")  # it refuses what is not holomorphic
    return prepared


def _evaluate(
    prepared: Prepared, order: Any, with_values: bool, sparse: bool
) -> tuple[list[Any], Any]:
    """Kept output values, auxiliary ones last, and the tree of second derivatives."""
    plan = hessian_plan(prepared, order, sparse)

    def compute(own: Prepared, _: Any) -> Rows:
        if plan is None:
            rows = hessian_blocks(own, order, sparse)
            values = own.values() if with_values else own.aux_values()
            return values, [[b for row in block for b in row] for block in rows]
        values, flat = own.run(plan, with_values, sparse)
        return values, sparse_leaves(plan.pruned(with_values), flat) if sparse else flat

    count = len(prepared.traced.in_types)
    columns = list(itertools.product(range(count), repeat=2))
    values, flat = prepared.within(compute, columns)
    rows = [[row[k * count : (k + 1) * count] for k in range(count)] for row in flat]
    return values, _nested(prepared, rows)


def hessian_plan(prepared: Prepared, order: Any, sparse: bool = False) -> Plan | None:
    """The plan on the function's own graph; None where the gradient is differentiated instead."""
    named = order.lower() if isinstance(order, str) else order
    if isinstance(named, Compressed) or (isinstance(named, str) and named in COMPRESSED_ORDERS):
        return None  # the compressed Jacobian of the gradient
    if follows_rules_of_rules(prepared) or prepared.second.unknown:
        return None
    if has_complex_inputs(prepared.traced) and not is_complex_linear(prepared.graph):
        return None

    def build(orders: Sequence[EliminationOrder]) -> Plan:
        rows = None if prepared.second.opaque else build_row_hessian(prepared.second)
        limit = None if rows is None else OPERATIONS_PER_PRODUCT * most_products(rows)
        program = build_hessian(prepared.second, limit)
        if program is not None and not sparse and layers(prepared.listing) > 1:
            return plan_of_layers(prepared, orders[0], program)
        program = program or rows
        assert program is not None
        return Plan(prepared.graph, orders[0], program)

    ways = {} if sparse or has_complex_inputs(prepared.traced) else hessian_ways(prepared)
    wanted = "sparse hessian" if sparse else "hessian"
    alone = "jax.hessian"
    return programmed(
        prepared, order, wanted, build, ("reverse",), ways=ways, sparse=sparse, alone=alone
    )


def _nested(prepared: Prepared, rows: list[list[list[Any]]]) -> Any:
    """Nest the blocks as `jax.hessian` does."""
    traced = prepared.traced

    def by_argument(leaves: list[Any]) -> Any:
        remaining = iter(leaves)  # in the order of the arguments, which argnums may not keep
        trees = sorted(zip(traced.argnums, traced.in_trees, strict=True), key=lambda pair: pair[0])
        found = {
            position: tree_util.tree_unflatten(
                tree, [next(remaining) for _ in range(tree.num_leaves)]
            )
            for position, tree in trees
        }
        ordered = [found[position] for position in traced.argnums]
        return ordered[0] if traced.single else tuple(ordered)

    return tree_util.tree_unflatten(
        traced.out_tree, [by_argument([by_argument(row) for row in block]) for block in rows]
    )
