"""Tracing a user's function to a jaxpr, with JAX's conventions for arguments and results.

Differentiated arguments and array-valued others become inputs of the jaxpr. Python integers,
booleans, strings and other objects are static, as they are under `jax.jacrev`: they may decide
shapes and branches. Floats and numpy arrays are inputs too. Where the function needs values, it is
traced again with what it computes from constants evaluated, then with all of these static.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import dtypes, tree_util
from jax.extend import source_info_util

from ..errors import InvalidArgumentError, InvalidTypeError
from .meshes import automatic, explicit_mesh, holds_explicit_axes
from .places_on_axes import with_places_given
from .powers_in_bodies import with_known_powers
from .varying import holds_varying, unvarying

__all__ = [
    "Traced",
    "check_all_complex",
    "check_callable",
    "check_flags",
    "check_integer",
    "check_number",
    "is_traced",
    "normalized_argnums",
    "trace",
]

# What JAX says about a line of code is about the user's, not about those that call it from here.
source_info_util.register_exclusion(os.path.dirname(os.path.dirname(__file__)) + os.sep)

#: The position of an input that is not an argument's.
NO_ARGUMENT = -1

_CONCRETE_NEEDED = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
_VALUES_NEEDED = (
    "graphax_lapl traces the function, as jax.jit does: what depends on a differentiated argument, "
    "or on one that a transformation around this call traces, has no value while Python runs. "
    "jax.lax.cond and jnp.where branch on such values."
)
#: How a function is traced, the next way where it asks for values: whether what it computes from
#: constants is evaluated at once, and whether the arguments that are not differentiated are
#: constants. Each makes more programs different ones, which are planned and compiled anew.
_WAYS = ((False, False), (True, False), (True, True))


@dataclass
class Traced:
    """A traced function.

    Attributes:
        name: the function's name, for messages.
        closed: the closed jaxpr; its inputs are `leaves`, its outputs the value's leaves followed
            by the array leaves of the auxiliary output.
        plain: the same without explicit mesh axes, and of arrays that do not vary along manual
            ones: what plans and programs are made of.
        mesh: the mesh with explicit axes that the arrays lie on; None without.
        varies: whether arrays vary along manual axes.
        leaves: the input values, in order.
        differentiated: for each input whether derivatives with respect to it are asked for.
        positions: for each input the position of its argument; keyword arguments follow. For a
            place along a mapped axis `NO_ARGUMENT`.
        argnums: normalised positions of the differentiated arguments.
        single: whether `argnums` was an integer.
        in_trees: for each differentiated argument its tree.
        in_leaves: for each leaf of these, in the order of the arguments, None, or the type of an
            integer or boolean one: it has no derivative, and is none of the differentiated leaves.
        out_tree: tree of the value.
        n_out: number of leaves of the value.
        aux: rebuilds the auxiliary output from its array leaves (None without one).
    """

    name: str
    closed: Any
    plain: Any
    mesh: Any
    varies: bool
    leaves: list[Any]
    differentiated: list[bool]
    positions: list[int]
    argnums: tuple[int, ...]
    single: bool
    in_trees: list[Any]
    in_leaves: list[Any]
    out_tree: Any
    n_out: int
    aux: Callable[[Sequence[Any]], Any] | None

    @property
    def in_types(self) -> list[Any]:
        """Abstract values of the differentiated inputs."""
        pairs = zip(self.closed.jaxpr.invars, self.differentiated, strict=True)
        return [variable.aval for variable, moves in pairs if moves]


def is_traced(value: Any) -> bool:
    """Whether a value is one of a transformation under way (`jit`, `vmap`, `grad`, ...)."""
    if not isinstance(value, jax.Array):
        return False
    try:
        _ = value.is_fully_addressable
        return False
    except jax.errors.ConcretizationTypeError:
        return True


def check_callable(fun: Any) -> None:
    """Raise `InvalidTypeError` unless `fun` can be called."""
    if not callable(fun):
        raise InvalidTypeError(
            f"fun must be a function of arrays, got {type(fun).__name__}. Pass the function "
            "itself, not its result."
        )


def check_flags(**flags: Any) -> None:
    """Raise `InvalidTypeError` unless all are True or False: "no" would be taken for True."""
    for name, flag in flags.items():
        if not isinstance(flag, bool | np.bool_):
            raise InvalidTypeError(
                f"{name} must be True or False, got {type(flag).__name__} {flag!r}."
            )


def check_integer(name: str, value: Any, least: int) -> None:
    """Raise `InvalidArgumentError` unless `value` is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InvalidArgumentError(f"{name} must be an integer of at least {least}, got {value!r}.")


