"""Measures what `graphax_lapl/program/timings.py` says: time per element of elementwise operations.

    python -m benchmarks.calibrate

prints a line per primitive for this machine's default device. Every primitive is applied in one
kernel to an array that fits into the cache, several times in a chain, so that memory does not
count; a kernel of no elements gives the cost of a launch.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.timing import measure

ELEMENTS = 1 << 16
UNARY: dict[str, Callable[[Any], Any]] = {
    "add": lambda x: x + 0.3,
    "mul": lambda x: x * 0.7,
    "div": lambda x: 0.5 / x,
    "sqrt": lax.sqrt,
    "rsqrt": lax.rsqrt,
    "sin": lax.sin,
    "cos": lax.cos,
    "tan": lax.tan,
    "asin": lambda x: lax.asin(0.5 * x),
    "acos": lambda x: lax.acos(0.3 * x),
    "atan": lax.atan,
    "atan2": lambda x: lax.atan2(x, x + 0.5),
    "sinh": lax.sinh,
    "cosh": lambda x: lax.cosh(0.5 * x),
    "tanh": lax.tanh,
    "exp": lambda x: lax.exp(-x),
    "log": lambda x: lax.log(x + 1.2),
    "log1p": lax.log1p,
    "expm1": lambda x: lax.expm1(0.5 * x),
    "logistic": lax.logistic,
    "pow": lambda x: lax.pow(x, x),
    "cbrt": lax.cbrt,
    "erf": lax.erf,
    "erf_inv": lambda x: lax.erf_inv(0.5 * x),
    "lgamma": lambda x: lax.lgamma(x + 1.0),
    "digamma": lambda x: lax.digamma(x + 1.0),
    "bessel_i0e": lax.bessel_i0e,
}


def repeated(fun: Callable[[Any], Any], times: int) -> Callable[[Any], Any]:
    """`fun` applied so many times."""

    def chain(x: Any) -> Any:
        for _ in range(times):
            x = fun(x)
        return x

    return chain


def seconds(call: Callable[[Any], Any], x: Any) -> float:
    """Median time of a compiled call."""
    compiled = jax.jit(call).lower(x).compile()
    return measure(
        {"it": lambda: compiled(x)}, references=("it",), rounds=15, max_seconds=0.4
    ).median_seconds("it")


def main() -> None:
    """Prints nanoseconds per element, and microseconds per kernel."""
    x = jnp.linspace(0.3, 1.2, ELEMENTS, dtype=jnp.float32)
    one = jnp.ones(8, jnp.float32)
    few = seconds(lambda x: [x + k for k in range(10)], one)
    many = seconds(lambda x: [x + k for k in range(60)], one)
    print(f"# {jax.devices()[0].device_kind}, jax {jax.__version__}")
    print(f"kernel: {(many - few) / 50 * 1e6:.2f} us")
    copy = seconds(lambda x: x + 1.0, x)
    print(f"memory: {(copy / ELEMENTS) * 1e9:.3f} ns per element read and written")
    for name, fun in UNARY.items():
        more = seconds(repeated(fun, 2), x) - seconds(fun, x)
        print(f"{name}: {max(more, 0.0) / ELEMENTS * 1e9:.3f} ns", flush=True)


if __name__ == "__main__":
    main()
