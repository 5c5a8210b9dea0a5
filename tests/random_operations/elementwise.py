"""Elementwise operations: smooth, with kinks, binary with broadcasting, selections, complex."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.random_operations.builder import OperationTable, ProgramBuilder, Value

operation = OperationTable()

# name, function, bound of the result for operands of magnitude at most 1.5
SMOOTH = [
    ("sin", jnp.sin, 1.0),
    ("cos", jnp.cos, 1.0),
    ("tan(x/2)", lambda x: jnp.tan(0.5 * x), 1.0),
    ("arcsin(x/3)", lambda x: jnp.arcsin(x / 3.0), 0.6),
    ("arccos(x/3)", lambda x: jnp.arccos(x / 3.0), 2.2),
    ("arctan", jnp.arctan, 1.0),
    ("sinh", jnp.sinh, 2.2),
    ("cosh", jnp.cosh, 2.4),
    ("tanh", jnp.tanh, 1.0),
    ("arcsinh", jnp.arcsinh, 1.2),
    ("arccosh(x+4)", lambda x: jnp.arccosh(x + 4.0), 2.5),
    ("arctanh(x/3)", lambda x: jnp.arctanh(x / 3.0), 0.6),
    ("exp", jnp.exp, 4.5),
    ("exp2", jnp.exp2, 3.0),
    ("expm1", jnp.expm1, 3.5),
    ("log(x+3)", lambda x: jnp.log(x + 3.0), 1.6),
    ("log1p(x/3)", lambda x: jnp.log1p(x / 3.0), 0.7),
    ("sqrt(x+3)", lambda x: jnp.sqrt(x + 3.0), 2.2),
    ("rsqrt(x+3)", lambda x: lax.rsqrt(x + 3.0), 0.9),
    ("cbrt(x+3)", lambda x: jnp.cbrt(x + 3.0), 1.7),
    ("logistic", lax.logistic, 1.0),
    ("erf", lax.erf, 1.0),
    ("erfc", lax.erfc, 2.0),
    ("erf_inv(x/3)", lambda x: lax.erf_inv(x / 3.0), 0.5),
    ("lgamma(x+3)", lambda x: lax.lgamma(x + 3.0), 2.6),
    ("digamma(x+3)", lambda x: lax.digamma(x + 3.0), 1.5),
    ("bessel_i0e", lax.bessel_i0e, 1.0),
    ("bessel_i1e", lax.bessel_i1e, 1.0),
    ("square", jnp.square, 2.3),
    ("x**3", lambda x: x**3, 3.4),
    ("(x+3)**-2", lambda x: (x + 3.0) ** -2, 0.5),
    ("(x+3)**0.7", lambda x: (x + 3.0) ** 0.7, 3.0),
    ("reciprocal(x+3)", lambda x: 1.0 / (x + 3.0), 0.7),
    ("softplus", jax.nn.softplus, 2.0),
    ("gelu", jax.nn.gelu, 1.5),
    ("sinc(x+2)", lambda x: jnp.sinc(x + 2.0), 1.0),
    ("log(1+x^2)", lambda x: jnp.log(1.0 + x * x), 1.2),
]

# These meet their kinks or jumps only on a set of measure zero.
KINKED = [
    ("abs", jnp.abs, 2.0),
    ("sign", jnp.sign, 1.0),
    ("floor", jnp.floor, 2.0),
    ("ceil", jnp.ceil, 2.0),
    ("round", jnp.round, 2.0),
    ("max(x, 0)", lambda x: jnp.maximum(x, 0.0), 2.0),
    ("min(x, 0.3)", lambda x: jnp.minimum(x, 0.3), 2.0),
    ("clip", lambda x: jnp.clip(x, -0.5, 0.5), 0.5),
    ("clamp", lambda x: lax.clamp(-0.4, x, 0.6), 0.6),
    ("relu", jax.nn.relu, 2.0),
    ("leaky_relu", jax.nn.leaky_relu, 2.0),
    ("elu", jax.nn.elu, 2.0),
    ("relu6", jax.nn.relu6, 2.0),
]

BINARY = [
    ("add", jnp.add, 3.0),
    ("sub", jnp.subtract, 3.0),
    ("mul", jnp.multiply, 2.3),
    ("div(x, y+3)", lambda x, y: x / (y + 3.0), 1.0),
    ("pow(x+3, y)", lambda x, y: jnp.power(x + 3.0, y), 9.6),
    ("arctan2(x, y+3)", lambda x, y: jnp.arctan2(x, y + 3.0), 1.0),
    ("logaddexp", jnp.logaddexp, 2.3),
    ("rem(x, y+3)", lambda x, y: lax.rem(*jnp.broadcast_arrays(x, y + 3.0)), 1.5),
    ("hypot(x, y+3)", lambda x, y: jnp.hypot(x, y + 3.0), 5.0),
]


def broadcasts_with(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether two shapes broadcast under numpy's rules."""
    pairs = zip(reversed(shape), reversed(other), strict=False)
    return all(a == b or a == 1 or b == 1 for a, b in pairs)


def pick_pair(builder: ProgramBuilder) -> tuple[Value, Value]:
    """Two values that broadcast together; the same one twice now and then."""
    x = builder.pick()
    y = builder.pick(where=lambda value: broadcasts_with(x.shape, value.shape), partner=x)
    return (x, y) if builder.chance(0.5) else (y, x)


@operation(weight=8)
def smooth(builder: ProgramBuilder) -> None:
    """A smooth function of one operand."""
    name, fun, bound = builder.choice(SMOOTH)
    builder.apply(name, fun, builder.pick(), bound=bound)


