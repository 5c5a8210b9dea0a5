"""When a lazy product is multiplied out: the one place where that is decided.

* A label that no output or input map mentions is summed at once, over the factors that hold it.
* Two factors are multiplied when the product is no larger than the larger of them, so a chain of
  diagonals stays one vector, while an outer product `p[a] q[b]` stays two.
* What all factors read through one table, which repeats entries, is multiplied before it is read.
* An opaque map is applied as soon as it meets something to be applied to, along its cheaper side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .draft import Draft, DraftFactor
from .maps import IndexMap, label
from .operations import ApplyOpaque, Assemble, Einsum, MaterializeOpaque, Read, RecipeWriter
from .terms import Factor, intern_structure

__all__ = ["materialize_all", "multiply_out", "simplify"]

#: A product of what is read by rows and columns of a table is put off from so many entries for each
#: number that is read.
LAZY = 2


def simplify(draft: Draft, writer: RecipeWriter, real: bool = False) -> None:
    """Bring the product of a draft without open equations to its working form.

    Args:
        draft: the product.
        writer: takes the operations.
        real: whether the real part of the product is meant.
    """
    draft.drop_trivial_labels()
    is_real = not real
    if draft.factors:
        is_real |= _resolve_opaque(draft, writer, real)
        _sum_labels(draft, writer)
        _multiply_contained(draft, writer)
    if not is_real:
        _take_real(draft, writer)


def multiply_out(draft: Draft, writer: RecipeWriter) -> None:
    """Multiply all factors of a simplified draft into one."""
    while len(draft.factors) > 1:
        _multiply(draft, writer, draft.factors[:2], frozenset())


def _take_real(draft: Draft, writer: RecipeWriter) -> None:
    """Replace the draft's values by their real parts."""
    if not draft.factors:
        draft.coefficient = complex(draft.coefficient).real
        return
    materialize_all(draft, writer)
    multiply_out(draft, writer)
    coefficient, draft.coefficient = draft.coefficient, 1
    if coefficient == complex(coefficient).real:
        coefficient, draft.coefficient = 1, complex(coefficient).real
    _multiply(draft, writer, draft.factors, frozenset(), coefficient, real=True)


def materialize_all(draft: Draft, writer: RecipeWriter) -> None:
    """Replace every opaque factor by its array."""
    for item in draft.factors:
        if item.factor.opaque is not None:
            _materialize(item, writer)


def _materialize(item: DraftFactor, writer: RecipeWriter) -> None:
    factor = item.factor
    assert factor.opaque is not None
    item.operand = writer.add(MaterializeOpaque(factor.opaque, factor.shape), [item.operand])
    item.factor = replace(factor, opaque=None)


def _multiply(
    draft: Draft,
    writer: RecipeWriter,
    items: list[DraftFactor],
    summed: frozenset[int],
    coefficient: complex = 1,
    real: bool = False,
) -> int:
    """Replace one or two factors by their product, summed over `summed`; its operand."""
    labels = frozenset().union(*[item.factor.labels for item in items])
    kept = draft.storage_order(labels - summed if summed else labels)
    sizes: Mapping[int, int] = draft.sizes
    shared: dict[int, tuple[IndexMap, int]] = {}
    if not all([axis.is_affine for item in items for axis in item.factor.axes]):
        repeated = {name: _repetition(draft, items, name) for name in kept}
        shared = {name: found for name, found in repeated.items() if found is not None}
        sizes = {**sizes, **{name: extent for name, (_, extent) in shared.items()}}
    reads = [Read(item.factor.axes, item.factor.conj) for item in items]
    if shared:
        maps = {index_map: label(name) for name, (index_map, _) in shared.items()}
        reads = [Read(tuple([maps.get(a, a) for a in r.axes]), r.conj) for r in reads]
    listed = tuple([(name, sizes[name]) for name in sorted(labels)])
    operation = Einsum(tuple(reads), listed, kept, coefficient, real)
    operand = writer.add(operation, [item.operand for item in items])
    axes = tuple([shared[name][0] if name in shared else label(name) for name in kept])
    product = Factor(axes, operation.shape)
    position = min([draft.factors.index(item) for item in items])
    rest = [f for f in draft.factors if f not in items]
    draft.factors = [*rest[:position], DraftFactor(operand, product), *rest[position:]]
    for name in summed:
        draft.forget(name)
    return operand


