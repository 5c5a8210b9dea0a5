"""What is kept in memory instead of being evaluated again, and that it changes no number."""

import collections
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.problems import PROBLEMS
from benchmarks.problems.problem import over_batch
from graphax_lapl import jacve, laplacian_ve, make_plan
from graphax_lapl.edges.operations import Assemble, Einsum
from graphax_lapl.emit.holding import BARRIERS_STAND, held, tangents_held
from graphax_lapl.program.fusion import CACHED, Fusion, Step
from graphax_lapl.program.holding import READING, FusedProgram, worth_holding
from graphax_lapl.program.sines import SINES_SIZE, sines
from graphax_lapl.program.timings import CACHE

NUMBERS = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
BATCH = 1024  # more than the arm's sines and cosines need to be held


def planned(name, order="auto"):
    problem = PROBLEMS[name]
    arguments = problem.sample(jax.random.key(0), (), jnp.float32)
    return make_plan(problem.fun, *arguments, order=order, argnums=problem.argnums)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["robot_arm", "roe_flux", "kerr_sen", "black_scholes_greeks"])
@pytest.mark.parametrize("batch", [1, 3, BATCH, SINES_SIZE])
def test_jacobians_of_a_batch(name, batch):
    problem = PROBLEMS[name]
    arguments = problem.sample(jax.random.key(1), (batch,), jnp.float64)
    found = jax.jit(jax.vmap(jacve(problem.fun, argnums=problem.argnums)))(*arguments)
    expected = jax.jit(jax.vmap(jax.jacfwd(problem.fun, problem.argnums)))(*arguments)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9), found, expected
    )


def test_the_sines_of_the_arm_are_evaluated_once():
    program = planned("robot_arm").program
    names = collections.Counter(
        str(i) for i in program.instructions if str(i) in ("sin", "cos", "partial dsin")
    )
    assert names == {"sin": 6, "cos": 6}  # the partials are the function's own values
    wanted = {s for i in program.instructions if str(i) in ("sin", "cos") for s in i.outputs}
    assert wanted == sines(program).keys()
    ranges = worth_holding(program)
    assert wanted <= set(ranges)
    # From there on they are in memory already.
    assert all(first <= BATCH and last == SINES_SIZE for first, last in map(ranges.get, wanted))


def test_the_compiled_arm_has_few_sines():
    problem = PROBLEMS["robot_arm"]
    arguments = problem.sample(jax.random.key(2), (BATCH,))
    fun = over_batch(jacve(problem.fun, argnums=problem.argnums))
    text = jax.jit(fun).lower(*arguments).compile().as_text()
    assert len(re.findall(r"\b(?:sine|cosine)\(", text)) == 12


def test_single_inputs_of_scalars_hold_nothing():
    text = str(jax.make_jaxpr(jax.jit(jacve(lambda x: jnp.sin(x) * jnp.cos(x))))(1.0))
    assert "scatter" not in text
    assert "optimization_barrier" not in text


def test_holding_reduces_evaluations():
    fused = FusedProgram(planned("robot_arm").program)
    kept = fused.held_at(BATCH)
    assert kept
    before, after = fused.evaluations(()), fused.evaluations(kept)
    assert all(a <= b for a, b in zip(after, before, strict=True))
    costs = [sum(fused.expressions(held)) for held in ((), kept)]
    assert costs[1] < 0.2 * costs[0]
    assert fused.held_at(1) == set()


def many_readers(arrays, terms):
    """A sum of `terms` terms made of some arrays, which six results read."""
    total = range(arrays, arrays + terms)
    steps = [
        Step((k % arrays, slot - 1 if k else (k + 1) % arrays), (slot,), 0.02, 1, False, True)
        for k, slot in enumerate(total)
    ]
    results = range(total.stop, total.stop + 6)
    steps += [Step((total[-1],), (slot,), 0.02, 1, False, True) for slot in results]
    return Fusion(steps, [1] * results.stop, results, [True] * results.stop), total[-1]


