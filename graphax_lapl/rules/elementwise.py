"""Elementwise functions: the partial with respect to each operand is a diagonal.

A line of the table gives the partials, one per operand. A partial is a number (kept out of the
arithmetic), a function of the operands and the result named by its parameters (`x`, `y`, `z`,
`out`), a number and the function that it multiplies, the name of one of those (used as it is), or
None for zero.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax import Array, lax

from ..edges.maps import from_values
from ..edges.values import immutable
from ..graph.known_powers import lowered, power
from ..graph.listing import Atom, Equation, Listing
from .registry import RULES, defrule
from .site import Known, Local, Piece, Reference, Site, aligned, axes_of, shape_of
from .zeros import known_support

Partial = Callable[..., Array] | int | str | tuple[int, Callable[..., Array]] | None

_OPERANDS = ("x", "y", "z")

#: A static mask that chooses more than a quarter of a matrix product is a factor, not positions.
MANY_CHOSEN = 4
#: Elementwise functions whose slopes are finite numbers wherever their arguments are.
FINITE_SLOPES = frozenset(
    """
    add add_any sub neg mul square sin cos tanh logistic erf erfc atan convert_element_type
    """.split()  # noqa: SIM905
)
#: Others, whose slopes may be infinite where their arguments are finite.
INFINITE_SLOPES = frozenset(
    """
    div sqrt rsqrt cbrt log log1p exp exp2 expm1 pow integer_pow asin acos atan2 asinh acosh atanh
    sinh cosh max min abs sign
    """.split()  # noqa: SIM905
)
#: What lays entries out in another way.
LAYING_OUT = frozenset(
    ["reshape", "transpose", "squeeze", "expand_dims", "broadcast_in_dim", "copy"]
)


def defelementwise(name: str, *partials: Partial, slope: str = "elementwise") -> None:
    """Register an elementwise primitive by its partials; `slope` is that of the partials."""
    split = [p if isinstance(p, tuple) else (1, p) for p in partials]
    parameters = [tuple(inspect.signature(p).parameters) if callable(p) else () for _, p in split]

    def rule(site: Site, i: int, k: int) -> list[Piece]:
        del k
        coefficient, partial = split[i]
        if partial is None:
            return []
        if isinstance(partial, int):
            return site.diagonal(i, None, partial)
        if isinstance(partial, str):
            number = site.uniform(_OPERANDS.index(partial)) if partial != "out" else None
            if number is not None:
                return site.diagonal(i, None, number)
            return site.diagonal(i, _operand(site, partial))
        arguments = [_operand(site, parameter) for parameter in parameters[i]]
        return site.diagonal(i, _local(site, f"d{name}", partial, arguments, slope), coefficient)

    RULES[name] = rule


def _operand(site: Site, parameter: str) -> Reference:
    return site.out() if parameter == "out" else site.value(_OPERANDS.index(parameter))


def _local(
    site: Site,
    name: str,
    fun: Callable[..., Array],
    arguments: list[Reference],
    slope: str = "elementwise",
    mask: bool = False,
) -> Reference:
    """The partial, computed on arrays as small as its operands allow."""
    shapes = {shape_of(argument, site.listing) for argument in arguments}
    shape = shapes.pop() if len(shapes) == 1 else np.broadcast_shapes(*shapes)
    return Local(name, fun, tuple(arguments), shape, slope, mask)


def _halves_at_ties(
    x: Array, y: Array, sign: Callable[[Array, Array], Array], chosen: Callable[..., Array]
) -> Array:
    """One where x is chosen, a half at ties, as JAX has it."""
    x, y = _like(x, y)
    one, half, zero = (lax.full_like(x, number) for number in (1, 0.5, 0))
    # Complex numbers are compared by their real parts first, which only `max` and `min` do.
    ordered = not np.issubdtype(x.dtype, np.complexfloating)
    more = sign(x, y) if ordered else lax.ne(chosen(x, y), y)
    return lax.select(more, one, lax.select(lax.eq(x, y), half, zero))


def _like(*values: Array) -> tuple[Array, ...]:
    """Repeat operands to a common shape, so that `lax` accepts them together."""
    shape = np.broadcast_shapes(*(value.shape for value in values))
    rank = len(shape)
    return tuple(
        v if v.shape == shape else lax.broadcast_in_dim(v, shape, range(rank - v.ndim, rank))
        for v in values
    )


def _sin(x: Array) -> Array:
    return lax.sin(x)


def _cos(x: Array) -> Array:
    return lax.cos(x)


def _sinh(x: Array) -> Array:
    return lax.sinh(x)


def _cosh(x: Array) -> Array:
    return lax.cosh(x)


def _number(value: float, like: Array) -> Any:
    """A number of an array's type; an operator would trace a jitted function for each shape."""
    if getattr(like, "weak_type", False):
        return lax.full_like(like, value, shape=())
    return like.dtype.type(value)


