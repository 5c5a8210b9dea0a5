"""Writing a sum of terms out as a dense array.

Values are padded into place along one dimension per label and selected by comparing positions
along the others, so a diagonal or a band becomes one fused elementwise expression: no identity is
built and nothing is scattered. Bands and windows, `in = a + k`, are padded so that their labels
count through the flat positions. Terms whose positions only a table knows are placed by
it (`tables.py`), and a matrix of single numbers is packed (`packing.py`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..edges.maps import IndexMap
from ..edges.operations import Read
from ..edges.terms import Structure, Term
from .arrays import broadcast_labels, promoted, promoted_dtype, read, scaled
from .beside import beside_each_other
from .blocks_on_diagonal import with_blocks_spread
from .grids import on_grid
from .masked import MAX_KNOWN, known_entries, masked_groups, read_by_position, spread_and_masked
from .packing import MAX_PACKED, packed
from .stacked import side_by_side, stacked_groups
from .tables import are_many_runs, placed_by_tables, scattered_runs

__all__ = ["assemble", "term_values"]

#: In matrices of more than `MAX_PACKED` entries, up to this many single numbers are packed.
MAX_PIECES = 32
#: Up to so many single numbers beside other entries are placed by their positions, in matrices of
#: at least so many entries for each: the corners of a periodic stencil.
MAX_CORNERS, CORNER_ROOM = 4, 32
#: Most arrays that are selected by the distance of positions; three took up to 1.26 of padding.
MAX_MASKED = 2


def assemble(
    structure: Structure,
    operands: Sequence[Array],
    dtype: np.dtype,
    is_result: bool = False,
    fixed: Sequence[bool] = (),
) -> Array:
    """The dense array, axes (output..., input...).

    Args:
        structure: the sum of terms.
        operands: the arrays of its factors.
        dtype: of the array where no factor says it.
        is_result: whether nothing reads the array. What reads one is fused with comparisons of
            positions, and meets the same identity elsewhere.
        fixed: for each operand whether no differentiated input enters it; nothing where that is
            not known.
    """
    shape = (*structure.out_shape, *structure.in_shape)
    if 0 in shape or not structure.terms:
        return jnp.zeros(shape, dtype)
    split: list[tuple[Term, Sequence[Array]]] = []
    moving: list[int] = []
    start = 0
    for number, term in enumerate(structure.terms):
        end = start + len(term.factors)
        split.append((term, operands[start:end]))
        if not fixed or not all(fixed[start:end]):
            moving.append(number)
        start = end
    parts: list[Array] = []
    if is_result:
        # What is read elsewhere is fused with comparisons of other positions.
        parts, split = with_blocks_spread(
            split, shape, len(structure.out_shape), lambda s, own: assemble(s, own, dtype)
        )
        if parts and not split:
            return parts[0]
    split = _with_stacks(split, shape, dtype, moving if not parts else range(len(split)))
    points = [item for item in split if _is_point_within(item[0], shape)]
    blocks = [item for item in split if item[0].position_labels]
    size = math.prod(shape)
    if is_result and size <= MAX_KNOWN and any(not term.factors for term, _ in blocks):
        known = [term for term, _ in split if not term.factors]
        blocks, points = ([i for i in items if i[0].factors] for items in (blocks, points))
        parts.append(known_entries(known, shape, dtype))
    corners = is_result and len(points) <= min(MAX_CORNERS, size // CORNER_ROOM)
    if corners and (blocks or parts):
        blocks, points = [*blocks, *points], []
    if is_result and blocks:
        groups, rest = masked_groups(blocks, shape)
        if len(groups) <= MAX_MASKED:
            blocks = [blocks[number] for number in rest]
            parts += [spread_and_masked(g.terms, g.operands, shape, g.along) for g in groups]
    runs = [item for item in blocks if _is_run(item[0])]
    if are_many_runs([term for term, _ in runs], shape):
        blocks = [item for item in blocks if not _is_run(item[0])]
        found = [(term, *term_values(term, own, dtype)) for term, own in runs]
        parts.append(scattered_runs(found, shape))
    parts += _placed(blocks, shape, dtype) if is_result else _beside(blocks, shape, dtype)
    if points and size == 1 and not parts:
        values = [term_values(term, own, dtype)[0] for term, own in points]
        return lax.reshape(_total(values), shape)
    if points:
        parts.append(_pack(points, shape, dtype))
    return _total(parts) if parts else jnp.zeros(shape, dtype)


def _with_stacks(
    split: list[tuple[Term, Sequence[Array]]],
    shape: tuple[int, ...],
    dtype: np.dtype,
    moving: Collection[int],
) -> list[tuple[Term, Sequence[Array]]]:
    """The terms with their operands, groups that differ in single positions replaced by one.

    Of a group in which few terms are `moving`, those are selected beside the array of the others,
    which is most often the same for all samples.
    """
    groups = stacked_groups([term for term, _ in split], shape)
    for k, group in enumerate(groups):
        still = [number for number in group if number not in moving]
        if len(group) - len(still) <= MAX_MASKED:
            groups[k] = still
    done = {number for group in groups for number in group}
    rest = [item for number, item in enumerate(split) if number not in done]
    for group in groups:
        own = [split[number] for number in group]
        values = [term_values(term, operands, dtype) for term, operands in own]
        term, array = side_by_side([term for term, _ in own], values, shape)
        rest.append((term, [array]))
    return rest


def _is_point_within(term: Term, shape: tuple[int, ...]) -> bool:
    """Whether the term is a single number that stands within the matrix."""
    if term.position_labels:
        return False
    maps = (*term.out, *term.into)
    return all(0 <= axis.offset < n for axis, n in zip(maps, shape, strict=True))


def _is_run(term: Term) -> bool:
    """Whether the entries of a term stand along one line, at positions known beforehand."""
    return len(term.position_labels) == 1 and term.is_affine


def _total(parts: list[Array]) -> Array:
    parts = promoted(parts)
    total = parts[0]
    for part in parts[1:]:
        total = lax.add(total, part)
    return total


def term_values(
    term: Term, operands: Sequence[Array], dtype: np.dtype
) -> tuple[Array, tuple[int, ...]]:
    """The product of a term's factors and coefficient, and the labels of its axes."""
    sizes = dict(enumerate(term.sizes))
    if not term.factors:
        number = np.asarray(term.coefficient)
        return jnp.asarray(number.astype(_at_least(dtype, number))), ()
    views = [
        read(value, Read(factor.axes, factor.conj), sizes)
        for value, factor in zip(operands, term.factors, strict=True)
    ]
    labels = tuple(sorted({name for _, names in views for name in names}))
    values = promoted([value for value, _ in views])
    total = broadcast_labels(values[0], views[0][1], labels, sizes)
    for value, (_, names) in zip(values[1:], views[1:], strict=True):
        total = lax.mul(total, broadcast_labels(value, names, labels, sizes))
    summed = [k for k, name in enumerate(labels) if name not in term.position_labels]
    if summed:
        total = lax.reduce_sum(total, summed)
        labels = tuple(name for name in labels if name in term.position_labels)
    return scaled(total, term.coefficient), labels


