"""Arrays that differ between the devices of a mesh, inside of `jax.shard_map`.

Types there say along which of the mesh's axes an array varies, and a primitive takes operands that
vary along the same ones. JAX casts what does not where a function is written. The equations of a
derivative are made from those of the function, their constants, seeds and carries from nothing, and
to cast each of them would be on every rule's mind. So a function is traced under the types that its
arguments have, and its equations are then traced again for arrays that vary along no axis. Plans
and programs know nothing else. A program is traced in the same way, and evaluated on arrays as they
are, cast where an equation needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import dtypes, lax, tree_util
from jax.extend.core import ClosedJaxpr, jaxprs_in_params
from jax.sharding import NamedSharding, PartitionSpec

from .calls import INLINED_CALLS
from .retracing import RULE, Rule, closed_as, evaluated

__all__ = ["axes_of", "evaluated_varying", "holds_varying", "unvarying", "without_axes"]

#: Equations that only say that an array may vary.
CASTS = frozenset({"pvary", "pcast"})
#: Equations that evaluate programs of their operands. Others that hold some, such as reductions,
#: apply them to numbers.
CALLS = frozenset(
    {"scan", "while", "cond", "custom_linear_solve", "custom_jvp_call", *INLINED_CALLS}
)
#: Parameters in which collectives name axes of the mesh.
NAMES = ("axes", "axis_name")


def axes_of(type_: Any) -> frozenset[str]:
    """The axes of a mesh along which arrays of a type hold different values."""
    axes: frozenset[str] | None = getattr(type_, "vma", None)
    if axes is None:  # which was the attribute's name earlier
        axes = getattr(getattr(type_, "manual_axis_type", None), "varying", None)
    return axes or frozenset()


def holds_varying(jaxpr: Any) -> bool:
    """Whether values of a program vary along an axis."""
    if not jax.sharding.get_abstract_mesh().manual_axes:
        return False
    variables = [*jaxpr.constvars, *jaxpr.invars, *(v for e in jaxpr.eqns for v in e.outvars)]
    return any(axes_of(variable.aval) for variable in variables) or any(
        holds_varying(body) for e in jaxpr.eqns for body in jaxprs_in_params(e.params)
    )


def without_axes(type_: Any) -> Any:
    """The type of arrays that are the same on all devices."""
    return _with_kind(type_, jax.typeof(0.0))


def _with_kind(type_: Any, like: Any) -> Any:
    """A type that varies as another one does."""
    name = "manual_axis_type" if hasattr(type_, "manual_axis_type") else "vma"
    if not hasattr(type_, name) or getattr(type_, name) == getattr(like, name):
        return type_
    sharding, mesh = type_.sharding, like.sharding.mesh
    if sharding.mesh.empty and not mesh.empty:  # traced once for all meshes
        sharding = NamedSharding(mesh, PartitionSpec(*[None] * len(type_.shape)))
    return type_.update(**{name: getattr(like, name)}, sharding=sharding)


def unvarying(closed: Any) -> Any:
    """A closed jaxpr, traced again for arrays that vary along no axis.

    What is the same on no two devices whatever goes in, such as `jax.lax.axis_index`, still does.
    """
    jaxpr = closed.jaxpr
    types = [without_axes(v.aval) for v in (*jaxpr.constvars, *jaxpr.invars)]
    traced = jax.make_jaxpr(lambda *values: evaluated_varying(jaxpr, values))(*types)
    return closed_as(closed, traced)


def evaluated_varying(jaxpr: Any, values: Sequence[Any]) -> list[Any]:
    """The outputs of an open jaxpr whose constants and inputs are `values`, which may vary."""
    return evaluated(jaxpr, values, _Calls().results)


class _Calls:
    """How equations are evaluated where operands may vary.

    A body that several equations call is traced once for each kind of operands.
    """

    def __init__(self) -> None:
        """Begin with no body traced."""
        self._traced: dict[tuple[int, frozenset[str]], Any] = {}

    def results(self, equation: Any, values: Sequence[Any]) -> Sequence[Any]:
        """What an equation computes."""
        primitive, params = equation.primitive, equation.params
        name = str(primitive.name)
        if name in CASTS:
            return values
        if name == "custom_vmap_call":  # whose rule was made for arrays that do not vary
            return _of_body(params["call"], values)
        axes = frozenset().union(*(axes_of(jax.typeof(v)) for v in values))
        if name in CALLS:
            axes = axes.union(*map(_named, jaxprs_in_params(params)))
            params = {key: self._parameter(key, params[key], axes, equation) for key in params}
        elif values:
            axes = axes | _names(params)
        values = [_cast(value, axes) for value in values]
        if name == "custom_vjp_call":
            return _ruled(equation, values)
        result = primitive.bind(*values, **primitive.get_bind_params(params))
        return list(result) if primitive.multiple_results else [result]

    def _parameter(self, name: str, value: Any, axes: frozenset[str], equation: Any) -> Any:
        """A parameter of a call, with programs traced for operands that vary along `axes`."""
        if name == RULE:

            def again(jaxpr: Any, variables: Sequence[Any], constants: Sequence[Any]) -> Any:
                return _retraced(jaxpr, variables, constants, axes)

            return Rule(value, equation.ctx, again)
        if isinstance(value, tuple | list):
            made = [self._parameter("", item, axes, equation) for item in value]
            return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
        if not (hasattr(value, "eqns") or hasattr(value, "jaxpr")):
            return value
        key = id(value), axes
        if key not in self._traced:
            self._traced[key] = _body(value, axes)
        return self._traced[key]


def _body(body: Any, axes: frozenset[str]) -> Any:
    """A jaxpr parameter, closed or open, traced for operands that vary along `axes`."""
    jaxpr = getattr(body, "jaxpr", body)
    if not axes and not holds_varying(jaxpr):
        return body
    traced = _retraced(jaxpr, jaxpr.invars, getattr(body, "consts", ()), axes)
    made = traced.jaxpr.replace(debug_info=jaxpr.debug_info)
    return ClosedJaxpr(made, traced.consts) if hasattr(body, "consts") else made


def _retraced(
    jaxpr: Any, variables: Sequence[Any], constants: Sequence[Any], axes: frozenset[str]
) -> Any:
    """A jaxpr as a closed one of `variables`, those before them being `constants`.

    What goes in and comes out varies along `axes`: what a loop carries has the type it began with.
    """

    def outputs(*values: Any) -> list[Any]:
        results = evaluated_varying(jaxpr, [*constants, *values])
        return [_cast(result, axes) for result in results]

    like = jax.typeof(_cast(jnp.zeros(()), axes))
    return jax.make_jaxpr(outputs)(*(_with_kind(v.aval, like) for v in variables))


def _of_body(body: Any, values: Sequence[Any]) -> list[Any]:
    """What a jaxpr parameter, closed or open, computes."""
    return evaluated_varying(getattr(body, "jaxpr", body), [*getattr(body, "consts", ()), *values])


def _cast(value: Any, axes: frozenset[str]) -> Any:
    """A value, as one that varies along `axes`."""
    missing = axes - axes_of(jax.typeof(value))
    return lax.pcast(value, tuple(sorted(missing)), to="varying") if missing else value


def _names(params: dict[str, Any]) -> frozenset[str]:
    """Axes of the mesh that a collective names; numbers are axes of its operand."""
    manual = jax.sharding.get_abstract_mesh().manual_axes
    found: list[Any] = []
    for value in (params[key] for key in NAMES if key in params):
        found += value if isinstance(value, tuple | list | frozenset) else [value]
    return frozenset(name for name in found if name in manual)


def _named(jaxpr: Any) -> frozenset[str]:
    """Axes of the mesh that are named anywhere in a program, but for casts."""
    own = (_names(e.params) for e in jaxpr.eqns if str(e.primitive.name) not in CASTS)
    inner = (_named(b) for equation in jaxpr.eqns for b in jaxprs_in_params(equation.params))
    return frozenset().union(*own, *inner)


def _ruled(equation: Any, values: Sequence[Any]) -> Sequence[Any]:
    """A function with a rule for cotangents: both are traced for the types that it was made for."""
    primitive, params = equation.primitive, equation.params
    into = [variable.aval for variable in equation.invars]
    out = [variable.aval for variable in equation.outvars]
    moves = [dtypes.issubdtype(type_.dtype, jnp.inexact) for type_ in into]
    pulls: list[Any] = []

    def original(*own: Any) -> list[Any]:
        return list(primitive.bind(*own, **primitive.get_bind_params(params)))

    def forward(*inputs: Any) -> tuple[list[Any], list[Any]]:
        with equation.ctx.manager:
            made = jax.make_jaxpr(lambda *own: jax.vjp(original, *own), return_shape=True)
            closed, (_, pull) = made(*into)
        pulls[:] = [tree_util.tree_structure(pull), closed.out_avals[len(out) :]]
        found = _of_body(closed, inputs)
        return found[: len(out)], found[len(out) :]

    def backward(kept: list[Any], cotangents: Sequence[Any]) -> tuple[Any, ...]:
        tree, types = pulls

        def pulled(kept: list[Any], cotangents: list[Any]) -> list[Any]:
            found = tree_util.tree_unflatten(tree, kept)(cotangents)
            return [own for own, moving in zip(found, moves, strict=True) if moving]

        with equation.ctx.manager:
            closed = jax.make_jaxpr(pulled)(types, out)
        found = iter(_of_body(closed, [*kept, *cotangents]))
        return tuple(next(found) if moving else None for moving in moves)

    @jax.custom_vjp
    def call(*inputs: Any) -> list[Any]:
        return _of_body(params["call_jaxpr"], inputs)

    call.defvjp(forward, backward)
    return call(*values)
