"""Matrices of single numbers of which every column is one number, times known ones.

Rates of reactions that change the amounts of several species are such: what a species reacts with
stands in its column, times the stoichiometry. A branch for every entry is needless there: the
numbers are concatenated once, and multiplied by a table in one vectorised loop. (Of matrices whose
rows are such the loop is not: they take up to twice as long as branches.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from .arrays import promoted
from .layers import COLUMNS, ROWS
from .numbers import Numbers
from .operations import is_known
from .recorded import Number, Operation

__all__ = ["ScaledColumns", "scaled_columns"]


class ScaledColumns(NamedTuple):
    """The numbers of columns, of which a matrix is a multiple.

    Attributes:
        numbers: one for each column.
        table: what they are multiplied with, (rows, columns).
        known: what stands where that is zero.
        shape: of the array whose last axis are the columns.
    """

    numbers: Numbers
    table: np.ndarray
    known: np.ndarray
    shape: tuple[int, ...]

    def array(self, values: Numbers) -> Any:
        """The array of one sample, for which the numbers are these values."""
        found = promoted([jnp.asarray(value) for value in values])
        row = lax.concatenate([lax.reshape(value, (1,)) for value in found], 0)
        product = row * jnp.asarray(self.table.astype(row.dtype))
        matrix = jnp.where(self.table != 0, product, self.known.astype(row.dtype))
        return lax.reshape(matrix, self.shape)


def scaled_columns(operations: Mapping[int, Operation], numbers: Numbers) -> ScaledColumns | None:
    """The numbers of an array as scaled columns; None where they are none, or no better so.

    Products stay the products that they are: no factors are multiplied with each other.

    Args:
        operations: those that the numbers need, by their places.
        numbers: of an array of results.
    """
    columns = numbers.shape[-1] if numbers.ndim > 1 else 1
    if columns not in COLUMNS or numbers.size // columns not in ROWS:
        return None
    if any(is_known(number) and np.iscomplexobj(number) for number in numbers.ravel()):
        return None
    entries = [_split(operations, number) for number in numbers.ravel()]
    bases: dict[int, Number] = {}
    for k, (base, _) in enumerate(entries):
        if base is not None and bases.setdefault(k % columns, base).place != base.place:
            return None
    if not bases or sum(bool(base or factor) for base, factor in entries) <= columns:
        return None  # all is known, or a layer is as much
    (dtype, *others) = {base.dtype for base in bases.values()}
    if others or not jnp.issubdtype(dtype, jnp.floating):
        return None
    values = np.empty(columns, object)
    for column in range(columns):
        values[column] = bases.get(column, np.zeros((), dtype))
    shape = (len(entries) // columns, columns)
    table = np.array([0.0 if base is None else factor for base, factor in entries])
    known = np.array([factor if base is None else 0.0 for base, factor in entries])
    return ScaledColumns(values, table.reshape(shape), known.reshape(shape), numbers.shape)


def _split(operations: Mapping[int, Operation], number: Any) -> tuple[Number | None, float]:
    """A number, and what is known that it is multiplied with; none, and a known one."""
    if is_known(number):
        return None, float(number)
    factor = 1.0
    operation = operations.get(number.place)
    if operation is not None and operation.name == "neg":
        (number,) = operation.operands
        factor, operation = -1.0, operations.get(number.place)
    if operation is not None and operation.name == "mul":
        known = [x for x in operation.operands if is_known(x)]
        if len(known) == 1 and np.isfinite(known[0]) and known[0] != 0:
            (number,) = (x for x in operation.operands if not is_known(x))
            factor *= float(known[0])
    return number, factor
