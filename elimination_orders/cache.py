"""Orders kept on disk.

An entry is one small JSON file, named by a hash of the numbered graph (the names of vertices have
no influence), the objective and the options of the search.  Entries are written to a file of their
own and moved into place, so that several processes may use one folder; whatever cannot be read, or
is no order of the graph with the cost that it claims, is ignored and written anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from elimination_orders.bitgraph import BitProblem
from elimination_orders.native import cache_folder
from elimination_orders.objectives import OBJECTIVES, Objective

__all__ = ["Entry", "PlanCache", "StoredText"]

#: Part of every key: raise it when the meaning of an entry changes.
FORMAT = 1


@dataclass(frozen=True)
class Entry:
    """What is kept of a result.

    Args:
        order: numbers of the vertices, first eliminated first.
        cost: of the order.
        method: what found it.
        lower_bound: no order costs less.
        optimal: whether the order is proved to be of least cost.
        evaluations: orders that the search evaluated.
    """

    order: tuple[int, ...]
    cost: float
    method: str
    lower_bound: float
    optimal: bool
    evaluations: int


@dataclass(frozen=True)
class StoredText:
    """A small file that several processes may write.

    Args:
        path: of the file; its folder is made when it is written.
    """

    path: Path

    def read(self) -> str | None:
        """What it holds, or None if there is nothing to be read."""
        try:
            return self.path.read_text()
        except (OSError, ValueError):
            return None

    def write(self, text: str) -> bool:
        """Replace the file in one step; says whether that worked."""
        folder = self.path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(suffix=".tmp", dir=folder)
            try:
                with os.fdopen(handle, "w") as file:
                    file.write(text)
                os.replace(name, self.path)
            finally:
                Path(name).unlink(missing_ok=True)
        except OSError:
            return False
        return True


@dataclass(frozen=True)
class PlanCache:
    """A folder of orders.

    Args:
        folder: where the entries are; by default a folder ``plans`` in the user's cache folder, see
            `elimination_orders.native.cache_folder`.
        overwrite: False: a stored order is returned and no search is made.  ``"improved"``: the
            search is made, the better order of the two is returned and kept.  True: the search is
            made and its order kept.
        max_bytes: the entries used longest ago are deleted beyond this total size.
    """

    folder: Path = field(default_factory=lambda: cache_folder() / "plans")
    overwrite: bool | Literal["improved"] = False
    max_bytes: int = 64 * 2**20

    def key(self, problem: Any, objective: Objective, options: str) -> str | None:
        """Name of the entry of a problem, or None if the problem cannot be told from others.

        That is so for objectives of the caller's own, and for algebras without a method
        ``fingerprint(edge) -> str`` that is the same in every process.

        Args:
            problem: the numbered problem.
            objective: what is minimised.
            options: of the search, as text.
        """
        if OBJECTIVES.get(objective.name) is not objective:
            return None
        if isinstance(problem, BitProblem):
            kinds = (problem.unit, problem.constant) if problem.tracks_kinds else ()
            content: object = (problem.n, problem.succ, problem.kept, kinds)
        else:
            algebra = getattr(problem.algebra, "wrapped", problem.algebra)
            fingerprint = getattr(algebra, "fingerprint", None)
            if fingerprint is None:
                return None
            rows = [
                [(target, fingerprint(edge)) for target, edge in sorted(row.items())]
                for row in problem.succ
            ]
            content = (problem.n, rows, sorted(problem.kept))
        text = repr((FORMAT, objective.name, options, content))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def load(self, key: str, problem: Any) -> Entry | None:
        """The entry of that name, if it is there and true.

        Args:
            key: see `key`.
            problem: the numbered problem, with which the entry is checked.
        """
        path = self._path(key)
        try:
            data = json.loads(path.read_text())
            entry = Entry(
                order=tuple(int(vertex) for vertex in data["order"]),
                cost=data["cost"],
                method=str(data["method"]),
                lower_bound=data["lower_bound"],
                optimal=bool(data["optimal"]),
                evaluations=int(data["evaluations"]),
            )
            if sorted(entry.order) != list(range(problem.n)):
                return None
            if problem.evaluate(entry.order) != entry.cost:
                return None
            if not 0 <= entry.lower_bound <= entry.cost:
                return None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used just now: the last to be deleted
        return entry

    def store(self, key: str, entry: Entry) -> bool:
        """Write an entry; says whether that worked.  A cache that cannot be written is no error."""
        data = {**entry.__dict__, "order": list(entry.order)}
        if not StoredText(self._path(key)).write(json.dumps(data)):
            return False
        self._shrink()
        return True

    def clear(self) -> None:
        """Delete all entries."""
        for path in self._entries():
            path.unlink(missing_ok=True)

    def __len__(self) -> int:
        """Number of entries."""
        return len(self._entries())

    def _path(self, key: str) -> Path:
        return Path(self.folder) / f"plan-{key}.json"

    def _entries(self) -> Sequence[Path]:
        return sorted(Path(self.folder).glob("plan-*.json"))

    def _shrink(self) -> None:
        found = []
        for path in self._entries():
            try:
                status = path.stat()
            except OSError:  # another process was faster
                continue
            found.append((status.st_mtime_ns, status.st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self.max_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size
