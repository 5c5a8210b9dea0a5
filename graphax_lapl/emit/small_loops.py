"""Loops over small arrays, written as loops over single numbers.

Under `jax.vmap` a loop carries arrays `(batch, 3, 3)` whose last axis is a handful of numbers, and
a CPU works on three at a time. Carried as nine numbers each of them is `(batch,)`, and all
arithmetic goes along the batch. A single sample is better off with the arrays: nine numbers are
nine times as many kernels. So which form a loop takes is decided where its batch is known.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain, islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import dtypes, lax
from jax.custom_batching import custom_vmap

from ..rules.control_flow import scan_counts

__all__ = ["for_batches", "is_small_loop"]

#: From this batch on numbers are faster.
BATCH = 256
#: Numbers that one step of a loop takes and returns, and that it computes.
MAX_NUMBERS = 96
MAX_COMPUTED = 1024
#: Nested programs that are read as if they stood where they are called.
CALLS = frozenset({"jit", "pjit", "closed_call"})
POINTWISE = frozenset(
    """
    abs acos acosh add add_any and asin asinh atan atan2 atanh ceil clamp convert_element_type copy
    cos cosh cbrt div eq erf erfc exp exp2 expm1 floor ge gt integer_pow is_finite le log log1p
    logistic lt max min mul ne neg nextafter not or pow rem round rsqrt select_n sign sin sinh sqrt
    square stop_gradient sub tan tanh xor
    """.split()  # noqa: SIM905
)

#: An array of numbers, each of them an array with the axes of the steps, if any.
Numbers = np.ndarray


def for_batches(fun: Callable[..., Any]) -> Callable[..., Any]:
    """`fun` for every seed, under `jax.vmap` with many samples its small loops over numbers.

    Derivatives are those of `fun`. On other devices than CPUs nothing is rewritten.

    Args:
        fun: of a seed and other arrays, returning arrays. It closes over no tracers.

    Returns:
        A function of seeds, stacked along their first axis, and the other arrays.
    """

    def arrays(seeds: Any, *others: Any) -> Any:
        return jax.vmap(lambda seed: fun(seed, *others))(seeds)

    def numbers(seeds: Any, *others: Any) -> Any:
        return jax.vmap(lambda seed: _in_numbers(fun, (seed, *others)))(seeds)

    @custom_vmap
    def chosen(*args: Any) -> Any:
        return arrays(*args)

    @chosen.def_vmap
    def _(size: int, batched: list[bool], *args: Any) -> tuple[Any, Any]:
        axes = [0 if own else None for own in batched]
        call = jax.vmap(arrays, axes)
        if size >= BATCH:
            cpu = jax.vmap(numbers, axes)
            call = functools.partial(lax.platform_dependent, cpu=cpu, default=call)
        results = call(*args)
        return results, jax.tree.map(lambda _: True, results)

    differentiable = jax.custom_jvp(chosen)
    differentiable.defjvp(lambda primals, tangents: jax.jvp(arrays, primals, tangents))
    return differentiable


def is_small_loop(equation: Any) -> bool:
    """Whether an equation is a loop that `for_batches` may rewrite."""
    return bool(equation.name == "scan" and _is_small(equation.params))


def _in_numbers(fun: Callable[..., Any], args: Sequence[Any]) -> Any:
    """What a function returns, its small loops evaluated number by number."""
    closed, shapes = jax.make_jaxpr(fun, return_shape=True)(*args)
    results = _evaluate(closed.jaxpr, closed.consts, args)
    return jax.tree.unflatten(jax.tree.structure(shapes), [_array(r) for r in results])


def _evaluate(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Runs a program on arrays or `_Split`s; its results are of the same kinds."""
    held = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else held[atom]

    for equation in jaxpr.eqns:
        values = [read(atom) for atom in equation.invars]
        name = equation.primitive.name
        if name == "scan" and _is_small(equation.params):
            results = _scan(equation.params, values)
        elif name in CALLS:
            inner = equation.params["jaxpr"]
            results = _evaluate(inner.jaxpr, inner.consts, values)
        else:
            results = _bind(equation, [_array(value) for value in values])
        held.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