def _at_least(dtype: np.dtype, number: np.ndarray) -> np.dtype:
    if np.iscomplexobj(number) and not jnp.issubdtype(dtype, jnp.complexfloating):
        return promoted_dtype(dtype, np.dtype(np.complex64))
    return dtype


def _pack(
    points: Sequence[tuple[Term, Sequence[Array]]], shape: tuple[int, ...], dtype: np.dtype
) -> Array:
    """Single numbers at known positions within the matrix."""
    found: dict[int, list[Array]] = {}
    for term, operands in points:
        position = tuple(axis.offset for axis in (*term.out, *term.into))
        flat = int(np.ravel_multi_index(position, shape)) if shape else 0
        found.setdefault(flat, []).append(term_values(term, operands, dtype)[0])
    places = sorted(found)
    values = promoted([_total(found[place]) for place in places])
    kind = values[0].dtype
    total = math.prod(shape)
    if total > MAX_PACKED and len(places) > MAX_PIECES:
        stacked = lax.concatenate([lax.reshape(v, (1,)) for v in values], 0)
        dense = (
            jnp.zeros(total, kind)
            .at[np.asarray(places, np.int32)]
            .set(stacked, mode="promise_in_bounds", unique_indices=True, indices_are_sorted=True)
        )
        return lax.reshape(dense, shape)
    return lax.reshape(packed(dict(zip(places, values, strict=True)), total), shape)


