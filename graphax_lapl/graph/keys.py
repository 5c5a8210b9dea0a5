"""Keys under which equations of one trace coincide, and traces of one function."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from .calls import CUSTOM_CALLS
from .listing import Atom, Constant, Listing

__all__ = ["Operand", "Unstable", "equation_key", "jaxpr_key", "listing_key"]

#: Types of parameters that are compared as they are.
PLAIN = frozenset({bool, int, str})


class Unstable(Exception):
    """The trace holds Python functions whose behaviour cannot be compared."""


def listing_key(listing: Listing) -> Hashable:
    """Everything that a plan and its compiled program depend on, apart from argument values.

    Raises:
        Unstable: where an equation's parameters hold Python functions.
    """
    if any([e.name in CUSTOM_CALLS and not any(e.active) for e in listing.equations]):
        raise Unstable  # kept for the derivative that its rule gives
    equations = tuple(
        [
            (
                equation.name,
                None if equation.known_as else _key(equation.params),
                tuple([a if a.__class__ is int else _atom(a) for a in equation.inputs]),
                equation.outputs,
                equation.active,
            )
            for equation in listing.equations
        ]
    )
    types: dict[int, Hashable] = {}  # arrays of one type share it
    for v in listing.variables:
        if id(v) not in types:
            types[id(v)] = (v.shape, _name_of(v.dtype), v.weak_type)
    return (
        tuple([types[id(v)] for v in listing.variables]),
        tuple(listing.constants),
        tuple(listing.inputs),
        equations,
        tuple(_atom(atom) for atom in listing.outputs),
        tuple((variable, _key(value)) for variable, value in listing.known.items()),
        tuple((variable, _key(where)) for variable, where in listing.support.items()),
        tuple((v, None if a is None else _atom(a)) for v, a in listing.value_of.items()),
        tuple(listing.vertex_of.items()),
        tuple(listing.moves_with.items()),
        tuple(sorted(listing.active)),
    )


#: NumPy puts the name of a dtype together anew each time.
_name_of = lru_cache(maxsize=256)(str)


def _atom(atom: Any) -> Hashable:
    return _key(atom.value) if isinstance(atom, Constant) else atom


def _key(value: Any) -> Hashable:
    if value is None or type(value) in PLAIN:
        return (type(value).__name__, value)
    if type(value) is dict and not value:
        return ()
    if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
        return jaxpr_key(value)
    if isinstance(value, np.ndarray | np.generic) or hasattr(value, "addressable_shards"):
        try:
            array = np.asarray(value)
        except Exception as error:  # a tracer, or a key array: no value to compare
            raise Unstable from error
        return ("array", _name_of(array.dtype), array.shape, array.tobytes())
    if isinstance(value, Mapping):
        return tuple((k, _key(v)) for k, v in sorted(value.items(), key=lambda item: str(item[0])))
    if type(value) in (tuple, list):
        return tuple(_key(item) for item in value)
    if callable(value) and not isinstance(value, type):
        raise Unstable
    if isinstance(value, float | complex):
        return (type(value).__name__, repr(value))  # zeros of both signs are equal numbers
    try:
        hash(value)
    except TypeError as error:
        raise Unstable from error
    return (type(value).__name__, value)


def jaxpr_key(jaxpr: Any) -> Hashable:
    """A key under which two jaxprs, closed or open, coincide where they compute the same.

    Raises:
        Unstable: where an equation's parameters hold Python functions.
    """
    constants = tuple(_key(value) for value in getattr(jaxpr, "consts", ()))
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    names: dict[Any, int] = {}

    def read(atom: Any) -> Hashable:
        if hasattr(atom, "val"):
            return ("literal", _key(np.asarray(atom.val)))
        return names.setdefault(atom, len(names))

    def define(variable: Any) -> Hashable:
        return (read(variable), str(variable.aval))

    return (
        constants,
        tuple(define(v) for v in (*jaxpr.constvars, *jaxpr.invars)),
        tuple(
            (
                equation.primitive.name,
                _key(equation.params),
                tuple(read(atom) for atom in equation.invars),
                tuple(define(variable) for variable in equation.outvars),
            )
            for equation in jaxpr.eqns
        ),
        tuple(read(atom) for atom in jaxpr.outvars),
    )


class Operand(Protocol):
    """What an equation reads, and whether a derivative flows through it."""

    @property
    def atom(self) -> Atom:
        """The variable or constant."""
        ...

    @property
    def active(self) -> bool:
        """Whether a derivative flows through it."""
        ...


def equation_key(equation: Any, operands: Sequence[Operand]) -> Hashable | None:
    """A key under which equal equations of one trace coincide; None where that cannot be told.

    Within a trace a Python function is itself, so it is compared by identity.
    """
    if equation.effects or not equation.outvars:
        return None
    atoms: list[Hashable] = []
    for operand in operands:
        atom = operand.atom
        if isinstance(atom, Constant):
            value = np.asarray(atom.value) if atom.shape == () else None
            if value is None or value.dtype == object:
                return None
            atoms.append(("constant", value.dtype, value.tobytes()))
        else:
            atoms.append((atom, operand.active))
    if not equation.params:
        return equation.primitive.name, (), tuple(atoms)
    try:
        params = tuple(sorted([(k, _hashable(v)) for k, v in equation.params.items()]))
    except TypeError:
        return None
    return equation.primitive.name, params, tuple(atoms)


def _hashable(value: Any) -> Hashable:
    if type(value) in (list, tuple):
        return tuple(_hashable(item) for item in value)
    if isinstance(value, float | complex):
        return (type(value).__name__, repr(value))  # zeros of both signs are equal numbers
    hash(value)
    return (type(value).__name__, value)
