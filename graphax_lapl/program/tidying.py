"""What is done to a program of second order once it is complete."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from .common_scalings import scale_once
from .common_weights import products_with_weights
from .expanded_squares import expand_squares
from .fixed_factors import take_out_fixed_factors
from .instructions import Program
from .joined_sums import join_sums
from .orientation import columns_first, contracted_last
from .permutations import share_permuted
from .reassociation import reassociate
from .repetition import multiplies_rows_with_products
from .squares import numbers_outside_squares
from .summed_layers import sum_layers
from .summed_weights import sum_weights
from .traces import has_large_products_of_weights, multiply_weights_of_traces
from .whole_sums import last_sums_at_once

__all__ = ["arranged", "tidied"]


def tidied(program: Program, moving: Collection[int], trace: bool = False) -> Program:
    """The same program with products in a cheaper order, sums taken together, nothing twice.

    Args:
        program: the complete program.
        moving: its inputs that are not the same for all samples of a batch.
        trace: whether it is the program of a trace, a number.
    """
    scaled = scale_once(program.without_dead_code(None)).without_dead_code(None)
    products = sum_weights(reassociate(expand_squares(scaled, moving)), moving)
    joined = join_sums(numbers_outside_squares(products))
    if not trace:
        return _laid_out(joined, moving, number=False)
    joined = replace(joined, trace=True)
    plain = last_sums_at_once(_copy(joined), moving)
    shared = multiply_weights_of_traces(joined, moving)
    if shared is joined:
        return _laid_out(plain, moving)
    found = _laid_out(last_sums_at_once(shared, moving), moving)
    if has_large_products_of_weights(found, moving):
        found = replace(found, few_samples=_laid_out(plain, moving))
    elif multiplies_rows_with_products(found, moving):
        found = replace(found, few_samples=found)  # these multiply the other way round
    return found


def _copy(program: Program) -> Program:
    """A program whose slots are its own."""
    return replace(program, slots=list(program.slots))


def _laid_out(program: Program, moving: Collection[int], number: bool = True) -> Program:
    """Sums with weights taken apart, nothing twice, and arrays in the order of their readers."""
    apart = sum_layers(take_out_fixed_factors(program, moving), moving)
    return arranged(share_permuted(apart), moving, number)


def arranged(program: Program, moving: Collection[int], number: bool = False) -> Program:
    """The same program with vectors times weights as products, and arrays as these read them.

    Args:
        program: the complete program.
        moving: its inputs that are not the same for all samples of a batch.
        number: whether its result is a number.
    """
    fixed = program.unreached(moving)
    return columns_first(contracted_last(products_with_weights(program, fixed), fixed, number))
