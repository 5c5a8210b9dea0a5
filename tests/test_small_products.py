"""Products of small matrices that every sample has of its own: loops for batches."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from graphax_lapl import hessve, jacve, laplacian_ve, make_plan, value_and_jacve
from graphax_lapl.api.emission import MANY
from graphax_lapl.edges.maps import label
from graphax_lapl.edges.operations import Einsum, Read
from graphax_lapl.emit.arrays import einsum
from graphax_lapl.program.instructions import EdgeInstruction, PrimalInstruction, Program, Slot
from graphax_lapl.program.orientation import multiplies
from graphax_lapl.program.small_products import products_of_many_whole, small_products_in_loops

from .test_rows_of_results import SAMPLES, products, weights


def steps(p: Any, x: Array) -> Array:
    """A step of Runge and Kutta's method: a product of Jacobians for every stage."""

    def slope(x: Array) -> Array:
        return jnp.tanh(x @ p[0]) @ p[1]

    first = slope(x)
    second = slope(x + 0.05 * first)
    third = slope(x + 0.05 * second)
    return x + 0.1 / 6 * (first + 2 * second + 2 * third + slope(x + 0.1 * third))


def case(size: int, hidden: int = 24) -> tuple[Any, list[Array], Array]:
    """The step of a vector of `size` numbers, its weights, and a batch."""
    xs = jnp.asarray(np.random.default_rng(3).normal(size=(SAMPLES, size)))
    return steps, [weights(size, hidden), weights(hidden, size, seed=1)], xs