def _repetition(draft: Draft, items: list[DraftFactor], name: int) -> tuple[IndexMap, int] | None:
    """The map by which all factors read entries along a label more than once, and their number.

    Such products are taken entry by entry first, and repeated by whoever reads them.
    """
    found: set[tuple[IndexMap, int]] = set()
    for item in items:
        for axis, extent in zip(item.factor.axes, item.factor.shape, strict=True):
            if name in axis.labels:
                found.add((axis, extent))
    if len(found) != 1:
        return None
    ((axis, extent),) = found
    low, high = axis.bounds(draft.sizes)
    inside = low >= 0 and high < extent
    return (
        (axis, extent) if inside and axis.labels == (name,) and extent < draft.sizes[name] else None
    )


def _sum_labels(draft: Draft, writer: RecipeWriter) -> None:
    kept = draft.position_labels
    if all([item.factor.labels <= kept for item in draft.factors]):
        return
    kinds: dict[int, tuple[tuple[int, ...], ...]] = {}  # shapes of what products here are made of

    def kind(items: list[DraftFactor]) -> tuple[tuple[int, ...], ...]:
        return tuple(sorted([s for i in items for s in kinds.get(i.operand, (i.factor.shape,))]))

    while True:
        groups: dict[int, list[DraftFactor]] = {}
        for item in draft.factors:
            for name in item.factor.labels - kept:
                groups.setdefault(name, []).append(item)
        if not groups:
            return

        def work(name: int, groups: dict[int, list[DraftFactor]] = groups) -> int:
            return draft.box(frozenset().union(*(item.labels for item in groups[name])))

        # At equal work factors meet before products do, and what met already meets again:
        # `tr(B dA B dA)` is one product, squared, also where dA is a product itself.
        def order(name: int, groups: dict[int, list[DraftFactor]] = groups) -> tuple[int, ...]:
            made = any(item.operand >= writer.inputs for item in groups[name])
            again = made and kind(groups[name]) in kinds.values()
            return work(name, groups), made, not again, name

        (name,) = groups if len(groups) == 1 else (min(groups, key=order),)
        group = groups[name]
        if len(group) > 2:
            pairs = [(a, b) for i, a in enumerate(group) for b in group[i + 1 :]]
            best = min(pairs, key=lambda pair: draft.box(pair[0].labels | pair[1].labels))
            made = _multiply(draft, writer, list(best), frozenset())
            kinds[made] = kind(list(best))
            continue
        together = frozenset(name for name, items in groups.items() if items == group)
        made = _multiply(draft, writer, group, together)
        kinds[made] = kind(group)


def _multiply_contained(draft: Draft, writer: RecipeWriter) -> None:
    while len(draft.factors) > 1:
        pairs = []
        for i, a in enumerate(draft.factors):
            labels = a.factor.labels
            for b in draft.factors[i + 1 :]:
                others = b.factor.labels
                if (
                    (labels <= others or others <= labels)
                    and not (a.factor.opaque or b.factor.opaque)
                    and not _reads_rows_and_columns(draft, a, b)
                ):
                    pairs.append((a, b))
        if not pairs:
            return
        best = pairs[0]
        if len(pairs) > 1:
            best = min(pairs, key=lambda pair: draft.box(pair[0].labels | pair[1].labels))
        _multiply(draft, writer, list(best), frozenset())


def _reads_rows_and_columns(draft: Draft, a: DraftFactor, b: DraftFactor) -> bool:
    """Whether one label places the entries of a table, and the factors are read by its positions.

    `p[out] q[in]` at the places of a triangle is an outer product, which stays two factors too: the
    product would have a number for each entry.
    """
    if len(a.factor.axes) != 1 or len(b.factor.axes) != 1:
        return False
    (first,), (second,) = a.factor.axes, b.factor.axes
    if first == second or first.is_affine or second.is_affine or first.labels != second.labels:
        return False
    count = draft.box(frozenset(first.labels))
    if count < LAZY * max(*a.factor.shape, *b.factor.shape):
        return False
    rows, columns = draft.out, draft.into
    return (first in rows and second in columns) or (first in columns and second in rows)


def _resolve_opaque(draft: Draft, writer: RecipeWriter, real: bool) -> bool:
    """Leave no opaque factor but one that stands alone; whether the real part was taken."""
    is_real = False
    while True:
        opaque = [f for f in draft.factors if f.factor.opaque]
        item = opaque[0] if opaque else None
        if item is None or (len(draft.factors) == 1 and _stands_alone(draft, item.factor)):
            return is_real
        scaled = isinstance(draft.coefficient, complex)
        is_real |= _apply(draft, item, writer, real and not scaled)


