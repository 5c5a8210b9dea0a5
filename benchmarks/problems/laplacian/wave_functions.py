"""log|psi| of electrons in molecules: FermiNet-like, PsiFormer-like, LapNet-like, small.

Sources: Pfau, Spencer, Matthews, Foulkes, arXiv 1909.02487 (FermiNet); von Glehn, Spencer, Pfau,
arXiv 2211.13672 (PsiFormer); Li et al., arXiv 2307.08214 (LapNet: attention weights depend on
streams of single electrons only, so that their Jacobians stay sparse).
"""

import jax
import jax.numpy as jnp

from benchmarks.problems.laplacian.electrons import (
    Params,
    between,
    draw_envelope,
    electrons,
    envelope,
    jastrow,
    log_determinants,
    split,
    to_nuclei,
)
from benchmarks.problems.laplacian.problem import Draw, Instance, LaplacianProblem, dense


def ferminet(params: Params, x: jax.Array, atoms: int, determinants: int) -> jax.Array:
    """One-electron and two-electron streams, a determinant per spin; x: (electrons, 3)."""
    n, up = x.shape[0], x.shape[0] // 2
    vectors, distances = to_nuclei(x, atoms)
    pair_vectors, pair_distances = between(x)
    one = jnp.concatenate([vectors, distances[..., None]], axis=-1).reshape(n, -1)
    two = jnp.concatenate([pair_vectors, pair_distances[..., None]], axis=-1)
    for number, (one_layer, two_layer) in enumerate(params["layers"]):
        means = [jnp.mean(one[:up], axis=0), jnp.mean(one[up:], axis=0)]
        pairs = [jnp.mean(two[:, :up], axis=1), jnp.mean(two[:, up:], axis=1)]
        shared = [jnp.broadcast_to(mean, (n, mean.shape[0])) for mean in means]
        new = jnp.tanh(dense(one_layer, jnp.concatenate([one, *shared, *pairs], axis=-1)))
        one = one + new if number else new
        if two_layer is not None:
            new = jnp.tanh(dense(two_layer, two))
            two = two + new if number else new
    matrices = []
    for spin, rows in enumerate((slice(0, up), slice(up, n))):
        orbitals = dense(params["orbitals"][spin], one[rows])
        orbitals = orbitals * envelope(params["envelopes"][spin], distances[rows])
        matrices.append(split(orbitals, determinants))
    return log_determinants(*matrices)


def psiformer(params: Params, x: jax.Array, atoms: int, determinants: int, heads: int) -> jax.Array:
    """Layers of softmax attention and layer norm, full determinants, Jastrow; x: (electrons, 3)."""
    n = x.shape[0]
    vectors, distances = to_nuclei(x, atoms)
    h = dense(params["embedding"], _rescaled(vectors, distances))
    for layer in params["layers"]:
        h = h + _attention(layer, _layer_norm(h), heads)
        h = h + jnp.tanh(dense(layer["mlp"], _layer_norm(h)))
    return _orbitals(params, h, distances, determinants, n) + jastrow(params["jastrow"], x)


def lapnet(params: Params, x: jax.Array, atoms: int, determinants: int, heads: int) -> jax.Array:
    """Attention whose weights come from streams of single electrons; x: (electrons, 3)."""
    n = x.shape[0]
    vectors, distances = to_nuclei(x, atoms)
    single = dense(params["embedding"], _rescaled(vectors, distances))
    h = single
    for layer in params["layers"]:
        h = h + _attention(layer, single, heads)
        h = h + jnp.tanh(dense(layer["mlp"], h))
        single = single + jnp.tanh(dense(layer["single"], single))
    return _orbitals(params, h, distances, determinants, n) + jastrow(params["jastrow"], x)


def _rescaled(vectors: jax.Array, distances: jax.Array) -> jax.Array:
    """Vectors and distances that grow as the logarithm, one row per electron."""
    scaled = jnp.log1p(distances)[..., None]
    directions = vectors * (scaled / distances[..., None])
    return jnp.concatenate([directions, scaled], axis=-1).reshape(vectors.shape[0], -1)


