"""Small batches that one thread evaluates sooner than two."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import jacve, laplacian_ve, value_and_jacve
from graphax_lapl.emit import number_forms, small_programs, threads
from graphax_lapl.emit.numbers import BATCH
from graphax_lapl.emit.placed import filled
from graphax_lapl.emit.tape import Tape
from graphax_lapl.emit.threads import Kernel, Kernels, size_on_one_thread


def draw(seed, *shape):
    return jax.random.uniform(jax.random.key(seed), shape, jnp.float64, 0.3, 1.2)


def never(numbers):
    return False


def recording(numbers, common=0):
    """A tape with some inputs, the last of them common to all samples, and what records on it."""
    tape = Tape()
    given = tape.input((numbers,), np.dtype(np.float32), True)
    shared = tape.input((common,), np.dtype(np.float32), False)

    def apply(name, *operands):
        return tape.record(name, None, operands, np.dtype(np.float32))

    return tape, [*given, *shared], apply


def kernels_of(tape, *results):
    arrays = [filled((len(numbers),), iter(numbers)) for numbers in results]
    return Kernels(tape, arrays, 512, False)


def test_operations_and_bytes_are_counted():
    tape, (a, b, c), apply = recording(2, 1)
    root = apply("sqrt", a)
    total = apply("add", apply("mul", root, c), apply("mul", b, apply("add", c, c)))
    (kernel,) = kernels_of(tape, [total]).of_results(never)
    # Both inputs are read and the sum is written; what samples share is read and computed once.
    assert kernel[:3] == (3, 1, 12)


def test_equal_entries_are_evaluated_once():
    tape, (a, b), apply = recording(2)
    product = apply("mul", a, b)
    (kernel,) = kernels_of(tape, [product, apply("add", product, a), product]).of_results(never)
    assert kernel[:3] == (2, 0, 20)


def test_selections_are_operations():
    tape, (a, b), apply = recording(2)
    entries = [a, b, apply("mul", a, b), a, a, b]
    arrays = [filled((2, 3), iter(entries))]
    (kernel,) = Kernels(tape, arrays, 512, False).of_results(lambda numbers: True)
    # In rows of three, two and one other than the first; and one row of two.
    assert kernel.operations == 1 + (2 + 1) * 3 + 6


def test_stretches_are_rows_of_a_chunk():
    tape, (a, b), apply = recording(2)
    entries = [apply("mul", a, b)]
    for _ in range(9):
        entries.append(apply("add", entries[-1], a))
    kernels = kernels_of(tape, entries, entries[:3])
    assert [kernel.bytes for kernel in kernels.of_stretches()] == [4 * 5 + 8, 4 * 5 + 8]


@pytest.mark.parametrize(
    ("kernel", "samples", "divided"),
    [
        (Kernel(101, 0, 100, 0.0), 181, False),
        (Kernel(101, 0, 100, 0.0), 182, True),  # 1,101 units each
        (Kernel(101, 50, 100, 0.0), 167, True),  # 1,201
        (Kernel(100, 0, 100, 0.0), 5_242, False),  # no more operations than bytes
        (Kernel(100, 0, 100, 0.0), 5_243, True),
    ],
)
def test_what_is_divided(kernel, samples, divided):
    assert kernel.is_divided(samples) is divided


class Given:
    """Kernels of a program with one result."""

    def __init__(self, before, result, stretch=None, entries=1):
        self.results = [np.empty(entries, object)]
        self.before, self.result, self.stretch = before, result, stretch

    def before_results(self):
        return self.before

    def of_results(self, selects):
        assert not selects(self.results[0])
        return [self.result]

    def of_stretches(self):
        return [] if self.stretch is None else [self.stretch]


MUCH, LITTLE = Kernel(400, 0, 12, 10.0), Kernel(1, 0, 8, 1.0)


def test_the_fewest_chunks_that_are_not_divided():
    assert size_on_one_thread(Given([LITTLE], MUCH), 512, never) == 256
    # A number before the results is divided from 385 samples on, a stretch of these from 193 on.
    assert size_on_one_thread(Given([MUCH], MUCH), 1200, never) == 300
    wide = Kernel(640, 0, 40, 10.0)
    assert size_on_one_thread(Given([LITTLE], MUCH, wide), 512, never) == 171


def test_what_is_evaluated_at_once():
    assert size_on_one_thread(Given([], LITTLE), 512, never) == 512  # nobody divides it
    assert size_on_one_thread(Given([], MUCH), 384, never) == 384
    long = MUCH._replace(nanoseconds=100.0)
    assert size_on_one_thread(Given([], long), 512, never) == 512
    assert size_on_one_thread(Given([], MUCH, entries=80), 512, never) == 512
    large = Kernel(100_000, 0, 8, 1.0)
    assert size_on_one_thread(Given([large], MUCH), 512, never) == 512  # divided in any chunk


def layered(x):
    """A small network of fixed weights, with pairs of inputs."""
    w = jnp.cos(jnp.arange(float(4 * x.size))).reshape(4, x.size)
    return jnp.sum(jnp.tanh(w @ x) ** 2) + jnp.sum(jnp.exp(-x * jnp.roll(x, 1)) / (1 + x * x))


def rates(x):
    return jnp.stack([x[0] * jnp.exp(-x[1] / x[2]), x[1] ** 2 / (x[0] + x[2]), layered(x)])


@pytest.fixture
def sizes(monkeypatch):
    """What is evaluated at once, for each batch that the rule is asked about."""
    found = []

    def spy(kernels, samples, selects):
        found.append((samples, size_on_one_thread(kernels, samples, selects)))
        return found[-1][1]

    monkeypatch.setattr(small_programs, "can_be_in_chunks", lambda: True)
    monkeypatch.setattr(number_forms, "size_on_one_thread", spy)
    monkeypatch.setattr(number_forms, "BARRIERS_STAND", True)
    return found


@pytest.mark.parametrize("samples", [BATCH, 2 * BATCH, 3 * BATCH + 1])
def test_laplacians(samples, sizes, monkeypatch):
    monkeypatch.setattr(threads, "UNITS", 100_000)
    x = draw(1, samples, 4)
    found = jax.jit(jax.vmap(laplacian_ve(layered)))(x)
    expected = jax.vmap(lambda x: jnp.trace(jax.hessian(layered)(x)))(x)
    np.testing.assert_allclose(found, expected, 1e-11, 1e-11)
    assert len(sizes) == 1
    assert sizes[0][1] < samples


@pytest.mark.parametrize("samples", [BATCH, 3 * BATCH + 1])
def test_jacobians(samples, sizes, monkeypatch):
    monkeypatch.setattr(threads, "BYTES", 1 << 15)
    x, common = draw(2, samples, 3), draw(3, 3)

    def fun(x, common):
        return rates(x * common)

    value, jacobian = jax.jit(jax.vmap(value_and_jacve(fun, argnums=(0, 1)), (0, None)))(x, common)
    expected = jax.vmap(jax.jacrev(fun, (0, 1)), (0, None))(x, common)
    np.testing.assert_allclose(value, jax.vmap(fun, (0, None))(x, common), 1e-12, 1e-12)
    for ours, theirs in zip(jacobian, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-11, 1e-11)
    assert len(sizes) == 1
    assert sizes[0][1] < samples


def test_derivatives_and_batches_of_batches(sizes, monkeypatch):
    monkeypatch.setattr(threads, "UNITS", 100_000)
    x = draw(4, 2, BATCH, 3)

    def loss(jacobian):
        return lambda x: jnp.sum(jax.vmap(jax.vmap(jacobian))(x) ** 2)

    found = jax.grad(loss(jacve(rates)))(x)
    np.testing.assert_allclose(found, jax.grad(loss(jax.jacfwd(rates)))(x), 1e-10, 1e-10)
    ours = jax.jit(jax.vmap(jax.vmap(jacve(rates))))(x)
    np.testing.assert_allclose(ours, jax.vmap(jax.vmap(jax.jacfwd(rates)))(x), 1e-11, 1e-11)
    assert sizes


def test_arrays_of_older_compilers_are_evaluated_at_once(sizes, monkeypatch):
    monkeypatch.setattr(threads, "UNITS", 0)
    monkeypatch.setattr(number_forms, "BARRIERS_STAND", False)
    x = draw(5, BATCH, 3)
    found = jax.jit(jax.vmap(jacve(rates)))(x)
    np.testing.assert_allclose(found, jax.vmap(jax.jacrev(rates))(x), 1e-11, 1e-11)
    assert not sizes
