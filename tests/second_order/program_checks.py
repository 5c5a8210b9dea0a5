"""Second derivatives of a random program against `jax.hessian`, in one of many forms.

As in `tests.program_checks`, a program goes through a part of what there is, named by its seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from graphax_lapl import (
    divergence_ve,
    forward_laplacian,
    hessian_diagonal,
    hessian_vector_product,
    hessve,
    laplacian_ve,
)
from tests.checks import assert_same, dense, shuffled_vertices
from tests.random_programs import RandomProgram
from tests.second_order.checks import (
    ORDERS,
    differentiated,
    laplacian_of,
    reference_hessian,
)

FORMS = (
    *("hessian", "sparse hessian", "diagonal", "product", "forward laplacian", "weights"),
    *("divergence", "vmap", "jvp", "eager", "grad", "training"),
)
"""What is compared besides the Laplacian."""


def check_second_order_form(program: RandomProgram, seed: int, form: str, order: str) -> None:
    """Compare a program's Laplacian by one order, and one further form, with JAX's Hessian.

    Args:
        program: the program.
        seed: of the explicit order and of the weights.
        form: of `FORMS`.
        order: of `ORDERS`, for the Laplacian.
    """
    fun, argnums, args = program.fun, program.argnums, jax.tree.map(jnp.asarray, program.args)
    chosen: Any = order
    if order == "explicit":
        chosen = shuffled_vertices(seed, fun, *args, argnums=argnums, kind="laplacian")
    compare = COMPARED[form]

    def hessian(*args: Any) -> Any:
        return reference_hessian(fun, *args, argnums=argnums)

    def laplacian(*args: Any) -> Any:
        return laplacian_of(hessian(*args), fun(*args), differentiated(args, argnums))

    def both(args: Any) -> Any:
        ours = laplacian_ve(fun, order=chosen, argnums=argnums)
        wanted, found = compare(program, seed, hessian, laplacian, ours)
        return (laplacian(*args), wanted(*args)), (ours(*args), found(*args))

    if form == "eager":
        expected = jax.jit(laplacian)(*args)
        results = [("Laplacian", laplacian_ve(fun, order=chosen, argnums=argnums)(*args), expected)]
    else:
        (first, second), (mine, other) = jax.jit(both)(args)
        results = [("Laplacian", mine, first), (form, other, second)]
    for name, result, truth in results:
        assert_same(
            result,
            truth,
            tolerance=program.tolerance,
            context=f"{name}, {order} (form {form}); {program.description}",
        )


Compared = tuple[Callable[..., Any], Callable[..., Any]]


def _hessian(program: RandomProgram, seed: int, hessian: Any, *_: Any) -> Compared:
    return hessian, hessve(program.fun, argnums=program.argnums)


def _sparse(program: RandomProgram, seed: int, hessian: Any, *_: Any) -> Compared:
    made = hessve(program.fun, argnums=program.argnums, sparse_representation=True)
    return hessian, lambda *args: dense(made(*args))


def _diagonal(program: RandomProgram, seed: int, hessian: Any, *_: Any) -> Compared:
    def expected(*args: Any) -> Any:
        leaves = jax.tree.leaves(differentiated(args, program.argnums))
        blocks, found = jax.tree.leaves(hessian(*args)), []
        for k in range(len(blocks) // len(leaves) ** 2):
            for i, leaf in enumerate(leaves):
                block = blocks[(k * len(leaves) + i) * len(leaves) + i]
                out = block.shape[: block.ndim - 2 * leaf.ndim]
                square = block.reshape(*out, leaf.size, leaf.size)
                diagonal = jnp.diagonal(square, axis1=-2, axis2=-1)
                found.append(diagonal.reshape(*out, *leaf.shape))
        return found

    made = hessian_diagonal(program.fun, argnums=program.argnums)
    return expected, lambda *args: jax.tree.leaves(made(*args))


def _product(program: RandomProgram, seed: int, *_: Any) -> Compared:
    positions = _positions(program)

    def direction(args: Any) -> Any:
        return jax.tree.map(lambda x: jnp.cos(2.0 * x) + 0.3, [args[n] for n in positions])

    def expected(*args: Any) -> Any:
        def first(*moving: Any) -> Any:
            return _jacobian(program)(*_replaced(args, positions, moving))

        moving = [args[n] for n in positions]
        return jax.jvp(first, tuple(moving), tuple(direction(args)))[1]

    def found(*args: Any) -> Any:
        vectors = direction(args)
        vector = tuple(vectors) if isinstance(program.argnums, tuple) else vectors[0]
        return hessian_vector_product(program.fun, argnums=program.argnums)(*args, vector)

    return expected, found


def _forward(program: RandomProgram, seed: int, hessian: Any, laplacian: Any, _: Any) -> Compared:
    def expected(*args: Any) -> Any:
        return jax.tree.leaves((program.fun(*args), laplacian(*args)))

    def found(*args: Any) -> Any:
        results = forward_laplacian(program.fun, argnums=program.argnums)(*args)
        parts = jax.tree.leaves(results, is_leaf=lambda x: hasattr(x, "laplacian"))
        return [part.x for part in parts] + [part.laplacian for part in parts]

    return expected, found


def _weights(program: RandomProgram, seed: int, hessian: Any, *_: Any) -> Compared:
    """A Laplacian with a full matrix A."""
    moving = jax.tree.leaves(differentiated(program.args, program.argnums))
    sizes = [leaf.size for leaf in moving]
    matrix = np.random.default_rng(seed).normal(size=(sum(sizes),) * 2)
    starts = [sum(sizes[:k]) for k in range(len(sizes))]

    def expected(*args: Any) -> Any:
        blocks, found = jax.tree.leaves(hessian(*args)), []
        for k, value in enumerate(jax.tree.leaves(program.fun(*args))):
            total = jnp.zeros(value.shape, value.dtype)
            for i, m in enumerate(sizes):
                for j, n in enumerate(sizes):
                    block = blocks[(k * len(sizes) + i) * len(sizes) + j]
                    part = matrix[starts[i] : starts[i] + m, starts[j] : starts[j] + n]
                    total += jnp.sum(block.reshape(*value.shape, m, n) * part, (-2, -1))
            found.append(total)
        return found

    made = laplacian_ve(program.fun, argnums=program.argnums, weights=matrix)
    return expected, lambda *args: jax.tree.leaves(made(*args))


def _divergence(program: RandomProgram, seed: int, *_: Any) -> Compared:
    """The divergence of a field made of the program's outputs."""
    positions = _positions(program)

    def field(*args: Any) -> Any:
        outputs = jax.tree.leaves(program.fun(*args))
        strength = sum((jnp.sum(jnp.sin(y)) for y in outputs), jnp.zeros(()))
        return tuple(
            jax.tree.map(lambda x: jnp.sin(x) * strength + x * x, args[n]) for n in positions
        )

    def expected(*args: Any) -> Any:
        derivative = program.reference(field, positions)(*args)
        leaves = jax.tree.leaves([args[n] for n in positions])
        blocks = jax.tree.leaves(derivative)
        return sum(
            jnp.trace(blocks[k * len(leaves) + k].reshape(leaf.size, leaf.size))
            for k, leaf in enumerate(leaves)
        )

    return expected, divergence_ve(field, argnums=positions)


