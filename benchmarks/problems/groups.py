"""Which problems a suite measures by itself, and which ones when it is asked for them."""

from collections.abc import Mapping
from typing import Any, Literal

#: "named": the list that the suites run and whose geometric means the documentation quotes. "more":
#: problems beside it, on which nothing was tuned; they have tables and means of their own.
Group = Literal["named", "more"]
GROUPS: tuple[Group, ...] = ("named", "more")


def names_in(problems: Mapping[str, Any], group: Group) -> tuple[str, ...]:
    """Names of the problems of a group."""
    return tuple(name for name, problem in problems.items() if problem.group == group)
