"""Plans that evaluate a compressed Jacobian, and when that is worth trying."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..coloring import Coloring, Pattern, bicoloring, color_columns, color_rows, star_coloring
from ..edges.layout import coordinate_layout, structural_nonzeros
from ..edges.terms import Structure
from ..emit.compressed import CompressedBlock, CompressedProgram, positions_structure
from ..errors import InvalidArgumentError, InvalidOrderError, InvalidTypeError
from ..graph.calls import COTANGENT_CALLS
from ..graph.computational_graph import ComputationalGraph
from ..graph.listing import Listing
from ..graph.tracing import Traced
from ..program.counts import OpCounts
from ..program.instructions import Block, Program
from ..rules.registry import follows_users_rules
from ..rules.rows_of_loops import columns_for_a_row
from .compression import Compressed
from .plan import Plan

__all__ = [
    "PATTERN_PROVIDERS",
    "CompressedPlan",
    "PatternProvider",
    "cheaper_compressed",
    "compressed_plan",
    "has_branches",
    "has_loops",
    "planned_pattern",
    "suits",
]

#: Explicit orders enumerate at most this many positions.
MAX_POSITIONS = 10_000_000
PLAIN = ("forward", "reverse")
#: Primitives that JAX does not transpose where the windows are dilated.
WINDOWS = frozenset({"reduce_window_max", "reduce_window_min"})
#: What a vector-Jacobian product costs, in Jacobian-vector products.
ROW_WEIGHT = 1.5
#: "auto" enumerates at most this many positions, and at most this part of the dense matrix.
MAX_AUTO_POSITIONS = 200_000
MAX_AUTO_DENSITY = 0.25
#: "auto" thinks of compression where elimination multiplies and adds this many times what the
#: function does, or where an opaque map is involved.
DEAR = 4
#: By how much compression must be cheaper: its gathers cost more than they count.
MARGIN = 1.5
#: Programs with more instructions take XLA so long to compile (2,000: forty seconds) that any gain
#: is enough.
LONG = 1000
#: So many entries, repeated ones included, are always enumerated when a pattern is wanted.
QUICK = 300_000

PatternProvider = Callable[[Plan, int], Pattern | None]
"""Finds where the Jacobian of a plan's graph may be nonzero, over all leaves raveled.

It must contain every position that can be nonzero, for all inputs. None where it does not know, or
where there are more positions than the given number.
"""


def planned_pattern(plan: Plan, limit: int) -> Pattern | None:
    """The positions of a plan's blocks: what the structure of the operations says."""
    blocks = plan.whole.blocks
    structures = [b.structure for row in blocks for b in row if b.structure is not None]
    # Repeated positions count once, but finding out takes time in proportion to all of them.
    if sum(term.entries for s in structures for term in s.terms) > max(2 * limit, QUICK):
        return None
    if sum(structural_nonzeros(structure) for structure in structures) > limit:
        return None
    starts = _starts(blocks)
    rows, cols = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for row, row_start in zip(blocks, starts[0], strict=False):
        for block, column_start in zip(row, starts[1], strict=False):
            if block.structure is not None:
                r, c = _flat_positions(block.structure)
                rows.append(row_start + r)
                cols.append(column_start + c)
    return Pattern.of(np.concatenate(rows), np.concatenate(cols), (starts[0][-1], starts[1][-1]))


#: Who is asked for a pattern; the one with the fewest positions is used.
PATTERN_PROVIDERS: list[PatternProvider] = [planned_pattern]


def _smallest_pattern(plan: Plan, limit: int) -> Pattern | None:
    found = [provider(plan, limit) for provider in PATTERN_PROVIDERS]
    known = [pattern for pattern in found if pattern is not None]
    return min(known, key=lambda pattern: pattern.nse) if known else None


