"""Matrices that are stored in the order of axes in which they are read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from ..edges.operations import Assemble, Combine, Einsum, MaterializeOpaque, Overlay
from ..edges.terms import with_terms
from .axes import (
    Order,
    factor_read,
    in_dense,
    made_in,
    order_read,
    order_summed,
    reading,
)
from .instructions import Block, EdgeInstruction, Instruction, Program, Slot

__all__ = [
    "Storage",
    "columns_first",
    "contracted_last",
    "multiplies",
    "oriented",
    "plain_products",
]


def contracted_last(program: Program, fixed: Collection[int] = (), number: bool = False) -> Program:
    """The program whose matrices hold the axis last that the next product sums over.

    While arrows are multiplied a matrix is stored with the input's axes first. Pulled back through
    layers it is then read along its first axis, by products that need it transposed; with the
    output's axes first they are plain, for one sample and for a batch with common weights.

    Args:
        program: the program.
        fixed: slots that are the same for all samples of a batch, beside the program's inputs.
        number: whether the program's result is a number, which may be a sum of all entries.
    """
    return Storage(program, fixed, number).settled()


class Storage:
    """Orders of axes, settled from the last reader to the first maker."""

    def __init__(self, program: Program, fixed: Collection[int], number: bool = False):
        self.program, self.fixed, self.number = program, fixed, number
        self.slots, self.instructions = list(program.slots), list(program.instructions)
        self.makers: dict[int, int] = {}
        self.readers: dict[int, list[tuple[int, int]]] = {}
        for place, instruction in enumerate(self.instructions):
            for position, slot in enumerate(instruction.inputs):
                self.readers.setdefault(slot, []).append((place, position))
            if isinstance(instruction, EdgeInstruction):
                self.makers[instruction.outputs[0]] = place
        self.results = {slot for row in program.blocks for block in row for slot in block.slots}
        self.results.update(program.values)

    def settled(self) -> Program:
        """The program with its matrices in the orders that their readers want."""
        for slot, place in reversed([*self.makers.items()]):
            order = self.wanted(slot)
            if order is None or order == tuple(range(len(order))) or not self.can_be(slot, order):
                continue
            made = self.instructions[place]
            assert isinstance(made, EdgeInstruction)
            operation = made_in(made.operation, order)
            assert operation is not None
            self.instructions[place] = replace(made, operation=operation)
            self.slots[slot] = Slot(operation.shape, self.slots[slot].dtype)
            for k, position in self.readers[slot]:
                self.instructions[k] = reading(self.instructions[k], position, order)
        return replace(self.program, slots=self.slots, instructions=self.instructions)

    def wanted(self, slot: int) -> tuple[int, ...] | None:
        """The order of axes that all readers with a wish have; None where they differ."""
        if slot in self.results:
            return None
        orders: set[tuple[int, ...] | None] = set()
        for place, position in self.readers.get(slot, ()):
            operation = getattr(self.instructions[place], "operation", None)
            if isinstance(operation, Combine | Overlay | Assemble):
                orders.add(order_summed(operation, position))
            elif isinstance(operation, Einsum):
                loop = self.sums_with_weights(operation, self.instructions[place].inputs, position)
                orders.add(self.rows_first(slot) if loop else self.wish(operation, position))
            else:
                return None
        orders.discard(None)
        return orders.pop() if len(orders) == 1 else None

    def sums_with_weights(self, operation: Einsum, inputs: Sequence[int], position: int) -> bool:
        """Whether an operand meets weights of its own axes entry by entry, and any order suits.

        So it does in a sum of all entries that is the result.
        """
        if len(inputs) != 2 or not operation.summed:
            return False
        first, second = (read.labels for read in operation.reads)
        if not operation.output:
            return self.number and first == second and len(first) > 1
        return inputs[1 - position] in self.fixed and first == second

    def rows_first(self, slot: int) -> tuple[int, ...] | None:
        """The order in which a product with weights is rows of one large matrix, of all samples."""
        made = self.instructions[self.makers[slot]] if slot in self.makers else None
        operation = getattr(made, "operation", None)
        if made is None or not isinstance(operation, Einsum):
            return None
        if not multiplies(operation):
            return self._rows_before(operation, made.inputs)
        moving = [s not in self.fixed for s in made.inputs]
        if moving.count(True) != 1:
            return None
        rows = operation.reads[moving.index(True)].labels
        axes = range(len(operation.output))
        return tuple(sorted(axes, key=lambda k: operation.output[k] not in rows))

    def _rows_before(self, operation: Einsum, inputs: Sequence[int]) -> tuple[int, ...] | None:
        """The same of a matrix whose entries are multiplied with those of vectors."""
        labels = {*operation.output}
        matrices = [k for k, read in enumerate(operation.reads) if read.labels == labels]
        if operation.summed or len(matrices) != 1 or len(labels) < 2:
            return None
        read = operation.reads[matrices[0]]
        before = self.rows_first(inputs[matrices[0]]) if read.plain_labels is not None else None
        if before is None or len(before) != len(labels):
            return None
        return tuple(operation.output.index(read.axes[k].labels[0]) for k in before)

    def wish(self, operation: Einsum, position: int) -> tuple[int, ...] | None:
        """The order of an operand's axes that suits an einsum; None where any does."""
        return order_read(operation, operation.reads[position])

    def can_be(self, slot: int, order: tuple[int, ...]) -> bool:
        """Whether an array can be made with its axes in an order and nothing be transposed for it.

        Of what is no matrix of the program, as weights are, elementwise products read any order.
        A product has the axes of its one matrix first: with weights that samples share these are
        rows of one large matrix, and the order of the operands cannot be exchanged.
        """
        if slot not in self.makers or order == tuple(range(len(order))):
            return True
        made = self.instructions[self.makers[slot]]
        assert isinstance(made, EdgeInstruction)
        operation = None if slot in self.results else made_in(made.operation, order)
        if operation is None:
            return False
        if not isinstance(operation, Einsum):
            assert isinstance(operation, Combine | Overlay | Assemble)
            orders = [order_summed(operation, k) for k in range(len(made.inputs))]
        elif len(operation.sizes) == len(operation.output):
            orders = [order_read(operation, read) for read in operation.reads]
        else:
            return self._product_can_be(operation, made.inputs)
        return all(
            own is not None and self.can_be(operand, own)
            for operand, own in zip(made.inputs, orders, strict=True)
        )

    def _product_can_be(self, operation: Einsum, inputs: Sequence[int]) -> bool:
        """Whether a product can have its axes as `operation` has, and nothing is transposed."""
        matrices = [s in self.makers and s not in self.fixed for s in inputs]
        if len(matrices) < 2 or matrices.count(True) != 1:
            return False
        rows = operation.reads[matrices.index(True)].labels
        first = [name in rows for name in operation.output]
        return first == sorted(first, reverse=True)


