"""What is added up one after the other: cumulative sums of few numbers, and their linear maps."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import jacve, laplacian_ve, make_plan, value_and_jacve
from graphax_lapl.program.instructions import LocalInstruction
from graphax_lapl.program.running_sums import added_in_turn
from tests.checks import assert_same, primitives

RNG = np.random.default_rng(5)
RATES, WEIGHTS = np.random.default_rng(6).uniform(0.1, 1.0, (2, 3, 20))
RATES[1, 4] = 0.0
COUNT = 12  # of which a table lists the triangle
X = RNG.uniform(0.2, 1.0, COUNT)
TABLE = (np.arange(COUNT)[:, None] + np.arange(COUNT // 2)) % COUNT


def discounts(rates):
    """Bond prices of a curve of forward rates, one after the other, and their sum."""
    return jnp.sum(jnp.exp(-0.25 * jnp.cumsum(rates)))


def annuities(rates):
    """The same from the end."""
    return jnp.sum(jnp.exp(-jax.lax.cumsum(rates, reverse=True)) * rates)


def tip(angles):
    """Where a planar arm of links of unit length ends."""
    turned = jnp.cumsum(angles)
    return jnp.sum(jnp.cos(turned)), jnp.sum(jnp.sin(turned))


def shares(x):
    """Every row of the Jacobian subtracts sums over the columns of a triangle."""
    return jax.nn.softmax(jnp.cumsum(x))


def halves(x):
    """Sums over entries that tables list, which are no triangle."""
    return jnp.sum(jnp.exp(jnp.sum(x[TABLE], axis=1)))


def cumulative(program):
    return [
        i
        for i in program.instructions
        if isinstance(i, LocalInstruction) and i.local.name == "cumsum"
    ]


def with_operation(program, number, **changes):
    """The program with something else in the operation of an instruction."""
    instructions = list(program.instructions)
    operation = replace(instructions[number].operation, **changes)
    instructions[number] = replace(instructions[number], operation=operation)
    return replace(program, instructions=instructions)


def rewritten(fun):
    return added_in_turn(make_plan(fun, jnp.asarray(X), order="reverse").program)


FUNCTIONS = [discounts, annuities, tip, shares, halves]


@pytest.mark.smoke
@pytest.mark.parametrize("fun", FUNCTIONS)
@pytest.mark.parametrize("order", ["auto", "forward", "reverse", "markowitz"])
@pytest.mark.parametrize("samples", [0, 3, 300])
def test_jacobians_are_those_of_jax(fun, order, samples):
    x = X * np.linspace(0.9, 1.1, samples)[:, None] if samples else X
    both = [jacve(fun, order=order), jax.jacfwd(fun)]
    if samples:
        both = [jax.vmap(jacobian) for jacobian in both]
    assert_same(*jax.jit(lambda x: [jacobian(x) for jacobian in both])(x))


@pytest.mark.parametrize("fun", FUNCTIONS)
def test_their_derivatives_are_exact(fun):
    def gradient(jacobian):
        return jax.grad(lambda x: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(jacobian(x))))

    both = [gradient(jacve(fun)), gradient(jax.jacfwd(fun))]
    assert_same(*jax.jit(lambda x: [own(x) for own in both])(X))


@pytest.mark.parametrize(
    ("fun", "sums"), [(discounts, 1), (annuities, 1), (tip, 2), (shares, 1), (halves, 0)]
)
def test_triangles_are_added_up_in_turn(fun, sums):
    program = rewritten(fun)
    assert len(cumulative(program)) == sums
    assert all(program.slots[i.outputs[0]].shape == (COUNT,) for i in cumulative(program))


def test_what_is_read_elsewhere_or_scaled_is_left():
    program = make_plan(discounts, jnp.asarray(X), order="reverse").program
    (number,) = [
        k for k, i in enumerate(program.instructions) if program.slots[i.outputs[0]].shape == (144,)
    ]
    listed = program.instructions[number]
    for edited in (
        replace(program, values=[*program.values, *listed.outputs]),
        with_operation(program, number, coefficient=2),
        with_operation(program, number + 1, coefficient=2),
        with_operation(program, number + 1, real=True),
    ):
        assert added_in_turn(edited).instructions == edited.instructions


@pytest.mark.parametrize(("fun", "reverse"), [(discounts, True), (annuities, False)])
def test_rows_are_added_up_from_the_other_end(fun, reverse):
    (made,) = cumulative(rewritten(fun))
    row = np.arange(1.0, COUNT + 1)
    wanted = np.cumsum(row[::-1])[::-1] if reverse else np.cumsum(row)
    np.testing.assert_array_equal(made.local.fun(jnp.asarray(row)), wanted)


@pytest.mark.smoke
def test_rows_of_one_column_between_zeros_are_added_up():
    # Of which XLA makes the column everywhere where it sees the zeros.
    (made,) = cumulative(rewritten(discounts))

    @jax.jit
    def sums(column):
        return made.local.fun(jnp.zeros(7).at[3].set(column))

    found = jax.vmap(sums)(jnp.asarray([2.0, 5.0]))
    np.testing.assert_array_equal(found, np.outer([2.0, 5.0], [1, 1, 1, 1, 0, 0, 0]))


def test_an_infinite_entry_stays_in_the_sums_that_hold_it():
    def roots(x):
        return jnp.sum(jnp.sqrt(jnp.cumsum(x)[3:] - jnp.cumsum(X)[3]))

    found = jax.jit(jacve(roots, order="reverse"))(X)
    assert np.isinf(found[:4]).all()
    assert np.isfinite(found[4:]).all()


@pytest.mark.smoke
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("order", ["auto", "forward", "reverse"])
def test_one_of_the_sums_alone(order, reverse):
    # XLA's CPU compiler takes a cumulative sum of one padded column for that column everywhere:
    # `jax.jit(jax.vmap(jax.jacrev(one)))` is wrong here (JAX 0.10 and 0.12), its parts are not.
    def one(x):
        return jax.lax.cumsum(jnp.sin(x), reverse=reverse)[2] ** 2

    x = np.random.default_rng(0).uniform(0.2, 1.0, (6, 5))
    found = jax.jit(jax.vmap(jacve(one, order=order)))(x)
    assert_same(found, np.stack([jax.jacfwd(one)(row) for row in x]))
    found = jax.jit(jax.vmap(laplacian_ve(one)))(x)
    assert_same(found, np.stack([jnp.trace(jax.hessian(one)(row)) for row in x]))


@pytest.mark.smoke
def test_many_samples_are_added_up_in_numbers():
    x = jnp.ones((4096, COUNT), jnp.float32)

    def prices(rates):  # dear functions of as many numbers suit arrays otherwise
        return jnp.sum(jnp.exp(-rates))

    def shapes(fun):
        jaxpr = jax.make_jaxpr(jax.vmap(jacve(fun)))(x)
        return primitives(jaxpr.jaxpr, ("exp",))

    assert (4096,) not in shapes(prices)
    assert shapes(discounts)[4096,] >= COUNT


@pytest.mark.slow
@pytest.mark.parametrize("reverse", [False, True])
def test_cumulative_products_share_their_tree_with_the_derivative(reverse):
    """By itself such a product is one over windows on a CPU, beside the derivative it is not."""

    def present(rates, weights):
        factors = jax.lax.cumprod(rates / (1.0 + rates), reverse=reverse)
        return jnp.sum(factors * weights), factors[7]

    def written(operator, argnums):
        return jax.jit(jax.vmap(operator(present, argnums=argnums))).lower(RATES, WEIGHTS)

    for order in ("forward", "reverse"):
        found = jax.vmap(value_and_jacve(present, order, argnums=(0, 1)))(RATES, WEIGHTS)
        jacobian = jax.vmap(jax.jacrev(present, argnums=(0, 1)))(RATES, WEIGHTS)
        assert_same(found, (jax.vmap(present)(RATES, WEIGHTS), jacobian))
    moving = written(value_and_jacve, 0).as_text()
    assert "reduce_window" not in moving
    assert "reduce_window" in written(value_and_jacve, 1).as_text()
