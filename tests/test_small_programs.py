"""Jacobians of functions of small arrays, number by number for large batches and single inputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import jacve, value_and_jacve
from graphax_lapl.emit import held_rows, innermost, number_forms, small_programs
from graphax_lapl.emit.numbers import computed, run_numbers, split
from graphax_lapl.emit.small_programs import BATCH
from graphax_lapl.emit.tape import Tape, TooLong
from graphax_lapl.program.fusion import MAX_HELD
from graphax_lapl.program.sines import SINES_SIZE
from tests.checks import primitives


def draw(seed, *shape):
    return jax.random.uniform(jax.random.key(seed), shape, jnp.float64, 0.3, 1.2)


def frames(w, v):
    """Products of matrices, a cross product, selections, padding, a reduction over two axes."""
    c, s = jnp.cos(v[0]), jnp.sin(v[0])
    turn = jnp.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]).at[0].set(v)
    turn = turn @ jnp.stack([jnp.stack([c, -s, v[1]]), jnp.stack([s, c, v[2]]), w[0]])
    across = jnp.cross(turn[1], w[1]) * jax.nn.relu(v - 0.7)
    chosen = jnp.where(jnp.arange(3) % 2 == 0, jnp.clip(across, -0.2, 0.4), lax.rev(v, (0,)))
    padded = lax.pad(chosen, -1.0, [(1, 1, 1)])[::2] / jnp.prod(w[:, :2])
    return {"turned": turn.T @ w.T, "padded": padded, "sum": jnp.sum(turn * turn.T) + jnp.max(v[0])}


def counted(x, n):
    return jnp.outer(x, x) @ x * n.astype(x.dtype), (n + 1, x > 0.5)


def sorted_numbers(w, v):
    return jnp.sort(w @ v) * v[:2]


def compare(found, expected):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), found, expected
    )


def sines(jaxpr):
    """How many sines a program holds for each shape, those of nested programs included."""
    return primitives(jaxpr, ("sin", "cos"))


def products(jaxpr):
    """Shapes of a program's products, those of nested programs included."""
    return set(primitives(jaxpr, ("mul",)))


@pytest.mark.slow
@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("axes", [(0, 0), (None, 0)], ids=["own", "shared"])
@pytest.mark.parametrize("fun", [frames, sorted_numbers])
def test_a_batch(fun, axes, order):
    w = draw(0, 2, 3) if axes[0] is None else draw(0, BATCH, 2, 3)
    args = w, draw(1, BATCH, 3)
    found = jax.jit(jax.vmap(value_and_jacve(fun, order, (0, 1)), axes))(*args)
    jacobian = jax.jit(jax.vmap(jax.jacrev(fun, (0, 1)), axes))(*args)
    compare(found, (jax.vmap(fun, axes)(*args), jacobian))


def test_what_is_rewritten():
    def fun(x):
        return jnp.sin(x) * jnp.sum(x)

    def shapes(size):
        return set(sines(jax.make_jaxpr(jax.vmap(jacve(fun)))(draw(2, size, 3)).jaxpr))

    # On other devices than CPUs the arrays stay: both forms are there.
    # Numbers of few samples keep an axis for themselves.
    assert shapes(2) == {(2, 1), (2, 3)}
    assert shapes(BATCH) == {(BATCH,), (BATCH, 3)}
    assert set(sines(jax.make_jaxpr(jacve(fun))(draw(2, 3)).jaxpr)) == {(1,), (3,)}


@pytest.mark.parametrize("size", [2, 16, 200])
def test_few_samples(size):
    def steps(y):
        for _ in range(3):
            y = y + 0.1 * jnp.stack([y[0] * jnp.sin(y[1]), y[1] - y[0] * y[2], y[2] / y[0]])
        return y

    points = 1.0 + jnp.abs(draw(11, size, 3))
    found = jax.jit(jax.vmap(jacve(steps)))(points)
    compare(found, jax.jit(jax.vmap(jax.jacrev(steps)))(points))


