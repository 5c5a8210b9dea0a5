"""From a function call to a plan: trace, lower, find the order, build; remembered by graph."""

from __future__ import annotations

import dataclasses
import functools
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from ..errors import InvalidArgumentError, InvalidOrderError
from ..graph.computational_graph import ComputationalGraph
from ..graph.inline import flatten_jaxpr
from ..graph.keys import Unstable, listing_key
from ..graph.listing import Listing
from ..graph.meshes import inside, run_inside
from ..graph.tracing import Traced, check_all_complex, is_traced, trace
from ..program.builder import Begun
from ..rules import treatment
from ..rules.custom import registry_version
from ..rules.lowering import lower
from ..rules.second_order import SecondOrderGraph, lower_second_order
from ..rules.window_tables import with_window_tables
from .autotune import CANDIDATES, Autotune, Inputs, as_autotune, measured_winner
from .compressed import cheaper_compressed, compressed_plan, suits
from .compression import COMPRESSED_ORDERS, Compressed
from .elementwise_first import elementwise_first
from .fallbacks import Fallback, announce, noted_fallbacks, refuse
from .few_samples import attached, with_few_samples, with_products_alone
from .fixed_parts import with_fixed_parts_first
from .orders import EliminationOrder, is_strategy, parting_orders, resolve_order
from .placement import specs_of
from .plan import Plan
from .varying import run_varying

__all__ = ["Prepared", "clear_caches", "plan_for", "prepare", "programmed"]

#: Orders that "auto" chooses from; ties go to the earliest.
AUTO_ORDERS = ("reverse", "forward", "markowitz", "eliad")
#: Where one block is the sum of more arrows than this, only the first two of `AUTO_ORDERS` are
#: tried: the others are found by sums of arrows as well, one after the other, which would take
#: the square of their number (hundreds of unrolled scalar equations).
LONG_SUM = 128
#: The primitive that `Prepared.second_choices` is about.
WINDOWED = "conv_general_dilated"
#: Why a second derivative is not accumulated on the function's own graph.
NO_SECOND_ORDER = "its second derivative has no closed form and is taken by differentiating twice"
RULES_OF_RULES = "a custom derivative rule says that a moving value does not move"
#: An operator that JAX has no way of its own for.
NO_WAYS: Mapping[str, Callable[[Plan], Plan | None]] = MappingProxyType({})
#: Plans kept per process, of half as many functions; a compiled one takes a megabyte or two.
MAX_PLANS = 256


#: Values of outputs, and results by output and column.
Rows = tuple[list[Any], list[list[Any]]]
Made = TypeVar("Made", bound=Plan | None)


