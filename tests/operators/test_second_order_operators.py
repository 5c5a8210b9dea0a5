"""Operators of second order against dense Hessians and Jacobians of JAX."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import (
    InvalidArgumentError,
    InvalidTypeError,
    local_kinetic_energy,
    second_order_operator,
)

KEYS = jax.random.split(jax.random.key(7), 5)
N = 5
WIDE, NARROW = jax.random.normal(KEYS[0], (6, N)), jax.random.normal(KEYS[1], (2, N))
MATRIX = jax.random.normal(KEYS[2], (N, N))  # indefinite, and not symmetric
VECTOR, POINT = jax.random.normal(KEYS[3], (N,)), jax.random.normal(KEYS[4], (N,))


def wide(x):
    return jnp.sum(jnp.tanh(WIDE @ jnp.sin(x)))


def narrow(x):
    return jnp.sum(jnp.exp(jnp.cos(NARROW @ x)))


def several(x):
    y = jnp.sin(NARROW @ x)
    return jnp.stack([wide(x), jnp.prod(y)]) * x[:2]


def complex_valued(x):
    return jax.lax.complex(narrow(x), jnp.sum(x**3)) * (1 + 2j)


def with_own_rule(x):
    @jax.custom_vjp
    def square(x):
        return x**2

    square.defvjp(lambda x: (x**2, x), lambda x, g: (2 * x * g,))
    return jnp.sum(square(x) * jnp.roll(x, 1))


def looping(x):
    return jax.lax.fori_loop(0, 3, lambda k, y: jnp.sin(y) * jnp.sum(y), x)


def same(x):
    return x


FUNCTIONS = [wide, narrow, several, complex_valued, with_own_rule, looping, same]


@partial(jax.jit, static_argnums=0)
def reference(fun, x, a, b, c):
    """The operator from dense derivatives, real and imaginary parts on their own."""

    def parts(x):
        y = fun(x)
        return jnp.stack([jnp.real(y), jnp.imag(y)])

    hessian = jax.jit(jax.jacrev(jax.jacrev(parts)))(x)
    total = jnp.sum(hessian * a, axis=(-2, -1)) + jax.jit(jax.jacrev(parts))(x) @ b + c * parts(x)
    return jax.lax.complex(*total) if jnp.iscomplexobj(fun(x)) else total[0]


@partial(jax.jit, static_argnums=0)
def gradient(fun, x):
    def parts(x):
        y = fun(x)
        return jnp.stack([jnp.real(y), jnp.imag(y)])

    found = jax.jit(jax.jacrev(parts))(x)
    return jax.lax.complex(*found) if jnp.iscomplexobj(fun(x)) else found[0]


def close(found, expected):
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("fun", FUNCTIONS, ids=lambda fun: fun.__name__)
def test_all_terms(fun):
    found = jax.jit(second_order_operator(fun, MATRIX, VECTOR, 0.7))(POINT)
    close(found, reference(fun, POINT, MATRIX, VECTOR, 0.7))


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("fun", [narrow, several], ids=lambda fun: fun.__name__)
def test_orders(fun, order):
    found = second_order_operator(fun, VECTOR, -1.5, order=order, compress=False)(POINT)
    close(found, reference(fun, POINT, jnp.diag(VECTOR), -1.5 * jnp.ones(N), 0.0))


@pytest.mark.parametrize(
    ("a", "b", "c"), [(None, VECTOR, None), (2.0, None, None), (None, None, 3.0), (0.0, 1.0, None)]
)
def test_absent_terms(a, b, c):
    found = second_order_operator(several, a, b, c)(POINT)
    drift = jnp.zeros(N) if b is None else b * jnp.ones(N)
    expected = reference(several, POINT, (a or 0.0) * jnp.eye(N), drift, c or 0.0)
    close(found, expected)


def test_coefficients_that_depend_on_the_point():
    def diffusion(x):
        return 0.5 * jnp.outer(jnp.sin(x), jnp.sin(x))

    operator = second_order_operator(wide, diffusion, b=lambda x: -x, c=lambda x: x[0])
    points = jnp.stack([POINT, 2 * POINT])
    expected = [reference(wide, p, diffusion(p), -p, p[0]) for p in points]
    close(jax.jit(jax.vmap(operator))(points), jnp.stack(expected))
    found = jax.jit(jax.grad(operator))(POINT)
    close(found, jax.grad(lambda p: reference(wide, p, diffusion(p), -p, p[0]))(POINT))


def wave(t, x, scale):
    return scale * jnp.sin(x[0] - 2 * t) * jnp.exp(x[1] * t) + jnp.prod(x)


def test_wave_operator_of_two_arguments():
    found = second_order_operator(wave, (1.0, -4.0), argnums=(0, 1))(0.3, POINT[:2], 2.0)
    second = jax.jit(jax.hessian(wave, (0, 1)))(0.3, POINT[:2], 2.0)
    close(found, second[0][0] - 4 * jnp.trace(second[1][1]))


@pytest.mark.parametrize("argnums", [(0, 1), (1, 0)])
def test_heat_operator_of_two_arguments(argnums):
    a, b = ((None, -1.0), (1.0, None)) if argnums == (0, 1) else ((-1.0, None), (None, 1.0))
    operator = second_order_operator(wave, a, b, argnums=argnums)
    second = jax.jit(jax.hessian(wave, 1))(0.3, POINT[:2], 2.0)
    expected = jax.grad(wave)(0.3, POINT[:2], 2.0) - jnp.trace(second)
    close(operator(0.3, POINT[:2], 2.0), expected)


TREE = {"p": POINT[:2], "q": (POINT[2:4], POINT[4])}


def of_tree(tree):
    flat = jnp.concatenate([tree["p"], tree["q"][0], tree["q"][1][None]])
    return several(flat)


@pytest.mark.parametrize(
    ("a", "diagonal"),
    [
        ({"p": None, "q": 3.0}, [0, 0, 3, 3, 3]),
        ({"p": 2.0, "q": (jnp.array([1.0, 4.0]), None)}, [2, 2, 1, 4, 0]),
        (jnp.arange(5.0), [0, 1, 2, 3, 4]),
        (np.diag([1.0, 2, 3, 4, 5]), [1, 2, 3, 4, 5]),
        ({"p": np.diag([3.0, 4.0]), "q": None}, [3, 4, 0, 0, 0]),
        ({"p": np.diag([3.0, 4.0]), "q": 1.0}, [3, 4, 1, 1, 1]),
    ],
    ids=["prefix", "mixed", "raveled", "matrix", "leaf matrix", "leaf matrix and number"],
)
def test_trees_of_coefficients(a, diagonal):
    b = {"p": POINT[:2], "q": None}
    found = second_order_operator(of_tree, a, b)(TREE)
    drift = POINT * jnp.array([1.0, 1, 0, 0, 0])
    close(found, reference(several, POINT, jnp.diag(jnp.asarray(diagonal, float)), drift, 0.0))


@pytest.mark.slow
@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("argnums", [(0, 1), (1, 0)])
def test_full_matrix_over_several_arguments(argnums, compress):
    """Its blocks between arguments of different shapes, for a wide and a narrow function."""
    x, y = POINT[:3], jnp.reshape(jnp.cos(jnp.arange(4.0)), (2, 2))
    matrix = np.random.default_rng(3).normal(size=(7, 7))
    chosen = [(x, y)[k] for k in argnums]
    flat, unravel = jax.flatten_util.ravel_pytree(chosen)

    def mixed(x, y):
        narrow = jnp.sum(jnp.sin(x)) * jnp.sum(y**2) + x[0] * y[1, 0]
        return jnp.tanh(narrow), jnp.exp(narrow) * jnp.outer(y[0], x)

    for k in range(2):

        def fun(x, y, k=k):
            return mixed(x, y)[k]

        def of_flat(flat, fun=fun):
            first, second = unravel(flat)
            return fun(first, second) if argnums == (0, 1) else fun(second, first)

        operator = second_order_operator(fun, matrix, argnums=argnums, compress=compress)
        wanted = jnp.einsum("...ij,ij", jax.jit(jax.hessian(of_flat))(flat), matrix)
        close(operator(x, y), wanted)
        if k == 0:
            slope = jax.grad(of_flat)(flat)
            kinetic = local_kinetic_energy(fun, argnums=argnums, weights=matrix, compress=compress)
            close(kinetic(x, y), -0.5 * (wanted + slope @ matrix @ slope))


def test_aux():
    found, aux = second_order_operator(lambda x: (wide(x), x[0]), 1.0, has_aux=True)(POINT)
    close(found, reference(wide, POINT, jnp.eye(N), jnp.zeros(N), 0.0))
    assert aux == POINT[0]


def test_float32_stays():
    found = second_order_operator(lambda x: jnp.sum(x**3), MATRIX, VECTOR, 2.0)(
        POINT.astype(jnp.float32)
    )
    assert found.dtype == jnp.float32


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "a, b and c are all None"),
        ({"a": jnp.ones(3)}, "a has an entry of shape"),
        ({"b": jnp.ones((N, N))}, "b has an entry of shape"),
        ({"a": {"x": 1.0}}, "pytree prefix"),
        ({"c": jnp.ones(3)}, "does not broadcast"),
    ],
)
def test_bad_coefficients(arguments, words):
    with pytest.raises(InvalidArgumentError, match=words):
        second_order_operator(wide, **arguments)(POINT)


@pytest.mark.parametrize("arguments", [{"a": 1j}, {"b": np.ones(N) * 1j}, {"c": 1j}])
def test_complex_coefficients_are_refused(arguments):
    with pytest.raises(InvalidTypeError):
        second_order_operator(wide, **arguments)(POINT)


# Local kinetic energies.


def kinetic_reference(fun, x, a=None):
    a = jnp.eye(N) if a is None else (a + a.T) / 2
    slope = gradient(fun, x)
    square = jnp.einsum("...i,ij,...j", slope, a.astype(slope.dtype), slope)
    return -0.5 * (reference(fun, x, a, jnp.zeros(N), 0.0) + square)


@pytest.mark.parametrize("fun", FUNCTIONS, ids=lambda fun: fun.__name__)
def test_kinetic_energy(fun):
    close(jax.jit(local_kinetic_energy(fun))(POINT), kinetic_reference(fun, POINT))


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("compress", [True, False])
def test_kinetic_energy_with_masses(order, compress):
    kinetic = local_kinetic_energy(narrow, order, weights=MATRIX, compress=compress)
    close(kinetic(POINT), kinetic_reference(narrow, POINT, MATRIX))


def test_kinetic_energy_is_that_of_the_wave_function():
    def psi(x):
        return jnp.exp(complex_valued(x) / 10)

    found = local_kinetic_energy(lambda x: complex_valued(x) / 10)(POINT)
    close(found, -0.5 * reference(psi, POINT, jnp.eye(N), jnp.zeros(N), 0.0) / psi(POINT))


def test_kinetic_energy_with_an_auxiliary_value():
    def with_aux(x):
        return (jnp.sign(x[0]), wide(x)), {"sum": jnp.sum(x)}

    energy, aux = local_kinetic_energy(with_aux, has_aux=True)(POINT)
    close(energy, kinetic_reference(wide, POINT))
    close(aux["sum"], jnp.sum(POINT))
    with pytest.raises(InvalidTypeError, match="must return a pair"):
        local_kinetic_energy(wide, has_aux=True)(POINT)


def test_pairs():
    def slater(x):
        return jnp.linalg.slogdet(jnp.sin(jnp.outer(x[:3], jnp.arange(1.0, 4.0))) + jnp.eye(3))

    def phase_pair(x):
        u = complex_valued(x) / 3
        return jnp.exp(jax.lax.complex(0 * u.imag, u.imag)), u.real

    found = local_kinetic_energy(slater)(POINT)
    close(found, kinetic_reference(lambda x: slater(x)[1], POINT))
    found = local_kinetic_energy(phase_pair)(POINT)
    close(found, kinetic_reference(lambda x: complex_valued(x) / 3, POINT))


def test_kinetic_energy_of_trees_and_batches():
    points = jnp.stack([POINT, POINT + 0.5])
    found = jax.vmap(local_kinetic_energy(wide))(points)
    close(found, jnp.stack([kinetic_reference(wide, p) for p in points]))
    found = local_kinetic_energy(of_tree)(TREE)
    close(found, kinetic_reference(several, POINT))


def test_derivative_of_the_kinetic_energy():
    def log_psi(x, w):
        return jnp.sum(jnp.log(jnp.cosh(w @ x)))

    found = jax.jit(jax.grad(local_kinetic_energy(log_psi), argnums=1))(POINT, NARROW)
    expected = jax.grad(lambda w: kinetic_reference(lambda x: log_psi(x, w), POINT))(NARROW)
    close(found, expected)


@pytest.mark.parametrize(
    "fun",
    [lambda x: {"a": x}, lambda x: (x, x, x), lambda x: (x[0], x)],
    ids=["dict", "3", "shape"],
)
def test_other_results_are_refused(fun):
    with pytest.raises(InvalidArgumentError, match="must return log psi"):
        local_kinetic_energy(fun)(POINT)