@pytest.mark.slow
@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_a_single_input(order):
    args = draw(6, 2, 3), draw(7, 3)
    fun = value_and_jacve(frames, order, (0, 1))
    compare(jax.jit(fun)(*args), (frames(*args), jax.jit(jax.jacrev(frames, (0, 1)))(*args)))


def test_derivatives_of_a_single_input():
    def squares(derivative):
        def total(v):
            return jnp.sum(derivative(counted, has_aux=True)(v, jnp.arange(3))[0] ** 2)

        return total

    v = draw(8, 3)
    for transform in (jax.grad, jax.hessian):
        compare(jax.jit(transform(squares(jacve)))(v), jax.jit(transform(squares(jax.jacrev)))(v))


def test_elementwise_functions_of_a_single_input_keep_their_arrays():
    def slopes(x, a):
        return jnp.exp(a * x) * jnp.log(x + a) / jnp.sqrt(x)

    args = draw(9, 9), jnp.float64(0.7)
    fun = jacve(slopes, argnums=1)
    assert products(jax.make_jaxpr(fun)(*args).jaxpr).isdisjoint({(), (1,)})
    compare(jax.jit(fun)(*args), jax.jit(jax.jacfwd(slopes, 1))(*args))


def test_a_single_input_with_a_large_result_keeps_its_arrays():
    """More than half a kilobyte and than eight kernels: another thread would be woken up."""
    m = draw(10, 3, 3)

    def squared(w):
        return m @ w @ w.T

    def exponential(w):
        return jnp.eye(3) + w + w @ w / 2.0 + w @ w @ w / 6.0 + w @ w @ w @ w / 24.0

    for fun, numbers in ((squared, True), (exponential, False)):
        w = draw(11, 3, 3)
        assert ((1,) in products(jax.make_jaxpr(jacve(fun))(w).jaxpr)) == numbers
        compare(jax.jit(jacve(fun))(w), jax.jit(jax.jacfwd(fun))(w))


def test_a_single_input_with_a_large_result_of_zeros_keeps_its_arrays():
    def turned(x):
        return jnp.stack([x[:9] * x[9:], x[:9] + x[9:] ** 2])

    x = draw(12, 18)
    assert (1,) not in products(jax.make_jaxpr(jacve(turned))(x).jaxpr)
    compare(jax.jit(jacve(turned))(x), jax.jit(jax.jacfwd(turned))(x))


@pytest.mark.slow
def test_derivatives_of_a_batch_and_batches_of_derivatives():
    def squares(derivative):
        return lambda w, v: sum(jnp.sum(b**2) for b in jax.tree.leaves(derivative(frames)(w, v)))

    args = draw(3, BATCH, 2, 3), draw(4, BATCH, 3)
    expected = jax.jit(jax.vmap(jax.grad(squares(jax.jacrev))))(*args)
    compare(jax.jit(jax.vmap(jax.grad(squares(jacve))))(*args), expected)
    total = jax.jit(jax.grad(lambda *args: jnp.sum(jax.vmap(squares(jacve))(*args))))
    compare(total(*args), expected)


def test_a_tape_holds_what_results_need_once():
    tape = Tape()
    x = tape.input((2,), np.dtype(np.float64), True)
    calls = []

    def noted(a, b):
        calls.append((a, b))
        return a * b

    def product(a, b):
        return tape.record("mul", noted, (a, b), np.dtype(np.float64))

    first = product(x[0], x[1])
    assert product(x[0], x[1]) is first
    assert product(x[0], np.float64(0.0)) is not product(x[0], np.float64(-0.0))
    results = [np.array([first, x[1], np.float64(2.0)], object)]
    (found,) = tape.program(results, 1, 1)([jnp.array([3.0, 5.0])])
    assert len(calls) == 1
    assert [float(number) for number in found] == [15.0, 5.0, 2.0]