def test_what_reads_many_arrays_is_held_for_less_work():
    samples = 4096
    few, _ = many_readers(2, 10)
    many, end_of_many = many_readers(8, 10)
    assert few.held_at(samples) == many.held_at(samples) == set()
    few.reading = many.reading = READING
    assert few.held_at(samples) == set()
    assert many.held_at(samples) == {end_of_many}
    # As much work without what is read, and outside of the cache.
    few, end_of_few = many_readers(2, 20)
    assert few.held_at(samples) == {end_of_few}
    assert many.held_at(CACHED) == set()


def bachelier(forward, strike, volatility, time, rate):
    deviation = volatility * jnp.sqrt(time)
    distance = (forward - strike) / deviation
    below = 0.5 * (1 + jax.lax.erf(distance * 0.5**0.5))
    density = jnp.exp(-0.5 * distance * distance) * 0.3989422804014327
    return jnp.exp(-rate * time) * ((forward - strike) * below + deviation * density)


def test_of_two_choices_the_one_whose_kernels_take_less_is_held():
    greeks = jax.grad(bachelier, argnums=(0, 1, 2, 3, 4))
    program = make_plan(greeks, 90.0, 95.0, 12.0, 1.5, 0.05, argnums=(0, 1, 2, 3, 4)).program
    fused, samples = FusedProgram(program), 4096
    held, whole = fused.held_at(samples), fused._chosen(samples, CACHE, READING)
    assert held == fused._chosen(samples, CACHE, READING / 2) != whole
    assert fused._together(held, samples) < fused._together(whole, samples)


SIZES = (8, 64)


@pytest.mark.parametrize(("hold", "count"), [(held, 4), (held, 16), (held, 64), (None, 4)])
def test_held_is_an_identity_under_every_transformation(hold, count):
    x = jnp.linspace(-1.0, 1.0, count).at[0].set(-0.0)

    def identity(x):
        return tangents_held(x) if hold is None else hold(x, SIZES)

    def fun(x):
        return jnp.sum(jnp.sin(identity(jnp.cos(x))))

    def plain(x):
        return jnp.sum(jnp.sin(jnp.cos(x)))

    y = identity(x)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(np.signbit(y), np.signbit(x))
    rows = jnp.stack([x, 2 * x])
    cases = {
        "value": (lambda f: f, x),
        "gradient": (jax.grad, x),
        "hessian": (jax.hessian, x),
        "tangent": (lambda f: lambda x: jax.jvp(f, (x,), (x,))[1], x),
        "batch": (jax.vmap, rows),
        "batch of batches": (lambda f: jax.vmap(jax.vmap(f)), jnp.stack([rows, rows])),
        "gradient of a batch": (lambda f: jax.grad(lambda x: jnp.sum(jax.vmap(f)(x))), rows),
        "batch of gradients": (lambda f: jax.vmap(jax.grad(f)), rows),
    }
    for name, (transform, point) in cases.items():
        expected = jax.jit(transform(plain))(point)
        np.testing.assert_allclose(
            jax.jit(transform(fun))(point), expected, atol=1e-14, err_msg=name
        )


def loss_of(fun):
    """The mean square of Laplacians over a batch."""

    def loss(params, xs):
        return jnp.mean(jax.vmap(laplacian_ve(fun, argnums=1), (None, 0))(params, xs) ** 2)

    return loss


def barriers(fun, *arguments):
    """How many arrays are written to memory on purpose."""
    return len(re.findall("optimization_barrier", str(jax.make_jaxpr(fun)(*arguments))))


def test_cotangents_that_are_read_in_two_orders_are_held():
    """Those of products of two matrices of a sample; with shared weights rows and batch are one."""

    def scores(weights, x):
        return jnp.sum(jnp.tanh((x @ weights) @ (x @ weights).T))

    def network(weights, x):
        return jnp.sum(jnp.tanh(jnp.tanh(x @ weights) @ weights))

    weights, xs = jnp.ones((6, 6)), jnp.ones((8, 3, 6))
    loss = loss_of(scores)
    assert barriers(loss, weights, xs) == 0
    assert barriers(jax.grad(loss), weights, xs) >= 1
    assert barriers(jax.jit(jax.grad(loss)), weights, xs) >= 1
    assert barriers(jax.grad(loss_of(network)), weights, xs) == 0


