"""Graph colourings that compress sparse Jacobians and Hessians; numpy only."""

from .onesided import color_columns, color_rows
from .pattern import Pattern
from .recovery import Coloring, Substitution, substitution
from .symmetric import acyclic_coloring, star_coloring
from .twosided import bicoloring

__all__ = [
    "Coloring",
    "Pattern",
    "Substitution",
    "acyclic_coloring",
    "bicoloring",
    "color_columns",
    "color_rows",
    "star_coloring",
    "substitution",
]
