"""Problems with a sparse Jacobian or Hessian, one family per file.

`SPARSE_PROBLEMS` holds them by name. Each makes a function of one vector, an input, and the entries
of its derivative written by hand.
"""

from benchmarks.problems.sparse import (
    arrowhead,
    brusselator,
    bundle_adjustment,
    burgers,
    cell_chain,
    collocation,
    graph_regulariser,
    heat,
    lorenz96,
    lotka_volterra,
    mass_action,
    minimisation,
    networks,
    robertson,
    torsion,
    transport,
)
from benchmarks.problems.sparse.problem import Instance, SparseProblem

_FAMILIES = (
    burgers,
    brusselator,
    heat,
    lorenz96,
    robertson,
    mass_action,
    lotka_volterra,
    networks,
    arrowhead,
    collocation,
    bundle_adjustment,
    minimisation,
    graph_regulariser,
    torsion,
    transport,
    cell_chain,
)

SPARSE_PROBLEMS: dict[str, SparseProblem] = {
    problem.name: problem for family in _FAMILIES for problem in family.PROBLEMS
}

__all__ = ["SPARSE_PROBLEMS", "Instance", "SparseProblem"]
