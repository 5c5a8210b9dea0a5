"""Functions written as hundreds of scalar equations: planning reads every term a few times only."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import hessve, jacve, make_plan
from graphax_lapl.edges import algebra
from graphax_lapl.program import builder, second_order
from graphax_lapl.program.sums import FEW, RunningSum
from tests.checks import assert_same


def residuals(count):
    """Equations between entries far apart, so that no two terms can be joined."""

    def function(x):
        at = np.random.default_rng(3).permutation(count)
        return jnp.stack([(x[int(at[k])] - 1.0) ** 2 + x[int(at[k])] * x[k] for k in range(count)])

    return function


def objective(count):
    """A sum accumulated term by term."""
    terms = residuals(count)

    def function(x):
        total = 0.0
        for term in terms(x):
            total = total + jnp.sin(term)
        return total

    return function


COUNT = 3 * FEW


@pytest.mark.slow
@pytest.mark.parametrize("order", ["auto", "forward", "reverse"])
@pytest.mark.parametrize("sparse", [False, True])
def test_jacobian(order, sparse):
    function, x = residuals(COUNT), jnp.linspace(0.5, 1.5, COUNT)

    @jax.jit
    def both(x):
        ours = jacve(function, order, sparse_representation=sparse)(x)
        return ours.todense() if sparse else ours, jax.jacfwd(function)(x)

    assert_same(*both(x))


@pytest.mark.slow
def test_hessian():
    function, x = objective(COUNT), jnp.linspace(0.5, 1.5, COUNT)

    @jax.jit
    def every_form(x):
        sparse = hessve(function, sparse_representation=True)(x)
        return jax.hessian(function)(x), hessve(function)(x), sparse.todense(), sparse

    expected, found, by_entries, sparse = every_form(x)
    assert_same((found, by_entries), (expected, expected))
    assert sparse.nse == np.count_nonzero(expected)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jacobian", "hessian"])
def test_terms_read_while_planning(kind, monkeypatch):
    """Twice the equations are about twice the work, not four times."""

    def terms_read(count):
        read = 0

        def counted(first, second):
            nonlocal read
            read += len(first.terms) + len(second.terms)
            return algebra.add(first, second)

        monkeypatch.setattr(builder, "add", counted)
        monkeypatch.setattr(second_order, "add", counted)
        function = residuals(count) if kind == "jacobian" else objective(count)
        make_plan(function, jnp.ones(count), order="reverse", kind=kind)
        return read

    assert terms_read(160) < 2.7 * terms_read(80)


def test_running_sum_joins_everything_once():
    taken = []

    def join(first, second):
        taken.append(len(first) + len(second))
        return first + second

    running = RunningSum(join)
    for number in range(1000):
        running.add([number])
    assert sorted(running.total()) == list(range(1000))
    assert sum(taken) < 1000 * 14
    running.add([1000])
    assert len(running.total()) == 1001


def test_running_sum_of_arrows_that_cancel():
    def join(first, second):
        return first + second or None

    running = RunningSum(join)
    for number in range(2 * FEW):
        running.add(1 if number % 2 else -1)
    assert running.total() is None
