"""Every differentiable elementwise primitive of jax.lax in every form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.rule_cases.case import Case, Table, sample

Unary = Callable[[Any], Any]
Binary = Callable[[Any, Any], Any]

# name: function, interval on which it is smooth with a margin of 0.05
UNARY: dict[str, tuple[Unary, float, float]] = {
    "abs": (lax.abs, 0.2, 1.5),
    "abs of negative": (lax.abs, -1.5, -0.2),
    "acos": (lax.acos, -0.8, 0.8),
    "acosh": (lax.acosh, 1.3, 3.0),
    "asin": (lax.asin, -0.8, 0.8),
    "asinh": (lax.asinh, -2.0, 2.0),
    "atan": (lax.atan, -2.0, 2.0),
    "atanh": (lax.atanh, -0.8, 0.8),
    "bessel_i0e": (lax.bessel_i0e, 0.2, 2.0),
    "bessel_i1e": (lax.bessel_i1e, 0.2, 2.0),
    "cbrt": (lax.cbrt, 0.3, 2.0),
    "ceil": (lax.ceil, 0.2, 0.8),
    "cos": (lax.cos, -2.0, 2.0),
    "cosh": (lax.cosh, -2.0, 2.0),
    "digamma": (lax.digamma, 0.5, 3.0),
    "erf": (lax.erf, -1.5, 1.5),
    "erf_inv": (lax.erf_inv, -0.8, 0.8),
    "erfc": (lax.erfc, -1.5, 1.5),
    "exp": (lax.exp, -1.5, 1.5),
    "exp2": (lax.exp2, -1.5, 1.5),
    "expm1": (lax.expm1, -1.5, 1.5),
    "floor": (lax.floor, 0.2, 0.8),
    "integer_pow 0": (lambda x: lax.integer_pow(x, 0), -1.5, 1.5),
    "integer_pow 1": (lambda x: lax.integer_pow(x, 1), -1.5, 1.5),
    "integer_pow 2": (lambda x: lax.integer_pow(x, 2), -1.5, 1.5),
    "integer_pow 5": (lambda x: lax.integer_pow(x, 5), -1.2, 1.2),
    "integer_pow -1": (lambda x: lax.integer_pow(x, -1), 0.4, 1.5),
    "integer_pow -3": (lambda x: lax.integer_pow(x, -3), 0.4, 1.5),
    "lgamma": (lax.lgamma, 0.5, 3.0),
    "log": (lax.log, 0.3, 2.0),
    "log1p": (lax.log1p, -0.6, 1.5),
    "logistic": (lax.logistic, -2.0, 2.0),
    "neg": (lax.neg, -2.0, 2.0),
    "reciprocal": (lax.reciprocal, 0.4, 2.0),
    "round": (lax.round, 0.6, 1.4),
    "rsqrt": (lax.rsqrt, 0.4, 2.0),
    "sign": (lax.sign, 0.2, 1.0),
    "sin": (lax.sin, -2.0, 2.0),
    "sinh": (lax.sinh, -2.0, 2.0),
    "sqrt": (lax.sqrt, 0.4, 2.0),
    "square": (lax.square, -1.5, 1.5),
    "stop_gradient": (lax.stop_gradient, -1.5, 1.5),
    "tan": (lax.tan, -1.2, 1.2),
    "tanh": (lax.tanh, -1.5, 1.5),
}

UNARY_SHAPES = {
    "scalar": (),
    "vector": (3,),
    "matrix": (2, 3),
    "three dimensions": (2, 1, 2),
    "four dimensions": (1, 2, 1, 2),
    "size 0": (0,),
    "size 1": (1,),
    "size 0 matrix": (2, 0),
}

# name: function, interval of the first operand, interval of the second
BINARY: dict[str, tuple[Binary, tuple[float, float], tuple[float, float]]] = {
    "add": (lax.add, (-1.0, 1.0), (-1.0, 1.0)),
    "sub": (lax.sub, (-1.0, 1.0), (-1.0, 1.0)),
    "mul": (lax.mul, (-1.0, 1.0), (-1.0, 1.0)),
    "div": (lax.div, (-1.0, 1.0), (0.5, 1.5)),
    "max": (lax.max, (-1.0, 1.0), (-1.3, 0.9)),
    "min": (lax.min, (-1.0, 1.0), (-1.3, 0.9)),
    "pow": (lax.pow, (0.4, 2.0), (-1.5, 1.5)),
    "rem": (lax.rem, (0.1, 0.9), (1.1, 1.9)),
    "rem with a quotient": (lax.rem, (2.1, 2.9), (1.0, 1.04)),
    "atan2": (lax.atan2, (-1.0, 1.0), (0.5, 1.5)),
    "igamma": (lax.igamma, (0.6, 2.0), (0.6, 2.0)),
    "igammac": (lax.igammac, (0.6, 2.0), (0.6, 2.0)),
    "complex": (lambda x, y: jnp.abs(lax.complex(x, y)), (-1.0, 1.0), (0.5, 1.5)),
}

OF_THE_SECOND_OPERAND: dict[str, tuple[Unary, float, float]] = {
    "igamma in x": (lambda x: lax.igamma(jnp.full_like(x, 1.3), x), 0.5, 2.0),
    "polygamma": (lambda x: lax.polygamma(jnp.full_like(x, 1.0), x), 0.6, 2.0),
    "regularized_incomplete_beta": (
        lambda x: lax.betainc(jnp.full_like(x, 1.2), jnp.full_like(x, 2.3), x),
        0.2,
        0.8,
    ),
    "power with a constant exponent": (lambda x: lax.pow(x, 1.7), 0.4, 2.0),
    "power with an integer exponent": (lambda x: lax.pow(x, 3), 0.4, 2.0),
    "power of a constant": (lambda x: lax.pow(jnp.full_like(x, 1.7), x), -1.0, 1.0),
}


def broadcasting(fun: Binary) -> Binary:
    """The primitive after numpy's broadcasting of its operands."""
    return lambda x, y: fun(*jnp.broadcast_arrays(x, y))