def test_a_tape_settles_what_is_known():
    tape = Tape()
    x = tape.input((2,), np.dtype(np.float64), True)
    here, zero = np.int64(3), np.float64(0.0)

    def record(name, *operands):
        return tape.record(name, getattr(lax, name), operands, np.dtype(np.float64))

    assert record("eq", here, np.int64(3))
    assert not record("gt", here, np.int64(4))
    assert record("select_n", np.bool_(True), x[0], x[1]) is x[1]
    assert record("neg", np.float64(2.0)) == -2.0
    assert np.signbit(record("neg", zero))
    assert record("add", x[0], zero) is x[0]
    assert record("add", zero, x[0]) is x[0]
    assert record("sub", x[0], zero) is x[0]
    assert record("sub", zero, x[0]) is not x[0]
    assert record("mul", x[0], zero) is not zero  # x may be infinite
    assert record("mul", x[0], x[1]) is record("mul", x[1], x[0])
    assert record("div", x[0], x[1]) is not record("div", x[1], x[0])


def test_integers_beside_a_jacobian_that_is_differentiated():
    def squares(derivative):
        def total(x):
            batch = jax.vmap(derivative(counted, has_aux=True))(x, jnp.arange(BATCH))[0]
            return jnp.sum(batch**2)

        return total

    x = draw(5, BATCH, 3)
    compare(jax.jit(jax.grad(squares(jacve)))(x), jax.jit(jax.grad(squares(jax.jacrev)))(x))


@pytest.mark.parametrize(("kind", "count"), [(jnp.int64, 3), (jnp.int32, -1)])
def test_bits_of_numbers(kind, count):
    """Of the same width; otherwise a number is several."""

    def upper(x):
        bits = lax.bitcast_convert_type(x, kind) & jnp.array(-(1 << 20), kind)
        return lax.bitcast_convert_type(bits, x.dtype)

    x = draw(5)
    closed = jax.make_jaxpr(upper)(x)
    assert computed(closed.jaxpr) == count
    if count > 0:
        (found,) = run_numbers(closed.jaxpr, closed.consts, [split(x)])
        assert 0 < x - found[()] < 1e-6


def test_slopes_of_error_functions_in_numbers():
    """Since JAX 0.12 they are made of the upper bits of their argument, and a polynomial."""
    slope = jax.grad(lax.erf)

    def fun(x):
        return slope(x[0] * x[1]) * x

    assert computed(jax.make_jaxpr(slope)(0.5).jaxpr) > 0
    x = draw(4, 300, 2)
    compare(jax.jit(jax.vmap(jacve(fun)))(x), jax.jit(jax.vmap(jax.jacrev(fun)))(x))


def kinetics(x):
    """Mass action in a chain of as many species as there are."""
    rates = [x[k] * x[(k + 1) % x.size] for k in range(x.size)]
    return jnp.array([rates[k - 1] - 2.0 * rates[k] for k in range(x.size)])


def inverse(x):
    """Of a 3 x 3 matrix, written out."""
    a = x.reshape(3, 3)
    rows = [jnp.cross(a[(k + 1) % 3], a[(k + 2) % 3]) for k in range(3)]
    return jnp.stack(rows, axis=1) / jnp.sum(a[0] * rows[0])


@pytest.mark.parametrize(
    ("fun", "size", "most"),
    [(kinetics, 3, 0), (kinetics, 5, 0), (kinetics, 13, 0), (inverse, 9, 20)],
)
def test_no_result_of_a_batch_is_in_memory_before_its_array(fun, size, most):
    x = (
        draw(6, 2 * BATCH, size) + 3.0 * jnp.eye(3).ravel()
        if fun is inverse
        else draw(6, 600, size)
    )
    call = jax.jit(jax.vmap(jacve(fun))).lower(x).compile()
    expected = jax.jit(jax.vmap(jax.jacrev(fun)))(x)
    np.testing.assert_allclose(call(x), expected, rtol=1e-10, atol=1e-10)
    assert call.memory_analysis().temp_size_in_bytes <= most * x.shape[0] * x.dtype.itemsize


