"""What operations take on a processor: the constants of the model that predicts times.

Measured once by `python -m benchmarks.calibrate` (float32, arrays in the cache, one kernel), on two
cores of an x86-64 server with JAX 0.10 and 0.12, and rounded; ratios matter here, not seconds. An
operation that is not listed costs `OPERATION` if it is arithmetic. Accelerators have their own
trade-offs: the model is about CPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from .counts import Types, local_jaxpr

__all__ = [
    "CACHE",
    "COMPLEX",
    "COPIED",
    "IN_MEMORY",
    "KERNEL",
    "MEMORY",
    "OPERATION",
    "PLACING",
    "PRIMITIVES",
    "SLICED",
    "UNVECTORISED",
    "Expression",
    "expression_of",
    "local_expression",
    "local_primitives",
    "timed_as",
]

#: Nanoseconds that a kernel takes to start.
KERNEL = 1200.0
#: Nanoseconds per element that is written and read again by a few kernels, inside the cache and
#: outside.
CACHE = 0.15
MEMORY = 3.0
#: Nanoseconds per element of an addition, multiplication, comparison or selection.
OPERATION = 0.02
#: How much longer an operation takes in a loop that reads slices of its result, along an axis that
#: the loop is not vectorised along.
SLICED = 5.0
#: Nanoseconds per element and term of comparing positions, where a matrix is written as a sum of
#: terms in their places.
PLACING = 2.0
#: Nanoseconds per element of dearer elementwise primitives.
PRIMITIVES: Mapping[str, float] = {
    "sin": 10.0,
    "cos": 10.0,
    "tan": 12.0,
    "asin": 4.0,
    "acos": 4.0,
    "atan": 3.0,
    "atan2": 4.0,
    "sinh": 3.0,
    "cosh": 3.0,
    "asinh": 4.0,
    "acosh": 4.0,
    "atanh": 4.0,
    "tanh": 0.8,
    "exp": 0.8,
    "exp2": 0.8,
    "log": 1.0,
    "log1p": 1.5,
    "expm1": 1.5,
    "logistic": 1.0,
    "pow": 4.0,
    "cbrt": 4.0,
    "erf": 1.5,
    "erfc": 3.0,
    "erf_inv": 4.0,
    "lgamma": 10.0,
    "digamma": 10.0,
    "igamma": 100.0,
    "igammac": 100.0,
    "polygamma": 50.0,
    "zeta": 50.0,
    "regularized_incomplete_beta": 100.0,
    "bessel_i0e": 5.0,
    "bessel_i1e": 5.0,
    "div": 0.4,
    "rem": 2.0,
    "sqrt": 0.4,
    "rsqrt": 0.4,
}
#: The same of complex numbers, of which no loop is vectorised: a kernel of 4,096 against one that
#: adds, roughly; what was not measured takes as long as its next of kin.
COMPLEX: Mapping[str, float] = {
    "abs": 4.0,
    "acos": 50.0,
    "acosh": 50.0,
    "asin": 50.0,
    "asinh": 50.0,
    "atan": 50.0,
    "atanh": 50.0,
    "cos": 12.0,
    "cosh": 20.0,
    "div": 1.0,
    "exp": 12.0,
    "exp2": 12.0,
    "expm1": 12.0,
    "log": 35.0,
    "log1p": 35.0,
    "logistic": 15.0,
    "pow": 50.0,
    "rsqrt": 35.0,
    "sin": 12.0,
    "sinh": 20.0,
    "sqrt": 12.0,
    "tan": 14.0,
    "tanh": 12.0,
}
#: Nanoseconds per element that primitives take longer in a loop that is not vectorised; what is not
#: listed takes as long (`pow`, `atan2`), or a fraction of a nanosecond more.
UNVECTORISED: Mapping[str, float] = {
    "exp": 1.8,
    "exp2": 1.8,
    "log": 2.7,
    "log1p": 6.0,
    "expm1": 3.0,
    "tanh": 1.6,
    "logistic": 3.0,
    "erf": 1.4,
    "sinh": 10.0,
    "cosh": 10.0,
    "erfc": 8.5,
    "erf_inv": 8.5,
    "lgamma": 40.0,
    "digamma": 40.0,
}
#: Both, under the names of `timed_as`.
_DEAR = {**PRIMITIVES, **{f"complex {name}": time for name, time in COMPLEX.items()}}
#: Dear functions that XLA's fusion copies into every reader all the same: its list of what is dear
#: to repeat has the others, with the sines of complex numbers.
COPIED = frozenset({"sin", "cos", "tan", "complex abs"})
#: Primitives whose results are in memory before they are read, and whose operands are.
IN_MEMORY = frozenset(
    """
    dot_general conv_general_dilated reduce_sum reduce_max reduce_min reduce_prod argmax argmin
    reduce_window_sum cumsum cumprod cumlogsumexp scan while cond sort scatter scatter-add gather
    dynamic_slice dynamic_update_slice cholesky triangular_solve lu eigh qr svd fft custom_jvp_call
    custom_vjp_call custom_linear_solve
    """.split()  # noqa: SIM905
)
#: Primitives that only rename or move values, for nothing inside a fused loop.
FREE = frozenset(
    """
    reshape broadcast_in_dim squeeze expand_dims transpose slice rev copy convert_element_type
    stop_gradient pad concatenate
    """.split()  # noqa: SIM905
)


class Expression:
    """What one instruction adds to a fused loop.

    Attributes:
        nanoseconds: per element of its result.
        kept: XLA writes its result to memory where it has several readers.
        inside: it is evaluated inside the loop of its reader (otherwise it is a kernel of its own).
    """

    __slots__ = ("inside", "kept", "nanoseconds")

    def __init__(self, nanoseconds: float, kept: bool, inside: bool):
        """Store the three."""
        self.nanoseconds, self.kept, self.inside = nanoseconds, kept, inside


def timed_as(name: str, dtypes: Iterable[Any]) -> str:
    """The name under which the time of a primitive is listed for numbers of some dtypes."""
    is_complex = name in COMPLEX and any(np.issubdtype(d, np.complexfloating) for d in dtypes)
    return f"complex {name}" if is_complex else name


def expression_of(names: Iterable[str]) -> Expression:
    """The expression that evaluates some primitives one after the other."""
    total, kept, inside = 0.0, False, True
    for name in names:
        total += _DEAR.get(name, 0.0 if name in FREE else OPERATION)
        inside = inside and name not in IN_MEMORY
        kept = kept or (name in _DEAR and name not in COPIED)
    return Expression(total, kept or not inside, inside)


@lru_cache(maxsize=4096)
def local_expression(fun: Any, types: Types) -> Expression:
    """The expression of a local partial."""
    return expression_of(local_primitives(fun, types))


def local_primitives(fun: Any, types: Types) -> list[str]:
    """The primitives that a local partial is computed by."""
    return _names(local_jaxpr(fun, types))


def _names(jaxpr: Any) -> list[str]:
    names: list[str] = []
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        bodies = [b for b in equation.params.values() if hasattr(b, "jaxpr")]
        if equation.primitive.name in ("jit", "pjit", "custom_jvp_call") and bodies:
            for body in bodies:
                names += _names(body)
        else:
            names.append(equation.primitive.name)
    return names
