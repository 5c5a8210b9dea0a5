"""A function as a flat list of equations: what tracing and inlining leave.

Variables are small integers in order of definition. Each has a *value* and a *vertex*. Usually both
are the variable itself. They differ where a user's derivative rule was inlined: the value comes
from the function, the vertex from the rule's tangent program, whose own variables have a vertex
but no value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend import source_info_util

from ..edges.values import immutable, lazy, record
from .calls import COTANGENT_CALLS

__all__ = [
    "TRANSCENDENTAL",
    "Atom",
    "Constant",
    "Equation",
    "Listing",
    "Variable",
    "as_aval",
    "nested_primitives",
    "scan_counts",
]

#: Elementwise primitives that take about as long as ten memory accesses or more.
TRANSCENDENTAL = frozenset(
    """
    acos acosh asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt cos cosh digamma erf
    erf_inv erfc exp exp2 expm1 igamma igammac lgamma log log1p logistic polygamma pow
    regularized_incomplete_beta sin sinh tan tanh zeta
    """.split()  # noqa: SIM905
)


@immutable
class Variable:
    """Type of a variable: shape, dtype, and whether the dtype is weak."""

    shape: tuple[int, ...]
    dtype: Any
    weak_type: bool = False

    @lazy
    def differentiable(self) -> bool:
        """Whether the dtype is real or complex floating point."""
        return _is_kind(self.dtype, np.inexact)

    @lazy
    def is_complex(self) -> bool:
        """Whether the dtype is complex."""
        return _is_kind(self.dtype, np.complexfloating)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return int(getattr(self.dtype, "itemsize", 4))


def as_aval(type_: Any) -> Any:
    """What JAX traces a value of a type from: of a `Variable`, or of an array of its own."""
    return jax.ShapeDtypeStruct(type_.shape, type_.dtype, weak_type=type_.weak_type)


def _is_kind(dtype: Any, kind: Any) -> bool:
    from jax import dtypes

    return bool(dtypes.issubdtype(dtype, kind))  # NumPy's own knows no keys of random numbers


@record
class Constant:
    """A number or array that stands in an equation as it is."""

    value: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the value."""
        return tuple(np.shape(self.value))


Atom = int | Constant


