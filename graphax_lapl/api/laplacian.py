"""Laplacians and forward Laplacians by vertex elimination."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, dtypes, lax, tree_util

from ..errors import InvalidArgumentError, InvalidTypeError
from ..graph.tracing import Traced, check_callable, check_flags
from ..program.counts import work_per_sample
from ..program.instructions import Program
from ..program.laplacian import FirstOrder, LaplacianPrograms, Metric
from ..program.window_work import PICKED, WINDOWS, reads_small_parts
from ..rules.second_order import SecondOrderGraph
from .hessian_parts import hessian_vector_product
from .jacobian import rebuild_aux, sparse_leaves, value_and_jacve
from .orders import EliminationOrder
from .plain import laplacian_ways
from .plan import Plan
from .planning import Prepared, Rows, prepare, programmed
from .sparse import SparseJacobian
from .stochastic import (
    Hutchinson,
    HutchPlusPlus,
    Stochastic,
    check_stochastic,
    estimated_trace,
    take_key,
)
from .through_loops import hessian_takes_less
from .twice import (
    check_real_inputs,
    contracted_hessian,
    follows_rules_of_rules,
    raveling_order,
)

__all__ = [
    "LaplacianJacobian",
    "LaplacianResult",
    "contraction",
    "forward_laplacian",
    "laplacian_plan",
    "laplacian_ve",
]

#: Orders that "auto" chooses from: columns pushed forward, or outputs pulled back to them.
CARRYING_ORDERS = ("forward", "reverse")
#: What pulling outputs back must save to be chosen: of equal work it took up to 1.3 times as long.
PULLED_BACK = 1.03
#: How many cuts are tried.
MAX_CUTS = 2
#: Columns that alone take so many times the work of a whole program are not carried on; what is
#: left to tidy in them was less than a fifth.
HOPELESS = 1.5


def laplacian_ve(
    fun: Callable[..., Any],
    order: Any = "auto",
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    weights: Any = None,
    seeds: Any = None,
    compress: bool = True,
    stochastic: Stochastic | None = None,
    strict: bool = False,
) -> Callable[..., Any]:
    """The Laplacian `sum_ij A_ij d2 fun / dx_i dx_j` of every output of `fun`.

    The Jacobians of the arguments of nonlinear operations are accumulated once, with the sparsity
    that they have; each nonlinear operation then contributes one column, and the columns are
    carried to the outputs (Li et al., arXiv 2307.08214, is the forward order).

    Args:
        fun: a function of real arrays (pytrees) that returns real or complex ones.
        order: how columns are carried: "forward" pushes them (the forward Laplacian), "reverse"
            pulls the outputs back to them (best for a scalar), "auto" takes the cheaper, or the
            trace of the Hessian of a number that is mostly made by loops over layers; any other
            order of vertices that `jacve` takes. "autotune" and an `Autotune` time these and JAX's
            own ways, which are orders too: "jax.hessian", its trace, and "jax.loop", one
            Hessian-vector product after the other.
        argnums: which positional arguments x consists of; n is their raveled size, in the order of
            `jax.flatten_util.ravel_pytree`.
        has_aux: whether `fun` returns a pair `(value, aux)`.
        weights: A itself: an (n, n) matrix, an (n,) diagonal, or the diagonal as a pytree like the
            arguments. Signs are kept, so A may be indefinite. Default: the identity.
        seeds: a (k, n) matrix S with A = S^T S, instead of `weights`.
        compress: whether columns may be replaced by those of a narrow vertex that all of them pass
            through (a wide input into a narrow layer). Exact, and differentiable wherever the
            function is: no matrix is factorised.
        stochastic: None for the exact Laplacian; `Hutchinson(samples)` for an unbiased estimate
            that carries so many random columns instead of n; `HutchPlusPlus(samples)` for one from
            so many products with the Hessian of a real scalar, to which `order` and `compress`
            do not apply. The returned function then takes `key=`, a random key, which is not
            passed on to `fun`. Not together with weights or seeds.
        strict: raise `FallbackError` where a part of `fun` has no rule: an unknown primitive, a
            loop or branch that is differentiated as a whole, or a second derivative without closed
            form. Without it such parts are opaque linear maps or differentiated twice, right but
            with less structure, and the log of "graphax_lapl" names them once.

    Returns:
        A function with the signature of `fun` that returns an array like every output leaf; with
        has_aux `(laplacian, aux)`.

    Raises:
        InvalidArgumentError: for weights or seeds of another shape, or both, for argnums out of
            range, and for a stochastic estimate without a key.
        InvalidTypeError: for complex or integer arguments, and for weights or seeds that are not
            real numbers.
        InvalidOrderError: for an order that does not fit the function.
        FallbackError: with strict, naming the primitive and the line of the user's code.

    Example:
        >>> import jax.numpy as jnp
        >>> from graphax_lapl import laplacian_ve
        >>> print(laplacian_ve(lambda x: jnp.sum(x**3))(jnp.array([1.0, 2.0])))
        18.0
    """
    check_callable(fun)
    check_flags(has_aux=has_aux, compress=compress, strict=strict)
    _check_one_metric(weights, seeds)
    check_stochastic(stochastic)
    if stochastic is not None and (weights is not None or seeds is not None):
        raise InvalidArgumentError(
            "A stochastic Laplacian takes neither weights nor seeds. For A = S^T S draw vectors of "
            "your own and pass their products with S as seeds."
        )

    @functools.wraps(fun, updated=())
    def laplacian(*args: Any, **kwargs: Any) -> Any:
        key = take_key(kwargs) if stochastic is not None else None
        prepared = prepare(fun, args, kwargs, argnums, has_aux, 2, strict)
        traced = prepared.traced
        check_real_inputs(traced)

        def compute(own: Prepared, given: Any) -> Rows:
            weights, seeds, key = given
            if isinstance(stochastic, HutchPlusPlus):
                return _estimated(own, stochastic, key)
            if isinstance(stochastic, Hutchinson):
                dtype = jnp.result_type(*(aval.dtype for aval in traced.in_types))
                total = sum(math.prod(aval.shape) for aval in traced.in_types)
                seeds = stochastic.rows(key, total, dtype) / math.sqrt(stochastic.samples)
            metric, arrays, around = contraction(own, args, weights, seeds)
            if around or hessian_takes_less(own, order, metric):
                leaves = contracted_hessian(own, order, metric, arrays)
                return own.aux_values(), [[leaf] for leaf in leaves]
            plan = laplacian_plan(own, order, metric, compress=compress, given=arrays)
            return own.run(plan, given=arrays)

        values, rows = prepared.within(compute, [()], (weights, seeds, key))
        tree = tree_util.tree_unflatten(traced.out_tree, [row[0] for row in rows])
        return (tree, rebuild_aux(prepared, values)) if has_aux else tree

    return laplacian


def contraction(
    prepared: Prepared, args: tuple[Any, ...], weights: Any, seeds: Any
) -> tuple[Metric, list[Array], bool]:
    """The metric, its arrays, and whether JAX's own first derivative is differentiated."""
    metric, arrays = _metric(prepared.traced, args, weights, seeds)
    around = follows_rules_of_rules(prepared)
    if metric.kind == "matrix" and not around:
        # A rule of the user's may have an asymmetric derivative; A says which half is meant.
        around = bool(prepared.listing.moves_with)
        arrays = arrays if around else _symmetrized(arrays)
    return metric, arrays, around


