"""The operators under JAX's transformations, in every precision, and by themselves again."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import divergence_ve, forward_laplacian, hessve, laplacian_ve
from tests.checks import assert_same
from tests.second_order.checks import check_second_order

X = np.array([0.4, -0.3, 0.9])
W = np.array([[0.5, -0.2], [0.3, 0.8], [-0.6, 0.1]])
BATCH = np.linspace(-1.0, 1.0, 12).reshape(4, 3)


def network(x: Any, w: Any = W) -> Any:
    """A layer, a norm and an envelope; (3,), (3, 2) -> ()."""
    w = jnp.asarray(w, x.dtype)
    return jnp.sum(jnp.tanh(x @ w) ** 2) * jnp.exp(-jnp.linalg.norm(x)) + jax.nn.silu(x[0]) * x[1]


def reference_laplacian(fun: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: jnp.trace(jax.jit(jax.hessian(fun))(*args), axis1=-2, axis2=-1)


PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "forward": (lambda f: laplacian_ve(f, order="forward"), reference_laplacian),
    "reverse": (lambda f: laplacian_ve(f, order="reverse"), reference_laplacian),
    "hessian": (hessve, jax.hessian),
    "result": (lambda f: lambda *a: forward_laplacian(f)(*a).laplacian, reference_laplacian),
    "divergence of the gradient": (lambda f: divergence_ve(jax.grad(f)), reference_laplacian),
}
at_every_operator = pytest.mark.parametrize("name", PAIRS)


@at_every_operator
@pytest.mark.parametrize(("in_axis", "out_axis"), [(0, 0), (1, 0), (-1, -1)])
def test_vmap(name: str, in_axis: int, out_axis: int) -> None:
    ours, theirs = PAIRS[name]
    batch = np.moveaxis(BATCH, 0, in_axis)

    @jax.jit
    def both(batch: Any) -> Any:
        return [jax.vmap(f(network), in_axis, out_axis)(batch) for f in (ours, theirs)]

    assert_same(*both(batch))


@at_every_operator
def test_batch_that_a_compiled_function_closes_over(name: str) -> None:
    """There `jax.vmap` hands on arrays of numpy, which JAX's rules for derivatives refuse."""
    ours, theirs = PAIRS[name]

    @jax.jit
    def both(w: Any) -> Any:
        found = []
        for f in (ours, theirs):
            batched = lambda w, f=f: jax.vmap(f(network), (0, None))(BATCH, w)  # noqa: E731
            found.append((batched(w), jax.grad(lambda w, b=batched: jnp.sum(jnp.sin(b(w))))(w)))
        return found

    assert_same(*both(W), tolerance=1e-9)


@at_every_operator
def test_vmap_over_parameters_and_nested(name: str) -> None:
    ours, theirs = PAIRS[name]
    stack = np.stack([W, 2.0 * W])

    @jax.jit
    def both(batch: Any, stack: Any) -> Any:
        found = []
        for f in (ours, theirs):
            inner = jax.vmap(f(network), (None, 0))
            found.append((inner(batch[0], stack), jax.vmap(inner, (0, None))(batch, stack)))
        return found

    assert_same(*both(BATCH, stack))


@pytest.mark.slow
@at_every_operator
def test_derivatives_of_the_operator(name: str) -> None:
    """Gradients with respect to parameters, and third derivatives, both modes."""
    ours, theirs = PAIRS[name]

    @jax.jit
    def both(x: Any, w: Any) -> Any:
        found = []
        for f in (ours, theirs):
            loss = lambda x, w, f=f: jnp.sum(jnp.sin(f(network)(x, w)))  # noqa: E731
            found.append(
                (
                    jax.grad(loss, 1)(x, w),
                    jax.jacfwd(f(network))(x, w),
                    jax.jit(jax.jacrev(loss))(x, w),
                )
            )
        return found

    assert_same(*both(X, W), tolerance=1e-9)


def test_training_step_over_a_batch() -> None:
    def loss(operator: Callable[..., Any]) -> Callable[[Any], Any]:
        return lambda w: jnp.mean(jax.vmap(operator(network), (0, None))(BATCH, w) ** 2)

    @jax.jit
    def both(w: Any) -> Any:
        return [jax.value_and_grad(loss(f))(w) for f in (laplacian_ve, reference_laplacian)]

    assert_same(*both(W))


