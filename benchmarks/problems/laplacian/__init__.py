"""Problems of second order, one family per file.

`LAPLACIAN_PROBLEMS` holds them by name; those of the group "more" are measured when asked for. Each
makes a function of parameters and one input, with random parameters and a batch of inputs.
"""

from benchmarks.problems.laplacian import (
    analytic,
    attention,
    densities,
    networks,
    particles,
    surrogates,
    wave_functions,
)
from benchmarks.problems.laplacian.problem import Instance, LaplacianProblem

_FAMILIES = (networks, analytic, particles, wave_functions, densities, surrogates, attention)

LAPLACIAN_PROBLEMS: dict[str, LaplacianProblem] = {
    problem.name: problem for family in _FAMILIES for problem in family.PROBLEMS
}

__all__ = ["LAPLACIAN_PROBLEMS", "Instance", "LaplacianProblem"]
