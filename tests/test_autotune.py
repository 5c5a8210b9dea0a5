"""`order="autotune"` with a clock that the tests set."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import Autotune, InvalidArgumentError, jacve, make_plan, value_and_jacve
from graphax_lapl.api import autotune
from graphax_lapl.api.plan import Plan
from graphax_lapl.api.planning import clear_caches
from tests.clocks import Clock, Favouring

pytestmark = pytest.mark.usefixtures("fresh_plans")


def fun(x):
    return jnp.sin(x) * jnp.roll(x, 1) + jnp.sum(x)


X = jnp.linspace(0.1, 0.9, 5)
EXPECTED = np.asarray(jax.jit(jax.jacrev(fun))(X))
NAMES = ("reverse", "forward", "compressed_forward")


def tuned(folder, clock, **options):
    return Autotune(folder=folder, clock=clock, **({"candidates": NAMES} | options))


@pytest.mark.parametrize("place", range(len(NAMES)))
def test_the_fastest_candidate_is_taken_and_kept(tmp_path, place):
    order = tuned(tmp_path, Favouring(place, len(NAMES)))
    plan = make_plan(fun, X, order=order)
    assert plan.order.method == f"autotune ({NAMES[place]})"
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text())["winner"] == NAMES[place]
    np.testing.assert_allclose(jacve(fun, order)(X), EXPECTED, rtol=1e-12)


def test_a_kept_verdict_is_not_measured_again(tmp_path):
    first, second = Favouring(1, len(NAMES)), Clock()
    make_plan(fun, X, order=tuned(tmp_path, first))
    clear_caches()
    plan = make_plan(fun, X, order=tuned(tmp_path, second))
    assert second.readings == 0
    assert plan.order.method == "autotune (forward)"


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"winner": "unheard of"}'])
def test_a_verdict_that_cannot_be_read_is_measured_again(tmp_path, text):
    make_plan(fun, X, order=tuned(tmp_path, Clock()))
    (file,) = tmp_path.iterdir()
    file.write_text(text)
    clear_caches()
    clock = Clock()
    make_plan(fun, X, order=tuned(tmp_path, clock))
    assert clock.readings > 0
    assert json.loads(file.read_text())["winner"] in NAMES


def test_verdicts_hold_for_one_shape_and_batch(tmp_path):
    for x, batch in ((X, None), (X[:4], None), (X, 3)):
        make_plan(fun, x, order=tuned(tmp_path, Clock(), batch=batch))
    assert len(list(tmp_path.iterdir())) == 3


def test_under_tracing(tmp_path):
    order = tuned(tmp_path, Clock())
    np.testing.assert_allclose(jax.jit(jacve(fun, order))(X), EXPECTED, rtol=1e-12)
    clear_caches()
    batch = jnp.stack([X, 2 * X])
    found = jax.jit(jax.vmap(jacve(fun, tuned(tmp_path, Clock(), batch=2))))(batch)
    np.testing.assert_allclose(found, jax.jit(jax.vmap(jax.jacrev(fun)))(batch), rtol=1e-12)


def test_value_and_jacobian(tmp_path):
    value, jacobian = value_and_jacve(fun, tuned(tmp_path, Clock()))(X)
    np.testing.assert_allclose(value, fun(X), rtol=1e-12)
    np.testing.assert_allclose(jacobian, EXPECTED, rtol=1e-12)


def test_by_name_with_all_candidates(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    np.testing.assert_allclose(jacve(fun, "autotune")(X), EXPECTED, rtol=1e-12)


def test_candidates_that_do_not_suit_the_function_are_left_out(tmp_path):
    def loop(x):
        return jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * x), (0, x))[1]

    order = tuned(tmp_path, Clock(), candidates=("compressed_reverse", "compressed_forward"))
    plan = make_plan(loop, X, order=order)
    assert plan.order.method == "autotune (compressed_forward)"
    np.testing.assert_allclose(jacve(loop, order)(X), jax.jacfwd(loop)(X), rtol=1e-12)
    with pytest.raises(InvalidArgumentError, match="none of 'compressed_reverse' suits"):
        make_plan(loop, X, order=tuned(tmp_path, Clock(), candidates=("compressed_reverse",)))


def test_a_sparse_result_is_what_is_timed(tmp_path, monkeypatch):
    asked = []
    emit = Plan.emit

    def noted(plan, values, sparse):
        asked.append(sparse)
        return emit(plan, values, sparse)

    monkeypatch.setattr(Plan, "emit", noted)
    order = tuned(tmp_path, Clock(), candidates=("reverse", "forward"))
    found = jacve(fun, order, sparse_representation=True)(X)
    np.testing.assert_allclose(found.todense(), EXPECTED, rtol=1e-12)
    assert set(asked) == {True}
    jacve(fun, order)(X)  # the dense result has a verdict of its own
    assert False in asked
    assert len(list(tmp_path.iterdir())) == 2


def test_orders_with_one_program_are_timed_once(tmp_path):
    clock = Favouring(0, 1)
    names = ("reverse", "rev", "reverse")
    make_plan(fun, X, order=tuned(tmp_path, clock, candidates=names, rounds=1))
    assert clock.readings == 2 * (2 + 1)


def test_what_a_batch_shares_has_no_batch_axis(tmp_path, monkeypatch):
    seen = []
    arguments = autotune._arguments

    def noted(inputs, batch):
        made = arguments(inputs, batch)
        seen.append([x.shape for x in made])
        return made

    monkeypatch.setattr(autotune, "_arguments", noted)
    closed_over = jnp.arange(5.0)

    def layer(w, x):
        return jnp.tanh(w @ x) + closed_over

    w = jnp.ones((5, 5))
    order = tuned(tmp_path, Clock(), batch=3, shared=(0,), candidates=("reverse", "forward"))
    found = jacve(layer, order, argnums=1)(w, X)
    np.testing.assert_allclose(found, jax.jit(jax.jacrev(layer, 1))(w, X), rtol=1e-12)
    assert seen == [[(5,), (5, 5), (3, 5)]]
    with pytest.raises(InvalidArgumentError, match="names all arguments of layer"):
        jacve(layer, tuned(tmp_path, Clock(), batch=3, shared=(0, 1)), argnums=1)(w, X)


def test_shapes_alone_can_be_planned(tmp_path):
    x = jax.ShapeDtypeStruct((5,), jnp.float64)
    plan = make_plan(fun, x, order=tuned(tmp_path, Favouring(1, len(NAMES))))
    assert plan.order.method == "autotune (forward)"


@pytest.mark.parametrize(
    "options", [{"batch": 0}, {"rounds": 0}, {"candidates": ()}, {"shared": (-1,)}]
)
def test_bad_options(options):
    with pytest.raises(InvalidArgumentError, match=next(iter(options))):
        Autotune(**options)
