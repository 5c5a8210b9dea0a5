"""Solving the equations of a composition: which labels of two terms must agree, and how.

Composing `outer: M -> O` with `inner: I -> M` asks, for every dimension of `M`, that the input map
of the outer term equals the output map of the inner term. `solve` turns those equations into
substitutions of labels. Closed forms come first (they keep the size of the array out of the
planning time); what is left is enumerated into a table; what is too large to enumerate is
reported, and the caller densifies.

All labels run over static boxes, so every answer is exact: no entry is lost, none is invented.
"""

from __future__ import annotations

import math

import numpy as np

from .draft import Draft
from .maps import IndexMap, Table, constant, from_values, label

__all__ = ["MAX_BRANCHES", "MAX_ENUMERATION", "MAX_UNROLL", "Unsolvable", "solve"]

#: Largest number of label assignments that one side of an equation may enumerate.
MAX_ENUMERATION = 1 << 22
#: Largest number of terms that one label may be unrolled into.
MAX_UNROLL = 32
#: Largest number of terms that one composition may be unrolled into.
MAX_BRANCHES = 256


class Unsolvable(Exception):
    """No closed form, and too many assignments to enumerate."""


def solve(draft: Draft) -> list[Draft]:
    """Solve `draft.equations`; the returned drafts, to be summed, have none left.

    An empty list means that no assignment satisfies the equations (a structural zero).

    Raises:
        Unsolvable: where the caller has to densify one side first.
    """
    done: list[Draft] = []
    pending = [draft]
    while pending:
        current = pending.pop()
        while current.equations:
            branches = _advance(current)
            if branches is not None:
                pending.extend(reversed(branches))
                break
        else:
            done.append(current)
        if len(done) + len(pending) > MAX_BRANCHES:
            raise Unsolvable
    return done


def _advance(draft: Draft) -> list[Draft] | None:
    """Simplify one equation in place (None), or replace the draft by branches."""
    equation = min(draft.equations, key=lambda item: len(item.parts))
    if not equation.parts:
        if equation.offset:
            return []
        draft.equations.remove(equation)
        return None
    if len(equation.parts) == 1:
        return _select(draft, equation)
    if len(equation.parts) == 2:
        return _pair(draft, equation)
    if _bind_in_range(draft, equation) or _bind_dropped(draft, equation):
        return None
    parts = _split_by_scale(draft, equation)
    if parts is None and equation.is_affine:
        trial = draft.copy()
        refined = _refine_radix(trial, equation)
        if refined is not None and _split_by_scale(trial, refined) is not None:
            draft.__dict__.update(trial.__dict__)
            return None
    if parts is not None:
        draft.equations.remove(equation)
        draft.equations.extend(parts)
        return None
    return _unroll(draft, equation) or _enumerate(draft, equation)


def _select(draft: Draft, equation: IndexMap) -> list[Draft] | None:
    """One label: `part(label) + offset == 0`."""
    ((name, part),) = equation.parts
    if isinstance(part, int):
        value, remainder = divmod(-equation.offset, part)
        if remainder or not 0 <= value < draft.sizes[name]:
            return []
        draft.bind(name, constant(value))
        return None
    return _keep(draft, name, np.flatnonzero(part.values == -equation.offset))


def _keep(draft: Draft, name: int, chosen: np.ndarray) -> list[Draft] | None:
    """Let label `name` run over the `chosen` values only."""
    if len(chosen) == 0:
        return []
    if len(chosen) == 1:
        draft.bind(name, constant(int(chosen[0])))
    else:
        new = draft.fresh(len(chosen))
        draft.bind(name, from_values(new, chosen))
    return None


def _pair(draft: Draft, equation: IndexMap) -> list[Draft] | None:
    """Two labels: a linear Diophantine equation, or a table to look up."""
    (a, first), (b, second) = equation.parts
    if isinstance(first, int) and isinstance(second, int):
        return _diophantine(draft, a, first, b, second, equation.offset)
    if isinstance(first, int):
        a, b, first, second = b, a, second, first
    if isinstance(second, Table):
        return _enumerate(draft, equation)
    assert isinstance(first, Table)
    # second * b == -(offset + first[a]): label b is a function of label a.
    wanted, remainder = np.divmod(-(equation.offset + first.values), second)
    valid = np.flatnonzero((remainder == 0) & (wanted >= 0) & (wanted < draft.sizes[b]))
    if len(valid) < len(wanted):
        return _keep(draft, a, valid)
    draft.bind(b, from_values(a, wanted))
    return None


