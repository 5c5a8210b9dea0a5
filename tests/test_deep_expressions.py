"""No loop that is compiled has very many paths through it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import hessve, jacve, make_plan
from graphax_lapl.emit.holding import BARRIERS_STAND
from graphax_lapl.program.fusion import Fusion, Step
from graphax_lapl.program.holding import PATHS, FusedProgram, deep_expressions

pytestmark = pytest.mark.smoke
RNG = np.random.default_rng(8)
FRACTIONS = RNG.uniform(0.1, 0.2, 8)


def compressibility(fractions, iterations):
    """The root of a cubic by Newton's method, as in a cubic equation of state."""
    weights = jnp.linspace(0.5, 1.0, fractions.size, dtype=fractions.dtype)
    a = jnp.dot(fractions, weights) ** 2
    b = jnp.dot(fractions, weights[::-1])
    z = 1.0 + 0.0 * a
    for _ in range(iterations):
        value = z**3 - (1 - b) * z**2 + (a - 3 * b**2 - 2 * b) * z - (a * b - b**2 - b**3)
        z = z - value / (3 * z**2 - 2 * (1 - b) * z + (a - 3 * b**2 - 2 * b) + 4)
    return weights * (z - 1) - jnp.log(z + b)


def paths(fused, held):
    """Paths from every slot to what is in memory, followed through the steps of its loop."""
    readers = [slot for step in fused.steps for slot in step.inputs] + list(fused.results)
    counts = {}
    for step in fused.steps:
        below = []
        for slot in step.inputs:
            count, kept = counts.get(slot, (1, False))
            written = slot in held or (kept and readers.count(slot) > 1)
            below.append(1 if written else count)
        for slot in step.outputs:
            counts[slot] = (max(1, sum(below)) if step.inside else 1, step.kept)
    return [count for count, _ in counts.values()]


def doubled(times):
    """`times` sums of a slot with itself, one after the other."""
    steps = [Step((k, k), (k + 1,), 1.0, 4, kept=False, inside=True) for k in range(times)]
    return Fusion(steps, [4] * (times + 1), [times], [True] * (times + 1))


def test_paths_double_with_every_sum_of_a_slot_with_itself():
    assert doubled(9).on_many_paths(1 << 10) == set()
    assert doubled(11).on_many_paths(1 << 10) == {10}
    assert doubled(31).on_many_paths(1 << 10) == {10, 20, 30}


def test_what_is_in_memory_anyway_is_not_held():
    steps = [Step((k, k), (k + 1,), 1.0, 4, k % 10 == 9, True) for k in range(40)]
    assert Fusion(steps, [4] * 41, [40], [True] * 41).on_many_paths(1 << 10) == set()
    own = [Step((k, k), (k + 1,), 1.0, 4, False, k % 10 != 9) for k in range(40)]
    assert Fusion(own, [4] * 41, [40], [True] * 41).on_many_paths(1 << 10) == set()


@pytest.mark.parametrize("order", ["forward", "reverse", "markowitz"])
def test_few_paths_lead_through_a_jacobian(order):
    x = jnp.asarray(FRACTIONS)
    program = make_plan(lambda x: compressibility(x, 8), x, order=order).program
    fused = FusedProgram(program)
    assert max(paths(fused, deep_expressions(program))) < 16 * PATHS


def test_many_paths_lead_through_it_otherwise():
    x = jnp.asarray(FRACTIONS)
    program = make_plan(lambda x: compressibility(x, 8), x, order="forward").program
    assert max(paths(FusedProgram(program), ())) > 1000 * PATHS


def test_shallow_programs_hold_nothing_for_it():
    x = jnp.asarray(FRACTIONS)
    program = make_plan(lambda x: jnp.tanh(x) * x[::-1] ** 2, x, order="forward").program
    assert deep_expressions(program) == set()


def test_expressions_are_divided_where_barriers_stand():
    x = jnp.asarray(FRACTIONS)
    deep, shallow = (
        jax.jit(jacve(lambda x, n=n: compressibility(x, n), order="forward")).lower(x).as_text()
        for n in (8, 1)
    )
    assert ("optimization_barrier" in deep) == BARRIERS_STAND
    assert "optimization_barrier" not in shallow


@pytest.mark.slow
@pytest.mark.parametrize(("count", "dtype"), [(4, jnp.float64), (8, jnp.float32)])
def test_values_of_deep_expressions(count, dtype):
    # As many numbers as a vector register has lanes: what took a compiler minutes.
    x = jnp.asarray(FRACTIONS[:count], dtype)
    tolerance = 1e-9 if dtype == jnp.float64 else 2e-4

    def fun(x):
        return compressibility(x, 8)

    def energy(x):
        return jnp.sum(jnp.cos(fun(x)))

    for order in ("auto", "forward"):
        found = jax.jit(jacve(fun, order=order))(x)
        np.testing.assert_allclose(found, jax.jacfwd(fun)(x), rtol=tolerance, atol=tolerance)
    found = jax.jit(hessve(energy))(x)
    np.testing.assert_allclose(found, jax.hessian(energy)(x), rtol=tolerance, atol=tolerance)
