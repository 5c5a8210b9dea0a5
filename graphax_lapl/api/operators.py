"""Differential operators of first and second order, in one program each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, dtypes, tree_util

from ..errors import InvalidArgumentError, InvalidTypeError
from ..graph.tracing import Traced, check_callable, check_flags
from ..program.laplacian import FirstOrder, Metric
from .coefficients import drift_of, metric_of
from .jacobian import rebuild_aux, value_and_jacve
from .laplacian import laplacian_plan
from .plan import Plan
from .planning import Prepared, Rows, prepare
from .through_loops import hessian_takes_less
from .twice import (
    check_real_inputs,
    contracted_hessian,
    follows_rules_of_rules,
)

__all__ = [
    "Terms",
    "general_terms",
    "kinetic_terms",
    "local_kinetic_energy",
    "logarithm_of",
    "operator_plan",
    "second_order_operator",
]


@dataclass(frozen=True)
class Terms:
    """What an operator contracts the derivatives with.

    Attributes:
        metric: the form of the matrix A of second derivatives.
        arrays: its arrays.
        drifts: for each differentiated leaf its part of the vector b, or None.
        square: whether `grad u . A grad u` is added.
    """

    metric: Metric
    arrays: Sequence[Any]
    drifts: Sequence[Any]
    square: bool = False

    @property
    def given(self) -> list[Any]:
        """What a program takes beside the call."""
        return [array for array in (*self.arrays, *self.drifts) if array is not None]


def second_order_operator(
    fun: Callable[..., Any],
    a: Any = None,
    b: Any = None,
    c: Any = None,
    order: Any = "auto",
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    compress: bool = True,
    strict: bool = False,
) -> Callable[..., Any]:
    """The operator `sum_ij a_ij d2f/dx_i dx_j + sum_i b_i df/dx_i + c f` on every output of `fun`.

    All terms come out of one program: b enters the columns of second order where they are carried
    to the outputs, so that it costs no further pass. Arguments without an entry in `a` carry no
    columns.

    Args:
        fun: a function of real arrays (pytrees) that returns real or complex ones.
        a: the symmetric matrix of second derivatives (of another only the symmetric part counts);
            it may be indefinite or singular. A number (times the identity), the raveled diagonal
            (n,) or matrix (n, n) with n the raveled size of the arguments, or a pytree prefix of
            the differentiated arguments (for argnums as a tuple: a tuple) whose entries are None
            for zero, numbers, diagonals like the leaf, or matrices of the leaf's raveled size. None
            for zero.
        b: the vector of first derivatives: a number, a raveled vector (n,), or a pytree prefix with
            None, numbers, or arrays like the leaves. None for zero.
        c: a number, or an array that broadcasts against the outputs. None for zero.
            `a`, `b` and `c` may also be functions: they are called with the arguments of `fun`
            and are not differentiated (the generator of a diffusion has a(x) and b(x)).
        order: as for `laplacian_ve`.
        argnums: as for `laplacian_ve`.
        has_aux: whether `fun` returns a pair `(value, aux)`.
        compress: as for `laplacian_ve`.
        strict: raise `FallbackError` where a part of `fun` has no rule, as for `laplacian_ve`.

    Returns:
        A function with the signature of `fun` that returns an array like every output leaf; with
        has_aux `(operator, aux)`.

    Raises:
        InvalidArgumentError: for coefficients of another shape, for a, b and c all None, and for
            argnums out of range.
        InvalidTypeError: for complex or integer arguments, for coefficients a and b that are not
            real, and for a complex c with real outputs.
        InvalidOrderError: for an order that does not fit the function.
        FallbackError: with strict, naming the primitive and the line of the user's code.

    Example:
        The residual of the heat equation, `u_t - u_xx`:

        >>> import jax.numpy as jnp
        >>> from graphax_lapl import second_order_operator
        >>> def u(t, x):
        ...     return jnp.exp(-t) * jnp.sin(x)
        >>> heat = second_order_operator(u, a=(None, -1.0), b=(1.0, None), argnums=(0, 1))
        >>> print(f"{abs(heat(0.3, 0.7)):.6f}")
        0.000000
    """
    check_callable(fun)
    check_flags(has_aux=has_aux, compress=compress, strict=strict)
    if a is None and b is None and c is None:
        raise InvalidArgumentError("a, b and c are all None; pass at least one coefficient.")

    @functools.wraps(fun, updated=())
    def operator(*args: Any, **kwargs: Any) -> Any:
        prepared = prepare(fun, args, kwargs, argnums, has_aux, 2, strict)
        traced = prepared.traced

        def compute(own: Prepared, given: Any) -> Rows:
            second, drift, zeroth = given
            terms = general_terms(traced, args, second, drift)
            leaves, values = _applied(own, order, terms, compress)
            if zeroth is not None:
                leaves = [
                    leaf + _product(zeroth, value, traced.name)
                    for leaf, value in zip(leaves, values, strict=False)
                ]
            return values[traced.n_out :], [[leaf] for leaf in leaves]

        given = tuple(part(*args, **kwargs) if callable(part) else part for part in (a, b, c))
        aux, rows = prepared.within(compute, [()], given)
        tree = tree_util.tree_unflatten(traced.out_tree, [row[0] for row in rows])
        return (tree, rebuild_aux(prepared, aux)) if has_aux else tree

    return operator


def local_kinetic_energy(
    log_psi: Callable[..., Any],
    order: Any = "auto",
    argnums: int | Sequence[int] = 0,
    weights: Any = 1.0,
    has_aux: bool = False,
    compress: bool = True,
    strict: bool = False,
) -> Callable[..., Any]:
    """The local kinetic energy `-1/2 (lap psi) / psi` of a wave function given by its logarithm.

    With u = log psi it is `-1/2 (lap u + grad u . grad u)`. Both terms come out of one program: the
    square of the gradient is contracted from the columns that the Laplacian carries anyway, also
    where those are the columns of a narrow vertex, and the gradient is not returned in between.

    `log_psi` may return

    * a real number, log|psi|: the sign of psi is constant between its nodes and drops out;
    * a complex number, log psi = log|psi| + i phase: the square is `grad u . grad u` without
      conjugation, and the result is complex, as the local energy of such a function is;
    * a pair `(sign, log|psi|)`, as `jax.numpy.linalg.slogdet` returns it: a real sign is dropped, a
      complex one stands for the phase, u = log|psi| + log(sign).

    Args:
        log_psi: a function of real arrays (pytrees).
        order: as for `laplacian_ve`.
        argnums: which positional arguments are coordinates.
        weights: 1/m per coordinate, in the forms that `second_order_operator` takes for `a`.
        has_aux: whether `log_psi` returns a pair of what is said above and an auxiliary value.
        compress: as for `laplacian_ve`.
        strict: raise `FallbackError` where a part of `log_psi` has no rule, as for `laplacian_ve`.

    Returns:
        A function with the signature of `log_psi` that returns an array of the shape of log psi;
        with has_aux `(energy, aux)`.

    Raises:
        InvalidArgumentError: where `log_psi` returns neither an array nor a pair of arrays of one
            shape, for weights of another shape, and for argnums out of range.
        InvalidTypeError: for complex or integer arguments.
        InvalidOrderError: for an order that does not fit the function.
        FallbackError: with strict, naming the primitive and the line of the user's code.

    Example:
        The hydrogen atom has psi = exp(-r), with kinetic energy -1/2 + 1/r:

        >>> import jax.numpy as jnp
        >>> from graphax_lapl import local_kinetic_energy
        >>> kinetic = local_kinetic_energy(lambda x: -jnp.linalg.norm(x))
        >>> print(kinetic(jnp.array([0.0, 0.0, 0.5])))
        1.5
    """
    check_callable(log_psi)
    check_flags(has_aux=has_aux, compress=compress, strict=strict)
    logarithm = logarithm_of(log_psi, has_aux)

    @functools.wraps(log_psi, updated=())
    def kinetic(*args: Any, **kwargs: Any) -> Any:
        prepared = prepare(logarithm, args, kwargs, argnums, has_aux, 2, strict)
        traced = prepared.traced

        def compute(own: Prepared, weights: Any) -> Rows:
            terms = kinetic_terms(traced, args, weights)
            ((energy,), values) = _applied(own, order, terms, compress)
            return values[1:], [[energy]]

        aux, ((energy,),) = prepared.within(compute, [()], weights)
        return (energy, rebuild_aux(prepared, aux)) if has_aux else energy

    return kinetic


def logarithm_of(log_psi: Callable[..., Any], has_aux: bool = False) -> Callable[..., Any]:
    """The function that returns log psi, whatever form it is returned in."""
    name = getattr(log_psi, "__name__", "log_psi")

    @functools.wraps(log_psi, updated=())
    def logarithm(*args: Any, **kwargs: Any) -> Any:
        result = log_psi(*args, **kwargs)
        if has_aux and isinstance(result, tuple) and len(result) == 2:
            return _single_logarithm(result[0], name), result[1]
        return result if has_aux else _single_logarithm(result, name)

    return logarithm


def general_terms(traced: Traced, args: tuple[Any, ...], a: Any, b: Any) -> Terms:
    """The terms of second and first order of `second_order_operator`."""
    return Terms(*metric_of(traced, args, a, "a"), drift_of(traced, args, b, "b"))


def kinetic_terms(traced: Traced, args: tuple[Any, ...], weights: Any) -> Terms:
    """The terms of `local_kinetic_energy`: -1/2 times the weights, with the square."""
    metric, arrays = metric_of(traced, args, weights, "weights")
    scaled = Metric(metric.kind, leaves=metric.leaves, scale=-0.5 * metric.scale)
    return Terms(scaled, arrays, [None] * len(traced.in_types), square=True)


def _single_logarithm(result: Any, name: str) -> Any:
    """Log psi from what a user's function returns."""
    leaves = tree_util.tree_leaves(result)
    if len(leaves) == 1 and result is leaves[0]:
        return result
    pair = isinstance(result, tuple) and len(result) == len(leaves) == 2
    if not pair or jnp.shape(leaves[0]) != jnp.shape(leaves[1]):
        raise InvalidArgumentError(
            f"{name} must return log psi, or a pair (sign, log|psi|) of arrays of one shape, got "
            f"{tree_util.tree_structure(result)} with shapes {[jnp.shape(v) for v in leaves]}."
        )
    sign, magnitude = leaves
    if not jnp.iscomplexobj(sign):
        return magnitude
    phase = jnp.log(sign)
    return phase + jnp.asarray(magnitude).astype(phase.dtype)


