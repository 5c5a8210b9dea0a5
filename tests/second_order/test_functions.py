"""Second derivatives of what users call: activations, linear algebra, special functions, loops."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import hessve, laplacian_ve
from tests.checks import assert_same
from tests.second_order.checks import check_second_order

V = np.array([0.4, 1.3, 0.9])
SIGNED = np.array([-1.7, -0.4, 0.3, 2.1])
RNG = np.random.default_rng(3)
SQUARE = RNG.normal(size=(3, 3))
DEFINITE = SQUARE @ SQUARE.T + 2.0 * np.eye(3)
WEIGHTS = RNG.normal(size=(3, 3))

ACTIVATIONS = (
    *("relu", "relu6", "leaky_relu", "elu", "celu", "selu", "gelu", "glu", "silu", "mish"),
    *("sigmoid", "log_sigmoid", "hard_sigmoid", "hard_silu", "hard_tanh", "soft_sign", "softplus"),
    *("sparse_plus", "sparse_sigmoid", "squareplus", "softmax", "log_softmax", "logsumexp"),
    *("standardize", "identity", "tanh"),
)

special = jax.scipy.special
SPECIAL: dict[str, Callable[[Any], Any]] = {
    "logsumexp with weights": lambda x: special.logsumexp(x, b=x[::-1]),
    "xlogy": lambda x: special.xlogy(x, x[::-1]),
    "xlog1py": lambda x: special.xlog1py(x, x[::-1]),
    "gammaln": special.gammaln,
    "digamma": special.digamma,
    "erf": special.erf,
    "erfc": special.erfc,
    "erfinv": lambda x: special.erfinv(x * 0.5),
    "expit": special.expit,
    "logit": lambda x: special.logit(x * 0.5),
    "log_ndtr": special.log_ndtr,
    "ndtri": lambda x: special.ndtri(x * 0.5),
    "i0": special.i0,
    "i0e": special.i0e,
    "i1e": special.i1e,
    "multigammaln": lambda x: special.multigammaln(x + 3.0, 2),
    "zeta": lambda x: special.zeta(x + 2.0, 1.5),
    "sinc": jnp.sinc,
    "logaddexp": lambda x: jnp.logaddexp(x, x[::-1]),
    "kl_div": lambda x: special.kl_div(x, x[::-1]),
}

linalg = jnp.linalg


def symmetric(a: Any) -> Any:
    return 0.5 * (a + a.T)


MATRICES: dict[str, Callable[[Any], Any]] = {
    "slogdet": lambda a: linalg.slogdet(a)[1],
    "det": linalg.det,
    "inv": linalg.inv,
    "solve": lambda a: linalg.solve(a, a[0] * a[1]),
    "solve with several sides": lambda a: linalg.solve(a, jnp.sin(a)),
    "cholesky": lambda a: linalg.cholesky(symmetric(a)),
    "cholesky solve": lambda a: jax.scipy.linalg.cho_solve(
        (linalg.cholesky(symmetric(a)), True), a[0]
    ),
    "triangular solve": lambda a: jax.scipy.linalg.solve_triangular(a, jnp.sin(a[0]), lower=True),
    "eigh": lambda a: linalg.eigh(symmetric(a))[0],
    "norm": linalg.norm,
    "nuclear norm": lambda a: linalg.norm(a, "nuc"),
    "pinv": linalg.pinv,
    "singular values": lambda a: linalg.svd(a, compute_uv=False),
    "qr": lambda a: jnp.abs(linalg.qr(a)[1]),
    "matrix_power": lambda a: linalg.matrix_power(a, 3),
    "lstsq": lambda a: linalg.lstsq(a, jnp.ones(3))[0],
    "multi_dot": lambda a: linalg.multi_dot([a, a.T, a]),
    "slater determinants": lambda a: jnp.log(
        jnp.abs(jnp.sum(linalg.det(jnp.stack([jnp.sin(a), a @ a]))))
    ),
}


def newton(x: Any) -> Any:
    """A root by a while loop."""
    return lax.while_loop(
        lambda s: jnp.sum(s[1] ** 2) > 1e-3, lambda s: (s[0] * 0.5, s[1] * 0.3), (x, x)
    )[0]


def table(x: Any) -> Any:
    """A gather at positions that depend on the data."""
    return (x**2)[jnp.argsort(x)[:2]] * x[0]


CONTROL: dict[str, Callable[[Any], Any]] = {
    "scan": lambda x: lax.scan(lambda c, a: (jnp.sin(c * a), c * c), x[0], x),
    "scan with a matrix": lambda x: lax.scan(
        lambda c, w: (jnp.tanh(w @ c), c.sum()), x, jnp.asarray(WEIGHTS)[None] * jnp.ones((2, 1, 1))
    )[0],
    "while": newton,
    "while, nonlinear": lambda x: lax.while_loop(
        lambda s: jnp.sum(s) < 4.0, lambda s: s * 1.5 + 0.1 * s**2, x
    ),
    "fori": lambda x: lax.fori_loop(0, 3, lambda i, s: jnp.sin(s) * x, x),
    "fori with a traced length": lambda x: lax.fori_loop(
        0, jnp.where(x[0] > 0, 3, 1), lambda i, s: jnp.sin(s) * 1.1, x
    ),
    "cond": lambda x: lax.cond(x[0] > 0, lambda y: y**3, jnp.cos, x) * x,
    "switch": lambda x: lax.switch(
        jnp.floor(x[1]).astype(int), [jnp.sin, lambda y: y[::-1] * y, jnp.exp], x
    ),
    "map": lambda x: lax.map(lambda r: r**3 * x.sum(), x),
    "associative_scan": lambda x: lax.associative_scan(jnp.multiply, x**2),
    "nested scan": lambda x: lax.scan(
        lambda c, a: (lax.fori_loop(0, 2, lambda i, s: jnp.sin(s) * a, c), None), x[0], x
    )[0],
    "loop in a layer": lambda x: jnp.sum(
        jax.vmap(lambda a: lax.fori_loop(0, 2, lambda i, s: jnp.tanh(s) * a, a))(x) ** 2
    ),
}

INDEXING: dict[str, Callable[[Any], Any]] = {
    "gather by data": table,
    "gather at a traced index": lambda x: x[jnp.floor(x[1]).astype(int)] ** 3 * x,
    "scatter at a traced index": lambda x: (
        jnp.zeros(3).at[jnp.floor(x[1]).astype(int)].add(x[0] ** 2) * x
    ),
    "scatter set": lambda x: (x**2).at[jnp.floor(x[1]).astype(int)].set(x[0] * x[2]) * x,
    "scatter mul": lambda x: (
        (x**2).at[np.array([0, 2])].multiply(jnp.sin(x[:2]), unique_indices=True)
    ),
    "scatter max": lambda x: (x**2).at[np.array([0, 2])].max(jnp.sin(x[:2])) * x,
    "dynamic_slice": lambda x: lax.dynamic_slice(x**2, (jnp.floor(x[1]).astype(int),), (2,)),
    "dynamic_update_slice": lambda x: (
        lax.dynamic_update_slice(x**2, x[:1] * x[1:2], (jnp.floor(x[1]).astype(int),)) * x
    ),
    "sort": lambda x: jnp.sort(x**2) * x,
    "sort of pairs": lambda x: lax.sort((x**2, x[::-1] * x), num_keys=1),
    "top_k": lambda x: lax.top_k(x**2, 2)[0] ** 2,
    "median": lambda x: jnp.median(x**2) * x,
    "quantile": lambda x: jnp.quantile(x**2, 0.3),
    "cumsum": lambda x: jnp.cumsum(x**2) * x,
    "cumprod": lambda x: jnp.cumprod(x) * x,
    "cummax": lambda x: lax.cummax(x**2) * x,
    "cumlogsumexp": lambda x: lax.cumlogsumexp(x * x),
    "max pooling": lambda x: lax.reduce_window(x**2, -jnp.inf, lax.max, (2,), (1,), "VALID") ** 2,
    "average pooling": lambda x: lax.reduce_window(x**2, 0.0, lax.add, (2,), (1,), "SAME") ** 2,
    "convolution of itself": lambda x: jnp.convolve(x, jnp.sin(x)),
    "segment_sum": lambda x: jax.ops.segment_sum(x**2, np.array([0, 1, 0]), 2) ** 2,
    "segment_max": lambda x: jax.ops.segment_max(x**2, np.array([0, 1, 0]), 2) ** 2,
    "interp": lambda x: jnp.interp(x, x + 0.1, x**2),
    "polyval": lambda x: jnp.polyval(x, x[1]),
    "roll": lambda x: jnp.roll(x, 1) * x**2,
    "fft": lambda x: jnp.abs(jnp.fft.fft(x)) ** 2,
    "phase of fft": lambda x: jnp.angle(jnp.fft.rfft(x)[1]),
    "fft convolution": lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * jnp.fft.rfft(jnp.sin(x)), 3),
}

COMPLEX: dict[str, Callable[[Any], Any]] = {
    "phase": lambda x: jnp.exp(1j * (x**2)),
    "log amplitude": lambda x: jnp.log(jnp.sum(jnp.exp(1j * x) * x[::-1])),
    "plane waves": lambda x: jnp.log(linalg.det(jnp.exp(1j * jnp.outer(x, jnp.arange(3.0))))),
    "abs": lambda x: jnp.abs(x + 1j * x[::-1] ** 2),
    "conjugate product": lambda x: jnp.conj(jnp.exp(1j * x)) * jnp.sin(x + 1j * x[::-1]),
    "real part": lambda x: jnp.real(jnp.log(x + 1j * x**2)),
    "sqrt": lambda x: jnp.sqrt(x + 1j * x[::-1]),
    "matrix product": lambda x: (
        ((jnp.asarray(WEIGHTS) + 1j * jnp.asarray(WEIGHTS.T)) @ jnp.exp(1j * x)) ** 2
    ),
}


def cases() -> dict[str, tuple[Callable[[Any], Any], np.ndarray]]:
    """All functions with their points."""
    found = {f"jax.nn.{n}": (getattr(jax.nn, n), SIGNED) for n in ACTIVATIONS}
    found |= {f"special: {n}": (f, V) for n, f in SPECIAL.items()}
    found |= {f"linalg: {n}": (f, DEFINITE) for n, f in MATRICES.items()}
    found |= {f"control: {n}": (f, V) for n, f in CONTROL.items()}
    return found | {f"indexing: {n}": (f, V) for n, f in INDEXING.items()}


CASES = cases()
QUICK = {
    *("jax.nn.elu", "jax.nn.selu", "jax.nn.gelu", "jax.nn.squareplus", "jax.nn.log_softmax"),
    *("special: xlogy", "special: logsumexp with weights", "special: log_ndtr"),
    *("linalg: solve", "linalg: eigh", "linalg: slogdet", "linalg: pinv"),
    *("control: scan", "control: cond", "control: while, nonlinear", "control: fori"),
    *("indexing: gather by data", "indexing: scatter mul", "indexing: fft"),
    *("indexing: sort", "indexing: max pooling", "indexing: cumprod", "indexing: quantile"),
}


def parameters() -> list[Any]:
    """One parameter per function; most belong to the long suite."""
    return [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.conformance]) for n in CASES]


@pytest.mark.parametrize("name", parameters())
@pytest.mark.usefixtures("standard_promotion")
def test_function(name: str) -> None:
    fun, x = CASES[name]
    check_second_order(
        lambda x: jax.tree.map(lambda y: y * 1.0, fun(x)),
        x,
        orders=("forward", "reverse"),
        tolerance=1e-8,
        context=name,
    )


@pytest.mark.parametrize("name", COMPLEX)
@pytest.mark.usefixtures("standard_promotion")
def test_complex_values_of_real_arguments(name: str) -> None:
    """Real and imaginary parts are differentiated like two real functions."""
    fun = COMPLEX[name]

    @jax.jit
    def every_way(x: jax.Array) -> tuple[Any, ...]:
        parts = [lambda x: jnp.real(fun(x)), lambda x: jnp.imag(fun(x))]
        expected = [jax.hessian(part)(x) for part in parts]
        orders = ("forward", "reverse")
        return expected, hessve(fun)(x), [laplacian_ve(fun, order=o)(x) for o in orders]

    (real, imaginary), hessian, laplacians = every_way(jnp.asarray(V))
    np.testing.assert_allclose(hessian, real + 1j * imaginary, atol=1e-9)
    for laplacian in laplacians:
        trace = np.trace(np.asarray(real + 1j * imaginary), axis1=-2, axis2=-1)
        np.testing.assert_allclose(laplacian, trace, atol=1e-9)


REAL_IN_BETWEEN: dict[str, Callable[[Any], Any]] = {
    "a real part made complex again": lambda x: jnp.real((x + 1j * x[::-1]) ** 2) + 0j,
    "its exponential": lambda x: jnp.exp(1j * jnp.real((x + 1j * x[::-1]) ** 2)),
    "its square": lambda x: (jnp.real((x + 1j * x[::-1]) * x) + 0j) ** 2,
    "of two complex factors": lambda x: jnp.real((x + 2j * x[::-1]) * (1 - 0.5j * x)) * (2 + 1j),
}


@pytest.mark.parametrize("name", REAL_IN_BETWEEN)
def test_complex_results_through_a_real_part(name: str) -> None:
    """What is before the real part acts on arguments and on conjugated ones; both were mixed up."""
    fun, x = REAL_IN_BETWEEN[name], np.array([0.3, -0.4])

    @jax.jit
    def all_of_them(x: Any) -> Any:
        expected = jax.jit(jax.jacfwd(jax.jacfwd(fun)))(x)
        sparse = hessve(fun, sparse_representation=True)(x).todense()
        trace = jnp.trace(expected, axis1=-2, axis2=-1)
        return expected, hessve(fun)(x), sparse, trace, laplacian_ve(fun)(x)

    with jax.numpy_dtype_promotion("standard"):
        expected, found, sparse, trace, laplacian = all_of_them(x)
    assert_same(found, expected)
    assert_same(sparse, expected)
    assert_same(laplacian, trace)


def helix(x: Any) -> Any:
    """Complex numbers on all sides of zero, one of them real and negative."""
    return jnp.exp((0.3 + 2j) * x) + x[::-1] - 1.5 * (x == x[0])


MAGNITUDES: dict[str, Callable[[Any], Any]] = {
    "each": lambda x: jnp.abs(helix(x)),
    "on the axes": lambda x: jnp.abs(lax.complex(x - 0.4, x - x[0])) * x,
    "of a number": lambda x: jnp.log(jnp.abs(jnp.sum(helix(x)))),
    "of products": lambda x: jnp.abs(jnp.outer(helix(x), helix(2 * x)) @ helix(x)) ** 1.5,
    "one for several": lambda x: jnp.abs(helix(x)[:1]) * jnp.sin(x),
    "of a magnitude": lambda x: jnp.abs(jnp.abs(helix(x)) + 1j * x**2),
    "of one that is conjugated": lambda x: jnp.abs(jnp.conj(helix(x)) * x + helix(x)),
    "mapped": lambda x: jax.vmap(lambda z: jnp.abs(z * z[0]), 1)(jnp.outer(helix(x), x)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MAGNITUDES)
@pytest.mark.usefixtures("standard_promotion")
def test_magnitudes_of_complex_numbers(name: str) -> None:
    """They have a closed second derivative, which can be differentiated once more."""
    fun, x = MAGNITUDES[name], jnp.asarray(V)
    check_second_order(fun, V, orders=("forward", "reverse"))
    hessve(fun, strict=True)(x)
    trace = lambda x: jnp.sum(jnp.trace(jax.jit(jax.hessian(fun))(x), axis1=-2, axis2=-1))  # noqa: E731
    laplacian = lambda x: jnp.sum(laplacian_ve(fun)(x))  # noqa: E731
    found, expected = jax.jit(lambda x: (jax.grad(laplacian)(x), jax.grad(trace)(x)))(x)
    assert_same(found, expected)