def _estimated(prepared: Prepared, stochastic: HutchPlusPlus, key: Array) -> Rows:
    """The auxiliary values, and the Laplacian of a scalar from products with its Hessian."""
    traced = prepared.traced
    evaluate, leaves = prepared.of_leaves()
    values, aux = evaluate(*leaves)
    if len(values) != 1 or values[0].size != 1 or jnp.iscomplexobj(values[0]):
        raise InvalidArgumentError(
            f"HutchPlusPlus needs a function that returns one real number; {traced.name} returns "
            f"{[f'{v.dtype}{list(v.shape)}' for v in values]}. Use Hutchinson, whose vectors serve "
            "all outputs."
        )

    def scalar(*moving: Array) -> Array:
        return jnp.reshape(evaluate(*moving)[0][0], ())

    product = hessian_vector_product(scalar, argnums=tuple(range(len(leaves))))

    def apply(vector: list[Array]) -> list[Array]:
        return list(product(*leaves, tuple(vector)))

    trace = estimated_trace(stochastic, apply, leaves, key)
    return aux, [[jnp.reshape(trace, values[0].shape).astype(values[0].dtype)]]


def laplacian_plan(
    prepared: Prepared,
    order: Any,
    metric: Metric,
    jacobian: bool = False,
    compress: bool = True,
    first: FirstOrder = FirstOrder(),  # noqa: B008
    given: Sequence[Any] = (),
) -> Plan:
    """The plan of a Laplacian, whose program takes the arrays `given` beside the function's inputs.

    Columns are pushed forward, or outputs pulled back to them, and with `compress` replaced by
    those of a narrow vertex that they pass through: "auto" compares all, a named order cuts only.
    """

    def plans(
        programs: LaplacianPrograms,
        graph: SecondOrderGraph,
        orders: Sequence[EliminationOrder],
        choices: Sequence[int | None],
    ) -> Iterator[Plan]:
        for order, cut in itertools.product(orders, choices):
            program = programs.program(order.vertices, cut)
            if program is not None:
                yield Plan(graph.graph, order, program, again=True)

    def work(graph: SecondOrderGraph, program: Program) -> float:
        # Under `vmap` the parameters stay, so what depends on them alone is computed once.
        moving = [program.inputs[k] for k in moving_inputs]
        weight = 1.0
        if has_windows and not graph.graph.listing.whole_windows:
            weight = PICKED if reads_small_parts(program) else WINDOWS
        return weight * work_per_sample(program, moving)

    def best(orders: Sequence[EliminationOrder]) -> Plan:
        found: tuple[float, Plan] | None = None
        # The last takes convolutions as a whole, which plans in a tenth of the time of windows.
        for graph in reversed(prepared.second_choices):
            programs = LaplacianPrograms(graph, metric, jacobian, first)
            left = choices if programs.has_cuts else (None,)
            if not first.square and (len(left) > 1 or found):
                left = worthwhile(programs, graph, left, found[0] if found else math.inf)
            for plan in plans(programs, graph, orders, left):
                # Columns that are pushed on use each sum where it is made. Pulled back, sums wait
                # for the end, where XLA computes them inside other loops.
                pulled = 1 if plan.order.method == "forward" else PULLED_BACK
                preferred = work(graph, plan.program) * pulled
                if found is None or preferred < found[0]:
                    found = preferred, plan
        assert found is not None
        return found[1]

    def worthwhile(
        programs: LaplacianPrograms,
        graph: SecondOrderGraph,
        choices: Sequence[int | None],
        found: float,
    ) -> tuple[int | None, ...]:
        """The cut whose columns are found with the least work; none if that alone is too much.

        To carry columns on takes the same work, wherever they come from. (Not with the square of
        the first derivative, which is added to them at the end.)
        """
        if math.isfinite(found):  # pushing them may be too much already
            spans = ((cut, programs.spans(cut)) for cut in choices)
            choices = tuple(
                cut
                for cut, program in spans
                if program is not None and work(graph, program) < HOPELESS * found
            )
        columns = ((cut, programs.columns(cut)) for cut in choices)
        works = {cut: work(graph, program) for cut, program in columns if program is not None}
        least = min(works, key=works.__getitem__, default=None)
        return (least,) if works and works[least] < HOPELESS * found else ()

    has_windows = len(prepared.second_choices) > 1
    choices: tuple[int | None, ...] = (None, *range(MAX_CUTS)) if compress else (None,)
    constants = len(prepared.traced.plain.consts)
    moving_inputs = [
        constants + k for k, moves in enumerate(prepared.traced.differentiated) if moves
    ]
    return programmed(
        prepared,
        order,
        ("laplacian", metric, first, jacobian, compress),
        best,
        CARRYING_ORDERS,
        ways={} if jacobian else laplacian_ways(prepared, metric, first, given),
        inputs=given,
        sparse=jacobian,
    )


