"""A random program's derivatives against JAX's, in one of the forms that a user may ask for.

To compile all orders and forms of every program would take most of the time, so each program goes
through a few of them, which its seed names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from graphax_lapl import jacve, value_and_jacve
from tests.checks import assert_same, dense, shuffled_vertices
from tests.random_programs import RandomProgram

ORDERS = ("forward", "reverse", "markowitz", "auto", "explicit")
"""Orders of a Jacobian; "explicit" is a random permutation of the vertices' ids."""

FORMS = ("dense", "sparse", "value", "eager", "vmap", "jvp", "grad", "batch")
"""How a Jacobian is asked for; the last four are transformations of it."""


def chosen_orders(seed: int, count: int = 2) -> tuple[str, ...]:
    """Some of `ORDERS`; five consecutive seeds take every pair of neighbours."""
    return tuple(ORDERS[(seed + k * (1 + seed // 5 % 2)) % len(ORDERS)] for k in range(count))


def check_jacobian(
    program: RandomProgram, seed: int, form: str, orders: Sequence[str], tolerance: float = 0.0
) -> None:
    """Compare a program's Jacobian in one form, by some orders, with JAX's.

    Args:
        program: the program.
        seed: of the explicit order.
        form: of `FORMS`.
        orders: of `ORDERS`.
        tolerance: relative to the largest entry of a block; the program's own by default.
    """
    fun, argnums = program.fun, program.argnums
    explicit = (
        shuffled_vertices(seed, fun, *program.args, argnums=argnums) if "explicit" in orders else ()
    )
    found: list[Any] = [explicit if name == "explicit" else name for name in orders]
    sparse = form == "sparse"

    def jacobian(order: Any) -> Callable[..., Any]:
        if form == "value":
            return value_and_jacve(fun, order=order, argnums=argnums)
        made = jacve(fun, order=order, argnums=argnums, sparse_representation=sparse)
        return lambda *args: dense(made(*args))

    def expected(*args: Any) -> Any:
        result = program.reference(fun, argnums)(*args)
        return (fun(*args), result) if form == "value" else result

    transform = TRANSFORMS.get(form, lambda program, jacobian: jacobian)
    candidates = [transform(program, jacobian(order)) for order in found]
    wanted = transform(program, expected)
    args = program.args
    if form in ("vmap", "batch"):
        args = jax.tree.map(lambda x: np.stack([x, x if x.dtype == int else 0.8 * x]), args)
    if form == "eager":
        results = [candidate(*args) for candidate in candidates]
        truth = jax.jit(wanted)(*args)
    else:
        truth, results = jax.jit(lambda args: (wanted(*args), [c(*args) for c in candidates]))(args)
    for name, result in zip(orders, results, strict=True):
        assert_same(
            result,
            truth,
            tolerance=tolerance or program.tolerance,
            context=f"{form}, order {name}; {program.description}",
        )


def _numbers(program: RandomProgram, jacobian: Callable[..., Any]) -> tuple[Any, Any]:
    """The Jacobian as a function of the differentiated arguments alone, and their positions."""
    positions = program.argnums if isinstance(program.argnums, tuple) else (program.argnums,)
    places = [n % len(program.args) for n in positions]

    def close(args: tuple[Any, ...]) -> Callable[[list[Any]], Any]:
        def of_moving(moving: list[Any]) -> Any:
            full = list(args)
            for place, value in zip(places, moving, strict=True):
                full[place] = value
            return jacobian(*full)

        return of_moving

    return close, places


def _jvp(program: RandomProgram, jacobian: Callable[..., Any]) -> Callable[..., Any]:
    """The change of a Jacobian along a direction."""
    close, places = _numbers(program, jacobian)

    def run(*args: Any) -> Any:
        moving = jax.tree.map(jnp.asarray, [args[place] for place in places])
        direction = jax.tree.map(lambda x: jnp.cos(3.0 * x), moving)
        return jax.jvp(close(args), (moving,), (direction,))

    return run


def _grad(program: RandomProgram, jacobian: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of a function of a Jacobian; along a direction where JAX has no reverse mode."""
    if program.mode == "forward":
        return _jvp(program, jacobian)
    close, places = _numbers(program, jacobian)

    def run(*args: Any) -> Any:
        def size(moving: list[Any]) -> Any:
            leaves = jax.tree.leaves(close(args)(moving))
            return sum((jnp.sum(jnp.sin(leaf)) for leaf in leaves), jnp.zeros(()))

        return jax.grad(size)(jax.tree.map(jnp.asarray, [args[place] for place in places]))

    return run


def _batch(program: RandomProgram, jacobian: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of a function of the Jacobians of a batch, which are compiled by themselves."""
    return _grad(program, jax.jit(jax.vmap(jacobian)))


TRANSFORMS: dict[str, Callable[[RandomProgram, Callable[..., Any]], Callable[..., Any]]] = {
    "vmap": lambda program, jacobian: jax.vmap(jacobian),
    "jvp": _jvp,
    "grad": _grad,
    "batch": _batch,
}
