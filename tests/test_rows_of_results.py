"""Jacobians of batches of networks with branches: weights stay on the right of all products."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from graphax_lapl import jacve, make_plan
from graphax_lapl.edges.operations import Assemble, Einsum, Overlay
from graphax_lapl.program.axes import made_in, reading
from graphax_lapl.program.columns_last import columns_last
from graphax_lapl.program.instructions import EdgeInstruction, Program
from graphax_lapl.program.orientation import contracted_last, oriented

SAMPLES = 5


def weights(*shape: int, seed: int = 0) -> Array:
    """A matrix of a layer."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape) / np.sqrt(shape[0]))


def modified(p: Any, x: Array) -> Array:
    """Two encoders of the input that every layer mixes."""
    u, v, h = (jnp.tanh(x @ w) for w in p[:3])
    for w in p[3:-1]:
        z = jnp.tanh(h @ w)
        h = (1 - z) * u + z * v
    return (h @ p[-1])[0]


def residual(p: Any, x: Array) -> Array:
    h = x @ p[0]
    for a, b in zip(p[1:-1:2], p[2:-1:2], strict=True):
        h = h + jnp.tanh(h @ a) @ b
    return (h @ p[-1])[0]


def autoregressive(p: Any, x: Array) -> Array:
    h = jnp.tanh(jnp.tanh(x @ p[0]) @ p[1])
    mean, scale = h @ p[2], h @ p[3]
    return -0.5 * (((x - mean) * jnp.exp(-scale)) ** 2).sum() - scale.sum()


def coupled(p: Any, x: Array) -> Array:
    """A flow whose halves are put together again."""
    a, b = x[:3], x[3:]
    for first, second in zip(p[::2], p[1::2], strict=True):
        o = jnp.tanh(a @ first) @ second
        a, b = b * jnp.exp(jnp.tanh(o[:3])) + o[3:], a
    return jnp.concatenate([a, b])


def branches(p: Any, x: Array) -> Array:
    return jnp.tanh(x @ p[0]) @ p[0].T + jnp.sin(x @ p[1]) @ p[1].T


def dense(p: Any, x: Array) -> Array:
    """Every layer reads the input and all layers before it."""
    for w in p[:-1]:
        x = jnp.concatenate([x, jnp.tanh(x @ w)])
    return x @ p[-1]


def normed(p: Any, x: Array) -> Array:
    """Layers whose outputs are normalized: each is read as it is, in a product, and in a sum."""
    for w in p[:-1]:
        x = x @ w
        x = jnp.tanh((x - x.mean()) / jnp.sqrt(x.var() + 1e-5))
    return x @ p[-1]


def gradient(fun: Callable[..., Array]) -> Callable[..., Array]:
    return jax.grad(fun, argnums=1)


#: Functions of weights and of a vector of so many numbers.
CASES: dict[str, tuple[Callable[..., Array], list[tuple[int, int]], int]] = {
    "modified": (gradient(modified), [(6, 20)] * 3 + [(20, 20)] * 2 + [(20, 1)], 6),
    "residual": (gradient(residual), [(6, 18)] + [(18, 18)] * 4 + [(18, 1)], 6),
    "autoregressive": (gradient(autoregressive), [(6, 20), (20, 20), (20, 6), (20, 6)], 6),
    "coupled": (coupled, [(3, 18), (18, 6)] * 3, 6),
    "branches": (branches, [(6, 18), (6, 18)], 6),
    "dense": (dense, [(5, 16), (21, 16), (37, 6)], 5),
    "normed": (normed, [(9, 20), (20, 20), (20, 9)], 9),
}


def case(name: str) -> tuple[Callable[..., Array], list[Array], Array]:
    """Function, weights and a batch of inputs."""
    fun, shapes, size = CASES[name]
    parameters = [weights(*shape, seed=k) for k, shape in enumerate(shapes)]
    return fun, parameters, jnp.asarray(np.random.default_rng(9).normal(size=(SAMPLES, size)))


