from .api.analysis import (
    Comparison as Comparison,
    ComparisonRow as ComparisonRow,
    compare_orders as compare_orders,
    computational_graph as computational_graph,
    count_ops as count_ops,
    make_plan as make_plan,
)
from .api.autotune import Autotune as Autotune
from .api.batching import batched_vmap as batched_vmap
from .api.checking import (
    CheckRow as CheckRow,
    DerivativeReport as DerivativeReport,
    check_derivatives as check_derivatives,
)
from .api.compression import Compressed as Compressed
from .api.divergence import divergence_ve as divergence_ve
from .api.hessian import (
    hessve as hessve,
    value_and_hessve as value_and_hessve,
)
from .api.hessian_parts import (
    hessian_diagonal as hessian_diagonal,
    hessian_vector_product as hessian_vector_product,
)
from .api.jacobian import (
    jacve as jacve,
    value_and_jacve as value_and_jacve,
)
from .api.laplacian import (
    LaplacianResult as LaplacianResult,
    forward_laplacian as forward_laplacian,
    laplacian_ve as laplacian_ve,
)
from .api.multilinear import multilinear as multilinear
from .api.operators import (
    local_kinetic_energy as local_kinetic_energy,
    second_order_operator as second_order_operator,
)
from .api.orders import (
    EliminationOrder as EliminationOrder,
    elimination_graph as elimination_graph,
)
from .api.plan import Plan as Plan
from .api.sparse import SparseJacobian as SparseJacobian
from .api.stochastic import (
    Hutchinson as Hutchinson,
    HutchPlusPlus as HutchPlusPlus,
)
from .errors import (
    CollectiveError as CollectiveError,
    FallbackError as FallbackError,
    GraphaxLaplError as GraphaxLaplError,
    InternalError as InternalError,
    InvalidArgumentError as InvalidArgumentError,
    InvalidOrderError as InvalidOrderError,
    InvalidTypeError as InvalidTypeError,
    MutableArrayError as MutableArrayError,
    NonlinearRuleError as NonlinearRuleError,
    NotDifferentiableError as NotDifferentiableError,
    PlanMismatchError as PlanMismatchError,
)
from .graph.computational_graph import ComputationalGraph as ComputationalGraph
from .program.counts import OpCounts as OpCounts
from .rules.custom import (
    register_partial as register_partial,
    unregister_partial as unregister_partial,
)

__version__: str