def _attention(layer: Params, h: jax.Array, heads: int) -> jax.Array:
    n, width = h.shape
    q, k, v = ((h @ layer[name]).reshape(n, heads, -1) for name in ("q", "k", "v"))
    weights = jax.nn.softmax(jnp.einsum("ihd,jhd->hij", q, k) / (width // heads) ** 0.5, axis=-1)
    return jnp.einsum("hij,jhd->ihd", weights, v).reshape(n, width) @ layer["out"]


def _layer_norm(h: jax.Array) -> jax.Array:
    centred = h - jnp.mean(h, axis=-1, keepdims=True)
    return centred / jnp.sqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)


def _orbitals(
    params: Params, h: jax.Array, distances: jax.Array, determinants: int, n: int
) -> jax.Array:
    """log|sum of determinants| of orbitals with envelopes, all electrons in one matrix."""
    orbitals = dense(params["orbitals"], h) * envelope(params["envelope"], distances)
    return log_determinants(split(orbitals, determinants).reshape(determinants, n, n))


def make_ferminet(
    draw: Draw,
    batch: int,
    n: int,
    atoms: int,
    width: int,
    pairs: int,
    depth: int,
    determinants: int,
) -> Instance:
    """A molecule of n electrons; `depth` layers, `width` features each, `pairs` per pair."""
    layers = []
    one, two = 4 * atoms, 4
    for number in range(depth):
        last = number == depth - 1
        layers.append(
            (draw.dense(3 * one + 2 * two, width), None if last else draw.dense(two, pairs))
        )
        one, two = width, pairs
    columns = determinants * (n // 2)
    params = {
        "layers": layers,
        "orbitals": [draw.dense(width, columns) for _ in range(2)],
        "envelopes": [draw_envelope(draw, atoms, columns) for _ in range(2)],
    }
    return Instance(
        lambda params, x: ferminet(params, x, atoms, determinants),
        params,
        electrons(draw, batch, n),
    )


def _draw_attention(
    draw: Draw, atoms: int, n: int, width: int, depth: int, determinants: int
) -> Params:
    def layer() -> Params:
        square = {name: draw.dense(width, width)[0] for name in ("q", "k", "v", "out")}
        return {**square, "mlp": draw.dense(width, width), "single": draw.dense(width, width)}

    return {
        "embedding": draw.dense(4 * atoms, width),
        "layers": [layer() for _ in range(depth)],
        "orbitals": draw.dense(width, determinants * n),
        "envelope": draw_envelope(draw, atoms, determinants * n),
        "jastrow": 1.0 + 0.1 * draw.normal(),
    }


def make_psiformer(
    draw: Draw,
    batch: int,
    n: int,
    atoms: int,
    width: int,
    heads: int,
    depth: int,
    determinants: int,
) -> Instance:
    """A molecule of n electrons; `depth` layers of `width` features in `heads` heads."""
    params = _draw_attention(draw, atoms, n, width, depth, determinants)
    for layer in params["layers"]:
        del layer["single"]
    return Instance(
        lambda params, x: psiformer(params, x, atoms, determinants, heads),
        params,
        electrons(draw, batch, n),
    )


def make_lapnet(
    draw: Draw,
    batch: int,
    n: int,
    atoms: int,
    width: int,
    heads: int,
    depth: int,
    determinants: int,
) -> Instance:
    """A molecule of n electrons; `depth` layers of `width` features in `heads` heads."""
    params = _draw_attention(draw, atoms, n, width, depth, determinants)
    return Instance(
        lambda params, x: lapnet(params, x, atoms, determinants, heads),
        params,
        electrons(draw, batch, n),
    )


_SMALL = {"batch": 1, "n": 4, "atoms": 1, "width": 4, "depth": 2, "determinants": 2}
_ATTENTION = {"batch": 8, "n": 12, "atoms": 2, "width": 64, "heads": 4, "depth": 2}

PROBLEMS = (
    LaplacianProblem(
        "ferminet",
        make_ferminet,
        {"batch": 8, "n": 14, "atoms": 2, "width": 64, "pairs": 16, "depth": 3, "determinants": 4},
        {**_SMALL, "pairs": 3},
        "Pfau et al., arXiv 1909.02487",
    ),
    LaplacianProblem(
        "psiformer",
        make_psiformer,
        {**_ATTENTION, "determinants": 4},
        {**_SMALL, "heads": 2},
        "von Glehn et al., arXiv 2211.13672",
    ),
    LaplacianProblem(
        "lapnet",
        make_lapnet,
        {**_ATTENTION, "determinants": 4},
        {**_SMALL, "heads": 2},
        "Li et al., arXiv 2307.08214",
    ),
)