def check_number(name: str, value: Any) -> None:
    """Raise `InvalidArgumentError` unless `value` is a positive number."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not value > 0:
        raise InvalidArgumentError(f"{name} must be a positive number, got {value!r}.")


def normalized_argnums(
    argnums: int | Sequence[int], count: int, name: str
) -> tuple[tuple[int, ...], bool]:
    """Positions of the differentiated arguments as non-negative integers, and whether it is one.

    Raises:
        InvalidArgumentError: if one is out of range or repeated.
        InvalidTypeError: if one is not an integer.
    """
    single = not isinstance(argnums, tuple | list)
    wanted: tuple[Any, ...] = tuple(argnums) if isinstance(argnums, tuple | list) else (argnums,)
    positions = []
    for number in wanted:
        try:
            index = operator.index(number)
        except TypeError:  # an array of several has a method of that name too
            index = None
        if index is None or isinstance(number, bool):
            raise InvalidTypeError(
                f"argnums must be an integer or a tuple of integers, got {argnums!r}."
            )
        if not count:
            raise InvalidArgumentError(
                f"argnums={argnums!r} is out of range: {name} was called without positional "
                "arguments. Pass what is differentiated by position: jacve(fun)(x), but "
                "make_plan(fun, x)."
            )
        if not -count <= index < count:
            raise InvalidArgumentError(
                f"argnums={argnums!r} is out of range: {name} was called with {count} positional "
                f"argument{'s' * (count != 1)}. Pass the argument by position, or choose argnums "
                f"between {-count} and {count - 1}."
            )
        positions.append(index % count)
    if len(set(positions)) < len(positions):
        raise InvalidArgumentError(f"argnums={argnums!r} names an argument twice.")
    return tuple(positions), single


def trace(
    fun: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    allow_int: bool = False,
) -> Traced:
    """Trace `fun(*args, **kwargs)`; arrays may also be tracers or `jax.ShapeDtypeStruct`.

    With `allow_int` arguments at argnums may hold integers and booleans, which are not moved.

    Raises:
        InvalidArgumentError: for argnums out of range, or differentiated arguments without arrays.
        InvalidTypeError: for inputs or outputs that cannot be differentiated.
    """
    name = getattr(fun, "__name__", type(fun).__name__)
    check_callable(fun)
    positions, single = normalized_argnums(argnums, len(args), name)
    if not tree_util.tree_leaves([args[position] for position in positions]):
        where = " and ".join(_parameter_name(fun, position) for position in positions)
        raise InvalidArgumentError(
            f"{name} has no arrays to differentiate with respect to: {where or 'argnums'} "
            f"{'are' if len(positions) > 1 else 'is'} empty (argnums={argnums!r}). Choose other "
            "argnums."
        )
    for position in positions:
        _check_inputs(args[position], position, fun, name, allow_int)
    traced = functools.partial(_trace, fun, name, args, kwargs, positions, single, has_aux)
    *earlier, last = _WAYS
    for way in earlier:
        with contextlib.suppress(*_CONCRETE_NEEDED):
            return traced(*way)
    try:
        return traced(*last)
    except _CONCRETE_NEEDED as error:
        error.add_note(_VALUES_NEEDED)
        raise


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | jax.ShapeDtypeStruct | np.ndarray | np.generic)


def _dtype_of(leaf: Any) -> Any:
    """As JAX takes it: Python numbers and NumPy's are narrower without double precision."""
    dtype = getattr(leaf, "dtype", None) or np.asarray(leaf).dtype
    return dtype if dtypes.issubdtype(dtype, dtypes.extended) else dtypes.canonicalize_dtype(dtype)


