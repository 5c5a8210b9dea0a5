"""`log(exp(x) + exp(c))`, of which softplus is the case of zero.

JAX's derivative with respect to x is `exp(x - y)` of the result y, with infinities replaced: a
function of two arrays, whose own derivative has the columns of both. It is the logistic function of
`x - c`, of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..graph.users_rules import is_users_rule, rule_source

__all__ = ["tangent_of_logaddexp"]


def tangent_of_logaddexp(name: str, params: dict[str, Any]) -> Callable[..., Array] | None:
    """The tangent of a call of JAX's `logaddexp` with a number; None for all other calls.

    Args:
        name: name of the primitive.
        params: its parameters.
    """
    if name != "custom_jvp_call" or is_users_rule(params):
        return None
    if not rule_source(params).startswith("_logaddexp_jvp "):
        return None
    avals = params["call_jaxpr"].in_avals
    of_number = len(avals) == 2 and avals[1].shape == ()
    return _tangent if of_number and np.issubdtype(avals[0].dtype, np.floating) else None


def _tangent(x: Array, number: Array, x_dot: Array | None, number_dot: Array | None) -> Array:
    if number_dot is None:
        assert x_dot is not None
        return lax.mul(x_dot, lax.logistic(lax.sub(x, lax.convert_element_type(number, x.dtype))))
    if x_dot is None:
        return jax.jvp(lambda number: jnp.logaddexp(x, number), (number,), (number_dot,))[1]
    return jax.jvp(jnp.logaddexp, (x, number), (x_dot, number_dot))[1]