class _Split:
    """What a loop returns: an array as its numbers, put together when it is needed."""

    def __init__(self, numbers: Numbers, steps: int):
        """Numbers with `steps` leading axes of their own, zero or one."""
        self.numbers, self.steps = numbers, steps

    def joined(self) -> Any:
        """The array."""
        flat = jnp.stack(list(self.numbers.ravel()), axis=self.steps)
        return lax.reshape(flat, (*flat.shape[: self.steps], *self.numbers.shape))


def _array(value: Any) -> Any:
    return value.joined() if isinstance(value, _Split) else value


def _split(value: Any, steps: int) -> Numbers:
    """The numbers of an array, whose first `steps` axes are left to them."""
    if isinstance(value, _Split) and value.steps == steps:
        return value.numbers
    array = jnp.asarray(_array(value))
    shape = array.shape[steps:]
    flat = lax.reshape(array, (*array.shape[:steps], math.prod(shape)))
    numbers = np.empty(math.prod(shape), object)
    for k in range(numbers.size):
        numbers[k] = lax.index_in_dim(flat, k, axis=steps, keepdims=False)
    return numbers.reshape(shape)


def _is_small(params: dict[str, Any]) -> bool:
    """Whether a loop's steps are small enough, and hold nothing that has no form in numbers."""
    counts = scan_counts(params)
    if counts is None:
        return False
    body = params["jaxpr"].jaxpr
    types = [atom.aval for atom in (*body.invars, *body.outvars)]
    if any(dtypes.issubdtype(type_.dtype, dtypes.extended) for type_ in types):
        return False
    ends = [math.prod(type_.shape) for type_ in types]
    if not ends or min(ends) == 0 or sum(ends) > MAX_NUMBERS:
        return False
    return 0 <= _computed(body) <= MAX_COMPUTED


def _computed(jaxpr: Any) -> int:
    """Numbers that a program computes; negative where a primitive has no form in numbers."""
    total = 0
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name in CALLS:
            inside = _computed(equation.params["jaxpr"].jaxpr)
            if inside < 0:
                return -1
            total += inside
        elif name not in POINTWISE and name not in MOVES:
            return -1
        sizes = [math.prod(atom.aval.shape) for atom in (*equation.invars, *equation.outvars)]
        if min(sizes) == 0:
            return -1
        total += sum(math.prod(variable.aval.shape) for variable in equation.outvars)
        if name == "dot_general":
            total += _products(equation)
    return total


def _products(equation: Any) -> int:
    left, out = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    return math.prod(out) * math.prod(left[d] for d in equation.params["dimension_numbers"][0][0])


