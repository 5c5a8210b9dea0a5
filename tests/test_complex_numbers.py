"""Complex functions of a few numbers in batches: optics, gates and circuits, number by number."""

from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import hessve, jacve, laplacian_ve
from graphax_lapl.emit.small_programs import BATCH

#: Real and complex numbers meet, as they do in users' programs.
pytestmark = pytest.mark.usefixtures("standard_promotion")


def draw(seed: int, *shape: int) -> jax.Array:
    return jax.random.uniform(jax.random.key(seed), shape, jnp.float64, 0.3, 1.2)


def layers(x: jax.Array) -> jax.Array:
    """How much light three thin layers reflect, by their indices of refraction and depths."""
    transfer = jnp.eye(2, dtype=jnp.complex128)
    for index, depth in x:
        phase = 2 * index * depth
        cos, sin = jnp.cos(phase), jnp.sin(phase)
        transfer = transfer @ jnp.array([[cos, 1j * sin / index], [1j * index * sin, cos]])
    inside, outside = transfer @ jnp.array([1.0, 1.5 + 0j])
    return jnp.abs((inside - outside) / (inside + outside)) ** 2


def wave_plates(x: jax.Array) -> jax.Array:
    """Light behind plates of some angles and retardations: complex amplitudes."""
    light = jnp.array([1.0, 0j])
    for angle, delay in x:
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        turn = jnp.array([[cos, -sin], [sin, cos]]).astype(light.dtype)
        plate = jnp.diag(jnp.exp(1j * delay * np.array([0.5, -0.5])))
        light = turn @ (plate @ (turn.T @ light))
    return light


def gates(x: jax.Array) -> jax.Array:
    """Probabilities of four states behind turns of two qubits."""
    state = jnp.zeros((2, 2), jnp.complex128).at[0, 0].set(1.0)
    for first, second in x:
        for qubit, angle in enumerate((first, second)):
            cos, sin = jnp.cos(angle).astype(state.dtype), jnp.sin(angle)
            turn = jnp.array([[cos, -1j * sin], [-1j * sin, cos]])
            state = jnp.moveaxis(jnp.tensordot(turn, state, (1, qubit)), 0, qubit)
        state = state * np.array([[1.0, 1.0], [1.0, -1.0]])
    return jnp.abs(state.ravel()) ** 2


def products(z: jax.Array) -> jax.Array:
    """A holomorphic function of six complex numbers."""
    matrix = z.reshape(2, 3)
    square = matrix @ jnp.conj(jnp.conj(matrix.T) * 1j)
    return jnp.stack([jnp.exp(square[0, 0]) / square[1, 1], square[0, 1] ** 3, jnp.sin(z[0])])


CASES: dict[str, Callable[..., Any]] = {"layers": layers, "plates": wave_plates, "gates": gates}


@pytest.mark.parametrize("samples", [None, 5, BATCH])
@pytest.mark.parametrize("name", CASES)
def test_real_numbers_go_in(name: str, samples: int | None) -> None:
    x = draw(3, *([samples] if samples else []), 3, 2)
    own, theirs = jacve(CASES[name]), jax.jacfwd(CASES[name])
    if samples:
        own, theirs = jax.vmap(own), jax.vmap(theirs)
    lowered = jax.jit(own).lower(x)
    np.testing.assert_allclose(lowered.compile()(x), theirs(x), rtol=1e-9, atol=1e-11)
    # A product of 2 x 2 matrices for each sample is a call for each.
    assert samples is None or "stablehlo.dot_general" not in lowered.as_text()


@pytest.mark.parametrize("samples", [5, BATCH])
def test_complex_numbers_go_in(samples: int) -> None:
    z = draw(4, samples, 6) + 1j * draw(5, samples, 6)
    lowered = jax.jit(jax.vmap(jacve(products, holomorphic=True))).lower(z)
    expected = jax.vmap(jax.jacfwd(products, holomorphic=True))(z)
    np.testing.assert_allclose(lowered.compile()(z), expected, rtol=1e-9, atol=1e-11)
    assert "stablehlo.dot_general" not in lowered.as_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["layers", "gates"])
def test_second_derivatives(name: str) -> None:
    x = draw(6, BATCH, 2, 2)

    def number(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(CASES[name](x)))

    expected = jax.vmap(jax.hessian(number))(x)
    hessian = jax.jit(jax.vmap(hessve(number)))(x)
    np.testing.assert_allclose(hessian, expected, rtol=1e-8, atol=1e-10)
    laplacian = jax.jit(jax.vmap(laplacian_ve(number)))(x)
    traces = jnp.trace(expected.reshape(BATCH, 4, 4), axis1=1, axis2=2)
    np.testing.assert_allclose(laplacian, traces, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_they_lower_for_other_devices(name: str) -> None:
    own = jax.jit(jax.vmap(jacve(CASES[name])))
    exported = jax.export.export(own, platforms=("cpu", "cuda"))(draw(7, BATCH, 3, 2))
    assert exported.platforms == ("cpu", "cuda")
