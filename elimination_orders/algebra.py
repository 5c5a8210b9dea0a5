r"""Edge algebras: what it costs to multiply and to add local partial derivatives.

The planner knows a graph and nothing of what stands on its edges.  Whatever a partial is (a number,
a block-sparse tensor, an opaque linear map), an *edge algebra* answers the two questions that an
elimination asks:

* ``compose(outer, inner)``: the product of ``inner: u -> v`` and ``outer: v -> w``, and its cost;
* ``merge(a, b)``: the sum of two parallel edges ``u -> w``, and its cost.

Edges are values: an algebra never changes one, and equal edges should be one object (hash-consed),
so that a repeated question is a dictionary look-up.

Two algebras for scalar graphs live here.  Their edges are the strings ``"unit"`` (a partial that is
known to be +1 or -1), ``"constant"`` (a number known when the plan is made) and ``"variable"``.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Literal, Protocol, runtime_checkable

__all__ = [
    "EDGE_KINDS",
    "EdgeAlgebra",
    "LiteratureAlgebra",
    "MemoizedAlgebra",
    "UnitAwareAlgebra",
]

EdgeKind = Literal["unit", "constant", "variable"]

#: Kinds of scalar partials, cheapest first.
EDGE_KINDS: tuple[EdgeKind, ...] = ("unit", "constant", "variable")


@runtime_checkable
class EdgeAlgebra(Protocol):
    """What the planner asks of the partials on the edges.

    An algebra may also have ``size(edge) -> int``, the bytes that an edge occupies; the
    ``"peak_bytes"`` objective needs it.
    """

    def compose(self, outer: Any, inner: Any) -> tuple[Any | None, float]:
        """Product of two partials in sequence.

        Args:
            outer: partial on the edge ``v -> w``.
            inner: partial on the edge ``u -> v``.

        Returns:
            The partial on ``u -> w``, or None where it is structurally zero, and the cost of
            computing it, in the algebra's own unit (an int or a float, not negative).
        """
        ...

    def merge(self, a: Any, b: Any) -> tuple[Any, float]:
        """Sum of two partials on parallel edges.

        Args:
            a: the partial that stands on the edge.
            b: the partial to be added to it.

        Returns:
            The sum and the cost of computing it.
        """
        ...


class LiteratureAlgebra:
    """The convention of the elimination literature: every product of partials costs one.

    Eliminating a vertex with p predecessors and s successors costs p * s multiplications, whatever
    the partials are (Griewank and Walther, Evaluating Derivatives, 2nd ed., ch. 9).  Kinds are
    carried along by the rules of `UnitAwareAlgebra`, but have no influence on the cost.
    """

    def compose(self, outer: str, inner: str) -> tuple[str, int]:
        """One multiplication, whatever the kinds."""
        return _product_kind(outer, inner), 1

    def merge(self, a: str, b: str) -> tuple[str, int]:
        """Sums are free in this convention and leave a variable partial."""
        return "variable", 0

    def size(self, edge: str) -> int:
        """Eight bytes: one double."""
        return 8


class UnitAwareAlgebra(LiteratureAlgebra):
    """Counts only the multiplications that are carried out at run time.

    A product with a unit is a copy or a sign, a product of two constants is folded when the plan is
    made; both are free.  Unit times unit is a unit, a product of constants is a constant, any other
    product is variable.  Any sum is variable: the convention under which unit-aware counts of
    elimination orders are published.
    """

    def compose(self, outer: str, inner: str) -> tuple[str, int]:
        """One multiplication unless a unit takes part or both partials are constants."""
        kind = _product_kind(outer, inner)
        if outer == "unit" or inner == "unit":
            return kind, 0
        return kind, int(outer == "variable" or inner == "variable")


class MemoizedAlgebra:
    """An algebra that asks another one each question only once.

    Args:
        algebra: the algebra to ask.  Its edges must be hashable.
    """

    def __init__(self, algebra: EdgeAlgebra) -> None:
        self.wrapped = algebra
        self._products: dict[tuple[Hashable, Hashable], tuple[Any | None, float]] = {}
        self._sums: dict[tuple[Hashable, Hashable], tuple[Any, float]] = {}

    @property
    def questions(self) -> int:
        """How often the wrapped algebra was asked, which is what takes time."""
        return len(self._products) + len(self._sums)

    def compose(self, outer: Hashable, inner: Hashable) -> tuple[Any | None, float]:
        """As the wrapped algebra says."""
        key = (outer, inner)
        try:
            return self._products[key]
        except KeyError:
            answer = self._products[key] = self.wrapped.compose(outer, inner)
            return answer

    def merge(self, a: Hashable, b: Hashable) -> tuple[Any, float]:
        """As the wrapped algebra says."""
        key = (a, b)
        try:
            return self._sums[key]
        except KeyError:
            answer = self._sums[key] = self.wrapped.merge(a, b)
            return answer


def _product_kind(outer: str, inner: str) -> str:
    if outer == "unit" and inner == "unit":
        return "unit"
    if outer == "variable" or inner == "variable":
        return "variable"
    return "constant"
