"""Derivatives in JAX by vertex elimination on the computational graph."""

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
from .errors import (
    FallbackError,
    GraphaxLaplError,
    InternalError,
    InvalidArgumentError,
    InvalidOrderError,
    InvalidTypeError,
    NotDifferentiableError,
    PlanMismatchError,
)
from .graph.computational_graph import ComputationalGraph
from .program.counts import OpCounts
from .rules.custom import register_partial, unregister_partial

__version__ = "0.1.0"

__all__ = [
    "Autotune",
    "CheckRow",
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
