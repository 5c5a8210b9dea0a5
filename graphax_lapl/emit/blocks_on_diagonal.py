"""Terms that stand together in blocks along a diagonal: the blocks, spread once.

What a function of each row of a matrix does, raveled, has a block for every row, made of a term for
each entry of the row that is read. Each of them would pass over the whole matrix, and the places of
some are known to tables only. Written out as an array of the blocks, they are selected by comparing
the numbers of rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
from jax import Array, lax

from ..edges.maps import IndexMap, label
from ..edges.terms import Structure, Term, intern_structure
from .holding import held

__all__ = ["are_blocks_on_diagonal", "with_blocks_spread"]

#: Fewest terms, and fewest blocks.
MIN_TERMS, MIN_BLOCKS = 1, 3
#: Most entries of the matrix: in larger ones entries are set in zeros.
MAX_SIZE = 1 << 15

#: A term and the arrays of its factors.
Item = tuple[Term, Sequence[Array]]
#: Two dimensions of the matrix, the extents of a block along them, and how many blocks there are.
Diagonal = tuple[int, int, int, int, int]


def are_blocks_on_diagonal(structure: Structure) -> bool:
    """Whether all terms stand in blocks along one diagonal."""
    shape = (*structure.out_shape, *structure.in_shape)
    found = _found(structure.terms, shape, len(structure.out_shape))
    return found is not None and len(found[1]) == len(structure.terms)


def with_blocks_spread(
    items: Sequence[Item],
    shape: tuple[int, ...],
    split: int,
    written: Callable[[Structure, Sequence[Array]], Array],
) -> tuple[list[Array], list[Item]]:
    """Arrays of the matrix's shape for terms in blocks along a diagonal, and the other terms.

    Args:
        items: the terms with their operands.
        shape: of the matrix, (output..., input...).
        split: number of the output's dimensions.
        written: writes the blocks out.
    """
    best = _found([term for term, _ in items], shape, split)
    if best is None:
        return [], list(items)
    (out, into, rows, columns, count), blocks = best
    outer = [rows if d == out else n for d, n in enumerate(shape[:split])]
    inner = [columns if d == into else n for d, n in enumerate(shape[split:], split)]
    structure = intern_structure((count, *outer), tuple(inner), tuple(blocks.values()))
    operands = [array for number in blocks for array in items[number][1]]
    rest = [item for number, item in enumerate(items) if number not in blocks]
    return [_spread(written(structure, operands), shape, out, into, count)], rest


def _found(
    terms: Sequence[Term], shape: tuple[int, ...], split: int
) -> tuple[Diagonal, dict[int, Term]] | None:
    """The diagonal that most terms have blocks along, and these within the blocks, by number."""
    if math.prod(shape) > MAX_SIZE:
        return None
    found: dict[Diagonal, dict[int, Term]] = {}
    for number, term in enumerate(terms):
        for diagonal, block in _diagonals(term, shape, split):
            found.setdefault(diagonal, {})[number] = block
    best = max(found.items(), key=lambda item: (len(item[1]), item[0][4]), default=None)
    return best if best is not None and len(best[1]) >= MIN_TERMS else None


def _diagonals(term: Term, shape: tuple[int, ...], split: int) -> list[tuple[Diagonal, Term]]:
    """Ways to read a term as blocks along a diagonal, with the term within the blocks."""
    if not term.is_affine or term.conj:
        return []
    maps = (*term.out, *term.into)
    result = []
    for out, into in itertools.product(range(split), range(split, len(shape))):
        for name in sorted({*maps[out].labels} & {*maps[into].labels}):
            rows, columns = maps[out].stride(name) or 0, maps[into].stride(name) or 0
            count = term.sizes[name]
            if count < MIN_BLOCKS or rows < 1 or columns < 1:
                continue
            if rows * columns == 1 and len(shape) == 2:
                continue  # a diagonal
            if (rows * count, columns * count) != (shape[out], shape[into]):
                continue
            within = [_without(maps[out], name), _without(maps[into], name)]
            inside = all(
                low >= 0 and high < extent
                for (low, high), extent in zip(
                    (axis.bounds(term.sizes) for axis in within), (rows, columns), strict=True
                )
            )
            if inside:
                changed = [*maps]
                changed[out], changed[into] = within
                block = Term(
                    term.sizes,
                    (label(name), *changed[:split]),
                    tuple(changed[split:]),
                    term.factors,
                    term.coefficient,
                )
                result.append(((out, into, rows, columns, count), block))
    return result


def _without(axis: IndexMap, name: int) -> IndexMap:
    return IndexMap(axis.offset, tuple(part for part in axis.parts if part[0] != name))


def _spread(core: Array, shape: tuple[int, ...], out: int, into: int, count: int) -> Array:
    """Blocks, along the first axis of `core`, on the diagonal of two dimensions."""
    extents = core.shape[1:]
    # The number of the block comes before each of the two dimensions, in the first as it is.
    if out:
        core = lax.transpose(core, [*range(1, out + 1), 0, *range(out + 1, core.ndim)])
    within = [*extents[:out], count, *extents[out:into], count, *extents[into:]]
    kept = [place for place in range(len(within)) if place != into + 1]
    repeated = lax.broadcast_in_dim(core, within, kept)
    rows = lax.broadcasted_iota(np.int32, within, out)
    columns = lax.broadcasted_iota(np.int32, within, into + 1)
    chosen = lax.select(lax.eq(rows, columns), repeated, lax.full_like(repeated, 0))
    # A kernel that writes the matrix itself finds each entry's place in the block by divisions.
    return lax.reshape(held(chosen), shape)
