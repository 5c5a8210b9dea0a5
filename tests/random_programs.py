"""Random differentiable JAX programs from a seed.

`random_program(seed)` draws inputs (scalars to 3-d arrays, in tuples and dicts), a number of steps
from the families of `random_operations`, and outputs among everything computed, including the odd
ones: an output that feeds another, an input returned, the same value twice, a constant, an input
that nothing reads. `random_elementwise_dag(seed, n)` draws small scalar graphs.

All randomness comes from ``numpy.random.Generator(PCG64(seed))``: a seed names a program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_structure, tree_unflatten

from tests.random_operations import (
    FAMILIES,
    GENERAL,
    NotApplicable,
    Operation,
    ProgramBuilder,
    Value,
)

MAX_INPUT_SIZE = 20
"""Largest number of differentiated numbers, where nothing else is asked for."""

SIZES = (1, 2, 2, 3, 3, 4)
"""Sizes of dimensions with their frequencies; few, so that values of a program fit together."""

NO_REFERENCE = frozenset(
    {
        # XLA gives an FFT an operand that is not row-major and raises (RET_CHECK in fft_thunk.cc):
        # for the function itself, for JAX's Jacobians, for the gradient of any.
        *(97, 1572),
        *(2156, 3614, 3902, 5705, 9324, 9605),
        78,
        # XLA ends the process while it compiles `jax.jacfwd`.
        4509,
        # Without optimisation XLA rounds an array and its maximum apart, and JAX's derivative of
        # the maximum is infinite or zero.
        *(3740, 4757, 7828, 8031, 9364),
        # JAX 0.10 compiles the function itself to other values.
        6329,
        # The angle of the root of a square, which is 0 or pi by rounding.
        6335,
    }
)
"""Programs without a reference on a CPU."""


@dataclass(frozen=True)
class RandomProgram:
    """A function with arguments to differentiate it at.

    Args:
        fun: the program; positional arguments only.
        args: float64 arrays in pytrees, and int64 scalars outside ``argnums``.
        argnums: what to differentiate with respect to, as `jax.jacfwd` takes it.
        description: the program as text, one line per step.
        mode: "forward" or "reverse" where JAX can take its derivative in that mode only.
        precision: machine epsilon of the lowest precision in it, 0 if that is float64.
    """

    fun: Callable[..., Any]
    args: tuple[Any, ...]
    argnums: int | tuple[int, ...]
    description: str
    mode: str = ""
    precision: float = 0.0

    @property
    def reference(self) -> Callable[..., Any]:
        """JAX's transformation that gives the Jacobian."""
        return jax.jacrev if self.mode == "reverse" else jax.jacfwd

    @property
    def tolerance(self) -> float:
        """Largest relative difference between two correct ways to compute a derivative."""
        return max(1e-8, 50.0 * self.precision)


@dataclass(frozen=True)
class _Segment:
    """Consecutive steps that run inside one ``jax.jit`` or ``jax.checkpoint``."""

    start: int
    stop: int
    wrapper: str