def _flat_positions(structure: Structure) -> tuple[np.ndarray, np.ndarray]:
    """Raveled output and input position of each entry."""
    indices = coordinate_layout(structure).indices.astype(np.int64)
    split = len(structure.out_shape)
    flat = []
    for part, shape in (
        (indices[:, :split], structure.out_shape),
        (indices[:, split:], structure.in_shape),
    ):
        position = np.zeros(len(indices), np.int64)
        for d, extent in enumerate(shape):
            position = position * extent + part[:, d]
        flat.append(position)
    return flat[0], flat[1]


def _starts(blocks: Sequence[Sequence[Block]]) -> tuple[list[int], list[int]]:
    """Where each output leaf's rows and each input leaf's columns start, and where they end."""
    heights = [math.prod(row[0].out_shape) for row in blocks]
    widths = [math.prod(block.in_shape) for block in blocks[0]] if blocks else []
    return [0, *np.cumsum(heights).tolist()], [0, *np.cumsum(widths).tolist()]


@dataclass(eq=False)
class CompressedPlan(Plan):
    """A plan that evaluates products with seed matrices instead of eliminating vertices.

    `whole` is the elimination that would be done instead; the blocks' shapes are taken from it.
    Counts, in the "ad" convention: every product multiplies once per entry of a local partial.
    "flops": what the emitted program holds.

    Attributes:
        compressed: the colours and how the blocks are read off.
    """

    compressed: CompressedProgram | None = field(default=None, repr=False)

    @property
    def coloring(self) -> Coloring:
        """The colours."""
        assert self.compressed is not None
        return self.compressed.coloring

    def pruned(self, values: bool) -> Program:
        """A program without instructions whose blocks say where the entries stand."""
        if values not in self._pruned:
            assert self.compressed is not None
            blocks = [
                [
                    dataclasses.replace(b, structure=c.structure, slots=())
                    for b, c in zip(x, y, strict=True)
                ]
                for x, y in zip(self.whole.blocks, self.compressed.blocks, strict=True)
            ]
            self._pruned[values] = Program(blocks=blocks)
        return self._pruned[values]

    @property
    def counts(self) -> OpCounts:
        """Counted cost in the literature's convention."""
        return self.count("ad")

    def count(self, convention: str) -> OpCounts:
        """Counted cost in a convention, see the class."""
        work = self.traced_work
        if convention == "flops":
            return OpCounts(work.muls, work.adds, work.bytes, work.peak_bytes, {}, convention)
        if convention != "ad":
            raise InvalidArgumentError(f"convention must be 'ad' or 'flops', got {convention!r}.")
        products = self.coloring.count
        entries = sum(
            term.entries for arrow in self.graph.arrows.values() for term in arrow.structure.terms
        )
        ends = sum(math.prod(v.shape) for v in self.graph.vertices if v.kind != "input")
        adds = products * max(0, entries - ends)
        return OpCounts(products * entries, adds, work.bytes, work.peak_bytes, {}, convention)

    def emit(self, values: bool, sparse: bool) -> Callable[[Sequence[Any]], tuple[Any, Any]]:
        """See `Plan.emit`."""
        compressed = self.compressed
        assert compressed is not None
        return lambda inputs: compressed.run(inputs, values, sparse)

    def __str__(self) -> str:
        counts, coloring = self.counts, self.coloring
        return "\n".join(
            [
                f"Compressed evaluation  {self.graph.function}   {self.order.method}",
                f"{coloring.columns} Jacobian-vector and {coloring.rows} vector-Jacobian products "
                f"({coloring.method}; at least {coloring.lower_bound}) for {coloring.pattern.nse} "
                f"structural nonzeros of {coloring.pattern.shape[0]} x {coloring.pattern.shape[1]}",
                f"{counts.muls} multiplications, {counts.adds} additions, {counts.bytes} bytes "
                f"moved, {counts.peak_bytes} bytes at peak",
            ]
        )

    def __repr__(self) -> str:
        return f"CompressedPlan({self.graph.function}: {self.coloring!r})"


