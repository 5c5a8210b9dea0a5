"""Programs on arrays, carried out number by number.

An array of a few numbers under `jax.vmap` is `(batch, 3, 3)`, and a CPU works along its last axis,
three at a time. Nine numbers are nine arrays `(batch,)`, and all arithmetic goes along the batch.
Here a jaxpr is read with a numpy array of numbers in the place of every array: moving them about
is then indexing, and costs nothing when the program runs. What a number is, is left to the reader:
an array without axes, or a note that a number will be computed.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import dtypes, lax

from .operations import carried_out, chosen, is_known
from .placed import combined, filled, gathered
from .small_factors import FACTORS, WRITTEN_OUT, factor_operations, is_written_out

__all__ = [
    "BATCH",
    "CALLS",
    "LINEAR_SOLVE",
    "Numbers",
    "bind",
    "called_by",
    "computed",
    "equations_of",
    "has_numbers",
    "in_a_row",
    "joined",
    "programs_called",
    "run_numbers",
    "split",
]

#: From this batch on numbers are faster than small arrays: each is an array of all samples.
BATCH = 256
#: Nested programs that are read as if they stood where they are called.
CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vmap_call": "call",
}
#: It evaluates one of the programs that it holds.
LINEAR_SOLVE = "custom_linear_solve"
#: Moves that compute something.
SUMS = frozenset(
    """
    reduce_sum reduce_prod reduce_or reduce_and reduce_max reduce_min argmax argmin cumsum cumprod
    scatter-add scatter-mul sort
    """.split()  # noqa: SIM905
)
POINTWISE = frozenset(
    """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e
    bitcast_convert_type cbrt ceil clamp complex conj convert_element_type copy cos cosh digamma
    div eq erf erf_inv erfc exp exp2 expm1 floor ge gt imag integer_pow is_finite le lgamma log
    log1p logistic lt max min mul ne neg nextafter not or polynomial pow real reduce_precision
    rem round rsqrt select_n sign sin sinh sqrt square stop_gradient sub tan tanh xor
    """.split()  # noqa: SIM905
)

#: What a scatter makes of an entry and of what stands at its place.
COMBINED: dict[str, Callable[[Any, Any], Any]] = {
    "scatter": lambda _, entry: entry,
    "scatter-add": operator.add,
    "scatter-mul": operator.mul,
}
#: What reads or writes entries at known positions, and which of operands and results has as many.
PLACED = {"gather": -1, **dict.fromkeys(COMBINED, 2)}
#: What JAX asks of known positions: which of them count from the end, and where these are.
POSITIONS: dict[str, Callable[..., Any]] = {
    "add": lambda params, *values: np.add(*values),
    "lt": lambda params, *values: np.less(*values),
    "select_n": lambda params, which, *cases: cases[int(which)],
    "convert_element_type": lambda params, value: value.astype(params["new_dtype"]),
}
SETTLED = frozenset(POSITIONS).union(
    "broadcast_in_dim concatenate iota reshape slice squeeze stack transpose".split()  # noqa: SIM905
)
#: Most entries that are picked by known positions as numbers: more are gathered sooner.
PICKED = 256

#: An array of numbers: a numpy array of objects.
Numbers = np.ndarray
#: Carries an equation out on numbers.
Apply = Callable[[Any, Sequence[Any]], list[Any]]


def bind(equation: Any, values: Sequence[Any]) -> list[Any]:
    """What an equation makes of arrays."""
    params = equation.primitive.get_bind_params(equation.params)
    result = equation.primitive.bind(*values, **params)
    return list(result) if equation.primitive.multiple_results else [result]


def split(value: Any, steps: int = 0) -> Numbers:
    """The numbers of an array, whose first `steps` axes are left to them."""
    array = jnp.asarray(value)
    shape = array.shape[steps:]
    together = lax.reshape(array, (*array.shape[:steps], math.prod(shape)))
    numbers = np.empty(math.prod(shape), object)
    for k in range(numbers.size):
        numbers[k] = lax.index_in_dim(together, k, axis=steps, keepdims=False)
    return numbers.reshape(shape)


def joined(numbers: Numbers, steps: int = 0) -> Any:
    """The array of numbers that have `steps` axes of their own, which become the first."""
    together = jnp.stack(list(numbers.ravel()), axis=steps)
    return lax.reshape(together, (*together.shape[:steps], *numbers.shape))


def in_a_row(numbers: Numbers, dtype: Any) -> list[Any]:
    """All numbers in a row, in a dtype."""
    return [number.astype(dtype) for number in numbers.ravel()]


def has_numbers(name: str, params: Mapping[str, Any], types: Sequence[Any]) -> bool:
    """Whether a primitive has a form in numbers, with all that it calls.

    Args:
        name: of the primitive.
        params: its parameters.
        types: of its operands, with a shape and a dtype.
    """
    called = called_by(name, params)
    if called is not None:
        inner = called.program.jaxpr
        return not inner.effects and all(
            has_numbers(e.primitive.name, e.params, [atom.aval for atom in e.invars])
            for e in inner.eqns
        )
    if name == "argmax" and types[0].dtype == np.bool_:
        return True
    if name in WRITTEN_OUT and name not in PLACED:
        return is_written_out(name, params, types)
    if name == "scatter" and params["update_jaxpr"] is not None:
        return False  # it applies a function to the operand's entries
    return name in POINTWISE or name in MOVES


class Called(NamedTuple):
    """A program that an equation evaluates, a closed jaxpr, and what it is given."""

    program: Any
    operands: Sequence[Any]


def called_by(name: str, params: Mapping[str, Any], operands: Sequence[Any] = ()) -> Called | None:
    """What an equation calls, if it is read as if that stood in its place."""
    if name == LINEAR_SOLVE:  # by its constants and its right sides
        lengths = params["const_lengths"]
        first = lengths.matvec + lengths.vecmat
        own = [*operands[first : first + lengths.solve], *operands[sum(lengths) :]]
        return Called(params["jaxprs"].solve, own)
    return Called(params[CALLS[name]], operands) if name in CALLS else None


def programs_called(jaxpr: Any) -> list[Any]:
    """The jaxprs that a program's equations call."""
    found = (called_by(equation.primitive.name, equation.params) for equation in jaxpr.eqns)
    return [called.program.jaxpr for called in found if called is not None]