def test_no_kernel_is_compiled_for_what_is_held():
    """On any version: the sine is evaluated once, and nothing but its readers is added to it."""

    def readers(x):
        y = held(jnp.sin(x) * x + 1)
        return 2 * y, jnp.exp(y[:, ::-1]), y**3

    xs = jnp.linspace(0.1, 1, 3 * 40 * 50).reshape(3, 40, 50)
    text = jax.jit(jax.vmap(readers)).lower(xs).compile().as_text()
    assert len(re.findall(r"\bsine\(", text)) == 1
    assert not re.search(r"\b(scatter|copy)\(", text)


def test_the_two_sides_meet_at_a_narrow_vertex():
    plan = planned("narrow_middle")
    assert plan.order.method.startswith("auto (parting at")
    one_sided = min(planned("narrow_middle", order).counts.muls for order in ("forward", "reverse"))
    assert plan.counts.muls < 0.4 * one_sided


@pytest.mark.slow
def test_the_diagonal_of_a_batch_is_recognised():
    problem = PROBLEMS["roe_flux"]
    batch = problem.sample(jax.random.key(3), (7,), jnp.float64)
    blocks = jacve(jax.vmap(problem.fun), argnums=problem.argnums, sparse_representation=True)(
        *batch
    )
    leaves = jax.tree.leaves(blocks, is_leaf=lambda leaf: hasattr(leaf, "todense"))
    assert {leaf.nse for leaf in leaves} == {7}
    dense = jax.jit(jax.jacfwd(jax.vmap(problem.fun), problem.argnums))(*batch)
    for leaf, expected in zip(leaves, jax.tree.leaves(dense), strict=True):
        np.testing.assert_allclose(leaf.todense(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [bool, np.int32, np.complex64])
def test_what_is_held_keeps_its_values_and_dtype(dtype):
    value = jnp.asarray(np.arange(600).reshape(20, 30) % 3, dtype)
    found = jax.jit(held)(value)
    assert found.dtype == value.dtype
    np.testing.assert_array_equal(found, value)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_an_array_is_compared_with_its_own_maximum(order):
    """Not with that of an array that is rounded in another way, in which there may be no equal."""

    def fun(x):
        rows = jnp.stack([x, x, x])
        products = rows * jnp.sin(rows)
        return products, jnp.max(products + 0.5 * rows, axis=0)

    x = np.random.default_rng(1).standard_normal(4)
    samples = np.stack([x, 0.8 * x])
    found = jax.jit(jax.vmap(jacve(fun, order=order)))(samples)
    with jax.disable_jit():  # each operation on its own, with one rounding
        expected = jax.jit(jax.vmap(jax.jacrev(fun)))(samples)
    for ours, jaxs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, jaxs, rtol=1e-12, atol=1e-12)


def test_columns_pass_products_without_what_they_are_scaled_with_in_memory():
    keys = jax.random.split(jax.random.key(7), 4)
    shapes = ((10, 16), (16, 16), (16,), (512, 10))
    first, second, last, xs = map(jax.random.normal, keys, shapes)

    def fun(x):
        return jnp.tanh(jnp.tanh(x @ first) @ second) @ last

    assert barriers(jax.vmap(laplacian_ve(fun)), xs) == 0


def test_columns_of_a_narrow_place_meet_its_metric_as_they_are_stored():
    keys = jax.random.split(jax.random.key(8), 4)
    shapes = ((40, 6), (6, 5), (5,), (3, 40))
    first, second, last, xs = map(jax.random.normal, keys, shapes)

    def fun(x):
        return jnp.tanh(jnp.tanh(x @ first) @ second) @ last

    def trace(x):
        return jnp.trace(jax.jit(jax.hessian(fun))(x))

    text = str(jax.make_jaxpr(jax.vmap(laplacian_ve(fun)))(xs))
    assert re.search(r"\[3,5,6\] = dot_general", text)  # the metric is 6 x 6
    assert not re.search(r"\[3,\d+,\d+\] = transpose", text)
    np.testing.assert_allclose(
        jax.vmap(laplacian_ve(fun))(xs), jax.jit(jax.vmap(trace))(xs), rtol=1e-9, atol=1e-9
    )


