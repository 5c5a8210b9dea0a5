"""Recorded operations on numbers, carried out on the arrays that these are cut from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from ..program.fusion import UNBOUNDED
from ..program.regions import SINES
from .holding import held, linear_barrier
from .numbers import Numbers, split
from .placed import filled
from .recorded import Number, Operation, computed_of, read
from .sines import Pair
from .stages import Stage, Staged, called

__all__ = ["Evaluation"]


class Evaluation(NamedTuple):
    """How operations are carried out.

    XLA counts how often a kernel evaluates each of its operations by the places where an axis comes
    or goes, and gives what it counts too often a kernel of its own: slices of inputs too. Numbers
    of few samples, whose kernels count, may therefore keep an axis for themselves, from where they
    are cut out of the inputs to where they are put together.

    Attributes:
        given: for each input the places of its numbers.
        operations: by their places, in order.
        memory: places of what is written to memory.
        apart: places of the sines and cosines that are evaluated together.
        together: for each of their arguments all those that are evaluated with it (`in_turns`).
        sines_and_cosines: evaluates those of several arguments.
        stages: in which all is evaluated, if in any.
        samples: evaluated at once.
        keeps_axes: whether numbers keep an axis.
        own: for each input whether every sample has its own, where inputs have the axis of samples;
            None where they are those of one sample.
    """

    given: Sequence[range]
    operations: Mapping[int, Operation]
    memory: Collection[int]
    apart: Collection[int]
    together: Mapping[int, Sequence[int]]
    sines_and_cosines: Callable[[Sequence[Any]], Iterable[Pair]]
    stages: Staged | None
    samples: int
    keeps_axes: bool
    own: Sequence[bool] | None = None

    def run(self, results: Sequence[Numbers], inputs: Sequence[Any]) -> list[Numbers]:
        """The results, as arrays without axes of one sample.

        Of inputs with the axis of samples, results have it where samples differ in them. `jax.vmap`
        would give them the same, but takes several times as long to trace an operation.
        """
        arrays = dict(enumerate(inputs))
        values: dict[int, Any] = {}
        for stage in self.stages.stages if self.stages else ():
            values.update(self._called(stage, arrays, values))
        values.update(self._split(arrays))
        self._compute(self.stages.last.computes if self.stages else self.operations, values)
        if self.keeps_axes:
            wanted = [number for numbers in results for number in computed_of(numbers.ravel())]
            # Once for each: equal entries are the same array.
            places = {number.place: self._lead(number) for number in wanted}
            values.update({place: lax.reshape(values[place], s) for place, s in places.items()})
        return [
            filled(numbers.shape, (read(number, values) for number in numbers.ravel()))
            for numbers in results
        ]

    def _compute(self, places: Iterable[int], values: dict[int, Any]) -> None:
        """Evaluates operations, and adds what they result in to the values."""
        in_memory = _held_batch if self.samples > 1 and self.own is None else linear_barrier
        both = self._sines if self.own is None else jax.vmap(self._sines)
        pairs: dict[int, Pair] = {}
        for place in places:
            operation = self.operations[place]
            operands = [read(operand, values) for operand in operation.operands]
            if self.keeps_axes:
                operands = [_with_axis(x) for x in operands]
            if self.own is not None and any(n.moves for n in computed_of(operation.operands)):
                operands = self._spread(operation.operands, operands)
            if place in self.apart:
                argument = operation.operands[0].place
                if argument not in pairs:
                    group = self.together[argument]
                    found = both([values[own] for own in group])
                    pairs.update(zip(group, found, strict=True))
                values[place] = pairs[argument][SINES.index(operation.name)]
                continue
            value = operation.call(*operands)
            values[place] = in_memory(value) if place in self.memory else value

    def _sines(self, arguments: Sequence[Any]) -> list[Pair]:
        return [*self.sines_and_cosines(arguments)]

    def _lead(self, number: Number) -> tuple[int, ...]:
        """The axes of a number."""
        return () if self.own is None or not number.moves else (self.samples,)

    def _spread(self, numbers: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        """The values of an operation's operands, all of them with the axis of samples."""
        return [
            value
            if isinstance(number, Number) and number.moves
            else lax.broadcast(value, (self.samples,))
            for number, value in zip(numbers, values, strict=True)
        ]

    def _split(self, arrays: Mapping[int, Any]) -> dict[int, Any]:
        """The numbers of some of the inputs, by their places."""
        found: dict[int, Any] = {}
        for k, array in arrays.items():
            steps = int(self.own is not None and self.own[k])
            for place, number in zip(self.given[k], split(array, steps).ravel(), strict=True):
                wide = (*number.shape, 1)
                found[place] = lax.reshape(number, wide) if self.keeps_axes else number
        return found

    def _called(
        self, stage: Stage, arrays: Mapping[int, Any], values: Mapping[int, Any]
    ) -> dict[int, Any]:
        """What a stage writes, from inputs as arrays and from numbers."""
        inputs = sum(map(len, self.given))
        own = [k for k in arrays if any(place in self.given[k] for place in stage.reads)]
        passed_on = [place for place in stage.reads if place >= inputs]

        def body(*passed: Any) -> list[Any]:
            given = dict(zip(own, passed, strict=False))
            inside = dict(zip(passed_on, passed[len(own) :], strict=True))
            for part in stage.parts:
                inside.update(self._called(part, given, inside))
            if not stage.parts:
                inside.update(self._split(given))
                self._compute(stage.computes, inside)
            return [inside[place] for place in stage.writes]

        found = called(body, [*(arrays[k] for k in own), *(values[place] for place in passed_on)])
        return dict(zip(stage.writes, found, strict=True))


def _with_axis(operand: Any) -> Any:
    """What is known with the axis of the others; bare Python numbers fit anything."""
    known = isinstance(operand, np.ndarray | np.generic)
    return lax.broadcast(np.asarray(operand), (1,)) if known else operand


def _held_batch(value: Any) -> Any:
    return held(value, (2, UNBOUNDED))
