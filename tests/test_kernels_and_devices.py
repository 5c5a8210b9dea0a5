"""Functions that JAX hands on to something else: kernels, devices, the host, solvers."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import Mesh, PartitionSpec

from graphax_lapl import (
    CollectiveError,
    FallbackError,
    NotDifferentiableError,
    hessve,
    jacve,
    laplacian_ve,
)
from tests.checks import assert_same, check_orders
from tests.second_order.checks import check_second_order

V = np.linspace(0.2, 1.4, 4)
M = np.linspace(-1.0, 1.0, 12).reshape(4, 3)


# -- pallas_call, interpreted ---------------------------------------------------------------------


def kernel(x: Any, out: Any) -> None:
    out[...] = jnp.sin(x[...]) * x[...]


def called(x: Any, blocks: int = 1) -> Any:
    """The kernel on all of x, or block by block."""
    block = pl.BlockSpec((x.shape[0] // blocks, *x.shape[1:]), lambda i: (i, *[0] * (x.ndim - 1)))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(
        kernel, shape, grid=(blocks,), in_specs=[block], out_specs=block, interpret=True
    )(x)


def plain(x: Any) -> Any:
    """What the kernel computes."""
    return jnp.sin(x) * x


def slope(x: Any) -> Any:
    return jnp.cos(x) * x + jnp.sin(x)


def with_jvp(fun: Callable[..., Any]) -> Callable[..., Any]:
    ruled = jax.custom_jvp(fun)
    ruled.defjvp(lambda at, moved: (ruled(*at), slope(*at) * moved[0]))
    return ruled


def check_ruled(fun: Callable[..., Any], same: Callable[..., Any], at: np.ndarray) -> None:
    """First and second derivatives are those of a plain function; JAX has not all modes here."""
    check_orders(fun, at, reference=lambda _, argnums: jax.jacfwd(same, argnums))
    check_second_order(
        fun,
        at,
        orders=("auto",),
        reference=lambda _, *args, argnums: jax.hessian(same, argnums)(*args),
    )


def with_vjp(fun: Callable[..., Any]) -> Callable[..., Any]:
    ruled = jax.custom_vjp(fun)
    ruled.defvjp(lambda x: (ruled(x), x), lambda x, pulled: (slope(x) * pulled,))
    return ruled


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("order", ["auto", "forward", "reverse"])
def test_kernel_by_its_own_tangent(order: str, blocks: int) -> None:
    """JAX's derivative of a kernel is one kernel for value and tangent, without a transpose."""

    def around(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: (jnp.sum(call(x * x) * x), jnp.exp(call(x)))

    ours = jax.jit(jacve(around(lambda x: called(x, blocks)), order))(V)
    assert_same(ours, jax.jacrev(around(plain))(V))


def test_second_derivative_of_a_kernel_is_refused() -> None:
    """JAX's own rule for kernels ends at the first order, and the error says where."""
    with pytest.raises(NotDifferentiableError, match=r"pallas_call.*test_kernels_and_devices.py"):
        laplacian_ve(called)(V)
    with pytest.raises(NotDifferentiableError, match=r"differentiated once more.*custom_jvp"):
        hessve(called)(V)
    with pytest.raises(FallbackError, match="pallas_call"):
        jacve(called, strict=True)(V)


@pytest.mark.parametrize("rule", [with_jvp, with_vjp], ids=["custom_jvp", "custom_vjp"])
def test_kernel_with_a_rule(rule: Callable[..., Any]) -> None:
    def around(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: jnp.sin(call(x * x) * x)

    check_ruled(around(rule(lambda x: called(x))), around(plain), V)


def test_kernel_with_a_rule_under_vmap() -> None:
    fun = jax.vmap(with_jvp(lambda x: called(x)))
    check_orders(fun, M, orders=("auto", "reverse"), reference=lambda *_: jax.jacfwd(plain))


# -- shard_map ------------------------------------------------------------------------------------

ROWS, WHOLE = PartitionSpec("i"), PartitionSpec()


def sharded(fun: Callable[..., Any], into: Any, out: Any) -> Callable[..., Any]:
    mesh = Mesh(np.array(jax.devices()[:2]), ("i",))
    return jax.shard_map(fun, mesh=mesh, in_specs=into, out_specs=out)


SHARDED: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "rows": (lambda x: sharded(plain, ROWS, ROWS)(x * x), (V,)),
    "sum over devices": (sharded(lambda x: lax.psum(jnp.sum(x**3), "i"), ROWS, WHOLE), (V,)),
    "shared weights": (
        sharded(lambda x, w: jnp.tanh(x @ w), (ROWS, WHOLE), ROWS),
        (M, 0.3 * M.T),
    ),
    "exchange": (
        sharded(lambda x: x * lax.ppermute(x, "i", [(0, 1), (1, 0)]), ROWS, ROWS),
        (V,),
    ),
}


@pytest.mark.parametrize("name", SHARDED)
def test_shard_map(name: str) -> None:
    fun, args = SHARDED[name]
    argnums = tuple(range(len(args))) if len(args) > 1 else 0
    check_orders(fun, *args, argnums=argnums, orders=("auto", "forward", "reverse"))
    check_second_order(fun, *args, argnums=argnums, orders=("auto",))


def test_shard_map_without_jit() -> None:
    fun = SHARDED["rows"][0]
    assert_same(jacve(fun)(V), jax.jit(jax.jacfwd(lambda x: plain(x * x)))(V))


# -- collectives over a mapped axis ---------------------------------------------------------------


def repeated(x: Any) -> Any:
    """The collective is in the body of a loop."""
    return lax.scan(lambda c, _: (c * lax.psum(c, "i"), None), x, length=20)[0]


@pytest.mark.parametrize("derivative", [jacve, hessve, laplacian_ve])
@pytest.mark.parametrize("fun", [lambda x: jnp.sin(x) * lax.pmean(x, "i"), repeated])
def test_collective_seen_from_one_sample_is_refused(derivative: Any, fun: Any) -> None:
    """`jax.jacfwd` and `jax.jacrev` give different numbers; ours would be a third."""
    with pytest.raises(CollectiveError, match=r"psum.*'i'.*test_kernels_and_devices.py"):
        jax.vmap(derivative(lambda x: jnp.sum(fun(x))), axis_name="i")(M)


def test_collectives_that_carry_no_derivative() -> None:
    """What comes from other samples is constant, or no output of interest depends on it."""

    def fun(x: Any) -> Any:
        held = lax.stop_gradient(lax.pmean(x, "i"))
        return jnp.tanh(x * held), (lax.axis_index("i"), lax.psum(x, "i"))

    found = jax.vmap(jacve(fun, has_aux=True), axis_name="i")(M)
    assert_same(found, jax.jit(jax.vmap(jax.jacrev(fun, has_aux=True), axis_name="i"))(M))


def test_collectives_inside_of_the_map() -> None:
    fun = jax.vmap(lambda x: jnp.sin(x) * lax.pmean(x**2, "i"), axis_name="i")
    check_orders(fun, M)


# -- pure_callback --------------------------------------------------------------------------------


def on_the_host(x: Any) -> Any:
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(
        lambda x: np.sin(np.asarray(x)) * np.asarray(x), shape, x, vmap_method="expand_dims"
    )


@pytest.mark.parametrize("rule", [with_jvp, with_vjp], ids=["custom_jvp", "custom_vjp"])
def test_callback_with_a_rule(rule: Callable[..., Any]) -> None:
    def around(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: jnp.exp(jax.vmap(call)(x * x) * x)

    check_ruled(around(rule(on_the_host)), around(plain), M[:2])


def test_callback_without_a_rule_is_named() -> None:
    with pytest.raises(NotDifferentiableError, match=r"pure_callback.*test_kernels_and_devices.py"):
        jacve(on_the_host)(V)


# -- solvers and loops with rules of their own ----------------------------------------------------


def system(x: Any) -> Any:
    """The root of a coupled system, by Newton's method."""

    def newton(residual: Any, y: Any) -> Any:
        step = lambda _, y: y - jnp.linalg.solve(jax.jacfwd(residual)(y), residual(y))  # noqa: E731
        return lax.fori_loop(0, 12, step, y)

    return lax.custom_root(
        lambda y: y + 0.1 * jnp.sin(jnp.cumsum(y)) * x - x**2,
        x,
        newton,
        lambda linear, b: jnp.linalg.solve(jax.jacfwd(linear)(b), b),
    )


def diagonal_solve(x: Any) -> Any:
    """A symmetric solve whose operator is a function."""
    shift = x + 2.0
    return lax.custom_linear_solve(
        lambda v: shift * v, jnp.sin(x), lambda _, b: b / shift, symmetric=True
    )


def nested(x: Any) -> Any:
    """Under vmap: a scan of a while loop of a branch."""

    def one(a: Any) -> Any:
        def turn(state: Any) -> Any:
            count, v = state
            return count + 1, lax.cond(v > 0.3, jnp.sin, lambda v: v * v + a, v)

        def step(carry: Any, _: Any) -> Any:
            carry = lax.while_loop(lambda state: state[0] < 3, turn, (0, carry))[1]
            return carry, carry * a

        return lax.scan(step, a, length=10)[1]

    return jax.vmap(one)(x)


SOLVERS: dict[str, tuple[Callable[..., Any], np.ndarray]] = {
    "custom_root": (system, V[:3]),
    "custom_root under vmap": (jax.vmap(system), np.stack([V[:2], V[2:]])),
    "custom_linear_solve": (diagonal_solve, V),
    "map in batches": (lambda x: lax.map(lambda r: jnp.sin(r) * r.sum(), x, batch_size=3), M),
    "nested loops under vmap": (nested, V[:2]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOLVERS)
def test_solvers_and_loops(name: str) -> None:
    fun, at = SOLVERS[name]
    check_orders(fun, at)
    check_second_order(fun, at, orders=("auto",))


@pytest.mark.smoke
def test_root_of_an_elementwise_function_is_diagonal() -> None:
    """The rule of `custom_root` is seen through at both orders: no entry beside the diagonal."""

    def root(a: Any) -> Any:
        def newton(residual: Any, y: Any) -> Any:
            slope = lambda y: jax.jvp(residual, (y,), (jnp.ones_like(y),))[1]  # noqa: E731
            return lax.fori_loop(0, 30, lambda _, y: y - residual(y) / slope(y), y)

        residual = lambda y: y**3 + y - a  # noqa: E731
        return lax.custom_root(
            residual, jnp.zeros_like(a), newton, lambda linear, b: b / linear(jnp.ones_like(b))
        )

    def total(a: Any) -> Any:
        return jnp.sum(root(a))

    first = jacve(root, sparse_representation=True, strict=True)(V)
    second = hessve(total, sparse_representation=True, strict=True)(V)
    assert first.nse == second.nse == V.size
    assert_same(first.todense(), jax.jacrev(root)(V))
    assert_same(second.todense(), jax.jit(jax.hessian(total))(V))
