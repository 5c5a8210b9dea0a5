"""Explicit mesh axes: the function as it is where they are automatic, and programs inside of such.

Along an explicit axis of a mesh types say how arrays are sharded, and JAX refuses operations whose
result could be sharded in more than one way. A user answers such questions where the function
needs it; of the operations of a derivative nobody could. So a function is traced under the types
that its arguments have, and its equations are then traced again for the same mesh with these axes
automatic. Plans and programs know nothing else. They run inside of `jax.sharding.auto_axes`, and
what they return gets types that follow from those of the function's inputs and outputs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax import dtypes, lax, tree_util
from jax.extend.core import ClosedJaxpr, jaxprs_in_params
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from .retracing import RULE, Rule, closed_as, evaluated

__all__ = [
    "Spec",
    "automatic",
    "cast",
    "explicit_mesh",
    "holds_explicit_axes",
    "inside",
    "joined_spec",
    "run_inside",
    "spec_of",
]

#: How a dimension is sharded: over nothing, an axis, or several axes.
Entry = None | str | tuple[str, ...]
#: How an array is, dimension by dimension.
Spec = tuple[Entry, ...]

#: Equations that say of one array how it is to be sharded, with the parameter that says it.
PLACEMENTS = {"reshard": "dst_sharding", "sharding_constraint": "sharding"}
#: Parameters in which other equations say it of their results.
RESULTS = ("sharding", "out_sharding")


def explicit_mesh(types: Iterable[Any]) -> AbstractMesh | None:
    """The mesh with explicit axes that is set, or that one of some types lies on; None without."""
    meshes = [jax.sharding.get_abstract_mesh()]
    meshes += [type_.sharding.mesh for type_ in types if hasattr(type_, "sharding")]
    return next((mesh for mesh in meshes if _explicit(mesh)), None)


def _explicit(mesh: Any) -> tuple[str, ...]:
    """Names of the explicit axes."""
    pairs = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return tuple(name for name, kind in pairs if kind == AxisType.Explicit)


def holds_explicit_axes(jaxpr: Any) -> bool:
    """Whether a value inside of a jaxpr lies on explicit axes where all that goes in does not.

    A rule for cotangents does so (see `_ruled`), when its derivative is taken once more.
    """
    stack = [] if jax.sharding.get_abstract_mesh().empty else [jaxpr]
    while stack:
        for equation in stack.pop().eqns:
            shardings = (getattr(v.aval, "sharding", None) for v in equation.outvars)
            if any(sharding is not None and _explicit(sharding.mesh) for sharding in shardings):
                return True
            stack.extend(jaxprs_in_params(equation.params))
    return False


def inside(mesh: AbstractMesh | None) -> contextlib.AbstractContextManager[Any]:
    """Within it explicit axes are automatic: of the mesh that is set, or of the given one."""
    current = jax.sharding.get_abstract_mesh()
    if mesh is None or (current.empty and mesh.empty):
        return contextlib.nullcontext()
    return jax.sharding.use_abstract_mesh(_opened(mesh if current.empty else current))


def _opened(mesh: Any) -> Any:
    """A mesh, abstract or of devices, with its explicit axes automatic."""
    if isinstance(mesh, Mesh):
        kinds = tuple(
            AxisType.Auto if kind == AxisType.Explicit else kind for kind in mesh.axis_types
        )
        return Mesh(mesh.devices, mesh.axis_names, axis_types=kinds)
    return mesh.update_axis_types(dict.fromkeys(_explicit(mesh), AxisType.Auto))


def spec_of(type_: Any) -> Spec:
    """How an array of a type is sharded over explicit axes."""
    found = tuple(type_.sharding.spec)
    return (*found, *[None] * (len(type_.shape) - len(found)))


def joined_spec(*specs: Spec) -> Spec:
    """How an array is that has the dimensions of several: an axis goes to the first that has it."""
    used: set[str] = set()
    entries: list[Entry] = []
    for entry in (entry for spec in specs for entry in spec):
        names = entry if isinstance(entry, tuple) else () if entry is None else (entry,)
        own = tuple(name for name in names if name not in used)
        used.update(own)
        entries.append(None if not own else own[0] if len(own) == 1 else own)
    return tuple(entries)


def run_inside(
    fun: Callable[..., Any],
    mesh: AbstractMesh | None,
    values: Any,
    place: Callable[[Any], Sequence[Spec]],
) -> Any:
    """`fun(values)` with the explicit axes of a mesh automatic, as `jax.sharding.auto_axes` does.

    Args:
        fun: the function.
        mesh: the mesh; with None nothing is done about it.
        values: a pytree; leaves that are no arrays, or lie on no explicit axes, are passed as they
            are.
        place: for a result, how each of its leaves is to be.
    """
    if mesh is None:
        return fun(values)
    with inside(mesh):
        result = fun(tree_util.tree_map(cast, values))
        specs = place(result)
    leaves, tree = tree_util.tree_flatten(result)
    placed = [
        # What depends on nothing that lies on the mesh stays where it is.
        leaf
        if jax.typeof(leaf).sharding.mesh.empty
        else jax.sharding.reshard(leaf, NamedSharding(mesh, PartitionSpec(*spec)))
        for leaf, spec in zip(leaves, specs, strict=True)
    ]
    return tree_util.tree_unflatten(tree, placed)


def cast(value: Any) -> Any:
    """A value where explicit axes are automatic."""
    if not isinstance(value, jax.Array):
        return value
    mesh = jax.typeof(value).sharding.mesh
    if not _explicit(mesh):
        return value
    return jax.sharding.reshard(value, NamedSharding(_opened(mesh), PartitionSpec()))


def automatic(closed: Any, mesh: AbstractMesh | None) -> Any:
    """A closed jaxpr, traced again for a mesh whose explicit axes are automatic.

    Constants of nested traces follow its own. What the function says of shardings constrains the
    same values.
    """
    jaxpr = closed.jaxpr
    with inside(mesh):
        traced = _traced(jaxpr, [*jaxpr.constvars, *jaxpr.invars])
    return closed_as(closed, traced)


def _traced(jaxpr: Any, variables: Sequence[Any], constants: Sequence[Any] = ()) -> Any:
    """A jaxpr as a closed one of `variables`, those before them being `constants`."""

    def outputs(*values: Any) -> list[Any]:
        return _evaluated(jaxpr, [*map(cast, constants), *values])

    return jax.make_jaxpr(outputs)(*(_type_of(variable.aval) for variable in variables))


def _type_of(aval: Any) -> Any:
    """A type without explicit axes."""
    mesh = getattr(getattr(aval, "sharding", None), "mesh", None)
    if mesh is None or not _explicit(mesh):
        return aval
    return aval.update(sharding=NamedSharding(_opened(mesh), PartitionSpec()))


def _evaluated(jaxpr: Any, values: Sequence[Any]) -> list[Any]:
    """The outputs of an open jaxpr whose constants and inputs are `values`."""
    mesh = jax.sharding.get_abstract_mesh()
    return evaluated(jaxpr, values, _results, lambda: inside(mesh))


def _results(equation: Any, values: list[Any]) -> Sequence[Any]:
    """What an equation computes, where explicit axes are automatic."""
    name, params = str(equation.primitive.name), equation.params
    if name == "mesh_cast":
        return values
    if name in PLACEMENTS:
        return [_constrained(values[0], params[PLACEMENTS[name]])]
    if name == "shard_map":
        return _mapped(params, values)
    if name == "custom_vjp_call":
        return _ruled(equation, values)
    wanted = next((params[key] for key in RESULTS if params.get(key) is not None), None)
    made = {
        key: Rule(value, equation.ctx, _traced) if key == RULE else _parameter(key, value)
        for key, value in params.items()
    }
    bound = equation.primitive.get_bind_params(made)
    result = equation.primitive.bind(*values, **bound)
    results = list(result) if equation.primitive.multiple_results else [result]
    if isinstance(wanted, NamedSharding) and any(tuple(wanted.spec)):
        results = [_constrained(value, wanted) for value in results]
    return results


def _parameter(name: str, value: Any) -> Any:
    """A parameter of an equation: nested programs traced again, meshes opened."""
    if name in RESULTS:
        return None
    if isinstance(value, NamedSharding):
        return NamedSharding(_opened(value.mesh), value.spec)
    if isinstance(value, AbstractMesh | Mesh):
        return _opened(value)
    if isinstance(value, tuple | list):
        made = [_parameter("", item) for item in value]
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    return _nested(value) if hasattr(value, "eqns") or hasattr(value, "jaxpr") else value


def _nested(body: Any) -> Any:
    """A jaxpr parameter, closed or open."""
    jaxpr = getattr(body, "jaxpr", body)
    traced = _traced(jaxpr, jaxpr.invars, getattr(body, "consts", ()))
    made = traced.jaxpr.replace(debug_info=jaxpr.debug_info)
    return ClosedJaxpr(made, traced.consts) if hasattr(body, "consts") else made


def _mapped(params: dict[str, Any], values: list[Any]) -> Sequence[Any]:
    """A `shard_map`: its body sees the axes that are not its own."""
    body = params["jaxpr"]
    jaxpr, constants = getattr(body, "jaxpr", body), getattr(body, "consts", ())
    return jax.shard_map(
        lambda *inner: tuple(_evaluated(jaxpr, [*map(cast, constants), *inner])),
        mesh=_opened(params["mesh"]),
        in_specs=tuple(params["in_specs"]),
        out_specs=tuple(params["out_specs"]),
        axis_names=set(params["newly_manual_axes"]),
        check_vma=params["check_vma"],
    )(*values)


def _ruled(equation: Any, values: list[Any]) -> Sequence[Any]:
    """A function with a rule for cotangents, which JAX compares with the types that it was given.

    So the rule is called where axes are explicit.
    """
    primitive, params = equation.primitive, equation.params
    into = [variable.aval for variable in equation.invars]
    out = [variable.aval for variable in equation.outvars]

    def explicit(arrays: Sequence[Any], types: Sequence[Any]) -> list[Any]:
        return [
            jax.sharding.reshard(array, type_.sharding) if _explicit(type_.sharding.mesh) else array
            for array, type_ in zip(arrays, types, strict=True)
        ]

    def forward(*inputs: Any) -> tuple[tuple[Any, ...], Any]:
        def original(*own: Any) -> list[Any]:
            return list(primitive.bind(*own, **primitive.get_bind_params(params)))

        with equation.ctx.manager:
            results, pull = jax.vjp(original, *explicit(inputs, into))
        return tuple(map(cast, results)), pull

    def backward(pull: Any, cotangents: Sequence[Any]) -> tuple[Any, ...]:
        with equation.ctx.manager:
            pulled = pull(explicit(cotangents, out))
        return tuple(
            cast(array) if dtypes.issubdtype(type_.dtype, np.inexact) else None
            for array, type_ in zip(pulled, into, strict=True)
        )

    @jax.custom_vjp
    def call(*inputs: Any) -> tuple[Any, ...]:
        body = params["call_jaxpr"]
        jaxpr, constants = getattr(body, "jaxpr", body), getattr(body, "consts", ())
        return tuple(_evaluated(jaxpr, [*map(cast, constants), *inputs]))

    call.defvjp(forward, backward)
    return call(*values)


def _constrained(value: Any, where: Any) -> Any:
    """A value that lies as it did along explicit axes."""
    if isinstance(where, NamedSharding):
        where = NamedSharding(_opened(where.mesh), PartitionSpec(*where.spec))
    return lax.with_sharding_constraint(value, where)