def _diophantine(
    draft: Draft, a: int, first: int, b: int, second: int, offset: int
) -> list[Draft] | None:
    """`first * a + second * b + offset == 0` over the two boxes: one label, or nothing."""
    if first == -second and offset == 0 and draft.sizes[a] == draft.sizes[b]:
        draft.bind(b, label(a))
        return None
    divisor = math.gcd(first, second)
    if offset % divisor:
        return []
    if second < 0:  # labels of one direction run upwards: nothing is read backwards
        divisor = -divisor
    first, second, offset = first // divisor, second // divisor, offset // divisor
    # a = start_a + second * t and b = start_b - first * t run through all integer solutions.
    start_a = (-offset * pow(first, -1, second)) % second if second > 1 else 0
    start_b = (-offset - first * start_a) // second
    low_a, high_a = _solution_range(start_a, second, draft.sizes[a])
    low_b, high_b = _solution_range(start_b, -first, draft.sizes[b])
    low, high = max(low_a, low_b), min(high_a, high_b)
    if low > high:
        return []
    start_a, start_b = start_a + second * low, start_b - first * low
    if low == high:
        draft.bind(a, constant(start_a))
        draft.bind(b, constant(start_b))
        return None
    name = draft.fresh(high - low + 1)
    draft.bind(a, label(name, second, start_a))
    draft.bind(b, label(name, -first, start_b))
    return None


