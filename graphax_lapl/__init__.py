"""Derivatives in JAX by vertex elimination on the computational graph."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .errors import (
    CollectiveError,
    FallbackError,
    GraphaxLaplError,
    InternalError,
    InvalidArgumentError,
    InvalidOrderError,
    InvalidTypeError,
    NonlinearRuleError,
    NotDifferentiableError,
    PlanMismatchError,
)

if TYPE_CHECKING:
    from .api.analysis import (
        Comparison,
        ComparisonRow,
        compare_orders,
        computational_graph,
        count_ops,
        make_plan,
    )
    from .api.autotune import Autotune
    from .api.batching import batched_vmap
    from .api.checking import CheckRow, DerivativeReport, check_derivatives
    from .api.compression import Compressed
    from .api.divergence import divergence_ve
    from .api.hessian import hessve
    from .api.hessian_parts import hessian_diagonal, hessian_vector_product
    from .api.jacobian import jacve, value_and_jacve
    from .api.laplacian import LaplacianResult, forward_laplacian, laplacian_ve
    from .api.multilinear import multilinear
    from .api.operators import local_kinetic_energy, second_order_operator
    from .api.orders import EliminationOrder, elimination_graph
    from .api.plan import Plan
    from .api.sparse import SparseJacobian
    from .api.stochastic import Hutchinson, HutchPlusPlus
    from .graph.computational_graph import ComputationalGraph
    from .program.counts import OpCounts
    from .rules.custom import register_partial, unregister_partial

__version__ = "0.1.0"

__all__ = [
    "Autotune",
    "CheckRow",
    "CollectiveError",
    "Comparison",
    "ComparisonRow",
    "Compressed",
    "ComputationalGraph",
    "DerivativeReport",
    "EliminationOrder",
    "FallbackError",
    "GraphaxLaplError",
    "HutchPlusPlus",
    "Hutchinson",
    "InternalError",
    "InvalidArgumentError",
    "InvalidOrderError",
    "InvalidTypeError",
    "LaplacianResult",
    "NonlinearRuleError",
    "NotDifferentiableError",
    "OpCounts",
    "Plan",
    "PlanMismatchError",
    "SparseJacobian",
    "batched_vmap",
    "check_derivatives",
    "compare_orders",
    "computational_graph",
    "count_ops",
    "divergence_ve",
    "elimination_graph",
    "forward_laplacian",
    "hessian_diagonal",
    "hessian_vector_product",
    "hessve",
    "jacve",
    "laplacian_ve",
    "local_kinetic_energy",
    "make_plan",
    "multilinear",
    "register_partial",
    "second_order_operator",
    "unregister_partial",
    "value_and_jacve",
]

#: Where the rest is. A module is imported when something of it is first asked for: all of them
#: take half as long as JAX itself.
_HOMES = {
    "api.analysis": (
        "Comparison",
        "ComparisonRow",
        "compare_orders",
        "computational_graph",
        "count_ops",
        "make_plan",
    ),
    "api.autotune": ("Autotune",),
    "api.batching": ("batched_vmap",),
    "api.checking": (
        "CheckRow",
        "DerivativeReport",
        "check_derivatives",
    ),
    "api.compression": ("Compressed",),
    "api.divergence": ("divergence_ve",),
    "api.hessian": ("hessve",),
    "api.hessian_parts": (
        "hessian_diagonal",
        "hessian_vector_product",
    ),
    "api.jacobian": (
        "jacve",
        "value_and_jacve",
    ),
    "api.laplacian": (
        "LaplacianResult",
        "forward_laplacian",
        "laplacian_ve",
    ),
    "api.multilinear": ("multilinear",),
    "api.operators": (
        "local_kinetic_energy",
        "second_order_operator",
    ),
    "api.orders": (
        "EliminationOrder",
        "elimination_graph",
    ),
    "api.plan": ("Plan",),
    "api.sparse": ("SparseJacobian",),
    "api.stochastic": (
        "Hutchinson",
        "HutchPlusPlus",
    ),
    "graph.computational_graph": ("ComputationalGraph",),
    "program.counts": ("OpCounts",),
    "rules.custom": (
        "register_partial",
        "unregister_partial",
    ),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
