"""Structures of sparse results: each term has one factor, an array that it reads.

The labels of a term are those that its positions depend on. So a transposed, flattened or joined
matrix has the arrays of the old one under another structure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .maps import IndexMap, constant, from_values, label
from .masks import Limit
from .terms import Factor, Structure, Term, intern_structure, with_terms

__all__ = [
    "coordinate_structure",
    "dense_form",
    "flattened",
    "merged",
    "swapped",
    "value_structure",
]


def value_structure(structure: Structure) -> Structure:
    """The same positions with one factor per term: an array over the term's position labels."""
    terms = []
    for term in structure.terms:
        labels = sorted(term.position_labels)
        names = {name: k for k, name in enumerate(labels)}
        terms.append(
            _term(
                tuple(term.sizes[name] for name in labels),
                tuple(axis.renamed(names) for axis in term.out),
                tuple(axis.renamed(names) for axis in term.into),
                tuple(limit.renamed(names) for limit in term.limits),
            )
        )
    return with_terms(structure, terms)


def swapped(structure: Structure) -> Structure:
    """The transposed matrix, term by term."""
    return intern_structure(
        structure.in_shape,
        structure.out_shape,
        [replace(term, out=term.into, into=term.out) for term in structure.terms],
        structure.complex_in,
        structure.complex_out,
    )


def flattened(structure: Structure) -> Structure | None:
    """The matrix between the flattened output and the flattened input, term by term.

    Returns None where a term leaves the matrix, or loses a label: then its positions have no such
    form, and `coordinate_structure` has.
    """
    shapes = (math.prod(structure.out_shape),), (math.prod(structure.in_shape),)
    if not structure.size:
        return None
    terms = []
    for term in structure.terms:
        out = _ravelled(term.out, structure.out_shape, term.sizes)
        into = _ravelled(term.into, structure.in_shape, term.sizes)
        if out is None or into is None:
            return None
        made = replace(term, out=(out,), into=(into,))
        if made.position_labels != term.position_labels:
            return None
        terms.append(made)
    return intern_structure(*shapes, terms, structure.complex_out, structure.complex_in)


def coordinate_structure(
    rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]
) -> Structure:
    """A list of entries of a matrix: one term with one label, or none for a single entry."""
    sizes = (len(rows),) if len(rows) != 1 else ()
    terms = [_term(sizes, (from_values(0, rows),), (from_values(0, columns),))]
    return intern_structure(shape[:1], shape[1:], terms if len(rows) else [])


def dense_form(out_shape: tuple[int, ...], in_shape: tuple[int, ...]) -> Structure:
    """A matrix all of whose entries are given, one label per dimension."""
    maps = tuple(label(k) for k in range(len(out_shape) + len(in_shape)))
    term = _term((*out_shape, *in_shape), maps[: len(out_shape)], maps[len(out_shape) :])
    return intern_structure(out_shape, in_shape, [term])


def merged(structures: Sequence[Structure]) -> tuple[Structure, list[list[int]]]:
    """The sum of matrices of one shape; for each of its terms the terms that it adds up.

    Terms are numbered through all structures. Equal patterns become one term, whose factor is the
    array over all its labels; a term of a pattern of its own keeps its factor.
    """
    groups: dict[tuple[object, ...], list[int]] = {}
    terms = [term for structure in structures for term in structure.terms]
    for k, term in enumerate(terms):
        groups.setdefault((term.sizes, term.out, term.into, term.limits), []).append(k)
    kept = list(groups.values())
    first = structures[0]
    heads = [terms[group[0]] for group in kept]
    structure = intern_structure(
        first.out_shape,
        first.in_shape,
        [
            _term(head.sizes, head.out, head.into, head.limits) if len(group) > 1 else head
            for head, group in zip(heads, kept, strict=True)
        ],
        first.complex_out,
        first.complex_in,
    )
    return structure, kept


def _term(
    sizes: tuple[int, ...],
    out: tuple[IndexMap, ...],
    into: tuple[IndexMap, ...],
    limits: tuple[Limit, ...] = (),
) -> Term:
    factor = Factor(tuple(label(k) for k in range(len(sizes))), sizes)
    return Term(sizes, out, into, (factor,), limits=limits)


def _ravelled(
    maps: tuple[IndexMap, ...], shape: tuple[int, ...], sizes: tuple[int, ...]
) -> IndexMap | None:
    """Row-major position of several dimensions; None where one of them may be left."""
    by_label = dict(enumerate(sizes))
    total = constant(0)
    for axis, extent in zip(maps, shape, strict=True):
        if 0 not in sizes:
            low, high = axis.bounds(by_label)
            if low < 0 or high >= extent:
                return None
        total = total.scaled(extent).plus(axis, by_label)
    return total
