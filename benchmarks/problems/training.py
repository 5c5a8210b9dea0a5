"""Losses of small networks, differentiated with respect to all weights.

A perceptron with layer norm (Ba, Kiros, Hinton 2016, arXiv 1607.06450) and cross-entropy, an
encoder of two blocks of self-attention (Vaswani et al. 2017, arXiv 1706.03762), and an encoder and
decoder with a narrow middle, whose whole output is differentiated with respect to its input. A
batch shares the weights, so it asks for one gradient per sample.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.problems.problem import Problem

INPUTS, HIDDEN, CLASSES = 8, 16, 4
TOKENS, WIDTH, INNER, BLOCKS = 4, 8, 16, 2
LAYERS = (32, 16, 2, 16, 32)

Weights = dict[str, jax.Array]


def perceptron(
    w1: jax.Array,
    b1: jax.Array,
    scale: jax.Array,
    shift: jax.Array,
    w2: jax.Array,
    b2: jax.Array,
    x: jax.Array,
    label: jax.Array,
) -> jax.Array:
    """Cross-entropy of a perceptron of two layers with layer norm between them.

    Args:
        w1: weights of the first layer, (hidden, inputs).
        b1: its offsets, (hidden,).
        scale: of the layer norm, (hidden,).
        shift: of the layer norm, (hidden,).
        w2: weights of the second layer, (classes, hidden).
        b2: its offsets, (classes,).
        x: one input, (inputs,).
        label: probabilities of the classes, (classes,).

    Returns:
        The loss, scalar.
    """
    hidden = jnp.tanh(w1 @ x + b1)
    logits = w2 @ (scale * _normalised(hidden) + shift) + b2
    return -jnp.sum(label * jax.nn.log_softmax(logits))


def encoder(blocks: list[Weights], readout: jax.Array, x: jax.Array, label: jax.Array) -> jax.Array:
    """Cross-entropy of the mean token behind blocks of self-attention and a perceptron.

    Args:
        blocks: for each block its matrices "q", "k", "v", "out" (width, width), "up" (width, inner)
            and "down" (inner, width).
        readout: (width, classes).
        x: one sequence, (tokens, width).
        label: probabilities of the classes, (classes,).

    Returns:
        The loss, scalar.
    """
    for w in blocks:
        z = _normalised(x)
        scores = (z @ w["q"]) @ (z @ w["k"]).T / math.sqrt(x.shape[-1])
        x = x + jax.nn.softmax(scores, axis=-1) @ (z @ w["v"]) @ w["out"]
        x = x + jnp.tanh(_normalised(x) @ w["up"]) @ w["down"]
    logits = jnp.mean(x, axis=0) @ readout
    return -jnp.sum(label * jax.nn.log_softmax(logits))


def narrow_middle(x: jax.Array, weights: list[jax.Array]) -> jax.Array:
    """An encoder to two numbers and a decoder: (32,) -> (32,)."""
    for w in weights:
        x = jnp.tanh(w @ x)
    return x


def _normalised(x: jax.Array) -> jax.Array:
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred / jnp.sqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + 1e-5)


def _weights(key: jax.Array, *shape: int, dtype: Any) -> jax.Array:
    return jax.random.normal(key, shape, dtype) / math.sqrt(shape[-1])


def _labels(key: jax.Array, batch: tuple[int, ...], dtype: Any) -> jax.Array:
    return jax.nn.one_hot(jax.random.randint(key, batch, 0, CLASSES), CLASSES, dtype=dtype)


def sample_perceptron(
    key: jax.Array, batch: tuple[int, ...] = (), dtype: Any = jnp.float32
) -> tuple[Any, ...]:
    """Random weights, inputs and labels."""
    keys = jax.random.split(key, 8)
    return (
        _weights(keys[0], HIDDEN, INPUTS, dtype=dtype),
        0.1 * jax.random.normal(keys[1], (HIDDEN,), dtype),
        1.0 + 0.1 * jax.random.normal(keys[2], (HIDDEN,), dtype),
        0.1 * jax.random.normal(keys[3], (HIDDEN,), dtype),
        _weights(keys[4], CLASSES, HIDDEN, dtype=dtype),
        0.1 * jax.random.normal(keys[5], (CLASSES,), dtype),
        jax.random.normal(keys[6], (*batch, INPUTS), dtype),
        _labels(keys[7], batch, dtype),
    )


def sample_encoder(
    key: jax.Array, batch: tuple[int, ...] = (), dtype: Any = jnp.float32
) -> tuple[Any, ...]:
    """Random weights, sequences and labels."""
    shapes = {
        **dict.fromkeys(("q", "k", "v", "out"), (WIDTH, WIDTH)),
        "up": (WIDTH, INNER),
        "down": (INNER, WIDTH),
    }
    first, second, third, *keys = jax.random.split(key, 3 + BLOCKS * len(shapes))
    own = iter(keys)
    blocks = [
        {name: _weights(next(own), *shape, dtype=dtype) for name, shape in shapes.items()}
        for _ in range(BLOCKS)
    ]
    return (
        blocks,
        _weights(first, WIDTH, CLASSES, dtype=dtype),
        jax.random.normal(second, (*batch, TOKENS, WIDTH), dtype),
        _labels(third, batch, dtype),
    )


def sample_narrow_middle(
    key: jax.Array, batch: tuple[int, ...] = (), dtype: Any = jnp.float32
) -> tuple[Any, ...]:
    """Random inputs and weights."""
    first, *keys = jax.random.split(key, len(LAYERS))
    sizes = zip(LAYERS[1:], LAYERS[:-1], strict=True)
    weights = [_weights(k, *size, dtype=dtype) for k, size in zip(keys, sizes, strict=True)]
    return jax.random.normal(first, (*batch, LAYERS[0]), dtype), weights


PROBLEMS = (
    Problem(
        "perceptron",
        perceptron,
        sample_perceptron,
        tuple(range(6)),
        "Ba, Kiros and Hinton 2016, arXiv 1607.06450",
        shared=tuple(range(6)),
    ),
    Problem(
        "encoder",
        encoder,
        sample_encoder,
        (0, 1),
        "Vaswani et al. 2017, arXiv 1706.03762",
        batches=(1, 4096),
        shared=(0, 1),
    ),
    Problem(
        "narrow_middle",
        narrow_middle,
        sample_narrow_middle,
        0,
        "Hinton and Salakhutdinov 2006, Science 313, 504",
        batches=(1, 4096),
        shared=(1,),
    ),
)
