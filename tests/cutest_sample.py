"""A sample of the public CUTEst collection, written from the problems' published formulas.

Objectives and constraints of the kinds that the collection is made of: sums of group functions over
overlapping windows, least squares of exponential fits, unrolled loops over data, networks, and
functions whose start is a kink or whose neighbourhood leaves their domain. `make conformance` runs
the whole collection from the package sif2jax.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["PROBLEMS", "Problem"]


@dataclass(frozen=True)
class Problem:
    """An objective, constraints (or None), and where the search for a minimum starts."""

    start: np.ndarray
    objective: Callable[[Any], Any]
    constraints: Callable[[Any], Any] | None = None


def problem(start: Any, objective: Any, constraints: Any = None) -> Problem:
    return Problem(np.asarray(start, float), objective, constraints)


def squares(residuals: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: jnp.sum(jnp.square(residuals(x)))


def rosenbrock(x: Any) -> Any:
    """ROSENBR, extended to any even number of variables (SROSENBR)."""
    even, odd = x[::2], x[1::2]
    return jnp.sum(100.0 * (odd - even**2) ** 2 + (1.0 - even) ** 2)


def woods(x: Any) -> Any:
    """WOODS: four variables at a time."""
    a, b, c, d = x.reshape(-1, 4).T
    return jnp.sum(
        100.0 * (b - a**2) ** 2
        + (1.0 - a) ** 2
        + 90.0 * (d - c**2) ** 2
        + (1.0 - c) ** 2
        + 10.0 * (b + d - 2.0) ** 2
        + 0.1 * (b - d) ** 2
    )


def powell(x: Any) -> Any:
    """POWELLSG, whose Hessian is singular at the solution."""
    a, b, c, d = x.reshape(-1, 4).T
    return jnp.sum(
        (a + 10.0 * b) ** 2 + 5.0 * (c - d) ** 2 + (b - 2.0 * c) ** 4 + 10.0 * (a - d) ** 4
    )


def arrowhead(x: Any) -> Any:
    """ARWHEAD: every variable meets the last one."""
    return jnp.sum((x[:-1] ** 2 + x[-1] ** 2) ** 2 - 4.0 * x[:-1] + 3.0)


def broyden_tridiagonal(x: Any) -> Any:
    """BROYDN3D: residuals over windows of three variables, with zeros beyond the ends."""
    padded = jnp.pad(x, 1)
    return (3.0 - 2.0 * x) * x - padded[:-2] - 2.0 * padded[2:] + 1.0


def broyden_banded(x: Any) -> Any:
    """BROYDNBD, as a loop over rows with a window that the ends cut."""
    rows = []
    for i in range(x.shape[0]):
        window = [j for j in range(max(0, i - 5), min(x.shape[0], i + 2)) if j != i]
        near = x[jnp.array(window)]
        rows.append(x[i] * (2.0 + 5.0 * x[i] ** 2) + 1.0 - jnp.sum(near * (1.0 + near)))
    return jnp.stack(rows)


def boundary_value(x: Any) -> Any:
    """MOREBV: a two-point boundary value problem."""
    h = 1.0 / (x.shape[0] + 1)
    t = h * jnp.arange(1.0, x.shape[0] + 1)
    padded = jnp.pad(x, 1)
    return 2.0 * x - padded[:-2] - padded[2:] + 0.5 * h**2 * (x + t + 1.0) ** 3


def integral_equation(x: Any) -> Any:
    """INTEGREQ: a discretised integral equation, dense."""
    n = x.shape[0]
    h = 1.0 / (n + 1)
    t = h * jnp.arange(1.0, n + 1)
    cubes = (x + t + 1.0) ** 3
    left, right = jnp.cumsum(t * cubes), jnp.cumsum(((1.0 - t) * cubes)[::-1])[::-1]
    return x + 0.5 * h * ((1.0 - t) * left + t * jnp.append(right[1:], 0.0))


def trigonometric(x: Any) -> Any:
    """ARGTRIG."""
    n = x.shape[0]
    index = jnp.arange(1.0, n + 1)
    return n - jnp.sum(jnp.cos(x)) + index * (1.0 - jnp.cos(x)) - jnp.sin(x)


def chebyquad(x: Any) -> Any:
    """CHEBYQAD: means of shifted Chebyshev polynomials, by the arc cosine; defined on [0, 1]."""
    degrees = jnp.arange(1.0, x.shape[0] + 1)
    values = jax.vmap(lambda a: jnp.cos(degrees * jnp.arccos(2.0 * a - 1.0)))(x)
    exact = jnp.where(degrees % 2 == 0, -1.0 / jnp.maximum(degrees**2 - 1.0, 1.0), 0.0)
    return jnp.mean(values, axis=0) - exact


BARD_Y = np.array([0.14, 0.18, 0.22, 0.25, 0.29, 0.32, 0.35, 0.39, 0.37, 0.58, 0.73, 0.96, 1.34])


def bard(x: Any) -> Any:
    """BARD, its first thirteen observations."""
    u = np.arange(1.0, 14.0)
    v = 16.0 - u
    w = np.minimum(u, v)
    return BARD_Y - (x[0] + u / (v * x[1] + w * x[2]))


def biggs(x: Any) -> Any:
    """BIGGS6: a fit by three exponentials."""
    t = 0.1 * np.arange(1.0, 14.0)
    y = np.exp(-t) - 5.0 * np.exp(-10.0 * t) + 3.0 * np.exp(-4.0 * t)
    return x[2] * jnp.exp(-t * x[0]) - x[3] * jnp.exp(-t * x[1]) + x[5] * jnp.exp(-t * x[4]) - y


def osborne(x: Any) -> Any:
    """The model of OSBORNEA, written as one unrolled equation per observation."""
    rows = []
    for i in range(12):
        t = 10.0 * i
        rows.append(0.8 - x[0] - x[1] * jnp.exp(-t * x[3]) - x[2] * jnp.exp(-t * x[4]))
    return jnp.array(rows)


def likelihood(x: Any) -> Any:
    """HS105: a mixture of three normal densities, unrolled over (fewer) observations."""
    a, b, m1, m2, m3, s1, s2, s3 = x
    total = 0.0
    for y in np.linspace(95.0, 250.0, 12):
        total = total + jnp.log(
            a / s1 * jnp.exp(-((y - m1) ** 2) / (2 * s1**2))
            + b / s2 * jnp.exp(-((y - m2) ** 2) / (2 * s2**2))
            + (1 - a - b) / s3 * jnp.exp(-((y - m3) ** 2) / (2 * s3**2))
        )
    return -total


def deconvolution(x: Any) -> Any:
    """DECONVB with a shorter signal: a convolution with unknown kernel, by two nested loops."""
    signal, kernel = x[:12], x[12:]
    result = jnp.zeros(12)
    for k in range(12):
        row = 0.0
        for i in range(min(4, k + 1)):
            row += kernel[i] * signal[k - i]
        result = result.at[k].set(row - 0.1 * k)
    return result


def elattar(x: Any) -> Any:
    """ELATTAR with fewer observations: pairs of bounds, one entry at a time."""
    t = 0.1 * np.arange(9)
    residuals = x[0] * jnp.exp(-x[1] * t) * jnp.cos(x[2] * t + x[3]) + x[4] * jnp.exp(-x[5] * t)
    pairs = []
    for i in range(9):
        pairs += [residuals[i] - x[6], -residuals[i] - x[6]]
    return jnp.array(pairs)


def pipes(x: Any) -> Any:
    """Terms of DALLASS: flow to the power 2.85, guarded at zero, and an elliptic pump."""
    size = jnp.abs(x)
    safe = jnp.maximum(size, 1e-10)
    flow = jnp.where(size < 1e-10, 0.0, 3.0 * safe**2.85)
    inside = jnp.sqrt(jnp.maximum(25.0 * (4.0 - x**2), 1e-14))
    pump = -0.5 * (x * inside + 20.0 * jnp.arcsin(jnp.clip(x / 2.0, -1.0, 1.0)))
    return jnp.sum(flow[2:]) + jnp.sum(pump[:2])


def walukiewicz(x: Any) -> Any:
    """S365: square roots of squares, at a start where one of them is zero."""
    p = jnp.sqrt(x[1] * x[1]) + x[2] * x[2]
    q = jnp.sqrt(x[2] * x[2]) + (x[1] - x[0]) ** 2
    return jnp.array(
        [
            (x[3] - x[5]) ** 2 + (x[4] - x[6]) ** 2 - 4.0,
            x[2] * x[3] - x[1] * x[4] - p,
            x[2] * x[5] - x[1] * x[6] - p,
            x[0] * x[2] + x[1] * x[4] - x[0] * x[4] - x[2] * x[3] - q,
            x[0] * x[2] + x[1] * x[6] - x[0] * x[6] - x[2] * x[5] - q,
        ]
    )


def hs110(x: Any) -> Any:
    """HS110: logarithms that the point beside the start leaves the domain of."""
    return jnp.sum(jnp.log(x - 2.0) ** 2 + jnp.log(10.0 - x) ** 2) - jnp.prod(x) ** 0.2


def hs71(x: Any) -> Any:
    return x[0] * x[3] * (x[0] + x[1] + x[2]) + x[2]


def hs71_constraints(x: Any) -> Any:
    return jnp.stack([jnp.prod(x) - 25.0, jnp.sum(x**2) - 40.0])


def membrane(x: Any) -> Any:
    """TORSION1 on a small grid: a quadratic energy of differences."""
    u = jnp.pad(x.reshape(5, 5), 1)
    right, down = u[:, 1:] - u[:, :-1], u[1:] - u[:-1]
    return 0.5 * (jnp.sum(right**2) + jnp.sum(down**2)) - 0.2 * jnp.sum(u)


def minimal_surface(x: Any) -> Any:
    """LMINSURF on a small grid."""
    u = x.reshape(5, 5)
    first = u[1:, 1:] - u[:-1, :-1]
    second = u[:-1, 1:] - u[1:, :-1]
    return jnp.sum(jnp.sqrt(1.0 + 8.0 * (first**2 + second**2)))


def chain(x: Any) -> Any:
    """HANGING in one dimension: squared lengths of the links of a chain."""
    points = x.reshape(-1, 2)
    return jnp.sum((points[1:] - points[:-1]) ** 2, axis=1) - 1.0


COUNT = np.arange(1.0, 13.0)

PROBLEMS: dict[str, Problem] = {
    "SROSENBR": problem(np.tile([-1.2, 1.0], 5), rosenbrock),
    "WOODS": problem(np.tile([-3.0, -1.0], 4), woods),
    "POWELLSG": problem(np.tile([3.0, -1.0, 0.0, 1.0], 2), powell),
    "ARWHEAD": problem(np.ones(9), arrowhead),
    "BROYDN3D": problem(-np.ones(12), squares(broyden_tridiagonal), broyden_tridiagonal),
    "BROYDNBD": problem(-np.ones(12), squares(broyden_banded), broyden_banded),
    "MOREBV": problem(COUNT / 13 * (COUNT / 13 - 1), squares(boundary_value), boundary_value),
    "INTEGREQ": problem(
        COUNT / 13 * (COUNT / 13 - 1), squares(integral_equation), integral_equation
    ),
    "ARGTRIG": problem(np.full(10, 0.1), squares(trigonometric), trigonometric),
    "CHEBYQAD": problem(np.arange(1.0, 8.0) / 8, squares(chebyquad), chebyquad),
    "BARD": problem(np.ones(3), squares(bard), bard),
    "BIGGS6": problem([1.0, 2.0, 1.0, 1.0, 4.0, 3.0], squares(biggs), biggs),
    "OSBORNEA": problem([0.5, 1.5, -1.0, 0.01, 0.02], squares(osborne), osborne),
    "HS105": problem([0.1, 0.2, 100.0, 125.0, 175.0, 11.2, 13.2, 15.8], likelihood),
    "DECONVB": problem(
        np.append(np.linspace(0.0, 1.0, 12), [0.01, 0.4, 0.8, 0.1]),
        squares(deconvolution),
        deconvolution,
    ),
    "ELATTAR": problem([-2.0, -2.0, 7.0, 0.0, -2.0, 1.0, 0.0], lambda x: x[6], elattar),
    "DALLASS": problem([0.7, -1.9, 1.0, 0.0, 2.5], pipes),
    "S365": problem([3.0, 0.0, 2.0, -1.5, 1.5, 5.0, 0.0], lambda x: x[0] * x[2], walukiewicz),
    "HS110": problem(np.full(10, 9.0), hs110),
    "HS71": problem([1.0, 5.0, 5.0, 1.0], hs71, hs71_constraints),
    "TORSION1": problem(np.linspace(0.0, 1.0, 25), membrane),
    "LMINSURF": problem(np.sin(np.arange(25.0)), minimal_surface),
    "HANGING": problem(np.linspace(0.0, 3.0, 16), lambda x: jnp.sum(x[1::2]), chain),
}
