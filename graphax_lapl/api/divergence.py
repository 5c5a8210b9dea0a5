"""Divergences by vertex elimination."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import Array, tree_util

from ..errors import InvalidArgumentError
from ..graph.tracing import check_callable, check_flags
from ..program.divergence import build_divergence
from .jacobian import rebuild_aux
from .orders import EliminationOrder, meeting_orders
from .plain import divergence_ways
from .plan import Plan
from .planning import Prepared, Rows, prepare, programmed
from .stochastic import Stochastic, check_stochastic, estimated_trace, take_key
from .twice import raveling_order, reverse_only

__all__ = ["divergence_plan", "divergence_ve"]

#: Orders that "auto" chooses from.
CHOICES = ("reverse", "forward", "markowitz")
#: By how much others must be cheaper than the plain ones, whose products are fewer and larger.
MARGIN, PLAIN = 1.05, ("reverse", "forward")


def divergence_ve(
    fun: Callable[..., Any],
    order: Any = "auto",
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    stochastic: Stochastic | None = None,
    strict: bool = False,
) -> Callable[..., Any]:
    """The divergence of `fun`: the trace of its Jacobian, which is not formed where avoidable.

    All vertices but the last one of the order are eliminated; the trace of the product around that
    one is taken without forming it.

    Args:
        fun: a map from arrays (pytrees) to arrays of the same shapes.
        order: as for `jacve`, compressed evaluation aside; "auto" also tries orders that meet in a
            narrow vertex, and "autotune" the traces of JAX's own Jacobians ("jax.jacfwd" and
            "jax.jacrev" as orders).
        argnums: which positional arguments it is a map of, in the order of its outputs.
        has_aux: whether `fun` returns a pair `(value, aux)`.
        stochastic: None for the exact trace; `Hutchinson(samples)` or `HutchPlusPlus(samples)` for
            an unbiased estimate from so many products of the Jacobian with random vectors, to which
            `order` does not apply. The returned function then takes `key=`, a random key, which is
            not passed on to `fun`.
        strict: raise `FallbackError` where a part of `fun` has no rule: an unknown primitive, or a
            loop or branch that is differentiated as a whole. Without it such parts are opaque
            linear maps, right but with less structure, and the log of "graphax_lapl" names them
            once.

    Returns:
        A function with the signature of `fun` that returns the scalar
        `sum_k trace(d output leaf k / d input leaf k)`; with has_aux `(divergence, aux)`.

    Raises:
        InvalidArgumentError: where the output's leaves do not have the shapes and names of the
            input's, and for a stochastic estimate without a key.
        InvalidTypeError: for arguments that cannot be differentiated.
        InvalidOrderError: for an order that does not fit the function.
        FallbackError: with strict, naming the primitive and the line of the user's code.

    Example:
        >>> import jax.numpy as jnp
        >>> from graphax_lapl import divergence_ve
        >>> print(divergence_ve(lambda x: x**2)(jnp.array([1.0, 2.0])))
        6.0
    """
    check_callable(fun)
    check_flags(has_aux=has_aux, strict=strict)
    check_stochastic(stochastic)

    @functools.wraps(fun, updated=())
    def divergence(*args: Any, **kwargs: Any) -> Any:
        key = take_key(kwargs) if stochastic is not None else None
        prepared = prepare(fun, args, kwargs, argnums, has_aux, strict=strict)
        _check_like(prepared)

        def compute(own: Prepared, key: Any) -> Rows:
            if stochastic is not None:
                return _estimated(own, stochastic, key)
            return own.run(divergence_plan(own, order))

        values, ((trace,),) = prepared.within(compute, [()], key)
        return (trace, rebuild_aux(prepared, values)) if has_aux else trace

    return divergence


def _estimated(prepared: Prepared, stochastic: Stochastic, key: Array) -> Rows:
    """The auxiliary values, and the estimated divergence."""
    evaluate, leaves = prepared.of_leaves()
    ravel = raveling_order(prepared.traced)

    def value(*moving: Array) -> list[Array]:
        found = dict(zip(ravel, evaluate(*moving)[0], strict=True))
        return [found[k] for k in range(len(ravel))]

    def push(tangents: list[Array]) -> list[Array]:
        return jax.jvp(value, leaves, tangents)[1]

    def pull(cotangents: list[Array]) -> list[Array]:  # the transposed map has the same trace
        return list(jax.vjp(value, *leaves)[1](cotangents))

    backward = reverse_only(prepared.traced.closed.jaxpr)
    trace = estimated_trace(stochastic, pull if backward else push, leaves, key)
    return evaluate(*leaves)[1], [[trace]]


def divergence_plan(prepared: Prepared, order: Any) -> Plan:
    """The plan of a divergence."""
    graph = prepared.graph
    places = tuple(raveling_order(prepared.traced))

    def best(orders: Sequence[EliminationOrder]) -> Plan:
        return min(
            (
                Plan(graph, order, build_divergence(graph, order.vertices, places), again=True)
                for order in orders
            ),
            key=lambda plan: plan.predicted_work * (1 if plan.order.method in PLAIN else MARGIN),
        )

    return programmed(
        prepared,
        order,
        ("divergence", places),
        best,
        CHOICES,
        lambda: meeting_orders(graph),
        ways=divergence_ways(prepared),
    )


def _check_like(prepared: Prepared) -> None:
    traced = prepared.traced
    outputs = [variable.aval for variable in traced.closed.jaxpr.outvars[: traced.n_out]]
    found = [tuple(aval.shape) for aval in outputs]
    expected = [tuple(traced.in_types[k].shape) for k in raveling_order(traced)]
    if found != expected:
        raise InvalidArgumentError(
            f"{traced.name} must map its arguments {traced.argnums} to arrays of the same shapes: "
            f"they have shapes {expected}, its outputs {found}. Choose other argnums, or return "
            "arrays like them."
        )
    into, out = _paths(traced.in_trees), _paths([traced.out_tree])
    if len(out) > 1 and [path[1:] for path in out] not in (into, [path[1:] for path in into]):
        raise InvalidArgumentError(
            f"{traced.name} must return a pytree like its arguments {traced.argnums}, whose leaves "
            f"are at {[*map(tree_util.keystr, into)]}; those of its output are at "
            f"{[tree_util.keystr(path[1:]) for path in out]}. Name and nest them alike."
        )


def _paths(trees: list[Any]) -> list[Any]:
    """Paths of all leaves of a list of trees, the position in the list first."""
    filled = [tree_util.tree_unflatten(tree, range(tree.num_leaves)) for tree in trees]
    return [path for path, _ in tree_util.tree_flatten_with_path(filled)[0]]