def test_a_batch_is_traced_as_a_batch_alone():
    """What a single input needs is traced where no batch has come, and only there."""
    traced = []

    def otherwise(inputs):
        traced.append("one")
        return [inputs[0] * 2.0]

    def rule(size, own, inputs):
        traced.append(size)
        return [inputs[0] * 2.0] if size > 2 else None

    call = innermost.batched_first(
        rule, otherwise, otherwise, [jax.ShapeDtypeStruct((), jnp.float64)]
    )

    def fun(x):
        return call([x])[0]

    x = draw(4, 3)
    for batch, seen in ((x, [3]), (x[:2], [2, "one"])):
        traced.clear()
        np.testing.assert_array_equal(jax.jit(jax.vmap(fun))(batch), 2.0 * batch)
        assert traced == seen
    traced.clear()
    assert float(jax.jit(fun)(x[0])) == 2.0 * x[0]
    assert traced == ["one"]
    # Under derivatives, inside and outside of the batch, and where a jitted call is batched later.
    for derivative in (
        jax.vmap(jax.grad(fun)),
        jax.grad(lambda x: jnp.sum(jax.jit(jax.vmap(fun))(x))),
    ):
        np.testing.assert_array_equal(derivative(x), np.full(3, 2.0))
    compiled = jax.jit(jax.vmap(fun))
    np.testing.assert_array_equal(jax.grad(lambda x: jnp.sum(compiled(x)))(x), np.full(3, 2.0))
    np.testing.assert_array_equal(jax.vmap(jax.jit(fun))(x), 2.0 * x)
    nested = jax.vmap(jax.vmap(fun))(x.reshape(1, 3))
    np.testing.assert_array_equal(nested, 2.0 * x.reshape(1, 3))


def neighbours(x):
    """Lorenz' equations of 1996: each row of the Jacobian has four entries, placed by a table."""
    return (jnp.roll(x, -1) - jnp.roll(x, 2)) * jnp.roll(x, 1) - x


@pytest.mark.parametrize(("size", "masks"), [(8, False), (32, True)])
def test_entries_picked_by_known_places_are_numbers(size, masks):
    inputs = draw(30, BATCH, size)
    fun = jax.vmap(jacve(neighbours))
    found = jax.jit(fun)(inputs)
    compare(found, jax.jit(jax.vmap(jax.jacrev(neighbours)))(inputs))
    program = jax.jit(fun).lower(inputs).compile().as_text()
    assert " gather(" not in program
    assert (" and(" in program) == masks


def test_entries_picked_by_places_that_move_are_picked_from_few():
    places = jnp.array([[2], [0]])

    def fun(x, places):
        dimensions = lax.GatherDimensionNumbers((), (0,), (0,))
        return lax.gather(x, places, dimensions, (1,), mode="promise_in_bounds")

    few, many = draw(31, 3), draw(32, 5)
    assert computed(jax.make_jaxpr(fun)(few, places).jaxpr) > 0
    assert computed(jax.make_jaxpr(fun)(many, places).jaxpr) < 0
    assert computed(jax.make_jaxpr(lambda x: fun(x, places))(many).jaxpr) > 0


def reactions(y):
    """Rates by the law of Arrhenius: zeros of the exponents leave entries that tables place."""
    orders = jnp.array([[1.0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 2], [1, 0, 0, 0], [0, 0, 1, 1]])
    made = jnp.array([[0.0, 0, 1, 1], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [0, 1, 0, 0]])
    c, t = y[:4], y[4]
    rates = jnp.exp(jnp.arange(5.0) - jnp.array([4.0, 3, 2, 5, 1]) / t + orders @ jnp.log(c))
    change = (made - orders).T @ rates
    return jnp.append(change, -(change @ jnp.arange(4.0)) / jnp.sum(c * (1 + 0.1 * t)))


def mass_action(c):
    orders = np.array([[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1], [0, 2, 0, 0]], float)
    return orders.T @ jnp.prod(c**orders, axis=1)


