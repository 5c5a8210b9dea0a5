"""Whether ratios have grown since an earlier result.

Times of two runs are not compared, because machines drift; ratios to a reference that ran in the
same process are. A ratio has grown where its median exceeds the earlier one by more than both runs'
nulls explain: the product of how far each null strays from one.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.core.tables import median, number, outcome


@dataclass(frozen=True)
class Change:
    """One ratio, earlier and now.

    Attributes:
        where: problem, task and method.
        reference: what the ratio refers to.
        before: the earlier median.
        now: the present median, None where the method has no result any more.
        allowed: by what factor it may grow.
        note: what the method says instead of a result.
    """

    where: str
    reference: str
    before: float
    now: float | None
    allowed: float
    note: str = ""

    @property
    def is_worse(self) -> bool:
        """Whether the ratio has grown beyond the nulls."""
        return self.now is None or self.now > self.before * self.allowed

    def __str__(self) -> str:
        """One line."""
        if self.now is None:
            return f"{self.where}: no result ({self.note or 'not measured'})"
        return (
            f"{self.where}: {number(self.now)} of {self.reference}, was {number(self.before)} "
            f"(nulls allow a factor of {self.allowed:.2f})"
        )


def read_result(path: Path, suite: str) -> list[Any]:
    """The entries of an earlier result, of all problems or of one.

    Raises:
        ValueError: the file holds no result of this suite.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    entries = content if isinstance(content, list) else [content]
    if not entries or any(not isinstance(e, dict) or e.get("suite") != suite for e in entries):
        raise ValueError(f"{path} is not a result of the suite {suite}")
    return entries


def changes(
    earlier: Iterable[Mapping[str, Any]],
    present: Iterable[Mapping[str, Any]],
    ours: Sequence[str],
    names: Sequence[str] = (),
) -> list[Change]:
    """Every ratio that both results may be compared in.

    Args:
        earlier: entries of the earlier result.
        present: those of this one.
        ours: methods whose ratios are compared.
        names: problems that count; all by default.
    """
    now = {entry["report"]["name"]: entry["report"] for entry in present}
    found = []
    for entry in earlier:
        report = entry["report"]
        if names and report["name"] not in names:
            continue
        tasks = now.get(report["name"], {}).get("tasks", {})
        for name, before in report["tasks"].items():
            after, reference = tasks.get(name, {}), before["reference"]
            for method in ours:
                old, new = (median(task, method, reference) for task in (before, after))
                if old is None or reference is None:
                    continue
                if new is None and outcome(after, reference).get("note"):
                    continue  # the peer is not here
                found.append(
                    Change(
                        f"{report['name']}, {name}, {method}",
                        reference,
                        old,
                        new,
                        _spread(before.get("null")) * _spread(after.get("null")),
                        str(outcome(after, method).get("note", "")),
                    )
                )
    return found


def _spread(null: Mapping[str, float] | None) -> float:
    return 1.0 if null is None else max(null["high"], 1 / null["low"], 1.0)