@pytest.mark.slow
def test_biharmonic() -> None:
    """The Laplacian of the Laplacian."""

    def fun(x: Any) -> Any:
        return jnp.sin(x[0] * x[1]) * jnp.exp(x[2]) + x[0] ** 4

    twice = laplacian_ve(laplacian_ve(fun))
    assert_same(jax.jit(twice)(X), reference_laplacian(reference_laplacian(fun))(X))
    assert_same(laplacian_ve(divergence_ve(jax.grad(fun)))(X), twice(X))


@pytest.mark.slow
def test_hessian_of_a_laplacian() -> None:
    def fun(x: Any) -> Any:
        return jnp.sin(x[0] * x[1]) * x[2] ** 3

    assert_same(hessve(laplacian_ve(fun))(X), jax.hessian(reference_laplacian(fun))(X))
    assert_same(laplacian_ve(hessve(fun))(X), reference_laplacian(jax.hessian(fun))(X))


@pytest.mark.slow
@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_results_are_pytrees(order: str) -> None:
    def fun(x: Any) -> Any:
        return {"a": jnp.sin(x) * x[::-1], "b": network(x)}

    operator = forward_laplacian(fun, order=order)
    single, batched = jax.jit(operator)(X), jax.vmap(jax.jit(operator))(BATCH)
    assert_same(single["a"].x, np.sin(X) * X[::-1])
    assert_same(single["a"].jacobian.dense_array, jax.jit(jax.jacfwd(fun))(X)["a"])
    assert_same(single["b"].jacobian.dense_array, jax.grad(network)(X))
    expected = jax.vmap(jax.jit(reference_laplacian(lambda x: fun(x)["a"])))(BATCH)
    assert_same(batched["a"].laplacian, expected)
    assert_same(batched["b"].x, jax.vmap(network)(BATCH))
    doubled = jax.tree.map(lambda leaf: 2.0 * leaf, single)
    assert_same(doubled["a"].jacobian.sparse.todense(), 2.0 * jax.jit(jax.jacfwd(fun))(X)["a"])


@pytest.mark.usefixtures("float32")
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-5), ("float16", 2e-2), ("bfloat16", 1e-1)]
)
def test_precisions(dtype: str, tolerance: float) -> None:
    def fun(x: Any) -> Any:
        return jnp.sum(jnp.sin(x) * x[::-1]) * x + jnp.exp(x) ** 2

    x = jnp.asarray(X, dtype)
    hessian = jax.jit(jax.hessian(fun))(x)
    expected = jax.jit(jax.hessian(fun))(jnp.asarray(X, "float32"))
    trace = jnp.trace(expected, axis1=-2, axis2=-1)
    for result, wanted in [
        (hessve(fun)(x), expected),
        (laplacian_ve(fun, order="forward")(x), trace),
        (laplacian_ve(fun, order="reverse")(x), trace),
        (forward_laplacian(fun)(x).laplacian, trace),
        (laplacian_ve(fun, weights=np.ones(3, "float32"))(x), trace),
        (laplacian_ve(fun, seeds=np.eye(3, dtype="float32"))(x), trace),
    ]:
        assert result.dtype == hessian.dtype == jnp.dtype(dtype)
        assert_same(np.asarray(result, np.float32), np.asarray(wanted), tolerance=tolerance)


@pytest.mark.usefixtures("standard_promotion")
def test_arguments_of_different_precision() -> None:
    """`jax.hessian` itself needs promotion for this."""

    def fun(x: Any, y: Any) -> Any:
        return jnp.sum(x**2) * y.astype(x.dtype) ** 3

    x, y = X, X.astype(np.float32)
    for order in ("forward", "reverse"):
        result = laplacian_ve(fun, argnums=(0, 1), order=order)(x, y)
        parts = [reference_laplacian(lambda x: fun(x, y))(x)]
        parts.append(reference_laplacian(lambda y: fun(x, y))(y))
        assert_same(result, parts[0] + parts[1].astype(np.float64), tolerance=1e-6)
    ours, theirs = hessve(fun, argnums=(0, 1))(x, y), jax.jit(jax.hessian(fun, (0, 1)))(x, y)
    assert_same(ours, theirs, tolerance=1e-6)


@at_every_operator
@pytest.mark.leaks
def test_no_tracer_leaks(name: str) -> None:
    ours = PAIRS[name][0]
    assert np.isfinite(jax.jit(ours(network))(X)).all()
    assert np.isfinite(jax.jit(jax.grad(lambda x: jnp.sum(ours(network)(x))))(X)).all()


