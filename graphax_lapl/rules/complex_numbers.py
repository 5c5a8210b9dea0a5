"""Between real and complex arrays; see `edges.terms` for what a term means there."""

from __future__ import annotations

from .registry import defrule
from .site import Piece, Site


@defrule("real")
def _real(site: Site, i: int, k: int) -> list[Piece]:
    """Re(dz)."""
    del k
    return site.diagonal(i)


@defrule("imag")
def _imag(site: Site, i: int, k: int) -> list[Piece]:
    """Im(dz) = Re(-i dz)."""
    del k
    return site.diagonal(i, None, -1j)


@defrule("conj")
def _conj(site: Site, i: int, k: int) -> list[Piece]:
    """conj(dz); of a real input, the identity."""
    del k
    return site.diagonal(i, conj=site.inputs[i].is_complex)


@defrule("complex")
def _complex(site: Site, i: int, k: int) -> list[Piece]:
    """Dx + i dy."""
    del k
    return site.diagonal(i, None, 1 if i == 0 else 1j)