@operation(weight=3)
def kinked(builder: ProgramBuilder) -> None:
    """A piecewise function of one operand, away from its kinks."""
    name, fun, bound = builder.choice(KINKED)
    x = builder.pick()
    shift = builder.dither(x)
    builder.apply(f"{name} of x + c", lambda x: fun(x + shift), x, bound=bound)


@operation(weight=8)
def binary(builder: ProgramBuilder) -> None:
    """A smooth function of two operands with broadcasting."""
    name, fun, bound = builder.choice(BINARY)
    builder.apply(name, fun, *pick_pair(builder), bound=bound)


@operation(weight=3)
def repeated_operand(builder: ProgramBuilder) -> None:
    """The same value as both operands: two parallel edges."""
    name, fun, bound = builder.choice(BINARY)
    builder.apply(f"{name}, y = x", lambda x: fun(x, x), builder.pick(), bound=bound)


@operation(weight=4)
def constant_operand(builder: ProgramBuilder) -> None:
    """One operand is a constant array or a Python number."""
    x = builder.pick()
    shapes = [(), x.shape, x.shape[1:], tuple(1 if builder.chance(0.5) else n for n in x.shape)]
    constant = builder.array(builder.choice(shapes))
    scalar = float(constant.flat[0]) if constant.size and builder.chance(0.3) else None
    operand = scalar if scalar is not None else constant
    name, fun, bound = builder.choice(
        [
            ("x * c", lambda x: x * operand, 1.5),
            ("c * x", lambda x: operand * x, 1.5),
            ("x + c", lambda x: x + operand, 2.5),
            ("c - x", lambda x: operand - x, 2.5),
            ("x / (c+3)", lambda x: x / (operand + 3.0), 0.8),
            ("c / (x+3)", lambda x: operand / (x + 3.0), 0.7),
            ("-x", lambda x: -x, x.bound),
            ("2 x", lambda x: 2.0 * x, 3.0),
        ]
    )
    builder.apply(name, fun, x, bound=bound)


@operation(weight=2)
def larger_smaller(builder: ProgramBuilder) -> None:
    """Max or min of two operands without ties."""
    x, y = pick_pair(builder)
    shift = builder.dither(x)
    fun = builder.choice([jnp.maximum, jnp.minimum])
    builder.apply(fun.__name__, lambda x, y: fun(x + shift, y), x, y, bound=2.0)


@operation(weight=3)
def selection(builder: ProgramBuilder) -> None:
    """Where, select_n, clamp with varying bounds, multiplication by a comparison."""
    x, y = pick_pair(builder)
    shape = np.broadcast_shapes(x.shape, y.shape)
    shift = builder.array(shape, -0.4, 0.4)
    mask = builder.rng.random(shape) < 0.5
    cases = builder.rng.integers(0, 3, shape).astype(np.int32)
    kinds = 6 if shape or not builder.depth else 5  # JAX cannot vmap a clamp of three scalars
    name, fun = builder.choice(
        [
            ("where(x < y)", lambda x, y: jnp.where(x + shift < y, x, 2.0 * y)),
            ("where(mask)", lambda x, y: jnp.where(mask, x, y)),
            ("where(x > c, x, 0)", lambda x, y: y + jnp.where(x > shift, x, 0.0)),
            (
                "select_n of three",
                lambda x, y: lax.select_n(
                    cases, *(jnp.broadcast_to(v, shape) for v in (x, y, jnp.sin(x)))
                ),
            ),
            ("x * (y > c)", lambda x, y: x * (y > shift).astype(x.dtype)),
            (
                "clamp by a variable",
                lambda x, y: lax.clamp(
                    jnp.broadcast_to(y - 0.5, shape),
                    jnp.broadcast_to(x, shape) + shift,
                    jnp.broadcast_to(y + 0.25, shape),
                ),
            ),
        ][:kinds]
    )
    builder.apply(name, fun, x, y, bound=3.0)


@operation(weight=1)
def through_integers(builder: ProgramBuilder) -> None:
    """A value that depends on another one only through integers: a zero derivative."""
    x, y = pick_pair(builder)
    shift = builder.dither(x)
    builder.apply(
        "int(3x) * y", lambda x, y: (3.0 * x + shift).astype(int).astype(float) * y, x, y, bound=8.0
    )


@operation(weight=1)
def stopped(builder: ProgramBuilder) -> None:
    """Part of the value passes through stop_gradient."""
    builder.apply("x * stop(x)", lambda x: x * lax.stop_gradient(x), builder.pick(), bound=2.3)


@operation(weight=2)
def through_complex(builder: ProgramBuilder) -> None:
    """Real and imaginary parts, modulus and conjugate of a complex intermediate."""
    x, y = pick_pair(builder)

    def as_complex(x: jax.Array, y: jax.Array) -> jax.Array:
        return lax.complex(*jnp.broadcast_arrays(x, y + 3.0))

    name, fun = builder.choice(
        [
            ("real(exp(z))", lambda x, y: jnp.real(jnp.exp(0.3 * as_complex(x, y)))),
            ("imag(z*z)", lambda x, y: jnp.imag(as_complex(x, y) * as_complex(y, x))),
            ("abs(z)", lambda x, y: jnp.abs(as_complex(x, y))),
            ("real(z conj(z))", lambda x, y: jnp.real(as_complex(x, y) * as_complex(x, y).conj())),
            ("real(complex128(x)) + y", lambda x, y: jnp.real(x.astype(complex)) + y),
        ]
    )
    builder.apply(name, fun, x, y, bound=25.0)