def random_program(
    seed: int,
    *,
    min_steps: int = 3,
    max_steps: int = 10,
    families: tuple[str, ...] = (),
    sizes: tuple[int, ...] = SIZES,
    max_input_size: int = MAX_INPUT_SIZE,
) -> RandomProgram:
    """The program named by a seed.

    Args:
        seed: any non-negative integer.
        min_steps: least number of drawn operations (squashing steps come on top).
        max_steps: largest number of drawn operations.
        families: names in `random_operations.FAMILIES`; `GENERAL` by default.
        sizes: what sizes of dimensions of the inputs are drawn from.
        max_input_size: largest number of differentiated numbers.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    builder = ProgramBuilder(rng, max_size=5 * max_input_size)
    treedef, leaves, argnums = _draw_inputs(builder, sizes, max_input_size)
    n_leaves = len(builder.values)
    operations, weights = _operations(families or GENERAL)
    for _ in range(builder.integer(min_steps, max_steps)):
        _draw_step(builder, operations, weights)
    out_tree, outputs = _draw_outputs(builder, n_leaves)
    segments = _draw_segments(builder)

    def fun(*args: Any) -> Any:
        flat, found = jax.tree_util.tree_flatten(args)
        assert found == treedef
        environment = dict(enumerate(flat))
        _run(builder, segments, environment)
        results = [out if isinstance(out, np.ndarray) else environment[out] for out in outputs]
        return tree_unflatten(out_tree, [jnp.asarray(result) for result in results])

    description = _describe(seed, builder, n_leaves, argnums, segments, out_tree, outputs)
    return RandomProgram(
        fun,
        tree_unflatten(treedef, leaves),
        argnums,
        description,
        builder.mode,
        builder.precision,
    )


# -------------------------------------------------------------------------------- inputs


def _draw_inputs(
    builder: ProgramBuilder, sizes: tuple[int, ...], room: int
) -> tuple[Any, list[np.ndarray], int | tuple[int, ...]]:
    """Input leaves, their tree and the differentiated positions."""
    args: list[Any] = []
    leaves: list[np.ndarray] = []
    few = [1, *(builder.choice(sizes) for _ in range(2))]

    def leaf() -> int:
        nonlocal room
        shape = _draw_shape(builder, room, few)
        room -= int(np.prod(shape))
        leaves.append(builder.array(shape))
        builder.add_input(shape, np.float64, 1.0)
        return 0

    for _ in range(builder.choice([1, 1, 2, 2, 3])):
        kind = builder.choice(["array"] * 6 + ["tuple", "dict", "nested"])
        if kind == "array":
            args.append(leaf())
        elif kind == "tuple":
            args.append((leaf(), leaf()))
        elif kind == "dict":
            args.append({"a": leaf(), "b": leaf()})
        else:
            args.append({"p": (leaf(), None), "q": [leaf()]})
    positions = list(range(len(args)))
    if builder.chance(0.3):
        args.append(0)
        leaves.append(np.asarray(builder.integer(0, 3), np.int64))
        builder.add_input((), np.int64, 3.0)
    differentiated: int | tuple[int, ...] = tuple(positions)
    if len(positions) > 1 and builder.chance(0.3):
        chosen = builder.subset(positions)
        differentiated = tuple(chosen[i] for i in builder.permutation(len(chosen)))
    if len(differentiated) == 1 and builder.chance(0.7):
        differentiated = differentiated[0] - (len(args) if builder.chance(0.2) else 0)
    return tree_structure(tuple(args)), leaves, differentiated


def _draw_shape(builder: ProgramBuilder, room: int, sizes: list[int]) -> tuple[int, ...]:
    """A shape of at most ``room`` elements, dimensions out of ``sizes``; empty now and then."""
    rank = builder.choice([0, 0, 1, 1, 1, 2, 2, 2, 3])
    shape = [builder.choice([*sizes, *sizes[1:]]) for _ in range(rank)]
    if rank and builder.chance(0.03):
        shape[builder.integer(0, rank - 1)] = 0
    while shape and np.prod(shape) > room:
        shape.pop()
    return tuple(shape)


# -------------------------------------------------------------------------------- steps


def _operations(families: tuple[str, ...]) -> tuple[list[Operation], np.ndarray]:
    """All operations of the families with their probabilities."""
    entries = [entry for name in families for entry in FAMILIES[name].entries]
    weights = np.array([weight for weight, _ in entries])
    return [operation for _, operation in entries], weights / weights.sum()


def _draw_step(builder: ProgramBuilder, operations: list[Operation], weights: np.ndarray) -> None:
    """Append one operation; draws again while the drawn one finds no operand."""
    while True:
        operation = operations[int(builder.rng.choice(len(operations), p=weights))]
        try:
            operation(builder)
        except NotApplicable:
            continue
        return


def _draw_segments(builder: ProgramBuilder) -> list[_Segment]:
    """At most two stretches of steps to wrap in jit or checkpoint."""
    segments = []
    start = 0
    while start < len(builder.steps) and len(segments) < 2 and builder.chance(0.3):
        start = builder.integer(start, len(builder.steps) - 1)
        stop = builder.integer(start + 1, min(start + 3, len(builder.steps)))
        segments.append(_Segment(start, stop, builder.choice(["jit", "jit", "checkpoint"])))
        start = stop
    return segments


def _run(builder: ProgramBuilder, segments: list[_Segment], environment: dict[int, Any]) -> None:
    """Execute all steps, the wrapped stretches inside their wrapper."""
    position = 0
    for segment in segments:
        builder.run(range(position, segment.start), environment)
        steps = range(segment.start, segment.stop)
        results = [r for k in steps for r in builder.steps[k].results]
        needed = sorted({o for k in steps for o in builder.steps[k].operands} - set(results))

        def stretch(
            operands: list[Any],
            steps: range = steps,
            needed: list[int] = needed,
            results: list[int] = results,
        ) -> list[Any]:
            local = dict(zip(needed, operands, strict=True))
            builder.run(steps, local)
            return [local[r] for r in results]

        wrapper = jax.jit if segment.wrapper == "jit" else jax.checkpoint
        outcome = wrapper(stretch)([environment[i] for i in needed])
        environment.update(zip(results, outcome, strict=True))
        position = segment.stop
    builder.run(range(position, len(builder.steps)), environment)


# -------------------------------------------------------------------------------- outputs


def _draw_outputs(builder: ProgramBuilder, n_leaves: int) -> tuple[Any, list[int | np.ndarray]]:
    """Output values (indices, or constant arrays) and the tree they are returned in."""
    computed = [v for v in builder.values[n_leaves:] if v.dtype == np.float64]
    outputs: list[int | np.ndarray] = []
    room = builder.max_size

    def add(value: Value) -> None:
        nonlocal room
        if value.size <= room or not outputs:
            outputs.append(value.index)
            room -= value.size

    ends = [v for v in computed if v.index not in builder.used]
    for value in ends or builder.values[:1]:
        if not outputs or builder.chance(0.6):
            add(value)
    while builder.chance(0.3) and computed:
        add(builder.choice(computed))  # any intermediate: often one that feeds another output
    if builder.chance(0.06):
        add(builder.choice([v for v in builder.values[:n_leaves] if v.dtype == np.float64]))
    if builder.chance(0.06):
        outputs.append(outputs[0])
    if builder.chance(0.06):
        outputs.append(builder.array(builder.choice([(), (2,)])))
    outputs = [outputs[i] for i in builder.permutation(len(outputs))]
    count = len(outputs)
    if count == 1 and builder.chance(0.8):
        return tree_structure(0), outputs
    kind = builder.choice(["tuple", "list", "dict", "nested"])
    trees = {
        "tuple": (0,) * count,
        "list": [0] * count,
        "dict": {f"out{k}": 0 for k in range(count)},
        "nested": {"first": 0, "rest": (0,) * (count - 1)},
    }
    return tree_structure(trees[kind]), outputs


def _describe(
    seed: int,
    builder: ProgramBuilder,
    n_leaves: int,
    argnums: Any,
    segments: list[_Segment],
    out_tree: Any,
    outputs: list[int | np.ndarray],
) -> str:
    """The program as text."""
    lines = [f"random_program(seed={seed}), argnums={argnums}"]
    inputs = builder.values[:n_leaves]
    lines += [f"  v{value.index} = input {value.dtype}{list(value.shape)}" for value in inputs]
    inside = {k: s.wrapper for s in segments for k in range(s.start, s.stop)}
    for k, step in enumerate(builder.steps):
        results = ", ".join(f"v{r}{list(builder.values[r].shape)}" for r in step.results)
        operands = ", ".join(f"v{o}" for o in step.operands)
        wrapped = f"   inside {inside[k]}" if k in inside else ""
        lines.append(f"  {results} = {step.name} ({operands}){wrapped}")
    names = [f"v{out}" if isinstance(out, int) else "constant" for out in outputs]
    lines.append(f"  return {tree_unflatten(out_tree, names)}")
    return "\n".join(lines)


# -------------------------------------------------------------------------------- scalar graphs

UNARY: dict[str, Callable[[Any], Any]] = {
    "sin": jnp.sin,
    "cos": jnp.cos,
    "exp": jnp.exp,
    "tanh": jnp.tanh,
    "sinh": jnp.sinh,
    "arctan": jnp.arctan,
    "logistic": jax.lax.logistic,
    "erf": jax.lax.erf,
    "neg": jnp.negative,
}

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": jnp.add,
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "arctan2": jnp.arctan2,
}


def random_elementwise_dag(
    seed: int,
    n_vertices: int,
    *,
    shape: tuple[int, ...] = (),
    n_inputs: int = 2,
    n_outputs: int = 2,
    unary: tuple[str, ...] = tuple(UNARY),
    binary: tuple[str, ...] = tuple(BINARY),
) -> RandomProgram:
    """A function whose graph has ``n_vertices`` elementwise intermediates.

    Every intermediate is used, no two compute the same thing, and every output is one further
    elementwise operation, so that the intermediates are exactly the eliminable vertices. Values
    are float64 of the given shape.

    Args:
        seed: names the graph.
        n_vertices: number of intermediates that are not outputs.
        shape: shape of every input.
        n_inputs: number of arguments, all differentiated.
        n_outputs: number of results (a tuple; fewer than given only if nothing is left to use).
        unary: names in `UNARY` to draw from.
        binary: names in `BINARY` to draw from.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    n_before_outputs = n_inputs + n_vertices
    steps: list[tuple[str, tuple[int, ...]]] = []
    unused: set[int] = set()

    def operand(pool: list[int]) -> int:
        """A value of the pool, one that nothing has used yet if possible."""
        fresh = [i for i in pool if i in unused]
        choice = fresh if fresh and rng.random() < 0.6 else pool
        return int(rng.choice(choice))

    def draw(pool: list[int]) -> tuple[str, tuple[int, ...]]:
        while True:
            if rng.random() < 0.55 and binary:
                i, j = operand(pool), operand(pool)
                step = (str(rng.choice(binary)), (i, j))
                cancels = step[0] in ("sub", "arctan2") and i == j
            else:
                step = (str(rng.choice(unary)), (operand(pool),))
                cancels = step[0] == "neg" and step[1][0] >= n_inputs
            mirrored = (step[0], step[1][::-1])
            if not cancels and step not in steps and mirrored not in steps:
                return step

    for position in range(n_vertices):
        step = draw(list(range(n_inputs + position)))
        steps.append(step)
        unused -= set(step[1])
        unused.add(n_inputs + position)
    intermediates = list(range(n_inputs, n_before_outputs)) or list(range(n_inputs))
    outputs = 0
    while unused or outputs < n_outputs:
        pending = sorted(unused)
        if len(pending) >= 2 and outputs >= n_outputs - 1 and binary:
            step = ("mul" if "mul" in binary else binary[0], (pending[0], pending[1]))
        elif pending:
            step = (str(rng.choice([u for u in unary if u != "neg"])), (pending[0],))
        else:
            step = draw(intermediates)
        steps.append(step)
        unused -= set(step[1])
        outputs += 1

    def fun(*args: Any) -> Any:
        values = list(args)
        for name, operands in steps:
            values.append({**UNARY, **BINARY}[name](*(values[i] for i in operands)))
        return tuple(values[n_before_outputs:])

    lines = [f"random_elementwise_dag(seed={seed}, n_vertices={n_vertices}, shape={shape})"]
    for k, (name, operands) in enumerate(steps):
        role = "output" if k >= n_vertices else "vertex"
        lines.append(f"  v{n_inputs + k} = {name}{tuple(f'v{i}' for i in operands)}   {role}")
    args = tuple(rng.uniform(0.3, 1.2, shape) for _ in range(n_inputs))
    return RandomProgram(fun, args, tuple(range(n_inputs)), "\n".join(lines))
