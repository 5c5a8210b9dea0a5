"""Ways to obtain the entries of a sparse derivative: this package, asdex, sparsejac, by hand.

Each is prepared up to a compiled function from x to the array of its entries, and says how long
that took, how many entries it stores and how much memory the compiled program takes.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import sparse as jax_sparse

from benchmarks.core.methods import Unavailable, compiled, peer
from benchmarks.core.suite import Outcome
from benchmarks.problems.sparse import Instance
from graphax_lapl import hessve, jacve

#: What this package is asked for, by the kind of derivative.
OURS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "jacobian": lambda fun: jacve(fun, sparse_representation=True),
    "hessian": lambda fun: hessve(fun, sparse_representation=True),
}

ASDEX_MODES = {
    "jacobian": ("fwd", "rev"),
    "hessian": ("fwd_over_rev", "rev_over_fwd", "rev_over_rev"),
}

# A pattern whose rows hold more than so many pairs of entries makes sparsejac's graph of conflicts
# too large to build.
CONFLICT_LIMIT = 3_000_000


@dataclass(frozen=True)
class Prepared:
    """A method, ready to be timed.

    Attributes:
        call: compiled function from x to the entries.
        outcome: what is known before it is timed; the error is the largest difference from the
            derivative by hand, relative to its largest entry, at the benchmark's size and in its
            precision.
    """

    call: Callable[[jax.Array], Any]
    outcome: Outcome


def ours(instance: Instance, kind: str) -> Prepared:
    """This package: the `SparseJacobian`, what a caller of the jitted derivative gets."""
    derivative = OURS[kind](instance.fun)
    call, outcome = compiled(derivative, instance.x)
    result = call(instance.x)
    matrix = result.to_bcoo()
    rows, cols = np.asarray(matrix.indices).T
    error = _error(instance, rows, cols, np.asarray(matrix.data))
    stored = sum(array.size for array in result.arrays)
    note = f"{len(result.structure.terms)} terms that read {len(result.arrays)} arrays, {stored:,}"
    return Prepared(call, replace(outcome, nse=matrix.nse, error=error, note=f"{note} numbers"))


def ours_data(instance: Instance, kind: str) -> Prepared:
    """This package, as one array of entries in row-major order (`to_bcoo().data`)."""
    derivative = OURS[kind](instance.fun)
    call, outcome = compiled(lambda x: derivative(x).to_bcoo().data, instance.x)
    matrix = derivative(instance.x).to_bcoo()
    rows, cols = np.asarray(matrix.indices).T
    error = _error(instance, rows, cols, np.asarray(call(instance.x)))
    return Prepared(call, replace(outcome, nse=matrix.nse, error=error))


def by_hand(instance: Instance, kind: str) -> Prepared:
    """What somebody writes who knows the structure."""
    call, outcome = compiled(instance.by_hand, instance.x)
    return Prepared(call, replace(outcome, nse=instance.nse))


def function(instance: Instance, kind: str) -> Prepared:
    """The function itself, for a Hessian with its gradient."""
    fun = instance.fun if kind == "jacobian" else jax.value_and_grad(instance.fun)
    return Prepared(*compiled(fun, instance.x))


def asdex(instance: Instance, kind: str) -> Prepared:
    """asdex: detection, colouring, compressed products; the fastest of its modes.

    Planning time is that of detection and of the colouring that is taken.
    """
    package = peer("asdex")
    start = time.perf_counter()
    pattern = getattr(package, f"{kind}_sparsity")(instance.fun, instance.x)
    detection = time.perf_counter() - start
    candidates: list[tuple[float, Prepared]] = []
    fewest = None
    for mode in ASDEX_MODES[kind]:
        start = time.perf_counter()
        colouring = getattr(package, f"{kind}_coloring_from_sparsity")(pattern, mode=mode)
        seconds = detection + time.perf_counter() - start
        if fewest is not None and colouring.num_colors > 4 * fewest:
            continue
        fewest = min(fewest or colouring.num_colors, colouring.num_colors)
        derivative = getattr(package, f"{kind}_from_coloring")(instance.fun, colouring)
        call, outcome = compiled(_data_of(derivative), instance.x)
        data = np.asarray(call(instance.x))
        error = _error(instance, np.asarray(pattern.rows), np.asarray(pattern.cols), data)
        found = replace(
            outcome,
            trace_seconds=seconds + (outcome.trace_seconds or 0.0),
            nse=pattern.nnz,
            colours=colouring.num_colors,
            error=error,
            note=f"{mode}, {colouring.num_colors} colours",
        )
        prepared = Prepared(call, found)
        candidates.append((_quick(call, instance.x), prepared))
    return min(candidates, key=lambda candidate: candidate[0])[1]


def sparsejac(instance: Instance, kind: str) -> Prepared:
    """sparsejac, forward mode, with the true pattern given to it."""
    package = peer("sparsejac")
    rows, cols = instance.coordinates()
    if int((np.bincount(rows).astype(np.int64) ** 2).sum()) > CONFLICT_LIMIT:
        raise Unavailable("rows too full for its graph of conflicting columns")
    shape = (int(jax.eval_shape(instance.fun, instance.x).size), instance.x.size)
    fun = instance.fun
    if kind == "hessian":
        fun, shape = jax.grad(instance.fun), (instance.x.size, instance.x.size)
    indices = jnp.asarray(np.stack([rows, cols], axis=1))
    ones = jnp.ones(len(rows), instance.x.dtype)
    start = time.perf_counter()
    derivative = package.jacfwd(fun, jax_sparse.BCOO((ones, indices), shape=shape))
    seconds = time.perf_counter() - start
    call, outcome = compiled(_data_of(derivative), instance.x)
    error = _error(instance, rows, cols, np.asarray(call(instance.x)))
    planned = seconds + (outcome.trace_seconds or 0.0)
    return Prepared(call, replace(outcome, trace_seconds=planned, nse=len(rows), error=error))


METHODS: dict[str, Callable[[Instance, str], Prepared]] = {
    "ours": ours,
    "ours, data": ours_data,
    "by hand": by_hand,
    "f": function,
    "asdex": asdex,
    "sparsejac": sparsejac,
}


def _data_of(derivative: Callable[..., Any]) -> Callable[[jax.Array], jax.Array]:
    """The entries of a BCOO matrix; its indices are constants that need not be copied."""
    return lambda x: derivative(x).data


def _quick(call: Callable[[jax.Array], Any], x: jax.Array) -> float:
    """A rough time, to choose between modes."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        jax.block_until_ready(call(x))
        times.append(time.perf_counter() - start)
    return min(times)


def _error(instance: Instance, rows: np.ndarray, cols: np.ndarray, data: np.ndarray) -> float:
    """Largest difference from the entries by hand; positions on one side only count as zero."""
    width = instance.x.size
    true_rows, true_cols = instance.coordinates()
    expected = instance.data(jax.jit(instance.by_hand)(instance.x))
    keys = np.concatenate(
        [true_rows.astype(np.int64) * width + true_cols, rows.astype(np.int64) * width + cols]
    )
    unique, where = np.unique(keys, return_inverse=True)
    difference = np.zeros(len(unique))
    np.add.at(difference, where[: len(expected)], expected)
    np.subtract.at(difference, where[len(expected) :], data)
    return float(np.max(np.abs(difference)) / np.max(np.abs(expected)))