@dataclass
class Prepared:
    """A traced call, ready to be planned.

    Attributes:
        traced: the trace, with the call's values.
        listing: the flat program.
        active_outputs: for each leaf of the value whether it depends on the inputs.
        key: what the graph depends on; None where that cannot be compared between traces.
        orders: how often the function is differentiated, one or two.
    """

    traced: Traced
    listing: Listing
    active_outputs: list[bool]
    key: Hashable | None
    orders: int = 1

    def of_leaves(self) -> tuple[Callable[..., Any], list[jax.Array]]:
        """The traced function of the differentiated leaves alone, and those leaves.

        The function returns the list of the value's leaves and that of the auxiliary ones.
        """
        traced = self.traced
        places = [k for k, moves in enumerate(traced.differentiated) if moves]

        def evaluate(*leaves: Any) -> tuple[list[Any], list[Any]]:
            inputs = list(traced.leaves)
            for place, leaf in zip(places, leaves, strict=True):
                inputs[place] = leaf
            values = jaxpr_as_fun(traced.closed)(*inputs)
            return values[: traced.n_out], values[traced.n_out :]

        return evaluate, [jnp.asarray(traced.leaves[place]) for place in places]

    def values(self) -> list[Any]:
        """The array leaves of the value and of the auxiliary output, by the function itself."""
        return list(jaxpr_as_fun(self.traced.closed)(*self.traced.leaves))

    def aux_values(self) -> list[Any]:
        """The array leaves of the auxiliary output, by the function itself."""
        if len(self.traced.closed.jaxpr.outvars) == self.traced.n_out:
            return []  # evaluated for nothing, it would print or call back once more
        return self.values()[self.traced.n_out :]

    @property
    def inputs(self) -> list[Any]:
        """Values for the program: constants of the trace, then the leaves."""
        return [*self.traced.plain.consts, *self.traced.leaves]

    @property
    def columns(self) -> list[tuple[int, ...]]:
        """One column for every differentiated leaf, see `within`."""
        return [(k,) for k in range(len(self.traced.in_types))]

    def within(
        self, compute: Callable[..., Rows], columns: Sequence[Sequence[int]], given: Any = ()
    ) -> Rows:
        """What an operator computes from the call's values, for programs that know of no mesh.

        No axes of one are explicit there, and arrays do not vary along any.

        Args:
            compute: from the call and `given` to values of the last outputs, and for each output a
                list of arrays or `SparseJacobian`s.
            columns: for each item of such a list the differentiated leaves whose dimensions follow
                those of the output, if it is not a number.
            given: a pytree of what else holds arrays.
        """
        traced = self.traced
        if traced.mesh is None and not traced.varies:
            return compute(self, given)

        def run(values: Any) -> Rows:
            leaves, constants, more = values
            plain = ClosedJaxpr(getattr(traced.plain, "jaxpr", traced.plain), constants)
            own = dataclasses.replace(
                traced, closed=plain, plain=plain, mesh=None, varies=False, leaves=leaves
            )
            return compute(dataclasses.replace(self, traced=own), more)

        values = (traced.leaves, traced.plain.consts, given)
        if traced.varies:
            run = functools.partial(run_varying, run)
        return run_inside(run, traced.mesh, values, lambda rows: specs_of(traced, rows, columns))

    def run(
        self, plan: Plan, values: bool = False, sparse: bool = False, given: Sequence[Any] = ()
    ) -> Rows:
        """Carry a plan out on the call's values, see `Plan.run`."""
        return plan.run([*self.inputs, *given], values, sparse, self.key is not None)

    @cached_property
    def graph(self) -> ComputationalGraph:
        """The computational graph, from the cache where the same one was lowered before."""
        return self.second.graph if self.orders > 1 else self._lowered(lower)

    @cached_property
    def second(self) -> SecondOrderGraph:
        """The graph of second order, for a function traced for two orders."""
        return self._lowered(lower_second_order)

    @cached_property
    def second_choices(self) -> list[SecondOrderGraph]:
        """`second`, and where there are convolutions a graph that takes each as a whole.

        Their vertices are the same, so that an order of one is an order of the other.
        """
        if not any(e.name == WINDOWED and any(e.active) for e in self.listing.equations):
            return [self.second]
        listing = dataclasses.replace(self.listing, whole_windows=True)
        traced = self.traced
        with inside(traced.mesh):
            whole = lower_second_order(
                listing, traced.differentiated, self.active_outputs, traced.name
            )
        # A convolution whose windows meet nothing but padding or zeros has no arrow in the first
        # graph only. There is nothing to be gained from a second one then.
        return [self.second, whole] if _same_vertices(self.second, whole) else [self.second]

    def _lowered(self, lowering: Callable[..., Any]) -> Any:
        def make() -> Any:
            traced = self.traced
            with inside(traced.mesh):
                return lowering(
                    self.listing, traced.differentiated, self.active_outputs, traced.name
                )

        lowered = make() if self.key is None else _graphs.get(self.key, make)
        announce(noted_fallbacks(self.listing, lowered.listing))
        return lowered

    def fallbacks(self) -> list[Fallback]:
        """The places where no rule applies, those of second order included."""
        found = noted_fallbacks(self.listing, self.graph.listing)
        if self.orders == 1:
            return found
        if self.listing.disagrees:
            found.append(Fallback("custom_jvp", self.traced.name, RULES_OF_RULES))
        makers = {equation.outputs: equation for equation in self.listing.equations}
        for item in self.second.unknown:
            equation = makers[item.equation.outputs]
            found.append(Fallback(equation.name, equation.source, NO_SECOND_ORDER))
        return found