def columns_first(program: Program) -> Program:
    """The program whose opaque maps hold their columns one after the other, as they are pushed.

    That is where elementwise products have the columns first as well, and all else that reads a
    map sums it or its squares. Otherwise it is transposed in memory for such a sum.
    """
    results = {slot for row in program.blocks for block in row for slot in block.slots}
    results.update(program.values)
    readers: dict[int, list[tuple[int, int]]] = {}
    for place, instruction in enumerate(program.instructions):
        for position, slot in enumerate(instruction.inputs):
            readers.setdefault(slot, []).append((place, position))
    slots, instructions = list(program.slots), list(program.instructions)
    for place, made in enumerate(program.instructions):
        operation = getattr(made, "operation", None)
        if not isinstance(operation, MaterializeOpaque) or operation.by_rows:
            continue
        (slot,) = made.outputs
        split = operation.opaque.batch + operation.opaque.outputs
        reads = readers.get(slot, [])
        if slot in results or not all(
            _takes_columns_first(instructions[k], position, split) for k, position in reads
        ):
            continue
        assert isinstance(made, EdgeInstruction)
        operation = replace(operation, columns_first=True)
        instructions[place] = replace(made, operation=operation)
        slots[slot] = Slot(operation.shape, slots[slot].dtype)
        order = (*range(split, len(operation.shape)), *range(split))
        for k, position in reads:
            instructions[k] = reading(instructions[k], position, order)
    return replace(program, slots=slots, instructions=instructions)


def _takes_columns_first(instruction: Instruction, position: int, split: int) -> bool:
    """Whether an operand may as well have the axes from `split` on first."""
    operation = getattr(instruction, "operation", None)
    if not isinstance(operation, Einsum):
        return False
    if {name for name, _ in operation.sizes} != {*operation.output}:
        return len({read.labels for read in operation.reads}) == 1
    axes = operation.reads[position].axes
    parts = ([n for axis in part for n in axis.labels] for part in (axes[split:], axes[:split]))
    columns, rest = ([operation.output.index(name) for name in part] for part in parts)
    return not columns or not rest or max(columns) < min(rest)