def equations_of(jaxpr: Any) -> int:
    """How many equations a program has, with those of what it calls."""
    return len(jaxpr.eqns) + sum(map(equations_of, programs_called(jaxpr)))


def computed(jaxpr: Any) -> int:
    """Numbers that a program computes; negative where it has no form in numbers."""
    total = sum(math.prod(variable.aval.shape) for variable in jaxpr.constvars)
    known = {*jaxpr.constvars}
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name in SETTLED and all(
            (hasattr(atom, "val") or atom in known) and _is_position(atom.aval.dtype)
            for atom in equation.invars
        ):
            known.update(v for v in equation.outvars if _is_position(v.aval.dtype))
        sizes = [math.prod(atom.aval.shape) for atom in (*equation.invars, *equation.outvars)]
        types = [atom.aval for atom in equation.invars]
        if min(sizes, default=0) == 0 or not has_numbers(name, equation.params, types):
            return -1
        if name == "bitcast_convert_type" and sizes[0] != sizes[-1]:
            return -1  # a number is several
        moving = False
        if name in PLACED:
            places = equation.invars[1]
            moving = not (hasattr(places, "val") or places in known)
            if sizes[PLACED[name]] > PICKED:
                return -1
            if moving and not (name == "gather" and is_written_out(name, equation.params, types)):
                return -1
        called = called_by(name, equation.params)
        if called is not None:
            inside = computed(called.program.jaxpr)
            if inside < 0:
                return -1
            total += inside
        elif name == "dot_general":
            if _is_mixed(equation):
                return -1
            total += _products(equation)
        elif name in FACTORS or moving:
            total += factor_operations(types)
        elif name in SUMS:
            total += sizes[0]
        elif name not in MOVES:
            total += sizes[-1]
    return total


def _is_position(dtype: Any) -> bool:
    """Whether numbers of a dtype count or choose."""
    return dtypes.issubdtype(dtype, np.integer) or dtypes.issubdtype(dtype, np.bool_)


def _is_mixed(equation: Any) -> bool:
    """Whether it is the backend's what a product's operands become before they are multiplied."""
    types = {atom.aval.dtype for atom in equation.invars}
    if len(types) > 1 and equation.params["preferred_element_type"] is None:
        return True
    return _is_position(equation.outvars[0].aval.dtype) and not all(map(_is_position, types))


def _products(equation: Any) -> int:
    left, out = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    return math.prod(out) * math.prod(left[d] for d in equation.params["dimension_numbers"][0][0])


def _known(values: np.ndarray) -> Numbers:
    return filled(values.shape, iter(values.ravel()))