def reciprocal(x: Array) -> Array:
    """The partial of a quotient with respect to the numerator, of its denominator."""
    return lax.div(_number(1, x), x)


def squared_reciprocal(x: Array) -> Array:
    """1 / x**2."""
    return lax.square(reciprocal(x))  # of the quotient, which is there already


def _acosh_slope(x: Array) -> Array:
    """Two roots where they are complex: that of the product has the other sign left of zero."""
    if np.issubdtype(x.dtype, np.complexfloating):
        return lax.rsqrt(x - 1) * lax.rsqrt(x + 1)
    return lax.rsqrt((x - 1) * (x + 1))


def _one_minus(x: Array) -> Array:
    return lax.sub(_number(1, x), x)


def _one_plus(x: Array) -> Array:
    return lax.add(_number(1, x), x)


def _tanh_slope(out: Array) -> Array:
    return _one_minus(out * out)


def _logistic_slope(out: Array) -> Array:
    return out * _one_minus(out)


def _one_minus_twice(out: Array) -> Array:
    return _one_minus(lax.mul(_number(2, out), out))


def _bell(number: float, x: Array) -> Array:
    return lax.mul(_number(number, x), lax.exp(lax.neg(x * x)))


#: Partials that are primitives: where the function evaluates one on the same operand, so be it.
PRIMITIVE_PARTIALS: dict[Callable[..., Array], str] = {
    _sin: "sin",
    _cos: "cos",
    _sinh: "sinh",
    _cosh: "cosh",
}
#: Derivatives of these partials: a number and the partial that it multiplies, None for the argument
#: itself. What stands here is written in fewer operations than JAX's derivative of the partial.
PARTIALS_OF_PARTIALS: dict[Callable[..., Array], tuple[int, Callable[..., Array] | None]] = {
    _sin: (1, _cos),
    _cos: (-1, _sin),
    _sinh: (1, _cosh),
    _cosh: (1, _sinh),
    reciprocal: (-1, squared_reciprocal),
    _tanh_slope: (-2, None),
    _logistic_slope: (1, _one_minus_twice),
}

_TWO_OVER_ROOT_PI = 1.1283791670955126
_LN2 = 0.6931471805599453

defelementwise("neg", -1)
for _name in ("floor", "ceil", "round", "is_finite"):
    defelementwise(_name, None)
defelementwise("nextafter", 1, None)  # a neighbour of its first argument

