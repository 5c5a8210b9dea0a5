"""Loops that are carried number by number where there is a batch: same values and derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl import jacve
from graphax_lapl.emit import small_loops
from graphax_lapl.emit.small_loops import BATCH

STEPS = 10  # more than are written out


def draw(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape, jnp.float64)


def turned(state, x):
    """Turns a frame and moves along it: slices, stacked arrays, a carry that only adds up."""
    frame, place = state
    column = jnp.cos(x) * frame[:, 0] + jnp.sin(x) * frame[:, 1]
    frame = jnp.stack([column, frame[:, 2], frame[:, 0]], axis=1)
    return (frame, place + 0.1 * column), place.sum()


def chain(xs):
    (_, place), sums = lax.scan(turned, (jnp.eye(3, dtype=xs.dtype), jnp.zeros(3, xs.dtype)), xs)
    return place, sums


def recurrent(w, h, xs):
    return lax.scan(lambda h, x: (jnp.tanh(w @ h + x), None), h, xs)[0]


def mixed(carry, x):
    """Most of what can be written in numbers: integers, selections, products over axes, padding."""
    a, count = carry
    b = lax.pad(a, 0.5, [(1, -1, 0), (0, 1, 0)])[:, :2] + lax.pad(x, 0.0, [(0, 1, 1)])[:2, None]
    b = jnp.where(count % 2 == 0, b, jnp.flip(b, axis=0))
    c = jnp.einsum("ij,kj->ki", a, b) / (2.0 + jnp.abs(a.T))
    c = jnp.clip(jnp.concatenate([c[:1], jnp.sin(b[1:])]), -3.0, 3.0) + a.reshape(4)[::2]
    return (c, count + 1), jnp.sum(c * c, axis=0)


def loop_of_everything(a, xs):
    (last, count), kept = lax.scan(mixed, (a, 0), xs, reverse=True)
    return last, kept, last * count


def carried(jaxpr):
    """Shapes of what the loops of a program carry, one tuple for each loop."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            body = equation.params["jaxpr"].jaxpr
            yield tuple(variable.aval.shape for variable in (*body.invars, *body.outvars))
        else:
            for value in equation.params.values():
                for inner in value if isinstance(value, tuple | list) else (value,):
                    inner = getattr(inner, "jaxpr", inner)
                    if hasattr(inner, "eqns"):
                        yield from carried(inner)


def compare(found, expected):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11), found, expected
    )


def in_numbers(fun, *args):
    led = [small_loops.Led(x, ()) for x in args]
    return tuple(
        small_loops._TracedOnce(lambda *inner, k=k: fun(*inner)[k]).in_numbers(led, ())
        for k in range(len(jax.eval_shape(fun, *args)))
    )


@pytest.mark.parametrize(
    ("fun", "args"),
    [
        (chain, lambda: (draw(0, STEPS),)),
        (loop_of_everything, lambda: (draw(1, 2, 2), draw(2, STEPS, 1))),
    ],
    ids=["chain", "everything"],
)
def test_values_and_derivatives_of_loops_over_numbers(fun, args):
    args = args()
    compare(jax.jit(lambda *args: in_numbers(fun, *args))(*args), jax.jit(fun)(*args))
    seeds = jax.tree.map(jnp.ones_like, jax.eval_shape(fun, *args))

    def pulled(*args):
        return jax.vjp(fun, *args)[1](seeds)

    traced = jax.jit(lambda *args: in_numbers(pulled, *args)).trace(*args)
    compare(traced.lower().compile()(*args), jax.jit(pulled)(*args))
    shapes = list(carried(traced.jaxpr.jaxpr))
    assert len(shapes) >= 2
    assert all(shape == () for loop in shapes for shape in loop)


@pytest.mark.parametrize("order", ["auto", "forward"])
def test_a_batch_of_chains(order):
    xs = draw(3, BATCH, STEPS)
    found = jax.jit(jax.vmap(jacve(chain, order=order)))(xs)
    compare(found, jax.jit(jax.vmap(jax.jacfwd(chain)))(xs))


def test_what_is_shared_by_a_batch():
    w, h, xs = draw(4, 3, 3), draw(5, 3), draw(6, BATCH, STEPS, 3)
    over = {"in_axes": (None, None, 0)}
    found = jax.jit(jax.vmap(jacve(recurrent, argnums=(0, 1, 2)), **over))(w, h, xs)
    compare(found, jax.jit(jax.vmap(jax.jacrev(recurrent, (0, 1, 2)), **over))(w, h, xs))


def shared(start, xs):
    """What is carried depends on both, on either and on neither of the inputs."""

    def step(carry, x):
        turned, added, grown, count = carry
        turned, added = turned[::-1] * jnp.cos(x), added + x * count
        return (turned, added, 1.1 * grown, count + 1.0), (turned * grown, added, count)

    begin = start, jnp.zeros((), xs.dtype), start, jnp.ones((), xs.dtype)
    (turned, added, grown, count), kept = lax.scan(step, begin, xs)
    return turned * count, jnp.sin(added), grown, *kept


