"""What all derivatives of second order share: checks, leaf orders, and the way around.

The way around differentiates JAX's own first derivative once more. It is taken where a second
derivative cannot be accumulated on the function's own graph: a `custom_vjp` gives its rule for
cotangents only, and a `custom_jvp` may say of a moving value that it does not move.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import jaxpr_as_fun

from ..errors import NO_MODE_ERRORS, GraphaxLaplError, InvalidTypeError, no_rule_refused
from ..graph.calls import COTANGENT_CALLS, CUSTOM_CALLS
from ..graph.computational_graph import ComputationalGraph
from ..graph.listing import nested_primitives
from ..graph.tracing import Traced
from ..graph.users_rules import is_users_rule
from ..program.laplacian import Metric
from .autotune import as_autotune
from .jacobian import jacve
from .orders import is_strategy, resolve_order
from .planning import Prepared

__all__ = [
    "check_real_inputs",
    "contracted",
    "contracted_hessian",
    "follows_rules_of_rules",
    "has_complex_inputs",
    "hessian_blocks",
    "is_complex_linear",
    "raveling_order",
    "reverse_only",
]


def reverse_only(jaxpr: Any) -> bool:
    """Whether a jaxpr holds a function whose rule exists for cotangents only."""
    return not COTANGENT_CALLS.isdisjoint(nested_primitives({"jaxpr": jaxpr}))


def check_real_inputs(traced: Traced) -> None:
    """Raise `InvalidTypeError` for complex differentiated leaves."""
    for k, aval in enumerate(traced.in_types):
        if np.issubdtype(aval.dtype, np.complexfloating):
            raise InvalidTypeError(
                f"Differentiated leaf {k} of {traced.name} has dtype {aval.dtype}; second "
                "derivatives are taken with respect to real inputs. Pass its real and imaginary "
                "parts; hessve also takes holomorphic=True."
            )


def has_complex_inputs(traced: Traced) -> bool:
    """Whether a differentiated leaf is complex."""
    return any(np.issubdtype(aval.dtype, np.complexfloating) for aval in traced.in_types)


def is_complex_linear(graph: ComputationalGraph) -> bool:
    """Whether all local derivatives between inputs and outputs are of holomorphic functions."""
    structures = [arrow.recipe.result for arrow in graph.arrows.values()]
    return all(graph.listing.variables[v.variable].is_complex for v in graph.vertices) and not any(
        term.conj for structure in structures if structure is not None for term in structure.terms
    )


def raveling_order(traced: Traced) -> list[int]:
    """Positions of the differentiated leaves, in the order of argnums, among the traced ones."""
    counts = {
        position: tree.num_leaves
        for position, tree in zip(traced.argnums, traced.in_trees, strict=True)
    }
    starts, total = {}, 0
    for position in sorted(counts):
        starts[position] = total
        total += counts[position]
    return [starts[position] + k for position in traced.argnums for k in range(counts[position])]


def follows_rules_of_rules(prepared: Prepared) -> bool:
    """Whether second derivatives have to be taken of JAX's own first ones."""
    return prepared.listing.disagrees or any(
        item.equation.name in COTANGENT_CALLS or _holds_own_rule(item.equation.params)
        for item in prepared.second.opaque
    )


def _holds_own_rule(params: Mapping[str, Any]) -> bool:
    """Whether a loop or branch holds a function with a rule of the user's.

    Its value may move otherwise than the rule says, and only inside can the two be told apart.
    """
    for value in params.values():
        for body in value if isinstance(value, tuple | list) else (value,):
            jaxpr = getattr(body, "jaxpr", body)
            for equation in getattr(jaxpr, "eqns", ()):
                own = equation.primitive.name in CUSTOM_CALLS and is_users_rule(equation.params)
                if own or _holds_own_rule(equation.params):
                    return True
    return False


