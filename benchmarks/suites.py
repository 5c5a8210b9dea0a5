"""All suites, by name."""

from benchmarks import compile_time, gpu, jacobian, laplacian, memory, planner, sparse
from benchmarks.core.suite import Suite

SUITES: dict[str, Suite] = {
    module.SUITE.name: module.SUITE
    for module in (jacobian, sparse, laplacian, planner, compile_time, memory, gpu)
}