defelementwise("add", 1, 1)
defelementwise("add_any", 1, 1)
defelementwise("add_jaxvals", 1, 1)
defelementwise("sub", 1, -1)
defelementwise("mul", "y", "x")
defelementwise("exp", "out")
defelementwise("sin", _cos)
defelementwise("cos", (-1, _sin))
defelementwise("tan", lambda out: _one_plus(out * out))
defelementwise("tanh", _tanh_slope)
defelementwise("sinh", _cosh)
defelementwise("cosh", _sinh)
defelementwise("asin", lambda x: lax.rsqrt(_one_minus(x * x)))
defelementwise("acos", lambda x: lax.neg(lax.rsqrt(_one_minus(x * x))))
defelementwise("atan", lambda x: reciprocal(_one_plus(x * x)))
defelementwise("asinh", lambda x: lax.rsqrt(x * x + 1))
defelementwise("acosh", _acosh_slope)
defelementwise("atanh", lambda x: reciprocal(_one_minus(x) * _one_plus(x)))
defelementwise("log", reciprocal)
defelementwise("log1p", lambda x: reciprocal(_one_plus(x)))
defelementwise("expm1", lambda out: lax.add(out, _number(1, out)))
defelementwise("exp2", lambda out: lax.mul(out, _number(_LN2, out)))
defelementwise("sqrt", lambda out: lax.div(_number(0.5, out), out))
defelementwise("rsqrt", lambda x, out: -0.5 * (out / x))
defelementwise("logistic", _logistic_slope)
defelementwise("erf", lambda x: _bell(_TWO_OVER_ROOT_PI, x))
defelementwise("erfc", lambda x: _bell(-_TWO_OVER_ROOT_PI, x))
defelementwise(
    "atan2",
    lambda x, y: y / (x * x + y * y),
    lambda x, y: -x / (x * x + y * y),
)
defelementwise(
    "max",
    lambda x, y: _halves_at_ties(x, y, lax.gt, lax.max),
    lambda x, y: _halves_at_ties(y, x, lax.gt, lax.max),
    slope="constant",
)
defelementwise(
    "min",
    lambda x, y: _halves_at_ties(x, y, lax.lt, lax.min),
    lambda x, y: _halves_at_ties(y, x, lax.lt, lax.min),
    slope="constant",
)
defelementwise(
    "rem",
    1,
    lambda x, y: -(lax.sign(x / y) * lax.floor(lax.abs(x / y))),
    slope="constant",
)


@defrule("div")
def _div(site: Site, i: int, k: int) -> list[Piece]:
    """X / y: 1 / y and -(x / y) / y."""
    del k
    if i == 0:
        number = site.uniform(1)
        if number is not None and number != 0:
            return site.diagonal(0, None, 1 / number)
        return site.diagonal(0, _local(site, "ddiv", reciprocal, [site.value(1)]))
    zeros = known_support(site.value(0), site.listing)
    if zeros is not None and not zeros.all():
        # The numerator is a factor of its own, so that its zeros are seen.
        factors = []
        for part in (site.value(0), _local(site, "ddiv", squared_reciprocal, [site.value(1)])):
            shape = shape_of(part, site.listing)
            factors.append(site.factor(part, aligned(shape), shape))
        axes = axes_of(len(site.out_shape))
        return site.piece(site.out_shape, axes, aligned(site.shape(1)), factors, -1)
    return site.diagonal(1, _local(site, "ddiv", minus_quotient, [site.out(), site.value(1)]))


def minus_quotient(out: Array, y: Array) -> Array:
    """The partial of a quotient with respect to the denominator."""
    # By the reciprocal, which is the other partial: divisions are kept in memory by XLA.
    return lax.neg(out) * reciprocal(y)


@defrule("integer_pow", "square")
def _integer_pow(site: Site, i: int, k: int) -> list[Piece]:
    """x**n: n x**(n - 1)."""
    del k
    exponent = 2 if site.name == "square" else site.params["y"]
    if exponent == 0:
        return []
    if exponent == 1:
        return site.diagonal(i)
    if exponent == 2:
        return site.diagonal(i, site.value(i), 2)
    return site.diagonal(
        i, _local(site, f"x**{exponent - 1}", Power(exponent - 1), [site.value(i)]), exponent
    )


@immutable
class Power:
    """An integer power as a partial."""

    exponent: int

    def __call__(self, x: Array) -> Array:
        """x**n."""
        return lax.integer_pow(x, self.exponent)


