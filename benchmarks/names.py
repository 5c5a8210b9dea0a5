"""Names of problems in suites that go over several kinds of them: `jacobian.roe_flux`."""

from collections.abc import Mapping
from typing import Any

from benchmarks.problems import PROBLEMS, Problem
from benchmarks.problems.groups import Group, names_in
from benchmarks.problems.laplacian import LAPLACIAN_PROBLEMS, LaplacianProblem
from benchmarks.problems.sparse import SPARSE_PROBLEMS, SparseProblem

JACOBIAN, SPARSE, LAPLACIAN = "jacobian", "sparse", "laplacian"
AnyProblem = Problem | SparseProblem | LaplacianProblem


def names_of(*kinds: str, group: Group = "named") -> tuple[str, ...]:
    """All names of these kinds in a group."""
    tables: dict[str, Mapping[str, Any]] = {
        JACOBIAN: PROBLEMS,
        SPARSE: SPARSE_PROBLEMS,
        LAPLACIAN: LAPLACIAN_PROBLEMS,
    }
    return tuple(f"{kind}.{name}" for kind in kinds for name in names_in(tables[kind], group))


def kind_of(name: str) -> str:
    """The kind in a name."""
    return name.partition(".")[0]


def problem_of(name: str) -> AnyProblem:
    """The problem that a name stands for."""
    kind, _, own = name.partition(".")
    if kind == JACOBIAN:
        return PROBLEMS[own]
    return SPARSE_PROBLEMS[own] if kind == SPARSE else LAPLACIAN_PROBLEMS[own]
