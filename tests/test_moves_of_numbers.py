"""Every move that programs of numbers know, over its parameters, against the primitive itself."""

from collections.abc import Callable, Iterator
from itertools import chain, combinations, permutations, product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphax_lapl.emit.numbers import MOVES, computed, run_numbers
from graphax_lapl.emit.placed import ADDED, ENTRIES, filled
from graphax_lapl.emit.tape import Tape

#: A function of arrays, and the shapes of these.
Case = tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]
SHAPES = ((3,), (1,), (2, 3), (3, 1), (1, 2), (2, 1, 3), (2, 3, 2))
WITHIN = lax.GatherScatterMode.PROMISE_IN_BOUNDS


def broadcasts() -> Iterator[Case]:
    for shape in ((), (3,), (2, 3), (1, 2)):
        for rank in range(len(shape), 4):
            for axes in permutations(range(rank), len(shape)):
                if list(axes) == sorted(axes):
                    sizes = [2] * rank
                    for axis, size in zip(axes, shape, strict=True):
                        sizes[axis] = size if size > 1 else 1 + axis % 2
                    yield lambda x, s=sizes, a=axes: lax.broadcast_in_dim(x, s, a), (shape,)


def cumulations(move: Callable[..., Any]) -> Iterator[Case]:
    for shape in SHAPES:
        for axis, back in product(range(len(shape)), (False, True)):
            yield lambda x, a=axis, b=back: move(x, axis=a, reverse=b), (shape,)


def concatenations() -> Iterator[Case]:
    for shape in SHAPES:
        for axis in range(len(shape)):
            other = list(shape)
            other[axis] = 2
            fun = lambda *parts, a=axis: lax.concatenate(parts, a)  # noqa: E731
            yield fun, (shape, tuple(other))
            yield fun, (tuple(other), shape, shape)


def products() -> Iterator[Case]:
    """All numbers of axes that are summed, shared and left, in other places on both sides."""
    sizes = {"b": 2, "c": 3, "s": 2, "t": 3, "l": 1, "m": 2, "r": 3}
    for batch, over, left, right in product(("", "bc"), ("", "s", "st"), ("", "lm"), ("", "r")):
        for turn in range(2):
            first, second = batch + over + left, over[::-1] + right + batch
            first, second = (name[turn:] + name[:turn] for name in (first, second))
            pairs = tuple(
                (tuple(map(first.index, group)), tuple(map(second.index, group)))
                for group in (over, batch)
            )
            yield (
                lambda x, y, p=pairs: lax.dot_general(x, y, p),
                tuple(tuple(sizes[name] for name in names) for names in (first, second)),
            )
    yield from products_of_types()


def products_of_types() -> Iterator[Case]:
    """Operands are of the dtypes that they have, and may differ where the result is told."""
    types = ("float32", "float64", "int8", "uint8", "int32", "bool")
    numbers = (((1,), (0,)), ((), ()))
    for left, right, wanted in product(types, types, (None, "float64", "int32")):
        cut_off = wanted == "int32" and "float" in left + right
        if cut_off or (wanted is None and left != right):
            continue  # what they become before they are multiplied is the backend's

        def fun(x: jax.Array, y: jax.Array, types: Any = (left, right, wanted)) -> jax.Array:
            # Of both signs, with products that eight bits do not hold and every float does.
            x, y = (
                (scale * x > 9.0 if t == "bool" else jnp.round(scale * x).astype(t))
                for x, t, scale in ((x, types[0], 40.0), (y, types[1], 20.0))
            )
            return lax.dot_general(x, y, numbers, preferred_element_type=types[2]).astype(float)

        try:
            jax.eval_shape(fun, np.zeros((2, 3)), np.zeros((3, 2)))
        except (TypeError, ValueError):
            continue  # JAX multiplies no such operands
        yield fun, ((2, 3), (3, 2))


def index_tables(random: np.random.Generator) -> Iterator[np.ndarray]:
    for shape in ((), (1,), (4,), (2, 3), (3, 1), (1, 3), (2, 1, 3)):
        yield random.integers(0, 5, (*shape, 1))


