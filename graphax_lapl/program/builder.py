"""From a graph and an order to a program: eliminate the vertices one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Protocol, Self

import numpy as np

from ..edges.algebra import add, compose, without_opaque
from ..edges.operations import Cost, Operation, Recipe, canonical
from ..edges.terms import Structure, Term
from ..errors import InternalError
from ..graph.computational_graph import ComputationalGraph, VertexName
from ..graph.keys import value_key
from ..graph.listing import Atom, Constant, Equation
from ..rules.collectives import refuse_collectives
from ..rules.cotangents import refuse_nonlinear_rules
from ..rules.elementwise import PRIMITIVE_PARTIALS
from ..rules.lowering import check_holomorphic
from ..rules.site import Known, Local, OpaqueMap, Primal, Reference
from .instructions import (
    Block,
    ConstantInstruction,
    EdgeInstruction,
    Elimination,
    LocalInstruction,
    OpaqueInstruction,
    PrimalInstruction,
    Program,
    Slot,
)
from .sums import RunningSum

__all__ = ["Begun"]

Edge = tuple[Structure, tuple[int, ...]]
#: Primitives that a function and a partial of another one may both evaluate.
PARTIALS = frozenset(PRIMITIVE_PARTIALS.values())


class StraightLine(Protocol):
    """Products and sums of partials that lead to a Jacobian, finer than vertex elimination."""

    def run(self, partials: Any, multiply: Any, add: Any) -> Any:
        """Carry the steps out on `partials` by (from, to); the Jacobian by (input, output)."""
        ...


class Builder:
    def __init__(self, graph: ComputationalGraph):
        self.graph = graph
        self.listing = graph.listing
        self.program = Program()
        self.primal: dict[int, int] = {}
        self.made: dict[Hashable, int] = {}
        self.kinds: dict[tuple[tuple[int, ...], Any, bool], Slot] = {}  # few, of many slots
        #: Sums of arrows from inputs to outputs: no elimination reads them.
        self.running: dict[tuple[VertexName, VertexName], RunningSum] = {}
        self.puts_off = False
        self.sums: list[Recipe] = []
        self.eliminating: VertexName | None = None

    def fork(self) -> Self:
        """A builder that goes on from here; what either appends, the other does not see."""
        twin = copy(self)
        program = self.program
        twin.program = replace(
            program,
            slots=[*program.slots],
            inputs=[*program.inputs],
            instructions=[*program.instructions],
            blocks=[*program.blocks],
            eliminations=[*program.eliminations],
        )
        twin.primal, twin.made, twin.running = {**self.primal}, {**self.made}, {}
        return twin

    # -- slots ---------------------------------------------------------------------------------

    def slot(self, shape: tuple[int, ...], dtype: Any, array: bool = True) -> int:
        slots, kind = self.program.slots, (shape, dtype, array)
        found = self.kinds.get(kind)
        if found is None:
            found = self.kinds[kind] = Slot(tuple(shape), dtype, array)
        slots.append(found)
        return len(slots) - 1

    def constant(self, value: np.ndarray) -> int:
        key = ("constant", value.dtype, value.shape, value.tobytes())
        if key not in self.made:
            slot = self.slot(value.shape, value.dtype)
            self.program.instructions.append(ConstantInstruction(value, (), (slot,)))
            self.made[key] = slot
        return self.made[key]

    def value(self, atom: Any) -> int:
        """The slot of a primal value."""
        if atom.__class__ is int and atom not in self.listing.value_of:
            slot = self.primal.get(atom)
            if slot is not None:
                return slot
        held = self.listing.value(atom)
        if held is None:
            raise InternalError("A tangent has no value.")
        if isinstance(held, Constant):
            return self.constant(np.asarray(held.value))
        slot = self.primal.get(held)
        if slot is None and held in self.listing.known:
            slot = self.primal[held] = self.constant(self.listing.known[held])
        return self.primal[held] if slot is None else slot

    def reference(self, reference: Reference, dtype: Any) -> int:
        """The slot that will hold what a reference stands for."""
        if isinstance(reference, Primal):
            return self.value(reference.variable)
        if isinstance(reference, Known):
            return self.constant(reference.value)
        if isinstance(reference, Local):
            inputs = tuple(self.reference(argument, dtype) for argument in reference.arguments)
            key: Hashable = (PRIMITIVE_PARTIALS.get(reference.fun, reference.fun), inputs)
            if key not in self.made:
                slot = self.slot(reference.shape, dtype)
                self.program.instructions.append(LocalInstruction(reference, inputs, (slot,)))
                self.made[key] = slot
            return self.made[key]
        return self.opaque(reference, dtype)

    def opaque(self, reference: OpaqueMap, dtype: Any) -> int:
        present = tuple(argument is not None for argument in reference.arguments)
        inputs = tuple(self.reference(a, dtype) for a in reference.arguments if a is not None)
        place = (reference.into, reference.out, reference.conjugate)
        types = tuple(self.listing.type_of(atom) for atom in reference.equation.inputs)
        key = (self._map_key(reference.equation, inputs), place, present, types, inputs)
        if key not in self.made:
            refuse_collectives(reference.equation)
            refuse_nonlinear_rules(reference.equation, reference.into, reference.out, *types)
            slot = self.slot((), dtype, array=False)
            self.program.instructions.append(
                OpaqueInstruction(reference, present, types, inputs, (slot,))
            )
            self.made[key] = slot
        return self.made[key]

    def _map_key(self, equation: Equation, inputs: tuple[int, ...]) -> Hashable:
        """A key under which equations have the same linear maps."""
        key = value_key(equation, inputs) if self.listing.moves_with else None
        return id(equation) if key is None else key

    # -- the function itself -------------------------------------------------------------------

    def primals(self) -> None:
        """Evaluate every equation that has a value; dead ones are removed at the end."""
        for variable in (*self.listing.constants, *self.listing.inputs):
            type_ = self.listing.variables[variable]
            self.primal[variable] = self.slot(type_.shape, type_.dtype)
        self.program.inputs = [
            self.primal[v] for v in (*self.listing.constants, *self.listing.inputs)
        ]
        wanted, value = self._wanted_values(), self.value
        # Derivatives by a rule and of a value itself have equations of their own, of equal values.
        seen: dict[Hashable, list[int]] = {}
        for equation in self.listing.equations:
            if not equation.effects and wanted.isdisjoint(equation.outputs):
                continue
            inputs = tuple([value(atom) for atom in equation.inputs])
            key = value_key(equation, inputs) if self.listing.moves_with else None
            if key is not None and key in seen:
                self.primal.update(zip(equation.outputs, seen[key], strict=True))
                continue
            outputs = []
            for variable in equation.outputs:
                type_ = self.listing.variables[variable]
                self.primal[variable] = self.slot(type_.shape, type_.dtype)
                outputs.append(self.primal[variable])
            if key is not None:
                seen[key] = outputs
            self.program.instructions.append(PrimalInstruction(equation, inputs, tuple(outputs)))
            name = equation.name
            if name in PARTIALS and all(p is None for p in equation.params.values()):
                self.made.setdefault((name, inputs), outputs[0])

    def _wanted_values(self) -> set[int]:
        """Variables whose value a local partial or an output needs."""
        wanted: set[int] = set()
        value, elsewhere = self.listing.value, self.listing.value_of

        def want(atom: Any) -> None:
            held = value(atom) if atom in elsewhere else atom
            if isinstance(held, int):
                wanted.add(held)

        def want_reference(reference: Reference | None) -> None:
            if isinstance(reference, Primal):
                want(reference.variable)
            elif isinstance(reference, Local | OpaqueMap):
                for argument in reference.arguments:
                    want_reference(argument)

        for reference in self.wanted_references():
            want_reference(reference)
        for atom in self.wanted_atoms():
            want(atom)
        for equation in reversed(self.listing.equations):
            if equation.effects or not wanted.isdisjoint(equation.outputs):
                if elsewhere:
                    for atom in equation.inputs:
                        want(atom)
                else:
                    wanted.update([a for a in equation.inputs if a.__class__ is int])
        return wanted

    def wanted_references(self) -> Iterable[Reference]:
        """The references that the program reads."""
        for arrow in self.graph.arrows.values():
            yield from arrow.references

    def wanted_atoms(self) -> Iterable[Atom]:
        """The atoms whose values the program reads otherwise."""
        return self.listing.outputs

    def dtype_of(self, vertex: Any) -> Any:
        """Dtype of a vertex of the elimination."""
        return self.graph.by_name[vertex].dtype

    def name_of(self, vertex: Any) -> VertexName:
        """Name of a vertex of the elimination, as users know it."""
        name: VertexName = vertex
        return name

    # -- accumulation --------------------------------------------------------------------------

    def replay(
        self, recipe: Recipe, operands: Sequence[int], dtype: Any, vertex: VertexName | None
    ) -> tuple[int, ...]:
        """Append the steps of a recipe on concrete slots; the slots of the result's factors."""
        if not recipe.steps:
            # Most products with an identity keep the factors as they are.
            if recipe.operands == tuple(range(len(operands))):
                return tuple(operands)
            return tuple([operands[position] for position in recipe.operands])
        slots = list(operands)
        for operation, positions in recipe.steps:
            inputs = tuple([slots[position] for position in positions])
            slots.append(self.operate(operation, inputs, dtype, vertex))
        return tuple([slots[position] for position in recipe.operands])

    def operate(
        self,
        operation: Operation,
        inputs: tuple[int, ...],
        dtype: Any,
        vertex: VertexName | None,
    ) -> int:
        key: Hashable = canonical(operation, inputs)
        slot = self.made.get(key)
        if slot is None:
            slot = self.made[key] = self.slot(operation.shape, dtype)
            self.program.instructions.append(
                EdgeInstruction(operation, inputs, (slot,), dtype, vertex)
            )
        return slot

    def finish(
        self,
        order: Sequence[VertexName] | StraightLine,
        max_work: float | None,
        edges: dict[VertexName, dict[VertexName, Edge]],
        into: dict[VertexName, dict[VertexName, None]],
    ) -> Program | None:
        """Eliminate in order what `start` returned, and collect the blocks."""
        if not isinstance(order, Sequence):
            self.follow(order, edges)
            self.collect(edges)
            return self.program
        work, self.puts_off = 0, True
        for vertex in order:
            elimination = self.eliminate(vertex, edges, into)
            if max_work is not None:
                work += elimination.cost.muls + elimination.cost.adds
                if work > max_work:
                    return None
        self.settle(edges)
        self.collect(edges)
        return self.program

    def settle(self, edges: dict[VertexName, dict[VertexName, Edge]]) -> None:
        """Finish the sums that were put off; the last elimination is charged with them."""
        self.sums = []
        for (u, w), running in self.running.items():
            total = running.total()
            if total is None:
                del edges[u][w]
            else:
                edges[u][w] = total
        if self.running:
            self.program.longest_sum = max(running.count for running in self.running.values())
            last = self.program.eliminations[-1]
            self.program.eliminations[-1] = replace(last, recipes=(*last.recipes, *self.sums))

    def joined(self, first: Edge, second: Edge, dtype: Any) -> Edge | None:
        """The sum of two parallel arrows, None for zero; its recipe goes to `sums`."""
        recipe = add(first[0], second[0])
        self.sums.append(recipe)
        slots = self.replay(recipe, (*first[1], *second[1]), dtype, self.eliminating)
        return None if recipe.result is None else (recipe.result, slots)

    def start(
        self,
    ) -> tuple[dict[VertexName, dict[VertexName, Edge]], dict[VertexName, dict[VertexName, None]]]:
        """Evaluate the function and its local partials; arrows by source, and sources by target."""
        graph = self.graph
        self.primals()
        edges: dict[VertexName, dict[VertexName, Edge]] = {v.name: {} for v in graph.vertices}
        into: dict[VertexName, dict[VertexName, None]] = {v.name: {} for v in graph.vertices}
        costs = []
        for (u, v), arrow in graph.arrows.items():
            dtype = graph.by_name[v].dtype
            operands = [self.reference(reference, dtype) for reference in arrow.references]
            edges[u][v] = (arrow.structure, self.replay(arrow.recipe, operands, dtype, None))
            into[v][u] = None
            costs.append(arrow.recipe.cost)
        self.program.local_cost = Cost.total(costs)
        return edges, into

    def eliminate(
        self,
        vertex: VertexName,
        edges: dict[VertexName, dict[VertexName, Edge]],
        into: dict[VertexName, dict[VertexName, None]],
    ) -> Elimination:
        """Connect every predecessor with every successor, and remove the vertex."""
        sources, targets, name = into.pop(vertex), edges.pop(vertex), self.name_of(vertex)
        products: list[Recipe] = []
        fill_in = 0
        self.sums, self.eliminating = [], name
        reached = [(w, *edge, self.dtype_of(w)) for w, edge in targets.items()]
        for u in sources:
            row = edges[u]
            inner, inner_slots = row.pop(vertex)
            for w, outer, outer_slots, dtype in reached:
                recipe = compose(outer, inner)
                products.append(recipe)
                if recipe.result is None:
                    continue
                slots = self.replay(recipe, (*outer_slots, *inner_slots), dtype, name)
                new: Edge | None = (recipe.result, slots)
                known = row.get(w)
                if known is None:
                    fill_in += 1
                    into[w][u] = None
                elif self.puts_off and isinstance(u, str) and isinstance(w, str):
                    self.put_off(u, w, known, (recipe.result, slots), dtype)
                    continue
                else:
                    new = self.joined(known, (recipe.result, slots), dtype)
                if new is None:
                    del row[w], into[w][u]
                else:
                    row[w] = new
        for w in targets:
            into[w].pop(vertex, None)
        recipes = (*products, *self.sums)
        done = Elimination(name, len(sources), len(targets), fill_in, recipes)
        self.program.eliminations.append(done)
        return done

    def put_off(self, u: VertexName, w: VertexName, first: Edge, new: Edge, dtype: Any) -> None:
        """Add to an arrow from an input to an output, which nothing reads before `settle`."""
        running = self.running.get((u, w))
        if running is None:
            running = RunningSum(lambda a, b: self.joined(a, b, dtype))
            running.add(first)
            self.running[u, w] = running
        running.add(new)

    def follow(self, steps: StraightLine, edges: dict[VertexName, dict[VertexName, Edge]]) -> None:
        """Replay products and sums of partials (edge or face elimination) instead of vertices."""
        recipes: list[Recipe] = []

        def replayed(
            recipe: Recipe, first: tuple[Edge, Any], second: tuple[Edge, Any], dtype: Any
        ) -> tuple[Edge, Any] | None:
            recipes.append(recipe)
            if recipe.result is None:
                return None
            slots = self.replay(recipe, (*first[0][1], *second[0][1]), dtype, None)
            return (recipe.result, slots), dtype

        def multiply(outer: tuple[Edge, Any], inner: tuple[Edge, Any]) -> Any:
            return replayed(compose(outer[0][0], inner[0][0]), outer, inner, outer[1])

        def plus(first: tuple[Edge, Any], second: tuple[Edge, Any]) -> Any:
            return replayed(add(first[0][0], second[0][0]), first, second, first[1])

        partials = {
            (u, v): (edge, self.graph.by_name[v].dtype)
            for u, row in edges.items()
            for v, edge in row.items()
        }
        results = steps.run(partials, multiply, plus)
        for row in edges.values():
            row.clear()
        for (u, v), (edge, _) in results.items():
            edges[u][v] = edge
        self.program.eliminations.append(Elimination("all", 0, 0, 0, tuple(recipes)))

    def collect(self, edges: dict[VertexName, dict[VertexName, Edge]]) -> None:
        """The blocks of the Jacobian, and the values of the outputs."""
        graph = self.graph
        leaves = self.listing.outputs
        for name, atom in zip(graph.outputs, leaves, strict=False):
            row = []
            for source in graph.inputs:
                edge = edges[source].get(name) if name is not None else None
                start = graph.by_name[source]
                out_shape = self.listing.type_of(atom).shape
                dtype = _block_dtype(start.dtype, self.listing.type_of(atom).dtype)
                if edge is not None:
                    check_holomorphic(edge[0], graph.function)
                    edge = self.without_opaque(edge, dtype)
                row.append(
                    Block(
                        edge[0] if edge is not None else None,
                        edge[1] if edge is not None else (),
                        out_shape,
                        start.shape,
                        dtype,
                    )
                )
            self.program.blocks.append(row)
        self.program.values = [self.value(atom) for atom in leaves]

    def without_opaque(self, edge: Edge, dtype: Any) -> Edge:
        """Write out what only an opaque map knows."""
        structure, slots = edge
        if not any(factor.opaque for factor in structure.factors):
            return edge
        recipe = without_opaque(structure)
        assert recipe.result is not None
        return recipe.result, self.replay(recipe, slots, dtype, None)


