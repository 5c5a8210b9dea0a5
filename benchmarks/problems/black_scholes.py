r"""Price of a European call and its sensitivities.

    C = S Phi(d1) - K exp(-r T) Phi(d2),
    d1 = (log(S / K) + (r + sigma^2 / 2) T) / (sigma sqrt(T)),   d2 = d1 - sigma sqrt(T).

The gradient holds the first-order greeks (delta, rho, vega, theta, ...), its Jacobian the
second-order ones (gamma, vanna, volga, charm, ...).

Source: F. Black, M. Scholes, "The pricing of options and corporate liabilities", J. Political
Econ. 81 (1973) 637-654.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.problems.problem import Problem

ARGNUMS = (0, 1, 2, 3, 4)


def black_scholes(
    spot: jax.Array, strike: jax.Array, rate: jax.Array, volatility: jax.Array, maturity: jax.Array
) -> jax.Array:
    """Price of a European call.

    Args:
        spot: price of the underlying, scalar, positive.
        strike: price at which the option may be exercised, scalar, positive.
        rate: risk-free interest rate per year, scalar.
        volatility: standard deviation of the log-return per square root of a year, positive.
        maturity: time to expiry in years, positive.

    Returns:
        The price, scalar.
    """
    spread = volatility * jnp.sqrt(maturity)
    drift = (rate + 0.5 * volatility * volatility) * maturity
    d1 = (jnp.log(spot / strike) + drift) / spread
    d2 = d1 - spread
    return spot * _normal_cdf(d1) - strike * jnp.exp(-rate * maturity) * _normal_cdf(d2)


# The first-order greeks, five scalars; the Jacobian of this function is the problem.
black_scholes_greeks = jax.grad(black_scholes, argnums=ARGNUMS)


def _normal_cdf(x: jax.Array) -> jax.Array:
    return 0.5 * (1.0 + jax.lax.erf(x * math.sqrt(0.5)))


def sample(
    key: jax.Array, batch: tuple[int, ...] = (), dtype: Any = jnp.float32
) -> tuple[jax.Array, ...]:
    """Random options near the money."""
    uniform = jax.random.uniform(key, (5, *batch), dtype)
    low = (80.0, 80.0, 0.0, 0.1, 0.25)
    high = (120.0, 120.0, 0.1, 0.5, 2.0)
    return tuple(a + (b - a) * x for a, b, x in zip(low, high, uniform, strict=True))


SOURCE = "Black and Scholes 1973, J. Political Econ. 81, 637"
PROBLEMS = (
    Problem("black_scholes", black_scholes, sample, ARGNUMS, SOURCE),
    Problem("black_scholes_greeks", black_scholes_greeks, sample, ARGNUMS, SOURCE),
)