def _placed(
    items: Sequence[tuple[Term, Sequence[Array]]], shape: tuple[int, ...], dtype: np.dtype
) -> list[Array]:
    """Terms as dense arrays to be added up, those together that tables place."""
    parts: list[Array] = []
    listed: dict[tuple[int, ...], list[tuple[Term, Array, tuple[int, ...]]]] = {}
    for term, operands in items:
        grid = on_grid(term, shape) or (term, shape)
        forms = [(term, shape)] if grid[1] == shape else [(term, shape), grid]
        found = (_by_position(form, operands, within, dtype) for form, within in forms)
        array = next((array for array in found if array is not None), None)
        if array is None:
            values, names = term_values(grid[0], operands, dtype)
            listed.setdefault(grid[1], []).append((grid[0], values, names))
        else:
            parts.append(lax.reshape(array, shape))
    for within, terms in listed.items():
        parts += [lax.reshape(array, shape) for array in placed_by_tables(terms, within)]
    return parts


def _beside(
    items: Sequence[tuple[Term, Sequence[Array]]], shape: tuple[int, ...], dtype: np.dtype
) -> list[Array]:
    """Terms as dense arrays to be added up, parts that lie beside each other concatenated."""
    together = beside_each_other(
        items, shape, lambda own, within: _total(_placed(own, within, dtype))
    )
    return _placed(items, shape, dtype) if together is None else [together]


def _by_position(
    term: Term, operands: Sequence[Array], shape: tuple[int, ...], dtype: np.dtype
) -> Array | None:
    """One term as a dense array; None where only tables know where its entries stand."""
    maps: Sequence[IndexMap] = (*term.out, *term.into)
    if not all(axis.is_affine for axis in maps):
        along = read_by_position(term, shape)
        return None if along is None else spread_and_masked([term], operands, shape, along)
    primary = _primary_dimensions(term, maps)
    flat = _flat_layout(term, maps, shape) if primary is None else None
    if primary is None and flat is None:
        return None
    values, names = term_values(term, operands, dtype)
    if primary is None:
        assert flat is not None
        return _lay_flat(term, values, names, maps, shape, flat)
    # Without axes of length one: XLA sees that arrays which differ in these alone are one.
    kept = [d for d, axis in enumerate(maps) if shape[d] != 1 or axis.parts or axis.offset]
    within = tuple(shape[d] for d in kept)
    primary = {name: kept.index(dimension) for name, dimension in primary.items()}
    maps = [maps[d] for d in kept]
    values = _pad_into_place(term, values, names, maps, primary, within)
    condition = _condition(term, set(names), maps, primary, within)
    if condition is not None:
        values = lax.select(condition, values, lax.full_like(values, 0))
    return values if within == shape else lax.reshape(values, shape)


def _primary_dimensions(term: Term, maps: Sequence[IndexMap]) -> dict[int, int] | None:
    """For every label a dimension that it alone runs along; None where one has none."""
    primary: dict[int, int] = {}
    for dimension, axis in enumerate(maps):
        if not axis.is_affine:
            return None
        if len(axis.parts) == 1:
            ((name, stride),) = axis.parts
            known = primary.get(name)
            if known is None or (abs(stride) == 1 and abs(maps[known].parts[0][1]) != 1):  # type: ignore[arg-type]
                primary[name] = dimension
    return primary if set(primary) == term.position_labels else None


