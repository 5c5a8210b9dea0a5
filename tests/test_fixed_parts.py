"""Linear maps between nonlinear functions: applied, and what does not move multiplied first."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import jacve, make_plan
from graphax_lapl.edges.operations import ApplyOpaque, Einsum
from graphax_lapl.program.counts import work_per_sample

RNG = np.random.default_rng(9)
COUNT = 24
WEIGHTS: Any = np.exp(-np.arange(COUNT // 2 + 1) / 3.0)
PHASES: Any = np.exp(1j * RNG.normal(size=COUNT // 2 + 1))
FIRST: Any = RNG.normal(size=(20, COUNT))
SECOND: Any = RNG.normal(size=(18, 20))


@pytest.fixture(autouse=True)
def _real_times_complex() -> Iterator[None]:
    with jax.numpy_dtype_promotion("standard"):
        yield


def low_pass(x: jax.Array, weights: Any = WEIGHTS) -> jax.Array:
    """Real numbers whose high frequencies are damped."""
    return jnp.fft.irfft(jnp.fft.rfft(x) * weights, n=x.shape[-1])


def gated(x: jax.Array) -> jax.Array:
    """What depends on the point stands between both transforms."""
    frequencies = jnp.fft.rfft(jnp.sin(x))
    return jnp.fft.irfft(frequencies * jnp.abs(frequencies) ** 2 * PHASES, n=COUNT)


def spectral(u: jax.Array) -> jax.Array:
    """Burgers' equation with derivatives by transforms."""
    k = 1j * jnp.arange(COUNT // 2 + 1)
    slope = jnp.fft.irfft(k * jnp.fft.rfft(u), n=COUNT)
    return -u * slope + 0.1 * jnp.fft.irfft(k * k * jnp.fft.rfft(u), n=COUNT)


FUNCTIONS: dict[str, tuple[Callable[[jax.Array], jax.Array], tuple[int, ...]]] = {
    "low pass": (low_pass, (COUNT,)),
    "between functions": (lambda x: jnp.tanh(low_pass(jnp.sin(x))), (COUNT,)),
    "turned phases": (lambda x: jnp.tanh(low_pass(jnp.sin(x), PHASES)), (COUNT,)),
    "rows of an array": (lambda x: jnp.tanh(low_pass(x**2)), (3, COUNT)),
    "an odd number": (lambda x: low_pass(x**2, WEIGHTS[:5]) ** 2, (9,)),
    "spectral derivative": (spectral, (COUNT,)),
    "power": (lambda x: jnp.abs(jnp.fft.rfft(x * x)) ** 2, (COUNT,)),
    "gated": (gated, (COUNT,)),
    "in two dimensions": (
        lambda x: jnp.sin(jnp.fft.irfft2(jnp.fft.rfft2(x**2) * PHASES[:3], s=(3, 4))),
        (3, 4),
    ),
    "complex transforms": (
        lambda x: jnp.real(jnp.fft.ifft(jnp.fft.fft(x**3) * PHASES[:9])) ** 2,
        (9,),
    ),
    "imaginary part": (lambda x: jnp.imag(jnp.fft.fft(x**3) * PHASES[0]) ** 2, (9,)),
    "one transform of a longer array": (lambda x: jnp.fft.irfft(x + 1j * x**2, n=12), (9,)),
    "layers": (lambda x: jnp.tanh(SECOND @ (FIRST @ jnp.sin(x))), (COUNT,)),
}


@pytest.mark.parametrize("order", ["auto", "forward", "reverse"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_jacobians(name: str, order: str) -> None:
    fun, shape = FUNCTIONS[name]
    x = jnp.asarray(RNG.normal(size=(3, *shape)))
    ours, theirs = jacve(fun, order=order), jax.jit(jax.jacfwd(fun))
    np.testing.assert_allclose(ours(x[0]), theirs(x[0]), atol=1e-10)
    np.testing.assert_allclose(jax.jit(jax.vmap(ours))(x), jax.vmap(theirs)(x), atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["between functions", "gated", "layers"])
def test_derivatives_of_jacobians(name: str) -> None:
    fun, shape = FUNCTIONS[name]
    x = jnp.asarray(RNG.normal(size=shape))

    def loss(jacobian: Callable[..., Any]) -> Callable[[jax.Array], jax.Array]:
        return lambda x: jnp.sum(jnp.sin(jacobian(fun)(x)))

    ours, theirs = jax.grad(loss(jacve))(x), jax.grad(loss(jax.jacfwd))(x)
    np.testing.assert_allclose(ours, theirs, atol=1e-9)


def test_complex_arguments() -> None:
    def fun(z: jax.Array) -> jax.Array:
        return jnp.fft.fft(jnp.fft.ifft(z) * PHASES[:9]) ** 2

    z = jnp.asarray(RNG.normal(size=9) + 1j * RNG.normal(size=9))
    ours = jacve(fun)(z)
    np.testing.assert_allclose(ours, jax.jit(jax.jacfwd(fun, holomorphic=True))(z), atol=1e-10)


@pytest.mark.parametrize("name", ["between functions", "spectral derivative", "layers"])
def test_one_of_many_samples_has_its_slopes_only(name: str) -> None:
    fun, shape = FUNCTIONS[name]
    x = jnp.asarray(RNG.normal(size=shape))
    plan, other = make_plan(fun, x), make_plan(fun, x, order="reverse")
    work = [work_per_sample(p.program, p.moving) for p in (plan, other)]
    assert work[0] < work[1] / 2
    assert plan.predicted_work < 1.25 * other.predicted_work


def test_sums_of_known_numbers_are_taken_once() -> None:
    """The coupling of a network to its neighbours is one matrix, whatever it is written as."""
    coupling = jnp.asarray(np.abs(FIRST[:, :20]))

    def fun(x: jax.Array) -> jax.Array:
        return jnp.tanh((coupling * (x[:, None] - x[None])).sum(1))

    x = jnp.asarray(RNG.normal(size=20))
    plan = make_plan(fun, x)
    assert "fixed parts first" in plan.order.method
    np.testing.assert_allclose(jacve(fun)(x), jax.jit(jax.jacfwd(fun))(x), atol=1e-12)
    own, other = (
        work_per_sample(p.program, p.moving, function=False)
        for p in (plan, make_plan(fun, x, order="reverse"))
    )
    assert own < other / 2


def test_weights_that_are_differentiated_stay_where_they_are() -> None:
    def fun(x: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
        return jnp.tanh(second @ (first @ jnp.sin(x)))

    x = jnp.asarray(RNG.normal(size=COUNT))
    plan = make_plan(fun, x, FIRST, SECOND, argnums=(0, 1, 2))
    assert "fixed" not in plan.order.method


def test_transforms_are_applied_to_columns() -> None:
    x = jnp.asarray(RNG.normal(size=COUNT))
    steps = [getattr(i, "operation", None) for i in make_plan(low_pass, x).program.instructions]
    assert any(isinstance(step, ApplyOpaque) for step in steps)
    assert not any(isinstance(step, Einsum) and step.summed for step in steps)