def _vmap(program: RandomProgram, seed: int, hessian: Any, laplacian: Any, ours: Any) -> Compared:
    def batched(fun: Any) -> Any:
        def stack(x: Any) -> Any:
            return jnp.stack([x, x if jnp.issubdtype(x.dtype, jnp.integer) else 0.8 * x])

        return lambda *args: jax.vmap(fun)(*jax.tree.map(stack, args))

    return batched(laplacian), batched(ours)


def _jvp(program: RandomProgram, seed: int, hessian: Any, laplacian: Any, ours: Any) -> Compared:
    """The change of a Laplacian along a direction."""
    positions = _positions(program)

    def along(fun: Any) -> Any:
        def run(*args: Any) -> Any:
            moving = tuple(args[n] for n in positions)
            direction = jax.tree.map(lambda x: jnp.cos(3.0 * x), moving)
            return jax.jvp(lambda *x: fun(*_replaced(args, positions, x)), moving, direction)[1]

        return run

    return along(laplacian), along(ours)


def _grad(program: RandomProgram, seed: int, hessian: Any, laplacian: Any, ours: Any) -> Compared:
    """The gradient of a function of a Laplacian with respect to all real arguments."""
    return _gradient(program, laplacian), _gradient(program, ours)


def _training(
    program: RandomProgram, seed: int, hessian: Any, laplacian: Any, ours: Any
) -> Compared:
    """The same of a compiled batch, of which all samples share what is no position."""
    positions = _positions(program)

    def batched(fun: Any) -> Any:
        axes = [0 if n in positions else None for n in range(len(program.args))]
        samples = jax.jit(jax.vmap(fun, in_axes=axes))

        def run(*args: Any) -> Any:
            stacks = [jax.tree.map(lambda x: jnp.stack([x, 0.8 * x]), args[n]) for n in positions]
            return samples(*_replaced(args, positions, stacks))

        return _gradient(program, run)

    return batched(laplacian), batched(ours)


