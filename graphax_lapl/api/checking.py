"""`check_derivatives`: derivatives against JAX's own and against central differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import dtypes, tree_util

from ..graph.tracing import (
    check_callable,
    check_flags,
    check_integer,
    check_number,
    normalized_argnums,
)
from .hessian import hessve
from .jacobian import jacve
from .laplacian import laplacian_ve

__all__ = ["CheckRow", "DerivativeReport", "check_derivatives"]

#: Orders that are compared unless others are asked for.
DEFAULT_ORDERS = ("auto", "forward", "reverse")
#: Largest number of entries of all Hessians together that is compared.
MAX_ENTRIES = 1 << 22
#: Most differentiated numbers for which the Laplacian is taken by differences.
MAX_DIFFERENCES = 64


@dataclass(frozen=True)
class CheckRow:
    """One comparison.

    Attributes:
        derivative: what was computed: "jacobian[forward]", "hessian", "laplacian", ...
        against: "jax" or "differences".
        block: which output leaf, and which inputs.
        max_error: largest difference, relative to the largest entry of the truth (at least 1);
            NaN where the comparison was not possible.
        tolerance: what is allowed.
        note: why it was not possible; empty otherwise.
        failed: whether graphax_lapl raised.
    """

    derivative: str
    against: str
    block: str
    max_error: float
    tolerance: float
    note: str = ""
    failed: bool = False

    @property
    def ok(self) -> bool:
        """Whether the error is small enough, or there was no truth to compare with."""
        return not self.failed and (bool(self.note) or self.max_error <= self.tolerance)


@dataclass(frozen=True)
class DerivativeReport:
    """The comparisons of `check_derivatives`; printable.

    Attributes:
        function: its name.
        rows: the comparisons.
        dtype: the precision of the comparison.
    """

    function: str
    rows: tuple[CheckRow, ...]
    dtype: str

    @property
    def ok(self) -> bool:
        """Whether every comparison that was possible agrees, and at least one was."""
        return all(row.ok for row in self.rows) and any(not row.note for row in self.rows)

    @property
    def max_error(self) -> dict[str, float]:
        """The largest relative error by derivative and block."""
        found: dict[str, float] = {}
        for row in self.rows:
            if not row.note:
                key = f"{row.derivative} {row.block}".strip()
                found[key] = max(found.get(key, 0.0), row.max_error)
        return found

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        table = [("derivative", "against", "block", "max error", "allowed", "")]
        for row in self.rows:
            error = "-" if row.note else f"{row.max_error:.1e}"
            verdict = row.note or ("ok" if row.ok else "WRONG")
            line = (row.derivative, row.against, row.block, error, f"{row.tolerance:.0e}", verdict)
            table.append(line)
        widths = [max(len(line[k]) for line in table) for k in range(5)]
        lines = [
            "  ".join([*(line[k].ljust(widths[k]) for k in range(5)), line[5]]).rstrip()
            for line in table
        ]
        verdict = "all agree" if self.ok else "NOT all agree"
        return "\n".join([f"{self.function} ({self.dtype}): {verdict}", *lines])


def check_derivatives(
    fun: Callable[..., Any],
    *args: Any,
    order: Any = DEFAULT_ORDERS,
    argnums: int | Sequence[int] = 0,
    second: bool = True,
    tolerance: float = 1e-8,
    directions: int = 3,
    seed: int = 0,
) -> DerivativeReport:
    """Compare `jacve`, `hessve` and `laplacian_ve` with JAX and with central differences.

    Meant for functions with rules of one's own. The arguments are converted to double precision
    where `fun` allows it. Nothing is raised where derivatives disagree or cannot be computed; the
    report says so.

    Args:
        fun: the function.
        *args: its positional arguments.
        order: an order of `jacve`, or a list or tuple of several.
        argnums: which arguments are differentiated.
        second: whether second derivatives are compared too.
        tolerance: largest relative difference from JAX. Central differences may differ by 1e-6 in
            first and 1e-4 in second derivatives in double precision.
        directions: number of random directions along which differences are taken.
        seed: of the directions.

    Returns:
        A `DerivativeReport`: print it, or ask for `.ok`, `.max_error` and `.rows`.

    Raises:
        InvalidTypeError: if `fun` is not a function, or `second` no flag.
        InvalidArgumentError: for argnums out of range, and numbers that are none.

    Example:
        >>> import jax.numpy as jnp
        >>> from graphax_lapl import check_derivatives
        >>> check_derivatives(lambda x: jnp.sin(x) * x, jnp.array([0.5, 1.0])).ok
        True
    """
    check_callable(fun)
    check_flags(second=second)
    check_integer("directions", directions, 1)
    check_integer("seed", seed, 0)
    check_number("tolerance", tolerance)
    name = getattr(fun, "__name__", type(fun).__name__)
    positions, _ = normalized_argnums(argnums, len(args), name)
    orders = list(order) if isinstance(order, tuple | list) else [order]
    if orders and all(isinstance(item, int) for item in orders):
        orders = [order]  # a permutation
    with _double_precision():
        wide = tree_util.tree_map(_widened, args)
        try:
            jax.eval_shape(fun, *wide)
            precise = True
        except (TypeError, ValueError):
            wide, precise = args, False
        check = _Check(fun, wide, positions, tolerance if precise else max(tolerance, 1e-3))
        rows = list(check.first(orders, directions, seed, precise))
        if second:
            rows += check.twice(directions, seed, precise)
    return DerivativeReport(name, tuple(rows), "float64" if precise else "given precision")


def _total(arrays: Iterable[np.ndarray]) -> np.ndarray:
    return np.asarray(sum(arrays))


def _double_precision() -> AbstractContextManager[Any]:
    context: AbstractContextManager[Any] = jax.enable_x64(True)
    return context


def _widened(leaf: Any) -> Any:
    """A real or complex floating-point leaf in double precision."""
    dtype = getattr(leaf, "dtype", None)
    if dtype is None or not dtypes.issubdtype(dtype, np.inexact):
        return leaf
    is_complex = dtypes.issubdtype(dtype, np.complexfloating)
    return jnp.asarray(leaf, np.complex128 if is_complex else np.float64)


class _Check:
    """The comparisons of one function at one point."""

    def __init__(
        self, fun: Callable[..., Any], args: Any, positions: tuple[int, ...], tolerance: float
    ):
        self.fun, self.args, self.positions, self.tolerance = fun, args, positions, tolerance
        chosen = tuple(args[position] for position in positions)
        paths, self.tree = tree_util.tree_flatten_with_path(chosen)
        self.leaves = [jnp.asarray(leaf) for _, leaf in paths]
        self.inputs = [f"{positions[path[0].idx]}{tree_util.keystr(path[1:])}" for path, _ in paths]
        shapes = tree_util.tree_flatten_with_path(jax.eval_shape(fun, *args))[0]
        self.outputs = [tree_util.keystr(path) or "out" for path, _ in shapes]
        self.out_sizes = [math.prod(leaf.shape) for _, leaf in shapes]
        self.size = sum(leaf.size for leaf in self.leaves)
        self.complex = any(jnp.iscomplexobj(leaf) for leaf in self.leaves)

    def at(self, leaves: Sequence[Any]) -> list[Any]:
        """Output leaves with the differentiated leaves replaced."""
        args = list(self.args)
        for position, value in zip(
            self.positions, tree_util.tree_unflatten(self.tree, leaves), strict=True
        ):
            args[position] = value
        return [np.asarray(leaf) for leaf in tree_util.tree_leaves(self.fun(*args))]

    def first(
        self, orders: list[Any], directions: int, seed: int, precise: bool
    ) -> Iterable[CheckRow]:
        names = [f"d {out} / d arg {into}" for out in self.outputs for into in self.inputs]
        truth, why = self.attempt(
            [
                lambda: jax.jacrev(self.fun, self.positions)(*self.args),
                lambda: jax.jacfwd(self.fun, self.positions)(*self.args),
            ]
        )
        for order in orders:
            label = f"jacobian[{order if isinstance(order, str) else type(order).__name__}]"
            found, error = self.attempt([self.ours(jacve, order)])
            yield from self.compared(label, "jax", names, found, error, truth, why, self.tolerance)
            if found is None:
                continue
            if self.complex:
                yield self.impossible(label, "differences", "complex arguments")
                continue
            pushed = [self.pushed(found, v) for v in self.directions(directions, seed)]
            moved = [self.differences(v, precise) for v in self.directions(directions, seed)]
            allowed = max(self.tolerance, 1e-6 if precise else 1e-2)
            for k, name in enumerate(self.outputs):
                ours = np.stack([p[k] for p in pushed])
                yield self.row(
                    label,
                    "differences",
                    f"d {name}",
                    ours,
                    np.stack([m[k] for m in moved]),
                    allowed,
                )

    def ours(self, derivative: Callable[..., Any], order: Any) -> Callable[[], Any]:
        return lambda: derivative(self.fun, order=order, argnums=self.positions)(*self.args)

    def twice(self, directions: int, seed: int, precise: bool) -> list[CheckRow]:
        if self.complex:
            return [self.impossible("hessian", "jax", "complex arguments")]
        if sum(self.out_sizes) * self.size**2 > MAX_ENTRIES:
            return [self.impossible("hessian", "jax", "too large")]
        names = [
            f"d2 {out} / d arg {a} d arg {b}"
            for out in self.outputs
            for a in self.inputs
            for b in self.inputs
        ]
        truth, why = self.attempt(
            [
                lambda: jax.hessian(self.fun, self.positions)(*self.args),
                lambda: jax.jacfwd(jax.jacfwd(self.fun, self.positions), self.positions)(
                    *self.args
                ),
            ]
        )
        found, error = self.attempt([self.ours(hessve, "auto")])
        rows = list(
            self.compared("hessian", "jax", names, found, error, truth, why, self.tolerance)
        )
        allowed = max(self.tolerance, 1e-4 if precise else 1.0)
        if found is not None:
            vectors = self.directions(directions, seed)
            for k, name in enumerate(self.outputs):
                ours = np.stack([self.bent(found, v)[k] for v in vectors])
                real = np.stack([self.second_differences(v, precise)[k] for v in vectors])
                rows.append(self.row("hessian", "differences", f"d2 {name}", ours, real, allowed))
        column, error = self.attempt([self.ours(laplacian_ve, "auto")])
        blocks = [f"laplacian of {name}" for name in self.outputs]
        traces = None if truth is None else self.traces(truth)
        rows += self.compared(
            "laplacian", "jax", blocks, column, error, traces, why, self.tolerance
        )
        if column is not None and self.size <= MAX_DIFFERENCES:
            bent = [self.second_differences(v, precise) for v in self.units()]
            for k, name in enumerate(blocks):
                real = np.sum([b[k] for b in bent], axis=0)
                rows.append(self.row("laplacian", "differences", name, column[k], real, allowed))
        return rows

    # -- truths ------------------------------------------------------------------------------------

    def attempt(self, ways: list[Callable[[], Any]]) -> tuple[list[np.ndarray] | None, str]:
        """The leaves of the first way that works, and why none did."""
        why = ""
        for way in ways:
            try:
                return [np.asarray(leaf) for leaf in tree_util.tree_leaves(way())], ""
            except Exception as error:  # whatever a user's function or its rules raise
                why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return None, why[:120]

    def directions(self, count: int, seed: int) -> list[list[np.ndarray]]:
        random = np.random.default_rng(seed)
        return [[random.normal(size=leaf.shape) for leaf in self.leaves] for _ in range(count)]

    def units(self) -> Iterable[list[np.ndarray]]:
        for k, leaf in enumerate(self.leaves):
            for place in range(leaf.size):
                unit = [np.zeros(other.shape) for other in self.leaves]
                unit[k].reshape(-1)[place] = 1.0
                yield unit

    def shifted(self, direction: list[np.ndarray], step: float) -> list[np.ndarray]:
        pairs = zip(self.leaves, direction, strict=True)
        return self.at([leaf + jnp.asarray(step * v, leaf.dtype) for leaf, v in pairs])

    def differences(self, direction: list[np.ndarray], precise: bool) -> list[np.ndarray]:
        step = 1e-5 if precise else 1e-2
        pairs = zip(self.shifted(direction, step), self.shifted(direction, -step), strict=True)
        return [(after - before) / (2 * step) for after, before in pairs]

    def second_differences(self, direction: list[np.ndarray], precise: bool) -> list[np.ndarray]:
        step = 2e-4 if precise else 5e-2
        three = [self.shifted(direction, step * sign) for sign in (1, 0, -1)]
        return [(a - 2 * b + c) / step**2 for a, b, c in zip(*three, strict=True)]

    def pushed(self, jacobian: list[np.ndarray], direction: list[np.ndarray]) -> list[np.ndarray]:
        count = len(self.leaves)
        return [
            _total(
                np.tensordot(jacobian[k * count + n], v, v.ndim) for n, v in enumerate(direction)
            )
            for k in range(len(self.outputs))
        ]

    def bent(self, hessian: list[np.ndarray], direction: list[np.ndarray]) -> list[np.ndarray]:
        count = len(direction)
        rows = [
            _total(np.tensordot(hessian[k + j], v, v.ndim) for j, v in enumerate(direction))
            for k in range(0, len(hessian), count)
        ]
        return self.pushed(rows, direction)

    def traces(self, hessian: list[np.ndarray]) -> list[np.ndarray]:
        """Laplacians from the diagonal blocks of Hessians."""
        count, found = len(self.leaves), []
        for k, size in enumerate(self.out_sizes):
            total = 0
            for n, leaf in enumerate(self.leaves):
                block = hessian[k * count**2 + n * count + n]
                shape = block.shape[: block.ndim - 2 * leaf.ndim]
                square = block.reshape(size, leaf.size, leaf.size)
                total = total + np.trace(square, axis1=1, axis2=2).reshape(shape)
            found.append(np.asarray(total))
        return found

    # -- rows --------------------------------------------------------------------------------------

    def compared(
        self,
        label: str,
        against: str,
        names: list[str],
        found: list[np.ndarray] | None,
        error: str,
        truth: list[np.ndarray] | None,
        why: str,
        allowed: float,
    ) -> Iterable[CheckRow]:
        if found is None:
            yield CheckRow(label, against, "", math.nan, allowed, f"raised {error}", failed=True)
        elif truth is None:
            yield self.impossible(label, against, f"JAX raised {why}")
        else:
            for name, ours, real in zip(names, found, truth, strict=True):
                yield self.row(label, against, name, ours, real, allowed)

    def impossible(self, label: str, against: str, why: str) -> CheckRow:
        return CheckRow(label, against, "", math.nan, self.tolerance, f"not compared: {why}")

    def row(
        self,
        label: str,
        against: str,
        block: str,
        ours: np.ndarray,
        real: np.ndarray,
        allowed: float,
    ) -> CheckRow:
        if ours.shape != real.shape:
            return CheckRow(label, against, block, math.inf, allowed)
        scale = max(1.0, float(np.max(np.abs(real[np.isfinite(real)]), initial=0.0)))
        same = (ours == real) | (np.isnan(ours) & np.isnan(real))
        with np.errstate(invalid="ignore"):
            gap = np.where(same, 0.0, np.abs(ours - real))
        error = float(np.max(np.where(np.isnan(gap), np.inf, gap), initial=0.0)) / scale
        return CheckRow(label, against, block, error, allowed)
