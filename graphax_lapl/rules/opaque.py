"""Primitives that stay opaque linear maps, and the treatment of those without a rule.

An opaque map is applied to the columns or rows of its neighbour by a batched `jvp` or `vjp`; it is
always right, and never slower than what `jax.jacfwd` or `jax.jacrev` would do with the same
primitive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

import jax

from ..graph.calls import COTANGENT_CALLS
from ..graph.inline import KNOWN_CALL, How, Rewritten, RewrittenWhere
from ..graph.listing import Equation, Variable, nested_primitives, scan_counts
from ..graph.unrolling import in_pairs
from ..graph.users_rules import runs_rules
from .collectives import COLLECTIVES
from .complex_numbers import rewritten_abs
from .cotangents import is_linear
from .determinants import known_tangent, rewritten_det, rewritten_slogdet
from .independent_steps import all_steps_at_once
from .inverses import rewritten_inverse
from .logaddexp import tangent_of_logaddexp
from .loop_invariants import before_the_loop
from .matrix_calls import known_call
from .products import rewritten_product
from .registry import CALLS, RULES, defrule, find_user_rule
from .site import Piece, Site, not_before

__all__ = [
    "AS_A_WHOLE",
    "NO_RULE",
    "fallback",
    "is_transposable",
    "modes",
    "needs_all_tangents",
    "runs_rules",
    "structures_only",
    "treatment",
]

#: Why a loop or branch is opaque.
AS_A_WHOLE = "a nested program, differentiated as a whole"
#: Short loops are written out: at most so many steps, and so many equations.
MAX_STEPS = 8
MAX_UNROLLED = 200
#: The same for second derivatives through layers, which multiply matrices: as a whole, a loop
#: carries every column through all of them, and what is zero in it, or the same, is not seen.
MAX_LAYERS_UNROLLED = 640
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
    "approx_top_k",
    "scatter_mul",
    "scatter-mul",
    "dynamic_gather",
)


@defrule("shard_map", *SELECTIONS, *COLLECTIVES)
def _whole(site: Site, i: int, k: int) -> list[Piece]:
    """The whole equation as one linear map."""
    if site.name != "shard_map":
        return site.opaque(i, k)
    site.note(AS_A_WHOLE)
    forward, reverse = modes(site, i, k)
    return site.opaque(i, k, forward=forward, reverse=reverse)


@defrule("top_k")
def _top_k(site: Site, i: int, k: int) -> list[Piece]:
    """A selection along one dimension, the last one where the parameters name none."""
    rank = len(site.shape(i))
    chosen = site.params.get("axis", rank - 1) % rank
    batch = [d for d in range(rank) if d != chosen]
    return site.opaque(i, k, batch, batch)


@defrule(*MATRIX_FUNCTIONS)
def _matrix_function(site: Site, i: int, k: int) -> list[Piece]:
    """Diagonal along the leading dimensions that input and output share."""
    core = 1 if site.name == "tridiagonal_solve" and i < 3 else 2
    count = len(site.shape(i)) - core
    batch = list(range(max(0, count)))
    if site.shape(i)[: len(batch)] != site.outputs[k].shape[: len(batch)]:
        batch = []
    return site.opaque(
        i, k, batch, batch, limits=[not_before(*pair) for pair in _triangles(site, k)]
    )


def _triangles(site: Site, k: int) -> list[tuple[int, int]]:
    """Where factors are zero, and which part of the matrix their entries depend on."""
    out = len(site.outputs[k].shape)
    row, column = out - 2, out - 1
    of_row, of_column = out + len(site.shape(0)) - 2, out + len(site.shape(0)) - 1
    if site.name == "cholesky":  # entry (i, j) depends on the entries up to row i and column j
        return [(row, column), (row, of_row), (column, of_column)]
    if site.name == "lu" and k == 0:  # with pivoting on all rows, up to its own column
        return [(column, of_column)]
    if site.name == "qr" and k < 2:  # both factors on columns up to their own
        return [(column, of_column), (column, row)][: 1 + k]
    return []


@defrule("triangular_solve")
def _triangular_solve(site: Site, i: int, k: int) -> list[Piece]:
    """Substitution: each right-hand side on its own, and in the order of the triangle."""
    rank, left = len(site.shape(1)), site.params["left_side"]
    row, other = (rank - 2, rank - 1) if left else (rank - 1, rank - 2)
    lower = site.params["lower"]
    # Whether rows of the solution depend on those before them; from the right it is the transpose.
    ascending = (lower != site.params["transpose_a"]) == left
    batch = list(range(rank - 2))
    if i == 1:
        batch.append(other)
        limits = [not_before(row, rank + row) if ascending else not_before(rank + row, row)]
        return site.opaque(i, k, batch, batch, limits=limits)
    first, second = rank + rank - 2, rank + rank - 1
    solved = first if left != site.params["transpose_a"] else second
    limits = [not_before(first, second) if lower else not_before(second, first)]
    limits.append(not_before(row, solved) if ascending else not_before(solved, row))
    return site.opaque(i, k, batch, batch, limits=limits)


@defrule("fft")
def _fft(site: Site, i: int, k: int) -> list[Piece]:
    """Linear along the transformed dimensions."""
    count = len(site.shape(i)) - len(site.params["fft_lengths"])
    work = 2 * max(1, math.ceil(math.log2(max(1, math.prod(site.params["fft_lengths"])))))
    return site.opaque(i, k, range(count), range(count), work=work, slot="joint")


#: Primitives whose rule is for where they stand in their own tangent programs, applied to tangents.
OF_TANGENTS = frozenset({"custom_linear_solve"})

#: Why a primitive without a rule is opaque.
NO_RULE = "no rule"


def fallback(site: Site, i: int, k: int) -> list[Piece]:
    """What has no rule: opaque, and noted. Of tangents, which are in no value, it is linear."""
    site.note(NO_RULE)
    slot = "each" if site.of_tangents(i) else ""
    return site.opaque(i, k, reverse=is_transposable(site, i, k), slot=slot)


#: Whether only structures are asked for, as of the body of a loop, and no map is ever applied:
#: finding out what JAX can do with it traces its derivative for every input and output.
structures_only: ContextVar[bool] = ContextVar("structures_only", default=False)


def is_transposable(site: Site, i: int, k: int) -> bool:
    """Whether JAX can pull cotangents back through an equation; some have a `jvp` only."""
    if structures_only.get():
        return True

    def pulled(along: Callable[[Any], Any], x: Any) -> Any:
        out, pull = jax.vjp(along, x)
        return pull(out)

    return _traced(site, i, k, pulled) is not None


def _is_pushable(site: Site, i: int, k: int) -> bool:
    """Whether JAX can push tangents through an equation; a `custom_vjp` has no `jvp`."""
    if structures_only.get():
        return True
    traced = _traced(site, i, k, lambda along, x: jax.jvp(along, (x,), (x,)))
    # The tangent of a `custom_vjp` can be traced, but not evaluated.
    return traced is not None and "custom_lin" not in nested_primitives({"jaxpr": traced})


def _traced(site: Site, i: int, k: int, derivative: Callable[..., Any]) -> Any | None:
    """The jaxpr of a derivative of output k as a function of input i; None where there is none."""

    def derived(*values: Any) -> Any:
        def along(x: Any) -> Any:
            return site.equation.evaluate(*values[:i], x, *values[i + 1 :])[k]

        return derivative(along, values[i])

    types = [jax.ShapeDtypeStruct(type_.shape, type_.dtype) for type_ in site.inputs]
    try:
        return jax.make_jaxpr(derived)(*types)
    except Exception:  # each primitive says it in its own way; evaluating it says why
        return None


#: What may stand inside of an equation and have a forward mode only.
NO_REVERSE = frozenset({"while"})


def modes(site: Site, i: int, k: int) -> tuple[bool, bool]:
    """Whether an equation that holds others has a forward and a reverse mode.

    Where it has neither, forward mode is claimed, and JAX says later what is missing.
    """
    inside = site.equation.inside
    reverse = inside.isdisjoint(NO_REVERSE) or is_transposable(site, i, k)
    forward = not reverse or inside.isdisjoint(COTANGENT_CALLS) or _is_pushable(site, i, k)
    return forward, reverse


#: Primitives whose derivative in JAX does not accept every choice of moving operands.
PARTIAL_TANGENTS = frozenset({"custom_linear_solve"})


def needs_all_tangents(equation: Equation, place: int | None = None) -> bool:
    """Whether JAX's derivative of an equation breaks where only some of its operands move.

    `custom_linear_solve` computes with the absent tangent of its right-hand side when only the
    factors that it solves with have one. JAX never asks for that; one operand at a time does, also
    of a loop or branch around it. With tangents that are zero numbers everything is defined.

    Args:
        equation: the equation.
        place: the one operand that moves, where there is only one: a right-hand side may.
    """
    if equation.name in PARTIAL_TANGENTS:
        return place is None or place < sum(equation.params["const_lengths"])
    return not PARTIAL_TANGENTS.isdisjoint(equation.inside)


def _is_short(params: dict[str, Any], orders: int) -> bool:
    """Whether a loop that carries something is shorter than its derivative as a whole is wide."""
    steps, counts = params["length"], scan_counts(params)
    if counts is None or counts[1] == 0 or not 0 < steps <= MAX_STEPS:
        return False
    names = list(nested_primitives(params))
    layers = orders > 1 and "dot_general" in names
    return steps * len(names) <= (MAX_LAYERS_UNROLLED if layers else MAX_UNROLLED)


def _simpler_loop(
    params: dict[str, Any], moving: Sequence[bool], atoms: Sequence[Hashable]
) -> Callable[..., list[Any]] | None:
    """What a `scan` computes, without a loop or with less to do in its steps."""
    return all_steps_at_once(params, moving) or before_the_loop(params, moving, atoms)


#: Most equations: what has a rule of its own, whatever its parameters are.
PLAIN = frozenset(
    """
    add add_any sub mul div neg integer_pow square sqrt rsqrt exp log sin cos tanh logistic max min
    broadcast_in_dim reshape transpose squeeze slice concatenate reduce_sum dot_general
    """.split()  # noqa: SIM905
)


def treatment(
    primitive: Any,
    params: dict[str, Any],
    stack: tuple[str, ...],
    orders: int,
    operand: Variable | None,
    entries: bool = False,
) -> How:
    """What inlining does with an equation on an active input; `entries` as for `prepare`.

    A primitive with a rule is kept, a reduction by a function of the user's written out. One
    without is replaced by its tangent program, unless that program contains the same primitive
    again: then it is linear, and opaque, or where it is seen to be linear its body. A call of a
    function without a rule is replaced by the function's body, a small determinant by the tangent
    program of its polynomial, that of a complex matrix' sign and logarithm by one with a
    holomorphic part, a complex number's magnitude by that of its parts.
    """
    name = str(primitive.name)
    if name in PLAIN:
        return "rule"
    if name == "scan" and _is_short(params, orders):
        return "unroll"
    if name == "scan":
        return RewrittenWhere(partial(_simpler_loop, params))
    if name == "reduce":
        return Rewritten(in_pairs(params))
    if name == "scatter" and params.get("update_jaxpr") is not None:
        return "linearize"  # `x.at[i].apply(fun)`: not an assignment, and JAX says what is missing
    if find_user_rule(primitive, params) is not None:
        return "rule"
    known = known_call(name, params)
    if known is not None:
        return KNOWN_CALL + known
    rewritten = (
        rewritten_slogdet(name, params)
        or rewritten_det(name, params, orders)
        or rewritten_inverse(name, params)
        or rewritten_abs(name, operand is not None and operand.is_complex, orders)
        or rewritten_product(name, params, operand, orders, entries)
    )
    if rewritten is not None:
        return rewritten
    tangent = known_tangent(name, params) or tangent_of_logaddexp(name, params)
    if tangent is not None:
        return tangent
    if name in RULES and name not in OF_TANGENTS:
        return "rule"
    if name in CALLS:
        return "inline"
    if name not in stack:
        return "linearize"
    # A rule that calls its own function on tangents says that it is linear: JAX takes the body.
    own = params.get("call_jaxpr") if name == "custom_jvp_call" else None
    return "inline" if own is not None and is_linear(own) else "opaque"