def plain_products(program: Program) -> Program | None:
    """The program whose products of matrices are rows times columns, for a single input.

    Without a batch nothing decides which operand comes first, so all arrays can be stored in the
    order in which they are read, the left ones with the contracted axis last and the right ones
    with it first, and no operand is transposed. Weights may come first then, where fewer products
    have a left operand that lies otherwise.

    Returns:
        The program; None where nothing is stored otherwise than in a program for batches.
    """
    starts = (program, _with_results_turned(program, weights_last=False))
    plain = min((_Plain(start, ()).settled() for start in starts), key=_transposed)
    same = [a is b for a, b in zip(plain.instructions, program.instructions, strict=True)]
    return None if all(same) else plain


class _Plain(Storage):
    """Orders of axes for a single input."""

    def wish(self, operation: Einsum, position: int) -> tuple[int, ...] | None:
        """Rows before the contracted axis on the left, columns behind it on the right."""
        read, kept = operation.reads[position], {*operation.output}
        if len(kept) == len(operation.sizes) or not multiplies(operation):
            return super().wish(operation, position)
        if not all(axis.is_label for axis in read.axes):
            return None
        names = [axis.labels[0] for axis in read.axes]
        left = operation.output[0] in names
        places = {name: k for k, name in enumerate(operation.output)}

        def place(k: int) -> tuple[bool, int]:
            name = names[k]
            return (name in kept) != left, places.get(name, name)

        return tuple(sorted(range(len(names)), key=place))

    def can_be(self, slot: int, order: tuple[int, ...]) -> bool:
        """Whether an array can be made with its axes in an order: its own maker is settled next."""
        del order
        made = self.instructions[self.makers[slot]]
        return isinstance(getattr(made, "operation", None), Einsum)


def _transposed(program: Program) -> int:
    """How many products of matrices have a left operand with the contracted axis not last.

    That of a result which is stored otherwise than the dense array has it is the right one: the
    compiler makes the product in the order of the array. Other such results count as one each.
    """
    makers = {i.outputs[0]: i for i in program.instructions if isinstance(i, EdgeInstruction)}
    other = {slot for row in program.blocks for block in row for slot in _otherwise(block)}
    found = 0
    for slot, instruction in makers.items():
        operation = instruction.operation
        if not isinstance(operation, Einsum) or not multiplies(operation):
            found += slot in other
            continue
        first = operation.output[-1 if slot in other else 0]
        side = 0 if first in operation.reads[0].labels else 1
        axes = operation.reads[side].axes
        last = axes[_last_in_memory(instruction.inputs[side], len(axes) - 1, makers)]
        found += not last.is_label or last.labels[0] in operation.output
    return found


def _otherwise(block: Block) -> Iterator[int]:
    """Slots of a block whose axes do not stand in the order of the dense array."""
    slots = iter(block.slots)
    for term in block.structure.terms if block.structure is not None else ():
        for factor, slot in zip(term.factors, slots, strict=False):
            if in_dense(term, factor.axes) not in (None, tuple(range(len(factor.axes)))):
                yield slot


def _last_in_memory(slot: int, last: int, makers: Mapping[int, EdgeInstruction]) -> int:
    """The axis along which an array's numbers lie side by side before a product reads them.

    The compiler evaluates an elementwise product in the order of what it is made of, and leaves
    transposing to the reader. `last` is the array's last axis.
    """
    made = makers.get(slot)
    operation = getattr(made, "operation", None)
    if made is None or not isinstance(operation, Einsum):
        return last
    everything = {name for name, _ in operation.sizes}
    for read, operand in zip(operation.reads, made.inputs, strict=True):
        names = [axis.labels[0] for axis in read.axes if axis.is_label]
        if len(names) == len(read.axes) == last + 1 and {*names} == everything:
            return operation.output.index(names[_last_in_memory(operand, last, makers)])
    return last


def multiplies(operation: Einsum) -> bool:
    """Whether it is a product of two matrices, with no axis that both have and the result too."""
    if len(operation.reads) != 2 or operation.written_out:
        return False
    first, second = (read.labels for read in operation.reads)
    kept = {*operation.output}
    return (
        bool(first & second)
        and kept.isdisjoint(first & second)
        and not kept.isdisjoint(first)
        and not kept.isdisjoint(second)
    )


def oriented(program: Program) -> Program:
    """The program whose last matrix products need no transposition before they are results.

    While arrows are multiplied a matrix is stored with the input's axes first, a result has the
    output's first. A compiler folds a transposition into the product before it, which then may be
    one that its library does not take. What only one block or overlay reads, or a sum that only one
    of them reads, is made as this has it, except where a matrix meets weights that would come first
    (see `Storage.can_be`): these are the same for all samples, and the transposition is left to the
    end.
    """
    return _with_results_turned(program, weights_last=True)


