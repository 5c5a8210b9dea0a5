"""Dear functions of many samples, which branches for single numbers would not vectorise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import jacve
from graphax_lapl.emit.tape import Tape
from graphax_lapl.emit.unvectorised import held_for_vectors, unvectorised
from graphax_lapl.program.fusion import HOLDING
from graphax_lapl.program.timings import UNVECTORISED
from tests.checks import primitives

KIND = np.dtype(np.float32)


def surprise(x):
    """Its slopes are logarithms, each of them in one entry."""
    return -jnp.log(x) - 0.5 * jnp.log(x) ** 2


def logits(x):
    """Slopes in a column as well."""
    return jnp.log(x / (1.5 - x)) * x[0]


def returns(x):
    """Cumulated, discounted by exponentials of sums."""
    return jnp.cumsum(jnp.exp(-jnp.cumsum(x[:6])) * x[6:])


def bell(x):
    """Eight exponentials, each of them in three entries."""
    return x[0] * jnp.exp(-(((jnp.linspace(0.0, 1.0, 8, dtype=x.dtype) - x[1]) / x[2]) ** 2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fun", "size"),
    [(surprise, 4), (logits, 7), (returns, 12), (bell, 3)],
    ids=["surprise", "logits", "returns", "bell"],
)
@pytest.mark.parametrize("samples", [3, 300, 4096])
def test_against_jax(fun, size, samples):
    x = jax.random.uniform(jax.random.key(0), (samples, size), jnp.float64, 0.3, 1.2)
    found = jax.jit(jax.vmap(jacve(fun)))(x)
    np.testing.assert_allclose(found, jax.vmap(jax.jacfwd(fun))(x), rtol=1e-11, atol=1e-13)


def recorded(moves=True):
    """Two logarithms in a row, and an exponential of their sum."""
    tape = Tape()
    x = tape.input((2,), KIND, moves)
    logs = [tape.record("log", jnp.log, (number,), KIND) for number in x]
    both = tape.record("exp", jnp.exp, (tape.record("add", jnp.add, logs, KIND),), KIND)
    results = [np.array([*logs, both, x[0]], object)]
    return tape, results, [number.place for number in (*logs, both)]


def held(tape, results, samples, memory=()):
    needed, _, joined = tape.needed(results)
    return held_for_vectors(needed, joined, memory, samples, HOLDING)


def test_as_many_samples_as_pay_for_a_kernel():
    tape, results, (first, second, both) = recorded()
    assert held(tape, results, 300) == set()
    assert held(tape, results, 2048) == {first, second}  # exponentials are less dear
    assert held(tape, results, 4096) == {first, second, both}
    assert held(tape, results, 4096, {first}) == {second, both}


def test_what_kernels_along_the_samples_read_is_vectorised():
    tape, results, (*logs, both) = recorded()
    only = [np.array([results[0][2], results[0][3]], object)]
    assert held(tape, only, 4096) == {both}
    assert held(tape, only, 4096, {both}) == set()
    assert held(tape, only, 2048) == set(logs)


def test_common_numbers_are_not_evaluated_for_every_sample():
    tape, results, _ = recorded(moves=False)
    assert held(tape, results, 4096) == set()


def test_what_branches_take_longer():
    tape, results, _ = recorded()
    needed, wanted, _ = tape.needed(results)
    once, dear = UNVECTORISED["log"], UNVECTORISED["exp"]
    # The third number evaluates both logarithms again.
    assert unvectorised(needed, wanted, 300) == pytest.approx(4 * once + dear)
    assert unvectorised(needed, wanted, 2048) == pytest.approx(dear)
    assert unvectorised(needed, wanted, 4096) == 0.0


@pytest.mark.parametrize(("samples", "count"), [(512, 0), (4096, 4)])
def test_diagonals_of_logarithms_are_arrays_or_held(samples, count):
    jaxpr = jax.make_jaxpr(jax.vmap(jacve(surprise)))(jnp.ones((samples, 4), jnp.float32)).jaxpr
    assert primitives(jaxpr, ("log",))[samples,] == count


def test_wide_exponentials_are_arrays():
    jaxpr = jax.make_jaxpr(jax.vmap(jacve(bell)))(jnp.ones((4096, 3), jnp.float32)).jaxpr
    assert primitives(jaxpr, ("exp",)) == {(4096, 8): 1}