def products(jaxpr: Any) -> Iterator[Any]:
    """All products of a traced program."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda p: hasattr(p, "eqns")
        ):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from products(inner)


@pytest.mark.parametrize("name", ["modified", "autoregressive", "branches", "dense"])
def test_weights_are_on_the_right(name: str) -> None:
    fun, parameters, xs = case(name)
    batch = jax.vmap(jacve(fun, argnums=1), in_axes=(None, 0))
    found = list(products(jax.make_jaxpr(batch)(parameters, xs).jaxpr))
    samples = [e for e in found if SAMPLES in e.invars[1].aval.shape and e.outvars[0].aval.ndim > 2]
    left = [e for e in samples if SAMPLES not in e.invars[0].aval.shape]
    assert len(found) > len(parameters)
    assert not left


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("samples", [None, 1, SAMPLES])
def test_numbers(name: str, samples: int | None) -> None:
    fun, parameters, xs = case(name)
    one, reference = jacve(fun, argnums=1), jax.jacfwd(fun, argnums=1)
    if samples is None:
        found, expected = one(parameters, xs[0]), reference(parameters, xs[0])
    else:
        rows = xs[:samples]
        found = jax.vmap(one, in_axes=(None, 0))(parameters, rows)
        expected = jax.vmap(reference, in_axes=(None, 0))(parameters, rows)
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)


def laid_out(name: str) -> tuple[Program, set[int]]:
    """The program as its arrays are stored, and its inputs that move."""
    fun, parameters, xs = case(name)
    plan = make_plan(fun, parameters, xs[0], argnums=1)
    return contracted_last(plan.program), plan.moving


def test_what_a_sum_reads_is_stored_as_products_want_it() -> None:
    """A sum over an axis takes any order."""
    fun, parameters, xs = case("normed")
    plan = make_plan(fun, parameters, xs[0], argnums=1, order="reverse")
    program = contracted_last(plan.program)
    makers = {i.outputs[0]: i for i in program.instructions if isinstance(i, EdgeInstruction)}
    sums = [
        i.inputs[0]
        for i in makers.values()
        if isinstance(i.operation, Einsum) and len(i.operation.reads) == 1
        if i.operation.summed and len(program.slots[i.inputs[0]].shape) == 2
    ]
    multiplied = [
        (i.inputs[k], i.operation.reads[k].axes[-1].labels[0] in i.operation.summed)
        for i in makers.values()
        if isinstance(i.operation, Einsum) and len(i.operation.reads) == 2 and i.operation.summed
        for k in range(2)
        if len(program.slots[i.inputs[k]].shape) == 2 and i.inputs[k] in makers
    ]
    assert sums
    assert len(multiplied) > 2
    assert all(last for _, last in multiplied)


@pytest.mark.parametrize("name", ["modified", "autoregressive", "branches"])
def test_sums_of_results_are_made_in_rows(name: str) -> None:
    program, _ = laid_out(name)
    readers = [i for i in oriented(program).instructions if isinstance(i, EdgeInstruction)]
    (block,) = program.blocks[0]
    last = next(i for i in reversed(readers) if i.outputs[0] in block.slots)
    makers = {i.outputs[0]: i for i in readers}
    direct = [makers[s].operation for s in last.inputs if s in makers]
    matrices = [o for o in direct if isinstance(o, Einsum) and o.summed and len(o.output) > 1]
    given = {*program.inputs}
    assert matrices
    for operation in matrices:
        inputs = next(i.inputs for i in readers if i.operation is operation)
        (moving,) = (
            read.labels
            for read, slot in zip(operation.reads, inputs, strict=True)
            if slot not in given
        )
        assert operation.output[0] in moving


@pytest.mark.parametrize("name", ["coupled", "branches", "dense"])
def test_columns_are_last_only_between_products(name: str) -> None:
    program, moving = laid_out(name)
    assert columns_last(program, moving) is None


@pytest.mark.parametrize("kind", [Overlay, Assemble])
def test_pieces_have_their_axes_in_any_order_they_can(kind: type) -> None:
    program, _ = laid_out("coupled")
    pieces = [
        i
        for i in program.instructions
        if isinstance(i, EdgeInstruction) and isinstance(i.operation, kind)
        if len(i.operation.shape) == 2
    ]
    assert pieces
    for made in pieces:
        turned = made_in(made.operation, (1, 0))
        assert turned is not None
        assert turned.shape == made.operation.shape[::-1]
        assert made_in(turned, (1, 0)) == made.operation
        for position, slot in enumerate(made.inputs):
            axes = len(program.slots[slot].shape)
            order = tuple(reversed(range(axes)))
            again = reading(reading(made, position, order), position, order)
            assert isinstance(again, EdgeInstruction)
            assert again.operation == made.operation
