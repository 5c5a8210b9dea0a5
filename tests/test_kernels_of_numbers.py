"""How many kernels few samples of programs in numbers are: what is foretold, and what XLA makes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import jacve
from graphax_lapl.emit import tape
from graphax_lapl.emit.kernels import written_apart
from graphax_lapl.emit.placed import filled
from graphax_lapl.emit.tape import Tape


def limited(x):
    """Slopes of a limiter: comparisons of differences that neighbours share."""
    below, above = x - jnp.roll(x, 1), jnp.roll(x, -1) - x
    slope = jnp.where(jnp.abs(below) < jnp.abs(above), below, above)
    reached = x + 0.5 * jnp.where(below * above > 0, slope, 0.0)
    return -(reached - jnp.roll(reached, 1))


def turned(x):
    """Rotation by Euler angles."""
    (a, b, c), (s, t, u) = jnp.cos(x), jnp.sin(x)
    first = jnp.stack([b * c, s * t * c - a * u, a * t * c + s * u])
    second = jnp.stack([b * u, s * t * u + a * c, a * t * u - s * c])
    return jnp.stack([first, second])


def forces(x):
    """Gradient of a pair potential of three particles."""

    def energy(y):
        d = y[np.array([0, 0, 1])] - y[np.array([1, 2, 2])]
        squares = jnp.sum(d * d, -1)
        return jnp.sum(1.0 / squares**6 - 1.0 / squares**3)

    return jax.grad(energy)(2.0 * x.reshape(3, 3) + jnp.arange(9.0).reshape(3, 3)).ravel()


def scaled(x):
    return x / jnp.sqrt(jnp.mean(x * x) + 1e-5)


FUNCTIONS = {limited: 8, turned: 3, forces: 9, scaled: 6}


def kernels(fun, x):
    """How many kernels and calls the entry of a compiled program has."""
    text = jax.jit(fun).lower(x).compile().as_text()
    entry = text[text.index("ENTRY") :].splitlines()
    return sum(" fusion(" in line or " call(" in line or " copy(" in line for line in entry)


@pytest.mark.parametrize("fun", FUNCTIONS, ids=lambda fun: fun.__name__)
@pytest.mark.parametrize("samples", [1, 2, 16, 64])
def test_values(fun, samples):
    x = jax.random.uniform(jax.random.key(0), (samples, FUNCTIONS[fun]), jnp.float64, 0.3, 1.2)
    if samples == 1:
        found, expected = jax.jit(jacve(fun))(x[0]), jax.jit(jax.jacfwd(fun))(x[0])
    else:
        found = jax.jit(jax.vmap(jacve(fun)))(x)
        expected = jax.jit(jax.vmap(jax.jacfwd(fun)))(x)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def test_what_neighbours_share_is_one_kernel():
    x = jnp.linspace(0.0, 1.0, 128, dtype=jnp.float32).reshape(16, 8)
    assert kernels(jacve(limited), x[0]) == 1
    assert kernels(jax.vmap(jacve(limited)), x) == 1


def test_kernels_are_foretold(monkeypatch):
    """A program without stages has the kernels that were counted before it was compiled."""
    told = []
    program = Tape.program

    def counted(self, results, samples, *others, **options):
        needed, wanted, joined = self.needed(results)
        memory, stages = self._memory(needed, wanted, joined, results, samples, ())
        assert stages is None
        told.append(len(written_apart(needed, results, memory)) + len(results))
        return program(self, results, samples, *others, **options)

    monkeypatch.setattr(Tape, "program", counted)
    monkeypatch.setattr(tape, "BARRIERS_STAND", False)  # no stages
    for fun in (limited, scaled):
        x = jnp.linspace(0.3, 1.2, 16 * FUNCTIONS[fun], dtype=jnp.float32).reshape(16, -1)
        assert kernels(jax.vmap(jacve(fun)), x) == told[-1], fun.__name__
    assert len(told) == 2


def record(numbers):
    """A tape with some inputs, and a function that records operations."""
    machine = Tape()
    given = machine.input((numbers,), np.dtype(np.float32), True)

    def apply(name, *operands):
        return machine.record(name, None, operands, np.dtype(np.float32))

    return machine, given, apply


def apart(machine, *results, memory=()):
    arrays = [filled((len(numbers),), iter(numbers)) for numbers in results]
    return written_apart(machine.needed(arrays)[0], arrays, memory)


def test_cheap_numbers_are_within_what_reads_them():
    machine, (a, b), apply = record(2)
    shared = apply("add", a, b)
    first, second = apply("mul", shared, a), apply("mul", shared, b)
    assert apart(machine, [first, second]) == []
    assert apart(machine, [first], [second]) == []  # in each of two kernels
    assert apart(machine, [first, second], memory={shared.place}) == [shared.place]


def test_dear_numbers_that_several_kernels_read_are_apart():
    machine, (a, b), apply = record(2)
    dear = apply("exp", a)
    first, second = apply("mul", dear, a), apply("mul", dear, b)
    assert apart(machine, [first, second]) == []
    assert apart(machine, [first], [second]) == [dear.place]


def test_what_is_read_beside_a_dear_number_made_of_it_is_apart():
    machine, (a, b), apply = record(2)
    total = apply("add", a, b)
    root = apply("exp", total)
    ratio, product = apply("sub", total, root), apply("mul", root, a)
    assert apart(machine, [ratio, product]) == [total.place]
    negated = apply("neg", a)  # one operand: writing it twice reads no more
    dear = apply("exp", negated)
    assert apart(machine, [apply("sub", negated, dear), apply("mul", dear, b)]) == []


def test_what_many_groups_of_entries_read_is_apart():
    machine, given, apply = record(18)
    shared = apply("add", given[0], given[1])
    entries = [apply("mul", shared, given[k % 16 + 2]) for k in range(16)]
    more = [apply("mul", shared, entry) for entry in entries]
    rows = [number for pair in zip(entries, more, strict=True) for number in pair]
    assert apart(machine, rows) == []  # 32 entries are 4 groups of 8
    machine, given, apply = record(150)
    shared = apply("add", given[0], given[1])
    entries = [apply("mul", shared, given[k + 2]) for k in range(128)]
    assert shared.place in apart(machine, entries)  # 16 groups