class Windows(NamedTuple):
    """What a gather reads of an operand, or a scatter writes: see `lax.gather`."""

    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    started: tuple[int, ...]
    collapsed: tuple[int, ...]
    inside: tuple[int, ...]
    table: np.ndarray

    @property
    def moved(self) -> tuple[int, ...]:
        """The shape of what is read or written."""
        window = iter(self.sizes[d] for d in range(len(self.shape)) if d not in self.collapsed)
        batch, rank = iter(self.table.shape[:-1]), self.table.ndim - 1 + len(self.inside)
        return tuple(next(window) if d in self.inside else next(batch) for d in range(rank))


def windows(count: int) -> Iterator[Windows]:
    """Of all ways to lay windows out along the axes of operand, table and result."""
    random = np.random.default_rng(3)
    found = []
    for shape in ((4, 3), (2, 3, 4)):
        axes = range(len(shape))
        for collapsed in (c for n in range(len(shape) + 1) for c in combinations(axes, n)):
            for started in (s for n in range(1, len(shape) + 1) for s in permutations(axes, n)):
                for batch in ((), (2,), (2, 1)):
                    count_inside = len(shape) - len(collapsed)
                    places = combinations(range(len(batch) + count_inside), count_inside)
                    found += [(shape, collapsed, started, batch, inside) for inside in places]
    for k in random.permutation(len(found))[:count]:
        shape, collapsed, started, batch, inside = found[k]
        sizes = tuple(1 if d in collapsed else random.integers(1, n) for d, n in enumerate(shape))
        most = np.array([shape[d] - sizes[d] for d in started])
        table = random.integers(0, most + 1, (*batch, len(started)))
        yield Windows(shape, tuple(map(int, sizes)), started, collapsed, inside, table)


def windows_read() -> Iterator[Case]:
    for w in windows(80):
        numbers = lax.GatherDimensionNumbers(w.inside, w.collapsed, w.started)
        yield lambda x, w=w, n=numbers: lax.gather(x, w.table, n, w.sizes, mode=WITHIN), (w.shape,)


def windows_of_batches() -> Iterator[Case]:
    """Each sample's own windows, along any axis of samples."""
    for w, (axis, other) in product(windows(10), product(range(2), repeat=2)):
        numbers = lax.GatherDimensionNumbers(w.inside, w.collapsed, w.started)
        tables = jnp.stack([w.table, w.table[..., ::-1] % 2], other)  # of two samples

        def read(x: jax.Array, table: jax.Array, n: Any = numbers, w: Windows = w) -> jax.Array:
            return lax.gather(x, table, n, w.sizes, mode="clip")

        shape = (*w.shape[:axis], 2, *w.shape[axis:])
        batched = jax.vmap(read, (axis, other), other)
        yield lambda x, b=batched, t=tables: b(x, t), (shape,)


def windows_written_in_batches(write: Callable[..., Any]) -> Iterator[Case]:
    for w, (axis, other) in product(windows(10), product(range(2), repeat=2)):
        numbers = lax.ScatterDimensionNumbers(w.inside, w.collapsed, w.started)
        tables = jnp.stack([w.table, w.table], other)

        def written(x: jax.Array, y: jax.Array, table: jax.Array, n: Any = numbers) -> jax.Array:
            return write(x, table, y, n)

        if write is lax.scatter_add or w.table.ndim == 1:
            shape = (*w.shape[:axis], 2, *w.shape[axis:])
            batched = jax.vmap(written, (axis, 0, other))
            yield lambda x, y, b=batched, t=tables: b(x, y, t), (shape, (2, *w.moved))


def windows_written(write: Callable[..., Any]) -> Iterator[Case]:
    for w in windows(80):
        numbers = lax.ScatterDimensionNumbers(w.inside, w.collapsed, w.started)
        alone = write is lax.scatter_add or w.table.ndim == 1  # what is written twice is not known
        if alone:
            yield lambda x, y, w=w, n=numbers: write(x, w.table, y, n), (w.shape, w.moved)
    yield from windows_written_in_batches(write)