def _pad_into_place(
    term: Term,
    values: Array,
    names: tuple[int, ...],
    maps: Sequence[IndexMap],
    primary: dict[int, int],
    shape: tuple[int, ...],
) -> Array:
    """Pad each axis into its primary dimension and repeat along all others."""
    reverse, config = [], []
    for k, name in enumerate(names):
        axis = maps[primary[name]]
        stride, start = axis.parts[0][1], axis.offset
        assert isinstance(stride, int)
        reach = stride * (term.sizes[name] - 1)
        if stride < 0:
            reverse.append(k)
            start += reach
        high = shape[primary[name]] - (start + abs(reach) + 1)
        config.append((start, high, abs(stride) - 1))
    if reverse:
        values = lax.rev(values, reverse)
    if any(c != (0, 0, 0) for c in config):
        values = lax.pad(values, np.zeros((), values.dtype), config)
    order = sorted(range(len(names)), key=lambda k: primary[names[k]])
    if order != list(range(len(names))):
        values = lax.transpose(values, order)
    return lax.broadcast_in_dim(values, shape, [primary[names[k]] for k in order])


def _condition(
    term: Term,
    padded: set[int],
    maps: Sequence[IndexMap],
    primary: dict[int, int],
    shape: tuple[int, ...],
) -> Array | None:
    """Where the term has entries, apart from what the padding already zeroed."""
    checks = []

    def positions(dimension: int, weight: int = 1, shift: int = 0) -> Array:
        """`weight * position + shift` along a dimension; computed here, so never multiplied."""
        if (weight, shift) == (1, 0):
            return lax.broadcasted_iota(np.int32, shape, dimension)
        steps = np.arange(shape[dimension], dtype=np.int32) * weight + shift
        return lax.broadcast_in_dim(jnp.asarray(steps), shape, [dimension])

    for dimension, axis in enumerate(maps):
        if len(axis.parts) == 1 and primary[axis.parts[0][0]] == dimension:
            ((name, stride),) = axis.parts
            assert isinstance(stride, int)
            size = term.sizes[name]
            full = abs(stride) == 1 and axis.bounds(dict(enumerate(term.sizes))) == (
                0,
                shape[dimension] - 1,
            )
            if name in padded or full:
                continue
            allowed = np.zeros(shape[dimension], bool)
            reached = axis.evaluate([name], {name: size})
            allowed[reached[(reached >= 0) & (reached < shape[dimension])]] = True
            checks.append(lax.broadcast_in_dim(jnp.asarray(allowed), shape, [dimension]))
            continue
        # common * (position - offset) == sum(stride * label), each label read off its own
        # dimension, where it stands times that dimension's stride.
        strides = {name: maps[primary[name]].parts[0][1] for name in axis.labels}
        common = math.lcm(*(abs(s) for s in strides.values())) if strides else 1  # type: ignore[arg-type]
        shift = common * axis.offset
        terms = []
        for name, part in axis.parts:
            weight = part * (common // strides[name])  # type: ignore[operator]
            shift -= weight * maps[primary[name]].offset
            terms.append((primary[name], weight))
        left = positions(dimension, common, -shift)
        if not terms:
            checks.append(lax.eq(left, lax.full_like(left, 0)))
            continue
        right = positions(*terms[0])
        for place, weight in terms[1:]:
            right = lax.add(right, positions(place, weight))
        checks.append(lax.eq(left, right))
    if not checks:
        return None
    condition = checks[0]
    for check in checks[1:]:
        condition = lax.bitwise_and(condition, check)
    return condition


#: Dimensions that share labels, and those labels with their strides through the flat positions.
_Digits = tuple[list[int], list[tuple[int, int]]]


def _flat_layout(
    term: Term, maps: Sequence[IndexMap], shape: tuple[int, ...]
) -> list[_Digits] | None:
    """Groups of dimensions whose labels count through their flat positions digit by digit.

    Labels go from major to minor; None where the digits of one would carry into another's. In a
    band, `out = a` and `in = a + k`, label `a` has the stride `extent + 1`, and `k` one.
    """
    if not all(axis.is_affine for axis in maps):
        return None
    groups: list[tuple[set[int], list[int]]] = []
    for dimension, axis in enumerate(maps):
        labels, together = set(axis.labels), [dimension]
        for group in [g for g in groups if g[0] & labels]:
            groups.remove(group)
            labels |= group[0]
            together = group[1] + together
        groups.append((labels, sorted(together)))
    layout: list[_Digits] = []
    for labels, together in groups:
        found = (
            (list(dimensions), _digits(term, labels, dimensions, maps, shape))
            for dimensions in itertools.permutations(together)
        )
        fitting = next(((d, digits) for d, digits in found if digits is not None), None)
        if fitting is None:
            return None
        layout.append(fitting)
    return layout


def _digits(
    term: Term,
    labels: set[int],
    dimensions: Sequence[int],
    maps: Sequence[IndexMap],
    shape: tuple[int, ...],
) -> list[tuple[int, int]] | None:
    """Labels with their strides through dimensions in the given order, if they do not carry."""
    units = _units([shape[d] for d in dimensions])
    counted = list(zip(dimensions, units, strict=True))
    strides = {n: sum((maps[d].stride(n) or 0) * unit for d, unit in counted) for n in labels}
    digits = sorted(strides.items(), key=lambda item: -item[1])
    if any(stride <= 0 for _, stride in digits):
        return None
    for (_, major), (name, minor) in itertools.pairwise(digits):
        if major % minor or term.sizes[name] > major // minor:
            return None
    return digits


def _units(extents: Sequence[int]) -> list[int]:
    return [math.prod(extents[k + 1 :]) for k in range(len(extents))]


def _lay_flat(
    term: Term,
    values: Array,
    names: tuple[int, ...],
    maps: Sequence[IndexMap],
    shape: tuple[int, ...],
    layout: list[_Digits],
) -> Array:
    """Place entries by padding every label to the length of its digit, and reading flat."""
    sizes = dict(enumerate(term.sizes))
    labels = tuple(name for _, digits in layout for name, _ in digits)
    values = broadcast_labels(values, names, labels, sizes)
    inside = _inside(labels, sizes, maps, shape)
    if not inside.all():
        kept = [k for k, size in enumerate(inside.shape) if size > 1]
        mask = lax.broadcast_in_dim(jnp.asarray(np.squeeze(inside)), values.shape, kept)
        values = lax.select(mask, values, lax.full_like(values, 0))
    zero = np.zeros((), values.dtype)
    config, flat = [], []
    for _, digits in layout:
        lengths = [major // minor for (_, major), (_, minor) in itertools.pairwise(digits)]
        own = [sizes[name] for name, _ in digits]
        config += [(0, 0, 0)] * bool(own)
        config += [(0, n - size, 0) for n, size in zip(lengths, own[1:], strict=True)]
        flat.append(math.prod([*own[:1], *lengths]))
    if any(entry != (0, 0, 0) for entry in config):
        values = lax.pad(values, zero, config)
    values = lax.reshape(values, flat)
    config = []
    for length, (together, digits) in zip(flat, layout, strict=True):
        units = _units([shape[d] for d in together])
        start = sum(maps[d].offset * unit for d, unit in zip(together, units, strict=True))
        step = digits[-1][1] if digits else 1
        total = math.prod(shape[d] for d in together)
        config.append((start, total - (start + step * (length - 1) + 1), step - 1))
    values = lax.pad(values, zero, config)
    order = [dimension for together, _ in layout for dimension in together]
    values = lax.reshape(values, [shape[d] for d in order])
    if order == list(range(len(shape))):
        return values
    return lax.transpose(values, [order.index(d) for d in range(len(shape))])


def _inside(
    labels: tuple[int, ...],
    sizes: dict[int, int],
    maps: Sequence[IndexMap],
    shape: tuple[int, ...],
) -> np.ndarray:
    """Which assignments lie in the matrix, of length one along labels that do not matter."""
    inside = np.ones((1,) * len(labels), bool)
    for axis, extent in zip(maps, shape, strict=True):
        low, high = axis.bounds(sizes)
        if low < 0 or high >= extent:
            position = axis.evaluate(labels, sizes)
            inside = inside & (position >= 0) & (position < extent)
    return inside