def _with_results_turned(program: Program, weights_last: bool) -> Program:
    """The program whose last products are made as the results that they are.

    Args:
        program: the program.
        weights_last: only products of matrices, and none that would have weights first.
    """
    readers = program.readers()
    products: dict[int, int] = {}
    rows_first: set[int] = set()
    for place, made in enumerate(program.instructions):
        if not isinstance(made, EdgeInstruction):
            continue
        (slot,) = made.outputs
        once = readers[slot] == 1
        if _is_product(made) if weights_last else _is_matrix(made):
            if weights_last and _has_rows_first(made, program):
                rows_first.add(slot)
            elif once:
                products[slot] = place
        elif weights_last and _is_sum(made):
            if not rows_first.isdisjoint(made.inputs):
                rows_first.add(slot)
            elif once and not products.keys().isdisjoint(made.inputs):
                products[slot] = place
    if not products:
        return program
    turned = replace(
        program, slots=list(program.slots), instructions=list(program.instructions), blocks=[]
    )
    for place, instruction in enumerate(program.instructions):
        if isinstance(getattr(instruction, "operation", None), Overlay):
            _turn_operands(place, products, turned)
    for row in program.blocks:
        turned.blocks.append([_turned(block, products, turned) for block in row])
    return turned


def _is_matrix(instruction: EdgeInstruction) -> bool:
    """Whether it is a product, of two matrices or entry by entry, with several axes."""
    operation = instruction.operation
    return isinstance(operation, Einsum) and len(operation.reads) == 2 and len(operation.output) > 1


def _is_product(instruction: EdgeInstruction) -> bool:
    operation = instruction.operation
    return (
        isinstance(operation, Einsum)
        and _is_matrix(instruction)
        and len(operation.output) < len(operation.sizes)
    )


def _is_sum(instruction: EdgeInstruction) -> bool:
    """Whether it adds up arrays of several axes, or puts them side by side."""
    operation = instruction.operation
    return isinstance(operation, Combine | Overlay | Assemble) and len(operation.shape) > 1


def _has_rows_first(instruction: EdgeInstruction, program: Program) -> bool:
    """Whether a product of a matrix and an argument of the program has the matrix' axes first."""
    operation = instruction.operation
    given = [slot in program.inputs for slot in instruction.inputs]
    if not isinstance(operation, Einsum) or given.count(True) != 1:
        return False
    rows = operation.reads[given.index(False)].labels
    last = operation.reads[given.index(False)].axes[-1]
    first = [name in rows for name in operation.output]
    return first == sorted(first, reverse=True) and not operation.summed.isdisjoint(last.labels)


def _turned(block: Block, products: dict[int, int], program: Program) -> Block:
    """The block with its products' axes in the order of the dense array."""
    structure = block.structure
    if structure is None or products.keys().isdisjoint(block.slots):
        return block
    slots, terms = iter(block.slots), []
    for term in structure.terms:
        factors = []
        for factor in term.factors:
            slot = next(slots)
            order = in_dense(term, factor.axes) if slot in products else None
            if order is not None and _turn(slot, order, products, program):
                factor = factor_read(factor, order)
            factors.append(factor)
        terms.append(replace(term, factors=tuple(factors)))
    return replace(block, structure=with_terms(structure, terms))


def _turn(slot: int, order: Order, products: dict[int, int], program: Program) -> bool:
    """Make a product, or a sum of some, with its axes in another order; whether it could be."""
    place = products[slot]
    instruction = program.instructions[place]
    assert isinstance(instruction, EdgeInstruction)
    same = order == tuple(range(len(order)))
    operation = None if same else made_in(instruction.operation, order)
    if operation is None:
        return False
    program.instructions[place] = replace(instruction, operation=operation)
    program.slots[slot] = Slot(operation.shape, program.slots[slot].dtype)
    _turn_operands(place, products, program)
    return True


def _turn_operands(place: int, products: dict[int, int], program: Program) -> None:
    """Make the products among the operands of a sum in the order of its axes."""
    instruction = program.instructions[place]
    operation = getattr(instruction, "operation", None)
    if not isinstance(operation, Combine | Overlay | Assemble):
        return
    for position, slot in enumerate(instruction.inputs):
        order = order_summed(operation, position) if slot in products else None
        if order is not None and _turn(slot, order, products, program):
            instruction = reading(instruction, position, order)
    program.instructions[place] = instruction
