"""Derivatives of an optimisation problem against JAX's own: dense in every order, and sparse."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from graphax_lapl import hessve, jacve
from tests.second_order.checks import dense

__all__ = ["Target", "assert_like_jax", "check_target", "two_points"]

#: JAX's own ways to each derivative; the first is the reference.
HESSIANS = (
    jax.hessian,
    lambda fun: jax.jacrev(jax.jacrev(fun)),
    lambda fun: jax.jacfwd(jax.jacfwd(fun)),
)
JACOBIANS = (jax.jacfwd, jax.jacrev)


@dataclass(frozen=True)
class Target:
    """One function of a problem.

    Attributes:
        name: "objective", "equality" or "inequality".
        function: of the variables alone.
        points: where it is evaluated: the problem's own start, which is often a special point, and
            one beside it.
    """

    name: str
    function: Callable[[Any], Any]
    points: tuple[Any, Any]


def two_points(start: Any) -> tuple[Any, Any]:
    """A start and a point at a tenth of its size (at least a tenth) from it."""
    flat, unravel = ravel_pytree(start)
    at = np.asarray(flat)
    noise = np.random.default_rng(0).standard_normal(at.shape)
    return start, unravel(at + 0.1 * np.maximum(1.0, np.abs(at)) * noise)


def neighbour(point: Any, steps: int) -> Any:
    """A point that many representable numbers away in every variable."""
    return jax.tree.map(lambda leaf: leaf + steps * np.spacing(np.asarray(leaf)), point)


def check_target(target: Target) -> None:
    """An objective's Hessian, or a constraint's Jacobian by auto, forward and reverse."""
    if target.name == "objective":
        ways, derivative, orders = HESSIANS, hessve, ("auto",)
    else:
        ways, derivative, orders = JACOBIANS, jacve, ("auto", "forward", "reverse")
    reference = jax.jit(ways[0](target.function))
    expected = [reference(point) for point in target.points]
    options = [*({"order": order} for order in orders), {"sparse_representation": True}]

    @jax.jit
    def lower_and_ours(point: Any) -> tuple[Any, list[Any]]:
        lower = [target.function(point)]
        if target.name == "objective":
            lower.append(jax.jacrev(target.function)(point))
        return lower, [dense(derivative(target.function, **option)(point)) for option in options]

    evaluated = [lower_and_ours(point) for point in target.points]
    for n, option in enumerate(options):
        for point, want, (lower, ours) in zip(target.points, expected, evaluated, strict=True):
            got = ours[n]
            inside = all(bool(np.isfinite(leaf).all()) for leaf in jax.tree.leaves(lower))
            assert jax.tree.structure(got) == jax.tree.structure(want)
            others: list[Callable[[], Any]] = [
                lambda way=way, at=point: jax.jit(way(target.function))(at)  # type: ignore[misc]
                for way in ways[1:]
            ]
            others += [
                lambda at=point, steps=steps: reference(neighbour(at, steps))  # type: ignore[misc]
                for steps in (-2, -1, 1, 2)
            ]
            for k, (a, b) in enumerate(
                zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
            ):
                alternatives = [
                    lambda o=o, k=k: jax.tree.leaves(o())[k]  # type: ignore[misc]
                    for o in others
                ]
                what = f"{target.name} {option}"
                assert_like_jax(np.asarray(a), np.asarray(b), alternatives, what, inside)


def assert_like_jax(
    ours: np.ndarray,
    jaxs: np.ndarray,
    alternatives: Sequence[Callable[[], Any]],
    what: str,
    inside: bool = True,
) -> None:
    """Equal to 1e-8 of the largest finite entry, where JAX's own ways are equal to each other.

    At infinite slopes they are not: each has NaN where a seed of zeros of its own meets one, along
    rows or along columns. Ours need not have those, but what is finite here and not there must be
    what another way of JAX's gives. Only where the function's value or, for a Hessian, its slope is
    not finite either may ours be finite and all of theirs not: a zero on no path is not multiplied
    by what is not finite. Where they
    differ in rounding, or one of them between neighbouring numbers (DALLASS subtracts inverse cubes
    of small numbers), ours may differ as much as they do, times four.

    Args:
        ours: the derivative under test.
        jaxs: by the first way.
        alternatives: by the others, called where they are needed.
        what: printed on failure.
        inside: whether the function's value, and its slope for a Hessian, is finite.
    """
    assert (ours.shape, ours.dtype) == (jaxs.shape, jaxs.dtype), what
    scale = _largest(jaxs)
    differs = _differs(ours, jaxs, scale)
    nowhere = np.isfinite(ours) & ~np.isfinite(jaxs)
    for alternative in alternatives:
        if not differs.any():
            break
        other = np.asarray(alternative())
        nowhere &= ~np.isfinite(other)
        both = np.isfinite(ours) & np.isfinite(jaxs) & np.isfinite(other)
        spread = np.abs(np.where(both, other, 0.0) - np.where(both, jaxs, 0.0))
        error = np.abs(np.where(both, ours, 0.0) - np.where(both, jaxs, 0.0))
        differs &= ~both | (error > 4.0 * spread)
        wide = max(scale, _largest(other))
        differs &= _differs(ours, other, wide) | np.isfinite(jaxs)
    if not inside:
        differs &= ~nowhere
    places = np.argwhere(differs)
    assert not len(places), (
        f"{what}: {len(places)} of {ours.size} entries differ, first at {places[0].tolist()}: "
        f"{ours[tuple(places[0])]}, expected {jaxs[tuple(places[0])]} of {scale}"
    )


def _largest(array: np.ndarray) -> float:
    return float(np.max(np.abs(array[np.isfinite(array)]), initial=0.0))


def _differs(ours: np.ndarray, other: np.ndarray, scale: float) -> np.ndarray:
    finite = np.isfinite(ours) & np.isfinite(other)
    error = np.abs(np.where(finite, ours, 0.0) - np.where(finite, other, 0.0))
    return (error > 1e-8 * scale) | (np.isfinite(ours) != np.isfinite(other))