@pytest.mark.slow
@pytest.mark.parametrize("fun", [reactions, mass_action])
def test_rates_of_reactions_are_numbers(fun):
    inputs = draw(32, BATCH, 5 if fun is reactions else 4)
    found = jax.jit(jax.vmap(jacve(fun)))
    compare(found(inputs), jax.jit(jax.vmap(jax.jacrev(fun)))(inputs))
    compare(jax.jit(jacve(fun))(inputs[0]), jax.jit(jax.jacrev(fun))(inputs[0]))
    program = found.lower(inputs).compile().as_text()
    assert " scatter(" not in program
    assert " reduce-window(" not in program


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("cumulated", [lax.cumsum, lax.cumprod])
def test_cumulated_numbers(cumulated, reverse):
    def fun(x):
        return cumulated(x, axis=1, reverse=reverse)

    x = draw(33, 2, 3)
    closed = jax.make_jaxpr(fun)(x)
    assert computed(closed.jaxpr) > 0
    (found,) = run_numbers(closed.jaxpr, closed.consts, [split(x)])
    np.testing.assert_allclose(np.array(found.tolist()), fun(x), rtol=1e-14)


@pytest.mark.parametrize("places", [[2, 0], [1, 1]])
def test_entries_added_at_known_places(places):
    def fun(x, at):
        empty = jnp.zeros(4, x.dtype)
        return empty.at[at].add(x, mode="promise_in_bounds")

    x = draw(34, 2)
    closed = jax.make_jaxpr(lambda x: fun(x, jnp.array(places)))(x)
    assert computed(closed.jaxpr) > 0
    (found,) = run_numbers(closed.jaxpr, closed.consts, [split(x)])
    expected = np.zeros(4)
    np.add.at(expected, places, np.asarray(x))
    np.testing.assert_allclose(np.array(found.tolist()), expected, rtol=1e-14)
    assert computed(jax.make_jaxpr(fun)(x, jnp.array(places)).jaxpr) < 0


def runge_kutta(rates, state, step=0.05):
    first = rates(state)
    second = rates(state + step / 2 * first)
    third = rates(state + step / 2 * second)
    fourth = rates(state + step * third)
    return state + step / 6 * (first + 2 * second + 2 * third + fourth)


def orbit(state):
    """A satellite around an oblate body: blocks of three, most of what is put together is zero."""

    def rates(s):
        square = s[:3] @ s[:3]
        height = 5 * s[2] ** 2 / square
        factors = 1 + 0.1 / square * jnp.stack([1 - height, 1 - height, 3 - height])
        return jnp.concatenate([s[3:], -s[:3] / (square * jnp.sqrt(square)) * factors])

    return runge_kutta(rates, state)


def membrane(state):
    """A membrane's voltage and three gates, each with two exponentials."""

    def rates(s):
        v, *gates = s
        ins = [jnp.exp(v / k) / (1 + jnp.exp(-v * k)) for k in (1.0, 2.0, 3.0)]
        flow = [a * (1 - g) - jnp.exp(-v) * g for a, g in zip(ins, gates, strict=True)]
        return jnp.stack([1 - gates[0] ** 3 * gates[1] * v - gates[2] ** 4 * (v + 1), *flow])

    return runge_kutta(rates, state)


def barriers(fun, *args):
    """How many numbers of a program are held, by their shapes."""
    return primitives(jax.make_jaxpr(fun)(*args).jaxpr, ("optimization_barrier",))


@pytest.mark.slow
@pytest.mark.parametrize(("fun", "inputs"), [(orbit, 6), (membrane, 4)])
@pytest.mark.parametrize("size", [2, 64, BATCH, 4096])
def test_runge_kutta_steps(fun, inputs, size):
    points = draw(31, size, inputs)
    compare(jax.jit(jax.vmap(jacve(fun)))(points), jax.jit(jax.vmap(jax.jacrev(fun)))(points))


def numbers_held(fun, *args):
    held = barriers(jax.vmap(jacve(fun)), *args)
    return sum(count for shape, count in held.items() if len(shape) == 1)


