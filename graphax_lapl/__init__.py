"""Derivatives in JAX by vertex elimination on the computational graph."""

from .api.analysis import (
    Comparison,
    ComparisonRow,
    compare_orders,
    computational_graph,
    count_ops,
    make_plan,
)
from .api.compression import Compressed
from .api.divergence import divergence_ve
from .api.hessian import hessve
from .api.jacobian import jacve, value_and_jacve
from .api.laplacian import LaplacianResult, forward_laplacian, laplacian_ve
from .api.orders import EliminationOrder, elimination_graph
from .api.plan import Plan
from .api.sparse import SparseJacobian
from .errors import (
    GraphaxLaplError,
    InternalError,
    InvalidArgumentError,
    InvalidOrderError,
    InvalidTypeError,
    PlanMismatchError,
)
from .graph.computational_graph import ComputationalGraph
from .program.counts import OpCounts

__version__ = "0.1.0"

__all__ = [
    "Comparison",
    "ComparisonRow",
    "Compressed",
    "ComputationalGraph",
    "EliminationOrder",
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
    "value_and_jacve",
]
