"""Values written side by side and over each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl.emit.overlay import MAX_UNWRITTEN, Patch, filled
from graphax_lapl.emit.packing import FUSED


def primitives(jaxpr) -> list[str]:
    found = []
    for equation in jaxpr.eqns:
        found.append(equation.primitive.name)
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            found += primitives(inner) if hasattr(inner, "eqns") else []
    return found


def over_each_other(values, whole):
    """Single entries over a whole matrix, and a row over them."""
    patches = [Patch((0, 0), whole.shape, whole), Patch((1, 1), (2, 7), whole[1:2, 1:])]
    places = [divmod(k, whole.shape[1]) for k in range(0, whole.size, whole.size // len(values))]
    for (row, column), value in zip(places, values, strict=False):
        box = (row, column), (row + 1, column + 1)
        patches.append(Patch(*box, jnp.reshape(jnp.sin(value), (1, 1))))
    return filled(patches, (0, 0), whole.shape)


def expected(values, whole):
    result = np.array(whole)
    result[1, 1:] += whole[1, 1:]
    flat = result.reshape(-1)
    flat[:: whole.size // len(values)][: len(values)] += np.sin(values)
    return flat.reshape(whole.shape)


@pytest.mark.parametrize("count", [2, FUSED + 4, MAX_UNWRITTEN + 10])
def test_single_entries_over_others(count):
    random = np.random.default_rng(0)
    values, whole = random.normal(size=count), random.normal(size=(8, 7))
    np.testing.assert_allclose(over_each_other(values, whole), expected(values, whole), rtol=1e-12)
    rows = np.stack([values, -values, 2 * values])
    found = jax.vmap(over_each_other, (0, None))(rows, whole)
    np.testing.assert_allclose(found, [expected(row, whole) for row in rows], rtol=1e-12)
    slopes = jax.jacfwd(over_each_other)(values, whole)
    np.testing.assert_allclose(jnp.sum(slopes, (0, 1)), np.cos(values), rtol=1e-12)
    names = primitives(jax.make_jaxpr(over_each_other)(values, whole).jaxpr)
    assert names.count("pad") == (1 if count > FUSED else 1 + count)