def lorenz(y):
    def slope(y):
        return jnp.stack(
            [10 * (y[1] - y[0]), y[0] * (28 - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]]
        )

    first = slope(y)
    second = slope(y + 0.005 * first)
    third = slope(y + 0.005 * second)
    return y + 0.01 / 6 * (first + 2 * second + 2 * third + slope(y + 0.01 * third))


@pytest.mark.parametrize(("fun", "inputs"), [(lorenz, 3), (orbit, 6)])
def test_branches_for_rows_hold_less_than_branches_for_entries(fun, inputs, monkeypatch):
    """What entries of a row share is evaluated once in the branch that writes the row."""
    points = draw(35, 4096, inputs)
    rows = numbers_held(fun, points)
    monkeypatch.setattr(number_forms, "SHARED", np.inf)
    assert 0 < rows < numbers_held(fun, points)


def test_what_rows_share():
    tape = Tape()
    kind = np.dtype(np.float64)
    x = tape.input((3,), kind, True)
    shared = x[0] * x[1] + x[2]
    square = np.array([[shared * x[0], shared * x[1]], [shared * x[2], x[0] * x[2]]], object)
    # A product and a sum: the first row's entries share them, or all three entries of one row.
    assert tape.shared_in_rows([square]) == 2
    assert tape.shared_in_rows([square.ravel()]) == 4
    assert tape.shared_in_rows([square.reshape(4, 1)]) == 0


def test_sums_of_many_products_with_known_numbers():
    tape = Tape()
    (x,) = tape.input((1,), np.dtype(np.float64), True)
    total = x * np.float64(2.0)
    for k in range(1200):
        total = total + x * np.float64(k + 3.0)
    assert tape.scaled([np.array([total, x * x, x, np.float64(1.0)], object)]) == 1


@pytest.mark.slow
def test_dear_numbers_of_rows_are_worth_a_kernel(monkeypatch):
    points = draw(36, 4096, 4)
    held = numbers_held(membrane, points)
    monkeypatch.setattr(held_rows, "DEAR", np.inf)
    assert held > numbers_held(membrane, points)


def test_a_kernel_of_few_operations_is_no_reason_to_hold_them():
    assert numbers_held(inverse, jnp.ones((4096, 3, 3))) < MAX_HELD


def layer(x):
    return jnp.tanh(jnp.arange(12.0).reshape(3, 4) @ x / 10.0)


def gated(x):
    return jnp.exp(jnp.prod(x)) * jnp.array([2.0, 3.0, 5.0, 7.0])


@pytest.mark.parametrize(
    ("fun", "size", "dear"), [(layer, 4, "tanh"), (gated, 3, "exponential")], ids=["layer", "gated"]
)
def test_what_one_operation_reads_is_not_evaluated_for_every_entry(fun, size, dear):
    """XLA evaluates a number of one reader with it, in each branch of the kernel of a matrix."""
    points = jnp.linspace(-1.0, 1.0, 4096 * size).reshape(4096, size)
    run = jax.jit(jax.vmap(jacve(fun)))
    compare(run(points), jax.jit(jax.vmap(jax.jacfwd(fun)))(points))
    text = run.lower(points).compile().as_text()
    kernels = [part for part in text.split("\n\n") if "concatenate(" in part]
    assert kernels
    assert not any(f" {dear}(" in kernel for kernel in kernels)


def test_a_tape_that_is_full():
    tape = Tape(1)
    x = tape.input((2,), np.dtype(np.float64), True)
    first = x[0] * x[1]
    assert x[1] * x[0] is first
    with pytest.raises(TooLong):
        x[0] + x[1]


def price(x):
    """A sum of terms of single numbers, all of which read what was computed before."""
    total, scale = 0.0, x[0]
    for k in range(1, 9):
        root = jnp.sqrt(scale * scale + k * x[1] * x[1])
        scale = jnp.exp(-root) * x[2] + jnp.log(root) / x[3]
        total += scale * jax.lax.erf(root - scale) - x[2] * jax.lax.erf(root * x[3])
    return total