def _is_moving(leaf: Any, all_static: bool) -> bool:
    """Whether a leaf that is not differentiated becomes an input of the jaxpr."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return True
    if isinstance(leaf, jax.Array):
        return not all_static or is_traced(leaf)
    if all_static:
        return False
    if isinstance(leaf, np.ndarray | np.generic):
        return bool(dtypes.issubdtype(leaf.dtype, np.number) or leaf.dtype == np.bool_)
    return isinstance(leaf, float | complex)


def _trace(
    fun: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    positions: tuple[int, ...],
    single: bool,
    has_aux: bool,
    evaluated: bool,
    all_static: bool,
) -> Traced:
    leaves: list[Any] = []
    differentiated: list[bool] = []
    origins: list[int] = []
    in_trees: dict[int, Any] = {}
    in_leaves: list[Any] = []
    rebuild: list[Callable[[Sequence[Any]], Any]] = []
    keys = sorted(kwargs)
    for position, arg in enumerate((*args, *(kwargs[key] for key in keys))):
        flat, tree = tree_util.tree_flatten(arg)
        chosen = position in positions
        moving = [chosen or _is_moving(leaf, all_static) for leaf in flat]
        places = []
        for leaf, moves in zip(flat, moving, strict=True):
            places.append(len(leaves) if moves else None)
            if moves:
                still = chosen and _is_integer(_dtype_of(leaf))
                leaves.append(leaf)
                differentiated.append(chosen and not still)
                origins.append(position)
                if chosen:
                    in_leaves.append(
                        jax.ShapeDtypeStruct(np.shape(leaf), _dtype_of(leaf)) if still else None
                    )
        if chosen:
            in_trees[position] = tree
        rebuild.append(_rebuilder(flat, places, tree))
    seen: dict[str, Any] = {}

    def flat_fun(*values: Any) -> list[Any]:
        whole = [make(values) for make in rebuild]
        named = dict(zip(keys, whole[len(args) :], strict=True))
        with jax.ensure_compile_time_eval() if evaluated else contextlib.nullcontext():
            result = fun(*whole[: len(args)], **named)
        aux_arrays: list[Any] = []
        if has_aux:
            if not isinstance(result, tuple) or len(result) != 2:
                raise InvalidTypeError(
                    f"has_aux=True: {name} must return a pair (value, aux), got "
                    f"{_described(result)}. Return such a pair, or leave out has_aux."
                )
            result, aux = result
            seen["aux"], aux_arrays = _split_aux(aux)
        outputs, seen["out_tree"] = tree_util.tree_flatten_with_path(result)
        for path, leaf in outputs:
            _check_output(leaf, path, name)
        seen["n_out"] = len(outputs)
        return [leaf for _, leaf in outputs] + aux_arrays

    closed = with_known_powers(
        jax.make_jaxpr(_named_after(fun, flat_fun, args, keys, origins))(*leaves)
    )
    closed, places = with_places_given(closed)
    leaves += places
    differentiated += [False] * len(places)
    origins += [NO_ARGUMENT] * len(places)
    types = [variable.aval for variable in (*closed.jaxpr.constvars, *closed.jaxpr.invars)]
    _check_sizes(types, name)
    for k, variable in enumerate(closed.jaxpr.outvars[: seen["n_out"]]):
        if not dtypes.issubdtype(variable.aval.dtype, np.inexact):
            raise InvalidTypeError(
                f"Output leaf {k} of {name} has dtype {variable.aval.dtype}; only real or complex "
                "floating-point outputs can be differentiated. Return it through has_aux=True, or "
                "convert it with .astype(float)."
            )
    mesh = explicit_mesh(types)
    is_plain = mesh is None and not holds_explicit_axes(closed.jaxpr)
    plain = closed if is_plain else automatic(closed, mesh)
    varies = holds_varying(plain.jaxpr)
    return Traced(
        name,
        closed,
        unvarying(plain) if varies else plain,
        mesh,
        varies,
        leaves,
        differentiated,
        origins,
        positions,
        single,
        [in_trees[position] for position in positions],
        in_leaves,
        seen["out_tree"],
        seen["n_out"],
        seen.get("aux"),
    )


def check_all_complex(traced: Traced) -> None:
    """Raise `InvalidTypeError` unless all differentiated inputs and all outputs are complex."""
    outputs = [variable.aval for variable in traced.closed.jaxpr.outvars[: traced.n_out]]
    integers = [aval for aval in traced.in_leaves if aval is not None]
    for what, types in (("input", [*traced.in_types, *integers]), ("output", outputs)):
        for aval in types:
            if not dtypes.issubdtype(aval.dtype, np.complexfloating):
                raise InvalidTypeError(
                    f"holomorphic=True: {traced.name} must map complex inputs to complex outputs, "
                    f"got an {what} of dtype {aval.dtype}. Convert it with .astype(complex), or "
                    "leave out holomorphic."
                )


def _named_after(
    fun: Callable[..., Any],
    flat: Callable[..., Any],
    args: tuple[Any, ...],
    keys: Sequence[str],
    origins: Sequence[int],
) -> Callable[..., Any]:
    """The function of all leaves, which JAX's messages call by the name and the line of the user's.

    Args:
        fun: the user's function.
        flat: a function of leaves.
        args: the positional arguments of `fun`.
        keys: the names of its keyword arguments.
        origins: for each leaf the position of its argument.
    """
    try:
        parameters = [*inspect.signature(fun).parameters.values()][: len(args)]
        if len(parameters) < len(args) or any(p.kind == p.VAR_POSITIONAL for p in parameters):
            raise TypeError("some arguments have no name")
        names = [*(parameter.name for parameter in parameters), *keys]
        counts, seen, called = Counter(origins), Counter[int](), []
        for position in origins:
            number = f"_{seen[position]}" if counts[position] > 1 else ""
            called.append(f"{names[position]}{number}")
            seen[position] += 1
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        signature = inspect.Signature([inspect.Parameter(name, kind) for name in called])
    except (TypeError, ValueError):  # written in C, or a name twice, or one that is none in Python
        rest = inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)
        signature = inspect.Signature([rest])
    while isinstance(fun, functools.partial):
        fun = fun.func
    has_lines = hasattr(inspect.unwrap(fun), "__code__")
    flat.__wrapped__ = fun if has_lines else fun.__call__  # type: ignore[attr-defined, operator]
    flat.__signature__ = signature  # type: ignore[attr-defined]
    return flat


def _described(result: Any) -> str:
    """What a function returned, in the words of who wrote it: while tracing arrays are tracers."""
    if isinstance(result, jax.Array):
        return f"one array of shape {result.shape}"
    count = f" of {len(result)}" if isinstance(result, tuple | list | dict) else ""
    return f"a {type(result).__name__}{count}"


def _rebuilder(
    flat: list[Any], places: list[int | None], tree: Any
) -> Callable[[Sequence[Any]], Any]:
    def make(values: Sequence[Any]) -> Any:
        return tree_util.tree_unflatten(
            tree,
            [
                leaf if place is None else values[place]
                for leaf, place in zip(flat, places, strict=True)
            ],
        )

    return make


def _split_aux(aux: Any) -> tuple[Callable[[Sequence[Any]], Any], list[Any]]:
    """Separate the JAX arrays of an auxiliary output, which may hold anything.

    Numbers and NumPy's arrays do not depend on what is traced, and are returned as they are.
    """
    flat, tree = tree_util.tree_flatten(aux)
    is_value = [isinstance(leaf, jax.Array) for leaf in flat]
    arrays = [leaf for leaf, moves in zip(flat, is_value, strict=True) if moves]

    def rebuild(values: Sequence[Any]) -> Any:
        moving = iter(values)
        return tree_util.tree_unflatten(
            tree,
            [next(moving) if m else leaf for leaf, m in zip(flat, is_value, strict=True)],
        )

    return rebuild, arrays


def _parameter_name(fun: Callable[..., Any], position: int) -> str:
    try:
        names = list(inspect.signature(fun).parameters)
    except (TypeError, ValueError):
        return f"argument {position}"
    return (
        f"argument {position} ({names[position]!r})"
        if position < len(names)
        else f"argument {position}"
    )


def _check_inputs(
    arg: Any, position: int, fun: Callable[..., Any], name: str, allow_int: bool
) -> None:
    def place(path: Any) -> str:
        return f"{_parameter_name(fun, position)}{tree_util.keystr(path)}"

    for path, leaf in tree_util.tree_flatten_with_path(arg)[0]:
        if not (_is_array(leaf) or isinstance(leaf, bool | int | float | complex)):
            raise InvalidTypeError(
                f"{place(path)} of {name} must be an array or a number, got {type(leaf).__name__}. "
                "Choose another argnums, or pass the arrays alone and put the rest back inside the "
                "function."
            )
        dtype = _dtype_of(leaf)
        if not dtypes.issubdtype(dtype, np.inexact) and not (allow_int and _is_integer(dtype)):
            convert = "Convert it (for example with jnp.asarray(x, float)), or leave"
            advice = convert if _is_integer(dtype) else "Leave"  # a random key is no number
            raise InvalidTypeError(
                f"{place(path)} of {name} has dtype {dtype}; derivatives are taken with respect to "
                f"real or complex floating-point inputs only. {advice} it out of "
                "argnums."
            )


def _is_integer(dtype: Any) -> bool:
    return bool(dtypes.issubdtype(dtype, np.integer) or dtype == np.bool_)


def _check_sizes(types: Sequence[Any], name: str) -> None:
    for type_ in types:
        unknown = [size for size in getattr(type_, "shape", ()) if not isinstance(size, int)]
        if unknown:
            raise InvalidArgumentError(
                f"{name} was called with an array of shape {type_.shape}, whose size {unknown[0]} "
                "is a symbol of jax.export; a plan needs numbers. Take the derivative of one "
                "sample, and export jax.vmap of it with a symbolic batch."
            )


def _check_output(leaf: Any, path: Any, name: str) -> None:
    if _is_array(leaf) or isinstance(leaf, bool | int | float | complex):
        return
    raise InvalidTypeError(
        f"Output{tree_util.keystr(path)} of {name} must be an array or a number, got "
        f"{type(leaf).__name__}. Return only arrays, or return the rest through has_aux=True."
    )