@pytest.mark.usefixtures("whole_convolutions")
def test_columns_of_convolutions_are_stored_as_they_are_pushed():
    keys = jax.random.split(jax.random.key(9), 3)
    shapes = ((3, 3, 1, 8), (3, 3, 8, 8), (2, 8, 8))
    first, second, xs = map(jax.random.normal, keys, shapes)

    def fun(kernels, x):
        h = x[None, :, :, None]
        for kernel in kernels:
            h = jnp.tanh(jax.lax.conv_general_dilated(h, 0.3 * kernel, (1, 1), "SAME", **NUMBERS))
        return jnp.mean(h)

    def laplacian(kernels, xs):
        return jax.vmap(laplacian_ve(fun, argnums=1), (None, 0))(kernels, xs)

    def trace(x):
        return jnp.trace(jax.jit(jax.hessian(fun, 1))((first, second), x).reshape(64, 64))

    # 64 columns through the first convolution, and the slope behind it.
    text = str(jax.make_jaxpr(laplacian)((first, second), xs))
    assert not re.search(r"8,8,8,64\] = transpose", text)
    assert barriers(laplacian, (first, second), xs) == (1 if BARRIERS_STAND else 0)
    found = jax.jit(laplacian)((first, second), xs)
    np.testing.assert_allclose(found, jax.jit(jax.vmap(trace))(xs), rtol=1e-9)


def filtered(factor):
    """A covariance after one measurement: products of 4 x 4 matrices, one with a half-empty one."""
    move = jnp.asarray(np.eye(4) + 0.1 * np.eye(4, k=1))
    covariance = move @ (factor @ factor.T + jnp.eye(4)) @ move.T
    gain = covariance[:, :2] @ jnp.asarray([[2.0, -0.5], [-0.5, 1.0]])
    return covariance - (jnp.tanh(gain) @ covariance[:2]) @ covariance


def test_sums_of_placed_terms_are_repeated_by_written_out_products():
    factor = jax.random.normal(jax.random.key(5), (BATCH, 4, 4), jnp.float64) / 4
    program = make_plan(filtered, factor[0], order="forward").program
    fused = FusedProgram(program)
    steps = zip(program.instructions, fused.steps, strict=True)
    operations = [(getattr(i, "operation", None), step) for i, step in steps]
    products = [s for o, s in operations if isinstance(o, Einsum) and o.written_out]
    placed = {
        slot
        for o, step in operations
        if isinstance(o, Assemble) and len(o.structure.terms) > 1
        for slot in step.outputs
    }
    assert products
    assert not any(step.kept for step in products)  # elementwise: every reader repeats them
    evaluations = fused.evaluations(())
    assert max(evaluations[slot] for slot in placed) > 1
    assert placed & fused.held_at(BATCH)
    found = jax.jit(jax.vmap(jacve(filtered, order="forward")))(factor)
    expected = jax.jit(jax.vmap(jax.jacrev(filtered)))(factor)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


def test_what_written_out_products_read_is_held_in_large_batches():
    """Evaluated in slices for every entry of their results; a quotient by a row's norm as well."""

    def scores(weights, tokens):
        rows = tokens / jnp.sqrt(1 + jnp.sum(tokens**2, axis=1, keepdims=True))
        return jnp.sum(jnp.tanh((rows @ weights) @ rows.T))

    weights, tokens = jax.random.normal(jax.random.key(6), (8, 8)), jnp.ones((4, 8))
    program = make_plan(scores, weights, tokens, argnums=0).program
    fused = FusedProgram(program)
    held = fused.held_at(1 << 17)  # whose results are larger than the cache
    made = {slot: i for i in program.instructions for slot in i.outputs}
    (product,) = (s for s in held if getattr(getattr(made[s], "operation", None), "written_out", 0))
    (block,) = program.blocks[0]
    assert product in made[block.slots[0]].inputs
    assert "div" in {str(made[slot]) for slot in held}
    assert fused.held_at(1) == set()
