"""A program on numbers as a list of operations, which can be looked at before it is run."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from copy import copy
from typing import Any

import numpy as np
from jax import lax

from ..program.fusion import HOLDING, UNBOUNDED, Fusion, Step
from ..program.sines import SINES_SIZE
from ..program.timings import KERNEL, UNVECTORISED, expression_of, timed_as
from .evaluation import Evaluation
from .held_rows import JOINED_HELD, held_for_rows
from .holding import BARRIERS_STAND
from .kernels import written_apart
from .nested_calls import held_for_calls
from .numbers import BATCH, Numbers
from .opposites import turned, unsigned
from .recorded import (
    Number,
    Operation,
    branches_of,
    computed_of,
    evaluations_of,
    in_turns,
    kept_and_repeated,
    kept_places,
    stored_places,
)
from .settled import SUMS, operation_key, power, settled
from .sines import Pair, sines_and_cosines_from
from .stages import FEW_KERNELS, Staged, most_ready, staged
from .unvectorised import held_for_vectors

__all__ = ["Tape", "TooLong"]

#: Bytes of an array up to which XLA's runtime hands no kernel to another thread.
SMALL = 512
#: Nanoseconds of holding a number of few samples where all kernels run on one thread, most numbers
#: that are held, and most numbers in results: each is a kernel.
STAGED_HOLDING = KERNEL / 3
STAGED_HELD = 64
#: Operations of a branch of the last kernel, for all samples together, up to which a result is one.
BRANCHED = 1700
#: Operations that are written for all entries of few samples, up to which numbers keep an axis.
MOST_WRITTEN = 3072
#: Nanoseconds that stages must save where few kernels would do.
STAGING = 4 * KERNEL
#: Nanoseconds of holding a number where more than a few kernels would be handed to other threads.
FEW_HOLDING = KERNEL
#: The same of many samples where so few kernels are run one after the other on one thread.
IN_TURN_HOLDING = 2 * KERNEL / 3
#: Nanoseconds of holding a number that kernels write side by side in chunks.
CHUNK_HOLDING = KERNEL / 2 if BARRIERS_STAND else HOLDING


class TooLong(Exception):
    """Raised by a tape that is full."""


class Tape:
    """Operations on numbers, in the order in which they are computed; equal ones are one.

    Known positions are compared at once, and known zeros are not added. XLA knows as much, but
    what is worth holding is decided here, and every operation takes time to compile.
    """

    def __init__(self, most: int = UNBOUNDED) -> None:
        """Begin without inputs and operations.

        Args:
            most: operations that are recorded; one more raises `TooLong`.
        """
        self.most = most
        #: Samples from which on they are many: kernels are vectorised, and run on several threads.
        self.batch = BATCH
        self.numbers: list[Number] = []
        self.inputs = 0
        self._given: list[range] = []
        self._operations: list[Operation] = []
        self._known: dict[Any, Number] = {}
        # What was found out of results that were asked for; they are told by id, and stay alive.
        self._needs: dict[Any, tuple[list[Operation], list[int], set[int]]] = {}
        self._holds: dict[Any, set[int]] = {}
        self._asked: list[Sequence[Numbers]] = []

    def __len__(self) -> int:
        return len(self._operations)

    def many_from(self, samples: int) -> Tape:
        """The same recorded operations, for which so many samples are many."""
        found = copy(self)
        found.batch = samples
        return found

    def input(self, shape: tuple[int, ...], dtype: Any, moves: bool) -> Numbers:
        """The numbers of the next input; all inputs come before the first operation."""
        numbers = np.empty(shape, object)
        for index in np.ndindex(shape):
            numbers[index] = self._number(dtype, moves)
        self._given.append(range(self.inputs, self.inputs + numbers.size))
        self.inputs += numbers.size
        return numbers

    def apply(self, equation: Any, values: Sequence[Any]) -> list[Any]:
        """Record a pointwise equation (see `run_numbers`)."""
        name, dtype = equation.primitive.name, equation.outvars[0].aval.dtype
        if name in ("square", "integer_pow"):
            return [power(self.record, values[0], equation.params.get("y", 2), dtype)]
        params = equation.primitive.get_bind_params(equation.params)
        call = functools.partial(equation.primitive.bind, **params)
        given = {key: value for key, value in params.items() if value is not None}
        return [self.record(name, call, values, dtype, repr(given) if given else "")]

    def record(
        self,
        name: str,
        call: Callable[..., Any],
        operands: Sequence[Any],
        dtype: Any,
        options: str = "",
    ) -> Any:
        """The result of an operation: a known number, an earlier one, or one to be computed."""
        found = settled(name, operands)
        if found is not None:
            return found
        operands = unsigned(name, options, operands, self._opposite)
        key = operation_key(name, options, operands)
        if key not in self._known:
            for others in turned(name, options, operands, self._opposite):
                opposite = self._known.get(operation_key(name, options, others))
                if opposite is not None:
                    return self.record("neg", lax.neg, (opposite,), dtype)
            if len(self._operations) == self.most:
                raise TooLong
            moves = any(number.moves for number in computed_of(operands))
            self._known[key] = made = self._number(dtype, moves)
            own = timed_as(name, [number.dtype for number in computed_of(operands)])
            self._operations.append(Operation(own, call, tuple(operands), made.place, options))
        return self._known[key]

    def _opposite(self, number: Number) -> Number | None:
        """The earlier number that another is the opposite of, if there is one."""
        if number.place < self.inputs:
            return None
        operation = self._operations[number.place - self.inputs]
        if operation.name == "neg":
            return operation.operands[0]
        if operation.name != "sub":
            return None
        found = self._known.get(operation_key("sub", operation.options, operation.operands[::-1]))
        return found if found is not None and found.place < number.place else None

    def _number(self, dtype: Any, moves: bool) -> Number:
        self.numbers.append(Number(self, len(self.numbers), dtype, moves))
        return self.numbers[-1]

    def has_sines_inside(
        self,
        results: Sequence[Numbers],
        samples: int,
        once: bool,
        rows: bool = False,
        stored: int = 0,
    ) -> bool:
        """Whether sines of many samples are evaluated in the kernel that reads them.

        In memory each array of them is some kernels and a condition. Where little is computed, and
        nothing else is held, that takes longer than all the rest, and JAX has no memory at all.

        Args:
            results: numbers, all of them in arrays.
            samples: of the batch.
            once: whether one kernel evaluates a number once for all entries that read it.
            rows: what branches of kernels write otherwise (see `branches_of`).
            stored: numbers that products and sums of arrays write, where a program has arrays.
        """
        needed, wanted, joined = self.needed(results)
        sines = {operation.place for operation in needed if operation.is_sine}
        kept = sum(expression_of([operation.name]).kept for operation in needed)
        if samples < SINES_SIZE or len(sines) <= stored + kept or not joined.issuperset(wanted):
            return False
        if once:
            return True
        branches = branches_of(results, rows)
        if evaluations_of(needed, wanted, branches, sines) > len(sines):
            return False
        return not self.worth_holding(results, samples, sines, rows)

    def kernels(self, results: Sequence[Numbers]) -> tuple[int, int]:
        """What XLA makes of the results for one sample.

        Returns:
            How many dear numbers it keeps, each in a kernel, and how many operations it writes into
            these and the results': all others, once for every number that is made of them.
        """
        needed, wanted, _ = self.needed(results)
        return kept_and_repeated(needed, wanted)

    def kernels_apart(self, results: Sequence[Numbers]) -> int:
        """How many kernels XLA makes for a single input beside those of the results."""
        return len(written_apart(self.needed(results)[0], results))

    def most_ready(self, results: Sequence[Numbers]) -> int:
        """How many kernels that XLA makes of a few samples wait for none at once."""
        needed, _, _ = self.needed(results)
        operands = {o.place: [n.place for n in computed_of(o.operands)] for o in needed}
        places = [[n.place for n in computed_of(numbers.ravel())] for numbers in results]
        return most_ready(operands, written_apart(needed, results), places)

    def shared_in_rows(self, results: Sequence[Numbers]) -> int:
        """How many operations fewer branches for rows would evaluate than branches for entries."""
        needed, wanted, _ = self.needed(results)
        _, repeated = kept_and_repeated(needed, wanted)
        return repeated - kept_and_repeated(needed, wanted, branches_of(results, True))[1]

    def scaled(self, results: Sequence[Numbers]) -> int:
        """How many results are sums of products with what no sample has of its own."""
        scaled: set[int] = set()
        for operation in self._operations:
            moving = [number.place for number in computed_of(operation.operands) if number.moves]
            product = operation.name == "mul" and len(moving) < len(operation.operands)
            if product or (operation.name in SUMS and scaled.issuperset(moving)):
                scaled.add(operation.place)
        entries = [number for numbers in results for number in computed_of(numbers.ravel())]
        return sum(entry.place in scaled for entry in entries)

    def needed(self, results: Sequence[Numbers]) -> tuple[list[Operation], list[int], set[int]]:
        """The operations that results need, and the places of these, and of those in arrays."""
        key = (len(self._operations), *map(id, results))
        if key not in self._needs:
            self._asked.append(results)
            self._needs[key] = self._find_needed(results)
        return self._needs[key]

    def _find_needed(
        self, results: Sequence[Numbers]
    ) -> tuple[list[Operation], list[int], set[int]]:
        wanted = [number.place for numbers in results for number in computed_of(numbers.ravel())]
        arrays = [numbers for numbers in results if numbers.size > 1]
        joined = {number.place for numbers in arrays for number in computed_of(numbers.ravel())}
        live = set(wanted)
        needed = []
        for operation in reversed(self._operations):
            if operation.place in live:
                needed.append(operation)
                live.update(number.place for number in computed_of(operation.operands))
        needed.reverse()
        return needed, wanted, joined

    def apart(self, operations: Sequence[Operation], samples: int) -> set[int]:
        """Sines and cosines that are evaluated together for a batch of so many samples."""
        return {o.place for o in operations if o.is_sine} if samples >= SINES_SIZE else set()

    def program(
        self,
        results: Sequence[Numbers],
        samples: int,
        all_samples: int,
        rows: bool = False,
        sines: Callable[[Any], Pair] | None = None,
        own: Sequence[bool] | None = None,
    ) -> Callable[[Sequence[Any]], list[Numbers]]:
        """What computes the results from the inputs, for a batch of so many samples.

        What no result needs is left out, and what is worth it is written to memory.

        Args:
            results: numbers.
            samples: evaluated at once.
            all_samples: the same program is evaluated for, one chunk after the other.
            rows: what branches of kernels write (see `branches_of`).
            sines: evaluates a sine and its cosine where they are read; without it they are in
                memory where they are many, those that wait for none of each other together.
            own: for each input whether every sample has its own, where inputs and results have an
                axis of samples; without it they are those of one sample.
        """
        needed, wanted, joined = self.needed(results)
        found = {operation.place for operation in needed if operation.is_sine}
        apart = found if sines else self.apart(needed, all_samples)
        holding = HOLDING if samples == all_samples else CHUNK_HOLDING
        memory, stages = (
            (frozenset[int](), None)  # one kernel evaluates everything once
            if sines
            else self._memory(needed, wanted, joined, results, samples, apart, rows, holding)
        )
        # Without stages, XLA had better leave out of kernels what very many operations share.
        keeps_axes = stages is not None or (
            samples < self.batch and kept_and_repeated(needed, wanted)[1] <= MOST_WRITTEN
        )
        needed, together = in_turns(needed, apart)
        pairs = sines_and_cosines_from(min(samples, SINES_SIZE))
        evaluation = Evaluation(
            self._given,
            {operation.place: operation for operation in needed},
            memory,
            apart,
            together,
            functools.partial(map, sines) if sines else pairs,
            stages,
            samples,
            keeps_axes,
            own,
        )
        return functools.partial(evaluation.run, results)

    def written(self, results: Sequence[Numbers], samples: int) -> int:
        """How many operations XLA writes into kernels for few samples, with repeated ones."""
        needed, wanted, _ = self.needed(results)
        stages = self.stages(results, samples)
        return stages.written if stages else kept_and_repeated(needed, wanted)[1]

    def stages(self, results: Sequence[Numbers], samples: int) -> Staged | None:
        """The stages in which few samples are evaluated, if in any."""
        return self._memory(*self.needed(results), results, samples, ())[1]

    def _memory(
        self,
        needed: Sequence[Operation],
        wanted: Sequence[int],
        joined: Collection[int],
        results: Sequence[Numbers],
        samples: int,
        apart: Collection[int],
        rows: bool = False,
        holding: float = HOLDING,
    ) -> tuple[Collection[int], Staged | None]:
        """What is written to memory, and the stages in which few samples are evaluated."""
        memory = self.worth_holding(results, samples, apart, rows, holding)
        kept = kept_places(needed, results, rows, apart)
        are_few = 1 < samples < self.batch
        memory |= held_for_calls(needed, wanted, kept.union(apart, memory), are_few)
        arrays = sum(numbers.size > 1 for numbers in results)
        if not self.may_be_staged(results, samples):
            return memory, None
        alone = {place for place in wanted if place not in joined}
        dear = stored_places(needed, wanted, memory.union(alone))
        stored = {place for place in dear if self.numbers[place].moves}
        flat = memory.union(stored).difference(alone - memory), None
        if self._is_little(results, samples):
            return flat
        few = self._with_all_apart(needed, results, memory.union(stored))
        if len(few) + arrays <= FEW_KERNELS:
            return flat
        # Results are branches of the last kernel, or kernels of their own.
        operands = {o.place: [n.place for n in computed_of(o.operands)] for o in needed}
        stages = staged(operands, sorted(few), wanted, FEW_KERNELS - 1 - arrays)
        if samples * stages.branched(operands, wanted) > BRANCHED * len(wanted):
            few = self._with_all_apart(needed, results, memory.union(wanted))
            stages = staged(operands, sorted(few), wanted, FEW_KERNELS - 1 - arrays)
        return frozenset(few), stages

    def _with_all_apart(
        self, operations: Sequence[Operation], results: Sequence[Numbers], memory: Collection[int]
    ) -> set[int]:
        """What is held, and all that XLA gives kernels of its own because of it."""

        def own(places: Collection[int]) -> set[int]:
            # Results may be inputs, which are there.
            return {p for p in places if p >= self.inputs and self.numbers[p].moves}

        held = own(memory)
        while True:
            more = own(written_apart(operations, results, held))
            if more <= held:
                return held
            held |= more

    def may_be_staged(self, results: Sequence[Numbers], samples: int) -> bool:
        """Whether all kernels of few samples may run on one thread."""
        if not BARRIERS_STAND or not 1 < samples < self.batch:
            return False  # before, each number that is held is a call more
        return self.has_few(results) or self._is_little(results, samples)

    def has_few(self, results: Sequence[Numbers]) -> bool:
        """Whether results are so few arrays and numbers that each may be a kernel of its own."""
        arrays = [numbers for numbers in results if numbers.size > 1]
        computed = {n.place for numbers in results for n in computed_of(numbers.ravel())}
        return len(arrays) < FEW_KERNELS - 2 and len(computed) <= STAGED_HELD

    def _is_little(self, results: Sequence[Numbers], samples: int) -> bool:
        """Whether no array of a batch is so large that kernels are handed to other threads."""
        given = [[self.numbers[place] for place in places] for places in self._given]
        found = [computed_of(numbers.ravel()) for numbers in results]
        sizes = [numbers.size for numbers in results] + [len(numbers) for numbers in given]
        return all(
            size * samples * np.dtype(numbers[0].dtype).itemsize <= SMALL
            for size, numbers in zip(sizes, [*found, *given], strict=True)
            if numbers
        )

    def worth_holding(
        self,
        results: Sequence[Numbers],
        samples: int,
        apart: Collection[int],
        rows: bool = False,
        holding: float = HOLDING,
    ) -> set[int]:
        """Places of what is worth writing to memory, beside what XLA keeps.

        Args:
            results: numbers.
            samples: evaluated at once.
            apart: places of the sines that are evaluated together.
            rows: what branches of kernels write (see `branches_of`).
            holding: nanoseconds of holding a number.
        """
        told = (len(self._operations), *map(id, results))
        key = (told, samples, self.batch, frozenset(apart), rows, holding)
        if key not in self._holds:
            self._asked.append(results)
            self._holds[key] = self._find_held(results, samples, apart, rows, holding)
        return set(self._holds[key])

    def _find_held(
        self,
        results: Sequence[Numbers],
        samples: int,
        apart: Collection[int],
        rows: bool,
        holding: float,
    ) -> set[int]:
        operations, wanted, joined = self.needed(results)
        moves = [number.moves for number in self.numbers]
        # Where all is one kernel nothing is kept; where some is, most dear numbers are, but those
        # that are worth a kernel for being vectorised.
        written = kept_places(operations, results, rows, apart)
        together = samples >= self.batch and not written
        steps = []
        for operation in operations:
            if moves[operation.place]:
                expression = expression_of([operation.name])
                alone = expression.kept and not together
                if samples >= self.batch and operation.name in UNVECTORISED:
                    alone = operation.place in written
                inputs = tuple(number.place for number in computed_of(operation.operands))
                steps.append(
                    Step(
                        inputs,
                        (operation.place,),
                        expression.nanoseconds,
                        1,
                        alone or operation.place in apart,
                        expression.inside,
                    )
                )
        # A kernel that writes numbers side by side branches for each, or for each row of them.
        branches = branches_of(results, rows)
        beside = bool(joined) and (BARRIERS_STAND or all(place in joined for place in wanted))
        side_by_side = joined if beside or samples < self.batch else ()
        fusion = Fusion(steps, [1] * len(moves), wanted, moves, side_by_side, branches)
        fusion.shared.difference_update(apart)
        if rows:
            return held_for_rows(fusion, samples)
        if beside and samples >= self.batch:
            memory = fusion.held_at(samples, JOINED_HELD, holding)
            room = FEW_KERNELS - len(results) - len(written)
            in_turn = BARRIERS_STAND and not apart and len(memory) <= room
            if in_turn and holding > IN_TURN_HOLDING:
                memory = fusion.held_at(samples, room, IN_TURN_HOLDING)
            known = memory.union(written, apart)
            return memory | held_for_vectors(operations, joined, known, samples, holding)
        if samples >= self.batch:
            return fusion.held_at(samples)
        if samples == 1:
            return set()
        readers = Counter(place for step in steps for place in step.inputs)
        kept = sum(step.kept and readers[step.outputs[0]] > 1 for step in steps)
        few = max(0, FEW_KERNELS - 1 - kept)
        if not self.may_be_staged(results, samples):
            return fusion.held_at(samples, few, FEW_HOLDING)
        many = fusion.held_at(samples, STAGED_HELD, STAGED_HOLDING)
        if kept >= FEW_KERNELS or len(many) <= few:
            return many
        flat = fusion.held_at(samples, few, STAGED_HOLDING)
        saved = fusion.nanoseconds(flat) - fusion.nanoseconds(many)
        price = STAGED_HOLDING * (len(many) - len(flat)) + STAGING
        return many if samples * saved > price else flat
