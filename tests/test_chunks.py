"""Batches whose samples are evaluated in chunks, where much would be held for all of them."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import hessian_diagonal, jacve, laplacian_ve, value_and_jacve
from graphax_lapl.api import emission
from graphax_lapl.emit import chunk_sizes, small_programs
from graphax_lapl.emit.chunks import in_chunks
from graphax_lapl.emit.small_programs import BATCH
from graphax_lapl.program import at_once
from graphax_lapl.program.at_once import Footprint

SIZE = 5 * BATCH + 3
SIX = tuple(range(6))


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


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("size", [16 * BATCH, SIZE])
def test_a_batch_of_numbers(size):
    args = draw(0, 4, size)
    # One sample, in the last chunk, for which the library is called.
    args = (args[0].at[-1].set(1e8), *args[1:3], draw(1))
    axes = (0, 0, 0, None)
    fun = jax.vmap(value_and_jacve(links, argnums=(0, 1, 2, 3)), axes)
    assert has_loop(fun, *args)
    jacobian = jax.jit(jax.vmap(jax.jacrev(links, (0, 1, 2, 3)), axes))(*args)
    compare(jax.jit(fun)(*args), (jax.vmap(links, axes)(*args), jacobian))


@pytest.fixture
def packed_in_chunks(one_device, monkeypatch):
    """Joined results are evaluated in chunks whatever is held for them."""
    monkeypatch.setattr(chunk_sizes, "BARRIERS_STAND", True)
    monkeypatch.setattr(chunk_sizes, "CACHED", 1 << 14)
    monkeypatch.setattr(chunk_sizes, "AT_ONCE", 0.0)


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_results_that_are_joined(monkeypatch):
    angles = draw(2, SIZE, 4)
    expected = jax.jit(jax.vmap(jax.jacrev(packed)))(angles)

    def is_in_chunks():
        fun = jax.vmap(jacve(packed))
        compare(jax.jit(fun)(angles), expected)
        return has_loop(fun, angles)

    assert not is_in_chunks()
    monkeypatch.setattr(chunk_sizes, "BARRIERS_STAND", True)
    monkeypatch.setattr(chunk_sizes, "AT_ONCE", 0.5)
    assert not is_in_chunks()  # inside of the cache
    monkeypatch.setattr(chunk_sizes, "CACHED", 1 << 14)
    assert is_in_chunks()
    monkeypatch.setattr(chunk_sizes, "BARRIERS_STAND", False)
    assert not is_in_chunks()
    monkeypatch.setattr(chunk_sizes, "BARRIERS_STAND", True)
    monkeypatch.setattr(chunk_sizes, "AT_ONCE", 2.0)
    assert not is_in_chunks()


def speeds(density, momentum, energy):
    velocity = momentum / density
    pressure = 0.4 * (energy - 0.5 * momentum * velocity)
    return velocity, pressure, jnp.sqrt(1.4 * pressure / density)


def between(*states):
    """A flux between two states (Harten, Lax, van Leer)."""
    (u, p, c), (v, q, d) = speeds(*states[:3]), speeds(*states[3:])
    slow, fast = jnp.minimum(u - c, v - d), jnp.maximum(u + c, v + d)
    (a, b, e), (f, g, h) = states[:3], states[3:]
    left, right = (b, b * u + p, u * (e + p)), (g, g * v + q, v * (h + q))
    return [
        jnp.where(slow > 0, k, (fast * k - slow * n + slow * fast * (y - x)) / (fast - slow))
        for k, n, x, y in zip(left, right, (a, b, e), (f, g, h), strict=True)
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("size", [16 * BATCH, 16 * BATCH + 3])
def test_few_chunks_where_half_of_what_is_kept_is_held(size):
    low = jnp.array([1.0, -0.5, 3.0] * 2)
    states = list((low + jax.random.uniform(jax.random.key(7), (size, 6), jnp.float64)).T)
    fun = jax.vmap(jacve(between, order="reverse", argnums=SIX))
    assert has_loop(fun, *states)
    compiled = jax.jit(fun).lower(*states).compile()
    compare(compiled(*states), jax.vmap(jax.jacrev(between, SIX))(*states))
    # At once it takes 12 and 13 numbers for each sample (JAX 0.11 and 0.12).
    assert compiled.memory_analysis().temp_size_in_bytes < 10 * 8 * size


@pytest.mark.slow
@pytest.mark.usefixtures("packed_in_chunks")
def test_derivatives_of_chunks_and_batches_of_batches():
    angles = draw(3, SIZE, 4)

    def total(derivative):
        return lambda x: jnp.sum(jax.vmap(derivative(packed))(x) ** 2)

    compare(jax.jit(jax.grad(total(jacve)))(angles), jax.grad(total(jax.jacrev))(angles))
    twice = angles.reshape(1, SIZE, 4) + jnp.array([0.0, 1.0]).reshape(2, 1, 1)
    expected = jax.jit(jax.vmap(jax.vmap(jax.jacrev(packed))))(twice)
    compare(jax.jit(jax.vmap(jax.vmap(jacve(packed))))(twice), expected)


@pytest.mark.usefixtures("packed_in_chunks")
def test_on_several_devices_a_batch_is_evaluated_at_once(monkeypatch):
    assert has_loop(jax.vmap(jacve(packed)), draw(2, SIZE, 4))
    monkeypatch.setattr(small_programs, "can_be_in_chunks", lambda: False)
    assert not has_loop(jax.vmap(jacve(packed)), draw(2, SIZE, 4))


@pytest.mark.parametrize("chunk", [1, 4, 7, 10])
def test_all_samples_of_all_chunks(chunk):
    x, y = jnp.arange(10.0), jnp.float64(2.0)
    types = {"sum": jax.ShapeDtypeStruct((), x.dtype)}
    run = in_chunks(lambda given: {"sum": given[0] + given[1]}, types, (True, False), 10, chunk)
    np.testing.assert_array_equal(run([x, y])["sum"], x + 2.0)


def network(weights, x):
    for matrix in weights[:-1]:
        x = jnp.tanh(x @ matrix)
    return jnp.sum(x @ weights[-1])


def trace(weights, x):
    return jnp.trace(jax.jit(jax.hessian(network, 1))(weights, x))


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(emission, "can_be_in_chunks", lambda: True)
    monkeypatch.setattr(at_once, "WHOLE", 4096)
    monkeypatch.setattr(at_once, "PIECE", 2048)


@pytest.mark.slow
@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("own", [0, None], ids=["own weights", "shared weights"])
def test_a_laplacian_in_chunks(own):
    widths = (5, 16, 16, 1)
    axes = () if own is None else (11,)
    weights = [draw(k, *axes, n, m) / n for k, (n, m) in enumerate(pairwise(widths))]
    xs = draw(9, 11, 5)
    laplacian, truth = (
        jax.vmap(fun, (own, 0)) for fun in (laplacian_ve(network, argnums=1), trace)
    )
    assert has_loop(laplacian, weights, xs)
    compare(jax.jit(laplacian)(weights, xs), truth(weights, xs))
    if own is not None:
        return
    compare(jax.vmap(laplacian, (None, 0))(weights, xs[None]), truth(weights, xs)[None])

    def loss(fun):
        return jax.value_and_grad(lambda weights: jnp.sum(fun(weights, xs) ** 2))

    expected = loss(truth)(weights)
    # Compiled before it is differentiated, or after: the way back reads the whole batch.
    for derivative in (jax.jit(loss(laplacian)), loss(jax.jit(laplacian))):
        assert not has_loop(derivative, weights)
        compare(derivative(weights), expected)


@pytest.mark.slow
@pytest.mark.usefixtures("small_pieces")
def test_a_diagonal_of_hessians_in_chunks():
    weights = [draw(k, n, m) / n for k, (n, m) in enumerate(pairwise((5, 16, 16, 1)))]
    xs = draw(9, 11, 5)
    diagonal = jax.vmap(hessian_diagonal(network, argnums=1), (None, 0))

    def truth(weights, xs):
        hessian = jax.hessian(network, argnums=1)
        return jax.vmap(lambda x: jnp.diagonal(hessian(weights, x)))(xs)

    assert has_loop(diagonal, weights, xs)
    compare(jax.jit(diagonal)(weights, xs), truth(weights, xs))
    compare(hessian_diagonal(network, argnums=1)(weights, xs[0]), truth(weights, xs)[0])
    found, expected = (
        jax.grad(lambda weights, fun=fun: jnp.sum(jnp.sin(fun(weights, xs))))(weights)
        for fun in (jax.jit(diagonal), truth)
    )
    compare(found, expected)


@pytest.mark.usefixtures("small_pieces")
def test_what_starts_anew_for_every_chunk_is_evaluated_at_once():
    def stepped(weights, x):
        end, _ = lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, weights)
        return jnp.sum(end)

    weights, xs = draw(0, 12, 8, 8), draw(1, 40, 8)
    fun = jax.vmap(laplacian_ve(stepped, argnums=1), (None, 0))
    assert "dynamic_update_slice" not in str(jax.make_jaxpr(fun)(weights, xs))


def test_how_many_samples_are_evaluated_at_once():
    columns = Footprint(largest=1 << 17, function=1 << 12, results=8)
    # 6 MiB stay whole; beyond that there are 2 MiB at once, in chunks of one length.
    assert [columns.samples(size) for size in (1, 48, 49, 96)] == [1, 48, 13, 16]
    assert Footprint(1 << 24, 1 << 12, 8).samples(3) == 1
    # Up to a third more chunks are taken if no sample is in two of them then: 8 of 13, not 6 of 18.
    wide = Footprint(largest=100 << 10, function=1 << 10, results=8)
    assert [wide.samples(size) for size in (60, 100, 101, 104)] == [60, 20, 17, 13]
    # At least 512 samples where they take up to 4 MiB: more is held in memory then.
    numbers = [Footprint(largest, 1 << 10, 8).samples(4000) for largest in (4096, 4097, 8192, 8193)]
    assert numbers == [500, 572, 572, 250]
    assert [Footprint(6912, 2304, 8).samples(size) for size in (1000, 1023, 1024)] == [
        1000,
        1023,
        512,
    ]
    # Without columns, 1 MiB or what runs on one core, unless that saves little.
    plain = Footprint(largest=1 << 15, function=1 << 15, results=8)
    assert [plain.samples(size) for size in (6, 7, 96, 128)] == [6, 2, 2, 32]
    # Results that are large themselves.
    assert Footprint(1 << 17, 1 << 12, 1 << 16).samples(1000) == 1000


def test_the_place_of_a_chunk_has_no_sign():
    types = [jax.ShapeDtypeStruct((), jnp.float64)]
    run = in_chunks(lambda inputs: [jnp.sum(inputs[0], axis=1)], types, [True], 10, 4)
    x = draw(7, 10, 3)
    assert "select_n" not in str(jax.make_jaxpr(run)([x]))
    compare(run([x]), [jnp.sum(x, axis=1)])
