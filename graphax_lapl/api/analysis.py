"""Looking before running: graphs, plans, operation counts, comparison of orders."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ..errors import InvalidArgumentError
from ..graph.computational_graph import ComputationalGraph
from ..graph.meshes import inside
from ..graph.tracing import check_flags
from ..plotting import figure_and_axes
from ..program.counts import OpCounts
from .kinds import Planner, kind_of
from .plan import Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "Comparison",
    "ComparisonRow",
    "compare_orders",
    "computational_graph",
    "count_ops",
    "make_plan",
]


def computational_graph(
    fun: Callable[..., Any],
    *args: Any,
    argnums: int | Sequence[int] = 0,
    kind: str = "jacobian",
    strict: bool = False,
    **kwargs: Any,
) -> ComputationalGraph:
    """The graph on which vertices are eliminated; printable, with the user's source lines.

    Args:
        fun: the function.
        *args: its positional arguments: arrays or `jax.ShapeDtypeStruct`s.
        argnums: which of them are differentiated.
        kind: what the vertices are eliminated for, as for `make_plan`. Operators of second order
            have a graph of their own: a function with a derivative rule is its tangent program
            there, whose coefficients are vertices too.
        strict: as for `jacve`: an error where a part of the function has no rule.
        **kwargs: its keyword arguments.

    Raises:
        InvalidArgumentError: for an unknown kind.
        FallbackError: with strict, naming the primitive and the line of the user's code.
    """
    check_flags(strict=strict)
    chosen = kind_of(kind, {})
    function = chosen.function(fun)
    return chosen.prepare(function, args, kwargs, argnums, strict).graph


def make_plan(
    fun: Callable[..., Any],
    *args: Any,
    order: Any = "auto",
    argnums: int | Sequence[int] = 0,
    kind: str = "jacobian",
    strict: bool = False,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Plan:
    """The plan that `jacve`, or the operator of another kind, would follow.

    Nothing is executed.

    Args:
        fun: the function.
        *args: its positional arguments: arrays or `jax.ShapeDtypeStruct`s.
        order: as for the operator.
        argnums: which arguments are differentiated.
        kind: what is accumulated: "jacobian" (`jacve`), "hessian" (`hessve`), "hessian_diagonal",
            "laplacian" (`laplacian_ve`), "forward_laplacian", "second_order_operator",
            "local_kinetic_energy" or "divergence" (`divergence_ve`).
        strict: as for `jacve`: an error where a part of the function has no rule.
        options: further arguments of the operator that a plan depends on, by name:
            `{"weights": w}` for a Laplacian, `{"a": 1.0, "b": drift}` for `second_order_operator`.
        **kwargs: its keyword arguments.

    Raises:
        InvalidArgumentError: for an unknown kind, an option that it does not have, and a second
            derivative that is taken of JAX's own first one, which has no plan of its own.
        FallbackError: with strict, naming the primitive and the line of the user's code.

    Example:
        >>> import jax.numpy as jnp
        >>> from graphax_lapl import make_plan
        >>> plan = make_plan(lambda x: jnp.sum(x**3), jnp.ones(4), kind="hessian_diagonal")
        >>> print(plan.compile()(jnp.array([1.0, 2.0, 0.0, -1.0])))
        [ 6. 12.  0. -6.]
    """
    given = {} if options is None else options
    return Planner(kind, fun, args, kwargs, argnums, strict, given).plan(order)


def count_ops(
    fun: Callable[..., Any],
    *args: Any,
    order: Any = "auto",
    argnums: int | Sequence[int] = 0,
    convention: str = "ad",
    kind: str = "jacobian",
    strict: bool = False,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> OpCounts:
    """Multiplications, additions and bytes of a derivative; nothing is executed.

    Args:
        fun: the function.
        *args: its positional arguments: arrays or `jax.ShapeDtypeStruct`s.
        order: as for `jacve`.
        argnums: which arguments are differentiated.
        convention: "ad" counts as the elimination literature does (Griewank and Walther,
            Evaluating Derivatives, 2008): eliminating a scalar vertex with p predecessors and s
            successors costs p * s multiplications. "flops" counts what the emitted program
            multiplies and adds; known ones and minus ones are free.
        kind: what is accumulated, as for `make_plan`.
        strict: as for `jacve`: an error where a part of the function has no rule.
        options: further arguments of the operator, as for `make_plan`.
        **kwargs: its keyword arguments.

    Raises:
        InvalidArgumentError: for an unknown convention, kind or option.
        FallbackError: with strict, naming the primitive and the line of the user's code.
    """
    planner = Planner(kind, fun, args, kwargs, argnums, strict, {} if options is None else options)
    return planner.plan(order).count(convention)


@dataclass(frozen=True)
class ComparisonRow:
    """One order in a comparison.

    Attributes:
        order: the order as it was asked for.
        muls: multiplications ("ad" convention).
        adds: additions.
        emitted_muls: multiplications that the emitted program holds ("flops" convention).
        bytes: bytes moved.
        peak_bytes: bytes alive at once.
        ratio: multiplications over those of reverse (None where reverse costs none).
        seconds: time of one call, in seconds (None where it was not measured).
    """

    order: str
    muls: int
    adds: int
    emitted_muls: int
    bytes: int
    peak_bytes: int
    ratio: float | None
    seconds: float | None = None


@dataclass(frozen=True)
class Comparison:
    """Elimination orders side by side; prints as a table.

    Attributes:
        function: name of the function.
        vertices: number of eliminable vertices.
        rows: one per order, as they were asked for.
        plans: the plan of each row.
        orders: the orders as they were asked for.
    """

    function: str
    vertices: int
    rows: tuple[ComparisonRow, ...]
    plans: tuple[Plan, ...] = field(repr=False)
    orders: tuple[Any, ...] = field(repr=False)

    @property
    def best(self) -> Any:
        """The best order, as it was asked for: pass it on as `order=`."""
        return self.orders[self.rows.index(self.best_row)]

    @property
    def best_row(self) -> ComparisonRow:
        """The fastest row where times were measured, else that with the fewest multiplications."""
        if all(row.seconds is not None for row in self.rows):
            return min(self.rows, key=lambda row: row.seconds)  # type: ignore[arg-type,return-value]
        return min(self.rows, key=lambda row: (row.muls, row.emitted_muls))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "function": self.function,
            "vertices": self.vertices,
            "best": self.best_row.order,
            "rows": [asdict(row) for row in self.rows],
        }

    def plot(self, ax: Axes | None = None) -> tuple[Figure, Axes]:
        """Bar chart of the multiplications; returns `(figure, axes)`.

        Raises:
            ImportError: without matplotlib (`pip install graphax_lapl[plots]`).
        """
        figure, axes = figure_and_axes(ax)
        axes.bar([row.order for row in self.rows], [row.muls for row in self.rows])
        axes.set_ylabel("multiplications")
        axes.set_title(self.function)
        return figure, axes

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        head = f"{self.function}: {self.vertices} vertices to eliminate"
        names = ("order", "mults", "emitted", "adds", "bytes", "peak", "vs reverse", "seconds")
        table = [
            names,
            *(
                (
                    row.order,
                    f"{row.muls:,}",
                    f"{row.emitted_muls:,}",
                    f"{row.adds:,}",
                    f"{row.bytes:,}",
                    f"{row.peak_bytes:,}",
                    "" if row.ratio is None else f"{row.ratio:.2f}",
                    "" if row.seconds is None else f"{row.seconds:.2e}",
                )
                for row in self.rows
            ),
        ]
        columns = 8 if any(row.seconds is not None for row in self.rows) else 7
        widths = [max(len(line[k]) for line in table) for k in range(columns)]
        lines = []
        best = 1 + self.rows.index(self.best_row)
        for number, line in enumerate(table):
            cells = [line[0].ljust(widths[0])]
            cells += [line[k].rjust(widths[k]) for k in range(1, columns)]
            mark = "->" if number == best else "  "
            lines.append(f" {mark} {'  '.join(cells)}")
        return "\n".join([head, *lines])


def compare_orders(
    fun: Callable[..., Any],
    *args: Any,
    orders: Sequence[Any] = ("forward", "reverse", "markowitz", "search"),
    argnums: int | Sequence[int] = 0,
    kind: str = "jacobian",
    measure: bool = False,
    strict: bool = False,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Comparison:
    """Compare what elimination orders cost.

    Args:
        fun: the function.
        *args: its positional arguments (`jax.ShapeDtypeStruct`s suffice unless measuring).
        orders: orders as for `jacve`, or the operator of another kind.
        argnums: which arguments are differentiated.
        kind: what is accumulated, as for `make_plan`.
        measure: also run each jitted derivative, interleaved, and give the median time.
        strict: as for `jacve`: an error where a part of the function has no rule.
        options: further arguments of the operator, as for `make_plan`.
        **kwargs: its keyword arguments.

    Raises:
        InvalidArgumentError: for no orders, and for an unknown kind or option.
        FallbackError: with strict, naming the primitive and the line of the user's code.
    """
    check_flags(measure=measure)
    if isinstance(orders, str):
        raise InvalidArgumentError(f"orders must be a sequence of orders, got {orders!r}.")
    if not orders:
        raise InvalidArgumentError("orders must name at least one elimination order, got none.")
    planner = Planner(kind, fun, args, kwargs, argnums, strict, {} if options is None else options)
    plans = [planner.plan(order) for order in orders]
    reverse = planner.plan("reverse").counts.muls
    seconds: list[float | None] = [None] * len(plans)
    if measure:
        seconds = list(_interleaved_seconds(plans, planner))
    rows = []
    for order, plan, time_taken in zip(orders, plans, seconds, strict=True):
        counts = plan.counts
        rows.append(
            ComparisonRow(
                order if isinstance(order, str) else plan.order.method,
                counts.muls,
                counts.adds,
                plan.count("flops").muls,
                counts.bytes,
                counts.peak_bytes,
                counts.muls / reverse if reverse else None,
                time_taken,
            )
        )
    return Comparison(
        planner.prepared.traced.name,
        len(planner.prepared.graph.eliminable),
        tuple(rows),
        tuple(plans),
        tuple(orders),
    )


def _interleaved_seconds(plans: Sequence[Plan], planner: Planner, rounds: int = 15) -> list[float]:
    """Median time of one call of each plan, in turns; two rounds are thrown away."""
    functions = [plan.emitted(values=False, sparse=False) for plan in plans]
    inputs, mesh = planner.inputs, planner.prepared.traced.mesh
    times = np.zeros((rounds + 2, len(functions)))
    for turn in range(rounds + 2):
        for k, function in enumerate(functions):
            with inside(mesh):
                start = time.perf_counter()
                jax.block_until_ready(function(inputs))
                times[turn, k] = time.perf_counter() - start
    return [float(t) for t in np.median(times[2:], axis=0)]
