"""Rules of users: `register_partial`, for primitives and for jitted functions.

A call of a registered function is one vertex. It is recognised by its body: the jaxpr of the call
has to be the one that the function has at these types, so that the same function seen through
`vmap` or `jvp`, which keep its name, is never mistaken for it.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import dtypes
from jax.extend.core import Primitive

from ..errors import InvalidArgumentError, InvalidTypeError
from ..graph.keys import Unstable, jaxpr_key
from ..graph.tracing import check_flags
from .dimensions import parse, split
from .opaque import is_transposable
from .registry import CALL_RULES, USER_RULES, Rule
from .site import Local, Piece, Reference, Site, shape_of

__all__ = ["register_function", "register_partial", "registry_version", "unregister_partial"]

Block = tuple[str, Any]
Partial = Callable[..., Any] | int | float | None | Block | list[Block]

_versions = itertools.count(1)
_version = [0]


def registry_version() -> int:
    """Changes with every registration: plans are remembered for one state of the rules."""
    return _version[0]


def register_partial(
    target: Any,
    partials: Any = None,
    *,
    linear: bool = False,
    bilinear: bool = False,
    dimensions: str | Sequence[str] | None = None,
    second_partials: Mapping[tuple[int, int], Block] | None = None,
) -> None:
    """Register the local partials of a primitive, or of a function that is called through `jit`.

    The target then is one vertex, and its partials are what is given here. Exactly one of
    `partials`, `linear` and `bilinear` says what they are.

    `partials` has one entry per operand (an entry alone will do for a single operand):

    * None: no derivative flows.
    * a number, or a function that returns an array of the output's shape (or a scalar): the target
      is elementwise in this operand, and this is the diagonal.
    * `("b i -> b o", function)`: a block. Dimensions of the operand and of the output are named; a
      name on both sides is diagonal, `...` stands for leading dimensions, diagonal too; the
      function returns an array with the dimensions of the output, then the operand's own: here
      `b o i`. A number instead of the function: a constant.
    * a list of blocks: their sum, which is not multiplied out.

    Functions are called with the operands; a parameter named `out` receives the result instead,
    and one named `params` the primitive's parameters. Names of the others do not matter, and one
    may stop early: `lambda x: ...` is given the first operand only.

    Args:
        target: a `jax.extend.core.Primitive` with one result, or a function of arrays (positional)
            that returns one array and is called through `jax.jit`: the function itself, or the
            jitted one.
        partials: the partials, as above.
        linear: the target is linear in all operands together: its derivative is the target itself,
            applied to the tangents.
        bilinear: the target is linear in every operand for itself: its derivative is the target
            with the tangent in the place of one operand.
        dimensions: with linear or bilinear: for each operand a pattern like "... i -> ... o" that
            says along which dimensions it acts on each entry for itself. Default: along none.
        second_partials: second derivatives for `partials` that are blocks:
            `{(0, 1): ("b i, b j -> b o", function)}`, with an array of dimensions `b o i j`. The
            mirrored pair is filled in; pairs that are not named are zero. Without it, second
            derivatives of blocks are JAX's own of the target; those of elementwise partials are
            derived from the given functions.

    Raises:
        InvalidTypeError: for a target that is neither, or partials of an unknown kind.
        InvalidArgumentError: for contradicting arguments or patterns; when the target is
            differentiated, for partials of a wrong number, shape or dtype.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from graphax_lapl import jacve, register_partial
        >>> @jax.jit
        ... def cube(x):
        ...     return x * x * x
        >>> register_partial(cube, lambda x: 3 * x**2)
        >>> print(jacve(cube)(2.0))
        12.0
    """
    check_flags(linear=linear, bilinear=bilinear)
    if not (second_partials is None or isinstance(second_partials, Mapping)):
        raise InvalidTypeError(
            "second_partials must be a mapping from pairs of operands to blocks, got "
            f"{type(second_partials).__name__}."
        )
    given = [partials is not None, linear, bilinear]
    if sum(given) != 1:
        raise InvalidArgumentError(
            "register_partial takes exactly one of partials, linear=True and bilinear=True, got "
            f"{sum(given)}."
        )
    if dimensions is not None and partials is not None:
        raise InvalidArgumentError(
            "dimensions goes with linear or bilinear; a block of partials says its own."
        )
    name = str(getattr(target, "name", None) or getattr(target, "__name__", repr(target)))
    if partials is None:
        patterns = (dimensions,) if isinstance(dimensions, str) else tuple(dimensions or ())
        for pattern in patterns:
            split(pattern, 1)
        rule: Rule = _Slots(name, "joint" if linear else "each", patterns)
    else:
        entries = tuple(partials) if _is_sequence_of_partials(partials) else (partials,)
        for entry in entries:
            _check_entry(entry, name)
        for block in (second_partials or {}).values():
            split(block[0], 2)
        rule = _Partials(name, entries, dict(second_partials) if second_partials else None)
    if isinstance(target, Primitive):
        if target.multiple_results:
            raise InvalidTypeError(f"Primitive '{name}' has several results; one is expected.")
        USER_RULES[target] = rule
    elif callable(target):
        register_function(target, rule)
    else:
        advice = (
            " Pass the function itself: a name does not tell its calls from those of its vmap or "
            "jvp, which keep it."
        )
        raise InvalidTypeError(
            f"target must be a primitive or a function, got {type(target).__name__} {target!r}."
            f"{advice if isinstance(target, str) else ''}"
        )
    _version[0] = next(_versions)


def unregister_partial(target: Any) -> None:
    """Forget what was registered for a primitive or function.

    Raises:
        InvalidArgumentError: where nothing was.
    """
    found = USER_RULES.pop(target, None) if isinstance(target, Primitive) else None
    if found is None:
        found = _functions.pop(_plain(target), None)
    if found is None:
        raise InvalidArgumentError(f"Nothing is registered for {target!r}.")
    _version[0] = next(_versions)


def _is_sequence_of_partials(partials: Any) -> bool:
    """Whether it is a tuple of entries, rather than one entry (a block, or a list of blocks)."""
    return isinstance(partials, tuple) and not (len(partials) == 2 and isinstance(partials[0], str))


def _check_entry(entry: Any, name: str) -> None:
    for block in entry if isinstance(entry, list) else [entry]:
        if isinstance(block, tuple) and len(block) == 2 and isinstance(block[0], str):
            split(block[0], 1)
            block = block[1]
        elif isinstance(entry, list):
            raise InvalidTypeError(
                f"A list in the partials of {name} holds blocks like ('i -> o', function), got "
                f"{block!r}."
            )
        if block is None or callable(block):
            continue
        if isinstance(block, bool) or not isinstance(block, int | float):
            raise InvalidTypeError(
                f"A partial of {name} must be a function, a number, None, a block like "
                f"('i -> o', function) or a list of blocks, got {block!r}."
            )


@dataclass(frozen=True, eq=False)
class _Slots:
    """A linear or multilinear target: the map is the target with the tangent as operand."""

    name: str
    slot: str
    patterns: tuple[str, ...]

    def __call__(self, site: Site, i: int, k: int) -> list[Piece]:
        reverse = is_transposable(site, i, k)
        if not self.patterns:
            return site.opaque(i, k, reverse=reverse, slot=self.slot)
        _check_count(self.name, "dimensions", len(self.patterns), site)
        named = parse(self.patterns[i], [site.shape(i)], site.out_shape, _where(self.name, i))
        shared = [name for name in named.operands[0] if name in named.out]
        return site.opaque(
            i,
            k,
            [named.operands[0].index(name) for name in shared],
            [named.out.index(name) for name in shared],
            reverse=reverse,
            slot=self.slot,
        )


@dataclass(frozen=True, eq=False)
class _Partials:
    """Partials given as functions of the operands and the result."""

    name: str
    entries: tuple[Partial, ...]
    second: dict[tuple[int, int], Block] | None

    def __call__(self, site: Site, i: int, k: int) -> list[Piece]:
        _check_count(self.name, "partials", len(self.entries), site)
        entry = self.entries[i]
        if entry is None:
            return []
        if isinstance(entry, int | float):
            _check_elementwise(self.name, site, i)
            return site.diagonal(i, None, entry)
        if callable(entry):
            _check_elementwise(self.name, site, i)
            local = self.local(site, i, entry, site.out_shape, "elementwise")
            return site.diagonal(i, local)
        blocks = entry if isinstance(entry, list) else [entry]
        return [piece for block in blocks for piece in self.block(site, i, block)]

    def block(self, site: Site, i: int, block: Block) -> list[Piece]:
        pattern, fun = block
        named = parse(pattern, [site.shape(i)], site.out_shape, _where(self.name, i))
        labels, array = list(named.sizes), named.array
        out, into = named.axes(named.out, labels), named.axes(named.operands[0], labels)
        sizes = named.shape(labels)
        if not callable(fun):
            return site.piece(sizes, out, into, coefficient=fun)
        shape = named.shape(array)
        slope = "unknown" if self.second is None else _Slope(self, site, i, shape)
        local = self.local(site, i, fun, shape, slope, exact=True)
        return site.piece(sizes, out, into, [site.factor(local, named.axes(array, labels), shape)])

    def local(
        self,
        site: Site,
        i: int,
        fun: Callable[..., Any],
        shape: tuple[int, ...],
        slope: Any,
        exact: bool = False,
    ) -> Reference:
        """The array of a partial, after a look at what the function returns."""
        bound, needs_out = _bound(fun, len(site.inputs), site.params)
        count = len(site.inputs)
        if slope == "elementwise":
            count = min(count, bound.count)
        arguments = [site.value(position) for position in range(count)]
        if needs_out:
            arguments += [site.out()]
        types = [
            jax.ShapeDtypeStruct(shape_of(a, site.listing), _dtype_of(a, site)) for a in arguments
        ]
        call = _Call(bound, count, np.dtype(site.outputs[0].dtype))
        result = jax.eval_shape(call, *types)
        found, dtype = tuple(np.shape(result)), getattr(result, "dtype", None)
        if found != shape and (exact or found != ()):
            raise InvalidArgumentError(
                f"{_where(self.name, i)} has shape {found}, expected {shape} (operands "
                f"{[type_.shape for type_ in site.inputs]}, output {site.out_shape})."
            )
        if dtype is None or not dtypes.issubdtype(dtype, np.inexact):
            raise InvalidArgumentError(
                f"{_where(self.name, i)} has dtype {dtype}; a floating-point array is expected."
            )
        if slope == "elementwise" and found == () and shape != ():
            slope = "unknown"  # it may be a sum over an operand
        return Local(f"partial of {self.name}", call, tuple(arguments), found, slope)


@dataclass(frozen=True, eq=False)
class _Slope:
    """How the array of a block moves with the operands, as the user says."""

    rule: _Partials
    site: Site
    i: int
    shape: tuple[int, ...]

    def __call__(self, local: Local) -> list[tuple[int, Piece]]:
        assert self.rule.second is not None
        found = []
        for j in range(len(self.site.inputs)):
            block, swapped = self.rule.second.get((self.i, j)), False
            if block is None:
                block, swapped = self.rule.second.get((j, self.i)), True
            if block is not None:
                found += [(j, piece) for piece in self.along(j, block, swapped, local)]
        return found

    def along(self, j: int, block: Block, swapped: bool, local: Local) -> list[Piece]:
        pattern, fun = block
        site, name = self.site, self.rule.name
        pair = (j, self.i) if swapped else (self.i, j)
        where = f"The second partial {pair} of {name}"
        named = parse(pattern, [site.shape(p) for p in pair], site.out_shape, where)
        first, second = named.operands[::-1] if swapped else named.operands
        carried = tuple(dict.fromkeys((*named.out, *first)))
        if named.shape(carried) != self.shape:
            raise InvalidArgumentError(
                f"{where}: {pattern!r} gives partial {self.i} the shape {named.shape(carried)}, "
                f"but its own block has shape {self.shape}. Use the same diagonal names in both."
            )
        labels, array = list(named.sizes), named.array
        out, into = named.axes(carried, labels), named.axes(second, labels)
        sizes = named.shape(labels)
        if not callable(fun):
            return site.piece(sizes, out, into, coefficient=fun)
        shape = named.shape(array)
        curved = self.rule.local(site, self.i, fun, shape, "unknown", exact=True)
        del local
        return site.piece(sizes, out, into, [site.factor(curved, named.axes(array, labels), shape)])


@dataclass(frozen=True)
class _Bound:
    """A user's function with its arguments sorted out; equal for one primitive's parameters."""

    fun: Callable[..., Any]
    count: int
    names: tuple[str, ...]
    params: Any = field(compare=False)
    params_identity: int


@dataclass(frozen=True)
class _Call:
    """Calls a user's function with the operands, then the result where it is asked for."""

    bound: _Bound
    operands: int
    dtype: np.dtype

    @property
    def __name__(self) -> str:
        return getattr(self.bound.fun, "__name__", "partial")

    def __call__(self, *values: Any) -> Any:
        named = {}
        if "out" in self.bound.names:
            named["out"] = values[self.operands]
        if "params" in self.bound.names:
            named["params"] = self.bound.params
        result = jnp.asarray(self.bound.fun(*values[: self.bound.count], **named))
        if all(dtypes.issubdtype(d, np.floating) for d in (result.dtype, self.dtype)):
            return result.astype(self.dtype)
        return result


