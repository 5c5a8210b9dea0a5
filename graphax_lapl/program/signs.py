"""Signs that many results carry, taken into a difference that they are made of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from ..edges.operations import Combine, Einsum
from ..edges.terms import Number, with_terms
from .instructions import Block, EdgeInstruction, Instruction, Program

__all__ = ["signs_inside"]

#: Most differences that are looked at: for each of them the program is gone through once.
MAX_DIFFERENCES = 16
#: The part of the negated results that may stay: for less than half the program stays as it is.
MOST_LEFT = 0.5


def signs_inside(program: Program) -> Program:
    """The program with differences turned round where fewer results are negated then.

    The algebra keeps a sign as a number beside an array, which costs nothing until the results
    are written. Then each of them is negated, by a kernel of its own where a library made the
    array: the gradient of a cross-entropy is minus `y - softmax(x)` times what follows, for all
    weights. `b - a` in the place of `a - b` takes as long, and the signs are gone.
    """
    before = left = _negated(program, frozenset())
    found = program
    differences = [i for i in program.instructions if _is_difference(i)] if before else []
    for difference in differences[:MAX_DIFFERENCES]:
        turned = _turned(found, difference.outputs[0])
        if turned is not None and _negated(*turned) < left:
            found = _with_signs(*turned)
            left = _negated(found, frozenset())
    return found if left <= MOST_LEFT * before else program


def _is_difference(instruction: Instruction) -> bool:
    """Whether it subtracts an array, from others or from nothing."""
    operation = getattr(instruction, "operation", None)
    if not isinstance(operation, Combine) or operation.constant:
        return False
    return any(_is_negative(coefficient) for coefficient, _ in operation.operands)


def _turned(program: Program, start: int) -> tuple[Program, frozenset[int]] | None:
    """The program with one difference turned round, but for its results.

    Returns:
        The program, and the slots that hold the opposite of what they held; None where something
        reads one of them that is not linear in it, or whose sign would have to be computed.
    """
    turned: set[int] = set()
    instructions: list[Instruction] = []
    for instruction in program.instructions:
        operation = getattr(instruction, "operation", None)
        signs = [-1 if slot in turned else 1 for slot in instruction.inputs]
        starts = start in instruction.outputs
        if starts or -1 in signs:
            if isinstance(operation, Einsum):
                opposite = math.prod(signs) < 0
            elif isinstance(operation, Combine) and not operation.constant:
                pairs = list(zip(signs, operation.operands, strict=True))
                numbers = [sign * coefficient for sign, (coefficient, _) in pairs]
                opposite = starts or all(map(_is_negative, numbers)) or 1 not in signs
                if opposite:
                    numbers = [-number for number in numbers]
                operands = tuple(
                    [(n, names) for n, (_, (_, names)) in zip(numbers, pairs, strict=True)]
                )
                assert isinstance(instruction, EdgeInstruction)
                instruction = replace(instruction, operation=replace(operation, operands=operands))
            else:
                return None
            if opposite:
                turned.update(instruction.outputs)
        instructions.append(instruction)
    if not turned.isdisjoint(program.values):
        return None
    return replace(program, instructions=instructions), frozenset(turned)


def _is_negative(number: Number) -> bool:
    return not isinstance(number, complex) and number < 0


def _negated(program: Program, turned: frozenset[int]) -> int:
    """How many terms of the results are negated, with some slots turned round."""
    return sum(
        _is_negative(number)
        for block in _blocks(program)
        for number in _coefficients(block, turned)
    )


def _blocks(program: Program) -> Iterator[Block]:
    return (block for row in program.blocks for block in row)


def _coefficients(block: Block, turned: frozenset[int]) -> list[Number]:
    """The numbers before the terms of a block."""
    if block.structure is None:
        return []
    found, slots = [], iter(block.slots)
    for term in block.structure.terms:
        sign = 1
        for _ in term.factors:
            sign = -sign if next(slots) in turned else sign
        found.append(sign * term.coefficient)
    return found


def _with_signs(program: Program, turned: frozenset[int]) -> Program:
    """The program whose results know which slots hold the opposite."""
    blocks = [[_signed(block, turned) for block in row] for row in program.blocks]
    return replace(program, blocks=blocks)


def _signed(block: Block, turned: frozenset[int]) -> Block:
    if block.structure is None or turned.isdisjoint(block.slots):
        return block
    numbers = _coefficients(block, turned)
    terms = [
        replace(term, coefficient=number)
        for term, number in zip(block.structure.terms, numbers, strict=True)
    ]
    return replace(block, structure=with_terms(block.structure, terms))