def hessian_blocks(prepared: Prepared, order: Any, sparse: bool) -> list[list[list[Any]]]:
    """Second derivatives by output leaf, leaf and leaf, as the Jacobian of JAX's first ones."""
    traced = prepared.traced
    places = [k for k, moves in enumerate(traced.differentiated) if moves]
    evaluate = jaxpr_as_fun(traced.closed)
    holomorphic = has_complex_inputs(traced)  # `hessve` has checked it

    def outputs(leaves: Sequence[Array]) -> list[Array]:
        inputs = list(traced.leaves)
        for place, leaf in zip(places, leaves, strict=True):
            inputs[place] = leaf
        found: list[Array] = []
        for value in evaluate(*inputs)[: traced.n_out]:
            complex_value = jnp.iscomplexobj(value) and not holomorphic
            found += [value.real, value.imag] if complex_value else [value]
        return found

    leaves = [jnp.asarray(traced.leaves[place]) for place in places]
    first = jax.jacrev(outputs, holomorphic=holomorphic)
    try:
        jax.eval_shape(first, leaves)
    except GraphaxLaplError:
        raise  # of a derivative that is taken inside a user's rule
    except NO_MODE_ERRORS:  # no reverse mode, as of a while loop
        first = jax.jacfwd(outputs, holomorphic=holomorphic)
        what = f"{traced.name} has no derivative that could be differentiated once more"
        with no_rule_refused(what, "", NO_MODE_ERRORS, rules_run=True):
            jax.eval_shape(first, leaves)
    tuned = as_autotune(order)
    if tuned is not None:  # the candidates by name are about another operator
        order = dataclasses.replace(tuned, candidates=None)
    elif not is_strategy(order):
        resolve_order(order, prepared.graph)  # it is checked, but the graph here is another one
        order = "auto"
    rows = iter(jacve(first, order=order, sparse_representation=sparse)(leaves))
    blocks = []
    for variable in traced.closed.jaxpr.outvars[: traced.n_out]:
        row = next(rows)
        if np.issubdtype(variable.aval.dtype, np.complexfloating) and not holomorphic:
            if sparse:
                raise InvalidTypeError(
                    f"{traced.name} returns complex numbers, and its second derivative is taken of "
                    "JAX's own first one (a loop, a branch or a rule for cotangents only is in "
                    "it); its sparse Hessian is not available. Ask for the dense one."
                )
            row = jax.tree.map(jax.lax.complex, row, next(rows))
        blocks.append(row)
    return blocks


def contracted_hessian(
    prepared: Prepared, order: Any, metric: Metric, arrays: Sequence[Any]
) -> list[Array]:
    """`sum_ij A_ij d2y/dx_i dx_j` by the way around.

    `arrays` are those of the metric, one per leaf or pair of leaves; those of leaves that it does
    not move may be None.
    """
    shapes = [aval.shape for aval in prepared.traced.in_types]
    types = [variable.aval for variable in prepared.traced.closed.jaxpr.outvars]
    return [
        contracted(rows, shapes, aval.shape, aval.dtype, metric, arrays)
        for rows, aval in zip(hessian_blocks(prepared, order, False), types, strict=False)
    ]


def contracted(
    rows: Sequence[Sequence[Array]],
    shapes: Sequence[tuple[int, ...]],
    out: tuple[int, ...],
    dtype: Any,
    metric: Metric,
    arrays: Sequence[Any],
) -> Array:
    """`sum_ij A_ij d2y/dx_i dx_j` of one output from its dense second derivatives.

    Args:
        rows: second derivatives by leaf and leaf.
        shapes: of the leaves.
        out: shape of the output.
        dtype: of the output.
        metric: A.
        arrays: as for `contracted_hessian`.
    """
    total = jnp.zeros(out, dtype)
    for i, row in enumerate(rows):
        for j, block in enumerate(row):
            if not (metric.moves(i) and metric.moves(j)):
                continue
            matrix = jnp.reshape(block, (*out, math.prod(shapes[i]), math.prod(shapes[j])))
            if metric.kind in ("seeds", "matrix"):
                weight = _weight(metric, arrays, i, j, len(shapes)).reshape(matrix.shape[-2:])
                total = total + jnp.sum(matrix * weight, axis=(-2, -1))
            elif i == j:
                diagonal = jnp.diagonal(matrix, axis1=-2, axis2=-1)
                if metric.kind == "diagonal":
                    diagonal = diagonal * jnp.ravel(arrays[i])
                total = total + jnp.sum(diagonal, axis=-1)
    return total if metric.scale == 1 else metric.scale * total


def _weight(metric: Metric, arrays: Sequence[Any], i: int, j: int, count: int) -> Array:
    """The block of A for leaves i and j."""
    if metric.kind == "seeds":
        left, right = (jnp.reshape(arrays[k], (metric.columns, -1)) for k in (i, j))
        return left.T @ right
    block: Array = arrays[i * count + j]
    return block