def looped(program: Program) -> list[Einsum]:
    """The products that are loops."""
    return [
        i.operation
        for i in program.instructions
        if isinstance(i, EdgeInstruction) and isinstance(i.operation, Einsum)
        if i.operation.looped
    ]


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 5, 6, 7, 8, 12])
def test_numbers(size: int) -> None:
    fun, parameters, xs = case(size)
    found = jax.vmap(jacve(fun, argnums=1), in_axes=(None, 0))(parameters, xs)
    expected = jax.vmap(jax.jacfwd(fun, argnums=1), in_axes=(None, 0))(parameters, xs)
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.slow
def test_single_precision_and_derivatives(float32: None) -> None:
    fun, parameters, xs = case(6)
    parameters, xs = jax.tree.map(lambda a: a.astype(jnp.float32), (parameters, xs))

    def norm(jacobian: Any, parameters: Any) -> Array:
        return (jax.vmap(jacobian(fun, argnums=1), in_axes=(None, 0))(parameters, xs) ** 2).sum()

    found = jax.grad(lambda p: norm(jacve, p))(parameters)
    expected = jax.grad(lambda p: norm(jax.jacfwd, p))(parameters)
    for own, other in zip(found, expected, strict=True):
        assert own.dtype == jnp.float32
        np.testing.assert_allclose(own, other, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(("size", "loops"), [(3, 0), (4, 0), (5, 3), (6, 3), (7, 3), (8, 0)])
def test_which_are_loops(size: int, loops: int) -> None:
    """Small ones are written out anyway, and those of 8 x 8 are compiled."""
    fun, parameters, xs = case(size)
    plan = make_plan(fun, parameters, xs[0], argnums=1, order="reverse")
    eliminated = make_plan(fun, parameters, xs[0], argnums=1)
    assert len(looped(small_products_in_loops(eliminated.program, eliminated.moving))) == loops
    assert not looped(small_products_in_loops(plan.program, set()))  # all samples share everything


def test_only_batches_have_loops() -> None:
    fun, parameters, xs = case(6)
    jacobian = jacve(fun, argnums=1)
    one = products(jax.make_jaxpr(jacobian)(parameters, xs[0]).jaxpr)
    batch = products(jax.make_jaxpr(jax.vmap(jacobian, in_axes=(None, 0)))(parameters, xs).jaxpr)
    square = [e for e in one if e.outvars[0].aval.shape == (6, 6)]
    own = [e for e in batch if e.params["dimension_numbers"][1][0]]
    assert square
    assert not own


def test_complex_matrices_are_products() -> None:
    fun, parameters, xs = case(6)
    plan = make_plan(fun, parameters, xs[0], argnums=1)
    slots = [Slot(slot.shape, np.dtype(complex)) for slot in plan.program.slots]
    assert not looped(small_products_in_loops(replace(plan.program, slots=slots), plan.moving))


def test_weights_that_are_differentiated_too_are_left_to_the_library() -> None:
    """What is made of them alone is the same for all samples, though it is no input itself."""

    def layers(raw: Array, x: Array) -> Array:
        matrix = jnp.tanh(raw)
        return jnp.sin(jnp.sin(x @ matrix) @ matrix)

    plan = make_plan(layers, weights(6, 6), weights(6, 1)[:, 0], argnums=(0, 1), order="reverse")
    both = [
        i
        for i in plan.program.instructions
        if isinstance(i, EdgeInstruction) and isinstance(i.operation, Einsum)
        if multiplies(i.operation) and i.operation.shape == (6, 6)
    ]
    assert both
    assert not looped(small_products_in_loops(plan.program, plan.moving))


def metric(x: Array) -> Array:
    """A quadratic form in the inverse of a matrix that depends on where it is."""
    rows = jnp.tanh(jnp.outer(jnp.cos(x), x) + jnp.eye(len(x)))
    matrix = rows @ rows.T + jnp.eye(len(x))
    return 0.5 * x @ jnp.linalg.solve(matrix, x) + jnp.linalg.slogdet(matrix)[1]


@pytest.mark.slow
@pytest.mark.parametrize(("size", "loops"), [(5, True), (6, True), (7, False)])
def test_products_of_the_function(size: int, loops: bool) -> None:
    """Also where the result is a Laplacian, up to fewer multiplications."""
    xs = jnp.asarray(np.random.default_rng(4).normal(size=(3, size)))
    plan = make_plan(lambda x: jnp.tanh(jnp.outer(x, x) @ jnp.outer(jnp.sin(x), x)), xs[0])
    assert len(looped(small_products_in_loops(plan.program, plan.moving))) >= 1
    own = looped(small_products_in_loops(plan.program, plan.moving, again=True))
    assert bool(own) == loops
    gradient = jax.vmap(jax.grad(lambda x: laplacian_ve(metric)(x) ** 2))
    expected = jax.vmap(jax.grad(lambda x: jnp.trace(jax.hessian(metric)(x)) ** 2))
    np.testing.assert_allclose(jax.jit(gradient)(xs), jax.jit(expected)(xs), rtol=1e-9)


def test_one_laplacian_has_products() -> None:
    xs = jnp.asarray(np.random.default_rng(5).normal(size=(3, 6)))

    def fun(x: Array) -> Array:
        return jnp.sum(jnp.tanh(jnp.outer(x, x) @ jnp.outer(jnp.sin(x), x)))

    one = products(jax.make_jaxpr(laplacian_ve(fun))(xs[0]).jaxpr)
    batch = products(jax.make_jaxpr(jax.vmap(laplacian_ve(fun)))(xs).jaxpr)
    assert [e for e in one if [v.aval.shape for v in e.invars] == [(6, 6)] * 2]
    assert not [e for e in batch if [v.aval.shape for v in e.invars] == [(3, 6, 6)] * 2]


@pytest.mark.slow
def test_rows_that_meet_rows_are_no_product_of_matrices() -> None:
    def fun(x: Array) -> Array:
        return jnp.sin(jnp.einsum("ij,ij->i", jnp.outer(x, jnp.cos(x)), jnp.outer(x, x**2)))

    xs = jnp.asarray(np.random.default_rng(7).normal(size=(3, 9)))
    plan = make_plan(fun, xs[0])
    assert not looped(small_products_in_loops(plan.program, plan.moving))
    expected = jax.vmap(jax.jacfwd(fun))(xs)
    np.testing.assert_allclose(jax.vmap(jacve(fun))(xs), expected, rtol=1e-11, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"), [("ij", "jk"), ("ji", "jk"), ("ij", "kj"), ("ji", "kj")]
)
def test_all_orders_of_axes(first: str, second: str) -> None:
    def fun(x: Array) -> Array:
        left, right = jnp.outer(x, jnp.cos(x)), jnp.outer(jnp.sin(x), x**2)
        return jnp.tanh(jnp.einsum(f"{first},{second}->ik", left, right))

    xs = jnp.asarray(np.random.default_rng(6).normal(size=(3, 6)))
    plan = make_plan(fun, xs[0])
    found = small_products_in_loops(plan.program, plan.moving)
    made = [i for i in plan.program.instructions if isinstance(i, PrimalInstruction)]
    left = [i for i in found.instructions if isinstance(i, PrimalInstruction)]
    assert len(left) == len(made) - 1
    values, jacobians = jax.vmap(value_and_jacve(fun))(xs)
    np.testing.assert_allclose(values, jax.vmap(fun)(xs), rtol=1e-12)
    np.testing.assert_allclose(jacobians, jax.vmap(jax.jacfwd(fun))(xs), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("first", "second", "output", "size", "written"),
    [
        ("eab", "ebc", "eac", {"e": 30, "a": 4, "b": 4, "c": 4}, True),
        ("eab", "ebc", "eac", {"e": 30, "a": 6, "b": 8, "c": 6}, True),
        ("eab", "ebc", "eac", {"e": 30, "a": 8, "b": 8, "c": 8}, False),  # these are compiled
        ("eab", "ebc", "eac", {"e": 30, "a": 4, "b": 9, "c": 4}, False),
        ("eab", "ebc", "eac", {"e": 30, "a": 20, "b": 6, "c": 20}, False),
        ("eab", "eb", "ea", {"e": 300, "a": 4, "b": 4}, False),  # a matrix and a vector
        ("ab", "bc", "ac", {"a": 16, "b": 4, "c": 16}, True),
        ("ab", "bc", "ac", {"a": 16, "b": 6, "c": 4}, False),
        ("ab", "bc", "ac", {"a": 30, "b": 4, "c": 16}, False),
    ],
)
def test_which_products_of_many_matrices_are_written_out(
    first: str, second: str, output: str, size: dict[str, int], written: bool
) -> None:
    names = {name: k for k, name in enumerate(size)}
    reads = tuple(Read(tuple(label(names[n]) for n in own)) for own in (first, second))
    sizes = tuple((names[n], extent) for n, extent in size.items())
    operation = Einsum(reads, sizes, tuple(names[n] for n in output))
    assert operation.written_out == written
    random = np.random.default_rng(0)
    operands = [jnp.asarray(random.normal(size=[size[n] for n in own])) for own in (first, second)]
    expected = jnp.einsum(f"{first},{second}->{output}", *operands)
    np.testing.assert_allclose(einsum(operation, operands), expected, rtol=1e-12, atol=1e-13)
    found = jax.make_jaxpr(lambda *arrays: einsum(operation, arrays))(*operands)
    assert ("dot_general" in str(found)) != written


def stretched(x: Array) -> Array:
    """An energy of tetrahedra, each with a deformation of its own."""
    places = x.reshape(-1, 3)
    first = np.arange(len(places) - 3)
    sides = jnp.stack([places[first + k] - places[first] for k in (1, 2, 3)], -1)
    strain = jnp.swapaxes(sides, 1, 2) @ sides
    return jnp.sum(jnp.tanh(strain @ strain) + strain**2)


def test_energies_of_elements() -> None:
    x = jnp.asarray(np.random.default_rng(1).normal(size=(3, 24)) / 3)
    for own, other in ((jacve, jax.jacrev), (hessve, jax.hessian)):
        found = jax.vmap(own(stretched))(x)
        np.testing.assert_allclose(found, jax.vmap(other(stretched))(x), rtol=1e-10, atol=1e-12)


def placed_by_links(angles: Array) -> Array:
    """Positions along a chain of rotations and shifts."""
    frame, found = jnp.eye(4), []
    for angle in angles:
        cosine, sine = jnp.cos(angle), jnp.sin(angle)
        step = jnp.eye(4).at[0, 0].set(cosine).at[1, 1].set(cosine).at[0, 3].set(0.3)
        frame = frame @ step.at[0, 1].set(-sine).at[1, 0].set(sine).at[1, 2].set(0.1 * angle)
        found.append(frame[:3, 3])
    return jnp.concatenate(found)


def mixed(x: Array) -> Array:
    """Every node multiplies its own matrix twice."""
    nodes = x.reshape(-1, 3)
    matrices = jnp.sin(nodes[:, :, None] * nodes[:, None, :])
    return jnp.einsum("nij,nkj->nik", matrices, jnp.tanh(matrices @ matrices))


@pytest.mark.parametrize(
    ("fun", "size", "products", "left"),
    [(placed_by_links, 6, 4, 1), (mixed, 12, 1, 0)],
)
def test_products_of_the_function_are_written_out_for_many_samples(
    fun: Any, size: int, products: int, left: int
) -> None:
    x = jnp.asarray(np.random.default_rng(2).normal(size=(MANY, size)) / 2)
    plan = make_plan(fun, x[0], order="reverse")
    few = small_products_in_loops(plan.program, plan.moving)
    many = small_products_in_loops(few, plan.moving, many=True)
    assert small_products_in_loops(many, plan.moving, many=True) is many
    assert _products(few) == products
    assert _products(many) == left
    for count in (MANY - 1, MANY):
        found = jax.vmap(jacve(fun, order="reverse"))(x[:count])
        np.testing.assert_allclose(
            found, jax.vmap(jax.jacfwd(fun))(x[:count]), rtol=1e-10, atol=1e-12
        )
    found = jax.vmap(laplacian_ve(fun))(x)
    expected = jax.vmap(lambda x: jnp.trace(jax.hessian(fun)(x), axis1=-1, axis2=-2))(x)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


def test_operators_that_are_differentiated_keep_products_of_many_matrices() -> None:
    x = jnp.asarray(np.random.default_rng(3).normal(size=24) / 2)
    plan = make_plan(lambda x: mixed(jnp.tile(x, 4)), x, order="reverse")
    many = [
        i.operation
        for i in plan.program.instructions
        if isinstance(i, EdgeInstruction) and isinstance(i.operation, Einsum)
        if i.operation.multiplies_many
    ]
    assert many
    assert all(operation.written_out for operation in many)
    whole = products_of_many_whole(plan.program)
    kept = [i.operation for i in whole.instructions if isinstance(i, EdgeInstruction)]
    assert sum(isinstance(o, Einsum) and o.whole for o in kept) == len(many)
    assert products_of_many_whole(whole) is not plan.program
    small = make_plan(placed_by_links, x[:3], order="reverse").program
    assert products_of_many_whole(small) is small


def _products(program: Program) -> int:
    """Products of the function that are left."""
    primal = [i for i in program.instructions if isinstance(i, PrimalInstruction)]
    return sum(i.equation.name == "dot_general" for i in primal)