@pytest.mark.parametrize("samples", [None, BATCH])
def test_formulas_of_single_numbers(samples, monkeypatch):
    """They are in numbers although they are many, and repeated in kernels more often still."""
    monkeypatch.setattr(number_forms, "MAX_REPEATED", 512)
    monkeypatch.setattr(small_programs, "MAX_COMPUTED", 512)
    recorded = []

    def spy(closed, program, *rest):
        recorded.append(len(program.tape))
        return in_numbers(closed, program, *rest)

    name = "_of_one" if samples is None else "_of_samples"
    in_numbers = getattr(small_programs, name)
    monkeypatch.setattr(small_programs, name, spy)
    over = (lambda g: g) if samples is None else jax.vmap
    x = draw(40, 4) if samples is None else draw(40, samples, 4)

    found = jax.jit(over(jacve(jax.grad(price))))(x)
    np.testing.assert_allclose(found, over(jax.jacfwd(jax.grad(price)))(x), 1e-9, 1e-9)
    assert min(recorded, default=0) > 512


def stacked(x):
    return jnp.einsum("bij,bjk->bik", x, x)


@pytest.mark.smoke
@pytest.mark.parametrize("fun", [stacked, jnp.sum, jnp.prod, jnp.cumsum, jnp.cumprod])
@pytest.mark.parametrize("most", [0, 3, 11])
def test_a_tape_that_is_full_within_an_equation(fun, most):
    """What is raised amid an operation of NumPy arrives; newer Pythons make it a SystemError."""
    point = jax.ShapeDtypeStruct((3, 3, 3), jnp.float64)
    closed = jax.make_jaxpr(fun)(point)
    tape = Tape(most)
    given = [tape.input(point.shape, point.dtype, True)]
    with pytest.raises(TooLong):
        run_numbers(closed.jaxpr, closed.consts, given, tape.apply)
    assert len(tape) == most


def turned(x):
    return jnp.sin(x) * jnp.roll(x, 1)


def listed(x):
    return jnp.stack([jnp.sin(x[0] * x[2]) * x[1], x[1] * x[2], x[2] + x[0]])


def total(x):
    return jnp.sum(jnp.sin(x) * x)


@pytest.mark.slow
@pytest.mark.parametrize("fun", [turned, listed, total])
def test_few_sines_are_evaluated_where_they_are_read(fun):
    inputs = 3 if fun is listed else 4
    for size in (SINES_SIZE, 8 * SINES_SIZE):
        x = draw(20, size, inputs).at[-1, 0].set(1e8)
        compiled = jax.jit(jax.vmap(jacve(fun))).lower(x).compile()
        compare(compiled(x), jax.jit(jax.vmap(jax.jacfwd(fun)))(x))
        assert compiled.memory_analysis().temp_size_in_bytes == 0
        assert " conditional(" not in compiled.as_text()


def spread(x):
    return jnp.sin(x[0]) * jnp.stack([x * x, x**3, x + x[::-1]])


def arm(x):
    """Every joint but the first turns all that follow."""
    angles = jnp.cumsum(x)
    return jnp.cumsum(jnp.stack([jnp.sin(angles), jnp.cos(angles)]), axis=1).ravel()


@pytest.mark.parametrize(
    ("fun", "inputs", "size"), [(spread, 7, SINES_SIZE), (arm, 4, 2**14 + 2**13)]
)
def test_sines_that_branches_would_repeat_are_in_memory(fun, inputs, size):
    x = draw(22, size, inputs)
    compiled = jax.jit(jax.vmap(jacve(fun))).lower(x).compile()
    compare(compiled(x), jax.jit(jax.vmap(jax.jacfwd(fun)))(x))
    assert " conditional(" in compiled.as_text()


WEIGHTS = jnp.sin(jnp.arange(1024.0)).reshape(32, 32)