# Forms that only `make conformance` takes, except where the table says otherwise.
EXTENDED = {
    "vector",
    "three dimensions",
    "four dimensions",
    "size 0 matrix",
    "vectors",
    "matrix and scalar",
    "size-1 dimension",
    "size 0 against 1",
}
THOROUGH = {"sin", "exp", "abs", "integer_pow 2", "neg", "add", "mul", "div"}
SLOW_TO_COMPILE = {"igamma", "igammac"}

BINARY_SHAPES = {
    "scalars": ((), ()),
    "vectors": ((3,), (3,)),
    "matrices": ((2, 3), (2, 3)),
    "scalar and matrix": ((), (2, 3)),
    "matrix and scalar": ((2, 3), ()),
    "row and column": ((1, 3), (2, 1)),
    "matrix and vector": ((2, 3), (3,)),
    "size-1 dimension": ((2, 1), (2, 3)),
    "four dimensions": ((2, 1, 2, 1), (2, 1, 2)),
    "size 0": ((0,), (0,)),
    "size 0 against 1": ((0, 2), (1, 2)),
    "size 1": ((1,), (1,)),
}


def is_extended(name: str, form: str) -> bool:
    """Whether a form of a primitive is left to `make conformance`."""
    return form in EXTENDED and name not in THOROUGH


def _unary() -> Table:
    return {
        name: {
            form: Case(fun, (sample(shape, low, high),), extended=is_extended(name, form))
            for form, shape in UNARY_SHAPES.items()
        }
        for name, (fun, low, high) in {**UNARY, **OF_THE_SECOND_OPERAND}.items()
    }


def _binary() -> Table:
    table: Table = {}
    for name, (fun, first, second) in BINARY.items():
        wide = broadcasting(fun)
        forms = {
            form: Case(
                wide,
                (sample(left, *first), sample(right, *second, seed=1)),
                extended=is_extended(name, form),
            )
            for form, (left, right) in BINARY_SHAPES.items()
        }
        low, high = max(first[0], second[0]), min(first[1], second[1])
        if low < high:  # one interval for both operands
            forms["repeated operand"] = Case(lambda x, f=fun: f(x, x), (sample((2, 3), low, high),))
        constant = sample((2, 3), *second, seed=1)
        forms["constant second operand"] = Case(
            lambda x, f=fun, c=constant: f(x, c), (sample((2, 3), *first),)
        )
        constant = sample((2, 3), *first, seed=1)
        forms["constant first operand"] = Case(
            lambda x, f=fun, c=constant: f(c, x), (sample((2, 3), *second),)
        )
        number = 0.5 * sum(second)
        forms["Python number"] = Case(lambda x, f=wide, c=number: f(x, c), (sample((3,), *first),))
        if name in SLOW_TO_COMPILE:
            forms = {
                form: replace(case, extended=form not in ("scalars", "size 0", "Python number"))
                for form, case in forms.items()
            }
        table[name] = forms
    return table