@tree_util.register_pytree_node_class
@dataclass(frozen=True)
class LaplacianJacobian:
    """The Jacobian in a `LaplacianResult`.

    Attributes:
        blocks: for every differentiated leaf its block.
        shape: shape of the output leaf.
    """

    blocks: tuple[SparseJacobian, ...]
    shape: tuple[int, ...]

    @property
    def dense_array(self) -> Array:
        """Shape (*output leaf, n), with n the raveled size of all differentiated leaves.

        Of what `jax.vmap` returns, the batch comes first.
        """
        batch = max((block.batch_shape for block in self.blocks), key=len)
        columns = []
        for block in self.blocks:
            shape = (*self.shape, math.prod(block.structure.in_shape))
            column = jnp.reshape(block.todense(), (*block.batch_shape, *shape))
            columns.append(jnp.broadcast_to(column, (*batch, *shape)))
        return jnp.concatenate(columns, axis=-1)

    @property
    def sparse(self) -> SparseJacobian | tuple[SparseJacobian, ...]:
        """The block of the only differentiated leaf, or the blocks of all."""
        return self.blocks[0] if len(self.blocks) == 1 else self.blocks

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[int, ...]]:
        """Blocks as children, the shape as static data."""
        return (self.blocks,), self.shape

    @classmethod
    def tree_unflatten(cls, shape: tuple[int, ...], children: Any) -> LaplacianJacobian:
        """Rebuild from `tree_flatten`."""
        return cls(tuple(children[0]), shape)


