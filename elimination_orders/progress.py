"""One line that says how a search stands, rewritten in place.

The text is the result so far: ``annealing: best 295 (0.81x reverse)  41k orders``.
"""

from __future__ import annotations

import math
import sys
import time
from types import TracebackType
from typing import Any

__all__ = ["ProgressLine", "describe"]

_SECONDS_BETWEEN_UPDATES = 0.1


def describe(name: str, best: float, reference: float | None, evaluations: int, note: str) -> str:
    """The text of the line.

    Args:
        name: of the search.
        best: cost of the best order so far; infinite if there is none.
        reference: cost of the reverse order, if known.
        evaluations: number of orders tried.
        note: anything else, such as a temperature.
    """
    if math.isinf(best):
        return f"{name}: {note or 'starting'}"
    text = f"{name}: best {best:g}"
    if reference:
        text += f" ({best / reference:.2f}x reverse)"
    count = f"{evaluations / 1000:.0f}k" if evaluations >= 10_000 else str(evaluations)
    text += f"  {count} orders"
    return f"{text}  {note}" if note else text


class ProgressLine:
    """Context in which the line is shown; silent if not `enabled`.

    Uses rich if it is installed, and plain writing to stderr otherwise.

    Args:
        name: of the search.
        enabled: whether to show anything.
    """

    def __init__(self, name: str, enabled: bool) -> None:
        self.name = name
        self.enabled = enabled
        self._status: Any = None
        self._last = 0.0

    def __enter__(self) -> ProgressLine:
        if self.enabled:
            try:
                from rich.console import Console
            except ImportError:
                return self
            self._status = Console(stderr=True).status(f"{self.name}: starting")
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()
        elif self.enabled:
            sys.stderr.write("\n")

    def update(self, best: float, reference: float | None, evaluations: int, note: str) -> None:
        """Show the state of the search, at most ten times a second."""
        if not self.enabled:
            return
        now = time.perf_counter()
        if now - self._last < _SECONDS_BETWEEN_UPDATES:
            return
        self._last = now
        text = describe(self.name, best, reference, evaluations, note)
        if self._status is not None:
            self._status.update(text)
        else:
            sys.stderr.write("\r\x1b[K" + text)
            sys.stderr.flush()