def _selections() -> Table:
    x, y = sample((2, 3)), sample((2, 3), -0.95, 1.05, seed=1)
    mask = np.array([[True, False, True], [False, False, True]])
    cases = np.array([[0, 2, 1], [1, 0, 2]], np.int32)
    return {
        "select_n": {
            "boolean mask": Case(lambda x, y: lax.select_n(mask, x, y), (x, y)),
            "integer mask": Case(lambda x, y: lax.select_n(cases, x, y, x * y), (x, y)),
            "scalar predicate": Case(lambda x, y: lax.select_n(np.True_, x, y), (x, y)),
            "predicate of an operand": Case(
                lambda x, y: lax.select_n(x > 0.1, x, y), (x, y), warp=False
            ),
            "repeated operand": Case(lambda x: lax.select_n(mask, x, x), (x,)),
            "constant branch": Case(lambda x: jnp.where(mask, x, 0.0), (x,)),
            "other constant branch": Case(lambda x: jnp.where(mask, 1.0, x), (x,)),
            "broadcast branches": Case(
                lambda x, y: jnp.where(mask, x, y), (sample((3,)), sample((2, 1), seed=1))
            ),
            "size 0": Case(lambda x: jnp.where(x > 0, x, 2.0 * x), (sample((0, 3)),)),
        },
        "clamp": {
            "scalar ends": Case(lambda x: lax.clamp(-0.5, x, 0.52), (x,), warp=False),
            "array ends": Case(
                lambda a, x, b: lax.clamp(a, x, b), (y - 0.7, x, y + 0.71), warp=False
            ),
            "constant middle": Case(
                lambda a, b: lax.clamp(a, x, b), (y - 0.7, y + 0.71), warp=False
            ),
            "size 1": Case(lambda x: lax.clamp(-0.5, x, 0.5), (sample((1,)),)),
            "one variable end": Case(
                lambda x, b: jnp.clip(x, -0.4, b), (x, np.float64(0.45)), warp=False
            ),
        },
    }


def _complex() -> Table:
    """Real functions of real arrays through complex intermediates."""
    functions: dict[str, Unary] = {
        "exp": jnp.exp,
        "log": jnp.log,
        "sin": jnp.sin,
        "cosh": jnp.cosh,
        "tanh": jnp.tanh,
        "sqrt": jnp.sqrt,
        "square": jnp.square,
        "cube": lambda z: z**3,
        "reciprocal": lambda z: 1.0 / z,
        "mul": lambda z: z * z[::-1],
        "div": lambda z: z / (z[::-1] + 3.0),
        "conj": jnp.conj,
        "constant factor": lambda z: z * (1.0 + 2.0j),
        "abs": lambda z: jnp.abs(z).astype(complex),
        "sign": jnp.sign,
        "max": lambda z: jnp.maximum(z, z[::-1] * 1j),
        "max with equal numbers": lambda z: jnp.maximum(z, z * np.array([1.0, 1.0, 1.1 + 0j])),
        "min with equal real parts": lambda z: jnp.minimum(z, jnp.conj(z)),
        "largest": jnp.max,
        "sort": jnp.sort,
        "sum": jnp.sum,
        "prod": jnp.prod,
        "dot": lambda z: z @ z[::-1],
        "hermitian dot": lambda z: jnp.vdot(z, z[::-1]),
        "cumsum": jnp.cumsum,
        "transpose": lambda z: jnp.stack([z, z * z]).T,
        "where": lambda z: jnp.where(np.array([True, False, True]), z, z * 1j),
    }
    x, y = sample((3,)), sample((3,), 0.5, 1.5, seed=1)

    def parts(fun: Unary) -> Binary:
        def run(x: Any, y: Any) -> tuple[Any, Any, Any]:
            z = fun(lax.complex(x, y))
            return jnp.real(z), jnp.imag(z), jnp.abs(z * (1.0 + 0.5j))

        return run

    return {
        "complex intermediate": {name: Case(parts(fun), (x, y)) for name, fun in functions.items()},
        "real and imag": {
            "of a converted real": Case(lambda x: jnp.real((x.astype(complex) * 1j) ** 2), (x,)),
            "imaginary part of a real": Case(lambda x: jnp.imag(x.astype(complex)), (x,)),
            "constant imaginary part": Case(
                lambda x: jnp.imag(lax.complex(x, jnp.ones(3)) ** 2), (x,)
            ),
            "size 0": Case(lambda x: jnp.real(jnp.exp(lax.complex(x, x))), (sample((0,)),)),
            "scalar": Case(lambda x: jnp.angle(lax.complex(x, x + 1.0)), (sample((), 0.3, 0.4),)),
        },
    }


CASES: Table = _unary() | _binary() | _selections() | _complex()
