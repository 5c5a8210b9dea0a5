"""Numbers that XLA's kernels would evaluate again and again are held, and nothing else is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import jacve
from graphax_lapl.emit import nested_calls
from graphax_lapl.emit.recorded import computed_of
from graphax_lapl.emit.tape import Tape


def steps(x, count):
    """Runge and Kutta's method for Lotka and Volterra's equations, with their rates."""
    y, rates = x[:2], x[2:]

    def slopes(y):
        both = y[0] * y[1]
        return jnp.stack([rates[0] * y[0] - rates[1] * both, rates[2] * both - rates[3] * y[1]])

    for _ in range(count):
        first = slopes(y)
        second = slopes(y + 0.05 * first)
        third = slopes(y + 0.05 * second)
        y = y + 0.1 / 6 * (first + 2 * second + 2 * third + slopes(y + 0.1 * third))
    return y


def ladder(rungs):
    """A chain of pairs of numbers, each made of both before it, and the tape that records it."""
    tape = Tape()
    (a, b) = tape.input((2,), np.float64, moves=True)
    for _ in range(rungs):
        a, b = a * b, a + b
    return tape, [a, b]


def held(tape, results, memory=(), few=False):
    wanted = [number.place for number in results]
    return nested_calls.held_for_calls(tape._operations, wanted, memory, few)


def evaluations(tape, results, memory=frozenset()):
    """Operations if every function evaluates all that it reads, by following each call."""
    operations = {o.place: o for o in tape._operations}

    def readers(place):
        return {
            o.place
            for o in tape._operations
            if any(number.place == place for number in computed_of(o.operands))
        }

    roots = {number.place for number in results} | set(memory)
    functions = dict.fromkeys(roots)
    owner = {}
    for o in reversed(tape._operations):
        own = {owner[r] for r in readers(o.place)}
        shared = o.place in roots or len(own) > 1
        owner[o.place] = o.place if shared else own.pop()
        functions[owner[o.place]] = None

    def cost(function):
        body = [p for p in operations if owner[p] == function]
        read = {n.place for p in body for n in computed_of(operations[p].operands)}
        called = {p for p in read if p in functions and p != function and p not in memory}
        return len(body) + sum(cost(p) for p in called)

    return sum(cost(root) for root in roots)


def test_a_short_ladder_is_left(monkeypatch):
    tape, results = ladder(4)
    assert held(tape, results) == set()
    assert evaluations(tape, results) == 30  # 2 (1 + 2 + 4 + 8)
    monkeypatch.setattr(nested_calls, "MOST", 30)
    assert held(tape, results) == set()
    monkeypatch.setattr(nested_calls, "MOST", 29)
    assert held(tape, results)


@pytest.mark.parametrize("most", [40, 100, 1000])
def test_what_is_held_leaves_no_more_than_that_many_evaluations(monkeypatch, most):
    monkeypatch.setattr(nested_calls, "MOST", most)
    tape, results = ladder(14)
    found = held(tape, results)
    assert evaluations(tape, results) == 2 * (2**14 - 1)
    assert evaluations(tape, results, found) <= most
    assert len(found) <= 14
    assert held(tape, results, memory=found) == set()


def test_nothing_is_held_where_everything_is_in_memory():
    tape, results = ladder(40)
    everywhere = {operation.place for operation in tape._operations}
    assert held(tape, results, everywhere, few=True) == set()


def test_less_is_left_to_few_samples():
    tape, results = ladder(14)
    few, many = (evaluations(tape, results, held(tape, results, (), are)) for are in (True, False))
    assert nested_calls.MOST_OF_FEW < many <= nested_calls.MOST
    assert few <= nested_calls.MOST_OF_FEW


def test_no_more_is_held_than_a_program_may_hold():
    tape, results = ladder(1000)
    assert len(held(tape, results)) == nested_calls.MOST_HELD


def kernels(fun, *arguments):
    return jax.jit(fun).lower(*arguments).as_text().count("optimization_barrier")


@pytest.mark.slow
@pytest.mark.parametrize("samples", [None, 16, 300])
def test_long_chains_are_held_somewhere_and_right(samples):
    x = jax.random.uniform(jax.random.key(0), (6,) if samples is None else (samples, 6))

    def batched(fun):
        return fun if samples is None else jax.vmap(fun)

    ours, reference = (
        batched(derivative(lambda x: steps(x, 4))) for derivative in (jacve, jax.jacfwd)
    )
    np.testing.assert_allclose(jax.jit(ours)(x), jax.jit(reference)(x), rtol=1e-10)
    assert kernels(ours, x) > 0


def test_short_chains_are_left():
    assert kernels(jacve(lambda x: steps(x, 1)), jnp.ones(6)) == 0