def _scan(params: dict[str, Any], values: Sequence[Any]) -> list[_Split]:
    """A loop that carries numbers."""
    counts = scan_counts(params)
    assert counts is not None
    constants, carries = counts
    closed = params["jaxpr"]
    types = [variable.aval for variable in closed.jaxpr.invars]
    fixed = [_split(value, 0) for value in values[:constants]]
    start = [_split(value, 0) for value in values[constants : constants + carries]]
    stacked = [_split(value, 1) for value in values[constants + carries :]]
    shapes = [type_.shape for type_ in types[constants:]]

    def step(carried: list[Any], moved: list[Any]) -> tuple[list[Any], list[Any]]:
        own = [*_regroup(carried, shapes[:carries]), *_regroup(moved, shapes[carries:])]
        out = _numbers(closed.jaxpr, closed.consts, [*fixed, *own])
        types = [atom.aval for atom in closed.jaxpr.outvars]
        flat = [_flat(n, type_.dtype) for n, type_ in zip(out, types, strict=True)]
        return list(chain(*flat[:carries])), list(chain(*flat[carries:]))

    begin = [_flat(n, t.dtype) for n, t in zip(start, types[constants:], strict=False)]
    last, kept = lax.scan(
        step,
        list(chain(*begin)),
        [number for numbers in stacked for number in numbers.ravel()],
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    ends = [atom.aval.shape for atom in closed.jaxpr.outvars]
    return [
        *(_Split(numbers, 0) for numbers in _regroup(last, ends[:carries])),
        *(_Split(numbers, 1) for numbers in _regroup(kept, ends[carries:])),
    ]


def _flat(numbers: Numbers, dtype: Any) -> list[Any]:
    return [lax.convert_element_type(number, dtype) for number in numbers.ravel()]


def _regroup(flat: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Numbers]:
    """Arrays of these shapes from all their numbers in a row."""
    own = iter(flat)
    return [_filled(shape, own) for shape in shapes]


def _filled(shape: tuple[int, ...], values: Iterator[Any]) -> Numbers:
    numbers = np.empty(math.prod(shape), object)
    for k, value in enumerate(islice(values, numbers.size)):
        numbers[k] = value
    return numbers.reshape(shape)


def _numbers(jaxpr: Any, consts: Sequence[Any], args: Sequence[Numbers]) -> list[Numbers]:
    """Runs the body of a loop number by number."""
    given = [*(_split(value, 0) for value in consts), *args]
    held = dict(zip([*jaxpr.constvars, *jaxpr.invars], given, strict=True))

    def read(atom: Any) -> Numbers:
        if not hasattr(atom, "val"):
            return held[atom]
        values = np.asarray(atom.val, atom.aval.dtype)
        return _filled(values.shape, iter(values.ravel()))

    for equation in jaxpr.eqns:
        operands = [read(atom) for atom in equation.invars]
        name, params = equation.primitive.name, equation.params
        if name in CALLS:
            inner = params["jaxpr"]
            results = _numbers(inner.jaxpr, inner.consts, operands)
        elif name in POINTWISE:
            shape = equation.outvars[0].aval.shape
            spread = [np.broadcast_to(operand, shape).ravel() for operand in operands]
            results = [_filled(shape, (_bind(equation, p)[0] for p in zip(*spread, strict=True)))]
        else:
            results = _several(MOVES[name](params, *operands))
        held.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _bind(equation: Any, values: Sequence[Any]) -> list[Any]:
    params = equation.primitive.get_bind_params(equation.params)
    result = equation.primitive.bind(*values, **params)
    return list(result) if equation.primitive.multiple_results else [result]


def _broadcast(params: dict[str, Any], operand: Numbers) -> Numbers:
    shape = [1] * len(params["shape"])
    for d, e in enumerate(params["broadcast_dimensions"]):
        shape[e] = operand.shape[d]
    return np.broadcast_to(operand.reshape(shape), params["shape"])


def _slice(params: dict[str, Any], operand: Numbers) -> Numbers:
    starts, limits = params["start_indices"], params["limit_indices"]
    strides = params["strides"] or (1,) * operand.ndim
    return operand[tuple(map(slice, starts, limits, strides))]


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
    wanted = params["preferred_element_type"]
    if wanted is not None:
        left, right = (_filled(n.shape, iter(_flat(n, wanted))) for n in (left, right))
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
    return np.matmul(left, right).reshape(shape)


def _apart(params: dict[str, Any], operand: Numbers) -> list[Numbers]:
    axis = params["axis"]
    ends = list(accumulate(params["sizes"]))[:-1]
    return np.split(operand, ends, axis)


def _several(result: Any) -> list[Numbers]:
    """Results of a move as arrays of numbers: what numpy takes out of an array of one is bare."""
    found = result if isinstance(result, list) else [result]
    return [n if isinstance(n, np.ndarray) else _filled((), iter([n])) for n in found]


#: What moves numbers, adds or multiplies them.
MOVES: dict[str, Callable[..., Any]] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda params, *parts: np.concatenate(parts, params["dimension"]),
    "dot_general": _product,
    "pad": _pad,
    "reduce_sum": lambda params, operand: operand.sum(tuple(params["axes"])),
    "reshape": lambda params, operand: operand.reshape(params["new_sizes"]),
    "rev": lambda params, operand: np.flip(operand, params["dimensions"]),
    "slice": _slice,
    "split": _apart,
    "stack": lambda params, *parts: np.stack(parts, params["axis"]),
    "squeeze": lambda params, operand: operand.squeeze(tuple(params["dimensions"])),
    "unstack": lambda params, operand: list(np.moveaxis(operand, params["axis"], 0)),
    "transpose": lambda params, operand: operand.transpose(params["permutation"]),
}
