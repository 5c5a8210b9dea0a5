"""Primitives that stay opaque linear maps, and the treatment of those without a rule.

An opaque map is applied to the columns or rows of its neighbour by a batched `jvp` or `vjp`; it is
always right, and never slower than what `jax.jacfwd` or `jax.jacrev` would do with the same
primitive.
"""

from __future__ import annotations

import logging
from typing import Any

from .registry import RULES, defrule
from .site import Piece, Site

__all__ = ["fallback", "treatment"]

logger = logging.getLogger("graphax_lapl")

#: Loops and branches: differentiated as a whole.
CONTROL_FLOW = ("scan", "cond", "while", "shard_map")
#: Linear algebra on the last one or two dimensions, diagonal along the leading ones.
MATRIX_FUNCTIONS = (
    "cholesky",
    "eig",
    "eigh",
    "hessenberg",
    "householder_product",
    "lu",
    "lu_pivots_to_permutation",
    "qr",
    "schur",
    "svd",
    "triangular_solve",
    "tridiagonal",
    "tridiagonal_solve",
)
#: Windows and selections whose positions depend on the values.
SELECTIONS = (
    "reduce_window",
    "reduce_window_max",
    "reduce_window_min",
    "select_and_gather_add",
    "select_and_scatter_add",
    "reduce",
    "top_k",
    "approx_top_k",
    "scatter_mul",
    "scatter-mul",
    "scatter_min",
    "scatter-min",
    "scatter_max",
    "scatter-max",
    "dynamic_gather",
)


@defrule(*CONTROL_FLOW, *SELECTIONS)
def _whole(site: Site, i: int, k: int) -> list[Piece]:
    """The whole equation as one linear map."""
    return site.opaque(i, k, reverse=site.name != "while")


@defrule("custom_vjp_call")
def _custom_vjp(site: Site, i: int, k: int) -> list[Piece]:
    """The user's backward function; it has no forward mode."""
    return site.opaque(i, k, forward=False)


@defrule(*MATRIX_FUNCTIONS)
def _matrix_function(site: Site, i: int, k: int) -> list[Piece]:
    """Diagonal along the leading dimensions that input and output share."""
    core = 1 if site.name == "tridiagonal_solve" and i < 3 else 2
    count = len(site.shape(i)) - core
    batch = list(range(max(0, count)))
    if site.shape(i)[: len(batch)] != site.outputs[k].shape[: len(batch)]:
        batch = []
    return site.opaque(i, k, batch, batch)


@defrule("fft")
def _fft(site: Site, i: int, k: int) -> list[Piece]:
    """Linear along the transformed dimensions."""
    count = len(site.shape(i)) - len(site.params["fft_lengths"])
    return site.opaque(i, k, range(count), range(count))


#: Linear solves appear in their own tangent programs, and are opaque there by design.
EXPECTED = frozenset({"custom_linear_solve"})

_announced: set[str] = set()


def fallback(site: Site, i: int, k: int) -> list[Piece]:
    """What has no rule: opaque, and said once in the log."""
    if site.name not in _announced and site.name not in EXPECTED:
        _announced.add(site.name)
        logger.warning(
            "No partial for primitive '%s' (%s): treated as an opaque linear map.",
            site.name,
            site.equation.source,
        )
    return site.opaque(i, k)


def treatment(primitive: Any, params: dict[str, Any], stack: tuple[str, ...]) -> str:
    """What inlining does with an equation on an active input.

    A primitive with a rule is kept. One without is replaced by its tangent program, unless that
    program contains the same primitive again: then it is linear, and opaque.
    """
    del params
    name = str(primitive.name)
    if name in RULES:
        return "rule"
    return "opaque" if name in stack else "linearize"
