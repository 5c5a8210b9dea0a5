"""JAX's own ways to what is otherwise accumulated on the graph: candidates of `"autotune"`.

On small functions, and where nothing is sparse, a few nested passes can be all there is to win.
Each way is a function of a program's inputs (constants, leaves, then coefficients), like what
`Plan.emit` returns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend import core
from jax.flatten_util import ravel_pytree

from ..errors import InvalidArgumentError
from ..program.counts import CONVENTIONS, OpCounts, TracedWork, traced_work
from ..program.laplacian import FirstOrder, Metric
from ..rules.registry import follows_users_rules
from .plan import Plan
from .planning import Prepared
from .twice import contracted, raveling_order

__all__ = ["PlainPlan", "divergence_ways", "hessian_ways", "laplacian_ways"]

Blocks = list[list[Any]]
#: From the function of the differentiated leaves, these leaves and the coefficients to the result.
Way = Callable[[Callable[..., list[Array]], list[Array], Sequence[Any]], Blocks]
Ways = dict[str, Callable[[Plan], Plan | None]]


@dataclass(eq=False)
class PlainPlan(Plan):
    """A plan that nests JAX's derivatives instead of eliminating vertices.

    `whole` and the order's vertices are those of an elimination that would be done instead.

    Attributes:
        way: its name as an order.
        evaluate: from the program's inputs to the function's outputs, the auxiliary ones last, how
            many of them are not auxiliary, and the result.
        types: of the program's inputs.
    """

    way: str = ""
    evaluate: Callable[[Sequence[Any]], tuple[list[Any], int, Blocks]] | None = None
    types: Sequence[jax.ShapeDtypeStruct] = ()

    def is_same_program(self, other: Plan) -> bool:
        """See `Plan.is_same_program`."""
        return isinstance(other, PlainPlan) and self.way == other.way

    def emit(self, values: bool, sparse: bool) -> Callable[[Sequence[Any]], tuple[Any, Any]]:
        """See `Plan.emit`; the results are dense."""
        evaluate = self.evaluate
        assert evaluate is not None
        assert not sparse

        def run(inputs: Sequence[Any]) -> tuple[list[Any], Blocks]:
            # Derivative rules of JAX mix dtypes in places; the user's strictness is about their
            # code.
            with jax.numpy_dtype_promotion("standard"):
                results, count, blocks = evaluate([jnp.asarray(value) for value in inputs])
            return (results if values else results[count:]), blocks

        return run

    @cached_property
    def traced_work(self) -> TracedWork:
        """Work read off an abstract trace."""
        with jax.sharding.use_abstract_mesh(self.mesh):
            return traced_work(self.emit(values=False, sparse=False), self.types)

    @property
    def counts(self) -> OpCounts:
        """What the traced program holds: there is no elimination to count."""
        return self.count("ad")

    def count(self, convention: str) -> OpCounts:
        """The same in every convention."""
        if convention not in CONVENTIONS:
            raise InvalidArgumentError(
                f"convention must be one of {', '.join(map(repr, CONVENTIONS))}, got "
                f"{convention!r}."
            )
        work = self.traced_work
        return OpCounts(work.muls, work.adds, work.bytes, work.peak_bytes, {}, convention)

    def compile(self) -> Callable[..., Any]:
        """See `Plan.compile`."""
        return jax.jit(self.follow(self.way)) if self.follow is not None else super().compile()

    def __str__(self) -> str:
        counts = self.counts
        return (
            f"JAX's own way  {self.graph.function}   {self.order.method}\n"
            f"{counts.muls} multiplications, {counts.adds} additions, {counts.bytes} bytes moved, "
            f"{counts.peak_bytes} bytes at peak"
        )

    def __repr__(self) -> str:
        return f"PlainPlan({self.graph.function}: {self.order.method})"


def _ways(prepared: Prepared, coefficients: Sequence[Any], ways: dict[str, Way]) -> Ways:
    """For each way what makes its plan from one of an elimination."""
    traced = prepared.traced
    jaxpr, differentiated, count = traced.plain.jaxpr, list(traced.differentiated), traced.n_out
    constants, leaf_count = len(traced.plain.consts), len(traced.leaves)

    def made(name: str, way: Way, plan: Plan) -> Plan | None:
        def evaluate(inputs: Sequence[Any]) -> tuple[list[Any], int, Blocks]:
            fun = core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, list(inputs[:constants])))
            leaves = list(inputs[constants : constants + leaf_count])
            moving = [x for x, moves in zip(leaves, differentiated, strict=True) if moves]

            def of_moving(*moved: Array) -> list[Array]:
                own = iter(moved)
                whole = [
                    next(own) if moves else x
                    for x, moves in zip(leaves, differentiated, strict=True)
                ]
                return list(fun(*whole))

            blocks = way(
                lambda *moved: of_moving(*moved)[:count], moving, inputs[constants + leaf_count :]
            )
            return of_moving(*moving), count, blocks

        if follows_users_rules(prepared.listing):
            return None
        types = [
            jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x))
            for x in (*prepared.inputs, *coefficients)
        ]
        order = dataclasses.replace(plan.order, method=name)
        found = PlainPlan(plan.graph, order, plan.whole, way=name, evaluate=evaluate, types=types)
        try:  # no reverse mode through a while loop, no forward mode through a custom_vjp
            jax.eval_shape(found.emit(values=False, sparse=False), types)
        except (TypeError, ValueError, NotImplementedError):
            return None
        return found

    def maker(name: str) -> Callable[[Plan], Plan | None]:
        return lambda plan: made(name, ways[name], plan)

    return {name: maker(name) for name in ways}


def _real_outputs(prepared: Prepared) -> list[Any]:
    """Types of the outputs; empty where one is complex, which `jax.hessian` does not take."""
    types = [v.aval for v in prepared.traced.closed.jaxpr.outvars[: prepared.traced.n_out]]
    return [] if any(jnp.issubdtype(t.dtype, jnp.complexfloating) for t in types) else types


def _second(fun: Callable[..., list[Array]], leaves: list[Array]) -> list[list[list[Array]]]:
    """Second derivatives by output, leaf and leaf."""
    numbers = tuple(range(len(leaves)))
    found = jax.hessian(fun, argnums=numbers)(*leaves)
    return [[list(row) for row in block] for block in found]


def hessian_ways(prepared: Prepared) -> Ways:
    """`jax.hessian`: forward over reverse."""

    def way(fun: Callable[..., list[Array]], leaves: list[Array], given: Sequence[Any]) -> Blocks:
        return [[block for row in rows for block in row] for rows in _second(fun, leaves)]

    return _ways(prepared, (), {"jax.hessian": way}) if _real_outputs(prepared) else {}


def laplacian_ways(
    prepared: Prepared, metric: Metric, first: FirstOrder, coefficients: Sequence[Any]
) -> Ways:
    """The trace of `jax.hessian`, and for one real number a loop of products with it.

    The loop is what many programs for wave functions hold: the gradient is linearised once, and
    applied to one column after the other.
    """
    types = _real_outputs(prepared)
    if not types or metric.kind == "matrix" or metric.leaves is not None or first != FirstOrder():
        return {}

    def trace(fun: Callable[..., list[Array]], leaves: list[Array], given: Sequence[Any]) -> Blocks:
        shapes = [leaf.shape for leaf in leaves]
        return [
            [contracted(rows, shapes, aval.shape, aval.dtype, metric, given)]
            for rows, aval in zip(_second(fun, leaves), types, strict=True)
        ]

    def loop(fun: Callable[..., list[Array]], leaves: list[Array], given: Sequence[Any]) -> Blocks:
        flat, unravel = ravel_pytree(leaves)
        gradient = jax.grad(lambda flat: jnp.reshape(fun(*unravel(flat))[0], ()))
        _, product = jax.linearize(gradient, flat)

        def added(total: Array, column: Array) -> Array:
            return total + jnp.vdot(column, product(column))

        zero = jnp.zeros((), flat.dtype)
        if metric.kind == "seeds":
            rows = jnp.concatenate([seed.reshape(metric.columns, -1) for seed in given], axis=1)
            total, _ = lax.scan(lambda total, row: (added(total, row), None), zero, rows)
        else:
            weights = ravel_pytree(list(given))[0] if given else jnp.ones_like(flat)

            def step(k: Any, total: Array) -> Array:
                column = jax.nn.one_hot(k, flat.size, dtype=flat.dtype)
                return total + weights[k] * product(column)[k]

            total = lax.fori_loop(0, flat.size, step, zero)
        return [[(metric.scale * total).reshape(types[0].shape).astype(types[0].dtype)]]

    ways: dict[str, Way] = {"jax.hessian": trace}
    if len(types) == 1 and types[0].size == 1:
        ways["jax.loop"] = loop
    return _ways(prepared, coefficients, ways)


def divergence_ways(prepared: Prepared) -> Ways:
    """The trace of the Jacobian that `jax.jacfwd` or `jax.jacrev` makes."""
    if not _real_outputs(prepared):
        return {}
    places = raveling_order(prepared.traced)

    def by(derivative: Callable[..., Any]) -> Way:
        def way(
            fun: Callable[..., list[Array]], leaves: list[Array], given: Sequence[Any]
        ) -> Blocks:
            rows = derivative(fun, argnums=tuple(range(len(leaves))))(*leaves)
            traces = [
                jnp.trace(row[k].reshape(leaves[k].size, leaves[k].size))
                for k, row in zip(places, rows, strict=True)
            ]
            return [[sum(traces[1:], traces[0])]]

        return way

    return _ways(prepared, (), {"jax.jacfwd": by(jax.jacfwd), "jax.jacrev": by(jax.jacrev)})
