"""`check_derivatives` sees what is wrong and says what could not be compared."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphax_lapl import InvalidArgumentError, InvalidTypeError, check_derivatives
from tests.test_fallback_log import linear_primitive


def nested(d: dict[str, jax.Array], t: jax.Array) -> dict[str, jax.Array]:
    return {"a": jnp.sin(d["x"]) * d["y"].sum() + t[0] ** 2, "b": (d["y"] ** 3)[:2] @ t}


@pytest.mark.slow
def test_all_blocks_of_a_pytree() -> None:
    point = {"x": jnp.ones(2), "y": jnp.linspace(0, 1, 3)}
    report = check_derivatives(nested, point, jnp.ones(2), argnums=(0, 1), order="markowitz")
    assert report.ok
    assert bool(report)
    assert len([r for r in report.rows if r.derivative == "hessian"]) == 2 * 9 + 2
    assert max(report.max_error.values()) < 1e-5
    assert "all agree" in str(report)
    assert "d ['b'] / d arg 0['y']" in str(report)
    assert repr(report) == str(report)


def test_single_precision_is_widened() -> None:
    with jax.enable_x64(False):
        report = check_derivatives(lambda x: jnp.sin(x) * x, jnp.ones(3))
    assert report.ok
    assert report.dtype == "float64"


def test_wrong_rules_of_jax_are_seen_by_differences() -> None:
    """JAX and jacve follow the same wrong rule."""

    @jax.custom_jvp
    def square(x: jax.Array) -> jax.Array:
        return x * x

    square.defjvps(lambda t, out, x: 3 * x * t)
    report = check_derivatives(lambda x: square(x), jnp.ones(2), second=False)
    assert [row.against for row in report.rows if not row.ok] == ["differences"] * 3


def test_failures_are_reported_not_raised() -> None:
    def refused(x: jax.Array) -> jax.Array:
        return jax.lax.conj(x) * x

    report = check_derivatives(refused, jnp.ones(2, np.complex64))
    assert not report.ok
    assert "raised InvalidTypeError" in str(report)


def test_where_jax_has_no_derivative() -> None:
    unknown = linear_primitive("doubling_for_the_check")
    fun = lambda x: unknown.bind(jnp.sin(x))  # noqa: E731
    report = check_derivatives(fun, jnp.ones(2))
    assert report.ok, report


def test_arguments_are_checked() -> None:
    with pytest.raises(InvalidArgumentError, match="argnums"):
        check_derivatives(jnp.sin, 1.0, argnums=1)
    with pytest.raises(InvalidTypeError, match="function"):
        check_derivatives(3, 1.0)