def compressed_plan(plan: Plan, traced: Traced, wanted: Compressed) -> CompressedPlan:
    """The plan that evaluates the Jacobian of `plan` compressed.

    Args:
        plan: an elimination plan of the same function.
        traced: the function's trace.
        wanted: which products are allowed, and the pattern where the caller knows it.

    Raises:
        InvalidTypeError: for complex inputs or outputs.
        InvalidArgumentError: for a pattern of another shape, or one with too many positions.
        InvalidOrderError: where a rule of `register_partial` is met.
    """
    if _has_complex(plan.graph):
        raise InvalidTypeError(
            f"order={wanted.name!r}: {plan.graph.function} has complex inputs or outputs, which "
            "compressed evaluation does not support. Use another order, for example 'auto'."
        )
    if follows_users_rules(plan.graph.listing):
        raise InvalidOrderError(
            f"order={wanted.name!r}: {plan.graph.function} holds functions with a rule of "
            "register_partial, which products of JAX's own would not follow. Use another order, "
            "for example 'auto'."
        )
    starts = _starts(plan.whole.blocks)
    shape = (starts[0][-1], starts[1][-1])
    pattern = wanted.pattern or _smallest_pattern(plan, MAX_POSITIONS)
    if pattern is None:
        raise InvalidArgumentError(
            f"order={wanted.name!r}: the Jacobian of {plan.graph.function} has more than "
            f"{MAX_POSITIONS} structural nonzeros, too many to colour. Use another order, or pass "
            "Compressed(pattern=...) if you know that there are fewer."
        )
    if pattern.shape != shape:
        raise InvalidArgumentError(
            f"pattern has shape {pattern.shape}, but {plan.graph.function} maps {shape[1]} raveled "
            f"inputs to {shape[0]} raveled outputs: expected shape {shape}."
        )
    if wanted.check and not pattern.nse:
        raise InvalidArgumentError(
            "pattern has no entries, which leaves nothing that could be NaN where it is wrong. "
            "Pass check=False if the Jacobian is known to vanish."
        )
    coloring = _coloring(pattern, wanted.mode, traced, plan.graph.listing)
    program = CompressedProgram(
        traced.plain.jaxpr,
        tuple(traced.differentiated),
        traced.n_out,
        coloring,
        _blocks(plan.whole.blocks, coloring, starts),
        bool(wanted.check),
    )
    order = dataclasses.replace(plan.order, method=wanted.name, compression=wanted)
    return CompressedPlan(plan.graph, order, plan.whole, compressed=program)


def _blocks(
    blocks: Sequence[Sequence[Block]], coloring: Coloring, starts: tuple[list[int], list[int]]
) -> list[list[CompressedBlock]]:
    """For each block its entries and where their values are."""
    pattern = coloring.pattern
    result = []
    for o, row in enumerate(blocks):
        first, last = np.searchsorted(pattern.rows, [starts[0][o], starts[0][o + 1]])
        rows, cols = pattern.rows[first:last] - starts[0][o], pattern.cols[first:last]
        source = coloring.source[first:last].astype(
            np.int32 if coloring.source.max(initial=0) < 2**31 else np.int64
        )
        made = []
        for i, block in enumerate(row):
            low, high = starts[1][i], starts[1][i + 1]
            own = slice(None) if len(row) == 1 else (cols >= low) & (cols < high)
            flat = rows[own] * (high - low) + cols[own] - low
            structure = (
                positions_structure(flat, block.out_shape, block.in_shape) if len(flat) else None
            )
            shape = (*block.out_shape, *block.in_shape)
            made.append(CompressedBlock(structure, source[own], shape, block.dtype))
        result.append(made)
    return result


def _coloring(pattern: Pattern, mode: str, traced: Traced, listing: Listing) -> Coloring:
    if mode == "forward":
        return color_columns(pattern)
    if mode == "reverse":
        return color_rows(pattern)
    if mode == "both":
        return bicoloring(pattern, ROW_WEIGHT)
    if mode == "symmetric":
        # Where only one of two mirror images can be nonzero, both are zero.
        common = pattern.intersection(pattern.transposed)
        return min((star_coloring(common), color_columns(common)), key=lambda c: c.count)
    if "reverse" not in _modes(traced):
        return color_columns(pattern)
    if "forward" not in _modes(traced):
        return color_rows(pattern)
    weight = columns_for_a_row(listing) if has_loops(traced) else ROW_WEIGHT
    return bicoloring(pattern, weight)


