"""What a plan can be about: a kind for every operator."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import tree_util

from ..errors import InvalidArgumentError
from ..graph.meshes import cast, inside
from .coefficients import drift_of, metric_of
from .divergence import divergence_plan, divergence_ve
from .hessian import hessian_plan, hessve
from .hessian_parts import diagonal_plan, hessian_diagonal
from .jacobian import jacve
from .laplacian import contraction, forward_laplacian, laplacian_plan, laplacian_ve
from .operators import (
    kinetic_metric,
    local_kinetic_energy,
    logarithm_of,
    operator_plan,
    second_order_operator,
)
from .plan import Plan
from .planning import Prepared, plan_for, prepare
from .twice import check_real_inputs, follows_rules_of_rules

__all__ = ["KINDS", "Kind", "kind_of", "planned"]


@dataclass(frozen=True)
class Call:
    """A call of an operator that is planned.

    Attributes:
        prepared: the traced call of the function.
        args: its positional arguments.
        kwargs: its keyword arguments.
        order: the order.
        options: what else the operator was given.
    """

    prepared: Prepared
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    order: Any
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """What is accumulated.

    Attributes:
        operator: the public function that does it.
        plan: the plan of a call; None where it is the way around (`api/twice.py`), without a plan.
        orders: how often the function is differentiated.
        options: names of further arguments of the operator that a plan depends on.
        function: from the user's function to the one that is differentiated.
    """

    operator: Callable[..., Callable[..., Any]]
    plan: Callable[[Call], Plan | None]
    orders: int = 1
    options: tuple[str, ...] = ()
    function: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda fun: fun


def _hessian(call: Call) -> Plan | None:
    sparse = bool(call.options.get("sparse_representation", False))
    return hessian_plan(call.prepared, call.order, sparse)


def _diagonal(call: Call) -> Plan | None:
    prepared = call.prepared
    if follows_rules_of_rules(prepared) or prepared.second.opaque:
        return None
    return diagonal_plan(prepared, call.order)


def _laplacian(jacobian: bool) -> Callable[[Call], Plan | None]:
    def plan(call: Call) -> Plan | None:
        options = call.options
        metric, arrays, around = contraction(
            call.prepared, call.args, options.get("weights"), options.get("seeds")
        )
        if around:
            return None
        compress = options.get("compress", True)
        return laplacian_plan(call.prepared, call.order, metric, jacobian, compress, given=arrays)

    return plan


def _general(call: Call) -> Plan | None:
    traced, options = call.prepared.traced, call.options
    metric, arrays = metric_of(traced, call.args, _coefficient(call, "a"), "a")
    drifts = drift_of(traced, call.args, _coefficient(call, "b"), "b")
    compress = options.get("compress", True)
    return operator_plan(call.prepared, call.order, metric, arrays, drifts, False, compress)[0]


def _coefficient(call: Call, name: str) -> Any:
    """A coefficient, or one like it where it is a function of arguments that have no values."""
    given = call.options.get(name)
    if not callable(given):
        return given
    everything = tree_util.tree_leaves((call.args, dict(call.kwargs)))
    if not any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in everything):
        return given(*call.args, **call.kwargs)
    types = jax.eval_shape(given, *call.args, **call.kwargs)
    return jax.tree.map(lambda type_: np.ones(type_.shape, type_.dtype), types)


def _kinetic(call: Call) -> Plan | None:
    traced, options = call.prepared.traced, call.options
    metric, arrays = kinetic_metric(traced, call.args, options.get("weights", 1.0))
    none: list[Any] = [None] * len(traced.in_types)
    compress = options.get("compress", True)
    return operator_plan(call.prepared, call.order, metric, arrays, none, True, compress)[0]


KINDS: dict[str, Kind] = {
    "jacobian": Kind(
        jacve,
        lambda call: plan_for(
            call.prepared, call.order, bool(call.options.get("sparse_representation", False))
        ),
        options=("sparse_representation",),
    ),
    "hessian": Kind(hessve, _hessian, 2, ("sparse_representation",)),
    "hessian_diagonal": Kind(hessian_diagonal, _diagonal, 2),
    "laplacian": Kind(laplacian_ve, _laplacian(False), 2, ("weights", "seeds", "compress")),
    "forward_laplacian": Kind(forward_laplacian, _laplacian(True), 2, ("weights", "seeds")),
    "second_order_operator": Kind(second_order_operator, _general, 2, ("a", "b", "c", "compress")),
    "local_kinetic_energy": Kind(
        local_kinetic_energy, _kinetic, 2, ("weights", "compress"), logarithm_of
    ),
    "divergence": Kind(divergence_ve, lambda call: divergence_plan(call.prepared, call.order)),
}


def kind_of(name: str, options: Mapping[str, Any]) -> Kind:
    """The kind of a name.

    Raises:
        InvalidArgumentError: for an unknown kind, and for options that its plan does not depend on.
    """
    kind = KINDS.get(str(name))
    if kind is None:
        raise InvalidArgumentError(
            f"kind must be one of {', '.join(map(repr, KINDS))}, got {name!r}. A product of the "
            "Hessian with a vector differentiates the program of kind='jacobian' once more."
        )
    unknown = [option for option in options if option not in kind.options]
    if unknown:
        known = ", ".join(map(repr, kind.options)) or "none"
        raise InvalidArgumentError(
            f"options={{{unknown[0]!r}: ...}}: kind={name!r} has no such option. A plan of "
            f"{kind.operator.__name__} depends on: {known}."
        )
    return kind


def planned(
    name: str,
    fun: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    order: Any,
    argnums: Any,
    strict: bool,
    options: Mapping[str, Any],
) -> Plan:
    """The plan of an operator, see `make_plan`."""
    kind = kind_of(name, options)

    def follow(order: Any) -> Callable[..., Any]:
        return kind.operator(fun, order=order, argnums=argnums, strict=strict, **options)

    follow(order)  # which checks the options
    prepared = prepare(kind.function(fun), args, kwargs, argnums, orders=kind.orders, strict=strict)
    if kind.orders == 2:
        check_real_inputs(prepared.traced)
    with inside(prepared.traced.mesh):
        plan = kind.plan(Call(prepared, args, kwargs, order, tree_util.tree_map(cast, options)))
    if plan is None:
        raise InvalidArgumentError(
            f"kind={name!r}: {prepared.traced.name} holds loops, linear algebra or rules whose "
            "second derivative is taken of JAX's own first one; plan the Jacobian of its "
            "gradient, make_plan(jax.grad(fun), ...)."
        )
    return dataclasses.replace(plan, follow=follow)
