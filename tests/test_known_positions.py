"""Index arithmetic, masks, small constants and gathers in numpy against JAX's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Literal

from graphax_lapl.graph.numpy_values import numpy_result
from graphax_lapl.rules.gathers import MODES, gathered_positions

RNG = np.random.default_rng(7)

#: Shape of the array, shape of the indices, numbers, slice sizes.
GATHERS = {
    "rows": ((5, 3), (4, 1), ((1,), (0,), (0,), (), ()), (1, 3)),
    "entries": ((5, 3), (2, 4, 2), ((), (0, 1), (0, 1), (), ()), (1, 1)),
    "columns in front": ((5, 3), (4, 1), ((0,), (1,), (1,), (), ()), (5, 1)),
    "windows": ((6, 7), (3, 2), ((1, 2), (), (1, 0), (), ()), (2, 3)),
    "windows between": ((6, 7, 2), (3, 4, 1), ((0, 2), (1,), (1,), (), ()), (6, 1, 2)),
    "batched": ((4, 5, 3), (4, 2, 1), ((2,), (1,), (1,), (0,), (0,)), (1, 1, 3)),
    "batched along the second": ((4, 5), (2, 4, 1), ((), (1,), (1,), (0,), (1,)), (1, 1)),
    "one start": ((6,), (1,), ((0,), (), (0,), (), ()), (4,)),
    "one entry": ((6,), (1,), ((), (0,), (0,), (), ()), (1,)),
    "no indices": ((6,), (0, 1), ((), (0,), (0,), (), ()), (1,)),
}


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("name", GATHERS)
def test_positions_are_those_that_a_gather_reads(name: str, mode: lax.GatherScatterMode) -> None:
    shape, index_shape, numbers, sizes = GATHERS[name]
    dimension_numbers = lax.GatherDimensionNumbers(*numbers)
    operand = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    for _ in range(5):
        indices = RNG.integers(-3, 9, index_shape).astype(np.int32)
        expected = lax.gather(operand, indices, dimension_numbers, sizes, mode=mode, fill_value=-1)
        found = gathered_positions(shape, indices, dimension_numbers, sizes, mode)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint32, np.int64])
@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "max", "min", "lt", "le", "gt", "ge", "eq", "ne"]
)
def test_entrywise_integers(name: str, dtype: type) -> None:
    info = np.iinfo(dtype)
    a = np.array([info.min, info.max, 1, 3, info.max], dtype)
    b = np.array([info.max, info.max, 2, 3, 1], dtype)
    expected = getattr(lax, name)(a, b)
    found = numpy_result(name, {}, [a, b], a.shape)
    assert found is not None
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "div", "max", "min", "lt", "le", "gt", "ge", "eq", "ne"]
)
def test_entrywise_floats(name: str) -> None:
    a = np.concatenate([RNG.normal(size=50), [np.inf, 0.0, np.nan, 1.0]]).astype(np.float32)
    b = np.concatenate([RNG.normal(size=50), [np.inf, 0.0, 1.0, 3.0]]).astype(np.float32)
    expected = getattr(lax, name)(a, b)
    found = numpy_result(name, {}, [a, b], a.shape)
    assert found is not None
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


MOVED = {
    "select": lambda x: lax.select_n(x > 2, x, 2 * x),
    "broadcast": lambda x: lax.broadcast_in_dim(x, (2, 3, 4), (0, 2)),
    "reshape": lambda x: lax.reshape(x, (4, 2)),
    "squeeze": lambda x: lax.squeeze(lax.reshape(x, (2, 1, 4)), (1,)),
    "concatenate": lambda x: lax.concatenate([x, x + 1], 1),
    "transpose": lambda x: lax.transpose(lax.reshape(x, (2, 2, 2)), (2, 0, 1)),
    "rev": lambda x: lax.rev(x, (1,)),
    "slice": lambda x: lax.slice(x, (0, 1), (2, 4), (1, 2)),
    "slice without strides": lambda x: lax.slice(x, (1, 1), (2, 4)),
    "iota": lambda x: x + lax.broadcasted_iota(x.dtype, (2, 4), 1),
    "mask": lambda x: x * lax.convert_element_type(lax.gt(x, lax.full_like(x, 2)), x.dtype),
}


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
@pytest.mark.parametrize("name", MOVED)
def test_rearranged(name: str, dtype: type) -> None:
    x = np.arange(8, dtype=dtype).reshape(2, 4)
    closed = jax.make_jaxpr(MOVED[name])(x)
    held = {closed.jaxpr.invars[0]: x}
    for equation in closed.jaxpr.eqns:
        values = [np.asarray(v.val) if isinstance(v, Literal) else held[v] for v in equation.invars]
        (out,) = equation.outvars
        found = numpy_result(equation.primitive.name, equation.params, values, out.aval.shape)
        assert found is not None
        held[out] = np.asarray(found, out.aval.dtype)
    np.testing.assert_array_equal(held[closed.jaxpr.outvars[0]], MOVED[name](jnp.asarray(x)))


def test_others_are_left_to_jax() -> None:
    truth = np.array([True, False])
    assert numpy_result("add", {}, [truth, truth], (2,)) is None
    assert numpy_result("sin", {}, [np.arange(2)], (2,)) is None
    assert numpy_result("div", {}, [np.arange(2), np.arange(2)], (2,)) is None
    half = np.ones(2, np.float16)
    assert numpy_result("add", {}, [half, half], (2,)) is None
    assert numpy_result("convert_element_type", {}, [np.ones(2)], (2,)) is None
    three = [np.array([0, 1]), *[np.arange(2)] * 3]
    assert numpy_result("select_n", {}, three, (2,)) is None
