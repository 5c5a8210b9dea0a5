"""Problems written from published equations, one family per file.

`PROBLEMS` holds them by name; those of the group "more" are measured when asked for. Every function
takes one input; batches are made with `jax.vmap`.
"""

from benchmarks.problems import (
    black_scholes,
    bratu,
    brusselator,
    chain,
    helmholtz_energy,
    human_heart_dipole,
    kerr_sen,
    lighthouse,
    motion,
    poses,
    propane_combustion,
    recurrent,
    robot_arm,
    roe_flux,
    training,
)
from benchmarks.problems.problem import Problem

_FAMILIES = (
    roe_flux,
    robot_arm,
    brusselator,
    human_heart_dipole,
    propane_combustion,
    black_scholes,
    lighthouse,
    helmholtz_energy,
    kerr_sen,
    training,
    chain,
    motion,
    poses,
    bratu,
    recurrent,
)

PROBLEMS: dict[str, Problem] = {
    problem.name: problem for family in _FAMILIES for problem in family.PROBLEMS
}

__all__ = ["PROBLEMS", "Problem"]
