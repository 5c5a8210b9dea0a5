"""Orders in files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ..errors import InvalidArgumentError
from .orders import EliminationOrder

__all__ = ["SavedPlan", "load", "save"]

FORMAT = "graphax_lapl plan 1"


@dataclass(frozen=True)
class SavedPlan:
    """An order read from a file.

    Attributes:
        order: the order with the fingerprint of its graph.
        function: name of the function it was made for.
        muls: multiplications it costs there.
    """

    order: EliminationOrder
    function: str
    muls: int

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the graph it was made for."""
        return self.order.fingerprint


def save(plan: SavedPlan, path: str | Path) -> None:
    """Write an order and the graph's fingerprint to a JSON file."""
    content = {
        "format": FORMAT,
        "function": plan.function,
        "muls": plan.muls,
        **plan.order.to_dict(),
    }
    Path(path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def load(path: str | Path) -> SavedPlan:
    """Read what `save` wrote.

    Raises:
        InvalidArgumentError: where the file is not a saved plan.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise KeyError("format")
        order = EliminationOrder.from_dict(content)
        return SavedPlan(order, str(content["function"]), int(content["muls"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"path: {path} is not a plan saved by Plan.save ({error}). Save it again."
        ) from error