def _bound(fun: Callable[..., Any], operands: int, params: Any) -> tuple[_Bound, bool]:
    count, names = _parameters(fun)
    held = params if "params" in names else None
    return _Bound(fun, min(count, operands), names, held, id(held)), "out" in names


@lru_cache(maxsize=1024)
def _parameters(fun: Callable[..., Any]) -> tuple[int, tuple[str, ...]]:
    """How many operands a function takes at most, and which special parameters it has."""
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):
        return 1 << 16, ()
    special = tuple(p.name for p in parameters if p.name in ("out", "params"))
    if any(p.kind == p.VAR_POSITIONAL for p in parameters):
        return 1 << 16, special
    return len(
        [p for p in parameters if p.name not in special and p.kind != p.KEYWORD_ONLY]
    ), special


def _dtype_of(reference: Reference, site: Site) -> Any:
    variable = getattr(reference, "variable", None)
    if variable is not None:
        return site.listing.variables[variable].dtype
    return getattr(reference, "value", np.float32(0)).dtype


def _where(name: str, i: int) -> str:
    return f"The partial of {name} with respect to operand {i}"


def _check_count(name: str, what: str, count: int, site: Site) -> None:
    if count != len(site.inputs):
        raise InvalidArgumentError(
            f"{name} was registered with {count} {what}, but it is called with "
            f"{len(site.inputs)} operands ({site.equation.source}). Give one per operand."
        )