def _same_vertices(first: SecondOrderGraph, second: SecondOrderGraph) -> bool:
    """Whether ids mean the same variables in both graphs."""
    one, two = ([(v.name, v.variable) for v in g.graph.vertices] for g in (first, second))
    return one == two


class _Cache:
    """A bounded table that forgets what was used longest ago."""

    def __init__(self, size: int):
        self.size = size
        self.lock = threading.Lock()
        self.entries: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        with self.lock:
            if key in self.entries:
                self.entries.move_to_end(key)
                return self.entries[key]
        made = make()
        with self.lock:
            self.entries[key] = made
            while len(self.entries) > self.size:
                self.entries.popitem(last=False)
        return made


_graphs = _Cache(MAX_PLANS)
_plans = _Cache(MAX_PLANS)


def clear_caches() -> None:
    """Forget all graphs and plans of this process."""
    _graphs.entries.clear()
    _plans.entries.clear()


def prepare(
    fun: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    argnums: int | Sequence[int],
    has_aux: bool = False,
    orders: int = 1,
    strict: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    entries: bool = False,
) -> Prepared:
    """Trace and inline one call of `fun`, to be differentiated once or twice.

    With `entries` all second derivatives are wanted, and not sums of them.

    Raises:
        FallbackError: with `strict`, where a part of `fun` has no rule.
    """
    traced = trace(fun, args, kwargs, argnums, has_aux, allow_int)
    if holomorphic:
        check_all_complex(traced)
    traced_again = any(is_traced(value) for value in (*traced.leaves, *traced.plain.consts))
    with inside(traced.mesh):
        listing, active = flatten_jaxpr(
            traced.plain,
            traced.differentiated,
            functools.partial(treatment, entries=entries),
            orders,
            traced_again,
        )
        with_window_tables(listing)
    key: Hashable | None
    try:
        with inside(traced.mesh):
            held = listing_key(listing, traced_again)
        key = (
            orders,
            entries,
            registry_version(),
            held,
            tuple(traced.differentiated),
            tuple(active),
            traced.n_out,
            jax.config.jax_enable_x64,  # type: ignore[attr-defined]
            # Equations hold the mesh that they were traced in, and cannot be met in another one.
            jax.sharding.get_abstract_mesh(),
            tuple(variable.aval.sharding for variable in traced.plain.jaxpr.invars),
        )
    except Unstable:
        key = None
    prepared = Prepared(traced, listing, active[: traced.n_out], key, orders)
    if strict:
        refuse(prepared.fallbacks(), traced.name)
    return prepared


def plan_for(prepared: Prepared, order: Any, sparse: bool = False) -> Plan:
    """The plan for an order specification; the same graph and order are planned once.

    Where candidates are timed, `sparse` says what they are to return.
    """
    tuned = as_autotune(order)
    if isinstance(order, str):
        order = COMPRESSED_ORDERS.get(order.lower(), order)
    if not any(prepared.traced.differentiated) and (tuned or isinstance(order, Compressed)):
        tuned, order = None, "reverse"  # all are integers: there is nothing to choose from
    if tuned is not None:
        return _remembered(prepared, (tuned, sparse), lambda: _tuned(prepared, tuned, sparse))
    if isinstance(order, str) and order.lower() == "auto":
        return _remembered(prepared, "auto", lambda: _automatic(prepared))
    if isinstance(order, Compressed):
        return _remembered(prepared, order, lambda: _compressed(prepared, order))
    named = is_strategy(order)
    wanted = order if named else resolve_order(order, prepared.graph)
    return _remembered(
        prepared, wanted, lambda: _built(prepared, resolve_order(wanted, prepared.graph))
    )


