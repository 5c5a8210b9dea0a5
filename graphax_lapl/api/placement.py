"""How results lie on a mesh with explicit axes.

Dimensions of a result are those of outputs and inputs of the function, and lie as these do; a mesh
axis that two of them name goes to the first. So a gradient lies as its input, and a Jacobian as
`jax.jacfwd` returns it where the outputs are sharded, as `jax.jacrev` does where only inputs are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar, cast

import jax

from ..edges.maps import IndexMap
from ..edges.terms import Structure, Term
from ..graph.meshes import Spec, explicit_mesh, joined_spec, run_inside, spec_of
from ..graph.tracing import Traced

__all__ = ["array_specs", "opened", "specs_of"]

Method = TypeVar("Method", bound=Callable[..., Any])


def specs_of(traced: Traced, rows: Any, columns: Sequence[Sequence[int]]) -> list[Spec]:
    """How the arrays of an operator's results lie, in the order of their leaves.

    Args:
        traced: the function.
        rows: values of the last outputs, and for each output a list of results.
        columns: for each result of such a list the differentiated leaves whose dimensions follow
            those of the output, if it is not a number.
    """
    values, results = rows
    outputs = [spec_of(variable.aval) for variable in traced.closed.jaxpr.outvars]
    inputs = [spec_of(aval) for aval in traced.in_types]
    specs = outputs[len(outputs) - len(values) :]
    for out, row in zip(outputs, results, strict=False):
        for result, leaves in zip(row, columns, strict=True):
            spec = joined_spec(out, *(inputs[k] for k in leaves))
            if isinstance(result, jax.Array):
                specs.append(spec[: result.ndim])
            else:
                specs += result.array_specs(spec)
    return specs


def array_specs(structure: Structure, sources: Sequence[int], spec: Spec) -> list[Spec]:
    """How the arrays of a sparse result lie: where one runs along a dimension, as that does.

    Args:
        structure: one factor per term.
        sources: for every term which array it reads.
        spec: of the dense array.
    """
    found: dict[int, Spec] = {}
    for term, source in zip(structure.terms, sources, strict=True):
        named = zip(_dimensions(structure, term), spec, strict=True)
        entries = {name: entry for name, entry in named if entry is not None}
        own = tuple(entries.get(name) for name in _axes(term))
        if not any(found.get(source, ())):
            found[source] = own
    return [joined_spec(found[source]) for source in sorted(found)]


def matrix_spec(structure: Structure, sources: Sequence[int], arrays: Sequence[Any]) -> Spec:
    """How the dense array of a sparse result lies: a dimension as an array that runs along it."""
    found: list[Any] = [None] * (len(structure.out_shape) + len(structure.in_shape))
    for term, source in zip(structure.terms, sources, strict=True):
        entries = dict(zip(_axes(term), spec_of(jax.typeof(arrays[source])), strict=True))
        for k, name in enumerate(_dimensions(structure, term)):
            found[k] = found[k] or entries.get(name)
    return joined_spec(tuple(found))


def _dimensions(structure: Structure, term: Term) -> list[Hashable]:
    """For each dimension the label of a term that runs along all of it; itself where none does."""
    shape = (*structure.out_shape, *structure.in_shape)
    return _along((*term.out, *term.into), shape, term, "dimension")


def _axes(term: Term) -> list[Hashable]:
    """The same for each axis of the array that a term reads."""
    (factor,) = term.factors
    return _along(factor.axes, factor.shape, term, "axis")


def _along(maps: Sequence[IndexMap], shape: Sequence[int], term: Term, kind: str) -> list[Hashable]:
    sizes = dict(enumerate(term.sizes))
    return [
        axis.labels[0] if axis.is_plain(size, sizes) else (kind, k)
        for k, (axis, size) in enumerate(zip(maps, shape, strict=True))
    ]


def opened(dims: Callable[..., Spec]) -> Callable[[Method], Method]:
    """Lets a method of a sparse result compute in one program, where no mesh axes are explicit.

    Its many small operations would each be compiled and dispatched by themselves otherwise. In what
    is traced they are equations as any others.

    Args:
        dims: from how the output's and the input's dimensions lie, and each further argument, to
            how the result does, dense or sparse.
    """

    def decorate(method: Method) -> Method:
        at_once = jax.jit(method, inline=True)

        @functools.wraps(method)
        def run(*operands: Any) -> Any:
            leaves = jax.tree.leaves(operands)
            mesh = explicit_mesh([jax.typeof(leaf) for leaf in leaves])
            if mesh is None:
                return at_once(*operands)
            first, *others = (spec_of_operand(operand) for operand in operands)
            split = len(operands[0].out_shape)

            def place(result: Any) -> list[Spec]:
                spec = joined_spec(dims(first[:split], first[split:], *others))
                return [spec] if isinstance(result, jax.Array) else result.array_specs(spec)

            return run_inside(lambda values: at_once(*values), mesh, operands, place)

        return cast(Method, run)

    return decorate


def spec_of_operand(operand: Any) -> Spec:
    """How an array or a sparse result lies."""
    if hasattr(operand, "array_specs"):
        return matrix_spec(operand.structure, operand._sources, operand.arrays)
    return spec_of(jax.typeof(operand))
