"""Structures hold exactly the entries that are not zero, and stay small and quick to emit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import jacve, make_plan
from tests.checks import assert_same
from tests.edges.banded_functions import (
    BOUNDED,
    EXACT,
    convolved,
    heat,
    network,
    numbers,
    rolled,
    rolled_2d,
    rolled_nonlinear,
    sliced,
    sliced_2d,
)


def check(fun, x, orders=("forward", "reverse")) -> tuple[int, int]:
    """Compare values; the entries of the structure, and those that are not zero at two points."""

    @jax.jit
    def everything(x):
        sparse = [jacve(fun, order=order, sparse_representation=True)(x) for order in orders]
        jacobian = jax.jit(jax.jacfwd(fun))
        dense = [s.todense() for s in sparse]
        return dense, sparse[0].to_bcoo().todense(), sparse, jacobian(x), jacobian(1.1 * x)

    dense, by_bcoo, sparse, expected, elsewhere = everything(jnp.asarray(x))
    for order, found in zip(orders, dense, strict=True):
        assert_same(found, expected, context=order)
    assert_same(by_bcoo, expected)
    assert sparse[0].nse == sparse[-1].nse
    anywhere = (np.asarray(expected) != 0) | (np.asarray(elsewhere) != 0)
    return sparse[0].nse, np.count_nonzero(anywhere)


@pytest.mark.parametrize("name", EXACT)
def test_every_entry_of_the_structure_is_used(name):
    orders = ("forward",) if "steps" in name else ("forward", "reverse")
    entries, nonzero = check(*EXACT[name], orders)
    assert entries == nonzero


@pytest.mark.parametrize("name", BOUNDED)
def test_entries_stay_within_what_may_be_used(name):
    fun, x, expected = BOUNDED[name]
    entries, nonzero = check(fun, x)
    assert nonzero <= entries == expected


@pytest.mark.parametrize(("mode", "entries"), [("VALID", 5 * 62**2), ("SAME", 5 * 64**2 - 4 * 64)])
def test_zero_taps_of_a_kernel(mode, entries):
    x = jnp.asarray(numbers(64, 64))
    assert jacve(convolved(mode), sparse_representation=True)(x).nse == entries


@pytest.mark.parametrize(
    ("step", "x", "times", "most"),
    [
        (rolled, numbers(200), 8, 8),
        (rolled_nonlinear, numbers(200), 8, 10),
        (sliced, numbers(200), 8, 6),
        (sliced_2d, numbers(30, 30), 3, 45),
        (rolled_2d, numbers(30, 30), 3, 60),
    ],
)
def test_repeated_stencils_hold_few_terms(step, x, times, most):
    (block,) = make_plan(heat(step, times), x, order="forward").program.blocks[0]
    assert len(block.structure.terms) <= most


def test_a_band_does_not_grow_with_the_array():
    plans = [make_plan(heat(rolled, 6), numbers(n), order="forward") for n in (100, 100_000)]
    small, large = (len(plan.program.instructions) for plan in plans)
    assert small == large


@pytest.mark.parametrize("fun", [heat(rolled, 6), heat(sliced, 6), network])
def test_bands_are_emitted_without_gather_and_scatter(fun):
    text = str(jax.make_jaxpr(jacve(fun, order="forward"))(jnp.asarray(numbers(160))))
    assert "gather" not in text
    assert "scatter" not in text


def test_changed_zeros_are_seen():
    """The plan follows the zeros of a captured constant, not the values it was made with."""
    x = jnp.asarray(numbers(6))
    for kept in ([1.0, 0, 0, 2, 0, 3], [1.0, 2, 0, 0, 0, 0], [4.0, 5, 0, 0, 0, 0]):
        weights = np.array(kept)
        fun = jacve(lambda x, w=weights: w * x**2, sparse_representation=True)
        jacobian = jax.jit(fun)(x) if kept[0] == 4.0 else fun(x)
        assert jacobian.nse == np.count_nonzero(weights)
        assert_same(jacobian.todense(), np.diag(2 * weights * np.asarray(x)))


def test_selection_along_one_dimension():
    """The largest entries of a row depend on the row alone."""
    x = np.random.default_rng(0).standard_normal((5, 4))
    found = jax.jit(jacve(lambda x: jax.lax.top_k(x * x, 2)[0], sparse_representation=True))(x)
    assert found.nse == 5 * 2 * 4
    assert_same(found.todense(), jax.jit(jax.jacfwd(lambda x: jax.lax.top_k(x * x, 2)[0]))(x))
