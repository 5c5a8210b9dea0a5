"""Equations that call another program."""

from __future__ import annotations

__all__ = ["COTANGENT_CALLS", "CUSTOM_CALLS", "INLINED_CALLS"]

#: Calls whose body simply replaces them, with the parameter that holds it.
INLINED_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",
    "core_call": "call_jaxpr",
    "call": "call_jaxpr",
    "core_closed_call": "call_jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}
#: Calls with a derivative rule of their own; the body replaces them where no derivative is asked.
CUSTOM_CALLS = {"custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}
#: Those of functions whose rule exists for cotangents only.
COTANGENT_CALLS = frozenset({"custom_vjp_call", "custom_vjp_call_jaxpr"})
