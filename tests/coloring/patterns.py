"""Patterns of the problems that colourings are usually compared on."""

from collections.abc import Sequence

import numpy as np

from graphax_lapl.coloring import Pattern


def diagonals(n: int, offsets: Sequence[int], periodic: bool = False) -> Pattern:
    """Entries at `column - row` in `offsets`."""
    i = np.tile(np.arange(n), len(offsets))
    j = i + np.repeat(offsets, n)
    kept = np.ones(len(i), bool) if periodic else (j >= 0) & (j < n)
    return Pattern.of(i[kept], j[kept] % n, (n, n))


def five_points(n: int, periodic: bool) -> Pattern:
    """Five-point differences on an n x n grid."""
    place = np.arange(n * n).reshape(n, n)
    rows, cols = [place.ravel()], [place.ravel()]
    for axis in (0, 1):
        for step in (1, -1):
            inside = np.ones((n, n), bool)
            if not periodic:
                edge = [slice(None), slice(None)]
                edge[axis] = slice(0, 1) if step == 1 else slice(n - 1, n)
                inside[tuple(edge)] = False
            rows.append(place[inside])
            cols.append(np.roll(place, step, axis)[inside])
    return Pattern.of(np.concatenate(rows), np.concatenate(cols), (n * n, n * n))


def two_species(n: int) -> Pattern:
    """The Brusselator on a periodic n x n grid: diffusion of each species, reaction of both."""
    one = five_points(n, periodic=True)
    size, cell = n * n, np.arange(n * n)
    rows = np.concatenate([one.rows, one.rows + size, cell, cell + size])
    cols = np.concatenate([one.cols, one.cols + size, cell + size, cell])
    return Pattern.of(rows, cols, (2 * size, 2 * size))


def arrowhead(n: int) -> Pattern:
    """A full row, a full column and the diagonal."""
    i, zero = np.arange(n), np.zeros(n, np.int64)
    return Pattern.of(np.concatenate([i, i, zero]), np.concatenate([i, zero, i]), (n, n))


def random_pattern(seed: int, m: int, n: int, density: float) -> Pattern:
    return Pattern.of_mask(np.random.default_rng(seed).random((m, n)) < density)


def random_symmetric(seed: int, n: int, density: float) -> Pattern:
    mask = np.random.default_rng(seed).random((n, n)) < density
    return Pattern.of_mask(mask | mask.T)


def random_matrix(seed: int, pattern: Pattern, symmetric: bool = False) -> np.ndarray:
    """A matrix of small integers on a pattern, so that sums are exact."""
    values = np.random.default_rng(seed).integers(1, 100, pattern.shape).astype(float)
    if symmetric:
        values = values + values.T
    matrix = np.zeros(pattern.shape)
    matrix[pattern.rows, pattern.cols] = values[pattern.rows, pattern.cols]
    return matrix