def _stands_alone(draft: Draft, factor: Factor) -> bool:
    """Whether an opaque factor is simply a block of the matrix, so that it can stay lazy."""
    names = [axis.labels[0] for axis in factor.axes if axis.labels]
    return (
        not factor.conj
        and len(set(names)) == len(names)
        and all(
            axis.is_plain(size, draft.sizes) or (size == 1 and not axis.parts and not axis.offset)
            for axis, size in zip(factor.axes, factor.shape, strict=True)
        )
        and set(names) <= draft.position_labels
    )


def _apply(draft: Draft, item: DraftFactor, writer: RecipeWriter, real: bool) -> bool:
    """Apply an opaque factor to its neighbours, or write it out where that is cheaper.

    With `real` a map between real and complex arrays may be applied to all others at once, in the
    mode that gives the real part of the product. Returns whether it was.
    """
    factor, opaque = item.factor, item.factor.opaque
    assert opaque is not None
    split = opaque.batch + opaque.outputs
    batch = factor.axes[: opaque.batch]
    whole = MaterializeOpaque(opaque, factor.shape)
    choices: list[tuple[int, int, list[DraftFactor], tuple[int, ...]]] = []
    batch_plain = all(
        axis.is_plain(size, draft.sizes) or (size == 1 and not axis.parts)
        for axis, size in zip(batch, factor.shape, strict=False)
    )
    if batch_plain and not factor.conj:
        batch_labels = {name for axis in batch for name in axis.labels}
        for reverse in (True, False):
            takes_real = not (opaque.reverse if reverse else opaque.forward)
            if takes_real and not (real and opaque.real):
                continue
            near, far = factor.axes[opaque.batch : split], factor.axes[split:]
            if not reverse:
                near, far = far, near
            near_labels = {n for axis in near for n in axis.labels}
            elsewhere = draft.position_labels | batch_labels | {n for a in far for n in a.labels}
            summed = near_labels - elsewhere
            group = [f for f in draft.factors if f is not item and f.labels & summed]
            if any(f.factor.opaque is not None for f in group):
                continue
            rest = [f for f in draft.factors if f is not item and f not in group]
            if takes_real and (rest or not group):
                continue
            elsewhere |= {n for f in rest for n in f.labels}
            involved = near_labels.union(*(f.labels for f in group)) - batch_labels
            extra = tuple(sorted(involved & elsewhere))
            count = draft.box(set(extra))
            if not (reverse and opaque.pushes_sooner_than(count)):
                choices.append((count, int(not reverse), group, extra))
    limit = whole.cost.muls // max(1, ApplyOpaque(opaque, factor.shape, (), True).cost.muls)
    best = min(choices, key=lambda c: c[:2], default=None)
    # Seeds that nothing multiplies are an identity: its image is the map's array, by one name.
    if best is None or best[0] > limit or (best[0] == limit and not best[2]):
        _materialize(item, writer)
        return False
    _, forward, group, extra = best
    reverse = not forward
    near = factor.axes[opaque.batch : split] if reverse else factor.axes[split:]
    far = factor.axes[split:] if reverse else factor.axes[opaque.batch : split]
    near_shape = factor.shape[opaque.batch : split] if reverse else factor.shape[split:]
    far_shape = factor.shape[split:] if reverse else factor.shape[opaque.batch : split]
    batch_shape = factor.shape[: opaque.batch]
    extra_shape = tuple(draft.sizes[name] for name in extra)

    seeds = Draft(
        dict(draft.sizes),
        [label(name) for name in extra],
        [*batch, *near],
        [DraftFactor(f.operand, f.factor) for f in group],
    )
    used = {n for a in (*seeds.out, *seeds.into) for n in a.labels}
    used = used.union(*(f.labels for f in group))
    seeds.sizes = {name: size for name, size in seeds.sizes.items() if name in used}
    finished = seeds.finish()
    assert finished is not None
    term, operands = finished
    structure = intern_structure(extra_shape, (*batch_shape, *near_shape), [term])
    seed = writer.add(Assemble(structure), operands)
    result = writer.add(
        ApplyOpaque(opaque, factor.shape, extra_shape, reverse), [item.operand, seed]
    )
    axes = (*(label(name) for name in extra), *batch, *far)
    applied = Factor(axes, (*extra_shape, *batch_shape, *far_shape))
    removed = [item, *group]
    draft.factors = [f for f in draft.factors if not any(f is r for r in removed)]
    draft.factors.append(DraftFactor(result, applied))
    alive = draft.position_labels.union(*(f.labels for f in draft.factors))
    for name in [n for n in draft.sizes if n not in alive]:
        if name in used:
            draft.forget(name)  # summed inside the application
    return not (opaque.reverse if reverse else opaque.forward)
