"""The computational graph: vertices are arrays, arrows are structured local partials."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..edges.operations import Recipe
from ..edges.terms import Structure
from ..edges.values import immutable
from ..plotting import figure_and_axes
from .listing import Equation, Listing

if TYPE_CHECKING:
    import networkx as nx
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Arrow", "ComputationalGraph", "Vertex", "VertexName"]

#: `1..n` for eliminable vertices, `"x0"`, ... for inputs, `"y0"`, ... for outputs.
VertexName = int | str


@immutable
class Vertex:
    """An array of the function.

    Attributes:
        name: its id; orders are sequences of the integer ids.
        kind: "input", "intermediate" or "output".
        shape: shape of the array.
        dtype: dtype of the array.
        variable: its number in the listing.
        equation: the equation that computes it, None for an input.
    """

    name: VertexName
    kind: str
    shape: tuple[int, ...]
    dtype: Any
    variable: int
    equation: Equation | None = field(default=None, repr=False)

    @property
    def primitive(self) -> str:
        """Name of the primitive that computes it, "" for an input."""
        return self.equation.name if self.equation is not None else ""

    @cached_property
    def source(self) -> str:
        """`file:line (function)` in the user's code, "" for an input."""
        return self.equation.source if self.equation is not None else ""


@immutable
class Arrow:
    """A local partial: the recipe that adds its pieces up, and where their values come from."""

    recipe: Recipe
    references: tuple[Any, ...]

    @property
    def structure(self) -> Structure:
        """Structure of the partial."""
        assert self.recipe.result is not None
        return self.recipe.result


@dataclass
class ComputationalGraph:
    """The part of a function between its differentiated inputs and its outputs.

    Attributes:
        function: the function's name.
        listing: the flat program it stands for.
        vertices: all vertices, in topological order (inputs, intermediates and outputs mixed).
        arrows: local partials by (from, to).
        inputs: vertex name of every differentiated leaf.
        outputs: vertex name of every output leaf, None where it is constant.
    """

    function: str
    listing: Listing
    vertices: list[Vertex] = field(default_factory=list)
    arrows: dict[tuple[VertexName, VertexName], Arrow] = field(default_factory=dict)
    inputs: list[VertexName] = field(default_factory=list)
    outputs: list[VertexName | None] = field(default_factory=list)

    @cached_property
    def by_name(self) -> dict[VertexName, Vertex]:
        """Vertices by name."""
        return {vertex.name: vertex for vertex in self.vertices}

    @cached_property
    def eliminable(self) -> tuple[int, ...]:
        """Ids of the vertices that an order is a permutation of: `1..n`."""
        return tuple(v.name for v in self.vertices if isinstance(v.name, int))

    @property
    def edges(self) -> list[tuple[VertexName, VertexName, Structure]]:
        """Arrows as (from, to, structure)."""
        return [(u, v, arrow.structure) for (u, v), arrow in self.arrows.items()]

    @cached_property
    def fingerprint(self) -> str:
        """A digest of vertices, primitives, shapes, dtypes and arrows; orders carry it."""
        dtypes = {dtype: str(dtype) for dtype in {v.dtype for v in self.vertices}}
        text = [f"{v.name}|{v.primitive}|{v.shape}|{dtypes[v.dtype]}" for v in self.vertices]
        structures = {arrow.structure for arrow in self.arrows.values()}
        shown = {structure: repr(structure) for structure in structures}
        text += [f"{u}>{v}|{shown[arrow.structure]}" for (u, v), arrow in self.arrows.items()]
        text += [str(self.inputs), str(self.outputs)]
        return hashlib.blake2b("\n".join(text).encode(), digest_size=12).hexdigest()

    def to_networkx(self) -> nx.DiGraph:
        """The graph as a `networkx.DiGraph`.

        Nodes are the vertex names with attributes kind, primitive, shape, dtype and source; edges
        have the attributes structure and kind ("unit", "constant" or "variable").
        """
        import networkx as nx  # takes long to import

        graph = nx.DiGraph(function=self.function)
        for v in self.vertices:
            graph.add_node(
                v.name,
                kind=v.kind,
                primitive=v.primitive,
                shape=v.shape,
                dtype=v.dtype,
                source=v.source,
            )
        for (u, w), arrow in self.arrows.items():
            graph.add_edge(u, w, structure=arrow.structure, kind=edge_kind(arrow.structure))
        return graph

    def draw(self, ax: Axes | None = None) -> tuple[Figure, Axes]:
        """Draw the graph in layers from inputs to outputs; returns `(figure, axes)`.

        Raises:
            ImportError: without matplotlib (`pip install graphax_lapl[plots]`).
        """
        import networkx as nx

        graph = self.to_networkx()
        for layer, names in enumerate(nx.topological_generations(graph)):
            for name in names:
                graph.nodes[name]["layer"] = layer
        figure, axes = figure_and_axes(ax)
        colors = {"input": "tab:green", "intermediate": "tab:blue", "output": "tab:orange"}
        nx.draw_networkx(
            graph,
            nx.multipartite_layout(graph, subset_key="layer"),
            ax=axes,
            node_color=[colors[graph.nodes[n]["kind"]] for n in graph],
            node_size=180,
            font_size=6,
        )
        axes.set_title(self.function)
        return figure, axes

    def __str__(self) -> str:
        incoming: dict[Hashable, list[str]] = {}
        outgoing: dict[Hashable, list[str]] = {}
        for u, v in self.arrows:
            outgoing.setdefault(u, []).append(str(v))
            incoming.setdefault(v, []).append(str(u))
        rows = [("vertex", "primitive", "dtype[shape]", "from", "to", "source")]
        rows += [
            (
                str(vertex.name),
                vertex.primitive or vertex.kind,
                f"{vertex.dtype}[{','.join(map(str, vertex.shape))}]",
                " ".join(incoming.get(vertex.name, [])),
                " ".join(outgoing.get(vertex.name, [])),
                vertex.source,
            )
            for vertex in self.vertices
        ]
        widths = [max(len(row[k]) for row in rows) for k in range(6)]
        head = (
            f"{self.function}: {len(self.vertices)} vertices ({len(self.eliminable)} to eliminate),"
            f" {len(self.arrows)} edges"
        )
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([head, *(line.rstrip() for line in lines)])

    def __repr__(self) -> str:
        return (
            f"ComputationalGraph({self.function}: {len(self.vertices)} vertices, "
            f"{len(self.arrows)} edges)"
        )


def edge_kind(structure: Structure) -> str:
    """The kind of an edge: "unit" (known, magnitude one), "constant" (known) or "variable"."""
    if structure.is_unit:
        return "unit"
    return "constant" if structure.is_constant else "variable"