#: Of a column padded by as much on both sides XLA (JAX 0.10 to 0.12) takes the column for all that
#: these compute, where it sees the pad: where the operand, or the cotangent, is one.
_MISTAKEN_OVER_PADS = frozenset(
    {"cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "reduce_window_sum"}
)


@record
class Equation:
    """One application of a primitive.

    Attributes:
        primitive: the JAX primitive.
        params: its parameters.
        context: JAX's context manager for it.
        inputs: variables and constants.
        outputs: variables.
        active: for each input, whether the derivative with respect to it is asked for.
        source_info: where in the user's code it stands.
        effects: whether it does more than compute its outputs (prints, callbacks).
        known_as: name of a call that was recognised and has a rule as a whole, e.g. "slogdet".
        callers: where the calls stand that it was inlined from, innermost first.
        form: what computes the same sooner than the primitive.
    """

    primitive: Any
    params: dict[str, Any]
    context: Any
    inputs: tuple[Atom, ...]
    outputs: tuple[int, ...]
    active: tuple[bool, ...]
    source_info: Any = None
    effects: bool = False
    known_as: str | None = None
    callers: tuple[Any, ...] = ()
    form: Callable[..., Any] | None = None

    @property
    def name(self) -> str:
        """Name of the primitive, or of the recognised call."""
        return self.known_as or str(self.primitive.name)

    @property
    def source(self) -> str:
        """`file:line (function)` in the user's code."""
        # Inside of a function of JAX there is no line of the user's; the call has one.
        for info in (self.source_info, *self.callers):
            found = source_info_util.summarize(info) if info is not None else ""
            if found:
                return found
        return ""

    @property
    def has_cotangent_rule(self) -> bool:
        """Whether this is a differentiated function whose rule exists for cotangents only."""
        return self.name in COTANGENT_CALLS and any(self.active)

    @property
    def holds_cotangent_rule(self) -> bool:
        """Whether this is such a function, differentiated or not, or holds one."""
        return self.name in COTANGENT_CALLS or not COTANGENT_CALLS.isdisjoint(self.inside)

    @lazy
    def inside(self) -> frozenset[str]:
        """Names of all primitives in the jaxprs that its parameters hold."""
        return frozenset(nested_primitives(self.params))

    def evaluate(self, *values: Any) -> list[Any]:
        """Bind the primitive on values (arrays or tracers); always returns a list."""
        params = self.primitive.get_bind_params(self.params)
        with self.context.manager:
            if self.form is not None:
                return [self.form(*values)]
            if any(self.active) and self.primitive.name == "cumprod":
                # As JAX differentiates it: value and derivative share the tree. The primitive is a
                # product over windows on a CPU.
                axis, reverse = self.params["axis"], self.params["reverse"]
                return [lax.associative_scan(lax.mul, values[0], reverse, axis)]
            if self.primitive.name in _MISTAKEN_OVER_PADS:
                (operand,) = map(lax.optimization_barrier, values)
                return [lax.optimization_barrier(self.primitive.bind(operand, **params))]
            result = self.primitive.bind(*values, **params)
        # A list: some primitives return another kind of sequence, without indices.
        return list(result) if self.primitive.multiple_results else [result]


def nested_primitives(params: dict[str, Any]) -> Iterator[str]:
    """Names of all primitives in the jaxprs that an equation's parameters hold."""
    stack: list[Any] = list(params.values())
    while stack:
        value = stack.pop()
        if isinstance(value, tuple | list):
            stack.extend(value)
        equations = getattr(getattr(value, "jaxpr", value), "eqns", ())
        for equation in equations:
            yield str(equation.primitive.name)
            stack.extend(equation.params.values())


def scan_counts(params: dict[str, Any]) -> tuple[int, int] | None:
    """How many constants and carries a `scan` has; None where its parameters do not tell.

    Since 0.11 JAX keeps the three groups of inputs as a tree of leaves, before that their numbers.
    """
    if "num_consts" in params and "num_carry" in params:
        return params["num_consts"], params["num_carry"]
    inputs: Any = params.get("ft_in")
    if hasattr(inputs, "elts"):
        groups = [len(group) for group in inputs.elts]
    elif hasattr(inputs, "tree"):  # of a transposed loop
        groups = [group.num_leaves for group in inputs.tree.children()]
    else:
        return None
    if len(groups) != 3 or sum(groups) != len(params["jaxpr"].jaxpr.invars):
        return None
    return groups[0], groups[1]


@dataclass
class Listing:
    """A flat program.

    Attributes:
        variables: type of every variable.
        constants: input variables that hold constants of the trace, in its order.
        inputs: input variables that hold the arguments' leaves.
        equations: in order of evaluation.
        outputs: variables and constants returned.
        known: values known while planning (integers and masks, and what follows from them).
        support: for floating-point constants that hold zeros, where they do not.
        exponents: by its result, of a power that products and roots give; one for all or for each.
        broadcasts: for variables that repeat another: that atom and the dimensions it fills.
        value_of: the atom that holds a variable's value; None where it has none.
        vertex_of: the variable whose vertex stands for a variable.
        active: variables that depend differentiably on the chosen inputs.
        moves_with: for values of functions with their own rule, the variable whose vertex carries
            the derivative of the value itself (rather than of what the rule says of it).
        whole_windows: whether convolutions are taken as opaque maps, for inputs so small that their
            Jacobians fill up anyway.
        disagrees: whether a function's own rule says that its value, which moves, does not.
        freed_loops: whether loops are given what their steps read, of what they computed it from.
        fallbacks: by the first output of an equation, why its partials are one opaque map.
    """

    variables: list[Variable] = field(default_factory=list)
    constants: list[int] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    equations: list[Equation] = field(default_factory=list)
    outputs: list[Atom] = field(default_factory=list)
    known: dict[int, np.ndarray] = field(default_factory=dict)
    support: dict[int, np.ndarray] = field(default_factory=dict)
    exponents: dict[int, np.ndarray] = field(default_factory=dict)
    broadcasts: dict[int, tuple[Atom, tuple[int, ...]]] = field(default_factory=dict)
    value_of: dict[int, Atom | None] = field(default_factory=dict)
    vertex_of: dict[int, int] = field(default_factory=dict)
    active: set[int] = field(default_factory=set)
    moves_with: dict[int, int] = field(default_factory=dict)
    disagrees: bool = False
    whole_windows: bool = False
    freed_loops: bool = False
    fallbacks: dict[int, str] = field(default_factory=dict)

    def new(self, variable: Variable) -> int:
        """Add a variable."""
        self.variables.append(variable)
        return len(self.variables) - 1

    def vertex(self, variable: int) -> int:
        """The variable whose vertex stands for `variable`."""
        while variable in self.vertex_of:
            variable = self.vertex_of[variable]
        return variable

    def value(self, atom: Atom) -> Atom | None:
        """The atom that holds the value of `atom`, None where it has none."""
        while isinstance(atom, int) and atom in self.value_of:
            held = self.value_of[atom]
            if held is None:
                return None
            atom = held
        return atom

    def moving_vertex(self, atom: Atom) -> int | None:
        """The variable whose vertex carries the derivative of an atom's value; None for none."""
        held = self.value(atom)
        if not isinstance(held, int):
            return None
        held = self.moves_with.get(held, held)
        return self.vertex(held) if held in self.active else None

    def known_value(self, atom: Atom) -> np.ndarray | None:
        """The value of an atom where it is known while planning."""
        if isinstance(atom, Constant):
            return np.asarray(atom.value)
        held = self.value(atom)
        if isinstance(held, Constant):
            return np.asarray(held.value)
        return None if held is None else self.known.get(held)

    def support_of(self, atom: Atom) -> np.ndarray | None:
        """Where an atom is not zero, if it is known to be zero somewhere."""
        value = self.known_value(atom)
        if value is None:
            held = self.value(atom)
            return self.support.get(held) if isinstance(held, int) else None
        support = value != 0
        return None if support.all() else support

    def type_of(self, atom: Atom) -> Variable:
        """Type of an atom."""
        if isinstance(atom, Constant):
            dtype = getattr(atom.value, "dtype", None) or np.asarray(atom.value).dtype
            return Variable(atom.shape, dtype)
        return self.variables[atom]
