"""Arrays that are another one with its axes permuted are computed once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import divergence_ve, laplacian_ve
from graphax_lapl.api.laplacian import laplacian_plan
from graphax_lapl.api.planning import prepare
from graphax_lapl.edges.algebra import dense_structure
from graphax_lapl.edges.maps import label
from graphax_lapl.edges.operations import Assemble, Combine, Einsum, Read
from graphax_lapl.emit.run import run_program
from graphax_lapl.program.instructions import Block, EdgeInstruction, Program, Slot
from graphax_lapl.program.laplacian import Metric
from graphax_lapl.program.permutations import share_permuted

RNG = np.random.default_rng(11)
WEIGHTS = RNG.normal(size=(3, 4))
F64 = np.dtype(np.float64)


def pairs(x: jax.Array) -> jax.Array:
    """Features of differences of all pairs, mixed along one of the two."""
    difference = x[:, None, :] - x[None, :, :]
    features = jnp.tanh(jnp.sin(difference) @ WEIGHTS)
    mixed = jnp.sum(features * jnp.cos(x @ WEIGHTS)[None], axis=1)
    return jnp.sum(jnp.tanh(mixed) ** 2)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["auto", "forward", "reverse"])
def test_pairs(order: str) -> None:
    x = jnp.asarray(RNG.normal(size=(4, 3)))
    hessian = jax.jit(jax.hessian(pairs))(x).reshape(12, 12)
    np.testing.assert_allclose(laplacian_ve(pairs, order)(x), jnp.trace(hessian), rtol=1e-10)
    found = jax.jit(jax.grad(laplacian_ve(pairs, order)))(x)
    laplacian = jax.grad(lambda x: jnp.trace(jax.jit(jax.hessian(pairs))(x).reshape(12, 12)))
    np.testing.assert_allclose(found, jax.jit(laplacian)(x), rtol=1e-9, atol=1e-9)


def test_divergence_of_pairs() -> None:
    x = jnp.asarray(RNG.normal(size=(4, 3)))

    def field(x: jax.Array) -> jax.Array:
        return jax.grad(pairs)(x) * jnp.sin(x)

    expected = jnp.trace(jax.jit(jax.jacfwd(field))(x).reshape(12, 12))
    np.testing.assert_allclose(divergence_ve(field)(x), expected, rtol=1e-10)


@pytest.mark.slow
def test_both_sides_of_a_difference_are_one_array() -> None:
    x = jnp.asarray(RNG.normal(size=(4, 3)))
    prepared = prepare(pairs, (x,), {}, 0, orders=2)
    plan = laplacian_plan(prepared, "forward", Metric())
    seen = []
    slots = run_program(plan.whole, [*prepared.inputs])
    for instruction in plan.whole.instructions:
        operation = getattr(instruction, "operation", None)
        if isinstance(operation, Einsum) and len(operation.reads) == 2:
            value = np.asarray(slots[instruction.outputs[0]])
            seen.append((value.size, *np.sort(value, axis=None).round(10)))
    large = [entries for entries in seen if entries[0] >= 36]
    assert len(large) > 2
    assert len(set(large)) == len(large)


def product(output: tuple[int, ...]) -> Einsum:
    """`a[i, j] b[j, k]` without a sum, in some order of the labels."""
    reads = (Read((label(0), label(1))), Read((label(1), label(2))))
    return Einsum(reads, ((0, 2), (1, 3), (2, 4)), output)


def program_of(*last: EdgeInstruction) -> Program:
    """Two products of slots 0 and 1 in slots 2 (i, j, k) and 3 (k, i, j), then what is given."""
    slots = [Slot((2, 3), F64), Slot((3, 4), F64), Slot((2, 3, 4), F64), Slot((4, 2, 3), F64)]
    slots += [Slot(i.operation.shape, F64) for i in last]
    instructions = [
        EdgeInstruction(product((0, 1, 2)), (0, 1), (2,), F64),
        EdgeInstruction(product((2, 0, 1)), (0, 1), (3,), F64),
        *last,
    ]
    values = [i.outputs[0] for i in last] or [3]
    return Program(slots, [0, 1], instructions, [], values)


SUM = Einsum((Read((label(2), label(0), label(1))),), ((0, 2), (1, 3), (2, 4)), (1, 2))
MIXED = Combine(((2, (0, 1, 2)), (-1, (2, 0, 1))), ((0, 2), (1, 3), (2, 4)), (1, 0, 2))
READERS = {
    "a result": (),
    "a sum": (EdgeInstruction(SUM, (3,), (4,), F64),),
    "both": (EdgeInstruction(MIXED, (2, 3), (4,), F64),),
    "another operation": (
        EdgeInstruction(Assemble(dense_structure((2, 3), (4,))), (3,), (4,), F64),
        EdgeInstruction(SUM, (3,), (5,), F64),
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_readers_of_a_permuted_array(name: str) -> None:
    inputs = [jnp.asarray(RNG.normal(size=shape)) for shape in ((2, 3), (3, 4))]
    program = program_of(*READERS[name])
    shared = share_permuted(program)
    products = [
        i for i in shared.instructions if isinstance(i.operation, Einsum) and len(i.inputs) == 2
    ]
    assert len(products) == 1
    expected, found = run_program(program, inputs), run_program(shared, inputs)
    for slot in program.values:
        np.testing.assert_array_equal(found[slot], expected[slot])


def test_a_block_of_a_permuted_array() -> None:
    inputs = [jnp.asarray(RNG.normal(size=shape)) for shape in ((2, 3), (3, 4))]
    program = program_of()
    program.blocks = [[Block(dense_structure((2, 3), (4,)), (3,), (2, 3), (4,), F64)]]
    program.values = []
    found = run_program(share_permuted(program), inputs)
    expected = jnp.einsum("ij,jk->kij", *inputs)
    np.testing.assert_allclose(found[3], expected, rtol=1e-15)
