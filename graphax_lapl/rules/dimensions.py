"""The small language in which users say how a partial's dimensions belong together.

`"b i -> b o"` names the dimensions of an operand and of the output. A name on both sides is a
dimension along which the partial is diagonal; the array of the partial has the output's names, then
the operand's own: here `b o i`. `...` stands for any number of leading dimensions, diagonal too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..edges.maps import IndexMap, label
from ..errors import InvalidArgumentError

__all__ = ["Dimensions", "parse"]


@dataclass(frozen=True)
class Dimensions:
    """Names of the dimensions of some operands and of the output, and their sizes.

    Attributes:
        operands: for each operand its names.
        out: names of the output.
        sizes: sizes by name.
    """

    operands: tuple[tuple[str, ...], ...]
    out: tuple[str, ...]
    sizes: dict[str, int]

    @property
    def array(self) -> tuple[str, ...]:
        """Names of the array's dimensions: the output's, then new ones of each operand."""
        return tuple(dict.fromkeys(name for names in (self.out, *self.operands) for name in names))

    def shape(self, names: Sequence[str]) -> tuple[int, ...]:
        """Sizes of the given names."""
        return tuple(self.sizes[name] for name in names)

    def axes(self, names: Sequence[str], labels: Sequence[str]) -> list[IndexMap]:
        """Index maps of dimensions, with labels numbered as in `labels`."""
        return [label(labels.index(name)) for name in names]


def split(pattern: str, operands: int) -> tuple[list[list[str]], list[str]]:
    """The names of a pattern.

    Raises:
        InvalidArgumentError: for a pattern that is not of the form `"a b, c -> a d"`.
    """
    problem = ""
    sides = pattern.split("->")
    left = [part.split() for part in sides[0].split(",")]
    right = sides[1].split() if len(sides) == 2 else []
    if len(sides) != 2:
        problem = "it has no single '->'"
    elif len(left) != operands:
        problem = f"it names {len(left)} operands, and {operands} are meant"
    for names in (*left, right):
        if len(set(names)) < len(names):
            problem = "a name stands twice on one side"
        if not all(name == "..." or name.isidentifier() for name in names):
            problem = "a name is not a word"
        if "..." in names[1:]:
            problem = "'...' stands for leading dimensions only"
    if any(names[:1] == ["..."] for names in left) and right[:1] != ["..."]:
        problem = "'...' is diagonal, so that the output has it too"
    if problem:
        example = "... i -> ... o" if operands == 1 else "... i, ... j -> ... o"
        raise InvalidArgumentError(
            f"The dimensions {pattern!r} are not understood: {problem}. Write for example "
            f"{example!r}."
        )
    return left, right


def parse(
    pattern: str, shapes: Sequence[tuple[int, ...]], out: tuple[int, ...], where: str
) -> Dimensions:
    """The dimensions of a pattern for operands and an output of given shapes.

    Raises:
        InvalidArgumentError: where the shapes do not have the dimensions that are named.
    """
    left, right = split(pattern, len(shapes))
    sizes: dict[str, int] = {}
    found: list[tuple[str, ...]] = []
    for names, shape in zip((*left, right), (*shapes, out), strict=True):
        rest = len(shape) - len([name for name in names if name != "..."])
        if rest < 0 or (rest > 0 and names[:1] != ["..."]):
            raise InvalidArgumentError(
                f"{where}: {pattern!r} names {' '.join(names) or 'nothing'} for an array of shape "
                f"{shape}. Name every dimension, or begin with '...'."
            )
        leading = [f"...{k}" for k in range(rest)] if names[:1] == ["..."] else []
        full = (*leading, *(name for name in names if name != "..."))
        for name, size in zip(full, shape, strict=True):
            if sizes.setdefault(name, size) != size:
                raise InvalidArgumentError(
                    f"{where}: dimension {name!r} of {pattern!r} has size {sizes[name]} in one "
                    f"array and {size} in another (shapes {list(shapes)} -> {out})."
                )
        found.append(full)
    return Dimensions(tuple(found[:-1]), found[-1], sizes)
