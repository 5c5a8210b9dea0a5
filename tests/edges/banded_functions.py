"""Functions with a sparse Jacobian, and points to differentiate them at."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Function = Callable[[jax.Array], jax.Array]


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).uniform(0.5, 1.5, shape)


def heat(step: Function, times: int) -> Function:
    def fun(x: jax.Array) -> jax.Array:
        for _ in range(times):
            x = step(x)
        return x

    return fun


def rolled(x):
    return x + 0.1 * (jnp.roll(x, 1) + jnp.roll(x, -1) - 2 * x)


def rolled_nonlinear(x):
    return x + 0.1 * (jnp.roll(x, 1) * x + jnp.sin(jnp.roll(x, -1)) - 2 * x)


def sliced(x):
    return jnp.concatenate([x[:1], x[1:-1] + 0.1 * (x[2:] + x[:-2] - 2 * x[1:-1]), x[-1:]])


def padded(x):
    p = jnp.pad(x, 1)
    return x + 0.1 * (p[2:] + p[:-2] - 2 * x)


def rolled_2d(x):
    sides = jnp.roll(x, 1, 0) + jnp.roll(x, -1, 0) + jnp.roll(x, 1, 1) + jnp.roll(x, -1, 1)
    return x + 0.1 * jnp.sin(sides - 4 * x)


def sliced_2d(x):
    sides = x[2:, 1:-1] + x[:-2, 1:-1] + x[1:-1, 2:] + x[1:-1, :-2]
    return x.at[1:-1, 1:-1].add(0.1 * (sides - 4 * x[1:-1, 1:-1]))


FIVE_POINT = np.array([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]])


def convolved(mode: str) -> Function:
    def fun(x: jax.Array) -> jax.Array:
        kernel = FIVE_POINT[None, None]
        return lax.conv_general_dilated(x[None, None], kernel, (1, 1), mode)[0, 0]

    return fun


def network(x):
    """Three convolutions, 1 -> 4 -> 4 -> 1 channels of width 5."""
    h = x[None, None]
    for k, shape in enumerate([(4, 1, 5), (4, 4, 5), (1, 4, 5)]):
        h = lax.conv_general_dilated(h, numbers(*shape) - 1.0, (1,), "SAME")
        h = jnp.tanh(h) if k < 2 else h
    return h[0, 0]


def window(kind: Callable, start: float, size: int, step: int, mode: str) -> Function:
    return lambda x: lax.reduce_window(jnp.sin(x), start, kind, (size,) * 2, (step,) * 2, mode)


EDGES = np.random.default_rng(5).integers(0, 30, (2, 60))
CAMERAS = np.random.default_rng(6).integers(0, 5, 50)
POINTS = np.random.default_rng(7).integers(0, 12, 50)
TIMES = np.linspace(0.3, 10.9, 25)
LEFT = TIMES.astype(int)


def mass_action(x):
    rate = numbers(60) * x[EDGES[0]] * x[EDGES[1]]
    return jnp.zeros(30).at[(EDGES[0] + 1) % 30].add(rate).at[EDGES[0]].add(-rate)


def ring(x):
    here = np.arange(len(x))
    there = (here + 1) % len(x)
    messages = jnp.tanh(x[here] * x[there])
    return x + jax.ops.segment_sum(messages, there, len(x))


def bundle(x):
    camera, point = x[:30].reshape(5, 6)[CAMERAS], x[30:].reshape(12, 3)[POINTS]
    seen = jnp.cross(camera[:, :3], point) + point + camera[:, 3:]
    return seen[:, :2] / seen[:, 2:]


def lorenz(x):
    return (jnp.roll(x, -1) - jnp.roll(x, 2)) * jnp.roll(x, 1) - x + 8.0


V, M = numbers(20), numbers(6, 6)

#: Name: function, point. The structure has exactly the entries that are not zero.
EXACT: dict[str, tuple[Function, np.ndarray]] = {
    "6 heat steps, roll": (heat(rolled, 6), numbers(50)),
    "6 heat steps, concatenate": (heat(sliced, 6), numbers(50)),
    "6 heat steps, pad": (heat(padded, 6), numbers(50)),
    "3 nonlinear steps, roll": (heat(rolled_nonlinear, 3), numbers(30)),
    "2 heat steps in 2D, roll": (heat(rolled_2d, 2), numbers(10, 10)),
    "2 heat steps in 2D, slices": (heat(sliced_2d, 2), numbers(10, 10)),
    "runge-kutta step of lorenz 96": (lambda x: x + lorenz(x + 0.1 * lorenz(x)), numbers(40)),
    "five-point kernel, valid": (convolved("VALID"), numbers(12, 12)),
    "five-point kernel, same": (convolved("SAME"), numbers(12, 12)),
    "kernel after sine": (lambda x: convolved("SAME")(jnp.sin(x)), numbers(12, 12)),
    "convolutional network": (network, numbers(40)),
    "window sums": (window(lax.add, 0.0, 2, 2, "VALID"), numbers(8, 8)),
    "overlapping window sums": (window(lax.add, 0.0, 3, 1, "SAME"), numbers(8, 8)),
    "mass action": (mass_action, numbers(30)),
    "ring graph": (ring, numbers(40)),
    "graph laplacian": (
        jax.grad(lambda x: jnp.sum((x[EDGES[0]] - x[EDGES[1]]) ** 4)),
        numbers(30),
    ),
    "bundle adjustment": (bundle, numbers(66)),
    "interpolation": (
        lambda x: x[LEFT] * (1 - (TIMES - LEFT)) + x[LEFT + 1] * (TIMES - LEFT),
        numbers(13),
    ),
    "arrowhead": (lambda x: jnp.concatenate([jnp.sum(x**2)[None], x[1:] * x[0]]), V),
    "flip": (lambda x: jnp.flip(x) * x, V),
    "strided slice": (lambda x: jnp.sin(x)[1::3], V),
    "reversed strided slice": (lambda x: x[::-2] ** 2, V),
    "diag of a vector": (lambda x: jnp.diag(x**2), V[:7]),
    "three diagonals": (
        lambda x: jnp.diag(x) + jnp.diag(x[1:] ** 2, 1) + jnp.diag(x[:-1], -1),
        V[:7],
    ),
    "diagonal": (lambda x: jnp.diagonal(x**2), M),
    "tril": (lambda x: jnp.tril(x**2), M),
    "triu": (lambda x: jnp.triu(x**2, 1), M),
    "tril of an outer product": (lambda x: jnp.tril(jnp.outer(x, x)), V[:6]),
    "where with a mask": (lambda x: jnp.where(np.arange(20) % 3 == 0, x**2, jnp.roll(x, 1)), V),
    "mask times": (lambda x: (np.arange(20) % 3 == 0).astype(float) * x**2, V),
    "identity times": (lambda x: np.eye(6) * x**2, M),
    "identity matrix product": (lambda x: np.eye(6) @ x**2, M),
    "band matrix product": (
        lambda x: (np.eye(8, k=1) - 2 * np.eye(8) + np.eye(8, k=-1)) @ x**2,
        V[:8],
    ),
    "repeat": (lambda x: jnp.repeat(x**2, 3), V),
    "tile": (lambda x: jnp.tile(x**2, (2, 3)), M),
    "kron with the identity": (lambda x: jnp.kron(jnp.eye(3), x**2), M),
    "identity on the right": (lambda x: jnp.kron(x**2, np.eye(3)), M),
    "roll along two axes": (lambda x: jnp.roll(x**2, (1, 2), (0, 1)) * x, M),
    "pad by edge": (lambda x: jnp.pad(x**2, 3, mode="edge"), V),
    "pad by reflection": (lambda x: jnp.pad(x**2, 3, mode="reflect"), V),
    "pad by wrapping": (lambda x: jnp.pad(x**2, 3, mode="wrap"), V),
    "pad symmetric": (lambda x: jnp.pad(x**2, ((1, 2), (2, 1)), mode="symmetric"), M),
    "differences": (lambda x: jnp.diff(x**2, 2), V),
    "gradient of a gradient": (lambda x: jnp.gradient(jnp.gradient(x**2)), V),
    "gradient in 2D": (lambda x: jnp.stack(jnp.gradient(x**2)), M),
    "cumulative sum": (lambda x: jnp.cumsum(x**2), V[:10]),
    "long cumulative sum": (lambda x: jnp.cumsum(x**2), V),
    "cumulative product": (lambda x: jnp.cumprod(x), V),
    "quotient of zeros": (lambda x: (np.arange(20) % 3 == 0).astype(float) / x, V),
    "second factor of qr": (lambda x: jnp.linalg.qr(x[:3, :3])[1], M),
    "padding that depends on the input": (lambda x: lax.pad(x**2, x[0], [(2, 1, 0)]), V),
    "convolve same": (lambda x: jnp.convolve(x**2, np.array([1.0, -2, 1]), "same"), V),
    "convolve full": (lambda x: jnp.convolve(x**2, np.array([1.0, -2, 1, 3]), "full"), V),
    "convolve with a zero": (lambda x: jnp.convolve(x**2, np.array([1.0, 0, 1]), "valid"), V),
    "strided convolution": (
        lambda x: lax.conv_general_dilated(x[None, None], np.array([[[1.0, 0, 2]]]), (2,), "SAME")[
            0, 0
        ],
        V,
    ),
    "dilated convolution": (
        lambda x: lax.conv_general_dilated(
            x[None, None], np.array([[[1.0, 3, 2]]]), (1,), "SAME", rhs_dilation=(3,)
        )[0, 0],
        V,
    ),
    "depthwise convolution": (
        lambda x: lax.conv_general_dilated(
            x[None], np.ones((6, 1, 3)), (1,), "SAME", feature_group_count=6
        )[0],
        M,
    ),
    "einsum of a diagonal": (lambda x: jnp.einsum("ii->i", x**2), M),
    "batched matrices": (lambda x: jnp.einsum("bij,bj->bi", numbers(6, 3, 6), x), M),
    "reshape, transpose, reshape": (
        lambda x: (jnp.sin(x).reshape(4, 5).T.reshape(10, 2) ** 2).ravel(),
        V,
    ),
    "reshape and roll": (lambda x: jnp.roll(x.reshape(4, 5), 1, 1).ravel() * x, V),
    "reshape, slice, reshape": (
        lambda x: (x.reshape(4, 5)[1:-1, 2:-1] ** 2).reshape(-1)[1:],
        V,
    ),
    "outer product": (lambda x: jnp.outer(x, x), V[:7]),
    "stack": (lambda x: jnp.stack([x, x**2, jnp.roll(x, 1)], 1), V),
    "transpose": (lambda x: x.T * x, M),
    "take along an axis": (
        lambda x: jnp.take_along_axis(x**2, np.array([[0, 2], [1, 1], [3, 0]] * 2), 1),
        M,
    ),
    "multiply some": (lambda x: x.at[2:5].multiply(3.0) ** 2, V),
    "multiply by some": (
        lambda x: jnp.ones(8).at[np.array([1, 5, 3])].multiply(x[:3], unique_indices=True),
        V,
    ),
    "upwind": (
        lambda x: jnp.where(np.arange(20) < 10, x - jnp.roll(x, 1), jnp.roll(x, -1) - x) * x,
        V,
    ),
    "products of windows": (lambda x: jnp.prod(x[np.arange(8)[:, None] + np.arange(5)], 1), V),
    "springs": (jax.grad(lambda x: jnp.sum((jnp.diff(x) - 1) ** 4)), V),
    "block diagonal": (lambda x: jax.scipy.linalg.block_diag(x[:2, :2] ** 2, x[2:, 2:]), M),
    "upsampling": (lambda x: jnp.repeat(jnp.repeat(x**2, 2, 0), 2, 1), M),
    "downsampling": (lambda x: x.reshape(2, 3, 3, 2).mean((1, 3)), M),
}

#: Name: function, point, entries. More than are not zero at one point, because which are depends on
#: the values (pooling), or cancels there (pairs).
BOUNDED: dict[str, tuple[Function, np.ndarray, int]] = {
    "smallest by scatter": (lambda x: x[:5].at[np.array([1, 3, 1])].min(x[7:10]), V, 8),
    "max pooling": (window(lax.max, -np.inf, 2, 2, "VALID"), numbers(8, 8), 64),
    "overlapping max pooling": (window(lax.max, -np.inf, 3, 2, "SAME"), numbers(8, 8), 121),
    "max pooling with ties": (
        lambda x: window(lax.max, -np.inf, 3, 2, "SAME")(x * (np.arange(8) % 3 > 0).astype(float)),
        numbers(8, 8),
        77,
    ),
    "min pooling": (window(lax.min, np.inf, 3, 1, "VALID"), numbers(6, 6), 144),
    "maximum of rows": (lambda x: jnp.max(x**2, 1), M, 36),
    "squared differences of pairs": (lambda x: (x[:, None] - x[None, :]) ** 2, V[:7], 91),
}
