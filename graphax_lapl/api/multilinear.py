"""`multilinear`: functions that are linear in each of their arguments, as one vertex."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..errors import InvalidArgumentError
from ..graph.tracing import check_callable
from ..rules.multilinear import Multilinear, register_multilinear

__all__ = ["multilinear"]


def multilinear(
    fun: Callable[..., Any] | None = None,
    *,
    argnums: Sequence[int] | None = None,
    environments: Callable[..., Sequence[Any]] | None = None,
) -> Callable[..., Any]:
    """Mark a function as linear in each of its arguments: the contraction of a tensor network.

    The function is one vertex. Its derivative with respect to argument i is its *environment*: the
    function with slot i left open. For a scalar function all environments are computed together, by
    `environments` where it is given and by one reverse sweep otherwise, so a gradient costs what
    the environments cost. Of a function that returns an array the tangents are put into the slots.

    The second derivative with respect to one argument is zero, that with respect to two is the
    function with both slots open; in a Laplacian it is taken along the columns that are there.

    Args:
        fun: a function of arrays (positional) that returns one array. Use as a decorator, with or
            without arguments.
        argnums: the arguments that it is linear in; no derivative is taken along others. Default:
            all.
        environments: takes the arguments of `fun`, and returns one array for each of `argnums`, of
            shape `(*output.shape, *argument.shape)`; it may share what they have in common.

    Returns:
        The jitted function.

    Raises:
        InvalidTypeError: if `fun` is not a function.
        InvalidArgumentError: for argnums that are empty or repeated; when differentiated, for
            environments of a wrong number or shape, and for a derivative along an argument that is
            not in `argnums`.

    Example:
        >>> import jax.numpy as jnp
        >>> from graphax_lapl import hessve, multilinear
        >>> @multilinear
        ... def form(x, a, y):
        ...     return x @ a @ y
        >>> a = jnp.array([[1.0, 2.0], [3.0, 4.0]])
        >>> print(hessve(lambda x: form(x, a, x))(jnp.array([1.0, 1.0])))
        [[2. 5.]
         [5. 8.]]
    """
    if fun is None:
        return functools.partial(multilinear, argnums=argnums, environments=environments)
    check_callable(fun)
    chosen = None if argnums is None else tuple(argnums)
    if chosen is not None and (not chosen or len(set(chosen)) < len(chosen) or min(chosen) < 0):
        raise InvalidArgumentError(
            f"argnums must be different positions (from 0), at least one, got {argnums!r}."
        )
    jitted: Callable[..., Any] = jax.jit(fun)
    rule = Multilinear(getattr(fun, "__name__", "function"), fun, chosen, environments)
    register_multilinear(fun, rule)
    return jitted
