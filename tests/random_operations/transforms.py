"""Fourier transforms, complex functions, implicit functions, transformations of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.random_operations.builder import NotApplicable, OperationTable, ProgramBuilder
from tests.random_operations.nested import random_body

operation = OperationTable()


@jax.custom_vjp
def reversed_rule(x: jax.Array, y: jax.Array) -> jax.Array:
    """The product x sin(y), whose rule (for cotangents only) is not its derivative."""
    return x * jnp.sin(y)


def _reversed_rule_forward(x: jax.Array, y: jax.Array) -> Any:
    return x * jnp.sin(y), (x, y)


def _reversed_rule_backward(saved: Any, cotangent: jax.Array) -> Any:
    x, y = saved
    return cotangent * jnp.sin(2.0 * y), cotangent * x * jnp.cos(y)


reversed_rule.defvjp(_reversed_rule_forward, _reversed_rule_backward)


@jax.custom_jvp
def straight_through(x: jax.Array) -> jax.Array:
    """Rounding, which the rule takes for the identity."""
    return jnp.round(2.0 * x)


@straight_through.defjvp
def _straight_through_jvp(primals: tuple, tangents: tuple) -> tuple:
    return straight_through(*primals), tangents[0]


@operation(weight=2)
def cotangent_rule(builder: ProgramBuilder) -> None:
    """A function with a custom_vjp, possibly under vmap, jit or checkpoint."""
    builder.use_reverse_mode()
    x = builder.pick_rank(1, 2, nonempty=True)
    y = builder.pick(where=lambda v: v.shape == x.shape, partner=x)
    wrapper = builder.choice(["", "", "vmap", "jit", "checkpoint"])
    wrap = {"": lambda f: f, "vmap": jax.vmap, "jit": jax.jit, "checkpoint": jax.checkpoint}
    fun = wrap[wrapper](reversed_rule)
    builder.apply(f"custom_vjp {wrapper}", lambda x, y: fun(x, y), x, y, bound=1.5)


@operation(weight=1)
def straight_through_estimator(builder: ProgramBuilder) -> None:
    """A value that moves otherwise than its rule says."""
    x = builder.pick()
    shift = builder.dither(x)
    builder.apply("straight through", lambda x: straight_through(x + shift), x, bound=4.0)


@operation(weight=2)
def fourier(builder: ProgramBuilder) -> None:
    """Fourier transforms and convolutions by them."""
    x = builder.pick_rank(1, 2, nonempty=True)
    axis = builder.integer(0, x.rank - 1)
    n = x.shape[axis]
    fft = jnp.fft
    kinds: dict[str, Callable[[Any], Any]] = {
        "power spectrum": lambda x: jnp.abs(fft.fft(x + 2.0, axis=axis)) ** 2,
        "real part of fft": lambda x: jnp.real(fft.fft(x, axis=axis)),
        "imaginary part of rfft": lambda x: jnp.imag(fft.rfft(x, axis=axis)),
        "irfft of rfft": lambda x: fft.irfft(fft.rfft(x, axis=axis) ** 2, n, axis=axis),
        "convolution by fft": lambda x: jnp.real(
            fft.ifft(fft.fft(x, axis=axis) * fft.fft(jnp.sin(x), axis=axis), axis=axis)
        ),
        "fftn": lambda x: jnp.real(fft.fftn(x) * jnp.conj(fft.fftn(jnp.cos(x)))),
        "padded fft": lambda x: jnp.real(fft.fft(x, n + 2, axis=axis)),
        "fftshift": lambda x: fft.fftshift(x, axes=axis),
    }
    name = builder.choice(list(kinds))
    builder.apply(f"{name} axis {axis}", kinds[name], x, bound=20.0 * x.size)


HOLOMORPHIC: dict[str, Callable[[Any], Any]] = {
    "exp": lambda z: jnp.exp(0.5 * z),
    "sin": jnp.sin,
    "log": lambda z: jnp.log(z + 4.0),
    "sqrt": lambda z: jnp.sqrt(z + 4.0),
    "square": lambda z: z * z,
    "reciprocal": lambda z: 1.0 / (z + 4.0),
    "power": lambda z: z**3,
    "tanh": lambda z: jnp.tanh(0.3 * z),
    "conj": jnp.conj,
    "times i": lambda z: z * 1j,
    "cumsum": lambda z: jnp.cumsum(z, -1),
    "sum": lambda z: z - jnp.sum(z, -1, keepdims=True),
    "select": lambda z: jnp.where(jnp.real(z) > 0.03, z, 2j * z),
    "reverse": lambda z: z[..., ::-1],
}
REAL_PARTS: dict[str, Callable[[Any], Any]] = {
    "real": jnp.real,
    "imag": jnp.imag,
    "abs": lambda z: jnp.abs(z + (6.0 + 1j)),
    "angle": lambda z: jnp.angle(z + 8.0),
    "abs^2": lambda z: jnp.real(z * jnp.conj(z)),
    "vdot": lambda z: jnp.real(jnp.vdot(z, z)),
}


@operation(weight=3)
def complex_chain(builder: ProgramBuilder) -> None:
    """A chain of complex functions between two real arrays and a real result."""
    x = builder.pick_rank(1, 2, nonempty=True, bound=1.0)
    y = builder.pick(where=lambda v: v.shape == x.shape, partner=x, bound=1.0)
    names = [builder.choice(list(HOLOMORPHIC)) for _ in range(builder.integer(1, 3))]
    end = builder.choice(list(REAL_PARTS))
    matrix = builder.array((x.shape[-1],) * 2) + 1j * builder.array((x.shape[-1],) * 2)
    multiplied = builder.chance(0.3)

    def run(x: Any, y: Any) -> Any:
        z = lax.complex(x, y)
        for name in names:
            z = HOLOMORPHIC[name](z)
            z = z / (1.0 + 0.1 * lax.stop_gradient(jnp.abs(z).max()).astype(z.dtype))
        z = z @ matrix.astype(z.dtype) if multiplied else z
        return REAL_PARTS[end](z)

    builder.apply(f"{end} of {' of '.join(reversed(names))}", run, x, y, bound=60.0)


@operation(weight=2)
def complex_matrix(builder: ProgramBuilder) -> None:
    """Determinants, inverses and solves of complex matrices."""
    x = builder.pick_rank(1, 1, nonempty=True, bound=1.0)
    n = x.shape[0]
    if n > 4:
        raise NotApplicable
    name = builder.choice(["det", "log|det|", "inv", "solve", "matmul"])

    def run(x: Any) -> Any:
        a = jnp.exp(lax.complex(jnp.zeros((n, n)), jnp.outer(x, jnp.arange(1.0, n + 1.0))))
        a = a + 4.0 * jnp.eye(n).astype(a.dtype)
        if name == "det":
            return jnp.real(jnp.linalg.det(a))
        if name == "log|det|":
            return jnp.linalg.slogdet(a)[1]
        if name == "inv":
            return jnp.imag(jnp.linalg.inv(a))
        if name == "solve":
            return jnp.abs(jnp.linalg.solve(a, x.astype(a.dtype) + 2.0))
        return jnp.real(a @ a.conj().T @ a)

    builder.apply(f"complex {name}", run, x, bound=2e3)


@operation(weight=2)
def implicit(builder: ProgramBuilder) -> None:
    """A root by lax.custom_root, for scalars and arrays."""
    x = builder.pick_rank(0, 2, nonempty=True)
    strength = 0.3 * builder.choice([0.5, 1.0, 2.0])

    def run(x: Any) -> Any:
        def residual(y: Any) -> Any:
            return y + strength * jnp.sin(y) - x

        def newton(f: Any, y: Any) -> Any:
            def step(_: Any, y: Any) -> Any:
                value, slope = jax.jvp(f, (y,), (jnp.ones_like(y),))
                return y - value / slope

            return lax.fori_loop(0, 12, step, y)

        return lax.custom_root(residual, x, newton, lambda g, b: b / g(jnp.ones_like(b)))

    builder.apply("custom_root", run, x, bound=3.0)


@operation(weight=3)
def wrapped(builder: ProgramBuilder) -> None:
    """A random body under jit, checkpoint, vmap, or one of its own derivatives."""
    x = builder.pick_rank(1, 2, nonempty=True)
    y = builder.pick(where=lambda v: v.shape == x.shape, partner=x)
    kind = builder.choice(["jit", "checkpoint", "nested jit", "vmap", "grad", "jvp", "stop"])
    part = x.shape[1:] if kind == "vmap" else x.shape
    body = random_body(builder, [part, part], [part])

    def run(x: Any, y: Any) -> Any:
        if kind == "jit":
            return jax.jit(body)(x, y)[0]
        if kind == "checkpoint":
            return jax.checkpoint(body)(x, y)[0]
        if kind == "nested jit":
            return jax.jit(lambda x, y: jnp.sin(x) * jax.jit(body)(y, x)[0])(x, y)
        if kind == "vmap":
            return jax.vmap(body)(x, y)[0]
        if kind == "grad":
            return jnp.tanh(jax.grad(lambda x: jnp.sum(body(x, y)[0]))(x))
        if kind == "jvp":
            return jnp.tanh(jax.jvp(lambda x: body(x, y)[0], (x,), (jnp.cos(y),))[1])
        return body(x, lax.stop_gradient(y))[0] * y

    builder.apply(f"{kind} of a body", run, x, y, bound=1.5)


@operation(weight=1)
def mixed_precision(builder: ProgramBuilder) -> None:
    """A stretch in float32, float16 or bfloat16."""
    x = builder.pick()
    dtype = builder.choice([jnp.float32, jnp.float32, jnp.float16, jnp.bfloat16])
    builder.lower_precision(float(jnp.finfo(dtype).eps))
    name, fun = builder.choice(
        [
            ("sin", jnp.sin),
            ("x * x", lambda x: x * x),
            ("sum", jnp.sum),
            ("exp", jnp.exp),
            ("relu", lambda x: jax.nn.relu(x + jnp.asarray(0.317, dtype))),
            ("cumsum", lambda x: jnp.cumsum(x.ravel())),
        ]
    )
    builder.apply(
        f"{name} in {np.dtype(dtype).name}",
        lambda x: fun(x.astype(dtype)).astype(x.dtype),
        x,
        bound=2.0 * max(3, x.size),
    )