def has_loops(traced: Traced) -> bool:
    """Whether a function has loops, through which a row is pulled by storing every step."""
    return any(equation.primitive.name == "scan" for equation in _equations(traced.closed.jaxpr))


def has_branches(traced: Traced) -> bool:
    """Whether samples may take different branches.

    `jax.vmap` then evaluates all of them on operands that no gradient passes; where a batch of
    derivatives is taken instead of derivatives of a batch, these are the tangents.
    """
    return any(equation.primitive.name == "cond" for equation in _equations(traced.closed.jaxpr))


def suits(traced: Traced, graph: ComputationalGraph, wanted: Compressed) -> bool:
    """Whether a function can be evaluated compressed in one of the plain modes.

    Products are JAX's own, so that rules of the user's would not be followed.
    """
    if follows_users_rules(graph.listing):
        return False
    return not _has_complex(graph) and (wanted.mode not in PLAIN or wanted.mode in _modes(traced))


def _modes(traced: Traced) -> set[str]:
    """The products that exist.

    No while loop and no maximum of dilated windows is transposed, no custom_vjp takes tangents:
    cotangents go past what it computes.
    """
    modes = set(PLAIN)
    for equation in _equations(traced.closed.jaxpr, past=COTANGENT_CALLS):
        name = str(equation.primitive.name)
        dilated = name in WINDOWS and set(equation.params["window_dilation"]) != {1}
        if name == "while" or dilated:
            modes.discard("reverse")
        if name in COTANGENT_CALLS:
            modes.discard("forward")
    return modes


def _equations(jaxpr: Any, past: Container[str] = ()) -> Iterator[Any]:
    """All equations of a jaxpr, nested ones included, but for those in calls named `past`."""
    for equation in jaxpr.eqns:
        yield equation
        if equation.primitive.name in past:
            continue
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from _equations(inner, past)


def _has_complex(graph: ComputationalGraph) -> bool:
    listing = graph.listing
    ends = [graph.by_name[name].dtype for name in graph.inputs]
    ends += [listing.type_of(atom).dtype for atom in listing.outputs[: len(graph.outputs)]]
    return any(np.issubdtype(dtype, np.complexfloating) for dtype in ends)


def _is_dear(plan: Plan) -> bool:
    """Whether elimination does much more than the function, or applies maps it cannot see into."""
    arrows = plan.graph.arrows.values()
    opaque = any(factor.opaque for arrow in arrows for factor in arrow.structure.factors)
    return opaque or plan.count("flops").flops > DEAR * max(1, plan.function_flops)


def cheaper_compressed(plan: Plan, traced: Traced) -> Plan | None:
    """The compressed plan where it is predicted to be clearly cheaper than `plan`, else None.

    Questions in the order of what they cost: is elimination dear, is the pattern sparse and small,
    do as many products as there are colours cost less. Only then both programs are traced.
    """
    if not _is_dear(plan) or _has_complex(plan.graph) or follows_users_rules(plan.graph.listing):
        return None
    heights, widths = _starts(plan.whole.blocks)
    limit = min(MAX_AUTO_POSITIONS, int(MAX_AUTO_DENSITY * heights[-1] * widths[-1]))
    pattern = _smallest_pattern(plan, limit)
    if pattern is None or not pattern.nse:
        return None
    found = compressed_plan(plan, traced, Compressed(pattern=pattern, check=False))
    eliminated = plan.traced_work.predicted
    if found.coloring.count * plan.function_flops > eliminated:
        return None  # each product does at least what the function does
    margin = 1.0 if len(plan.program.instructions) > LONG else MARGIN
    return found if found.traced_work.predicted * margin < eliminated else None
