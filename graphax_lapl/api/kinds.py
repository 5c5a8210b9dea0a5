"""What a plan can be about: a kind for every operator."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import tree_util

from ..errors import InvalidArgumentError
from ..graph.meshes import cast, inside
from ..graph.tracing import check_flags
from .divergence import divergence_plan, divergence_ve
from .hessian import hessian_plan, hessve
from .hessian_parts import diagonal_plan, hessian_diagonal
from .jacobian import jacve
from .laplacian import contraction, forward_laplacian, laplacian_plan, laplacian_ve
from .operators import (
    Terms,
    general_terms,
    kinetic_terms,
    local_kinetic_energy,
    logarithm_of,
    operator_plan,
    second_order_operator,
)
from .plan import Plan
from .planning import Prepared, plan_for, prepare
from .twice import check_real_inputs, follows_rules_of_rules

__all__ = ["KINDS", "Kind", "Planner", "kind_of"]

#: From an order to its plan; None where the operator takes the way around (`api/twice.py`).
PlanOf = Callable[[Any], Plan | None]


@dataclass(frozen=True)
class Call:
    """A call of an operator that is planned.

    Attributes:
        prepared: the traced call of the function.
        args: its positional arguments.
        kwargs: its keyword arguments.
        options: what else the operator was given.
    """

    prepared: Prepared
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """What is accumulated.

    Attributes:
        operator: the public function that does it.
        plans: of a call what makes plans, and what their programs take beside its inputs.
        orders: how often the function is differentiated.
        options: names of further arguments of the operator that a plan depends on.
        function: from the user's function to the one that is differentiated.
        entries: whether all second derivatives are wanted, and not sums of them.
    """

    operator: Callable[..., Callable[..., Any]]
    plans: Callable[[Call], tuple[PlanOf, Sequence[Any]]]
    orders: int = 1
    options: tuple[str, ...] = ()
    function: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda fun: fun
    entries: bool = False

    def prepare(
        self,
        fun: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        argnums: int | Sequence[int],
        strict: bool,
    ) -> Prepared:
        """One call of the function that is differentiated, traced and inlined."""
        return prepare(
            fun, args, kwargs, argnums, orders=self.orders, strict=strict, entries=self.entries
        )


def _jacobian(call: Call) -> tuple[PlanOf, Sequence[Any]]:
    sparse = bool(call.options.get("sparse_representation", False))
    return lambda order: plan_for(call.prepared, order, sparse), ()


def _hessian(call: Call) -> tuple[PlanOf, Sequence[Any]]:
    sparse = bool(call.options.get("sparse_representation", False))
    return lambda order: hessian_plan(call.prepared, order, sparse), ()


def _diagonal(call: Call) -> tuple[PlanOf, Sequence[Any]]:
    prepared = call.prepared
    around = follows_rules_of_rules(prepared) or prepared.second.unknown
    return lambda order: None if around else diagonal_plan(prepared, order), ()


def _laplacian(jacobian: bool) -> Callable[[Call], tuple[PlanOf, Sequence[Any]]]:
    def plans(call: Call) -> tuple[PlanOf, Sequence[Any]]:
        prepared, options = call.prepared, call.options
        metric, arrays, around = contraction(
            prepared, call.args, options.get("weights"), options.get("seeds")
        )
        compress = options.get("compress", True)

        def plan(order: Any) -> Plan | None:
            if around:
                return None
            return laplacian_plan(prepared, order, metric, jacobian, compress, given=arrays)

        return plan, arrays

    return plans


def _general(call: Call) -> tuple[PlanOf, Sequence[Any]]:
    a, b = _coefficient(call, "a"), _coefficient(call, "b")
    return _with_terms(call, general_terms(call.prepared.traced, call.args, a, b))


def _kinetic(call: Call) -> tuple[PlanOf, Sequence[Any]]:
    weights = call.options.get("weights", 1.0)
    return _with_terms(call, kinetic_terms(call.prepared.traced, call.args, weights))


def _with_terms(call: Call, terms: Terms) -> tuple[PlanOf, Sequence[Any]]:
    compress = call.options.get("compress", True)
    return lambda order: operator_plan(call.prepared, order, terms, compress), terms.given


def _divergence(call: Call) -> tuple[PlanOf, Sequence[Any]]:
    return lambda order: divergence_plan(call.prepared, order), ()


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


KINDS: dict[str, Kind] = {
    "jacobian": Kind(jacve, _jacobian, options=("sparse_representation",)),
    "hessian": Kind(hessve, _hessian, 2, ("sparse_representation",), entries=True),
    "hessian_diagonal": Kind(hessian_diagonal, _diagonal, 2),
    "laplacian": Kind(laplacian_ve, _laplacian(False), 2, ("weights", "seeds", "compress")),
    "forward_laplacian": Kind(forward_laplacian, _laplacian(True), 2, ("weights", "seeds")),
    "second_order_operator": Kind(second_order_operator, _general, 2, ("a", "b", "c", "compress")),
    "local_kinetic_energy": Kind(
        local_kinetic_energy, _kinetic, 2, ("weights", "compress"), logarithm_of
    ),
    "divergence": Kind(divergence_ve, _divergence),
}


def kind_of(name: str, options: Mapping[str, Any]) -> Kind:
    """The kind of a name.

    Raises:
        InvalidArgumentError: for an unknown kind, and for options that its plan does not depend on.
    """
    if not isinstance(options, Mapping):
        raise InvalidArgumentError(
            f'options must be a mapping such as {{"weights": w}}, got {options!r}.'
        )
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


class Planner:
    """Plans of one call of an operator.

    Attributes:
        prepared: the traced call.
    """

    def __init__(
        self,
        name: str,
        fun: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        argnums: Any,
        strict: bool,
        options: Mapping[str, Any],
    ):
        """Trace the call, see `make_plan` for the arguments and errors."""
        self.name = name
        check_flags(strict=strict)
        kind = kind_of(name, options)

        def follow(order: Any) -> Callable[..., Any]:
            return kind.operator(fun, order=order, argnums=argnums, strict=strict, **options)

        follow("auto")  # which checks the options
        self._follow = follow
        function = kind.function(fun)
        self.prepared = kind.prepare(function, args, kwargs, argnums, strict)
        traced = self.prepared.traced
        if kind.orders == 2:
            check_real_inputs(traced)
        with inside(traced.mesh):
            own = tree_util.tree_map(cast, options)
            self._plan, self._given = kind.plans(Call(self.prepared, args, kwargs, own))

    @property
    def inputs(self) -> list[Any]:
        """What a plan's program runs on."""
        return [cast(value) for value in (*self.prepared.inputs, *self._given)]

    def plan(self, order: Any) -> Plan:
        """The plan of an order.

        Raises:
            InvalidArgumentError: where the operator differentiates JAX's own first derivative.
        """
        with inside(self.prepared.traced.mesh):
            made = self._plan(order)
        if made is None:
            raise InvalidArgumentError(
                f"kind={self.name!r}: {self.prepared.traced.name} holds loops, linear algebra or "
                "rules whose second derivative is taken of JAX's own first one, or "
                f"order={order!r} asks for that; plan the Jacobian of its gradient, "
                "make_plan(jax.grad(fun), ...)."
            )
        return dataclasses.replace(made, follow=self._follow)
