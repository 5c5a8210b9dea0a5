"""`holomorphic=` and `allow_int=`: what JAX's functions return with them, and what they refuse."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import hessve, jacve, value_and_jacve
from graphax_lapl.errors import InvalidTypeError
from tests.checks import assert_same

Z = np.array([1.0 + 0.2j, 0.3 - 1.0j, 0.5 + 0.1j])
W = 0.4 * np.array([[1 + 1j, 0.3, -0.2j], [0.1j, -1.0, 0.4], [0.5, 0.2 - 0.3j, 0.8]])
X = np.array([0.3, -0.7])
N = np.array([2, 3])


@pytest.fixture(autouse=True)
def promotion() -> Iterator[None]:
    with jax.numpy_dtype_promotion("standard"):
        yield


Function = Callable[..., Any]


def steps(count: int) -> Function:
    return lambda z: lax.scan(lambda c, _: (jnp.sin(c) * z, None), 0.1 * z, None, length=count)[0]


HOLOMORPHIC: dict[str, Function] = {
    "product": jnp.prod,
    "layers": lambda z: jnp.tanh(W @ jnp.sin(W @ z)),
    "quotient": lambda z: z[0] / z[1] * jnp.sqrt(z[2]),
    "power": lambda z: z**3 + z ** (1.5 + 1j),
    "logarithm": lambda z: jnp.log(z.sum()),
    "unrolled loop": steps(3),
    "loop": steps(20),
    "branch": lambda z: lax.cond(jnp.abs(z[0]) < 1, lambda z: z * z, jnp.sin, z),
    "solve": lambda z: jnp.linalg.solve(W + jnp.diag(z), z),
    "determinant": lambda z: jnp.linalg.det(W * z),
    "transform": lambda z: jnp.fft.fft(z * z),
    "linear": lambda z: W @ z,
    "real parts that do not move": lambda z: lax.stop_gradient(jnp.abs(z)) * z * z,
    "masks": lambda z: jnp.where(jnp.abs(z) < 1, z * z, z**3),
    "pytree": lambda z: {"a": z * z, "b": (jnp.exp(z.sum()), None)},
}
#: Of these `jax.jacfwd` and `jax.jacrev` return numbers, which differ.
NEITHER: dict[str, Function] = {
    "conjugate": jnp.conj,
    "conjugate in a product": lambda z: jnp.conj(z) * z,
    "magnitude in a product": lambda z: jnp.abs(z) * z,
    "conjugate in a loop": lambda z: lax.scan(
        lambda c, _: (jnp.conj(c) * z, None), z, None, length=12
    )[0],
}


@pytest.mark.parametrize("order", ["auto", "forward", "reverse"])
@pytest.mark.parametrize("name", HOLOMORPHIC)
def test_jacobian(name: str, order: str) -> None:
    fun = HOLOMORPHIC[name]
    expected = jax.jit(jax.jacrev(fun, holomorphic=True))(Z)
    assert_same(jacve(fun, order, holomorphic=True)(Z), expected, tolerance=1e-12)
    value, found = value_and_jacve(fun, order, holomorphic=True)(Z)
    assert_same((value, found), (fun(Z), expected), tolerance=1e-12)


@pytest.mark.parametrize("order", ["auto", "reverse", "markowitz"])
@pytest.mark.parametrize("name", HOLOMORPHIC)
def test_hessian(name: str, order: str) -> None:
    fun = HOLOMORPHIC[name]
    expected = jax.jit(jax.hessian(fun, holomorphic=True))(Z)
    assert_same(hessve(fun, order, holomorphic=True)(Z), expected, tolerance=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["layers", "loop", "quotient", "solve"])
def test_sparse_and_batched_hessians(name: str) -> None:
    fun = HOLOMORPHIC[name]
    reference = jax.jit(jax.hessian(fun, holomorphic=True))
    sparse = hessve(fun, holomorphic=True, sparse_representation=True)(Z)
    assert_same(sparse.todense().reshape(reference(Z).shape), reference(Z), tolerance=1e-12)
    batch = np.stack([Z, 1.1 * Z])
    found = jax.jit(jax.vmap(hessve(fun, holomorphic=True)))(batch)
    assert_same(found, jax.vmap(reference)(batch), tolerance=1e-11)


@pytest.mark.slow
def test_derivatives_of_holomorphic_ones() -> None:
    fun = HOLOMORPHIC["layers"]
    for ours, theirs in (
        (jacve(fun, holomorphic=True), jax.jacrev(fun, holomorphic=True)),
        (hessve(fun, holomorphic=True), jax.hessian(fun, holomorphic=True)),
    ):
        for outer in (
            lambda f: jax.grad(lambda z: jnp.abs(f(z)).sum()),
            lambda f: jax.jacfwd(f, holomorphic=True),
        ):
            found, expected = (jax.jit(outer(fun))(Z) for fun in (ours, theirs))
            assert_same(found, expected, tolerance=1e-12)


@pytest.mark.slow
def test_several_arguments_and_auxiliary_output() -> None:
    def fun(z: Any, x: Any, w: Any) -> Any:
        return {"y": jnp.sin(z["a"]) * w * x}, ("name", w)

    args = ({"a": Z[:2]}, X, Z[1:])
    for ours, theirs in ((jacve, jax.jacrev), (hessve, jax.hessian)):
        found, aux = ours(fun, argnums=(2, 0), has_aux=True, holomorphic=True)(*args)
        alone = jax.tree_util.Partial(lambda *a: fun(*a)[0])
        expected = theirs(alone, argnums=(2, 0), holomorphic=True)(*args)
        assert_same(found, expected, tolerance=1e-12)
        assert aux[0] == "name"


@pytest.mark.parametrize("operator", [jacve, value_and_jacve, hessve])
@pytest.mark.parametrize("name", NEITHER)
def test_what_is_not_holomorphic_is_refused(name: str, operator: Any) -> None:
    with pytest.raises(InvalidTypeError, match="not holomorphic"):
        operator(NEITHER[name], holomorphic=True)(Z)


@pytest.mark.parametrize("operator", [jacve, value_and_jacve, hessve])
def test_real_inputs_and_outputs_are_refused(operator: Any) -> None:
    for fun, arg, what in (
        (jnp.abs, Z, "an output of dtype float64"),
        (lambda x: x * 1j, X, "an input of dtype float64"),
    ):
        with pytest.raises(InvalidTypeError, match=f"holomorphic=True.*{what}"):
            operator(fun, holomorphic=True)(arg)
        theirs = jax.hessian if operator is hessve else jax.jacrev
        with pytest.raises(TypeError):
            theirs(fun, holomorphic=True)(arg)
    with pytest.raises(InvalidTypeError, match="holomorphic must be True or False"):
        operator(jnp.sin, holomorphic="no")
    with pytest.raises(InvalidTypeError, match="holomorphic=True"):
        hessve(jnp.sin)(Z)
    with pytest.raises(InvalidTypeError, match="omplex"):
        hessve(jnp.sin, "compressed", holomorphic=True)(Z)


@pytest.mark.parametrize("aux", [3, 2.5, None, "name", np.arange(2), np.float32(2)])
def test_auxiliary_values_that_are_no_jax_arrays_are_returned_as_they_are(aux: Any) -> None:
    for operator in (jacve, hessve):
        _, found = operator(lambda x: ((x * x).sum(), {"a": (aux, x)}), has_aux=True)(X)
        assert type(found["a"][0]) is type(aux)
        assert np.array_equal(found["a"][0], aux)
        assert isinstance(found["a"][1], jax.Array)


# -- integers --------------------------------------------------------------------------------------

WITH_INTEGERS: dict[str, tuple[Function, tuple[Any, ...], Any]] = {
    "one array": (lambda n: n * 2.0, (N,), 0),
    "number": (lambda n: n * 2.0, (3,), 0),
    "small number": (lambda n: n * 2.0, (np.int8(3),), 0),
    "beside a real one": (lambda x, n: x**n, (X, N), (0, 1)),
    "in front of it": (lambda x, n: {"a": x * n, "b": x.sum()}, (X, N), (1, 0)),
    "as an index": (lambda x, n: x[n % 2] ** 2, (X, N), (0, 1)),
    "in a pytree": (
        lambda t: (t["x"] * t["n"][0], jnp.sin(t["z"].real).sum()),
        ({"x": X, "n": (N, N[0]), "z": Z},),
        0,
    ),
    "of size zero": (lambda x, n: x.sum() + n.sum(), (X, N[:0]), (0, 1)),
}


@pytest.mark.parametrize("name", WITH_INTEGERS)
def test_integers(name: str) -> None:
    fun, args, argnums = WITH_INTEGERS[name]
    expected = jax.jit(jax.jacrev(fun, argnums, allow_int=True))(*args)
    for order in ("auto", "forward", "search", "compressed"):
        if order == "compressed" and name == "in a pytree":
            continue  # a complex input
        found = jacve(fun, order, argnums, allow_int=True)(*args)
        assert_same(found, expected, tolerance=1e-12)
    found = value_and_jacve(fun, argnums=argnums, allow_int=True)(*args)
    assert_same(found, (fun(*args), expected), tolerance=1e-12)
    found = jax.jit(jacve(fun, argnums=argnums, allow_int=True))(*args)
    assert_same(found, expected, tolerance=1e-12)


def test_batches_counts_and_sparse_results_beside_integers() -> None:
    def fun(x: Any, n: Any) -> Any:
        return jnp.sin(x) * n, n

    operator = jacve(fun, argnums=(0, 1), has_aux=True, count_ops=True, allow_int=True)
    found, aux, counts = operator(X, N)
    assert_same(
        (found, aux), (jax.jit(jax.jacrev(lambda *a: fun(*a)[0], (0, 1), allow_int=True))(X, N), N)
    )
    assert counts.muls >= 0
    sparse = jacve(fun, argnums=(0, 1), has_aux=True, allow_int=True, sparse_representation=True)
    (first, second), _ = sparse(X, N)
    assert_same((first.todense(), second.todense()), found)
    assert second.nse == 0
    batch = (np.stack([X, 2 * X]), np.stack([N, N]))
    mapped = jax.vmap(jacve(lambda *a: fun(*a)[0], argnums=(0, 1), allow_int=True))(*batch)
    expected = jax.jit(jax.vmap(jax.jacrev(lambda *a: fun(*a)[0], (0, 1), allow_int=True)))(*batch)
    assert_same(mapped, expected)
    ours = jax.grad(
        lambda x: jacve(fun, argnums=(0, 1), has_aux=True, allow_int=True)(x, N)[0][0].sum()
    )(X)
    assert_same(ours, -np.sin(X) * N, tolerance=1e-12)


def test_booleans_have_zeros_too() -> None:
    """`jax.jacrev` fails on them."""
    found = jacve(lambda x, b: jnp.where(b, x, 2 * x), argnums=(0, 1), allow_int=True)(X, X > 0)
    assert_same(found, (np.diag([1.0, 2.0]), np.zeros((2, 2), bool)))


def test_what_is_refused_beside_integers() -> None:
    with pytest.raises(InvalidTypeError, match="dtype int64"):
        jacve(lambda n: n * 2.0)(N)
    with pytest.raises(InvalidTypeError, match="dtype int64"):
        jacve(lambda n: n * 2, allow_int=True)(N)
    with pytest.raises(InvalidTypeError, match="dtype key"):
        jacve(lambda k: jax.random.normal(k, (2,)), allow_int=True)(jax.random.key(0))
    with pytest.raises(InvalidTypeError, match="an input of dtype int64"):
        jacve(lambda z, n: z * n, argnums=(0, 1), allow_int=True, holomorphic=True)(Z[:2], N)
    with pytest.raises(InvalidTypeError, match="allow_int must be True or False"):
        jacve(jnp.sin, allow_int=1)
