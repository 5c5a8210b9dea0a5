"""A random straight-line program under construction: values, steps and bounds.

Every value carries an upper bound of its magnitude over the drawn inputs. An operation asks for an
operand of bounded size with :meth:`ProgramBuilder.pick`, which squashes or scales a value that has
grown too large, so that no program overflows and every domain condition holds by construction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

COMFORTABLE = 1.5
"""The default largest magnitude of an operand handed to an operation."""


class NotApplicable(Exception):
    """Raised by an operation that finds no suitable operand; the builder draws another one."""


@dataclass(frozen=True)
class Value:
    """Shape, dtype and magnitude bound of one value of a program."""

    index: int
    shape: tuple[int, ...]
    dtype: np.dtype
    bound: float

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Step:
    """One call: ``fun`` applied to the values at ``operands`` yields one or several new values."""

    name: str
    fun: Callable[..., Any]
    operands: tuple[int, ...]
    results: tuple[int, ...]


@dataclass
class ProgramBuilder:
    """Grows a random program, one step at a time.

    Args:
        rng: source of all randomness.
        max_size: largest number of elements of an intermediate array.
        values: everything computed so far, inputs first.
        steps: the calls made so far, in execution order.
        used: indices of the values that are operands of a step.
        depth: how many programs this one is nested in.
        mode: "forward" or "reverse" where JAX has only that mode of differentiation for a step.
        precision: machine epsilon of the lowest precision in use.
    """

    rng: np.random.Generator
    max_size: int = 96
    values: list[Value] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    used: set[int] = field(default_factory=set)
    depth: int = 0
    mode: str = ""
    precision: float = 0.0

    # ---------------------------------------------------------------- what JAX can differentiate

    def use_forward_mode(self) -> None:
        """Note a step that JAX pushes tangents through only; not beside one of the other kind."""
        self._use("forward")

    def use_reverse_mode(self) -> None:
        """Note a step that JAX pulls cotangents through only; not beside one of the other kind."""
        self._use("reverse")

    def _use(self, mode: str) -> None:
        if self.mode not in ("", mode):
            raise NotApplicable
        self.mode = mode

    def lower_precision(self, epsilon: float) -> None:
        """Note that results are as good as a precision, at most."""
        self.precision = max(self.precision, epsilon)

    # ---------------------------------------------------------------- random draws

    def chance(self, probability: float) -> bool:
        """True with the given probability."""
        return bool(self.rng.random() < probability)

    def integer(self, low: int, high: int) -> int:
        """An integer in ``low..high``, both ends included."""
        return int(self.rng.integers(low, high + 1))

    def choice(self, options: Sequence[Any]) -> Any:
        """One of the options; raises NotApplicable when there is none."""
        if not options:
            raise NotApplicable
        return options[int(self.rng.integers(len(options)))]

    def subset(self, options: Sequence[int], at_least: int = 1) -> tuple[int, ...]:
        """A sorted random subset with ``at_least`` elements or more."""
        if len(options) < at_least:
            raise NotApplicable
        count = self.integer(at_least, len(options))
        return tuple(sorted(int(i) for i in self.rng.choice(options, count, replace=False)))

    def permutation(self, length: int) -> tuple[int, ...]:
        """A random permutation of ``range(length)``."""
        return tuple(int(i) for i in self.rng.permutation(length))

    def array(self, shape: Sequence[int], low: float = -1.0, high: float = 1.0) -> np.ndarray:
        """A constant float64 array, uniform between ``low`` and ``high``."""
        return self.rng.uniform(low, high, tuple(shape))

    def dither(self, value: Value) -> np.ndarray:
        """A constant to add before an order-sensitive operation, so that nothing ties."""
        return self.array(value.shape, -0.4, 0.4)

    def indices(self, shape: Sequence[int], size: int) -> np.ndarray:
        """A constant integer array with entries in ``-size..size-1``, repeated entries included."""
        if size == 0:
            raise NotApplicable
        return self.rng.integers(-size, size, tuple(shape))

    # ---------------------------------------------------------------- values

    def add_input(self, shape: tuple[int, ...], dtype: Any, bound: float) -> Value:
        """Declare one more input leaf."""
        value = Value(len(self.values), shape, np.dtype(dtype), bound)
        self.values.append(value)
        return value

    def pick(
        self,
        *,
        where: Callable[[Value], bool] = lambda value: True,
        bound: float = COMFORTABLE,
        nonempty: bool = False,
        partner: Value | None = None,
    ) -> Value:
        """A float64 value that satisfies ``where``, of magnitude at most ``bound``.

        Recent and unused values are preferred, so that programs grow deep as well as wide and
        little of them is dead; ``partner`` is the other operand, which is rarely drawn again. A
        value beyond the bound is squashed or scaled first (one more step of the program).
        """
        options = [
            value
            for value in self.values
            if value.dtype == np.float64 and where(value) and not (nonempty and value.size == 0)
        ]
        if not options:
            raise NotApplicable
        weights = np.array([self._weight(v, partner) for v in options])
        chosen = options[int(self.rng.choice(len(options), p=weights / weights.sum()))]
        return chosen if chosen.bound <= bound else self.squash(chosen, bound)

    def _weight(self, value: Value, partner: Value | None) -> float:
        """Relative frequency with which :meth:`pick` draws a value."""
        weight = 1.0 + 3.0 * (value.index / len(self.values)) ** 2
        if value.index not in self.used:
            weight *= 3.0
        if value.size <= 1:
            weight *= 0.6 if value.size == 1 else 0.25
        return weight * (0.2 if value == partner else 1.0)

    def pick_rank(self, low: int, high: int = 4, **conditions: Any) -> Value:
        """A value with ``low`` to ``high`` dimensions, see :meth:`pick`."""
        return self.pick(where=lambda value: low <= value.rank <= high, **conditions)

    def squash(self, value: Value, bound: float) -> Value:
        """A function of ``value`` with magnitude at most ``bound``."""
        if value.bound < 50.0 and self.chance(0.4):
            factor = bound / value.bound
            return self.apply(f"{factor:.3g} *", lambda x: factor * x, value, bound=bound)
        name, fun, reach = self.choice(
            [
                ("tanh", jnp.tanh, 1.0),
                ("sin", jnp.sin, 1.0),
                ("arctan", jnp.arctan, 1.6),
                ("x / sqrt(1 + x^2)", lambda x: x / jnp.sqrt(1.0 + x * x), 1.0),
            ]
        )
        if reach <= bound:
            return self.apply(name, fun, value, bound=reach)
        return self.apply(
            f"{bound:.3g} {name}", lambda x: bound / reach * fun(x), value, bound=bound
        )

    def apply(self, name: str, fun: Callable[..., Any], *operands: Value, bound: float) -> Any:
        """Append one step and return its value, or a tuple of values for several results.

        Raises:
            NotApplicable: if a result would have more than ``max_size`` elements or 4 dimensions.
        """
        avals = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in operands]
        results = jax.eval_shape(fun, *avals)
        single = not isinstance(results, tuple)
        results = (results,) if single else results
        if any(math.prod(r.shape) > self.max_size or len(r.shape) > 4 for r in results):
            raise NotApplicable
        new = tuple(
            Value(len(self.values) + k, tuple(r.shape), np.dtype(r.dtype), bound)
            for k, r in enumerate(results)
        )
        self.values.extend(new)
        self.used.update(value.index for value in operands)
        self.steps.append(
            Step(name, fun, tuple(v.index for v in operands), tuple(v.index for v in new))
        )
        return new[0] if single else new

    def run(self, steps: range, environment: dict[int, Any]) -> None:
        """Execute steps on the values in ``environment``, which takes their results."""
        for k in steps:
            step = self.steps[k]
            outcome = step.fun(*(environment[i] for i in step.operands))
            results = outcome if isinstance(outcome, tuple) else (outcome,)
            environment.update(zip(step.results, results, strict=True))


Operation = Callable[[ProgramBuilder], object]


class OperationTable:
    """The operations of one family with their relative frequencies."""

    def __init__(self) -> None:
        """Start empty."""
        self.entries: list[tuple[float, Operation]] = []

    def __call__(self, weight: float = 1.0) -> Callable[[Operation], Operation]:
        """Decorator that registers an operation."""

        def register(operation: Operation) -> Operation:
            self.entries.append((weight, operation))
            return operation

        return register