def wide(x):
    return jnp.tanh(WEIGHTS[:12, :1] @ x)


def square(x):
    return jax.nn.sigmoid(WEIGHTS[:9, :9] @ x)


def network(x):
    return WEIGHTS[:2] @ jnp.tanh(WEIGHTS @ jnp.tanh(WEIGHTS[:, :3] @ x))


def quadratic(x):
    return (WEIGHTS[:10, :10] @ x) * x


def summed(x):
    return quadratic(x) + WEIGHTS[:10, :10] @ (x * x)


CONNECTED = np.where(np.random.default_rng(0).random((20, 20)) < 0.4, 1.0, 0.0)


def epidemic(x):
    """On a network of which most pairs are not connected."""
    return 0.3 * (1 - x) * (CONNECTED @ x) - x


@pytest.mark.parametrize(
    ("fun", "inputs"),
    [(wide, 1), (square, 9), (network, 3), (quadratic, 10), (summed, 10), (epidemic, 20)],
)
@pytest.mark.parametrize("size", [BATCH, 4096])
def test_layers_are_arrays(fun, inputs, size):
    points = draw(41, size, inputs)
    run = jax.jit(jax.vmap(jacve(fun)))
    compare(run(points), jax.jit(jax.vmap(jax.jacfwd(fun)))(points))
    assert not any(shape == (size,) for shape in shapes_of(jax.make_jaxpr(run)(points).jaxpr))


def narrow(x):
    return jnp.tanh(WEIGHTS[:4, :4] @ x)


def half_empty(x):
    return jnp.tanh(x[:9]) * x[3:] ** 2


def scaled_pairs(x):
    """Its entries are products with known numbers, which are no matrix."""
    pairs = [0.5 * x[k] * x[k - 1] - 0.3 * x[k - 2] * x[k - 4] for k in range(7)]
    return jnp.stack(pairs)


@pytest.mark.parametrize(("fun", "inputs"), [(narrow, 4), (half_empty, 12), (scaled_pairs, 7)])
def test_narrow_layers_and_matrices_of_zeros_are_numbers(fun, inputs):
    points = draw(42, 4096, inputs)
    run = jax.jit(jax.vmap(jacve(fun)))
    compare(run(points), jax.jit(jax.vmap(jax.jacfwd(fun)))(points))
    assert (4096,) in shapes_of(jax.make_jaxpr(run)(points).jaxpr)


def shapes_of(jaxpr):
    """Shapes of everything that a program computes."""
    return set(primitives(jaxpr, {equation.primitive.name for equation in walk(jaxpr)}))


def walk(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from walk(inner)


def guarded(x):
    """A choice model in which some are left out, with a special function of the largest."""
    utilities = jnp.where(x[:4] > -1.0, x[:4] * x[4], -jnp.inf)
    return jax.nn.softmax(utilities) * jax.scipy.special.gammaln(2.0 + jnp.max(x))


def spread(x):
    """Numbers between the least and the largest, but for what is everywhere the same."""
    low, high = jnp.min(x), jnp.max(x)
    there = jnp.any(x > low) & jnp.all(jnp.isfinite(x))
    return jnp.where(there, (x - low) / jnp.where(there, high - low, 1.0), 0.5)


@pytest.mark.parametrize(("fun", "inputs"), [(guarded, 5), (spread, 5)])
@pytest.mark.parametrize("size", [1, 16, 4096])
def test_largest_numbers_and_masks_are_numbers(fun, inputs, size):
    points = draw(43, size, inputs)
    run = jax.jit(jax.vmap(jacve(fun)))
    compare(run(points), jax.jit(jax.vmap(jax.jacrev(fun)))(points))
    compare(jacve(fun)(points[0]), jax.jit(jax.jacrev(fun))(points[0]))
    compare(jacve(spread)(jnp.ones(3)), jnp.zeros((3, 3)))
    in_numbers = any(shape == (size,) for shape in shapes_of(jax.make_jaxpr(run)(points).jaxpr))
    assert in_numbers or size < 4096