@pytest.mark.every_case
@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
def test_numbers_that_samples_or_seeds_share(axes, order):
    sizes = ([BATCH] if axis == 0 else [] for axis in axes)
    start, xs = draw(16, *next(sizes), 3), draw(17, *next(sizes), STEPS)
    found = jax.jit(jax.vmap(jacve(shared, order, argnums=(0, 1)), axes))(start, xs)
    compare(found, jax.jit(jax.vmap(jax.jacfwd(shared, (0, 1)), axes))(start, xs))


def test_only_batches_are_rewritten():
    def shapes(*size):
        fun = jacve(chain)
        for _ in size:
            fun = jax.vmap(fun)
        jaxpr = jax.make_jaxpr(fun)(draw(7, *size, STEPS)).jaxpr
        return [shape[len(size) :] for loop in carried(jaxpr) for shape in loop]

    assert (3, 3) in shapes()
    few, many = shapes(2), shapes(BATCH)
    # On other devices than CPUs the arrays stay: both forms are in the program of many samples.
    assert len(many) > len(few)


@pytest.mark.slow
def test_derivatives_of_a_batch_and_batches_of_derivatives():
    def squares(xs):
        return jnp.sum(jacve(lambda x: chain(x)[0])(xs) ** 2)

    def plain(xs):
        return jnp.sum(jax.jacrev(lambda x: chain(x)[0])(xs) ** 2)

    xs = draw(8, BATCH, STEPS)
    expected = jax.jit(jax.vmap(jax.grad(plain)))(xs)
    compare(jax.jit(jax.vmap(jax.grad(squares)))(xs), expected)
    compare(jax.jit(jax.grad(lambda xs: jnp.sum(jax.vmap(squares)(xs))))(xs), expected)


def test_loops_that_have_no_form_in_numbers():
    def sorted_steps(x):
        return lax.scan(lambda h, s: (jnp.sort(h) * s, None), x, jnp.linspace(0.5, 1.5, STEPS))[0]

    xs = draw(9, BATCH, 4)
    compare(jax.jit(jax.vmap(jacve(sorted_steps)))(xs), jax.vmap(jax.jacrev(sorted_steps))(xs))


def networks(w, u, xs):
    """The last state of a recurrent network, and what a branch makes of its weights."""
    last = lax.scan(lambda h, x: (jnp.tanh(w @ h + u @ x), None), jnp.zeros(6), xs)[0]
    return lax.cond(xs[0, 0] > 0, lambda h, w, u: w.T @ h + u[:, 0], lambda h, w, u: h, last, w, u)


def loss(*args):
    return jnp.sum(networks(*args) ** 2)


@pytest.mark.parametrize("fun", [networks, loss])
def test_rows_go_back_through_a_loop_once_for_all_its_inputs(fun):
    args = draw(10, 6, 6), draw(11, 6, 2), draw(12, STEPS, 2)
    traced = jax.jit(jacve(fun, argnums=(0, 1))).trace(*args)
    expected = jax.jit(jax.jacrev(fun, (0, 1))).trace(*args)
    compare(traced.lower().compile()(*args), expected.lower().compile()(*args))
    # One loop there and back, also where a branch reads the value and there are several rows.
    assert len(list(carried(traced.jaxpr.jaxpr))) == 2
    assert len(list(carried(expected.jaxpr.jaxpr))) == 2


@pytest.mark.slow
def test_a_loop_whose_value_is_read_runs_once():
    args = draw(13, 12, 12), draw(14, 12, 2), draw(15, STEPS, 2)

    def loss(w, u, xs):
        last, norms = lax.scan(
            lambda h, x: (jnp.tanh(0.3 * w @ h + u @ x), h @ h), jnp.full(12, 0.1), xs
        )
        return jnp.sum(last**2) * (1.0 + norms[-1])

    def squares(derivative):
        return lambda *args: sum(jnp.sum(j**2) for j in derivative(loss, argnums=(0, 1))(*args))

    def ended(w, u, xs):
        return jnp.sum(
            lax.scan(lambda h, x: (jnp.tanh(w @ h + u @ x), h), jnp.ones(12), xs)[0] ** 2
        )

    traced = jax.jit(jacve(ended, argnums=(0, 1))).trace(*args)
    compare(traced.lower().compile()(*args), jax.jit(jax.jacrev(ended, (0, 1)))(*args))
    assert len(list(carried(traced.jaxpr.jaxpr))) == 2
    compare(
        jax.jit(jax.value_and_grad(squares(jacve)))(*args),
        jax.jit(jax.value_and_grad(squares(jax.jacrev)))(*args),
    )


def test_what_the_way_back_needs_twice_is_kept_once():
    xs = draw(9, BATCH, STEPS)

    def cosines(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name == "scan":
                body = equation.params["jaxpr"].jaxpr
                yield sum(inner.primitive.name == "cos" for inner in body.eqns)
            for value in equation.params.values():
                for inner in value if isinstance(value, tuple | list) else (value,):
                    inner = getattr(inner, "jaxpr", inner)
                    if hasattr(inner, "eqns"):
                        yield from cosines(inner)

    def place(x):
        return chain(x)[0]

    found = list(cosines(jax.make_jaxpr(jax.vmap(jacve(place, "reverse")))(xs).jaxpr))
    assert 1 in found  # of numbers; that of arrays evaluates two
