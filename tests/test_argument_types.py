"""Flags and settings of a wrong type are refused where they are given, with their name."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from elimination_orders import (
    Annealing,
    Auto,
    Beam,
    HyperPlanner,
    Optimal,
    PlannerError,
    find_order,
)
from graphax_lapl import (
    Autotune,
    Compressed,
    GraphaxLaplError,
    InvalidTypeError,
    check_derivatives,
    compare_orders,
    computational_graph,
    divergence_ve,
    elimination_graph,
    forward_laplacian,
    hessian_diagonal,
    hessve,
    jacve,
    laplacian_ve,
    local_kinetic_energy,
    make_plan,
    register_partial,
    second_order_operator,
    value_and_jacve,
)

pytestmark = pytest.mark.smoke

X = np.array([0.4, -0.3, 0.9])


def energy_of(x: jax.Array) -> jax.Array:
    return jnp.sum(jnp.sin(x) ** 2)


def at_x(entry: Callable[..., Any]) -> Callable[..., Any]:
    """An entry that takes the arguments beside the function."""
    return lambda fun, **flags: entry(fun, X, **flags)


def alone(entry: Callable[..., Any]) -> Callable[..., Any]:
    return lambda fun, **flags: entry(**flags)


#: Public entries, with the names of their flags.
FLAGS: dict[str, tuple[Callable[..., Any], str]] = {
    "jacve": (jacve, "has_aux count_ops sparse_representation strict holomorphic allow_int"),
    "value_and_jacve": (
        value_and_jacve,
        "has_aux count_ops sparse_representation strict holomorphic allow_int",
    ),
    "hessve": (hessve, "has_aux sparse_representation strict holomorphic"),
    "hessian_diagonal": (hessian_diagonal, "has_aux strict"),
    "laplacian_ve": (laplacian_ve, "has_aux compress strict"),
    "forward_laplacian": (forward_laplacian, "has_aux strict"),
    "divergence_ve": (divergence_ve, "has_aux strict"),
    "local_kinetic_energy": (local_kinetic_energy, "has_aux compress strict"),
    "second_order_operator": (second_order_operator, "has_aux compress strict"),
    "make_plan": (at_x(make_plan), "strict"),
    "computational_graph": (at_x(computational_graph), "strict"),
    "compare_orders": (at_x(compare_orders), "measure strict"),
    "check_derivatives": (at_x(check_derivatives), "second"),
    "register_partial": (register_partial, "linear bilinear"),
    "Compressed": (alone(Compressed), "check"),
    "Autotune": (alone(Autotune), "progress"),
}


@pytest.mark.parametrize("value", ["no", 1, 0.0, np.array([True, False])], ids=str)
@pytest.mark.parametrize("entry", FLAGS)
def test_flags_are_true_or_false(entry: str, value: Any) -> None:
    """`compress="no"` compressed, and `strict="no"` was strict."""
    call, names = FLAGS[entry]
    for name in names.split():
        with pytest.raises(InvalidTypeError, match=f"{name} must be True or False"):
            call(energy_of, **{name: value})


SETTINGS: dict[str, Callable[[], Any]] = {
    "directions": lambda: check_derivatives(energy_of, X, directions=1.5),
    "seed": lambda: check_derivatives(energy_of, X, seed="a"),
    "tolerance": lambda: check_derivatives(energy_of, X, tolerance=float("nan")),
    "batch": lambda: Autotune(batch=1.5),
    "rounds": lambda: Autotune(rounds="a"),
    "shared": lambda: Autotune(shared=0),
    "shared: every position": lambda: Autotune(shared=("a",)),
    "seconds": lambda: Autotune(seconds="a"),
    "candidates": lambda: Autotune(candidates="auto"),
    "options": lambda: make_plan(energy_of, X, options=()),
    "orders": lambda: compare_orders(energy_of, X, orders="forward"),
    "unit": lambda: elimination_graph(computational_graph(energy_of, X), "flops"),
    "second_partials": lambda: register_partial(energy_of, jnp.cos, second_partials="a"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_a_wrong_type(name: str) -> None:
    with pytest.raises(GraphaxLaplError, match=name):
        SETTINGS[name]()


PLANNER_SETTINGS: dict[str, Callable[..., Any]] = {
    "progress": lambda: Annealing(progress="no"),
    "max_evaluations": lambda: Beam(max_evaluations="many"),
    "seed": lambda: Auto(seed=1.5),
    "evaluations": lambda: Auto(evaluations="a"),
    "questions": lambda: Auto(questions=(1,)),
    "max_states": lambda: Optimal(max_states=1.5),
    "methods": lambda: HyperPlanner(methods="beam"),
    "starts": lambda: Annealing(starts="reverse"),
    "progress: expected": lambda: find_order(
        elimination_graph(computational_graph(energy_of, X)), progress="no"
    ),
}


@pytest.mark.parametrize("name", PLANNER_SETTINGS)
def test_settings_of_searches_of_a_wrong_type(name: str) -> None:
    with pytest.raises(PlannerError, match=name):
        PLANNER_SETTINGS[name]()
