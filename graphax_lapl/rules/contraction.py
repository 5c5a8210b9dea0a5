"""Sums of products: `dot_general` in all its forms."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np
from jax import dtypes, lax

from ..edges.maps import IndexMap, label
from .registry import defrule
from .site import Known, Local, Piece, Reference, Site


def _multiplier(site: Site, position: int) -> Reference:
    """The value of an operand, in numbers that products of partials can be made of.

    Integers and booleans (quantized weights, masks) may be multiplied with floats as they are, but
    products and sums of them are as narrow as they are: 100 * 100 is 16 in eight bits.
    """
    value = site.value(position)
    own, dtype = site.inputs[position].dtype, site.outputs[0].dtype
    if dtypes.issubdtype(own, np.inexact):
        return value
    if isinstance(value, Known):
        return Known(value.value.astype(dtype))
    return Local("convert", _converted(dtype), (value,), site.shape(position), "constant")


@lru_cache(maxsize=64)
def _converted(dtype: Any) -> Any:
    return partial(lax.convert_element_type, new_dtype=dtype)


@defrule("dot_general")
def _dot_general(site: Site, i: int, k: int) -> list[Piece]:
    """Bilinear: the partial with respect to one operand is the other one, batch labels shared.

    Output dimensions are (batch, free of the left, free of the right).
    """
    del k
    contracting, batch = site.params["dimension_numbers"]
    sides: list[list[int]] = []
    sizes: list[int] = []

    def fresh(size: int) -> int:
        sizes.append(size)
        return len(sizes) - 1

    left, right = site.shape(0), site.shape(1)
    shared = {a: fresh(left[a]) for a in batch[0]}
    shared_right = dict(zip(batch[1], shared.values(), strict=True))
    summed = {a: fresh(left[a]) for a in contracting[0]}
    summed_right = dict(zip(contracting[1], summed.values(), strict=True))
    free_left = {a: fresh(n) for a, n in enumerate(left) if a not in shared and a not in summed}
    free_right = {
        a: fresh(n) for a, n in enumerate(right) if a not in shared_right and a not in summed_right
    }
    names_left = {**shared, **summed, **free_left}
    names_right = {**shared_right, **summed_right, **free_right}
    sides = [
        [names_left[a] for a in range(len(left))],
        [names_right[a] for a in range(len(right))],
    ]
    out = [label(n) for n in (*shared.values(), *free_left.values(), *free_right.values())]

    def maps(side: list[int]) -> list[IndexMap]:
        return [label(name) for name in side]

    other = 1 - i
    factor = site.factor(_multiplier(site, other), maps(sides[other]), site.shape(other))
    number = site.uniform(other)
    if number is not None:
        return site.piece(sizes, out, maps(sides[i]), coefficient=number)
    return site.piece(sizes, out, maps(sides[i]), [factor])
