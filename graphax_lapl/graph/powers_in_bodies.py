"""Powers with known exponents in the bodies of loops and branches, as products and roots.

Bodies stay programs of their own, in which exponents are literals, or constants that are handed
over. Powers outside of them stay as they are: their exponents are known where they are listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr

from .calls import INLINED_CALLS
from .known_powers import Exponents, power
from .listing import nested_primitives, scan_counts
from .retracing import evaluated

__all__ = ["with_known_powers"]

#: Loops and choices.
BODIES = frozenset({"scan", "while", "cond"})
#: What is known of some values: of those that are not, None.
Known = Sequence[np.ndarray | None]


def with_known_powers(closed: Any) -> Any:
    """A closed jaxpr whose loops and choices raise to known powers by products and roots."""
    return _outside(closed, ())


def _outside(closed: Any, known: Known) -> Any:
    """A program outside of loops, as it is where there is nothing to be rewritten."""
    names = {*nested_primitives({"program": closed})}
    if "pow" not in names or names.isdisjoint(BODIES) or not hasattr(closed, "consts"):
        return closed
    scope = _Scope(closed, known)
    equations = []
    for equation in closed.jaxpr.eqns:
        params = scope.params_of(equation, _outside)
        equations.append(equation if params is None else equation.replace(params=params))
        scope.note(equation)
    if all(new is old for new, old in zip(equations, closed.jaxpr.eqns, strict=True)):
        return closed
    return ClosedJaxpr(closed.jaxpr.replace(eqns=equations), closed.consts)


def _inside(closed: Any, known: Known) -> Any:
    """A body, as it is where it has no such power, or effects."""
    if closed.jaxpr.effects or "pow" not in nested_primitives({"body": closed}):
        return closed
    found: list[bool] = []

    def body(*args: Any) -> list[Any]:
        return _evaluated(closed, args, known, found)

    new = jax.make_jaxpr(body)(*(variable.aval for variable in closed.jaxpr.invars))
    # A loop carries what it was begun with, Python's numbers included.
    pairs = zip(new.out_avals, closed.out_avals, strict=True)
    same = all(_type(own) == _type(other) for own, other in pairs)
    return new if found and same else closed


def _type(aval: Any) -> tuple[Any, ...]:
    return aval.shape, aval.dtype, aval.weak_type


def _evaluated(closed: Any, args: Sequence[Any], known: Known, found: list[bool]) -> list[Any]:
    """Results of a body; notes in `found` that there is a product in the place of a power."""
    scope = _Scope(closed, known)

    def results(equation: Any, operands: Sequence[Any]) -> Sequence[Any]:
        exponents, params = scope.exponents_of(equation), scope.params_of(equation, _inside)
        if exponents is not None or params is not None:
            found.append(True)
        scope.note(equation)
        if exponents is not None:
            return [power(operands[0], exponents)]
        bound = equation.primitive.get_bind_params(params or equation.params)
        result = equation.primitive.bind(*operands, **bound)
        return list(result) if equation.primitive.multiple_results else [result]

    return evaluated(closed.jaxpr, [*closed.consts, *args], results)


class _Scope:
    """What is known of the values of a program: literals, constants, and what is made of these."""

    def __init__(self, closed: Any, known: Known) -> None:
        """Begin with the constants and what is known of the first operands."""
        self._held: dict[int, np.ndarray] = {}
        self._exponents = Exponents(
            lambda atom: self._held.get(atom) if isinstance(atom, int) else None
        )
        for variable, value in zip(closed.jaxpr.constvars, closed.consts, strict=True):
            self._exponents.note_constant(id(variable), value)
        for variable, value in zip(closed.jaxpr.invars, known, strict=False):
            if value is not None:
                self._held[id(variable)] = value

    def note(self, equation: Any) -> None:
        """Note what an equation computes of known values."""
        if len(equation.outvars) == 1:
            (out,) = equation.outvars
            atoms = [self._atom(atom) for atom in equation.invars]
            self._exponents.note_result(equation, atoms, id(out), getattr(out.aval, "shape", ()))

    def exponents_of(self, equation: Any) -> np.ndarray | None:
        """Exponents by which a power is made of products; None for anything else."""
        if equation.primitive.name != "pow":
            return None
        atom = self._atom(equation.invars[1])
        return self._exponents.of(atom, equation.outvars[0].aval.dtype)

    def params_of(self, equation: Any, how: Callable[[Any, Known], Any]) -> dict[str, Any] | None:
        """The parameters of an equation with rewritten programs, if it has any.

        Args:
            equation: of the program.
            how: rewrites what is inlined; loops and choices are rewritten as bodies.
        """
        name, params = equation.primitive.name, equation.params
        known = [self._exponents.value(self._atom(atom)) for atom in equation.invars]
        new: dict[str, Any] = {}
        if name == "scan":
            counts = scan_counts(params)
            new["jaxpr"] = _inside(params["jaxpr"], known[: counts[0] if counts else 0])
        elif name == "while":
            first, count = params["cond_nconsts"], params["body_nconsts"]
            new["body_jaxpr"] = _inside(params["body_jaxpr"], known[first : first + count])
        elif name == "cond":
            new["branches"] = tuple(_inside(body, known[1:]) for body in params["branches"])
        elif name in INLINED_CALLS and hasattr(params[INLINED_CALLS[name]], "consts"):
            new[INLINED_CALLS[name]] = how(params[INLINED_CALLS[name]], known)
        return {**params, **new} if _differ(new, params) else None

    def _atom(self, atom: Any) -> int:
        if hasattr(atom, "val"):
            self._held[id(atom)] = np.asarray(atom.val)
        return id(atom)


def _differ(new: Mapping[str, Any], params: Mapping[str, Any]) -> bool:
    """Whether any of the new parameters is another one."""
    for key, value in new.items():
        old = params[key]
        pairs = zip(value, old, strict=True) if isinstance(old, tuple) else [(value, old)]
        if any(own is not other for own, other in pairs):
            return True
    return False
