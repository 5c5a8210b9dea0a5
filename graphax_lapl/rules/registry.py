"""The table of rules: which function gives the local partials of which primitive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..graph.listing import Equation, Listing
from .site import Piece, Site

__all__ = [
    "CALLS",
    "CALL_RULES",
    "RULES",
    "USER_RULES",
    "Rule",
    "defrule",
    "find_rule",
    "find_user_rule",
    "follows_users_rules",
]

#: `rule(site, i, k)`: the partial of output k with respect to input i, as a sum of pieces.
Rule = Callable[[Site, int, int], list[Piece]]

RULES: dict[str, Rule] = {}
#: Names of the primitive that calls a jitted function.
CALLS = frozenset({"jit", "pjit"})


def defrule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for primitives of these names."""

    def register(rule: Rule) -> Rule:
        for name in names:
            RULES[name] = rule
        return rule

    return register


#: Rules of users, by primitive; they go before those of the package.
USER_RULES: dict[Any, Rule] = {}
#: Rules of users for functions: finds the one of a call from its parameters.
CALL_RULES: list[Callable[[dict[str, Any]], Rule | None]] = []


def find_user_rule(primitive: Any, params: dict[str, Any]) -> Rule | None:
    """The rule of a user, None where there is none."""
    if primitive in USER_RULES:
        return USER_RULES[primitive]
    if primitive.name in CALLS:
        for find in CALL_RULES:
            rule = find(params)
            if rule is not None:
                return rule
    return None


def follows_users_rules(listing: Listing) -> bool:
    """Whether a rule of a user's is met, which JAX's own derivatives know nothing of."""
    return any(
        find_user_rule(equation.primitive, equation.params) is not None
        for equation in listing.equations
        if any(equation.active)
    )


def find_rule(equation: Equation) -> Rule | None:
    """The rule of an equation or recognised call, None where there is none."""
    return find_user_rule(equation.primitive, equation.params) or RULES.get(equation.name)