def _gradient(program: RandomProgram, fun: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of a number made of all results, or its change where JAX has no reverse mode."""

    def size(*args: Any) -> Any:
        leaves = jax.tree.leaves(fun(*args))
        return sum(
            (jnp.sum(jnp.sin(jnp.real(leaf)) + jnp.imag(leaf)) for leaf in leaves), jnp.zeros(())
        )

    def run(*args: Any) -> Any:
        real = [
            n
            for n, arg in enumerate(args)
            if all(jnp.issubdtype(x.dtype, jnp.floating) for x in jax.tree.leaves(arg))
        ]
        moving = tuple(args[n] for n in real)

        def closed(*moving: Any) -> Any:
            return size(*_replaced(args, real, moving))

        if program.mode == "forward":
            return jax.jvp(closed, moving, jax.tree.map(lambda x: jnp.cos(3.0 * x), moving))
        return jax.grad(closed, tuple(range(len(real))))(*moving)

    return run


def _nothing(program: RandomProgram, *_: Any) -> Compared:
    return program.fun, program.fun


COMPARED: dict[str, Callable[..., Compared]] = {
    "hessian": _hessian,
    "sparse hessian": _sparse,
    "diagonal": _diagonal,
    "product": _product,
    "forward laplacian": _forward,
    "weights": _weights,
    "divergence": _divergence,
    "vmap": _vmap,
    "jvp": _jvp,
    "grad": _grad,
    "training": _training,
    "eager": _nothing,
}


def check_second(program: RandomProgram, seed: int) -> None:
    """The form and the order that a seed names."""
    order = ORDERS[seed // len(FORMS) % len(ORDERS)]
    check_second_order_form(program, seed, FORMS[seed % len(FORMS)], order)


def _positions(program: RandomProgram) -> tuple[int, ...]:
    found = program.argnums if isinstance(program.argnums, tuple) else (program.argnums,)
    return tuple(n % len(program.args) for n in found)


def _replaced(args: Any, positions: Any, moving: Any) -> list[Any]:
    full = list(args)
    for position, value in zip(positions, moving, strict=True):
        full[position] = value
    return full


def _jacobian(program: RandomProgram) -> Callable[..., Any]:
    """JAX's first derivative, of a kind that can be differentiated once more."""
    return (jax.jacfwd if program.mode == "forward" else jax.jacrev)(program.fun, program.argnums)
