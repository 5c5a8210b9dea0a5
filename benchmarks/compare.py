"""Compares elimination orders with `jax.jacfwd` and `jax.jacrev` on one problem.

For every order: what it costs on paper (`compare_orders`), what it costs in time, interleaved with
JAX's own derivatives in one process, and how far its numbers are from theirs in float64.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.problems import Problem
from benchmarks.problems.problem import Sampler, first_sample, over_batch
from benchmarks.timing import Ratio, measure
from graphax_lapl import compare_orders, jacve

ORDERS = ("forward", "reverse", "markowitz", "search", "auto")
REFERENCES: dict[str, Callable[..., Any]] = {"jax.jacfwd": jax.jacfwd, "jax.jacrev": jax.jacrev}
FUNCTION = "f itself"


@dataclass(frozen=True)
class Case:
    """A problem in the form in which it is timed.

    Attributes:
        title: one line for the reader.
        fun: function of one input.
        argnums: the differentiated arguments.
        sample: draws inputs.
        batch: size of the batch, or None for a single input.
        sparse: ask for a sparse Jacobian (JAX's own remain dense: it has no other).
        shared: arguments that all samples of a batch share.
    """

    title: str
    fun: Callable[..., Any]
    argnums: int | tuple[int, ...]
    sample: Sampler
    batch: int | None = None
    sparse: bool = False
    shared: tuple[int, ...] = ()

    @classmethod
    def of(cls, problem: Problem, batch: int | None) -> "Case":
        """The case of a problem at one batch size."""
        title = problem.name if batch is None else f"{problem.name}, batch of {batch:,}"
        return cls(
            title, problem.fun, problem.argnums, problem.sample, batch, shared=problem.shared
        )

    def inputs(self, dtype: Any) -> tuple[Any, ...]:
        """The same inputs on every call (fixed key), in the precision asked for."""
        shape = () if self.batch is None else (self.batch,)
        return self.sample(jax.random.key(0), shape, dtype)

    def compiled(self, transform: Callable[..., Any] | None, **options: Any) -> Callable[..., Any]:
        """Jitted derivative (the function itself for None), over the batch where there is one."""
        fun = self.fun
        if transform is not None:
            fun = transform(self.fun, argnums=self.argnums, **options)
        return jax.jit(fun if self.batch is None else over_batch(fun, self.shared))

    def single(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The first sample of a batch."""
        return inputs if self.batch is None else first_sample(inputs, self.shared)

    def elimination(self, order: Any) -> Callable[..., Any]:
        """Jitted Jacobian by elimination in an order."""
        return self.compiled(jacve, order=order, sparse_representation=self.sparse)


@dataclass(frozen=True)
class Row:
    """One line of a report.

    Attributes:
        name: order, JAX function, or the function itself.
        muls: multiplications for one input, None where nothing is eliminated.
        adds: additions for one input.
        bytes: bytes moved for one input.
        first_seconds: first call: tracing, planning, compiling and one run.
        seconds: median time of a later call.
        ratio: that time divided by the better of JAX's two.
        error: largest difference from JAX in float64, relative to the largest entry of the same
            input's Jacobian.
    """

    name: str
    muls: float | None
    adds: float | None
    bytes: float | None
    first_seconds: float
    seconds: float
    ratio: Ratio
    error: float | None


@dataclass(frozen=True)
class Report:
    """All lines for one case, the reference they refer to, and the null of that reference."""

    title: str
    rows: tuple[Row, ...]
    reference: str
    null: Ratio
    rounds: int

    @property
    def largest_error(self) -> float:
        """Largest error of any order."""
        return max(row.error for row in self.rows if row.error is not None)


def compare(
    case: Case,
    orders: Sequence[Any] = ORDERS,
    *,
    rounds: int = 51,
    max_seconds: float = 6.0,
    on_step: Callable[[str, int, int], None] | None = None,
) -> Report:
    """Counts, times and checks the elimination orders on a case.

    Args:
        case: what to differentiate, at which inputs.
        orders: elimination orders, as `jacve` takes them.
        rounds: rounds of the timer.
        max_seconds: time for these rounds, in seconds.
        on_step: called with (what happens now, steps done, steps in all).

    Returns:
        One row for each of JAX's derivatives, the function itself and each order.
    """
    named = {str(order): order for order in orders}
    done, total = 0, len(REFERENCES) + 1 + 3 * len(named) + 1 + rounds

    def step(what: str, by: int = 1) -> None:
        nonlocal done
        if on_step is not None:
            on_step(what, done, total)
        done += by

    # Counts, from shapes alone.
    with jax.enable_x64(False):
        inputs = case.inputs(jnp.float32)
    single = case.single(inputs)
    step("counting", by=len(named))
    counts = dict(
        zip(
            named,
            compare_orders(
                case.fun, *single, orders=tuple(named.values()), argnums=case.argnums
            ).rows,
            strict=True,
        )
    )

    # First calls, in float32 as users have it.
    calls = {name: case.compiled(jacobian) for name, jacobian in REFERENCES.items()}
    calls[FUNCTION] = case.compiled(None)
    calls |= {name: case.elimination(order) for name, order in named.items()}
    first = {}
    with jax.enable_x64(False):
        for name, call in calls.items():
            step(f"compiling {name}")
            start = time.perf_counter()
            jax.block_until_ready(call(*inputs))
            first[name] = time.perf_counter() - start

        offset = done
        measured = measure(
            {name: lambda call=call: call(*inputs) for name, call in calls.items()},  # type: ignore[misc]
            references=tuple(REFERENCES),
            rounds=rounds,
            max_seconds=max_seconds,
            on_round=lambda now, planned: (
                on_step(f"timing, round {now} of {planned}", offset + max(0, now - 2), total)
                if on_step is not None
                else None
            ),
        )
    done = offset + rounds

    best = measured.best_reference()
    with jax.enable_x64(True):
        exact_inputs = case.inputs(jnp.float64)
        step(f"{best} in float64")
        expected = jax.block_until_ready(case.compiled(REFERENCES[best])(*exact_inputs))
        errors = {}
        for name, order in named.items():
            step(f"checking {name}")
            found = case.elimination(order)(*exact_inputs)
            errors[name] = relative_error(found, expected, batched=case.batch is not None)

    rows = tuple(
        Row(
            name=name,
            muls=counts[name].muls if name in counts else None,
            adds=counts[name].adds if name in counts else None,
            bytes=counts[name].bytes if name in counts else None,
            first_seconds=first[name],
            seconds=measured.median_seconds(name),
            ratio=measured.ratio(name, to=best),
            error=errors.get(name),
        )
        for name in calls
    )
    return Report(case.title, rows, best, measured.null(best), measured.rounds)


def relative_error(found: Any, expected: Any, *, batched: bool) -> float:
    """Largest difference of two Jacobians, relative to the largest entry.

    Args:
        found: pytree of arrays, or of sparse Jacobians with a `to_bcoo()`.
        expected: pytree of dense arrays with as many leaves, in the same order.
        batched: the first axis of every leaf is the batch; the difference is then taken relative
            to the largest entry of the same sample, and the worst sample counts.

    Returns:
        The error, infinite where something is not finite on one side only.
    """
    leaves = jax.tree.leaves(found, is_leaf=_is_sparse)
    references = jax.tree.leaves(expected)
    difference: Any = 0.0
    scale: Any = 0.0
    for leaf, reference in zip(leaves, references, strict=True):
        exact = np.array(reference)
        size = _largest(exact, batched)
        # The difference overwrites the copy of the reference, which may be large.
        if _is_sparse(leaf):
            matrix = leaf.to_bcoo()
            np.subtract.at(exact, tuple(np.asarray(matrix.indices).T), np.asarray(matrix.data))
        else:
            if exact.shape != leaf.shape:
                raise ValueError(f"a leaf has shape {leaf.shape}, expected {exact.shape}")
            exact -= np.asarray(leaf)
        difference = np.maximum(difference, _largest(exact, batched))
        scale = np.maximum(scale, size)
    error = np.max(difference / np.where(scale == 0, 1, scale), initial=0.0)
    return float(error) if np.isfinite(error) else float("inf")


def _is_sparse(leaf: Any) -> bool:
    return hasattr(leaf, "to_bcoo")


def _largest(array: np.ndarray, batched: bool) -> np.ndarray:
    axes = tuple(range(1 if batched else 0, array.ndim))
    # max(max, -min) instead of max(abs): no copy of a large array.
    return np.maximum(array.max(axis=axes, initial=0.0), 0.0 - array.min(axis=axes, initial=0.0))
