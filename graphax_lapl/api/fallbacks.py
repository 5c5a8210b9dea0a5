"""What is said of the places without a rule: one log message each, or an error under `strict`."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import FallbackError
from ..graph.listing import Listing
from ..rules.opaque import NO_RULE

__all__ = ["Fallback", "announce", "noted_fallbacks", "refuse"]

logger = logging.getLogger("graphax_lapl")

_announced: set[Fallback] = set()


@dataclass(frozen=True)
class Fallback:
    """A place where no rule applies.

    Attributes:
        primitive: name of the primitive.
        source: `file:line (function)` in the user's code.
        reason: why there is no rule for it.
    """

    primitive: str
    source: str
    reason: str


def noted_fallbacks(listing: Listing, lowered: Listing) -> list[Fallback]:
    """The fallbacks noted while an equal listing was lowered, with the source lines of this one."""
    return [
        Fallback(equation.name, equation.source, lowered.fallbacks[equation.outputs[0]])
        for equation in listing.equations
        if equation.outputs and equation.outputs[0] in lowered.fallbacks
    ]


def announce(fallbacks: Iterable[Fallback]) -> None:
    """Log each place once per process: as a warning where only a rule is missing."""
    for fallback in fallbacks:
        if fallback in _announced:
            continue
        _announced.add(fallback)
        if fallback.reason == NO_RULE:
            logger.warning(
                "No partial for primitive '%s' (%s): treated as an opaque linear map.",
                fallback.primitive,
                fallback.source,
            )
        else:
            logger.info(
                "Primitive '%s' (%s): %s.", fallback.primitive, fallback.source, fallback.reason
            )


def refuse(fallbacks: Iterable[Fallback], function: str) -> None:
    """Raise `FallbackError` where there is a fallback."""
    found = list(dict.fromkeys(fallbacks))
    if not found:
        return
    places = "; ".join(f"'{f.primitive}' ({f.source}): {f.reason}" for f in found)
    raise FallbackError(
        f"strict=True, and {function} has no rule for {places}. Register one with "
        "graphax_lapl.register_partial, write that part with operations that have rules, or pass "
        "strict=False."
    )