def _applied(
    prepared: Prepared, order: Any, terms: Terms, compress: bool
) -> tuple[list[Array], list[Any]]:
    """The operator without its term of order zero, by output leaf, and all values."""
    check_real_inputs(prepared.traced)
    sooner = hessian_takes_less(prepared, order, terms.metric)
    plan = None if sooner else operator_plan(prepared, order, terms, compress)
    if plan is None:
        return _by_rules(prepared, order, terms)
    values, blocks = prepared.run(plan, True, given=terms.given)
    return [row[0] for row in blocks], values


def operator_plan(prepared: Prepared, order: Any, terms: Terms, compress: bool) -> Plan | None:
    """The plan, whose program takes `terms.given` beside the call; None for the way around."""
    if follows_rules_of_rules(prepared):
        return None
    if terms.metric.kind == "matrix" and prepared.listing.moves_with:
        return None  # a rule of the user's may have an asymmetric derivative
    first = FirstOrder(tuple(drift is not None for drift in terms.drifts), terms.square)
    return laplacian_plan(
        prepared, order, terms.metric, compress=compress, first=first, given=terms.given
    )


def _by_rules(prepared: Prepared, order: Any, terms: Terms) -> tuple[list[Array], list[Any]]:
    """The same for functions whose second derivatives are taken of JAX's own first ones."""
    metric, arrays = terms.metric, terms.arrays
    totals = contracted_hessian(prepared, order, metric, arrays)
    evaluate, moving = prepared.of_leaves()
    numbers = tuple(range(len(moving)))
    (values, aux), rows = value_and_jacve(evaluate, argnums=numbers, has_aux=True)(*moving)
    for n, row in enumerate(rows):
        for block, drift in zip(row, terms.drifts, strict=True):
            if drift is not None:
                totals[n] += jnp.tensordot(block, drift.astype(block.dtype), drift.ndim)
        if terms.square:
            totals[n] += metric.scale * _squared(row, values[n].ndim, metric, arrays)
    return totals, [*values, *aux]


