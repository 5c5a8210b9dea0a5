"""Pictures of where the entries of a matrix stand, in text and as a plot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..edges.layout import term_positions
from ..edges.terms import Structure
from ..plotting import figure_and_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["braille_spy", "spy_plot"]

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


def spy_plot(
    rows: np.ndarray,
    columns: np.ndarray,
    shape: tuple[int, int],
    title: str,
    ax: Axes | None = None,
    marker_size: float | None = None,
) -> tuple[Figure, Axes]:
    """Plot entries at (rows, columns) of a matrix; returns `(figure, axes)`.

    Raises:
        ImportError: without matplotlib (`pip install 'graphax_lapl[plots]'`).
    """
    figure, axes = figure_and_axes(ax)
    size = marker_size
    if size is None:
        size = min(8.0, max(0.5, 250.0 / max(*shape, 1)))  # in points, for figures of usual size
    axes.plot(columns, rows, "s", markersize=size, linestyle="none")
    axes.set_xlim(-0.5, max(shape[1], 1) - 0.5)
    axes.set_ylim(max(shape[0], 1) - 0.5, -0.5)
    axes.set_aspect("equal")
    axes.set_xlabel("input")
    axes.set_ylabel("output")
    axes.set_title(title)
    return figure, axes
