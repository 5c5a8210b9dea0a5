"""Products of two shared matrices with a vector of each sample's own between them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import laplacian_ve
from graphax_lapl.edges.maps import label
from graphax_lapl.edges.operations import Einsum, Read
from graphax_lapl.program.instructions import EdgeInstruction, Program, Slot
from graphax_lapl.program.scaled_rows import scaled_rows

ROWS, SUMMED, COLUMNS = 5, 6, 7


def network(weights, x):
    """Twelve numbers into six: what passes the narrow place is weighted by a shared metric."""
    return jnp.sum(jnp.tanh(jnp.tanh(jnp.sin(x @ weights[0]) @ weights[1]) @ weights[2]))


def hessian_trace(weights, x):
    return jnp.trace(jax.jit(jax.hessian(lambda x: network(weights, x)))(x))


WAYS = {
    "values": lambda f: lambda w, xs: jax.vmap(f, (None, 0))(w, xs),
    "gradient": lambda f: jax.grad(lambda w, xs: jnp.mean(jax.vmap(f, (None, 0))(w, xs) ** 2)),
    "tangent": lambda f: lambda w, xs: jax.jvp(lambda w: f(w, xs[0]), (w,), (w,)),
    "gradient by x": lambda f: lambda w, xs: jax.vmap(jax.grad(f, 1), (None, 0))(w, xs),
    "batch of weights": lambda f: (
        lambda w, xs: jax.vmap(lambda s: f([s * v for v in w], xs[0]))(jnp.arange(1.0, 4.0))
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_values_and_derivatives(way):
    keys = jax.random.split(jax.random.key(2), 4)
    shapes = ((12, 6), (6, 7), (7, 3))
    weights = [jax.random.normal(k, s) for k, s in zip(keys, shapes, strict=False)]
    xs = jax.random.normal(keys[3], (2, 12))
    found = jax.jit(WAYS[way](laplacian_ve(network, argnums=1)))(weights, xs)
    expected = jax.jit(WAYS[way](hessian_trace))(weights, xs)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def product(output, vector=(1,)):
    """A (diag(v) B) of the inputs A, v and B, with the axes of the result in some order."""
    sizes = ((0, ROWS), (1, SUMMED), (2, COLUMNS))
    shape = dict(sizes)

    def read(*names):
        return Read(tuple(label(n) for n in names))

    scaling = Einsum((read(*vector), read(1, 2)), sizes[1:], (1, 2), 2)
    together = Einsum((read(0, 1), read(1, 2)), sizes, output, 3)
    boxes = ((0, 1), vector, (1, 2), (1, 2), output)
    dtype = np.dtype(np.float64)
    return Program(
        slots=[Slot(tuple(shape[n] for n in box), dtype) for box in boxes],
        inputs=[0, 1, 2],
        instructions=[
            EdgeInstruction(scaling, (1, 2), (3,), dtype),
            EdgeInstruction(together, (0, 3), (4,), dtype),
        ],
        values=[4],
    )


def test_the_other_form_has_the_rows_first():
    found = scaled_rows(product((0, 2)), {1})
    assert [*found] == [4]
    form = found[4]
    assert form.slots == (0, 1, 2)
    assert (form.scaling.output, form.scaling.coefficient) == ((0, 1), 2)
    assert (form.product.output, form.product.coefficient) == ((0, 2), 3)


@pytest.mark.parametrize(
    ("program", "moving"),
    [
        (product((2, 0)), {1}),  # the columns first: the program's own form has the rows together
        (product((0, 2)), {0, 1}),  # rows of each sample's own
        (product((0, 2)), {1, 2}),  # columns of each sample's own
        (product((0, 2)), set()),  # nothing moves
        (product((0, 2), (2,)), {1}),  # columns are scaled, not what is summed
    ],
)
def test_others_are_left(program, moving):
    assert scaled_rows(program, moving) == {}
