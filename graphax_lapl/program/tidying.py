"""What is done to a program of second order once it is complete."""

from __future__ import annotations

from .instructions import Program
from .joined_sums import join_sums
from .permutations import share_permuted
from .reassociation import reassociate

__all__ = ["tidied"]


def tidied(program: Program) -> Program:
    """The same program with products in a cheaper order, sums taken together, nothing twice."""
    return share_permuted(join_sums(reassociate(program.without_dead_code(None))))