def _squared(row: Sequence[Array], rank: int, metric: Metric, arrays: Sequence[Any]) -> Array:
    """`sum_ij A_ij dy/dx_i dy/dx_j` of one output from its dense Jacobian blocks."""
    flat = [block.reshape(*block.shape[:rank], -1) for block in row]
    total = jnp.zeros(row[0].shape[:rank], row[0].dtype)
    for i, left in enumerate(flat):
        for j, right in enumerate(flat):
            if not (metric.moves(i) and metric.moves(j)) or (metric.kind != "matrix" and i != j):
                continue
            if metric.kind == "matrix":
                weight = arrays[i * len(row) + j].reshape(left.shape[-1], right.shape[-1])
                right = right @ weight.T.astype(right.dtype)
            elif metric.kind == "diagonal":
                right = right * arrays[i].ravel().astype(right.dtype)
            total = total + jnp.sum(left * right, axis=-1)
    return total


def _product(factor: Any, value: Array, name: str) -> Array:
    """`c f`, in the dtype and shape of f."""
    dtype = getattr(factor, "dtype", None) or np.asarray(factor).dtype
    if not (dtypes.issubdtype(dtype, np.number) or dtypes.issubdtype(dtype, np.bool_)):
        raise InvalidTypeError(f"c must be a number or an array of numbers, got dtype {dtype}.")
    if jnp.iscomplexobj(factor) and not jnp.iscomplexobj(value):
        raise InvalidTypeError(
            f"c is complex and {name} returns {value.dtype}; return complex numbers, or pass a "
            "real c."
        )
    product = jnp.asarray(factor).astype(value.dtype) * value
    if product.shape != value.shape:
        raise InvalidArgumentError(
            f"c has shape {jnp.shape(factor)}, which does not broadcast to the output of {name} of "
            f"shape {value.shape}."
        )
    return product
