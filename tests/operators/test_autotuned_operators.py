"""`order="autotune"` of Laplacians, Hessians and divergences, with a clock that the tests set."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import (
    Autotune,
    InvalidOrderError,
    divergence_ve,
    forward_laplacian,
    hessve,
    jacve,
    laplacian_ve,
    local_kinetic_energy,
    make_plan,
    register_partial,
    second_order_operator,
)
from graphax_lapl.api.planning import clear_caches
from graphax_lapl.rules.custom import unregister_partial
from tests.clocks import Clock, Favouring

pytestmark = pytest.mark.usefixtures("fresh_plans")

X = jnp.linspace(0.2, 0.9, 4)


def energy(x):
    return jnp.sum(jnp.sin(x) * jnp.roll(x, 1)) ** 2


def field(x):
    return jnp.sin(x) * jnp.roll(x, 1) * jnp.sum(x)


HESSIAN = jax.jit(jax.hessian(energy))(X)
CASES = {
    "laplacian": (
        laplacian_ve,
        energy,
        jnp.trace(HESSIAN),
        ("forward", "reverse", "jax.hessian", "jax.loop"),
    ),
    "hessian": (hessve, energy, HESSIAN, ("reverse", "jax.hessian")),
    "divergence": (
        divergence_ve,
        field,
        jnp.trace(jax.jit(jax.jacfwd(field))(X)),
        ("forward", "reverse", "jax.jacfwd", "jax.jacrev"),
    ),
}
RACES = [(kind, k) for kind, case in CASES.items() for k in range(len(case[3]))]


def tuned(folder, clock, **options):
    return Autotune(folder=folder, clock=clock, **options)


@pytest.mark.parametrize(("kind", "place"), RACES)
def test_the_fastest_candidate_is_taken_and_kept(tmp_path, kind, place):
    operator, fun, expected, names = CASES[kind]
    order = tuned(tmp_path, Favouring(place, len(names)), candidates=names)
    plan = make_plan(fun, X, order=order, kind=kind)
    assert plan.order.method == f"autotune ({names[place]})"
    np.testing.assert_allclose(operator(fun, order)(X), expected, rtol=1e-10)
    np.testing.assert_allclose(plan.compile()(X), expected, rtol=1e-10)
    assert plan.count("flops").muls > 0
    assert names[place] in str(plan)
    clear_caches()
    again = Clock()
    kept = make_plan(fun, X, order=tuned(tmp_path, again, candidates=names), kind=kind)
    assert (again.readings, kept.order.method) == (0, plan.order.method)


@pytest.mark.parametrize("kind", CASES)
def test_by_name_with_all_candidates(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    operator, fun, expected, _ = CASES[kind]
    np.testing.assert_allclose(operator(fun, "autotune")(X), expected, rtol=1e-10)


def weighted(matrix):
    return jnp.sum(matrix * HESSIAN)


@pytest.mark.parametrize("way", ["jax.hessian", "jax.loop"])
@pytest.mark.parametrize("given", ["weights", "seeds"])
def test_jax_ways_take_weights_and_seeds(way, given):
    array = jnp.asarray(np.random.default_rng(3).standard_normal((3, 4)))
    array = array[0] if given == "weights" else array
    expected = weighted(jnp.diag(array) if given == "weights" else array.T @ array)
    found = laplacian_ve(energy, way, **{given: array})(X)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_several_arguments_aux_and_outputs():
    def fun(x, y):
        return {"a": jnp.sum(jnp.sin(x)) * y**2, "b": x[0] ** 3 + y[1] * x[1] ** 2}, 2.0 * x

    y = jnp.array([0.3, 0.7])
    for operator in (laplacian_ve, hessve):
        expected, _ = operator(fun, "forward", argnums=(1, 0), has_aux=True)(X, y)
        found, aux = operator(fun, "jax.hessian", argnums=(1, 0), has_aux=True)(X, y)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), found, expected)
        np.testing.assert_array_equal(aux, 2.0 * X)


def test_a_batch_shares_the_parameters(tmp_path):
    def layer(w, x):
        return jnp.sum(jnp.tanh(w @ x))

    w = jnp.asarray(np.random.default_rng(0).standard_normal((3, 4)))
    order = tuned(tmp_path, Favouring(3, 4), batch=2, shared=(0,))
    xs = jnp.stack([X, 2 * X])
    found = jax.jit(jax.vmap(laplacian_ve(layer, order, argnums=1), (None, 0)))(w, xs)
    expected = jax.vmap(lambda x: jnp.trace(jax.jit(jax.hessian(layer, 1))(w, x)))(xs)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_ways_that_jax_has_not_got_are_left_out(tmp_path):
    def loop(x):  # no reverse mode
        return jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * x), (0, x))[1]

    order = tuned(tmp_path, Favouring(0, 2), candidates=("jax.jacrev", "forward", "jax.jacfwd"))
    plan = make_plan(loop, X, order=order, kind="divergence")
    assert plan.order.method == "autotune (forward)"
    with pytest.raises(InvalidOrderError, match=r"'jax.jacrev' does not suit loop"):
        divergence_ve(loop, "jax.jacrev")(X)
    with pytest.raises(InvalidOrderError, match=r"'jax.loop'"):
        laplacian_ve(field, "jax.loop")(X)  # not one number


def test_a_rule_of_the_users_is_followed(tmp_path):
    @jax.jit
    def halved(x):
        return jnp.sin(x)

    def fun(x):
        return jnp.sum(halved(x) ** 2)

    # Not the derivative of the sine, so that who follows the rule can be told from who does not.
    register_partial(halved, lambda x: 0.5 * x)
    try:
        expected = laplacian_ve(fun, "forward")(X)
        assert abs(expected - jnp.trace(jax.jit(jax.hessian(fun))(X))) > 0.1
        order = tuned(tmp_path, Clock(), candidates=("jax.hessian", "jax.loop", "forward"))
        np.testing.assert_allclose(laplacian_ve(fun, order)(X), expected, rtol=1e-10)
        names = ("compressed_forward", "compressed_reverse", "reverse")
        found = jacve(fun, tuned(tmp_path, Clock(), candidates=names))(X)
        np.testing.assert_allclose(found, jacve(fun, "forward")(X), rtol=1e-10)
    finally:
        unregister_partial(halved)


def test_other_operators_time_what_they_have(tmp_path):
    def order():
        return tuned(tmp_path, Clock())

    result = forward_laplacian(energy, order())(X)
    np.testing.assert_allclose(result.laplacian, jnp.trace(HESSIAN), rtol=1e-10)
    sparse = hessve(energy, order(), sparse_representation=True)(X)
    np.testing.assert_allclose(sparse.todense(), HESSIAN, rtol=1e-10)
    gradient = jax.grad(energy)(X)
    kinetic = local_kinetic_energy(energy, order())(X)
    np.testing.assert_allclose(kinetic, -0.5 * (jnp.trace(HESSIAN) + gradient @ gradient))
    matrix = jnp.asarray(np.random.default_rng(1).standard_normal((4, 4)))
    found = second_order_operator(energy, a=matrix + matrix.T, b=X, order=order())(X)
    np.testing.assert_allclose(found, weighted(matrix + matrix.T) + gradient @ X, rtol=1e-10)
    np.testing.assert_allclose(
        laplacian_ve(energy, order(), weights=matrix)(X), weighted(matrix), rtol=1e-10
    )


def test_around_a_rule_for_cotangents(tmp_path):
    @jax.custom_vjp
    def cubed(x):
        return x**3

    cubed.defvjp(lambda x: (x**3, x), lambda x, c: (3 * x**2 * c,))
    order = tuned(tmp_path, Clock(), candidates=("jax.hessian", "forward"))
    found = laplacian_ve(lambda x: jnp.sum(cubed(x)), order)(X)
    np.testing.assert_allclose(found, 6 * jnp.sum(X), rtol=1e-10)


@pytest.mark.parametrize("order", ["auto", "reverse", "jax.jacfwd", "jax.jacrev"])
def test_a_divergence_with_swapped_arguments(order):
    def fun(x, y):  # the outputs are like (y, x)
        return y**2 * jnp.sum(x), x**3 * y[0]

    x, y = X, X[:2] + 0.5
    found = divergence_ve(fun, order, argnums=(1, 0))(x, y)
    expected = jnp.sum(2 * y * jnp.sum(x)) + jnp.sum(3 * x**2 * y[0])
    np.testing.assert_allclose(found, expected, rtol=1e-12)
