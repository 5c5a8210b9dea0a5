"""The table of rules: which function gives the local partials of which primitive."""

from __future__ import annotations

from collections.abc import Callable

from .site import Piece, Site

__all__ = ["RULES", "Rule", "defrule", "find_rule"]

#: `rule(site, i, k)`: the partial of output k with respect to input i, as a sum of pieces.
Rule = Callable[[Site, int, int], list[Piece]]

RULES: dict[str, Rule] = {}


def defrule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for primitives of these names."""

    def register(rule: Rule) -> Rule:
        for name in names:
            RULES[name] = rule
        return rule

    return register


def find_rule(name: str) -> Rule | None:
    """The rule of a primitive or recognised call, None where there is none."""
    return RULES.get(name)