def run_numbers(
    jaxpr: Any, consts: Sequence[Any], args: Sequence[Numbers], apply: Apply = bind
) -> list[Numbers]:
    """Runs a program number by number.

    Args:
        jaxpr: the program; all of its primitives have a form in numbers (see `computed`).
        consts: its constants, as arrays.
        args: its arguments, as numbers.
        apply: carries a pointwise equation out on numbers.
    """
    given = [*(_known(np.asarray(value)) for value in consts), *args]
    held = dict(zip([*jaxpr.constvars, *jaxpr.invars], given, strict=True))

    def read(atom: Any) -> Numbers:
        if not hasattr(atom, "val"):
            return held[atom]
        return _known(np.asarray(atom.val, atom.aval.dtype))

    for equation in jaxpr.eqns:
        operands = [read(atom) for atom in equation.invars]
        name, params = equation.primitive.name, equation.params
        called = called_by(name, params, operands)
        if called is not None:
            inner = called.program
            results = run_numbers(inner.jaxpr, inner.consts, called.operands, apply)
        elif name in POINTWISE:
            shape = equation.outvars[0].aval.shape
            spread = [np.broadcast_to(operand, shape).ravel() for operand in operands]
            found = (_applied(equation, p, apply) for p in zip(*spread, strict=True))
            results = [filled(shape, found)]
        else:
            results = _several(MOVES[name](params, *operands))
        # What pointwise operations read is repeated: another shape would be other numbers.
        for variable, result in zip(equation.outvars, results, strict=True):
            assert result.shape == variable.aval.shape, f"{name}: {result.shape}"
        held.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _applied(equation: Any, values: Sequence[Any], apply: Apply) -> Any:
    """A pointwise equation of numbers, carried out at once where it makes known positions."""
    settle = POSITIONS.get(equation.primitive.name)
    known = all(isinstance(value, np.integer | np.bool_) for value in values)
    if settle is not None and known and _is_position(equation.outvars[0].aval.dtype):
        return settle(equation.params, *values)
    return apply(equation, values)[0]


def _broadcast(params: dict[str, Any], operand: Numbers) -> Numbers:
    shape = [1] * len(params["shape"])
    for d, e in enumerate(params["broadcast_dimensions"]):
        shape[e] = operand.shape[d]
    return np.broadcast_to(operand.reshape(shape), params["shape"])


def _counting(params: dict[str, Any]) -> Numbers:
    shape, axis = params["shape"], params["dimension"]
    along = [-1 if d == axis else 1 for d in range(len(shape))]
    steps = np.arange(shape[axis]).astype(params["dtype"]).reshape(along)
    return _known(np.broadcast_to(steps, shape))


def _slice(params: dict[str, Any], operand: Numbers) -> Numbers:
    starts, limits = params["start_indices"], params["limit_indices"]
    strides = params["strides"] or (1,) * operand.ndim
    return operand[tuple(map(slice, starts, limits, strides))]


def _first(params: dict[str, Any], operand: Numbers) -> Numbers:
    """The position of the first that is true, or 0."""
    (axis,), dtype = params["axes"], np.dtype(params["index_dtype"])
    rows = np.moveaxis(operand, axis, -1)
    found = np.empty(rows.shape[:-1], object)
    for index in np.ndindex(found.shape):
        place: Any = dtype.type(0)
        for k in range(rows.shape[-1] - 1, 0, -1):
            place = chosen(rows[index][k], place, dtype.type(k))
        found[index] = chosen(rows[index][0], place, dtype.type(0))
    return found


def _largest(params: dict[str, Any], operand: Numbers) -> Numbers:
    form = _first if operand.flat[0].dtype == np.bool_ else WRITTEN_OUT["argmax"]
    result: Numbers = form(params, operand)
    return result


def _gathered(params: dict[str, Any], operand: Numbers, places: Numbers) -> Numbers:
    known = all(is_known(place) for place in places.ravel())
    form = gathered if known else WRITTEN_OUT["gather"]
    result: Numbers = form(params, operand, places)
    return result


def _folded(name: str, of: Callable[[Any, Any], Any]) -> Callable[..., Numbers]:
    """A reduction: pair by pair what an equation of a name does to two numbers."""

    def both(first: Any, second: Any) -> Any:
        if isinstance(first, np.bool_) or isinstance(second, np.bool_):
            known, other = (first, second) if is_known(first) else (second, first)
            return known if bool(known) == (name in ("or", "max")) else other
        return carried_out(name, of, (first, second), first.dtype)

    def folded(params: dict[str, Any], operand: Numbers) -> Numbers:
        axes = params["axes"]
        rows = np.moveaxis(operand, axes, range(operand.ndim - len(axes), operand.ndim))
        kept = rows.shape[: operand.ndim - len(axes)]
        found = (functools.reduce(both, row) for row in rows.reshape(math.prod(kept), -1))
        return filled(kept, found)

    return folded


def _cumulated(of: np.ufunc, params: dict[str, Any], operand: Numbers) -> Numbers:
    axis = params["axis"]
    if params["reverse"]:
        return np.flip(of.accumulate(np.flip(operand, axis), axis), axis)
    result: Numbers = of.accumulate(operand, axis)
    return result


