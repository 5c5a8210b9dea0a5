"""`order="autotune"` with a clock that the tests set."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import Autotune, InvalidArgumentError, jacve, make_plan, value_and_jacve
from graphax_lapl.api.planning import clear_caches


class Clock:
    """Every reading is one second later: all calls take equally long."""

    def __init__(self):
        self.readings = 0

    def __call__(self):
        self.readings += 1
        return float(self.readings)


class Favouring(Clock):
    """Samples of one candidate take a second, those of the others two.

    Candidates take turns in a fixed order, forward in even rounds and backward in odd ones, after
    two rounds of warm-up.
    """

    def __init__(self, place, count):
        super().__init__()
        self.place, self.count, self.now = place, count, 0.0

    def __call__(self):
        sample, is_end = divmod(self.readings, 2)
        self.readings += 1
        turn, place = divmod(sample, self.count)
        if turn >= 2 and turn % 2:
            place = self.count - 1 - place
        self.now += (1.0 if place == self.place else 2.0) if is_end else 0.0
        return self.now


def fun(x):
    return jnp.sin(x) * jnp.roll(x, 1) + jnp.sum(x)


X = jnp.linspace(0.1, 0.9, 5)
EXPECTED = np.asarray(jax.jacrev(fun)(X))
NAMES = ("reverse", "forward", "compressed_forward")


@pytest.fixture(autouse=True)
def fresh():
    clear_caches()
    yield
    clear_caches()


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
    np.testing.assert_allclose(found, jax.vmap(jax.jacrev(fun))(batch), rtol=1e-12)


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


@pytest.mark.parametrize("options", [{"batch": 0}, {"rounds": 0}, {"candidates": ()}])
def test_bad_options(options):
    with pytest.raises(InvalidArgumentError, match=next(iter(options))):
        Autotune(**options)
