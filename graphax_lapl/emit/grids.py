"""Dimensions that tables divide into blocks: particles, and the coordinates of each.

What a function reads of an array of shape (particles, 3) stands, in a Jacobian of the flat
coordinates, at `3 * particle[pair] + k`. With the dimension split in two the table says the
particle, and `k` runs along a dimension of its own: windows are placed as a whole, and what each
pair holds is read by its position.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from ..edges.maps import IndexMap, Part, Table, label
from ..edges.terms import Term

__all__ = ["on_grid"]


@lru_cache(maxsize=1 << 12)
def on_grid(term: Term, shape: tuple[int, ...]) -> tuple[Term, tuple[int, ...]] | None:
    """The term with dimensions split that tables divide; None where there is none.

    Args:
        term: the term.
        shape: of the matrix, (output..., input...).

    Returns:
        The term over a matrix of the same entries in the same order, and the shape of that.
    """
    split = len(term.out)
    maps: list[list[IndexMap]] = []
    extents: list[int] = []
    for axis, extent in zip((*term.out, *term.into), shape, strict=True):
        found = None if axis.is_affine else _divided(axis, extent, term.sizes)
        if found is None:
            maps.append([axis])
            extents.append(extent)
        else:
            block, inner = found
            size = term.sizes[inner]
            maps.append([block, label(inner)])
            extents += [extent // size, size]
    if len(extents) == len(shape):
        return None
    out, into = maps[:split], maps[split:]
    made = replace(
        term, out=tuple(m for own in out for m in own), into=tuple(m for own in into for m in own)
    )
    return made, tuple(extents)


def _divided(axis: IndexMap, extent: int, sizes: tuple[int, ...]) -> tuple[IndexMap, int] | None:
    """The map of blocks, and the label that runs through each; None where there are no blocks."""
    inner = [name for name, part in axis.parts if part == 1 and sizes[name] > 1]
    if len(inner) != 1:
        return None
    (name,) = inner
    size = sizes[name]
    if extent % size or axis.offset % size:
        return None
    parts: list[tuple[int, Part]] = []
    for other, part in axis.parts:
        if other == name:
            continue
        if isinstance(part, int):
            if part % size:
                return None
            parts.append((other, part // size))
        else:
            if (part.values % size).any():
                return None
            parts.append((other, Table(part.values // size)))
    return IndexMap(axis.offset // size, tuple(parts)), name