def _known_exponents(site: Site) -> np.ndarray | None:
    """Real exponents of a power: one for each entry, or a single one; None where not known."""
    found = site.listing.exponents.get(site.equation.outputs[0])
    if found is not None or site.inputs[0].is_complex:
        return found
    number = site.uniform(1)
    return None if number is None or not np.isfinite(number) else np.asarray(number, np.float64)


@defrule("pow")
def _pow(site: Site, i: int, k: int) -> list[Piece]:
    """x**y: y x**(y - 1), a known factor times a power where y is known."""
    exponents = _known_exponents(site)
    if i != 0 or exponents is None:
        return _by_jvp(site, i, k)
    if not exponents.any():
        return []
    lower = lowered(exponents)
    power_ = None
    if lower.any():
        fun = RealPower(tuple(lower.ravel().tolist()), lower.shape)
        name = f"x**{lower}" if not lower.ndim else "dpow"
        shape = np.broadcast_shapes(site.shape(0), lower.shape)
        power_ = Local(name, fun, (site.value(0),), shape, "elementwise")
    if not exponents.ndim:
        return site.diagonal(0, power_, float(exponents))
    factors = []
    for reference in (Known(exponents), power_):
        if reference is not None:
            own = shape_of(reference, site.listing)
            factors.append(site.factor(reference, aligned(own), own))
    axes = axes_of(len(site.out_shape))
    return site.piece(site.out_shape, axes, aligned(site.shape(0)), factors)


@immutable
class RealPower:
    """A power with known real exponents as a partial."""

    exponents: tuple[float, ...]
    shape: tuple[int, ...]

    def __call__(self, x: Array) -> Array:
        """x**n."""
        return power(x, np.reshape(self.exponents, self.shape))


@defrule("abs")
def _abs(site: Site, i: int, k: int) -> list[Piece]:
    """|x|: 1 for x >= 0, else -1, as JAX has it; for complex z, d|z| = Re(conj(z) / |z| dz)."""
    del k
    if site.inputs[i].is_complex:
        direction = Local("conj(z)/|z|", _direction, (site.value(i), site.out()), site.out_shape)
        return site.diagonal(i, direction)
    return site.diagonal(i, _local(site, "sign", _side, [site.value(i)], "constant"))


def _side(x: Array) -> Array:
    return lax.select(lax.ge(x, lax.full_like(x, 0)), lax.full_like(x, 1), lax.full_like(x, -1))


def _direction(z: Array, magnitude: Array) -> Array:
    safe = lax.select(magnitude == 0, lax.full_like(magnitude, 1), magnitude)
    return lax.conj(z) / safe.astype(z.dtype)


@defrule("clamp")
def _clamp(site: Site, i: int, k: int) -> list[Piece]:
    """clamp(low, x, high): one strictly inside for x, one beyond for the bounds."""
    del k
    arguments = [site.value(0), site.value(1), site.value(2)]
    return site.diagonal(
        i, _local(site, f"dclamp{i}", _CLAMP_MASKS[i], arguments, "constant", True)
    )


def _clamp_low(low: Array, x: Array, high: Array) -> Array:
    low, x, high = _like(low, x, high)
    return lax.bitwise_and(lax.gt(low, x), lax.lt(low, high)).astype(x.dtype)


def _clamp_inside(low: Array, x: Array, high: Array) -> Array:
    low, x, high = _like(low, x, high)
    return lax.bitwise_and(lax.gt(x, low), lax.lt(x, high)).astype(x.dtype)


def _clamp_high(low: Array, x: Array, high: Array) -> Array:
    low, x, high = _like(low, x, high)
    return lax.lt(high, x).astype(x.dtype)


_CLAMP_MASKS = (_clamp_low, _clamp_inside, _clamp_high)


