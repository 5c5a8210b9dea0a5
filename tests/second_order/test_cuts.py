"""The cut that a Laplacian is planned with, against the programs with all other cuts."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import forward_laplacian, laplacian_ve
from graphax_lapl.api import laplacian
from graphax_lapl.program.counts import work_per_sample
from graphax_lapl.program.laplacian import LaplacianPrograms
from tests.checks import assert_same

RNG = np.random.default_rng(0)
NARROW = RNG.normal(size=(3, 12)) / 4
SQUARE = RNG.normal(size=(3, 3))
WIDE = RNG.normal(size=(11, 12)) / 4


def wide_into_narrow(x: Any) -> Any:
    return jnp.sum(jnp.tanh(SQUARE @ jnp.sin(SQUARE @ jnp.tanh(NARROW @ x))))


def through_one_number(x: Any) -> Any:
    return jnp.exp(jnp.sin(jnp.sum(jnp.cos(x) ** 2)))


def barely_narrower(x: Any) -> Any:
    return jnp.sum(jnp.tanh(WIDE.T @ jnp.tanh(WIDE @ x)))


@pytest.mark.parametrize("fun", [wide_into_narrow, through_one_number, barely_narrower])
@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("operator", [laplacian_ve, forward_laplacian])
def test_least_work(
    fun: Callable[[Any], Any],
    order: str,
    operator: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    carried: list[tuple[Any, Any, int | None]] = []

    class Recorded(LaplacianPrograms):
        def program(self, order: Any, cut: int | None = None) -> Any:
            carried.append((self, order, cut))
            return super().program(order, cut)

    monkeypatch.setattr(laplacian, "LaplacianPrograms", Recorded)
    x = jnp.asarray(RNG.normal(size=12))
    result = operator(fun, order=order)(x)
    found = result.laplacian if operator is forward_laplacian else result
    assert_same(found, jnp.trace(jax.jit(jax.hessian(fun))(x)))
    ((programs, vertices, chosen),) = carried
    works = {
        cut: work_per_sample(program, program.inputs[-1:])
        for cut in (None, 0, 1)
        if (program := LaplacianPrograms.program(programs, vertices, cut)) is not None
    }
    assert len(works) > 1
    assert works[chosen] == min(works.values())