def _check_elementwise(name: str, site: Site, i: int) -> None:
    shape, out = site.shape(i), site.out_shape
    fits = len(shape) in (0, len(out)) and all(
        a in (1, b) for a, b in zip(shape, out, strict=False)
    )
    if not fits:
        raise InvalidArgumentError(
            f"{_where(name, i)} is given as an elementwise one, but the operand has shape {shape} "
            f"and the output {out}. Give a block instead, like ('... i -> ... o', function)."
        )


# -- functions ------------------------------------------------------------------------------------

_functions: dict[Callable[..., Any], Rule] = {}


def _plain(function: Any) -> Callable[..., Any]:
    return inspect.unwrap(function)


def register_function(function: Callable[..., Any], rule: Rule) -> None:
    """Let calls of a function, jitted or to be jitted, be one vertex with this rule."""
    _functions[_plain(function)] = rule
    _version[0] = next(_versions)


def _rule_of_call(params: dict[str, Any]) -> Rule | None:
    """The rule of the function whose body a call holds."""
    for function, rule in _functions.items():
        if function.__name__ == params["name"] and _is_body(function, params["jaxpr"]):
            return rule
    return None


def _is_body(function: Callable[..., Any], body: Any) -> bool:
    types = [variable.aval for variable in body.jaxpr.invars]
    if len(body.jaxpr.outvars) != 1:
        return False
    avals = [jax.ShapeDtypeStruct(t.shape, t.dtype, weak_type=t.weak_type) for t in types]
    try:
        own = jax.make_jaxpr(function)(*avals)
    except Exception:  # another function of this name, which does not take these arguments
        return False
    try:
        return jaxpr_key(own) == jaxpr_key(body)
    except (Unstable, TypeError):
        return str(own) == str(body)


CALL_RULES.append(_rule_of_call)