def _by_jvp(site: Site, i: int, k: int) -> list[Piece]:
    """A partial without a closed form here: JAX's own derivative, pushed along ones."""
    del k
    equation = site.equation

    def partial(*values: Array) -> Array:
        def along(x: Any) -> Any:
            return equation.evaluate(*values[:i], x, *values[i + 1 :])[0]

        shape = np.broadcast_shapes(*(np.shape(value) for value in values))
        values = (
            *values[:i],
            lax.broadcast_in_dim(values[i], shape, range(len(shape) - values[i].ndim, len(shape))),
            *values[i + 1 :],
        )
        return jax.jvp(along, (values[i],), (lax.full_like(values[i], 1),))[1]

    arguments = [site.value(j) for j in range(len(site.inputs))]
    return site.diagonal(i, _local(site, f"d{site.name}", partial, arguments))


#: Elementwise primitives whose derivative JAX defines and a formula here would only repeat.
for _name in (
    "cbrt",
    "erf_inv",
    "lgamma",
    "digamma",
    "polygamma",
    "zeta",
    "igamma",
    "igammac",
    "igamma_grad_a",
    "random_gamma_grad",
    "regularized_incomplete_beta",
    "bessel_i0e",
    "bessel_i1e",
    "log2",
    "one_minus_square",
    "polynomial",
):
    RULES[_name] = _by_jvp


@defrule("select_n")
def _select_n(site: Site, i: int, k: int) -> list[Piece]:
    """One where case i was chosen; a mask known while planning becomes static positions.

    Not where it chooses much of a matrix product, as causal attention does of its scores: an array
    that is as wide as the product goes through all that follows faster than a table of positions.
    """
    del k
    mask = site.known(0)
    shape = site.out_shape
    if mask is not None and mask.ndim == 0:
        return site.diagonal(i) if int(mask) == i - 1 else []
    if mask is not None and mask.shape == shape and mask.size:
        places = np.nonzero(mask.astype(np.int64) == i - 1)
        count = len(places[0])
        if count == mask.size:
            return site.diagonal(i)
        if not count:
            return []
        axes = [from_values(0, place) for place in places]
        few = MANY_CHOSEN * count <= mask.size or all(axis.is_affine for axis in axes)
        if few or not _is_product(site.listing, site.equation.inputs[i]):
            return site.piece([count], axes, axes)
    selected = _selects(i - 1, site.outputs[0].dtype)
    mask_ = _local(site, f"case {i - 1}", selected, [site.value(0)], "constant", mask=True)
    return site.diagonal(i, mask_)


def has_finite_slopes(equation: Equation) -> bool:
    """Whether an elementwise equation's slopes are finite numbers where its arguments are."""
    if equation.name == "integer_pow":
        return bool(equation.params["y"] > 0)
    if equation.name == "div":
        return not equation.active[1]
    return equation.name in FINITE_SLOPES


def _is_product(listing: Listing, atom: Atom) -> bool:
    """Whether an array is made of products of matrices, entry by entry and by finite slopes.

    Of these no entry has an infinite slope where its neighbours do not, so zeros may meet it.
    """
    makers = {output: equation for equation in listing.equations for output in equation.outputs}
    todo, seen = [atom], set[int]()
    while todo:
        current = todo.pop()
        if not isinstance(current, int) or (vertex := listing.vertex(current)) in seen:
            continue  # a constant does not move
        maker = makers.get(vertex)
        if maker is None:
            return False
        seen.add(vertex)
        if maker.name == "dot_general":
            continue
        if maker.name not in LAYING_OUT and not has_finite_slopes(maker):
            return False
        todo += [a for a, active in zip(maker.inputs, maker.active, strict=True) if active]
    return True


@lru_cache(maxsize=256)
def _selects(case: int, dtype: Any) -> Callable[[Array], Array]:
    def chosen(which: Array) -> Array:
        if which.dtype == bool:
            return lax.convert_element_type(which if case else lax.bitwise_not(which), dtype)
        number = lax.convert_element_type(which, np.int32)
        return lax.convert_element_type(lax.eq(number, lax.full_like(number, case)), dtype)

    return chosen


@defrule("convert_element_type")
def _convert(site: Site, i: int, k: int) -> list[Piece]:
    """The identity between floating-point types; from complex to real, the real part."""
    del k
    return site.diagonal(i) if site.inputs[i].differentiable else []