def windows_at_moving_places() -> Iterator[Case]:
    """One of a few windows each, at places that are computed, the nearest ones where outside."""
    shape = (2, 3, 4)
    for axis, size, extent in product(range(3), (1, 2), ((), (2,), (2, 1))):
        sizes = [size if d == axis else shape[d] for d in range(3)]
        collapsed = (axis,) if size == 1 and len(extent) < 2 else ()
        rank = len(extent) + 3 - len(collapsed)
        inside = tuple(range(rank))[len(extent) if axis else 0 :][: 3 - len(collapsed)]
        numbers = lax.GatherDimensionNumbers(inside, collapsed, (axis,))

        def fun(x: jax.Array, y: jax.Array, n: Any = numbers, s: Any = sizes) -> jax.Array:
            table = jnp.round(2 * y).astype(np.int32)[..., None]  # from -4 to 4
            return lax.gather(x, table, n, s, mode="clip")

        yield fun, (shape, extent)


def smallest_and_largest(move: Callable[..., Any]) -> Iterator[Case]:
    for shape in SHAPES:
        for axis in range(len(shape)):

            def fun(x: jax.Array, y: jax.Array, axis: int = axis) -> jax.Array:
                # With ties, and with what is no number.
                numbers = jnp.where(y > 1.5, jnp.nan, jnp.round(x))
                places = [move(n, axis, np.int32) for n in (numbers, jnp.round(x).astype(int))]
                return x.ravel()[0] * jnp.stack(places).astype(float)

            yield fun, (shape, shape)


def sorts() -> Iterator[Case]:
    for shape in SHAPES:
        for axis in range(len(shape)):
            for others in range(3):

                def fun(x: jax.Array, *more: jax.Array, axis: int = axis) -> Any:
                    keys = jnp.round(x).astype(np.int32)  # equal ones stay as they stood
                    keys, *moved = lax.sort((keys, *more), axis, num_keys=1)
                    return [keys.astype(float), *moved]

                yield fun, (shape,) * (1 + others)


def factors(move: Callable[..., Any]) -> Iterator[Case]:
    for shape in ((1, 1), (2, 2), (3, 3), (4, 4), (2, 2, 2), (2, 1, 3, 3)):

        def fun(x: jax.Array) -> Any:
            found = move(x @ x.mT + 0.1 * jnp.eye(x.shape[-1]) if move is cholesky else x)
            return [part.astype(float) for part in jax.tree.leaves(found)]

        yield fun, (shape,)


def cholesky(matrix: jax.Array) -> jax.Array:
    return jnp.tril(lax.linalg.cholesky(matrix, symmetrize_input=False))


def factors_of_oblong_matrices() -> Iterator[Case]:
    yield from factors(lax.linalg.lu)
    for shape in ((2, 3), (4, 2), (1, 3), (3, 1)):
        yield lambda x: [part.astype(float) for part in lax.linalg.lu(x)], (shape,)


def triangular_solves() -> Iterator[Case]:
    for left, lower, turned, unit in product((False, True), repeat=4):
        flags = {"left_side": left, "lower": lower, "transpose_a": turned, "unit_diagonal": unit}
        for leading, size, count in (((), 3, 2), ((2,), 2, 1), ((), 1, 1), ((1, 2), 4, 1)):
            sides = (size, count) if left else (count, size)

            def fun(x: jax.Array, y: jax.Array, flags: Any = flags) -> jax.Array:
                regular = x + 3 * jnp.eye(x.shape[-1])
                return lax.linalg.triangular_solve(regular, y, **flags)

            yield fun, ((*leading, size, size), (*leading, *sides))


def first_of_conditions() -> Iterator[Case]:
    for shape in SHAPES:
        for axis in range(len(shape)):
            yield (
                lambda x, a=axis: x.ravel()[0] * lax.argmax(x > 0.3, a, np.int32).astype(float),
                (shape,),
            )
    # Conditions that are known, before, between and after others.
    for known in product((None, False, True), repeat=3):

        def fun(x: jax.Array, known: Any = known) -> jax.Array:
            places = zip(known, (x > 0.3, x > -0.3, x < 1.0), strict=True)
            rows = [c if k is None else np.full(x.shape, k) for k, c in places]
            return x * lax.argmax(jnp.stack(rows), 0, np.int32).astype(float)

        yield fun, ((3,),)


def gathers() -> Iterator[Case]:
    yield from windows_read()
    yield from windows_of_batches()
    yield from windows_at_moving_places()
    for table in index_tables(np.random.default_rng(1)):
        yield lambda x, t=table: lax.gather(x, t, ENTRIES, (1,), mode=WITHIN), ((5,),)


