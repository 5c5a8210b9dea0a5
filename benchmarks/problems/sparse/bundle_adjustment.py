r"""Bundle adjustment: residuals of points seen by cameras with radial distortion.

A camera has nine parameters (rotation vector, translation, focal length, two of distortion), a
point three; each observation gives two residuals that depend on one camera and one point: 24
nonzeros.

Source: S. Agarwal, N. Snavely, S. Seitz, R. Szeliski, "Bundle adjustment in the large", ECCV 2010
(camera model as in its data set). Derivative of the rotation by hand: G. Gallego, A. Yezzi, "A
compact formula for the derivative of a 3-D rotation in exponential coordinates", J. Math. Imaging
Vision 51 (2015), 378-384.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.problems.sparse.problem import Instance, SparseProblem, joined, uniform

CAMERA = 9


def rotate(vector: jax.Array, points: jax.Array) -> jax.Array:
    """Rodrigues' formula: points, shape (k, 3), each turned about its vector, shape (k, 3)."""
    angle = jnp.sqrt(jnp.sum(vector * vector, axis=-1, keepdims=True))
    axis = vector / angle
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    along = jnp.sum(axis * points, axis=-1, keepdims=True)
    return points * cos + jnp.cross(axis, points) * sin + axis * along * (1.0 - cos)


def project(cameras: jax.Array, points: jax.Array) -> jax.Array:
    """Image of each point, shape (k, 3), in its camera, shape (k, 9); shape (k, 2)."""
    seen = rotate(cameras[:, :3], points) + cameras[:, 3:6]
    plane = -seen[:, :2] / seen[:, 2:]
    radius = jnp.sum(plane * plane, axis=-1)
    distortion = 1.0 + radius * (cameras[:, 7] + radius * cameras[:, 8])
    return (cameras[:, 6] * distortion)[:, None] * plane


def _cross_matrix(v: jax.Array) -> jax.Array:
    x, y, z = v[:, 0], v[:, 1], v[:, 2]
    zero = jnp.zeros_like(x)
    return jnp.stack([zero, -z, y, z, zero, -x, -y, x, zero], axis=-1).reshape(-1, 3, 3)


def _blocks(cameras: jax.Array, points: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Derivatives by the camera, shape (k, 2, 9), and by the point, shape (k, 2, 3)."""
    vector = cameras[:, :3]
    eye = jnp.eye(3, dtype=points.dtype)
    turned = jax.vmap(lambda v: rotate(jnp.broadcast_to(v, (3, 3)), eye))(vector)
    rotation = jnp.swapaxes(turned, 1, 2)
    square = jnp.sum(vector * vector, axis=-1)[:, None, None]
    inner = vector[:, :, None] * vector[:, None, :] + (turned - eye) @ _cross_matrix(vector)
    by_vector = -rotation @ _cross_matrix(points) @ inner / square

    seen = (rotation @ points[:, :, None])[:, :, 0] + cameras[:, 3:6]
    plane = -seen[:, :2] / seen[:, 2:]
    focal, k1, k2 = cameras[:, 6, None, None], cameras[:, 7], cameras[:, 8]
    radius = jnp.sum(plane * plane, axis=-1)
    distortion = 1.0 + radius * (k1 + radius * k2)
    slope = 2.0 * (k1 + 2.0 * radius * k2)
    outer = plane[:, :, None] * plane[:, None, :]
    by_plane = focal * (distortion[:, None, None] * eye[:2, :2] + slope[:, None, None] * outer)
    flat = jnp.broadcast_to(-eye[:2, :2], (len(points), 2, 2))
    plane_by_seen = jnp.concatenate([flat, -plane[:, :, None]], axis=2) / seen[:, 2, None, None]
    by_seen = by_plane @ plane_by_seen
    image = focal[:, :, 0] * plane
    rest = jnp.stack(
        [
            distortion[:, None] * plane,
            radius[:, None] * image,
            (radius * radius)[:, None] * image,
        ],
        axis=2,
    )
    by_camera = jnp.concatenate([by_seen @ by_vector, by_seen, rest], axis=2)
    return by_camera, by_seen @ rotation


def make(n: int, dtype: Any, seed: int) -> Instance:
    """A scene of n cameras, 25 n points and 100 n observations, at most half of all pairs."""
    points = 25 * n
    observations = min(100 * n, n * points // 2)
    generator = np.random.default_rng(seed)
    pairs = generator.choice(n * points, observations, replace=False)
    camera, point = np.divmod(np.sort(pairs), points)
    image = uniform(seed + 1, (observations, 2), dtype)

    def split(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        cameras = x[: CAMERA * n].reshape(n, CAMERA)
        return cameras[camera], x[CAMERA * n :].reshape(points, 3)[point]

    def residuals(x: jax.Array) -> jax.Array:
        return (project(*split(x)) - image).reshape(-1)

    def by_hand(x: jax.Array) -> tuple[jax.Array, ...]:
        return _blocks(*split(x))

    row = np.arange(2 * observations).reshape(-1, 2, 1)
    camera_col = (CAMERA * camera)[:, None, None] + np.arange(CAMERA)
    point_col = CAMERA * n + (3 * point)[:, None, None] + np.arange(3)
    rows, cols = joined(
        *(tuple(np.broadcast_arrays(row, col)) for col in (camera_col, point_col))  # type: ignore[arg-type]
    )
    cameras = generator.uniform(0.2, 0.5, (n, CAMERA))
    cameras[:, 5] -= 8.0  # the cameras look along -z
    start = np.concatenate([cameras.ravel(), generator.uniform(-1.0, 1.0, 3 * points)])
    return Instance(residuals, jnp.asarray(start, dtype), by_hand, rows, cols)


SOURCE = "Agarwal et al., Bundle adjustment in the large, ECCV 2010"
PROBLEMS = (SparseProblem("bundle_adjustment", make, 20, 2, SOURCE),)
