"""Few samples of programs in numbers: calls of few kernels, which one thread runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import jacve
from graphax_lapl.emit import evaluation, stages
from graphax_lapl.emit.holding import BARRIERS_STAND
from graphax_lapl.emit.stages import FEW_KERNELS, most_ready, staged
from graphax_lapl.program.sines import SINES_SIZE
from tests.checks import primitives


def draw(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).uniform(0.3, 1.2, shape))


def step(state, force):
    """A Runge-Kutta step of coupled oscillators with sines and quotients."""

    def slope(y):
        a, b, u, v = y
        below = 2.0 - jnp.cos(a - b) ** 2
        first = (force * jnp.sin(a) - v * v * jnp.sin(a - b)) / below
        second = (u * u * jnp.sin(a - b) - jnp.exp(-b) * jnp.sqrt(u + 2.0)) / below
        return jnp.stack([u, v, first, second])

    k1 = slope(state)
    k2 = slope(state + 0.05 * k1)
    k3 = slope(state + 0.05 * k2)
    k4 = slope(state + 0.1 * k3)
    return state + 0.1 / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)


def two_results(state, force):
    """A tree of results, one of them a single number, and one that does not move."""
    after = step(step(state, force), force)
    return {"after": after, "energy": jnp.sum(after**2) / jnp.cos(after[0]), "given": force}


def compare(found, expected):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-13), found, expected
    )


def calls(fun, *args):
    """How many calls the compiled program has in its entry, and what it calls besides."""
    text = jax.jit(fun).lower(*args).compile().as_text()
    entry = text[text.index("ENTRY") :]
    return entry.count(" call("), entry.count(" fusion(")


@pytest.mark.slow
@pytest.mark.parametrize("fun", [step, two_results])
@pytest.mark.parametrize("size", [2, 16, 37, 128, 255, 256, 600])
def test_the_numbers_are_those_of_jax(fun, size):
    args = draw(1, size, 4), draw(2, size)
    ours = jax.jit(jax.vmap(jacve(fun, argnums=(0, 1))))
    compare(ours(*args), jax.jit(jax.vmap(jax.jacfwd(fun, (0, 1))))(*args))


@pytest.mark.slow
def test_shared_inputs_single_precision_and_other_transformations():
    states, force = draw(3, 16, 4), draw(4)
    of_state = jacve(step, argnums=0)
    expected = jax.jit(jax.vmap(jax.jacfwd(step), (0, None)))
    batched = jax.vmap(of_state, (0, None))
    compare(jax.jit(batched)(states, force), expected(states, force))
    compare(batched(states, force), expected(states, force))
    nested = jax.jit(jax.vmap(jax.vmap(of_state, (0, None)), (0, 0)))
    more, forces = draw(5, 3, 16, 4), draw(6, 3)
    compare(nested(more, forces), jax.jit(jax.vmap(expected))(more, forces))

    def loss(fun, x):
        return jnp.sum(jnp.tanh(fun(x, force)))

    compare(
        jax.jit(jax.grad(lambda x: loss(batched, x)))(states),
        jax.jit(jax.grad(lambda x: loss(expected, x)))(states),
    )
    single = jax.jit(batched)(states.astype(jnp.float32), force.astype(jnp.float32))
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, expected(states, force), rtol=2e-4, atol=2e-5)


@pytest.mark.slow
def test_what_is_infinite_or_no_number_stays_so_sample_by_sample():
    states = draw(7, 16, 4).at[3, 2].set(jnp.nan).at[5, 1].set(jnp.inf).at[6].set(0.0)
    args = states, draw(8, 16)
    found = jax.jit(jax.vmap(jacve(step)))(*args)
    expected = jax.jit(jax.vmap(jax.jacfwd(step)))(*args)
    good = np.isfinite(np.asarray(expected)).all((1, 2))
    assert good.sum() == 14
    np.testing.assert_allclose(found[good], expected[good], rtol=1e-11, atol=1e-13)
    assert not np.isfinite(np.asarray(found)[~good]).all((1, 2)).any()


def test_the_entry_has_few_kernels_and_calls(monkeypatch):
    args = draw(9, 64, 4), draw(10, 64)
    if not BARRIERS_STAND:  # held numbers are calls themselves: there are no stages
        monkeypatch.setattr(evaluation, "called", None)
        compare(jax.jit(jax.vmap(jacve(step)))(*args), jax.jit(jax.vmap(jax.jacfwd(step)))(*args))
        return
    called, fused = calls(jax.vmap(jacve(step)), *args)
    assert called > 0
    assert called + fused <= FEW_KERNELS


def volatility(forward, strike, level, vol, skew):
    """Single numbers: powers, logarithms and quotients, nine of which wait for nothing."""
    far, near = jnp.log(forward / strike), (forward * strike) ** (0.5 - 0.5 * skew)
    moved = vol / level * near * far
    root = jnp.sqrt(1.0 - 2.0 * skew * moved + moved * moved)
    bent = moved / jnp.log((root + moved - skew) / (1.0 - skew))
    return level / near * bent * (1.0 + vol * vol / 24.0 + skew * vol * level / near)


def chained(a, b):
    """Single numbers, each dear one of which waits for another."""
    return jnp.tanh(jnp.log(jnp.exp(jnp.sqrt(a)) + b) ** 0.3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fun", "staged_at"), [(volatility, {200, 300, 2000}), (chained, set())], ids=["row", "chain"]
)
def test_single_numbers_of_some_samples_wait_for_no_other_thread(fun, staged_at):
    inputs = fun.__code__.co_argcount
    argnums = tuple(range(inputs))
    for size in (100, 200, 300, 2000, 4096):
        args = [0.3 * x for x in draw(18, inputs, size)]
        ours = jax.vmap(jacve(fun, argnums=argnums))
        compare(jax.jit(ours)(*args), jax.jit(jax.vmap(jax.jacrev(fun, argnums)))(*args))
        called, fused = calls(ours, *[x.astype(jnp.float32) for x in args])
        assert (called > 0) == (BARRIERS_STAND and size in staged_at), size
        assert not called or called + fused <= FEW_KERNELS


@pytest.mark.slow
def test_what_takes_long_is_left_to_all_threads(monkeypatch):
    """Each sample takes some ten times as long as one of `step` does."""

    def steps(state, force):
        for _ in range(3):
            state = step(state, force)
        return jnp.sum(jnp.tan(jnp.cumprod(jnp.exp(state))))

    monkeypatch.setattr(evaluation, "called", None)
    args = draw(19, 1000, 4), draw(20, 1000)
    compare(jax.jit(jax.vmap(jacve(steps)))(*args), jax.jit(jax.vmap(jax.jacrev(steps)))(*args))


def network(v, t):
    """Flows in a network of nine nodes: two matrices of derivatives, each full."""
    angles, sizes = t[:, None] - t[None], v[:, None] * v[None]
    return sizes * jnp.cos(angles) @ v, jnp.sum(sizes * jnp.sin(angles), 1)


@pytest.mark.parametrize("size", [2, 16, 255])
def test_many_results_are_written_as_those_of_many_samples(size):
    """Both are as many products, sines and whatever else there is."""
    derivative = jax.vmap(jacve(network, argnums=(0, 1)))
    args = draw(21, size, 9), draw(22, size, 9)
    compare(
        jax.jit(derivative)(*args), jax.jit(jax.vmap(jax.jacfwd(network, argnums=(0, 1))))(*args)
    )

    def written(samples):
        jaxpr = jax.make_jaxpr(derivative)(draw(21, samples, 9), draw(22, samples, 9)).jaxpr
        return primitives(jaxpr, ("mul", "add", "cos", "concatenate", "select_n"))

    assert set(written(size)) == {(size, *shape) for _, *shape in written(300)}


@pytest.mark.parametrize("size", [16, 2048])
def test_inputs_among_results(size):
    """The derivative of `Q x` along x is Q."""

    def products(matrix, x):
        return x @ (matrix @ x) / (1 + x @ x), matrix @ x

    args = tuple(x.astype(jnp.float32) for x in (draw(3, size, 4, 4), draw(4, size, 4)))
    ours, theirs = (jax.jit(jax.vmap(f(products, argnums=(0, 1)))) for f in (jacve, jax.jacfwd))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        ours(*args),
        theirs(*args),
    )


def test_kernels_that_wait_for_none():
    # 2 to 4 read inputs, 5 reads all of them, 6 and 7 read 5.
    operands = {2: [0], 3: [0, 1], 4: [1], 5: [2, 3, 4], 6: [5], 7: [5, 6]}
    assert most_ready(operands, [2, 3, 4, 5], [[6], [7]]) == 3
    assert most_ready(operands, [2, 3, 4, 5, 6], [[6, 7]]) == 3  # 7 waits for 6
    assert most_ready(operands, [5], [[6, 7]]) == 1
    assert most_ready(operands, [], [[p] for p in range(2, 8)]) == 6  # each by itself
    assert most_ready({2: [0]}, [2], [[2]]) == 1  # written by its own kernel
    assert most_ready({2: [0], 3: [1]}, [2], [[2, 3], [3]]) == 2  # the first waits for 2


def test_arrays_of_few_bytes_need_no_stages(monkeypatch):
    args = draw(11, 3, 4), draw(12, 3)
    monkeypatch.setattr(evaluation, "called", None)
    compare(jax.jit(jax.vmap(jacve(step)))(*args), jax.jit(jax.vmap(jax.jacfwd(step)))(*args))


@pytest.mark.slow
def test_many_samples_and_single_inputs_are_not_in_stages(monkeypatch):
    monkeypatch.setattr(evaluation, "called", None)
    one = draw(13, 4), draw(14)
    compare(jax.jit(jacve(step))(*one), jax.jit(jax.jacfwd(step))(*one))
    many = draw(15, SINES_SIZE, 4), draw(16, SINES_SIZE)
    compare(jax.jit(jax.vmap(jacve(step)))(*many), jax.jit(jax.vmap(jax.jacfwd(step)))(*many))


@pytest.mark.parametrize("count", [3, 9, 70, 700])
@pytest.mark.parametrize("most", [2, 6])
def test_stages_compute_everything_once_it_can_be_read(count, most):
    """Random programs: no stage reads what is not there, and no call has too many parts."""
    rng = np.random.default_rng(count)
    inputs = 5
    places = range(inputs, inputs + count)
    operands = {p: [int(k) for k in rng.integers(0, p, 2)] for p in places}
    stored = [p for p in places if rng.random() < 0.4]
    results = [p for p in (0, *places) if rng.random() < 0.1]
    values = {}

    def run(stage, there):
        inside = {place: there[place] for place in stage.reads}
        assert len(stage.parts) <= FEW_KERNELS
        assert len(set(stage.computes).intersection(stored)) <= FEW_KERNELS
        for part in stage.parts:
            inside.update(run(part, inside))
        for place in stage.computes:
            inside[place] = sum(inside[k] for k in operands[place]) % 1009
        return {place: inside[place] for place in stage.writes}

    given = {place: place + 1 for place in range(inputs)}
    program = staged(operands, stored, results, most)
    assert len(program.stages) <= most
    values.update(given)
    for stage in program.stages:
        values.update(run(stage, values))
    inside = {place: values[place] for place in program.last.reads}
    for place in program.last.computes:
        inside[place] = sum(inside[k] for k in operands[place]) % 1009
    expected = dict(given)
    for place in places:
        expected[place] = sum(expected[k] for k in operands[place]) % 1009
    assert {p: inside[p] for p in results} == {p: expected[p] for p in results}
    assert program.written >= len(program.last.computes)


def test_a_call_is_not_dissolved():
    def fun(x):
        return stages.called(lambda y: [jnp.sin(y) * 2.0], [x])[0] + 1.0

    text = jax.jit(fun).lower(draw(17, 64)).compile().as_text()
    assert " call(" in text[text.index("ENTRY") :]
