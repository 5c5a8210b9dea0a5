"""Batches whose samples are evaluated in chunks, where much would be held for all of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import jacve, value_and_jacve
from graphax_lapl.emit import small_programs
from graphax_lapl.emit.chunks import in_chunks
from graphax_lapl.emit.small_programs import BATCH

SIZE = 5 * BATCH + 3


def draw(seed, *shape):
    return jax.random.uniform(jax.random.key(seed), shape, jnp.float64, -3.0, 3.0)


def links(a, b, c, d):
    """Every sine and cosine is read by most of the derivatives."""
    sines, cosines = zip(*[(jnp.sin(t), jnp.cos(t)) for t in (a, b, c, d)], strict=True)
    x, y = cosines[0], sines[0]
    for s, t in zip(sines[1:], cosines[1:], strict=True):
        x, y = x * t - y * s * 0.5, y * t + x * s
    return x, y, jnp.arctan2(y, x), jnp.sqrt(1 + x * x + y * y)


def packed(angles):
    return jnp.stack(links(*angles))


def has_loop(fun, *args):
    text = str(jax.make_jaxpr(fun)(*args))
    return "while[" in text or "scan[" in text


def compare(found, expected):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-11), found, expected
    )


@pytest.fixture
def one_device(monkeypatch):
    monkeypatch.setattr(small_programs, "can_be_in_chunks", lambda: True)


@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("size", [16 * BATCH, SIZE])
def test_a_batch_of_numbers(size):
    args = draw(0, 4, size)
    # One sample, in the last chunk, for which the library is called.
    args = (args[0].at[-1].set(1e8), *args[1:3], draw(1))
    axes = (0, 0, 0, None)
    fun = jax.vmap(value_and_jacve(links, argnums=(0, 1, 2, 3)), axes)
    assert has_loop(fun, *args)
    jacobian = jax.vmap(jax.jacrev(links, (0, 1, 2, 3)), axes)(*args)
    compare(jax.jit(fun)(*args), (jax.vmap(links, axes)(*args), jacobian))


@pytest.mark.usefixtures("one_device")
def test_results_that_are_packed():
    angles = draw(2, SIZE, 4)
    fun = jax.vmap(jacve(packed))
    assert has_loop(fun, angles)
    compiled = jax.jit(fun).lower(angles).compile()
    compare(compiled(angles), jax.vmap(jax.jacrev(packed))(angles))
    # Beside 16 numbers of the result more would be held: these numbers, sines and cosines.
    assert compiled.memory_analysis().temp_size_in_bytes < 0.6 * 16 * 8 * SIZE


@pytest.mark.usefixtures("one_device")
def test_derivatives_of_chunks_and_batches_of_batches():
    angles = draw(3, SIZE, 4)

    def total(derivative):
        return lambda x: jnp.sum(jax.vmap(derivative(packed))(x) ** 2)

    compare(jax.jit(jax.grad(total(jacve)))(angles), jax.grad(total(jax.jacrev))(angles))
    twice = angles.reshape(1, SIZE, 4) + jnp.array([0.0, 1.0]).reshape(2, 1, 1)
    expected = jax.vmap(jax.vmap(jax.jacrev(packed)))(twice)
    compare(jax.jit(jax.vmap(jax.vmap(jacve(packed))))(twice), expected)


def test_on_several_devices_a_batch_is_evaluated_at_once(monkeypatch):
    monkeypatch.setattr(small_programs, "can_be_in_chunks", lambda: False)
    assert not has_loop(jax.vmap(jacve(packed)), draw(2, SIZE, 4))


@pytest.mark.parametrize("chunk", [1, 4, 7, 10])
def test_all_samples_of_all_chunks(chunk):
    x, y = jnp.arange(10.0), jnp.float64(2.0)
    found = {"sum": jax.ShapeDtypeStruct((), x.dtype)}
    run = in_chunks(lambda inputs: {"sum": inputs[0] + inputs[1]}, (True, False), 10, chunk, found)
    np.testing.assert_array_equal(run([x, y])["sum"], x + 2.0)
