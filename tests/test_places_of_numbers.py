"""Along which axes the numbers of many samples are concatenated, and that each is in its place."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import jacve
from graphax_lapl.emit import packing
from graphax_lapl.emit.joining import in_one_kernel
from graphax_lapl.emit.small_programs import BATCH


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("shape", "digits"),
    [
        ((5, 5, 3), (5, 3, 5)),
        ((7, 7, 2), (7, 2, 7)),
        ((6, 9), (6, 3, 3)),
        ((12, 5), (6, 2, 5)),
        ((8, 8, 4), (8, 4, 8)),
        ((4, 3, 4, 3), (6, 3, 8)),
        ((6, 6), (6, 6)),
        ((75,), (5, 3, 5)),
        ((13,), (2, 7)),
    ],
)
def test_digits(shape, digits):
    """The first ones count rows where they can; all together no fewer numbers than there are."""
    x = jax.random.normal(jax.random.key(1), (BATCH, *shape), jnp.float64)

    def parts(x):
        numbers = np.empty(shape, object)
        for place in np.ndindex(shape):
            numbers[place] = x[place]
        return in_one_kernel(numbers)

    run = jax.jit(jax.vmap(parts))
    np.testing.assert_array_equal(run(x), x)
    sizes = "x".join(map(str, (BATCH, *digits)))
    assert f"tensor<{sizes}xf64>" in run.lower(x).as_text()
    assert packing.innermost(np.empty(shape, object)) == digits[-1]


def lengths(x):
    squares = jnp.sum(x * x, -1, keepdims=True)
    return jnp.where(squares == 0, 0.0, jnp.sqrt(jnp.where(squares == 0, 1.0, squares)))


def weights(x):
    return jax.nn.softmax(x[..., 0])[..., None]


def doubled(x):
    return jnp.stack([x[0] * x[1, 0], jnp.sin(x[1])])[None]


@pytest.mark.every_case
@pytest.mark.parametrize("samples", [16, BATCH, 4096])
@pytest.mark.parametrize(
    ("fun", "shape"),
    [
        (lengths, (5, 3)),
        (lengths, (2, 4, 2)),
        (lengths, (9, 3)),
        (weights, (6, 1)),
        (doubled, (2, 3)),
    ],
    ids=["lengths", "blocks", "long", "weights", "leading"],
)
def test_axes_of_one_entry(fun, shape, samples):
    x = jax.random.normal(jax.random.key(2), (samples, *shape), jnp.float64)
    expected = jax.jit(jax.vmap(jax.jacrev(fun)))(x)
    found = jax.jit(jax.vmap(jacve(fun)))(x)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


def test_axes_of_one_entry_are_no_reshape():
    """XLA copies what gets them from a reshape, at places that it finds by divisions."""
    x = jnp.ones((BATCH, 5, 3))
    lowered = jax.jit(jax.vmap(jacve(lengths))).lower(x)
    written = f"tensor<{BATCH}x5x1x5x3xf64>"
    makers = [line for line in lowered.as_text().splitlines() if f"-> {written}" in line]
    assert any("stablehlo.concatenate" in line for line in makers)
    assert not any("stablehlo.reshape" in line for line in makers)
    assert " copy(" not in lowered.compile().as_text()