def _block_dtype(source: Any, target: Any) -> Any:
    """The input's dtype, made complex where the output is."""
    if np.issubdtype(target, np.complexfloating) and not np.issubdtype(source, np.complexfloating):
        return np.dtype(np.complex128 if np.dtype(source).itemsize == 8 else np.complex64)
    return source


def _sums_entries(term: Term) -> bool:
    """Whether an output is the sum of several inputs."""
    own = {name for axis in term.out for name in axis.labels}
    return any(n not in own and term.sizes[n] > 1 for axis in term.into for n in axis.labels)


class Begun:
    """What the programs that accumulate the Jacobian of a graph have in common, whatever the order.

    Args:
        graph: the computational graph.
    """

    def __init__(self, graph: ComputationalGraph):
        """Evaluate the function and its local partials."""
        self.graph = graph
        self._builder = Builder(graph)
        self._edges, self._into = self._builder.start()

    def program(
        self, order: Sequence[VertexName] | StraightLine, max_work: float | None = None
    ) -> Program | None:
        """The program that goes on in an order.

        Args:
            order: a permutation of `graph.eliminable`, or the products and sums to carry out.
            max_work: give up, with None, once the eliminations multiply and add more than this.
        """
        edges = {u: {**row} for u, row in self._edges.items()}
        into = {v: {**column} for v, column in self._into.items()}
        return self._builder.fork().finish(order, max_work, edges, into)

    def between_fixed_arrows(self) -> frozenset[VertexName]:
        """Vertices whose arrows no input moves; none where none has numbers to multiply or to sum.

        The same numbers then stand there for every sample of a batch.
        """
        builder, graph = self._builder, self.graph
        moving = [builder.primal[graph.by_name[name].variable] for name in graph.inputs]
        fixed = builder.program.unreached(moving)
        numbers: Counter[VertexName] = Counter()
        summed: set[VertexName] = set()
        moved: set[VertexName] = set()
        for u, row in self._edges.items():
            for v, (structure, slots) in row.items():
                if not fixed.issuperset(slots):
                    moved.update((u, v))
                elif slots:
                    numbers.update((u, v))
                elif any(map(_sums_entries, structure.terms)):
                    summed.update((u, v))
        still = frozenset(v for v in graph.eliminable if v not in moved)
        work = any(numbers[v] + (v in summed) > 1 for v in still if numbers[v])
        return still if work else frozenset()
