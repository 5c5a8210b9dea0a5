"""Adding terms of one pattern: their values are added where the sum is no larger than they are."""

from __future__ import annotations

import math
from dataclasses import replace

from .contract import materialize_all, multiply_out
from .draft import Draft, storage_order
from .maps import label
from .masks import Limit, either
from .operations import Combine, Einsum, Read, RecipeWriter
from .terms import Factor, Number, Structure, Term

__all__ = ["Item", "merge", "plain_value", "terms_with_operands"]

#: A term and the operands that hold its factors.
Item = tuple[Term, list[int]]


def terms_with_operands(structure: Structure, operands: list[int]) -> list[Item]:
    """Terms with their shares of the operands."""
    items, start = [], 0
    for term in structure.terms:
        items.append((term, operands[start : start + len(term.factors)]))
        start += len(term.factors)
    return items


def merge(items: list[Item], writer: RecipeWriter) -> list[Item]:
    """Add terms of equal pattern."""
    if len(items) == 1:
        return _merge(items, writer)
    groups: dict[tuple[object, ...], list[Item]] = {}
    for item in items:
        groups.setdefault(item[0].pattern, []).append(item)
    return [item for group in groups.values() for item in _merge(group, writer)]


def _merge(group: list[Item], writer: RecipeWriter) -> list[Item]:
    """Add terms of one pattern where their sum is no larger than they are."""
    if len(group) == 1:
        return [item for item in group if item[0].factors or item[0].coefficient != 0]
    constants = [item for item in group if not item[0].factors]
    variable = [item for item in group if item[0].factors]
    total: Number = sum(term.coefficient for term, _ in constants)
    if not variable:
        term = constants[0][0]
        return [(replace(term, coefficient=total), [])] if total != 0 else []
    variable.sort(key=lambda item: -item[0].stored)
    result: list[Item] = []
    while variable:
        first = variable.pop(0)
        chosen, rest = [first], []
        labels = first[0].value_labels
        stored = first[0].stored
        boxes: dict[frozenset[int], int] = {}
        for item in variable:
            own = item[0].value_labels
            box = boxes.get(own)
            if box is None:
                box = boxes[own] = _box(item[0], labels | own)
            if box <= stored + item[0].stored:
                chosen.append(item)
                labels, stored = labels | own, max(stored, box)
                boxes.clear()
            else:
                rest.append(item)
        constant, total = total, 0
        if len(chosen) == 1 and constant == 0:
            result.append(first)
        else:
            result.append(_merged(chosen, constant, writer))
        variable = rest
    return result


def _box(term: Term, labels: frozenset[int]) -> int:
    return math.prod([term.sizes[name] for name in labels])


def _merged(group: list[Item], constant: Number, writer: RecipeWriter) -> Item:
    """One term whose single factor is the sum of the group's values plus a constant."""
    parts: list[tuple[Number, tuple[int, ...]]] = []
    operands: list[int] = []
    sizes: dict[int, int] = {}
    for term, own in group:
        coefficient, labels = term.coefficient, term.plain_labels
        if labels is not None:
            operands += own
        else:
            draft = Draft.of(term, own)
            materialize_all(draft, writer)
            multiply_out(draft, writer)
            operand, labels = plain_value(draft, writer)
            coefficient = draft.coefficient
            operands.append(operand)
        parts.append((coefficient, labels))
        sizes.update({name: term.sizes[name] for name in labels})
    common: Number = 1
    if constant == 0 and len({abs(c) for c, _ in parts}) == 1 and _all_real(parts):
        common = parts[0][0]
        parts = [(1 if c == common else -1, labels) for c, labels in parts]
    head = group[0][0]
    output = storage_order(head.out, head.into, sizes)
    operation = Combine(tuple(parts), tuple(sorted(sizes.items())), output, constant)
    value = writer.add(operation, operands)
    factor = Factor(tuple([label(name) for name in output]), operation.shape)
    limits: tuple[Limit, ...] = ()
    if constant == 0 and all([term.limits for term, _ in group]):
        cases = [term.limits for term, _ in group]
        shared = [limit for limit in head.limits if all(limit in other for other in cases)]
        limits = (*shared, *either(cases, dict(enumerate(head.sizes)), shared))
    return head.holding(factor, common, limits), [value]


def _all_real(parts: list[tuple[Number, tuple[int, ...]]]) -> bool:
    return not any(isinstance(c, complex) for c, _ in parts)


def plain_value(draft: Draft, writer: RecipeWriter) -> tuple[int, tuple[int, ...]]:
    """The single factor as an array with one axis per label."""
    (item,) = draft.factors
    axes = item.factor.axes
    names = tuple(axis.labels[0] if axis.labels else -1 for axis in axes)
    plain = len(set(names)) == len(names) and all(
        axis.is_plain(size, draft.sizes) for axis, size in zip(axes, item.factor.shape, strict=True)
    )
    if plain and not item.factor.conj:
        return item.operand, names
    labels = tuple(sorted(item.labels))
    operation = Einsum(
        (Read(axes, item.factor.conj),),
        tuple((name, draft.sizes[name]) for name in labels),
        labels,
    )
    return writer.add(operation, [item.operand]), labels
