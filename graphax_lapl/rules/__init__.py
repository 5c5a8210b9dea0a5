"""Local partials: one file per family of primitives, one entry per primitive."""

from . import (
    cofactors,
    complex_numbers,
    contraction,
    control_flow,
    custom,
    elementwise,
    indexing,
    opaque,
    products,
    reduction,
    shaping,
    windows,
)
from .opaque import fallback, treatment
from .registry import RULES, defrule, find_rule
from .site import Known, Local, OpaqueMap, Piece, Primal, Reference, Site

__all__ = [
    "RULES",
    "Known",
    "Local",
    "OpaqueMap",
    "Piece",
    "Primal",
    "Reference",
    "Site",
    "cofactors",
    "complex_numbers",
    "contraction",
    "control_flow",
    "custom",
    "defrule",
    "elementwise",
    "fallback",
    "find_rule",
    "indexing",
    "opaque",
    "products",
    "reduction",
    "shaping",
    "treatment",
    "windows",
]
