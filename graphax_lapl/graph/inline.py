"""From a jaxpr to a flat listing: inlining, constant folding, duplicate elimination.

Nested calls (`jit`, `remat`, closed calls) disappear. What depends on known integers only (index
arrays, masks, shapes) is evaluated here, so that later stages see static indices. Functions with a
derivative rule of their own, and primitives without a rule here, are replaced by the tangent
program that JAX makes of them: its equations become vertices like any others, so the user's rule
is honoured and its structure is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import dtypes

from ..edges.values import immutable
from ..errors import NotDifferentiableError
from .calls import CUSTOM_CALLS, INLINED_CALLS
from .keys import equation_key
from .known_powers import Exponents, product_form
from .known_values import (
    MAX_KNOWN,
    MAX_KNOWN_FLOAT,
    known_constant,
    moved_support,
    support_of_constant,
)
from .listing import Atom, Constant, Equation, Listing, Variable, as_aval, scan_counts
from .mutable_arrays import is_mutable, refuse_mutable_arrays
from .numpy_values import moved, numpy_result
from .tangent_program import differentiable_outputs, tangent_program
from .tracing import is_traced
from .unrolling import written_out

__all__ = ["Rewritten", "RewrittenWhere", "Treatment", "flatten_jaxpr"]

#: Equations that do nothing to the value.
COPIES = frozenset({"copy", "copy_p"})
#: Equations through which no derivative flows.
BARRIERS = frozenset({"stop_gradient"})
#: Loops, random bits and series are left to the emitted program: they may take long, series because
#: each is compiled, in a tenth of a second.
NEVER_KNOWN = frozenset(
    """
    while scan cond threefry2x32 random_bits random_seed pvary pcast
    lgamma digamma polygamma zeta igamma igammac igamma_grad_a random_gamma_grad
    regularized_incomplete_beta bessel_i0e bessel_i1e
    """.split()  # noqa: SIM905
)

#: What to do with an equation on an active input: keep it ("rule", or "rule:name" for a call that
#: is recognised as a whole), inline its tangent program ("linearize"), its body ("inline") or its
#: steps ("unroll"), or keep it as an opaque linear map ("opaque"). A function is the rule that its
#: tangent program is made of in the place of JAX's, one that is `Rewritten` the equation itself, as
#: is one that is `RewrittenWhere` certain operands move.
KNOWN_CALL = "rule:"


@immutable
class Rewritten:
    """What stands in the place of an equation: a function of its operands that returns a list."""

    function: Callable[..., list[Any]]


@immutable
class RewrittenWhere:
    """What may stand in the place of an equation, told which operands move, and what they are."""

    find: Callable[[Sequence[bool], Sequence[Hashable]], Callable[..., list[Any]] | None]


How = str | Rewritten | RewrittenWhere | Callable[..., Any]
#: Of a primitive, its parameters, the primitives that it is part of, how many derivatives are
#: taken, and its first operand.
Treatment = Callable[[Any, dict[str, Any], tuple[str, ...], int, Variable | None], How]


@immutable
class _Reference:
    """An atom in a scope, and how many orders of derivatives flow through it.

    A tangent has no value; what is computed from it is linear in it, and the derivative flows
    through the tangents alone.
    """

    atom: Atom
    orders: int = 0
    tangent: bool = False

    @property
    def active(self) -> bool:
        """Whether a derivative flows through it."""
        return self.orders > 0


def _key(atom: Atom) -> Hashable:
    """Which atom this is: constants are told by their objects."""
    return atom if isinstance(atom, int) else (id(atom.value),)


class _Inliner:
    def __init__(self, treatment: Treatment, orders: int = 1, keep_rules: bool = False):
        self.listing = Listing()
        self.treatment = treatment
        self.orders = orders
        self.keep_rules = keep_rules
        self.seen: dict[Hashable, tuple[int, ...]] = {}
        # Where an inlined tangent program comes from: its own lines mean nothing to the user.
        self.origin: Any = None
        self.callers: tuple[Any, ...] = ()
        # Known floating-point arrays that are repeated: the listing keeps the smaller array.
        self.repeated: dict[int, np.ndarray] = {}
        self.exponents = Exponents(self.held)
        # For variables after a function with its own rule: the one that its value moves with.
        self.shadows: dict[int, Atom] = {}

    def run(
        self, jaxpr: Any, inputs: Sequence[_Reference], stack: tuple[str, ...] = ()
    ) -> list[_Reference]:
        """Inline an open jaxpr whose constants and arguments are `inputs`."""
        scope: dict[Any, _Reference] = dict(
            zip((*jaxpr.constvars, *jaxpr.invars), inputs, strict=True)
        )

        def read(atom: Any) -> _Reference:
            if hasattr(atom, "val"):
                return _Reference(Constant(atom.val))
            return scope[atom]

        for equation in jaxpr.eqns:
            results = self.equation(equation, [read(a) for a in equation.invars], stack)
            scope.update(zip(equation.outvars, results, strict=True))
        return [read(a) for a in jaxpr.outvars]

    def nested(
        self, body: Any, inputs: Sequence[_Reference], stack: tuple[str, ...]
    ) -> list[_Reference]:
        """Inline a jaxpr parameter, closed or open."""
        constants = [self.constant(value) for value in getattr(body, "consts", ())]
        return self.run(getattr(body, "jaxpr", body), [*constants, *inputs], stack)

    def constant(self, value: Any) -> _Reference:
        """A constant of a nested trace."""
        return _Reference(Constant(value))

    def equation(
        self, equation: Any, inputs: list[_Reference], stack: tuple[str, ...]
    ) -> list[_Reference]:
        name, params = equation.primitive.name, equation.params
        active = any([reference.orders for reference in inputs])
        if name in INLINED_CALLS and not (active and self.has_rule(equation, inputs)):
            outer, self.callers = self.callers, (equation.source_info, *self.callers)
            results = self.nested(params[INLINED_CALLS[name]], inputs, stack)
            self.callers = outer
            return results
        if name in CUSTOM_CALLS and not active:
            is_known = all([self.held(reference.atom) is not None for reference in inputs])
            if is_known or not self.keep_rules:
                return self.nested(params[CUSTOM_CALLS[name]], inputs, stack)
        if name == "custom_vmap_call" and active:
            # Its derivative is that of its body; its own way through a batch has no transpose.
            return self.nested(params["call"], inputs, stack)
        if name == "cond":
            index = self.listing.known_value(inputs[0].atom)
            if index is not None:
                branches = params["branches"]
                chosen = branches[int(np.clip(int(index), 0, len(branches) - 1))]
                return self.nested(chosen, inputs[1:], stack)
        if name in COPIES or _is_idle_conversion(equation):
            return inputs[:1]
        known = None if active else self.evaluate_known(equation, inputs)
        if known is not None:
            return known
        if active:
            refuse_mutable_arrays(equation, self.origin or equation.source_info)
        if active and equation.outvars and name not in BARRIERS:
            # A linear primitive may stand in its own tangent program, applied to the tangents.
            above = stack if any([reference.tangent for reference in inputs]) else ()
            how = self.treat(equation, above)
            if isinstance(how, Rewritten):
                return self.rewrite(equation, inputs, stack, how.function)
            if isinstance(how, RewrittenWhere):
                function = how.find([r.active for r in inputs], [_key(r.atom) for r in inputs])
                if function is None:
                    return self.append(equation, inputs)
                self.listing.freed_loops = True
                return self.rewrite(equation, inputs, stack, function)
            if not isinstance(how, str):
                return self.linearize(equation, inputs, stack, how)
            if how == "unroll" and not equation.effects:
                counts = scan_counts(params)
                assert counts is not None
                return self.rewrite(equation, inputs, stack, written_out(params, *counts))
            if how == "linearize":
                return self.linearize(equation, inputs, stack)
            if how == "inline":
                return self.nested(params[CUSTOM_CALLS[name]], inputs, stack)
            if how.startswith(KNOWN_CALL):
                return self.append(equation, inputs, how.removeprefix(KNOWN_CALL))
        return self.append(equation, inputs)

    def has_rule(self, equation: Any, inputs: list[_Reference]) -> bool:
        """Whether a call stands for more than its program, because its function has a rule.

        Not on tangents.
        """
        if any(reference.tangent for reference in inputs):
            return False
        how = self.treat(equation, ())
        return how == "rule" or isinstance(how, Rewritten)

    def treat(self, equation: Any, stack: tuple[str, ...]) -> How:
        """What to do with an equation on an active input."""
        operands = equation.invars
        first = _type_of(operands[0].aval) if operands else None
        return self.treatment(equation.primitive, equation.params, stack, self.orders, first)

    def append(
        self, equation: Any, inputs: list[_Reference], known_as: str | None = None
    ) -> list[_Reference]:
        """Add an equation to the listing, or find the same one there."""
        name = equation.primitive.name
        through = [reference.orders for reference in inputs]
        still = not any(through)
        linear = not still and True in [reference.tangent for reference in inputs]
        if linear:
            through = [r.orders if r.tangent else 0 for r in inputs]
        orders = 0 if still or name in BARRIERS else max(through)
        outputs = [_type_of(variable.aval) for variable in equation.outvars]
        key = equation_key(equation, inputs)
        found = self.seen.get(key) if key is not None else None
        if found is None:
            found = tuple([self.listing.new(output) for output in outputs])
            self.listing.equations.append(
                Equation(
                    equation.primitive,
                    equation.params,
                    equation.ctx,
                    tuple([reference.atom for reference in inputs]),
                    found,
                    tuple([order > 0 and orders > 0 for order in through]),
                    self.origin or equation.source_info,
                    bool(equation.effects),
                    known_as,
                    self.callers,
                    self.form_of(equation, inputs, found),
                )
            )
            if key is not None:
                self.seen[key] = found
            if still and len(found) == 1:
                supports = [self.listing.support_of(reference.atom) for reference in inputs]
                which = self.held(inputs[0].atom) if name == "select_n" else None
                support = moved_support(equation, supports, outputs[0].shape, which)
                if support is not None:
                    self.listing.support[found[0]] = support
            if still and len(found) == 1:
                atoms = [reference.atom for reference in inputs]
                self.exponents.note_result(equation, atoms, found[0], outputs[0].shape)
            if name == "broadcast_in_dim" and len(inputs) == 1:
                dimensions = tuple(equation.params["broadcast_dimensions"])
                self.listing.broadcasts[found[0]] = (inputs[0].atom, dimensions)
                repeated = self.held(inputs[0].atom)
                if repeated is not None and math.prod(outputs[0].shape) <= MAX_KNOWN_FLOAT:
                    held = moved(name, equation.params, repeated, outputs[0].shape)
                    assert held is not None
                    self.repeated[found[0]] = held
        references = []
        for variable, output in zip(found, outputs, strict=True):
            carried = orders if output.differentiable else 0
            if carried:
                self.listing.active.add(variable)
                if linear:
                    self.listing.value_of[variable] = None
            references.append(_Reference(variable, carried, linear and carried > 0))
        if orders > 1 and not linear and any(r.atom in self.shadows for r in inputs if r.active):
            self.shadow(equation, inputs, found, known_as)
        return references

    def shadow(
        self,
        equation: Any,
        inputs: list[_Reference],
        outputs: tuple[int, ...],
        known_as: str | None,
    ) -> None:
        """Let the values of an equation's outputs move as its inputs' values do.

        After a function with its own rule, the derivative that the rule gives and the derivative
        of the value may differ (a straight-through estimator); a second derivative needs both.
        """
        if any(output in self.shadows for output in outputs):
            return
        twins = tuple(self.listing.new(_type_of(variable.aval)) for variable in equation.outvars)
        atoms = tuple(self.moving(reference.atom) for reference in inputs)
        active = tuple(
            reference.active and isinstance(atom, int) and atom in self.listing.active
            for reference, atom in zip(inputs, atoms, strict=True)
        )
        self.listing.equations.append(
            Equation(
                equation.primitive,
                equation.params,
                equation.ctx,
                atoms,
                twins,
                active,
                self.origin or equation.source_info,
                known_as=known_as,
                callers=self.callers,
                form=self.form_of(equation, inputs, twins),
            )
        )
        for output, twin in zip(outputs, twins, strict=True):
            if output in self.listing.active:
                self.listing.value_of[twin] = output
                self.shadows[output] = self.listing.moves_with[output] = twin
                if any(active):
                    self.listing.active.add(twin)

    def form_of(
        self, equation: Any, inputs: list[_Reference], outputs: tuple[int, ...]
    ) -> Callable[..., Any] | None:
        """What computes an equation sooner than its primitive does."""
        if equation.primitive.name != "pow":
            return None
        dtype = equation.outvars[0].aval.dtype
        exponents = self.exponents.of(inputs[1].atom, dtype)
        if exponents is None:
            return None
        self.listing.exponents[outputs[0]] = exponents
        return product_form(exponents)

    def moving(self, atom: Atom) -> Atom:
        """The atom that the value of `atom` moves with."""
        return self.shadows.get(atom, atom) if isinstance(atom, int) else atom

    def held(self, atom: Atom) -> np.ndarray | None:
        """The value of an atom where it is known, or repeats what is known."""
        known = self.listing.known_value(atom)
        if known is None and isinstance(atom, int):
            return self.repeated.get(atom)
        return known

    def evaluate_known(self, equation: Any, inputs: list[_Reference]) -> list[_Reference] | None:
        """Evaluate an equation on known values, where its results may matter for structure."""
        if equation.effects or not equation.outvars:
            return None
        outputs = [variable.aval for variable in equation.outvars]
        for aval in outputs:
            dtype = getattr(aval, "dtype", None)
            if dtype is None or dtypes.issubdtype(dtype, dtypes.extended):
                return None
            limit = MAX_KNOWN_FLOAT if dtypes.issubdtype(dtype, np.inexact) else MAX_KNOWN
            if aval.size > limit:
                return None
        values = [self.held(reference.atom) for reference in inputs]
        if any(value is None for value in values) or equation.primitive.name in NEVER_KNOWN:
            return None
        if equation.primitive.name == "broadcast_in_dim" and dtypes.issubdtype(
            outputs[0].dtype, np.inexact
        ):
            return None  # a repeated number is better kept as a broadcast
        typed = [
            np.asarray(value, dtype=self.listing.type_of(reference.atom).dtype)
            for value, reference in zip(values, inputs, strict=True)
        ]
        found = numpy_result(equation.primitive.name, equation.params, typed, outputs[0].shape)
        if found is not None:
            results: Sequence[Any] = [found]
        else:

            def evaluated(*values: Any) -> list[Any]:
                params = equation.primitive.get_bind_params(equation.params)
                made = equation.primitive.bind(*values, **params)
                return list(made) if equation.primitive.multiple_results else [made]

            with equation.ctx.manager, jax.ensure_compile_time_eval():
                results = evaluated(*typed)
                if any(is_traced(value) for value in results):
                    results = jax.jit(evaluated)(*typed)
        references = []
        for variable, value in zip(equation.outvars, results, strict=True):
            new = self.listing.new(_type_of(variable.aval))
            self.listing.known[new] = np.asarray(value, variable.aval.dtype)
            references.append(_Reference(new))
        return references

    def rewrite(
        self,
        equation: Any,
        inputs: list[_Reference],
        stack: tuple[str, ...],
        function: Callable[..., list[Any]],
    ) -> list[_Reference]:
        """Replace an equation by what computes the same: a `scan` by its steps, for one."""
        with equation.ctx.manager:
            traced = jax.make_jaxpr(function)(
                *(as_aval(self.listing.type_of(reference.atom)) for reference in inputs)
            )
        outer, self.origin = self.origin, self.origin or equation.source_info
        results = self.nested(traced, inputs, stack)
        self.origin = outer
        return results

    def linearize(
        self,
        equation: Any,
        inputs: list[_Reference],
        stack: tuple[str, ...],
        rule: Callable[..., Any] | None = None,
    ) -> list[_Reference]:
        """Replace an equation by its value and its tangent program, as JAX or a rule derives it."""
        linear = any(reference.tangent for reference in inputs)
        chosen = [k for k, r in enumerate(inputs) if (r.tangent if linear else r.active)]
        differentiable = differentiable_outputs(equation)
        avals = [as_aval(self.listing.type_of(reference.atom)) for reference in inputs]
        where = self.origin or equation.source_info
        try:
            traced = tangent_program(equation, avals, chosen, where, rule)
        except NotDifferentiableError:
            if not linear:
                raise
            traced = None  # what a rule applies to its tangents is linear, with a derivative or not
        if traced is None:
            return self.append(equation, inputs)
        count = len(equation.outvars)
        tangents = []
        for position in chosen:
            atom = inputs[position].atom
            assert isinstance(atom, int)
            tangent = self.listing.new(self.listing.variables[atom])
            self.listing.value_of[tangent] = None
            self.listing.vertex_of[tangent] = self.listing.vertex(atom)
            self.listing.active.add(tangent)
            tangents.append(_Reference(tangent, inputs[position].orders, tangent=True))
        # The tangent program is a first derivative: its coefficients need one order less.
        still = [
            _Reference(self.moving(r.atom), 0 if r.tangent else max(0, r.orders - 1))
            for r in inputs
        ]
        name, first_new = str(equation.primitive.name), len(self.listing.variables)
        outer_origin, self.origin = self.origin, self.origin or equation.source_info
        results = self.nested(traced, [*still, *tangents], (*stack, name))
        self.origin = outer_origin
        moved = iter(results[count:])
        references = []
        for value, variable, keep in zip(
            results[:count], equation.outvars, differentiable, strict=True
        ):
            tangent_out = next(moved) if keep else None
            if tangent_out is None or not tangent_out.active:
                self.listing.disagrees |= value.active
                references.append(_Reference(value.atom))
                continue
            assert isinstance(tangent_out.atom, int)
            joined = self.listing.new(_type_of(variable.aval))
            self.listing.vertex_of[joined] = self.listing.vertex(tangent_out.atom)
            self.listing.active.add(joined)
            if linear:
                self.listing.value_of[joined] = None
            else:
                held = self.own_value(joined, value, first_new, tangent_out.orders)
                self.listing.value_of[joined] = held
            references.append(_Reference(joined, tangent_out.orders, linear))
        return references

    def own_value(self, joined: int, value: _Reference, first_new: int, orders: int) -> Atom:
        """The value of a function with its own rule; notes what that value moves with."""
        atom = value.atom
        if self.orders == 1:
            return atom
        held = self.listing.value(atom)
        if isinstance(held, int) and held < first_new:
            # It returns what it got, which has a derivative of its own.
            copied = jax.make_jaxpr(jnp.copy)(as_aval(self.listing.type_of(atom))).eqns[0]
            (value,) = self.append(copied, [value])
            assert isinstance(value.atom, int)
            atom = held = value.atom
        if orders > 1:
            self.shadows[joined] = atom
        if isinstance(held, int):
            source = atom if orders > 1 else joined
            if source != held and source in self.listing.active:
                assert isinstance(source, int)
                self.listing.moves_with[held] = source
        return atom


def flatten_jaxpr(
    closed: Any,
    differentiated: Sequence[bool],
    treatment: Treatment,
    orders: int = 1,
    keep_rules: bool = False,
) -> tuple[Listing, list[bool]]:
    """Inline a closed jaxpr.

    Args:
        closed: the closed jaxpr.
        differentiated: for each of its inputs whether derivatives are asked for.
        treatment: decides what happens to an equation on an active input.
        orders: how often the function will be differentiated (one or two). At two, the coefficients
            of inlined tangent programs carry derivatives of their own.
        keep_rules: whether the emitted program may itself be differentiated, so that values of
            functions with a rule of their own are to be computed by calls of them. Where the pieces
            of a body meet its equations have other derivatives: `logaddexp` is smooth at equal
            arguments, the maximum and the magnitude that it is computed by are not.

    Returns:
        The listing, and for each output whether it depends differentiably on the inputs.
    """
    inliner = _Inliner(treatment, orders, keep_rules)
    listing = inliner.listing
    references = []
    for variable, value in zip(closed.jaxpr.constvars, closed.consts, strict=True):
        new = listing.new(_type_of(variable.aval))
        listing.constants.append(new)
        known = None if is_mutable(variable) else known_constant(value)
        if known is not None:
            listing.known[new] = known
        support = None if is_mutable(variable) else support_of_constant(value)
        if support is not None:
            listing.support[new] = support
        if not is_mutable(variable):
            inliner.exponents.note_constant(new, value)
        references.append(_Reference(new))
    for variable, moves in zip(closed.jaxpr.invars, differentiated, strict=True):
        new = listing.new(_type_of(variable.aval))
        listing.inputs.append(new)
        if moves:
            listing.active.add(new)
        references.append(_Reference(new, orders if moves else 0))
    results = inliner.run(closed.jaxpr, references)
    listing.outputs = [reference.atom for reference in results]
    return listing, [reference.active for reference in results]


def _type_of(aval: Any) -> Variable:
    weak = bool(getattr(aval, "weak_type", False))
    return _variable(tuple(getattr(aval, "shape", ())), getattr(aval, "dtype", None), weak)


@lru_cache(maxsize=1 << 10)
def _variable(shape: tuple[int, ...], dtype: Any, weak: bool) -> Variable:
    """Arrays of one type share what is known of it."""
    return Variable(shape, dtype, weak)


def _is_idle_conversion(equation: Any) -> bool:
    if equation.primitive.name != "convert_element_type":
        return False
    return (
        not hasattr(equation.invars[0], "val")
        and equation.invars[0].aval.dtype == equation.outvars[0].aval.dtype
    )
