"""Derivatives in JAX by vertex elimination on the computational graph."""

from .api.analysis import (
    Comparison,
    ComparisonRow,
    compare_orders,
    computational_graph,
    count_ops,
    make_plan,
)
from .api.checking import CheckRow, DerivativeReport, check_derivatives
from .api.compression import Compressed
from .api.divergence import divergence_ve
from .api.hessian import hessve
from .api.jacobian import jacve, value_and_jacve
from .api.laplacian import LaplacianResult, forward_laplacian, laplacian_ve
from .api.multilinear import multilinear
from .api.orders import EliminationOrder, elimination_graph
from .api.plan import Plan
from .api.sparse import SparseJacobian
from .errors import (
    FallbackError,
    GraphaxLaplError,
    InternalError,
    InvalidArgumentError,
    InvalidOrderError,
    InvalidTypeError,
    PlanMismatchError,
)
from .graph.computational_graph import ComputationalGraph
from .program.counts import OpCounts
from .rules.custom import register_partial, unregister_partial

__version__ = "0.1.0"

__all__ = [
    "CheckRow",
    "Comparison",
    "ComparisonRow",
    "Compressed",
    "ComputationalGraph",
    "DerivativeReport",
    "EliminationOrder",
    "FallbackError",
    "GraphaxLaplError",
    "InternalError",
    "InvalidArgumentError",
    "InvalidOrderError",
    "InvalidTypeError",
    "LaplacianResult",
    "OpCounts",
    "Plan",
    "PlanMismatchError",
    "SparseJacobian",
    "check_derivatives",
    "compare_orders",
    "computational_graph",
    "count_ops",
    "divergence_ve",
    "elimination_graph",
    "forward_laplacian",
    "hessve",
    "jacve",
    "laplacian_ve",
    "make_plan",
    "multilinear",
    "register_partial",
    "unregister_partial",
    "value_and_jacve",
]
