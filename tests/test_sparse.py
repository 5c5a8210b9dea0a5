"""Sparse Jacobians: exact structure, sorted output, memory in proportion to the nonzeros."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import sparse

from graphax_lapl import hessve, jacve, make_plan, value_and_jacve
from tests.checks import ORDERS, assert_same

State = jax.Array


def brusselator(laplacian: Callable[[State], State]) -> Callable[[State], State]:
    """Reaction and diffusion of two species on a periodic N x N grid, (2, N, N) -> (2, N, N).

    u' = 1 + u^2 v - 4.4 u + alpha lap(u),  v' = 3.4 u - u^2 v + alpha lap(v): the test problem of
    Hairer and Wanner, Solving Ordinary Differential Equations II. Every equation depends on five
    values of its own species and one of the other: 12 N^2 nonzeros.
    """

    def fun(state: State) -> State:
        u, v = state[0], state[1]
        reaction = u * u * v
        alpha = 0.02 * u.shape[0] ** 2
        return jnp.stack(
            [
                1.0 + reaction - 4.4 * u + alpha * laplacian(u),
                3.4 * u - reaction + alpha * laplacian(v),
            ]
        )

    return fun


def rolled(u: State) -> State:
    """Five-point Laplacian by shifting the grid."""
    neighbours = jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0) + jnp.roll(u, 1, 1) + jnp.roll(u, -1, 1)
    return neighbours - 4.0 * u


def sliced(u: State) -> State:
    """Five-point Laplacian by slices of a grid with wrapped borders."""
    tall = jnp.concatenate([u[-1:], u, u[:1]], 0)
    wide = jnp.concatenate([u[:, -1:], u, u[:, :1]], 1)
    return tall[2:] + tall[:-2] + wide[:, 2:] + wide[:, :-2] - 4.0 * u


def padded(u: State) -> State:
    """Five-point Laplacian by jnp.pad in wrap mode."""
    p = jnp.pad(u, 1, mode="wrap")
    return p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4.0 * u


LAPLACIANS = {"roll": rolled, "slices": sliced, "pad": padded}

in_every_form = pytest.mark.parametrize("form", LAPLACIANS)
in_every_order = pytest.mark.parametrize("order", ORDERS)


def state(n: int) -> np.ndarray:
    return np.random.default_rng(n).uniform(0.5, 2.0, (2, n, n))


@in_every_form
@in_every_order
@pytest.mark.parametrize("n", [pytest.param(4, marks=pytest.mark.smoke), 8, 16])
def test_nonzeros_of_the_brusselator(n: int, order: str, form: str) -> None:
    fun = brusselator(LAPLACIANS[form])
    jacobian = jax.jit(jacve(fun, order=order, sparse_representation=True))(state(n))
    assert jacobian.nse == 12 * n**2
    assert jacobian.shape == (2, n, n, 2, n, n)


@in_every_form
@in_every_order
def test_values_of_the_brusselator(order: str, form: str) -> None:
    fun = brusselator(LAPLACIANS[form])
    x = state(6)
    jacobian = jax.jit(jacve(fun, order=order, sparse_representation=True))(x)
    dense = jax.jit(jax.jacfwd(fun))(x)
    assert_same(jacobian.todense(), dense)
    assert np.count_nonzero(dense) == jacobian.nse


def test_nonzeros_of_species_in_separate_arguments() -> None:
    """One leaf per pair of species: 5 N^2 on the diagonal blocks, N^2 beside them."""

    def fun(u: State, v: State) -> tuple[State, State]:
        out = brusselator(rolled)(jnp.stack([u, v]))
        return out[0], out[1]

    u, v = state(5)
    jacobian = jacve(fun, argnums=(0, 1), sparse_representation=True)(u, v)
    found = [[block.nse for block in row] for row in jacobian]
    assert found == [[5 * 25, 25], [25, 5 * 25]]
    dense = jax.jit(jax.jacfwd(fun, (0, 1)))(u, v)
    for row, expected in zip(jacobian, dense, strict=True):
        assert_same(tuple(block.todense() for block in row), expected)


@in_every_form
def test_indices_are_sorted_and_unique(form: str) -> None:
    x = state(5)
    bcoo = jacve(brusselator(LAPLACIANS[form]), sparse_representation=True)(x).to_bcoo()
    assert isinstance(bcoo, sparse.BCOO)
    assert bcoo.indices_sorted
    assert bcoo.unique_indices
    assert bcoo.nse == 12 * 25
    flat = np.ravel_multi_index(np.asarray(bcoo.indices).T, bcoo.shape)
    assert np.all(np.diff(flat) > 0)
    assert_same(bcoo.todense(), jax.jit(jax.jacfwd(brusselator(LAPLACIANS[form])))(x))


@pytest.mark.smoke
@in_every_order
@pytest.mark.parametrize("form", ["roll", "slices"])
def test_compiled_memory(order: str, form: str) -> None:
    """Temporaries and results stay below a few times the bytes of the nonzeros."""
    n = 64
    fun = brusselator(LAPLACIANS[form])
    jacobian = jax.jit(jacve(fun, order=order, sparse_representation=True))
    memory = jacobian.lower(jax.ShapeDtypeStruct((2, n, n), np.float64)).compile().memory_analysis()
    nonzero_bytes = 12 * n**2 * 8
    assert memory.temp_size_in_bytes + memory.output_size_in_bytes <= 4 * nonzero_bytes


@in_every_form
@in_every_order
def test_plan_does_not_grow_with_the_grid(order: str, form: str) -> None:
    """The same number of instructions on 16 x 16 as on 256 x 256: structure, not elements."""
    fun = brusselator(LAPLACIANS[form])
    plans = [
        make_plan(fun, jax.ShapeDtypeStruct((2, n, n), np.float64), order=order) for n in (16, 256)
    ]
    small, large = (len(plan.program.instructions) for plan in plans)
    assert small == large
    assert tuple(plans[0].order) == tuple(plans[1].order)


def test_constants_captured_do_not_grow_with_the_square() -> None:
    """The compiled text of the 64 x 64 Jacobian holds no table of size (N^2)^2."""
    fun = jacve(brusselator(rolled), sparse_representation=True)
    constants = jax.make_jaxpr(fun)(state(64)).consts
    assert sum(np.asarray(c).size for c in constants) <= 4 * 12 * 64**2


# ---------------------------------------------------------------- structures one by one


A = np.random.default_rng(1).uniform(0.5, 1.5, (4, 3))

STRUCTURES: dict[str, tuple[Callable[..., Any], np.ndarray, int]] = {
    "elementwise": (lambda x: jnp.sin(x) * x, A, 12),
    "identity": (lambda x: x, A, 12),
    "sum": (jnp.sum, A, 12),
    "row sums": (lambda x: jnp.sin(x).sum(1), A, 12),
    "transpose": (lambda x: jnp.exp(x).T, A, 12),
    "reshape": (lambda x: jnp.exp(x).reshape(2, 6)[:, ::-1], A, 12),
    "slice": (lambda x: jnp.exp(x)[1:, ::2], A, 6),
    "concatenate": (lambda x: jnp.concatenate([jnp.sin(x), x[:1]]), A, 15),
    "differences": (lambda x: jnp.diff(x, axis=0), A, 18),
    "gather": (lambda x: jnp.sin(x)[np.array([0, 0, 3])], A, 9),
    "scatter-add": (lambda x: jnp.zeros((2, 3)).at[np.array([0, 1, 1, 0])].add(x), A, 12),
    "diagonal": (lambda x: jnp.diagonal(x[:3] ** 2), A, 3),
    "matrix from diagonal": (lambda x: jnp.diag(x[:, 0]), A, 4),
    "lower triangle": (lambda x: jnp.tril(x[:3] * x[:3]), A, 6),
    "batched matrix": (lambda x: x @ A.T, A, 4 * 4 * 3),
    "softmax": (lambda x: jax.nn.softmax(x, 1), A, 4 * 3 * 3),
    "pairs": (lambda x: x[:, 0][:, None] - 2.0 * x[:, 0][None, :], A, 4 * 3 * 2 + 4),
    "stencil": (lambda x: jnp.convolve(x[:, 0], np.array([1.0, -2.0, 1.0]), "same"), A, 10),
    "arrowhead": (
        lambda x: jnp.concatenate([jnp.sum(x[:, 0] ** 2)[None], x[1:, 0] * x[0, 0]]),
        A,
        4 + 3 * 2,
    ),
    "constant": (lambda x: jnp.ones(3), A, 0),
    "one element": (lambda x: x[2, 1] ** 2, A, 1),
    "cumulative sum": (lambda x: jnp.cumsum(x[:, 0]), A, 4 * 4),  # dense along the axis
    "empty": (lambda x: jnp.sin(x[:0]), A, 0),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_structure(name: str) -> None:
    """Values of todense() and BCOO in every order; no more nonzeros than the structure has."""
    fun, x, nonzeros = STRUCTURES[name]
    expected = jax.jit(jax.jacfwd(fun))(x)
    for order in ORDERS:
        jacobian = jacve(fun, order=order, sparse_representation=True)(x)
        assert jacobian.shape == expected.shape
        found = jax.jit(lambda j: (j.todense(), j.to_bcoo().todense()))(jacobian)
        assert_same(found, (expected, expected), context=order)
        assert np.count_nonzero(expected) <= jacobian.nse <= nonzeros, order


def test_sparse_result_is_a_pytree() -> None:
    jacobian = jacve(brusselator(rolled), sparse_representation=True)(state(4))
    leaves, treedef = jax.tree.flatten(jacobian)
    assert leaves
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)
    rebuilt = jax.tree.unflatten(treedef, leaves)
    assert_same(rebuilt.todense(), jacobian.todense(), tolerance=0)
    doubled = jax.tree.map(lambda leaf: 2.0 * leaf, jacobian)
    assert_same(doubled.todense().shape, jacobian.shape)


def test_sparse_under_vmap_and_grad() -> None:
    fun = brusselator(rolled)
    batch = np.stack([state(4), state(4) + 0.1])
    dense = jax.vmap(lambda x: jacve(fun, sparse_representation=True)(x).todense())(batch)
    assert_same(dense, jax.jit(jax.vmap(jax.jacfwd(fun)))(batch))
    size = jax.grad(lambda x: jnp.sum(jacve(fun, sparse_representation=True)(x).todense() ** 2))
    reference = jax.grad(lambda x: jnp.sum(jax.jit(jax.jacfwd(fun))(x) ** 2))
    assert_same(jax.jit(size)(state(4)), jax.jit(reference)(state(4)))


def test_sparse_with_value_and_pytrees() -> None:
    def fun(p: dict) -> dict:
        return {"a": jnp.sin(p["x"]) * p["s"], "b": p["x"][0]}

    p = {"x": A[:, 0], "s": np.float64(2.0)}
    value, jacobian = value_and_jacve(fun, sparse_representation=True)(p)
    assert_same(value, fun(p))
    expected = jax.jit(jax.jacfwd(fun))(p)
    dense = jax.tree.map(
        lambda leaf: leaf.todense(), jacobian, is_leaf=lambda leaf: hasattr(leaf, "todense")
    )
    assert_same(dense, expected)


def test_repr_names_shape_and_nonzeros() -> None:
    text = repr(jacve(lambda x: jnp.sin(x) * 2.0, sparse_representation=True)(A))
    assert "12" in text
    assert len(text) < 2000


def test_rule_that_calls_its_own_linear_function() -> None:
    @jax.custom_jvp
    def permuted(x: jax.Array, by: jax.Array) -> jax.Array:
        return 3 * x[by]

    @permuted.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return permuted(*primals), permuted(tangents[0], primals[1])

    def fun(x: jax.Array) -> jax.Array:
        return permuted(x**2, np.array([2, 0, 1, 3]))

    x = np.arange(1.0, 5.0)
    found = jacve(fun, sparse_representation=True)(x)
    assert found.nse == 4
    assert_same(found.todense(), jax.jit(jax.jacrev(fun))(x))
    assert_same(hessve(fun)(x), jax.jit(jax.hessian(fun))(x))
