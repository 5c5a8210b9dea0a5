"""The suite `sparse`: sparse Jacobians and Hessians against colouring and hand-written code.

    python -m benchmarks sparse

The peers asdex and sparsejac are timed where they are installed (`pip install -e ".[peers]"`).
"""

from benchmarks.core.suite import Suite
from benchmarks.problems.sparse import SPARSE_PROBLEMS
from benchmarks.sparse.measure import measure_problem
from benchmarks.sparse.tables import tables

SUITE = Suite(
    "sparse",
    tuple(SPARSE_PROBLEMS),
    measure_problem,
    tables,
    ("ours", "ours, data"),
    timeout=300.0,
    # JAX would hand some of these short programs to another thread, which on a busy machine takes
    # longer than they do.
    asynchronous=False,
)