@at_every_operator
def test_export(name: str) -> None:
    """Lowered for every platform, without callbacks; the CPU's artifact gives the numbers."""
    fun = jax.jit(PAIRS[name][0](lambda x: network(x) * jnp.max(x)))
    exported = jax.export.export(fun, platforms=("cpu", "cuda", "tpu"))(
        jax.ShapeDtypeStruct((3,), np.float64)
    )
    assert "callback" not in exported.mlir_module()
    assert_same(exported.call(X), fun(X))


@at_every_operator
def test_inside_loops_and_checkpoint(name: str) -> None:
    ours, theirs = PAIRS[name]

    @jax.jit
    def both(batch: Any) -> Any:
        found = []
        for f in (ours, theirs):
            rows = lax.map(f(network), batch)
            operator = f(network)

            def step(carry: Any, x: Any, operator: Any = operator) -> tuple[Any, None]:
                return carry + jnp.sum(operator(x)), None

            inside = lax.scan(step, 0.0, batch)[0]
            found.append((rows, inside, jax.checkpoint(operator)(batch[0])))
        return found

    assert_same(*both(BATCH))


@pytest.mark.slow
def test_without_jit() -> None:
    with jax.disable_jit():
        hessian = hessve(network)(X)
        laplacian = laplacian_ve(network)(X)
    assert_same(hessian, jax.jit(jax.hessian(network))(X))
    assert_same(laplacian, reference_laplacian(network)(X))


def solution(x: Any) -> Any:
    return jnp.sum(jnp.linalg.solve(jnp.tanh(jnp.outer(x, x + 1)) + 2 * jnp.eye(len(x)), x))


@pytest.mark.parametrize("fun", [network, solution])
def test_inside_shard_map(fun: Callable[..., Any]) -> None:
    """Constants of the function vary over devices there, which nothing outside can evaluate."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("devices",))
    along = jax.sharding.PartitionSpec("devices")

    def sharded(fun: Callable[..., Any]) -> Callable[..., Any]:
        return jax.jit(jax.shard_map(jax.vmap(fun), mesh=mesh, in_specs=along, out_specs=along))

    expected = sharded(reference_laplacian(fun))(BATCH)
    assert_same(sharded(laplacian_ve(fun))(BATCH), expected)


def test_abstract_evaluation() -> None:
    shape = jax.ShapeDtypeStruct((3,), np.float64)
    assert jax.eval_shape(hessve(network), shape).shape == (3, 3)
    assert jax.eval_shape(laplacian_ve(network), shape).shape == ()


def test_batched_inside() -> None:
    """A batch among the differentiated numbers."""
    check_second_order(lambda b: jax.vmap(network)(b), BATCH[:2], orders=("forward", "reverse"))


@pytest.mark.smoke
def test_tangent_times_envelope() -> None:
    """Products constant along a summed axis, which XLA's own settings on CPUs have got wrong."""
    r, a = np.linspace(0.2, 1.0, 4), np.linspace(-1.0, 1.0, 24).reshape(4, 2, 3)

    def fun(r: Any) -> Any:
        envelope = jnp.exp(-jnp.asarray(a) * r[:, None, None])
        return jnp.sum(jnp.tanh(jnp.sum(envelope[..., None] * r[:, None, None, None], axis=2)))

    check_second_order(fun, r, orders=("forward", "reverse"))


def test_jacobian_of_a_batch_of_forward_laplacians() -> None:
    """A batch, in which one block moves with the samples and one is the same for all."""
    x = jnp.asarray(np.random.default_rng(3).standard_normal((4, 2, 3)))

    def fun(x: Any, y: Any) -> Any:
        return jnp.sum(jnp.sin(x) ** 2) + 2.0 * y

    def dense(x: Any) -> Any:
        return forward_laplacian(fun, argnums=(0, 1))(x[0], x[1]).jacobian

    found = jax.jit(jax.vmap(dense))(x).dense_array
    rows = jax.jit(jax.vmap(jax.jacrev(fun, (0, 1))))(x[:, 0], x[:, 1])
    assert_same(found, jnp.concatenate(rows, axis=-1))
    found = jax.vmap(jax.vmap(dense))(x[None]).dense_array
    assert found.shape == (1, 4, 3, 6)
