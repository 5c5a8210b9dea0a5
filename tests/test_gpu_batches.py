"""Programs on numbers as GPUs get them: the form by itself, and where it is chosen."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from graphax_lapl import jacve
from graphax_lapl.emit import gpu_batches, recorded, small_programs, tape as tape_module

SAMPLES = 300
SCALE = np.linspace(0.5, 0.7, 3)


def chain(x, scale):
    """Results that share most of their operations."""
    y = jnp.sin(x) * jnp.roll(x, 1) * scale
    for _ in range(3):
        y = jnp.tanh(y * jnp.roll(y, 1)) + x[0]
    return jnp.stack([y[0] * y[1], y[2], x[0] * x[1]]), y[1] / (2 + y[0] ** 2)


def program(x, scale):
    """A matrix with a zero that is known and two numbers that are the same, and a number."""
    (a, b, c), d = chain(x, scale)
    zero = jnp.zeros_like(a)
    return jnp.stack([jnp.stack([a, zero]), jnp.stack([d * b, a]), jnp.stack([c, d / b])]), c


def hinge(x, scale):
    """Long, and one result."""
    return jnp.stack([sum(chain(chain(x, scale)[0], scale)[0])])


def in_pieces(x, scale):
    """The same in more arrays than are put together for few samples."""
    return [hinge(x + k, scale) for k in range(5)]


def cheap(x):
    return x * jnp.roll(x, 1) + jnp.sin(x[0])


def moved(x):
    """Every entry of the Jacobian is a part of the input."""
    return jnp.outer(x, x).ravel()


def recursive(x, steps):
    """What two numbers share in each step they share again in the next: a power of the steps."""
    a, b = x[0], x[1]
    for _ in range(steps):
        a, b = a * b, a + b
    return jnp.stack([a, b, x[2]])


@pytest.fixture
def gpu(monkeypatch):
    """Programs that are lowered for CUDA, on a machine that has none."""
    monkeypatch.setattr(gpu_batches, "BACKEND", jax.default_backend())


@pytest.fixture(params=["rows", "numbers first"])
def always(gpu, monkeypatch, request):
    """One of the two forms, however much or little entries share."""
    del gpu
    rows = request.param == "rows"
    monkeypatch.setattr(gpu_batches, "IN_ROWS", (0, math.inf) if rows else (math.inf, 0))
    monkeypatch.setattr(gpu_batches, "UNFOLDED", math.inf)
    monkeypatch.setattr(gpu_batches, "REPEATED", 0)


@pytest.fixture
def x():
    return jax.random.uniform(jax.random.key(0), (SAMPLES, 3), minval=0.5, maxval=1.5)


def form_of(fun, own, *arguments):
    """The form of a function of one sample for a batch."""
    sample = [x[0] if moves else x for x, moves in zip(arguments, own, strict=True)]
    closed, types = jax.make_jaxpr(lambda inputs: fun(*inputs), return_shape=True)(sample)
    recorded = small_programs._recorded(closed, own)
    forms = small_programs._for_gpus(
        closed, recorded, jax.tree.structure(types), own, len(arguments[0])
    )
    return forms.get("cuda")


@pytest.mark.slow
@pytest.mark.usefixtures("always")
def test_the_form_has_the_values_of_the_program(x):
    form = form_of(program, [True, False], x, SCALE)
    expected = jax.vmap(program, (0, None))(x, SCALE)
    found = form([x, SCALE])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), found, expected)


@pytest.mark.slow
@pytest.mark.usefixtures("always")
def test_it_can_be_batched_and_differentiated_again(x):
    form = form_of(program, [True, False], x, SCALE)

    def norm(fun):
        return lambda x, scale: sum(jnp.sum(b**2) for b in jax.tree.leaves(fun(x, scale)))

    ours = norm(lambda x, scale: form([x, scale]))
    reference = norm(jax.vmap(program, (0, None)))
    gradients = [jax.grad(each, (0, 1))(x, SCALE) for each in (ours, reference)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), *gradients)
    several = jnp.stack([x, x + 0.1])
    twice = [jax.vmap(each, (0, None))(several, SCALE) for each in (ours, reference)]
    np.testing.assert_allclose(*twice, rtol=1e-12)


def barriers(fun, *arguments):
    exported = export.export(jax.jit(fun), platforms=("cuda",))(*arguments)
    return exported.mlir_module().count("stablehlo.optimization_barrier")


@pytest.fixture
def chosen(gpu, monkeypatch):
    """Which form a GPU gets of the Jacobian of a function of arguments with an axis of samples."""
    del gpu
    found = []
    choose = small_programs.suits_gpus

    def choosing(*program):
        found.append(choose(*program))
        return found[-1]

    monkeypatch.setattr(small_programs, "suits_gpus", choosing)

    def form(fun, *arguments):
        found.clear()
        barriers(jax.vmap(jacve(lambda *x: fun(*x))), *arguments)
        return found[-1]

    return form


def test_what_entries_share_a_little_is_evaluated_in_rows(chosen, x):
    assert chosen(cheap, x) is chosen(cheap, x[:16]) is gpu_batches.in_long_rows


def test_what_they_share_often_is_written_first(chosen, x):
    scales = jnp.broadcast_to(SCALE, x.shape)
    assert chosen(hinge, x, scales) is gpu_batches.on_numbers
    assert chosen(hinge, x[:16], scales[:16]) is gpu_batches.on_numbers


def test_what_is_mostly_moved_stays_an_array():
    tape = tape_module.Tape()
    (x,) = tape.input((1,), np.dtype("float64"), True)
    for others, form in ((1, gpu_batches.in_long_rows), (2, None)):
        entries = np.array([x * 2.0, *[x] * others], dtype=object)
        assert gpu_batches.suits_gpus(tape, [entries], SAMPLES) is form


def test_recursions_are_not_evaluated_again_and_again(chosen, x):
    assert chosen(functools.partial(recursive, steps=3), x) is gpu_batches.in_long_rows
    assert chosen(functools.partial(recursive, steps=12), x) is gpu_batches.on_numbers


def test_operations_are_counted_for_each_function_that_reads_them():
    tape = tape_module.Tape()
    (x,) = tape.input((1,), np.dtype("float64"), True)
    shared = x * 2.0
    left, right = shared + 1.0, shared + 3.0
    both = left * right
    entries = np.array([left, right, both, x], dtype=object)
    needed, wanted, _ = tape.needed([entries])
    # `left` and `right` each evaluate what they share, and `both` evaluates each of them.
    assert recorded.unfolded(needed, wanted) == 2 + 2 + 5


@pytest.mark.usefixtures("gpu")
def test_a_batch_is_put_together_behind_a_barrier_for_cuda(x):
    assert barriers(jax.vmap(jacve(chain), (0, None)), x, SCALE) == 1
    assert barriers(jax.vmap(jacve(cheap)), x) == barriers(jax.vmap(jacve(cheap)), x[:16]) == 1
    assert barriers(jax.vmap(jacve(moved)), x[:, :2]) == 0
    assert barriers(jacve(cheap), x[0]) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("fun", "written"), [(chain, 0), (hinge, 1), (in_pieces, 0)])
def test_of_a_single_input_only_what_is_repeated_often_is_written_first(fun, written, x):
    assert barriers(jacve(fun), x[0], SCALE) == written


@pytest.mark.slow
@pytest.mark.usefixtures("gpu")
def test_small_layers_are_numbers_on_a_gpu(x):
    def radial(x):
        distances = jnp.sum((x - np.arange(15.0).reshape(5, 3) / 9) ** 2, axis=1)
        return np.linspace(-1, 1, 20).reshape(4, 5) @ jnp.exp(-distances)

    ours, reference = (jax.vmap(derivative(radial)) for derivative in (jacve, jax.jacrev))
    assert barriers(ours, x) == 1
    np.testing.assert_allclose(ours(x), reference(x), rtol=1e-12)


@pytest.mark.usefixtures("gpu")
def test_a_single_input_is_a_batch_of_one(x):
    forms = form_of(hinge, [True, False], x[:1], SCALE)
    alone = gpu_batches.of_one(lambda inputs: forms([inputs[0], SCALE]))
    np.testing.assert_allclose(alone([x[0]]), hinge(x[0], SCALE), rtol=1e-12)


@pytest.mark.usefixtures("gpu")
class TestSeveralNumbers:
    """Functions of numbers alone: on a GPU what reads them from an array is one kernel."""

    @staticmethod
    def product(x, y, z):
        return jnp.sin(x) * y, jnp.exp(y) * x, z**3

    @pytest.fixture
    def beside(self, monkeypatch):
        """What a GPU would run, on the platform that is here."""
        monkeypatch.setattr(gpu_batches, "PLATFORMS", (jax.default_backend(),))

    @pytest.mark.slow
    @pytest.mark.usefixtures("beside")
    @pytest.mark.parametrize("samples", [None, 1, 5])
    def test_the_derivatives_are_the_same(self, samples):
        shape = () if samples is None else (samples,)
        numbers = [jax.random.normal(jax.random.key(k), shape) for k in range(3)]
        ours, reference = (
            derivative(self.product, argnums=(0, 1, 2)) for derivative in (jacve, jax.jacfwd)
        )

        def norm(fun):
            fun = fun if samples is None else jax.vmap(fun)
            return lambda *x: sum(jnp.sum(b**3) for b in jax.tree.leaves(fun(*x)))

        values = [norm(each)(*numbers) for each in (ours, reference)]
        np.testing.assert_allclose(*values, rtol=1e-12)
        gradients = [jax.grad(norm(each), (0, 1, 2))(*numbers) for each in (ours, reference)]
        np.testing.assert_allclose(*gradients, rtol=1e-9)

    def test_one_array_is_made_of_single_inputs_of_one_type(self):
        ours = jacve(self.product, argnums=(0, 1, 2))
        one, two = jnp.float32(1), jnp.float64(2)
        assert barriers(ours, one, one, one) == 1
        assert barriers(ours, one, one, two) == 0
        assert barriers(jax.vmap(ours), *[jnp.ones(4)] * 3) == 0


def test_other_machines_keep_what_is_right_everywhere(x):
    assert barriers(jax.vmap(jacve(chain), (0, None)), x, SCALE) == 0
    assert barriers(jacve(TestSeveralNumbers.product, argnums=(0, 1)), *x[0]) == 0


def rows_of(x):
    """All products of two halves, as one vector: tables place the entries of its Jacobian."""
    return jnp.outer(x[:4], x[4:]).ravel()


@pytest.mark.slow
@pytest.mark.usefixtures("gpu")
def test_small_matrices_read_their_numbers_instead_of_scattering_them():
    x = jax.random.normal(jax.random.key(1), (SAMPLES, 8))

    def norm(derivative):
        return lambda x: jnp.sum(jax.vmap(derivative(rows_of))(x) ** 3)

    for value in (lambda derivative: jax.vmap(derivative(rows_of)), norm):
        np.testing.assert_allclose(value(jacve)(x), value(jax.jacfwd)(x), rtol=1e-12)
    gradients = [jax.grad(norm(derivative))(x) for derivative in (jacve, jax.jacfwd)]
    np.testing.assert_allclose(*gradients, rtol=1e-9)
    exported = export.export(jax.jit(jax.vmap(jacve(rows_of))), platforms=("cuda",))(x)
    assert "stablehlo.scatter" not in exported.mlir_module()
