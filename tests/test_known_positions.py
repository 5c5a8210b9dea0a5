"""Index arithmetic, masks, small constants and gathers in numpy against JAX's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Literal

from graphax_lapl.graph.gathers import MODES, gathered_positions
from graphax_lapl.graph.numpy_values import numpy_result

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
    "name",
    [
        *("add", "sub", "mul", "max", "min", "lt", "le", "gt", "ge", "eq", "ne"),
        *("bitwise_and", "bitwise_or", "bitwise_xor", "div", "rem"),
    ],
)
def test_entrywise_integers(name: str, dtype: type) -> None:
    info = np.iinfo(dtype)
    a = np.array([info.min, info.max, 1, 3, info.max, info.min + 1, info.min], dtype)
    b = np.array([info.max, info.max, 2, 3, 1, 2, -1 if info.min else 5], dtype)
    expected = getattr(lax, name)(a, b)
    found = numpy_result(name.removeprefix("bitwise_"), {}, [a, b], a.shape)
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


@pytest.mark.parametrize("name", ["bitwise_not", "sign", "square", "neg", "abs"])
def test_integers_one_by_one(name: str) -> None:
    a = np.array([-7, 0, 3, np.iinfo(np.int32).max], np.int32)
    found = numpy_result(name.removeprefix("bitwise_"), {}, [a], a.shape)
    assert found is not None
    np.testing.assert_array_equal(found, getattr(lax, name)(a))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["sqrt", "square", "is_finite", "floor", "ceil", "neg", "abs"])
def test_floats_one_by_one(name: str, dtype: type) -> None:
    ends = [np.inf, -np.inf, np.nan, 0.0, -0.0, -1.0]
    a = np.concatenate([RNG.uniform(0, 9, 999), ends]).astype(dtype)
    found = numpy_result(name, {}, [a], a.shape)
    assert found is not None
    np.testing.assert_array_equal(found, getattr(lax, name)(a))


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_clamped(dtype: type) -> None:
    a = np.array([-7, 0, 3, 9], dtype)
    low, high = np.asarray(1, dtype), np.array([2, 2, 4, 0], dtype)
    found = numpy_result("clamp", {}, [np.broadcast_to(low, (4,)), a, high], a.shape)
    assert found is not None
    np.testing.assert_array_equal(found, lax.clamp(np.broadcast_to(low, (4,)), a, high))


@pytest.mark.parametrize("axes", [(0,), (1, 2), (0, 1, 2), ()])
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "and", "or", "xor"])
def test_reduced_integers(name: str, axes: tuple[int, ...]) -> None:
    a = RNG.integers(-(2**31), 2**31, (2, 3, 4)).astype(np.int32)
    found = numpy_result(f"reduce_{name}", {"axes": axes}, [a], ())
    assert found is not None
    reduced = getattr(lax, f"reduce_{name}")(a, axes)
    assert found.dtype == reduced.dtype
    np.testing.assert_array_equal(found, reduced)


def test_reduced_truth_values() -> None:
    a = RNG.integers(0, 2, (3, 4)).astype(bool)
    for name in ("and", "or", "xor", "max", "min"):
        found = numpy_result(f"reduce_{name}", {"axes": (1,)}, [a], (3,))
        np.testing.assert_array_equal(found, getattr(lax, f"reduce_{name}")(a, (1,)))


AT = np.array([[1], [0]], np.int32)
FAR = np.array([[1], [7]], np.int32)
TWICE = np.array([[1], [1]], np.int32)
READ = lax.GatherDimensionNumbers((0,), (1,), (1,))
WRITTEN = lax.ScatterDimensionNumbers((0,), (1,), (1,))
FILLED = lax.GatherScatterMode.FILL_OR_DROP


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
    "pad": lambda x: lax.pad(x, np.asarray(9, x.dtype), [(1, 0, 2), (0, 3, 0)]),
    "gather": lambda x: lax.gather(x, AT, READ, (2, 1)),
    "gather the nearest": lambda x: lax.gather(x, FAR, READ, (2, 1), mode="clip"),
    "scatter": lambda x: lax.scatter(x, AT, x[:, 2:], WRITTEN),
    "scatter what is inside": lambda x: lax.scatter(x, FAR, x[:, 2:], WRITTEN, mode=FILLED),
    "add at places": lambda x: lax.scatter_add(x, AT, x[:, 2:], WRITTEN),
    "stack": lambda x: jnp.stack([x, x + x], 1),
    "tile": lambda x: lax.tile(x, (2, 3)),
    "mask": lambda x: x * lax.convert_element_type(lax.gt(x, lax.full_like(x, 2)), x.dtype),
}


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
@pytest.mark.parametrize("name", MOVED)
def test_rearranged(name: str, dtype: type) -> None:
    x = np.arange(8, dtype=dtype).reshape(2, 4)
    closed = jax.make_jaxpr(MOVED[name])(x)
    held = dict(zip(closed.jaxpr.constvars, map(np.asarray, closed.consts), strict=True))
    held[closed.jaxpr.invars[0]] = x
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
    assert numpy_result("rem", {}, [np.arange(2), np.arange(2)], (2,)) is None
    assert numpy_result("reduce_sum", {"axes": (0,)}, [np.ones(2)], ()) is None
    assert numpy_result("reduce_max", {"axes": (0,)}, [np.ones(0, int)], ()) is None
    half = np.ones(2, np.float16)
    assert numpy_result("add", {}, [half, half], (2,)) is None
    assert numpy_result("convert_element_type", {}, [np.ones(2)], (2,)) is None
    x = np.arange(8).reshape(2, 4)
    read = {"dimension_numbers": READ, "slice_sizes": (2, 1), "mode": FILLED}
    assert numpy_result("gather", read, [x, FAR], (2, 2)) is None
    written = {"dimension_numbers": WRITTEN, "mode": FILLED}
    for name in ("scatter", "scatter-add"):
        assert numpy_result(name, written, [x, TWICE, x[:, 2:]], (2, 4)) is None
    assert numpy_result("scatter-add", written, [x > 3, AT, x[:, 2:] > 3], (2, 4)) is None
    cut = {"padding_config": [(-1, 0, 0), (0, 0, 0)]}
    assert numpy_result("pad", cut, [x, np.asarray(0)], (1, 4)) is None
    three = [np.array([0, 1]), *[np.arange(2)] * 3]
    assert numpy_result("select_n", {}, three, (2,)) is None