def scatters() -> Iterator[Case]:
    yield from windows_written(lax.scatter_add)
    for table in index_tables(np.random.default_rng(2)):
        flags = {"unique_indices": len(np.unique(table)) == table.size, "mode": WITHIN}
        yield (
            lambda x, y, t=table, f=flags: lax.scatter_add(x, t, y, ADDED, **f),
            ((5,), table.shape[:-1]),
        )


def pads() -> Iterator[Case]:
    for low, high, inside in product((-2, -1, 0, 2), (-2, -1, 0, 2), (0, 1, 2)):
        for size in (1, 3, 4):
            if (size - 1) * (inside + 1) + 1 + min(low, 0) + min(high, 0) > 0:
                config = [(low, high, inside)]
                yield lambda x, v, c=config: lax.pad(x, v, c), ((size,), ())
                config = [(1, 0, 1), *config, (high + 2, low + 1, 0)]
                yield lambda x, v, c=config: lax.pad(x, v, c), ((2, size, 3), ())


def counts() -> Iterator[Case]:
    for shape in SHAPES:
        for axis in range(len(shape)):
            yield lambda x, s=shape, a=axis: x * lax.broadcasted_iota(np.float64, s, a), ((),)


def reductions(move: Callable[..., Any]) -> Iterator[Case]:
    for shape in ((), *SHAPES):
        for chosen in product((False, True), repeat=len(shape)):
            axes = tuple(axis for axis, own in enumerate(chosen) if own)
            yield lambda x, a=axes: move(x, a), (shape,)


def reductions_of_masks(move: Callable[..., Any]) -> Iterator[Case]:
    for fun, (shape,) in reductions(move):
        yield lambda x, f=fun: x.ravel()[0] * f(x > 0.3).astype(float), (shape,)
    # Conditions that are known, between others.
    for known in product((None, False, True), repeat=3):

        def fun(x: jax.Array, known: Any = known) -> jax.Array:
            read = [x[k] > 0.3 if v is None else jnp.asarray(v) for k, v in enumerate(known)]
            return x[0] * move(jnp.stack(read), (0,)).astype(float)

        yield fun, ((3,),)


def reshapes() -> Iterator[Case]:
    for sizes in permutations((2, 3, 2)):
        for other in ((12,), (3, 4), (4, 3), (1, 12, 1), (2, 2, 3)):
            yield lambda x, o=other: lax.reshape(x, o), (sizes,)
            yield lambda x, o=other: lax.reshape(x, o, (2, 0, 1)), (sizes,)
    yield lambda x: lax.reshape(x, ()), ((1, 1),)
    yield lambda x: lax.reshape(x, (1, 1)), ((),)


def reversals() -> Iterator[Case]:
    for shape in SHAPES:
        for chosen in product((False, True), repeat=len(shape)):
            axes = tuple(axis for axis, own in enumerate(chosen) if own)
            if axes:
                yield lambda x, a=axes: lax.rev(x, a), (shape,)


def slices() -> Iterator[Case]:
    for start, stop, step in product(range(4), range(1, 6), (None, 1, 2, 3, 6)):
        if start < stop:
            bounds = (1, start), (2, stop), step and (1, step)
            yield lambda x, b=bounds: lax.slice(x, *b), ((2, 5),)


def parts() -> Iterator[Case]:
    for sizes, axis in product(((1, 4), (2, 2, 1), (5,)), (0, 1)):
        shape = (5, 2) if axis == 0 else (2, 5)
        yield lambda x, s=sizes, a=axis: lax.split(x, s, a), (shape,)


def squeezes() -> Iterator[Case]:
    for shape, axes in (((1,), (0,)), ((1, 2, 1), (0,)), ((1, 2, 1), (0, 2)), ((2, 1), (1,))):
        yield lambda x, a=axes: lax.squeeze(x, a), (shape,)


def transposes() -> Iterator[Case]:
    for order in permutations(range(3)):
        yield lambda x, o=order: lax.transpose(x, o), ((2, 3, 4),)


def stacks() -> Iterator[Case]:
    for shape in ((), (3,), (2, 3)):
        for axis in range(len(shape) + 1):
            yield lambda x, y, a=axis: jnp.stack([x, y], a), (shape, shape)


