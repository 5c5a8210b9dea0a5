"""Which derivative rules were written by the user, and which by JAX for its own functions."""

from __future__ import annotations

import os
from typing import Any

import jax

from .calls import CUSTOM_CALLS
from .listing import nested_primitives

__all__ = ["is_users_rule", "rule_is_written_in", "rule_source", "runs_rules"]


def is_users_rule(params: dict[str, Any]) -> bool:
    """Whether a call's derivative rule was written outside of JAX, as far as can be told.

    JAX's own rules (relu, logaddexp, sinc, ...) are derivatives of what their functions compute,
    though not of the pieces that these are computed by, where the pieces meet.
    """
    rule = _written_in(params.get("jvp_jaxpr_fun"))
    if rule is None:
        return True
    if rule.endswith("custom_derivatives.py"):  # `defjvps` wraps the rules, wherever they are
        body = _written_in(getattr(params.get("call_jaxpr"), "jaxpr", None)) or ""
        return not (body.startswith(_JAX) and f"{os.sep}nn{os.sep}" in body)
    return not rule.startswith(_JAX)


def runs_rules(name: str, params: dict[str, Any]) -> bool:
    """Whether to differentiate an equation runs functions that are derivative rules."""
    return name in CUSTOM_CALLS or any(n in CUSTOM_CALLS for n in nested_primitives(params))


def rule_is_written_in(params: dict[str, Any], file: str) -> bool:
    """Whether a call's derivative rule is from a file, as far as can be told."""
    return _written_in(params.get("jvp_jaxpr_fun")) == file


def rule_source(params: dict[str, Any]) -> str:
    """Name, file and line of a call's derivative rule, as far as they can be told."""
    info = getattr(params.get("jvp_jaxpr_fun"), "debug_info", None)
    return str(getattr(info, "func_src_info", ""))


_JAX = os.path.dirname(jax.__file__) + os.sep


def _written_in(function: Any) -> str | None:
    """The file that a traced function is from; None where that is not known."""
    info = getattr(getattr(function, "debug_info", None), "func_src_info", None)
    if not isinstance(info, str) or " at " not in info:
        return None
    return info.rpartition(" at ")[2].rpartition(":")[0]
