"""Pictures of where the entries of a matrix stand, in text."""

from __future__ import annotations

import numpy as np

from ..edges.layout import term_positions
from ..edges.terms import Structure

__all__ = ["braille_spy"]

#: Rows and columns of characters; a Braille character has four rows and two columns of dots.
MAX_ROWS, MAX_COLUMNS = 12, 40
#: Beyond so many entries no picture is made, so that printing stays within about 10 ms.
MAX_ENTRIES = 200_000
#: Bits of the eight dots in a Braille character, by row and column.
_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])


def braille_spy(structure: Structure) -> str | None:
    """The flattened matrix as Braille characters, a dot for every cell with an entry.

    Returns None for an empty matrix, and where there are too many entries to look at.
    """
    shape = (*structure.out_shape, *structure.in_shape)
    rows, columns = (int(np.prod(s)) for s in (structure.out_shape, structure.in_shape))
    if not rows or not columns or sum(t.entries for t in structure.terms) > MAX_ENTRIES:
        return None
    scale = max(rows / (4 * MAX_ROWS), columns / (2 * MAX_COLUMNS), 1.0)
    height, width = (max(1, int(np.ceil(extent / scale))) for extent in (rows, columns))
    dots = np.zeros((-(-height // 4) * 4, -(-width // 2) * 2), bool)
    for term in structure.terms:
        flat, valid = term_positions(term, shape)
        row, column = np.divmod(flat[valid], columns)
        dots[row * height // rows, column * width // columns] = True
    cells = dots.reshape(dots.shape[0] // 4, 4, dots.shape[1] // 2, 2)
    codes = 0x2800 + np.einsum("aibj,ij->ab", cells.astype(int), _BITS)
    return "\n".join("".join(map(chr, line)) for line in codes)