@tree_util.register_pytree_node_class
@dataclass(frozen=True)
class LaplacianResult:
    """Value, Jacobian and Laplacian of one output leaf.

    Attributes:
        x: the value.
        jacobian: its Jacobian: `.dense_array` of shape (*x.shape, n), `.sparse`.
        laplacian: its Laplacian, shaped like x.
    """

    x: Array
    jacobian: LaplacianJacobian
    laplacian: Array

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        """All three as children."""
        return (self.x, self.jacobian, self.laplacian), None

    @classmethod
    def tree_unflatten(cls, static: None, children: Any) -> LaplacianResult:
        """Rebuild from `tree_flatten`."""
        del static
        return cls(*children)


def forward_laplacian(
    fun: Callable[..., Any],
    order: Any = "auto",
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    weights: Any = None,
    seeds: Any = None,
    strict: bool = False,
) -> Callable[..., Any]:
    """Value, Jacobian and Laplacian of every output of `fun` in one program.

    Args:
        fun: as for `laplacian_ve`.
        order: as for `laplacian_ve`.
        argnums: as for `laplacian_ve`.
        has_aux: as for `laplacian_ve`.
        weights: as for `laplacian_ve`; the Jacobian is that of `fun` all the same.
        seeds: as for `weights`.
        strict: as for `laplacian_ve`.

    Returns:
        A function with the signature of `fun` that returns a `LaplacianResult` in the place of
        every output leaf; with has_aux the pair of that and the auxiliary value.

    Raises:
        InvalidArgumentError: for weights or seeds of another shape, or both, and for argnums out
            of range.
        InvalidTypeError: for complex or integer arguments, and for weights or seeds that are not
            real numbers.
        InvalidOrderError: for an order that does not fit the function.
        FallbackError: with strict, naming the primitive and the line of the user's code.
    """
    check_callable(fun)
    check_flags(has_aux=has_aux, strict=strict)
    _check_one_metric(weights, seeds)

    @functools.wraps(fun, updated=())
    def value_jacobian_laplacian(*args: Any, **kwargs: Any) -> Any:
        prepared = prepare(fun, args, kwargs, argnums, has_aux, 2, strict)
        traced = prepared.traced
        check_real_inputs(traced)

        def compute(own: Prepared, given: Any) -> Rows:
            metric, arrays, around = contraction(own, args, *given)
            if around or hessian_takes_less(own, order, metric):
                return _by_rules(own, order, metric, arrays)
            plan = laplacian_plan(own, order, metric, jacobian=True, given=arrays)
            values, blocks = own.run(plan, True, True, arrays)
            rows = sparse_leaves(plan.pruned(True), blocks)
            return values, [[first.todense(), *others] for first, *others in rows]

        values, rows = prepared.within(compute, [(), *prepared.columns], (weights, seeds))
        aux = values[traced.n_out :]
        results = [
            _result(traced, value, blocks, laplacian)
            for value, (laplacian, *blocks) in zip(values[: traced.n_out], rows, strict=True)
        ]
        tree = tree_util.tree_unflatten(traced.out_tree, results)
        return (tree, rebuild_aux(prepared, aux)) if has_aux else tree

    return value_jacobian_laplacian


def _by_rules(prepared: Prepared, order: Any, metric: Metric, arrays: Sequence[Array]) -> Rows:
    """Values, and by output the Laplacian and the blocks of the Jacobian.

    For functions whose second derivatives are taken of JAX's own first ones.
    """
    laplacians = contracted_hessian(prepared, order, metric, arrays)
    evaluate, moving = prepared.of_leaves()
    (values, aux), rows = value_and_jacve(
        evaluate, argnums=tuple(range(len(moving))), has_aux=True, sparse_representation=True
    )(*moving)
    parts = [[laplacian, *row] for laplacian, row in zip(laplacians, rows, strict=True)]
    return [*values, *aux], parts


def _result(
    traced: Traced, value: Array, blocks: Sequence[SparseJacobian], laplacian: Array
) -> LaplacianResult:
    """The result of one output leaf; its blocks stand in the order of the trace."""
    ordered = tuple(blocks[k] for k in raveling_order(traced))
    return LaplacianResult(value, LaplacianJacobian(ordered, tuple(value.shape)), laplacian)