def _pad(params: dict[str, Any], operand: Numbers, value: Numbers) -> Numbers:
    for axis, (low, high, inside) in enumerate(params["padding_config"]):
        size = operand.shape[axis]
        spread = (size - 1) * (inside + 1) + 1
        shape = list(operand.shape)
        shape[axis] = spread + max(low, 0) + max(high, 0)
        padded = np.empty(shape, object)
        padded[...] = value[()]
        first = max(low, 0)
        places = [slice(None)] * operand.ndim
        places[axis] = slice(first, first + spread, inside + 1)
        padded[tuple(places)] = operand
        places[axis] = slice(max(-low, 0), shape[axis] - max(-high, 0))
        operand = padded[tuple(places)]
    return operand


def _product(params: dict[str, Any], left: Numbers, right: Numbers) -> Numbers:
    (over_left, over_right), (batch_left, batch_right) = params["dimension_numbers"]
    wanted = np.dtype(params["preferred_element_type"] or left.flat[0].dtype)
    # Booleans are neither added nor multiplied: they are counted.
    counted = np.dtype(np.int32) if wanted == np.bool_ else wanted
    left, right = (filled(n.shape, iter(in_a_row(n, counted))) for n in (left, right))
    own_left = [d for d in range(left.ndim) if d not in (*over_left, *batch_left)]
    own_right = [d for d in range(right.ndim) if d not in (*over_right, *batch_right)]
    left = left.transpose(*batch_left, *own_left, *over_left)
    right = right.transpose(*batch_right, *over_right, *own_right)
    batch = left.shape[: len(batch_left)]
    shape = (*batch, *left.shape[len(batch) : len(batch) + len(own_left)])
    shape += right.shape[right.ndim - len(own_right) :]
    summed = math.prod(left.shape[left.ndim - len(over_left) :])
    left = left.reshape(*batch, -1, summed)
    right = right.reshape(*batch, summed, -1)
    # One by one: over a stack NumPy goes on with the next one where a product of numbers raised.
    product = np.empty((*batch, left.shape[-2], right.shape[-1]), object)
    for index in np.ndindex(batch):
        product[index] = left[index] @ right[index]
    product = product.reshape(shape)
    return product if counted == wanted else filled(shape, iter(in_a_row(product, wanted)))


def _apart(params: dict[str, Any], operand: Numbers) -> list[Numbers]:
    axis = params["axis"]
    ends = list(accumulate(params["sizes"]))[:-1]
    return np.split(operand, ends, axis)


def _reshaped(params: dict[str, Any], operand: Numbers) -> Numbers:
    # `lax.reshape` may be told to take the dimensions in another order.
    order = params.get("dimensions")
    turned = operand if order is None else operand.transpose(order)
    return turned.reshape(params["new_sizes"])


def _several(result: Any) -> list[Numbers]:
    """Results of a move as arrays of numbers: what numpy takes out of an array of one is bare."""
    found = result if isinstance(result, list) else [result]
    return [n if isinstance(n, np.ndarray) else filled((), iter([n])) for n in found]


#: What moves numbers, adds or multiplies them.
MOVES: dict[str, Callable[..., Any]] = {
    **WRITTEN_OUT,
    "argmax": _largest,
    "broadcast_in_dim": _broadcast,
    "cumprod": functools.partial(_cumulated, np.multiply),
    "cumsum": functools.partial(_cumulated, np.add),
    "concatenate": lambda params, *parts: np.concatenate(parts, params["dimension"]),
    "dot_general": _product,
    "gather": _gathered,
    "pad": _pad,
    "iota": lambda params: _counting(params),
    "optimization_barrier": lambda params, *operands: list(operands),  # keeps arrays apart
    "reduce_and": _folded("and", lax.bitwise_and),
    "reduce_max": _folded("max", lax.max),
    "reduce_min": _folded("min", lax.min),
    "reduce_or": _folded("or", lax.bitwise_or),
    "reduce_sum": lambda params, operand: operand.sum(tuple(params["axes"])),
    "reduce_prod": lambda params, operand: operand.prod(tuple(params["axes"])),
    "reshape": _reshaped,
    **{name: functools.partial(combined, combine=f) for name, f in COMBINED.items()},
    "rev": lambda params, operand: np.flip(operand, params["dimensions"]),
    "slice": _slice,
    "split": _apart,
    "stack": lambda params, *parts: np.stack(parts, params["axis"]),
    "squeeze": lambda params, operand: operand.squeeze(tuple(params["dimensions"])),
    "unstack": lambda params, operand: list(np.moveaxis(operand, params["axis"], 0)),
    "transpose": lambda params, operand: operand.transpose(params["permutation"]),
}
