"""The exceptions this package raises on purpose.

All of them derive from `GraphaxLaplError`, and each also derives from the built-in exception a
caller would expect (`ValueError`, `TypeError`), so that either can be caught.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import jax

__all__ = [
    "NO_MODE_ERRORS",
    "NO_RULE_ERRORS",
    "CollectiveError",
    "FallbackError",
    "GraphaxLaplError",
    "InternalError",
    "InvalidArgumentError",
    "InvalidOrderError",
    "InvalidTypeError",
    "MutableArrayError",
    "NonlinearRuleError",
    "NotDifferentiableError",
    "NotPicklableError",
    "PlanMismatchError",
    "no_rule_refused",
]

#: What JAX, or a primitive of another library, raises where a derivative does not exist in a mode.
NO_MODE_ERRORS = (NotImplementedError, ValueError, RuntimeError)
#: The same where a `TypeError`, too, can come from nothing else.
NO_RULE_ERRORS = (*NO_MODE_ERRORS, TypeError)


class GraphaxLaplError(Exception):
    """Base class of every error raised on purpose by this package."""


class InvalidArgumentError(GraphaxLaplError, ValueError):
    """An argument has a value outside what the function accepts."""


class InvalidTypeError(GraphaxLaplError, TypeError):
    """An argument or a result has a type or dtype that cannot be differentiated."""


class InvalidOrderError(GraphaxLaplError, ValueError):
    """An elimination order is unknown, or is not a permutation of the eliminable vertices."""


class PlanMismatchError(InvalidOrderError):
    """An order or plan was made for another graph than the one it is used on."""


class NotPicklableError(GraphaxLaplError, TypeError):
    """A plan is pickled, which holds equations traced by JAX; its order can be."""


class FallbackError(GraphaxLaplError, NotImplementedError):
    """Under `strict=True`: a part of the function has no rule."""


class NonlinearRuleError(GraphaxLaplError, ValueError):
    """The backward function of a `custom_vjp` is not linear in the cotangent."""

    def __init__(self, operation: str, where: str):
        """Say which operation it is, what that means, and what to do.

        Args:
            operation: name of the first primitive that is not linear, e.g. "clamp".
            where: `file:line (function)` in the user's code, or nothing.
        """
        super().__init__(
            f"The backward function of a jax.custom_vjp{f' ({where})' if where else ''} is not "
            f"linear in its cotangent: it applies '{operation}' to it. Such a function has no "
            "Jacobian to multiply with, and what reverse mode gives depends on the outputs one "
            "asks for. Use jax.jacrev or jax.grad for it, or let the backward function be linear."
        )


class NotDifferentiableError(GraphaxLaplError, NotImplementedError):
    """A part of the function has no derivative of this order in JAX, and no rule of the user's."""

    def __init__(self, what: str, where: str, reason: Exception):
        """Say what cannot be differentiated, where it stands, what JAX says and what to do.

        Args:
            what: the subject of the sentence, e.g. "'foo' cannot be differentiated".
            where: `file:line (function)` in the user's code, or nothing.
            reason: what JAX raised.
        """
        said = " ".join(str(reason).split())
        said = said if len(said) < 300 else said[:300] + "..."
        super().__init__(
            f"{what}{f' ({where})' if where else ''}: JAX says {type(reason).__name__}: {said} "
            "Give the function around it a derivative rule, with jax.custom_jvp or "
            "register_partial, or keep its inputs constant with jax.lax.stop_gradient."
        )


@contextlib.contextmanager
def no_rule_refused(
    what: str,
    where: str,
    errors: tuple[type[Exception], ...] = NO_RULE_ERRORS,
    rules_run: bool = False,
) -> Iterator[None]:
    """Says `NotDifferentiableError(what, where)` where JAX raises one of `errors`.

    An error of this package, of a derivative that is taken inside a user's function, passes.

    Args:
        what: the subject of the sentence.
        where: `file:line (function)` in the user's code, or nothing.
        errors: the types that are about a missing derivative.
        rules_run: whether derivative rules of the user's run meanwhile; what they raise passes.
    """
    try:
        yield
    except GraphaxLaplError:
        raise
    except errors as error:
        if rules_run and _raised_below_users_code(error):
            raise
        raise NotDifferentiableError(what, where, error) from error


#: Code that is not the user's: JAX, this package, and what their context managers run through.
_NOT_THE_USERS = (
    os.path.dirname(jax.__file__) + os.sep,
    os.path.dirname(__file__) + os.sep,
    contextlib.__file__,
)


def _raised_below_users_code(error: Exception) -> bool:
    """Whether a function of the user's was running where an error was raised."""
    step = error.__traceback__
    while step is not None:
        if not step.tb_frame.f_code.co_filename.startswith(_NOT_THE_USERS):
            return True
        step = step.tb_next
    return False


class CollectiveError(GraphaxLaplError, ValueError):
    """A collective over a mapped axis stands between the inputs and the outputs."""

    def __init__(self, name: str, axis: str, where: str):
        """Say what the operation does, why that has no Jacobian, and what to do.

        Args:
            name: of the primitive, e.g. "psum".
            axis: that it works along.
            where: `file:line (function)` in the user's code, or nothing.
        """
        super().__init__(
            f"'{name}' over the mapped axis '{axis}'{f' ({where})' if where else ''} is "
            "differentiated from inside of the map, where one sample's output depends on all "
            "samples: a Jacobian with respect to one of them is not defined (jax.jacfwd and "
            "jax.jacrev disagree there). Differentiate the mapped function instead, as in "
            f"jacve(jax.vmap(fun, axis_name='{axis}')), or keep what comes from other samples "
            "constant with jax.lax.stop_gradient."
        )


class MutableArrayError(GraphaxLaplError, NotImplementedError):
    """A value that moves with the inputs is kept in a mutable array (`jax.new_ref`)."""

    def __init__(self, name: str, where: str):
        """Say which operation it is, and what to do.

        Args:
            name: of the primitive, e.g. "swap".
            where: `file:line (function)` in the user's code, or nothing.
        """
        super().__init__(
            f"'{name}'{f' ({where})' if where else ''} keeps a value that depends on the "
            "differentiated inputs in a mutable array (jax.new_ref), through which derivatives are "
            "not followed; expected values that are returned. Carry it through the loop instead, "
            "update a copy with x.at[i].set(y), or use jax.jacfwd or jax.jacrev for this function."
        )


class InternalError(GraphaxLaplError, RuntimeError):
    """An invariant of the compiler is broken: a bug in this package, not in the caller's code."""

    def __init__(self, message: str):
        """Append the request to report the bug to `message`."""
        super().__init__(f"{message} This is a bug in graphax_lapl; please report it.")