def programmed(
    prepared: Prepared,
    order: Any,
    wanted: Hashable,
    best: Callable[[Sequence[EliminationOrder]], Plan],
    choices: Sequence[str],
    more: Callable[[], Sequence[EliminationOrder]] = tuple,
    ways: Mapping[str, Callable[[Plan], Plan | None]] = NO_WAYS,
    inputs: Sequence[Any] = (),
    sparse: bool = False,
    alone: str | None = None,
) -> Plan:
    """A plan whose program is not a plain Jacobian's, remembered like any other.

    Args:
        prepared: the traced call.
        order: the order as the user gave it.
        wanted: what distinguishes the program from others of the same graph and order.
        best: builds the cheapest plan that follows one of several orders.
        choices: names of the orders that "auto" chooses from.
        more: further orders that "auto" chooses from.
        ways: what does without elimination, by the name that `order` may have; each is made
            from a plan of the same operator, and None where it does not suit the function.
        inputs: what the program takes beside constants and leaves.
        sparse: what is asked for, for candidates that are timed.
        alone: the one of `ways` that "auto" may take for single inputs.
    """
    graph = prepared.graph
    tuned = as_autotune(order)

    def named(name: str) -> Plan:
        return programmed(prepared, name, wanted, best, choices, more)

    def way(name: str) -> Plan | None:
        def make() -> Plan | None:
            return ways[name](named(choices[0]))

        return _remembered(prepared, (wanted, name), make)

    if tuned is not None:
        names = tuned.candidates or ("auto", *choices, *ways)
        made = {n: functools.partial(way if n in ways else named, n) for n in names}
        given = _inputs(prepared, tuned, inputs)
        return _remembered(
            prepared,
            (wanted, tuned, sparse),
            lambda: _measured(measured_winner(tuned, given, made, wanted, sparse)),
        )
    if isinstance(order, str) and order in ways:
        plan = way(order)
        if plan is None:
            raise InvalidOrderError(
                f"order={order!r} does not suit {graph.function}: JAX cannot evaluate it that way, "
                "or it would not give what is asked for. Use another order, for example 'auto'."
            )
        return plan
    if isinstance(order, str) and order.lower() == "auto":

        def chosen() -> Plan:
            plan = best([*(resolve_order(name, graph) for name in choices), *more()])
            if alone is not None and alone in ways:
                plan = with_products_alone(plan, functools.partial(way, alone))
            return _renamed(plan, f"auto ({plan.order.method})")

        return _remembered(prepared, (wanted, "auto"), chosen)
    key = order if is_strategy(order) else _vertex_order(order, graph)
    return _remembered(prepared, (wanted, key), lambda: best([_vertex_order(key, graph)]))


def _vertex_order(order: Any, graph: ComputationalGraph) -> EliminationOrder:
    """The order that is meant; eliminations of edges or faces are about Jacobians alone."""
    found = resolve_order(order, graph)
    if found.steps is not None:
        raise InvalidOrderError(
            f"order: eliminations of {found.method} accumulate a Jacobian, got one for an operator "
            f"on {graph.function}, which needs an order of vertices. Use for example 'auto'."
        )
    return found


def _built(prepared: Prepared, order: EliminationOrder) -> Plan:
    plan = Plan.build(Begun(prepared.graph), order)
    assert plan is not None
    if order.compression is not None:
        return compressed_plan(plan, prepared.traced, order.compression)
    return attached(plan, prepared.traced)


def _compressed(prepared: Prepared, wanted: Compressed) -> Plan:
    """Compressed evaluation with the structure of the cheapest elimination."""
    elimination = _remembered(prepared, ("cheapest",), lambda: _cheapest(prepared))
    return compressed_plan(elimination, prepared.traced, wanted)


