"""Logarithms of densities and of a wave function, whose Laplacians are scores and local energies.

Sources: A. Hyvärinen, J. Mach. Learn. Res. 6 (2005) 695, for the Laplacian of a log density as a
loss; P. Smolensky 1986 and G. Hinton, R. Salakhutdinov, Science 313 (2006) 504 for the restricted
Boltzmann machine with real visible units; Dinh, Sohl-Dickstein, Bengio, arXiv 1605.08803, for
coupling layers; the Jastrow factor of particles in a trap, with the cusp that two electrons in two
or three dimensions need: N. Drummond, M. Towler, R. Needs, Phys. Rev. B 70 (2004) 235119.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from benchmarks.problems.laplacian.problem import Draw, Instance, LaplacianProblem, mlp

CUSP = 0.5  # for two electrons of unlike spin in three dimensions


def gaussian_mixture(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Log density of a mixture with full covariances, (d,) -> ().

    Args:
        params: "weights" (k,), unnormalised logarithms; "means" (k, d); "factors" (k, d, d), whose
            products `F F^T` are the inverse covariances.
        x: a point.
    """
    whitened = jnp.einsum("ki,kij->kj", x - params["means"], params["factors"])
    volumes = jnp.linalg.slogdet(params["factors"])[1]
    logs = jax.nn.log_softmax(params["weights"]) + volumes - 0.5 * jnp.sum(whitened**2, axis=-1)
    return logsumexp(logs) - 0.5 * x.shape[0] * np.log(2.0 * np.pi).astype(x.dtype)


def boltzmann_machine(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Log density, without its constant, of real visible units, (d,) -> (); hidden: (d, h)."""
    hidden = jax.nn.softplus(x @ params["hidden"] + params["bias"])
    return jnp.sum(hidden) - 0.5 * jnp.sum((x - params["visible"]) ** 2)


def coupling_flow(params: list[Any], x: jax.Array) -> jax.Array:
    """Log density of a flow of affine coupling layers to normal numbers, (d,) -> ()."""
    half = x.shape[0] // 2
    volume = jnp.zeros((), x.dtype)
    for layers in params:
        kept, moved = x[:half], x[half:]
        scale, shift = jnp.split(mlp(layers, kept), 2)
        scale = jnp.tanh(scale)
        volume = volume + jnp.sum(scale)
        x = jnp.concatenate([moved * jnp.exp(scale) + shift, kept])
    return volume - 0.5 * jnp.sum(x**2) - 0.5 * x.shape[0] * np.log(2.0 * np.pi).astype(x.dtype)


def trapped_jastrow(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Log psi of particles in a harmonic trap with a cusp for each pair; x: (particles, 3)."""
    first, second = np.triu_indices(x.shape[0], 1)
    distance = jnp.linalg.norm(x[first] - x[second], axis=-1)
    pairs = CUSP * distance / (1.0 + params["range"] * distance)
    return jnp.sum(pairs) - 0.5 * params["trap"] * jnp.sum(x**2)


def make_gaussian_mixture(draw: Draw, batch: int, d: int, components: int) -> Instance:
    """In d dimensions."""
    one = jnp.eye(d, dtype=draw.dtype)
    params = {
        "weights": draw.normal(components, scale=0.3),
        "means": draw.normal(components, d),
        "factors": one + draw.normal(components, d, d, scale=0.3 * d**-0.5),
    }
    return Instance(gaussian_mixture, params, draw.normal(batch, d))


def make_boltzmann_machine(draw: Draw, batch: int, d: int, hidden: int) -> Instance:
    """Of d visible units."""
    params = {
        "hidden": draw.normal(d, hidden, scale=d**-0.5),
        "bias": draw.normal(hidden, scale=0.1),
        "visible": draw.normal(d, scale=0.1),
    }
    return Instance(boltzmann_machine, params, draw.normal(batch, d))


def make_coupling_flow(draw: Draw, batch: int, d: int, width: int, depth: int) -> Instance:
    """`depth` layers in d dimensions, an even number."""
    params = [draw.mlp(d // 2, width, width, d) for _ in range(depth)]
    return Instance(coupling_flow, params, draw.normal(batch, d))


def make_trapped_jastrow(draw: Draw, batch: int, particles: int) -> Instance:
    """In three dimensions."""
    params = {"range": 1.0 + 0.1 * draw.normal(), "trap": 1.0 + 0.1 * draw.normal()}
    return Instance(trapped_jastrow, params, draw.normal(batch, particles, 3))


PROBLEMS = (
    LaplacianProblem(
        "gaussian_mixture",
        make_gaussian_mixture,
        {"batch": 100, "d": 16, "components": 8},
        {"batch": 2, "d": 3, "components": 2},
        "Hyvärinen, J. Mach. Learn. Res. 6 (2005) 695",
        group="more",
    ),
    LaplacianProblem(
        "boltzmann_machine",
        make_boltzmann_machine,
        {"batch": 100, "d": 64, "hidden": 256},
        {"batch": 2, "d": 4, "hidden": 3},
        "Hinton, Salakhutdinov, Science 313 (2006) 504",
        group="more",
    ),
    LaplacianProblem(
        "coupling_flow",
        make_coupling_flow,
        {"batch": 100, "d": 8, "width": 32, "depth": 4},
        {"batch": 2, "d": 4, "width": 3, "depth": 2},
        "Dinh et al., arXiv 1605.08803",
        group="more",
    ),
    LaplacianProblem(
        "trapped_jastrow",
        make_trapped_jastrow,
        {"batch": 100, "particles": 20},
        {"batch": 2, "particles": 3},
        "Drummond et al., Phys. Rev. B 70 (2004) 235119",
        group="more",
    ),
)