def _solution_range(start: int, step: int, size: int) -> tuple[int, int]:
    """The range of t for which `0 <= start + step * t < size`."""
    if step > 0:
        return -(start // step), (size - 1 - start) // step
    return -((size - 1 - start) // -step), start // -step


def _bind_in_range(draft: Draft, equation: IndexMap) -> bool:
    """Replace a label of stride one by the rest, where the rest stays within the label's range."""
    for name, part in equation.parts:
        if part not in (1, -1):
            continue
        rest = IndexMap(equation.offset, tuple(p for p in equation.parts if p[0] != name))
        expression = rest.scaled(-1 if part == 1 else 1)
        low, high = expression.bounds(draft.sizes)
        if low >= 0 and high < draft.sizes[name] and _bind_single(draft, name, expression):
            return True
    return False


def _bind_single(draft: Draft, name: int, expression: IndexMap) -> bool:
    """Replace a label, unless several assignments would then share a position.

    A window in a window, `in = a + j + k`, is better unrolled along one of them: the sum of the
    shifted windows is one window again.
    """
    if min(draft.sizes[other] for other in (name, *expression.labels)) > MAX_UNROLL:
        return draft.bind(name, expression)
    trial = draft.copy()
    if not trial.bind(name, expression):
        return False
    if _tells_apart(trial) or not _tells_apart(draft):
        draft.__dict__.update(trial.__dict__)
        return True
    return False


def _tells_apart(draft: Draft) -> bool:
    """Whether positions and equations yield the position labels one by one."""
    rows = [set(axis.labels) for axis in (*draft.out, *draft.into, *draft.equations)]
    unknown = draft.position_labels
    while unknown:
        found = {n for row in rows if len(row & unknown) == 1 for n in row & unknown}
        if not found:
            return False
        unknown -= found
    return True


def _bind_dropped(draft: Draft, equation: IndexMap) -> bool:
    """Replace a label by the rest, where it leaves its range only outside the matrix.

    Such assignments are dropped by their position, so that a band stays one term; its factors are
    read as zero there.
    """
    if not draft.extents or not equation.is_affine:
        return False
    for name, part in equation.parts:
        if part not in (1, -1):
            continue
        maps = (*draft.out, *draft.into, *draft.equations, *draft.limits)
        if any(axis.stride(name) is None for axis in maps) or any(
            f.factor.opaque is not None or any(a.stride(name) is None for a in f.factor.axes)
            for f in draft.factors
            if name in f.labels
        ):
            continue
        rest = IndexMap(equation.offset, tuple(p for p in equation.parts if p[0] != name))
        expression = rest.scaled(-1 if part == 1 else 1)
        low, high = expression.bounds(draft.sizes)
        bounded_below = low >= 0 or _drops(draft, name, -1)
        bounded_above = high < draft.sizes[name] or _drops(draft, name, draft.sizes[name])
        if bounded_below and bounded_above and _bind_single(draft, name, expression):
            return True
    return False


def _drops(draft: Draft, name: int, value: int) -> bool:
    """Whether a label that reaches `value`, or goes beyond it, leaves the matrix."""
    for axis, extent in zip((*draft.out, *draft.into), draft.extents, strict=True):
        stride = axis.stride(name)
        if axis.labels != (name,) or not stride:
            continue
        position = axis.offset + stride * value
        outward = stride < 0 if value < 0 else stride > 0
        if position >= extent if outward else position < 0:
            return True
    return False


def _split_by_scale(draft: Draft, equation: IndexMap) -> tuple[IndexMap, IndexMap] | None:
    """Split into a coarse and a fine equation where the fine part cannot carry.

    If all coarse strides are multiples of G and the fine part ranges over less than G, then the
    fine part has only one possible value. Returns an unsatisfiable pair where it has none.
    """
    if not equation.is_affine:
        return None
    parts = sorted(equation.parts, key=lambda item: -abs(item[1]))  # type: ignore[arg-type]
    for cut in range(1, len(parts)):
        coarse, fine = parts[:cut], parts[cut:]
        unit = math.gcd(*(p for _, p in coarse))  # type: ignore[arg-type]
        low, high = IndexMap(0, tuple(fine)).bounds(draft.sizes)
        if high - low >= unit:
            continue
        value = low + (-equation.offset - low) % unit
        if value > high:
            return constant(1), constant(1)
        return (
            IndexMap(-value, tuple(sorted(fine))),
            IndexMap(equation.offset + value, tuple(sorted(coarse))),
        )
    return None


def _refine_radix(draft: Draft, equation: IndexMap) -> IndexMap | None:
    """Split labels into digits at the strides of the other labels; the refined equation."""
    position = draft.equations.index(equation)
    changed = True
    refined = False
    while changed:
        changed = False
        current = draft.equations[position]
        strides = sorted({abs(p) for _, p in current.parts if isinstance(p, int)})
        for name, part in current.parts:
            assert isinstance(part, int)
            for stride in strides:
                digit, remainder = divmod(stride, abs(part))
                size = draft.sizes[name]
                if remainder or digit <= 1 or size <= digit or size % digit:
                    continue
                major, minor = draft.fresh(size // digit), draft.fresh(digit)
                expression = IndexMap(0, ((major, digit), (minor, 1)))
                if not draft.bind(name, expression):
                    return None
                changed = refined = True
                break
            if changed:
                break
    return draft.equations[position] if refined else None


def _unroll(draft: Draft, equation: IndexMap) -> list[Draft] | None:
    """One branch per value of the smallest label, where that is small."""
    name = min(equation.labels, key=lambda n: draft.sizes[n])
    if draft.sizes[name] > MAX_UNROLL:
        return None
    branches = []
    for value in range(draft.sizes[name]):
        branch = draft.copy()
        branch.bind(name, constant(value))
        branches.append(branch)
    return branches


def _enumerate(draft: Draft, equation: IndexMap) -> list[Draft] | None:
    """Replace the equation's labels by one label over all solutions (a join of two sides)."""
    ordered = sorted(equation.labels, key=lambda n: -draft.sizes[n])
    sides: tuple[list[int], list[int]] = ([], [])
    boxes = [1, 1]
    for name in ordered:  # balance the two sides' boxes
        side = int(boxes[1] < boxes[0])
        sides[side].append(name)
        boxes[side] *= draft.sizes[name]
    if max(boxes) > MAX_ENUMERATION:
        raise Unsolvable
    parts = dict(equation.parts)
    values = [
        IndexMap(0, tuple((n, parts[n]) for n in sorted(side))).evaluate(side, draft.sizes).ravel()
        for side in sides
    ]
    rows, columns = _join(values[0], -equation.offset - values[1])
    if len(rows) == 0:
        return []
    if len(rows) > MAX_ENUMERATION:
        raise Unsolvable
    joint = draft.fresh(len(rows))
    for names, chosen in zip(sides, (rows, columns), strict=True):
        digits = np.unravel_index(chosen, [draft.sizes[n] for n in names])
        for name, digit in zip(names, digits, strict=True):
            draft.bind(name, from_values(joint, digit))
    if joint in draft.sizes and draft.sizes[joint] == 1:
        draft.bind(joint, constant(0))
    return None


def _join(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All pairs (i, j) with `left[i] == right[j]`, sorted by i, then j."""
    order = np.argsort(right, kind="stable")
    ordered = right[order]
    starts = np.searchsorted(ordered, left, side="left")
    counts = np.searchsorted(ordered, left, side="right") - starts
    if int(counts.sum()) > MAX_ENUMERATION:
        raise Unsolvable
    rows = np.repeat(np.arange(len(left)), counts)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    columns = order[np.repeat(starts, counts) + np.arange(len(rows)) - first]
    return rows, columns
