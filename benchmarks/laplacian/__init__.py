"""The suite `laplacian`: Laplacians and divergences, as values and in a training step.

    python -m benchmarks laplacian

The peer folx is timed where it is installed (`pip install -e ".[peers]"`).
"""

from benchmarks.core.suite import Suite
from benchmarks.laplacian.measure import measure_problem
from benchmarks.laplacian.methods import OURS
from benchmarks.laplacian.tables import tables
from benchmarks.problems.groups import names_in
from benchmarks.problems.laplacian import LAPLACIAN_PROBLEMS

SUITE = Suite(
    "laplacian",
    names_in(LAPLACIAN_PROBLEMS, "named"),
    measure_problem,
    tables,
    (OURS,),
    more=names_in(LAPLACIAN_PROBLEMS, "more"),
)
