"""Products with weights that samples share, before what each sample scales them with."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from ..edges.operations import Einsum
from .instructions import EdgeInstruction, Program
from .reassociation import Factor, Reassociation

__all__ = ["products_with_weights", "weights_first"]

#: Numbers of the product that are scaled instead of the weights, for each number of these.
MORE_SCALED = 2


def weights_first(program: Program) -> Program:
    """Multiply matrices with weights first, and scale the product instead of the weights.

    `diag(v) W` times a matrix is for a batch one small product for each sample; `W` times the
    matrix is a single large product where all samples have the same weights. Both take as many
    multiplications.
    """
    return _WeightsFirst(replace(program, slots=[*program.slots])).rewritten()


class _WeightsFirst(Reassociation):
    def order(
        self, operation: Einsum, factors: Sequence[Factor], cost: int
    ) -> Sequence[tuple[int, int]] | None:
        """Weights times the matrix, then the vector; or the vector on the matrix before."""
        del cost
        given = [factor.slot in self.program.inputs for factor in factors]
        if len(factors) != 3 or given.count(True) != 1:
            return None
        sizes = dict(operation.sizes)
        weights = given.index(True)
        first, second = (k for k in range(3) if k != weights)
        labels = [factor.read.labels for factor in factors]
        # The vector is the one that only holds labels of the weights.
        vector, matrix = (first, second) if labels[first] < labels[weights] else (second, first)
        kept = {*operation.output}
        product = (labels[weights] | labels[matrix]) & kept
        if (
            not labels[vector] < labels[weights]
            or not labels[matrix] - labels[weights]
            or not kept - labels[matrix]
            or not kept - labels[weights]
        ):
            return None
        if labels[vector] <= kept and len(product) < len(sizes):
            scaled, pairs = product, ((matrix, weights), (0, 1))
        elif labels[vector] <= labels[matrix]:
            scaled, pairs = labels[matrix], ((vector, matrix), (0, 1))
        else:
            return None
        numbers = [math.prod(sizes[name] for name in box) for box in (scaled, labels[weights])]
        return pairs if numbers[0] <= MORE_SCALED * numbers[1] else None


def products_with_weights(
    program: Program, fixed: Collection[int], least_columns: int = 1
) -> Program:
    """The program whose short products with a matrix that all samples share are products.

    The batch gives them rows enough. Written out, such a product is a sum of outer products, and
    the reverse pass of a training step keeps an array of the result's size for each of them.

    Args:
        program: the program.
        fixed: slots that are the same for all samples.
        least_columns: of matrices with fewer columns they stay written out.

    Returns:
        The program; itself where nothing is written out.
    """
    instructions = list(program.instructions)
    for place, made in enumerate(instructions):
        operation = getattr(made, "operation", None)
        if (
            isinstance(made, EdgeInstruction)
            and isinstance(operation, Einsum)
            and operation.written_out
            and [slot in fixed for slot in made.inputs].count(True) == 1
            and not operation.reads[0].labels & operation.reads[1].labels & {*operation.output}
            and _columns(operation, [slot in fixed for slot in made.inputs]) >= least_columns
        ):
            instructions[place] = replace(made, operation=replace(operation, whole=True))
    same = all(a is b for a, b in zip(instructions, program.instructions, strict=True))
    return program if same else replace(program, instructions=instructions)


def _columns(operation: Einsum, fixed: Sequence[bool]) -> int:
    """Columns of the matrix, of two operands, that all samples share."""
    sizes = dict(operation.sizes)
    labels = operation.reads[fixed.index(True)].labels - operation.summed
    return math.prod(sizes[name] for name in labels)