def barriers() -> Iterator[Case]:
    for shape in ((), (3,), (2, 3)):
        yield lax.optimization_barrier, (shape,)
    yield lambda x, y: list(lax.optimization_barrier([x, y])), ((2,), (3, 1))


def unstacks() -> Iterator[Case]:
    for shape in SHAPES:
        for axis in range(len(shape)):
            yield lambda x, a=axis: jnp.unstack(x, axis=a), (shape,)


CASES: dict[str, Callable[[], Iterator[Case]]] = {
    "argmax": lambda: chain(first_of_conditions(), smallest_and_largest(lax.argmax)),
    "argmin": lambda: smallest_and_largest(lax.argmin),
    "broadcast_in_dim": broadcasts,
    "cholesky": lambda: factors(cholesky),
    "concatenate": concatenations,
    "cumprod": lambda: cumulations(lax.cumprod),
    "cumsum": lambda: cumulations(lax.cumsum),
    "dot_general": products,
    "gather": gathers,
    "iota": counts,
    "lu": factors_of_oblong_matrices,
    "optimization_barrier": barriers,
    "pad": pads,
    "reduce_and": lambda: reductions_of_masks(lax.reduce_and),
    "reduce_max": lambda: reductions(lax.reduce_max),
    "reduce_min": lambda: reductions(lax.reduce_min),
    "reduce_or": lambda: reductions_of_masks(lax.reduce_or),
    "reduce_prod": lambda: reductions(lax.reduce_prod),
    "reduce_sum": lambda: reductions(lax.reduce_sum),
    "reshape": reshapes,
    "rev": reversals,
    "scatter": lambda: windows_written(lax.scatter),
    "scatter-add": scatters,
    "scatter-mul": lambda: windows_written(lax.scatter_mul),
    "slice": slices,
    "sort": sorts,
    "split": parts,
    "squeeze": squeezes,
    "stack": stacks,
    "transpose": transposes,
    "triangular_solve": triangular_solves,
    "unstack": unstacks,
}


def test_every_move_has_cases() -> None:
    assert set(CASES) == set(MOVES)


def prepared(case: Case, seed: int) -> tuple[Any, Callable[..., Any], list[np.ndarray]]:
    """The primitives of a case, the case recorded number by number, and its arguments."""
    fun, shapes = case
    random = np.random.default_rng(seed)
    args = [random.uniform(-2.0, 2.0, shape) for shape in shapes]
    closed = jax.make_jaxpr(fun)(*args)
    assert computed(closed.jaxpr) >= 0, closed
    tape = Tape()
    recorded = [tape.input(x.shape, x.dtype, True) for x in args]
    results = run_numbers(closed.jaxpr, closed.consts, recorded, tape.apply)
    return closed, tape.program(results, 1, 1), args


@pytest.mark.every_case
@pytest.mark.parametrize("name", CASES)
def test_moves_over_their_parameters(name: str) -> None:
    """Evaluated number by number, known and recorded."""
    cases = [(case[0], *prepared(case, seed)) for seed, case in enumerate(CASES[name]())]
    assert cases

    @jax.jit
    def everything(drawn: list[list[jax.Array]]) -> list[Any]:
        return [
            (jax.tree.leaves(fun(*args)), [_stacked(numbers) for numbers in program(args)])
            for (fun, _, program, _), args in zip(cases, drawn, strict=True)
        ]

    evaluated = everything([args for *_, args in cases])
    for (_, closed, _, args), (expected, recorded) in zip(cases, evaluated, strict=True):
        known = run_numbers(
            closed.jaxpr, closed.consts, [filled(x.shape, iter(x.ravel())) for x in args]
        )
        for found in (recorded, [np.asarray(numbers, float) for numbers in known]):
            for numbers, wanted in zip(found, expected, strict=True):
                assert numbers.shape == wanted.shape
                np.testing.assert_allclose(
                    numbers, wanted, rtol=1e-13, atol=1e-13, err_msg=str(closed)
                )
    if name not in ("stack", "unstack"):  # primitives of some versions of JAX alone
        assert any(name in str(closed) for _, closed, *_ in cases)


def _stacked(numbers: np.ndarray) -> jax.Array:
    return jnp.stack([*numbers.ravel()]).reshape(numbers.shape)