def _metric(
    traced: Traced, args: tuple[Any, ...], weights: Any, seeds: Any
) -> tuple[Metric, list[Array]]:
    """The metric, and its arrays by leaf in the order of the trace."""
    for name, given in (("weights", weights), ("seeds", seeds)):
        _check_real(given, name)
    shapes = [aval.shape for aval in traced.in_types]
    dtypes = [aval.dtype for aval in traced.in_types]
    ravel = raveling_order(traced)
    sizes = [math.prod(shapes[k]) for k in ravel]
    total = sum(sizes)
    starts = dict(zip(ravel, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))

    def part(array: Array, k: int, axis: int) -> Array:
        size = math.prod(shapes[k])
        return lax.slice_in_dim(array, starts[k], starts[k] + size, axis=axis)

    if seeds is not None:
        if np.ndim(seeds) != 2 or np.shape(seeds)[1] != total:
            raise InvalidArgumentError(
                f"seeds must be an array of shape (k, {total}), one row per seed over the raveled "
                f"arguments of {traced.name}, got {type(seeds).__name__} of shape "
                f"{np.shape(seeds)}."
            )
        rows = jnp.asarray(seeds)
        columns = [
            jnp.reshape(part(rows, k, 1), (rows.shape[0], *shapes[k])).astype(dtypes[k])
            for k in range(len(shapes))
        ]
        return Metric("seeds", rows.shape[0]), columns
    if weights is None:
        return Metric(), []
    leaves = tree_util.tree_leaves(weights)
    chosen = tuple(args[position] for position in traced.argnums)
    if [np.shape(leaf) for leaf in leaves] == [shapes[k] for k in ravel] and (
        tree_util.tree_structure(weights)
        in (tree_util.tree_structure(chosen), tree_util.tree_structure(chosen[0]))
    ):
        places = {k: n for n, k in enumerate(ravel)}
        diagonals = [jnp.asarray(leaves[places[k]], dtypes[k]) for k in range(len(shapes))]
        return Metric("diagonal"), diagonals
    if len(leaves) == 1 and np.shape(leaves[0]) == (total,):
        whole = jnp.asarray(leaves[0])
        diagonals = [
            jnp.reshape(part(whole, k, 0), shapes[k]).astype(dtypes[k]) for k in range(len(shapes))
        ]
        return Metric("diagonal"), diagonals
    if len(leaves) == 1 and np.shape(leaves[0]) == (total, total):
        whole = jnp.asarray(leaves[0])
        blocks = [
            jnp.reshape(part(part(whole, i, 0), j, 1), (*shapes[i], *shapes[j])).astype(dtypes[i])
            for i in range(len(shapes))
            for j in range(len(shapes))
        ]
        return Metric("matrix"), blocks
    raise InvalidArgumentError(
        f"weights must be a matrix of shape ({total}, {total}), a diagonal of shape ({total},), or "
        f"a pytree like the differentiated arguments of {traced.name}, got shapes "
        f"{[np.shape(leaf) for leaf in leaves]}."
    )


def _symmetrized(blocks: Sequence[Array]) -> list[Array]:
    """The symmetric part of A, from its blocks by rows of leaves.

    It is all that a symmetric Hessian sees, and what a program needs that takes one of two
    mirrored products.
    """
    count = math.isqrt(len(blocks))
    result = []
    for i in range(count):
        for j in range(count):
            block, mirror = blocks[i * count + j], blocks[j * count + i]
            split = blocks[j * (count + 1)].ndim // 2
            order = (*range(split, mirror.ndim), *range(split))
            result.append((block + lax.transpose(mirror, order).astype(block.dtype)) / 2)
    return result


def _check_one_metric(weights: Any, seeds: Any) -> None:
    if weights is not None and seeds is not None:
        raise InvalidArgumentError("weights and seeds both say what A is; pass one of them.")


def _check_real(given: Any, name: str) -> None:
    """Raise `InvalidTypeError` unless all leaves are arrays of real numbers."""
    for leaf in tree_util.tree_leaves(given):
        dtype = getattr(leaf, "dtype", None) or np.asarray(leaf).dtype
        if not (dtypes.issubdtype(dtype, np.floating) or dtypes.issubdtype(dtype, np.integer)):
            raise InvalidTypeError(
                f"{name} must hold real numbers, got dtype {dtype}. Pass real arrays."
            )
