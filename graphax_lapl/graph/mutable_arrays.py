"""Mutable arrays (`jax.new_ref`): refused where they would hold what is differentiated."""

from __future__ import annotations

from typing import Any

from jax.extend import source_info_util

from ..errors import MutableArrayError

__all__ = ["is_mutable", "refuse_mutable_arrays"]


def is_mutable(atom: Any) -> bool:
    """Whether an atom of a jaxpr stands for a mutable array."""
    return hasattr(atom.aval, "inner_aval")


def refuse_mutable_arrays(equation: Any, source_info: Any) -> None:
    """Let no equation on a moving value make or change a mutable array.

    What it writes is no result of its own, so that no arrow would lead to those who read it, and
    their derivative were zero without a word. An array of fixed numbers may be read.

    Raises:
        MutableArrayError: naming the operation and the line.
    """
    if not equation.effects:
        return
    changes = any(type(effect).__name__ != "ReadEffect" for effect in equation.effects)
    if changes and any(is_mutable(atom) for atom in (*equation.invars, *equation.outvars)):
        name = str(equation.primitive.name)
        raise MutableArrayError(name, source_info_util.summarize(source_info))