def _automatic(prepared: Prepared) -> Plan:
    """The cheapest elimination, or compressed evaluation where that is clearly cheaper.

    For few samples it may be so where for many it is not.
    """
    best = _remembered(prepared, ("cheapest",), lambda: _cheapest(prepared))
    traced = prepared.traced
    chosen = cheaper_compressed(best, traced) or with_few_samples(best, traced)
    return _renamed(chosen, f"auto ({chosen.order.method})")


def _tuned(prepared: Prepared, wanted: Autotune, sparse: bool) -> Plan:
    """The plan that is fastest among the candidates of `wanted`."""

    def made(name: str) -> Plan | None:
        compressed = COMPRESSED_ORDERS.get(name)
        if compressed is not None and not suits(prepared.traced, prepared.graph, compressed):
            return None
        try:
            return plan_for(prepared, name)
        except InvalidArgumentError:
            if compressed is None:
                raise
            return None  # too many positions to colour

    names = wanted.candidates or CANDIDATES
    candidates = {name: functools.partial(made, name) for name in names}
    given = _inputs(prepared, wanted, ())
    return _measured(measured_winner(wanted, given, candidates, sparse=sparse))


def _inputs(prepared: Prepared, wanted: Autotune, more: Sequence[Any]) -> Inputs:
    """What a program runs on: constants and coefficients are the same for all samples."""
    traced = prepared.traced
    own = [position not in wanted.shared for position in traced.positions]
    values = [*prepared.inputs, *more]
    if wanted.batch is not None and not any(own):
        raise InvalidArgumentError(
            f"shared={wanted.shared!r} names all arguments of {traced.name}, so that a batch has "
            "nothing of its own. Leave out the batch, or those arguments that differ."
        )
    return Inputs(values, [False] * len(traced.plain.consts) + own + [False] * len(more))


def _measured(plan: Plan) -> Plan:
    return _renamed(plan, f"autotune ({plan.order.method})")


def _renamed(plan: Plan, method: str) -> Plan:
    return dataclasses.replace(plan, order=dataclasses.replace(plan.order, method=method))


def _cheapest(prepared: Prepared) -> Plan:
    """The plan with the least predicted work among a few fixed orders.

    Where all paths pass through fewer numbers than go in and come out, both sides start there. For
    the gradient of one number reverse mode is taken: no program has more to do than a few times the
    function (Baur and Strassen 1983), and other orders save per cents, for times the planning.
    """
    best: Plan | None = None
    graph = prepared.graph
    before, after = _numbers(graph, graph.inputs), _numbers(graph, graph.outputs)
    names = ("reverse",) if after == 1 < before else AUTO_ORDERS
    orders = [resolve_order(name, graph) for name in names[:2]]
    tried: set[tuple[int, ...]] = set()
    begun = Begun(graph)

    def candidates() -> Iterator[EliminationOrder]:
        yield from orders
        if best is not None and len(orders) > 1:
            yield from elementwise_first(graph, best.order)
        yield from (resolve_order(name, graph) for name in names[2:])
        yield from parting_orders(graph, min(before, after))

    for order in candidates():
        if order.vertices in tried:
            continue
        tried.add(order.vertices)
        # An order that is hopeless is given up before its program is complete.
        limit = None if best is None else 2 * best.predicted_work
        plan = Plan.build(begun, order, limit)
        if plan is not None and (best is None or plan.predicted_work < best.predicted_work):
            best = plan
        if order.method == "forward" and best is not None and best.program.longest_sum > LONG_SUM:
            break
    assert best is not None
    return with_fixed_parts_first(begun, best)


def _numbers(graph: ComputationalGraph, names: Iterable[Any]) -> int:
    """Numbers that the inputs or outputs of a graph hold together."""
    return sum(math.prod(graph.by_name[name].shape) for name in names if name is not None)


def _remembered(prepared: Prepared, wanted: Hashable, make: Callable[[], Made]) -> Made:
    with inside(prepared.traced.mesh):
        if prepared.key is None:
            return make()
        found: Made = _plans.get((prepared.key, wanted), make)
        return found
