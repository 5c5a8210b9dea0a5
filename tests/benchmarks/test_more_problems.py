"""The problems of the group "more" say what their sources say, and ours agrees with JAX on them.

That they are finite, batched and traced in both types is in the tests of all problems.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.linalg import expm

from benchmarks import jacobian
from benchmarks.problems import PROBLEMS, bratu, motion, poses, recurrent
from benchmarks.problems.groups import names_in
from benchmarks.problems.laplacian import LAPLACIAN_PROBLEMS, attention, densities, surrogates
from benchmarks.suites import SUITES

CLOSE = {"rtol": 1e-10, "atol": 1e-12}


@pytest.mark.slow
@pytest.mark.parametrize("name", names_in(PROBLEMS, "more"))
def test_ours_is_that_of_jax(name):
    assert jacobian.agreement(PROBLEMS[name]) < 1e-12


def test_suites_run_the_named_problems_and_know_the_others():
    assert "roe_flux" in SUITES["jacobian"].problems
    assert "double_pendulum" not in SUITES["jacobian"].problems
    assert SUITES["jacobian"].every == (*SUITES["jacobian"].problems, *SUITES["jacobian"].more)
    assert SUITES["laplacian"].more == names_in(LAPLACIAN_PROBLEMS, "more")
    for name in ("compile_time", "memory", "gpu"):
        assert "jacobian.lstm" in SUITES[name].more
        assert "laplacian.sines" in SUITES[name].more
        assert not set(SUITES[name].more) & set(SUITES[name].problems)


@pytest.mark.slow
def test_double_pendulum_fulfils_the_equation_of_lagrange():
    (l1, l2), (m1, m2) = motion.LENGTHS, motion.MASSES

    def lagrangian(angles, speeds):
        def positions(angles):
            x1, y1 = l1 * jnp.sin(angles[0]), -l1 * jnp.cos(angles[0])
            return jnp.array([x1, y1, x1 + l2 * jnp.sin(angles[1]), y1 - l2 * jnp.cos(angles[1])])

        at, moving = jax.jvp(positions, (angles,), (speeds,))
        kinetic = 0.5 * (m1 * moving[:2] @ moving[:2] + m2 * moving[2:] @ moving[2:])
        return kinetic - motion.GRAVITY * (m1 * at[1] + m2 * at[3])

    (state,) = motion.sample_pendulum(jax.random.key(20), (), jnp.float64)
    slope = motion.pendulum_slope(state)
    angles, speeds = state[:2], state[2:]
    np.testing.assert_array_equal(slope[:2], speeds)
    momentum = jax.grad(lagrangian, 1)
    _, change = jax.jvp(momentum, (angles, speeds), (speeds, slope[2:]))
    np.testing.assert_allclose(change, jax.grad(lagrangian)(angles, speeds), **CLOSE)


def test_a_step_is_of_fourth_order():
    # Half as long, a single step has a thirty-second of the error; of the exponential.
    errors = [
        abs(float(motion.runge_kutta(lambda y: y, jnp.float64(1.0), h)) - np.exp(h))
        for h in (0.1, 0.05)
    ]
    assert errors[0] / errors[1] == pytest.approx(32.0, rel=0.05)


def test_hodgkin_huxley_rests_at_its_resting_potential():
    # Dayan and Abbott: the neuron rests at -65 mV with these gates.
    rest = jnp.array([-65.0, 0.0529, 0.5961, 0.3177])
    slope = motion.neuron_slope(rest, jnp.float64(0.0))
    np.testing.assert_allclose(slope, 0.0, atol=5e-3)
    assert float(motion.neuron_slope(rest, jnp.float64(10.0))[0]) == pytest.approx(10.0, abs=0.01)


def test_gravity_is_the_gradient_of_its_potential():
    def potential(r):
        square = r @ r
        legendre = 0.5 * (3.0 * r[2] ** 2 / square - 1.0)
        return (1.0 - motion.J2 / square * legendre) / jnp.sqrt(square)

    r = motion.sample_orbit(jax.random.key(21), (), jnp.float64)[0][:3]
    np.testing.assert_allclose(motion.gravity_j2(r), jax.grad(potential)(r), **CLOSE)


def test_quadrotor_hovers_and_keeps_the_length_of_its_quaternion():
    upright = jnp.zeros(13).at[6].set(1.0)
    hover = jnp.full(4, motion.MASS * motion.GRAVITY / 4)
    np.testing.assert_allclose(motion.quadrotor(upright, hover), 0.0, **CLOSE)
    # More thrust behind than in front turns it forwards, about y; its rotors differ in no drag.
    tilted = motion.quadrotor(upright, hover + jnp.array([-0.1, 0.0, 0.1, 0.0]))
    np.testing.assert_allclose(
        tilted[10:], [0.0, 0.2 * motion.ARM / motion.INERTIA[1], 0.0], **CLOSE
    )
    state, thrusts = motion.sample_quadrotor(jax.random.key(22), (), jnp.float64)
    slope = motion.quadrotor(state, thrusts)
    assert abs(float(state[6:10] @ slope[6:10])) < 1e-12


def test_se3_exponential_is_that_of_the_matrix():
    (twist,) = poses.sample_twist(jax.random.key(23), (), jnp.float64)
    x, y, z, *along = twist
    matrix = jnp.array([[0, -z, y, along[0]], [z, 0, -x, along[1]], [-y, x, 0, along[2]], [0] * 4])
    np.testing.assert_allclose(poses.se3_exponential(twist), expm(matrix)[:3], **CLOSE)


def test_camera_sees_a_point_on_its_axis_in_the_middle():
    camera, _, _ = poses.sample_camera(jax.random.key(24), (), jnp.float64)
    camera = camera.at[3:5].set(0.0)
    seen = poses.camera_residual(camera, jnp.zeros(3), jnp.zeros(2))
    np.testing.assert_allclose(seen, 0.0, **CLOSE)


def test_bratu_has_five_entries_a_point_and_a_known_row():
    (u,) = bratu.sample(jax.random.key(25), (), jnp.float64, n=4)
    jacobian_of_u = jax.jit(jax.jacfwd(bratu.bratu))(u).reshape(16, 16)
    assert np.count_nonzero(jacobian_of_u) == 5 * 16 - 4 * 4
    expected = 4.0 - bratu.LAMBDA / 25.0 * np.exp(u[1, 1])
    np.testing.assert_allclose(jacobian_of_u[5, [1, 4, 5, 6, 9]], [-1, -1, expected, -1, -1])


def test_lstm_step_by_step():
    into, back, bias, xs, target = map(np.asarray, recurrent.sample(jax.random.key(26), (), float))
    state, cell = np.zeros(recurrent.UNITS), np.zeros(recurrent.UNITS)
    for x in xs:
        z = x @ into + state @ back + bias
        taken, kept, new, shown = np.split(z, 4)
        cell = cell / (1 + np.exp(-kept)) + np.tanh(new) / (1 + np.exp(-taken))
        state = np.tanh(cell) / (1 + np.exp(-shown))
    value = recurrent.lstm(into, back, bias, xs, target)
    np.testing.assert_allclose(value, 0.5 * np.sum((state - target) ** 2), **CLOSE)


def small(name):
    """A function of one input, and an input."""
    instance = LAPLACIAN_PROBLEMS[name].instance(jnp.float64, small=True)
    return instance, instance.xs[0]


def laplacian(instance, x):
    """By JAX."""
    hessian = jax.jit(
        jax.hessian(lambda flat: instance.fun(instance.params, flat.reshape(x.shape)))
    )
    return jnp.trace(hessian(x.reshape(-1)))


def test_mixture_of_one_component_is_a_normal_density():
    instance, x = small("gaussian_mixture")
    params = {name: leaf[:1] for name, leaf in instance.params.items()}
    factor = np.asarray(params["factors"][0])
    covariance = np.linalg.inv(factor @ factor.T)
    difference = np.asarray(x - params["means"][0])
    expected = -0.5 * difference @ np.linalg.solve(covariance, difference)
    expected -= 0.5 * np.linalg.slogdet(2 * np.pi * covariance)[1]
    np.testing.assert_allclose(densities.gaussian_mixture(params, x), expected, **CLOSE)


def test_boltzmann_machine_sums_over_its_hidden_units():
    instance, x = small("boltzmann_machine")
    weights, bias, visible = (instance.params[name] for name in ("hidden", "bias", "visible"))
    states = np.stack(np.meshgrid(*[[0.0, 1.0]] * weights.shape[1]), -1).reshape(-1, len(bias))
    energies = states @ bias + states @ (x @ weights) - 0.5 * np.sum((x - visible) ** 2)
    expected = np.log(np.sum(np.exp(energies)))
    np.testing.assert_allclose(instance.fun(instance.params, x), expected, **CLOSE)


def test_coupling_flow_is_a_density():
    instance, x = small("coupling_flow")
    # Without weights nothing moves.
    still = jax.tree.map(jnp.zeros_like, instance.params)
    d = x.shape[0]
    normal = -0.5 * jnp.sum(x**2) - 0.5 * d * np.log(2 * np.pi)
    np.testing.assert_allclose(densities.coupling_flow(still, x), normal, **CLOSE)
    # A density: in two dimensions it adds up to one.
    flat = LAPLACIAN_PROBLEMS["coupling_flow"].make(
        densities.Draw(1, jnp.float64), batch=1, d=2, width=3, depth=2
    )
    axis = jnp.linspace(-12.0, 12.0, 401)
    points = jnp.stack(jnp.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    values = jnp.exp(jax.vmap(lambda x: flat.fun(flat.params, x))(points))
    assert float(jnp.sum(values)) * 0.06**2 == pytest.approx(1.0, abs=1e-3)


def test_jastrow_has_the_cusp():
    params = {"range": jnp.float64(1.3), "trap": jnp.float64(0.0)}

    def at(distance):
        return densities.trapped_jastrow(params, jnp.array([[0.0, 0.0, 0.0], [distance, 0, 0]]))

    np.testing.assert_allclose(jax.grad(at)(1e-9), densities.CUSP, rtol=1e-6)


def test_process_mean_has_the_laplacian_of_its_kernel():
    instance, x = small("process_mean")
    points, weights, lengths = (instance.params[n] for n in ("points", "weights", "lengths"))
    scaled = (x - points) / lengths
    kernel = weights * np.exp(-0.5 * np.sum(scaled**2, axis=1))
    expected = np.sum(kernel[:, None] * (scaled**2 - 1) / lengths**2)
    np.testing.assert_allclose(laplacian(instance, x), expected, **CLOSE)


def test_experts_that_agree_are_one():
    instance, x = small("experts")
    first = instance.params["experts"][0]
    alike = {**instance.params, "experts": [first] * 2}
    np.testing.assert_allclose(surrogates.experts(alike, x), surrogates.mlp(first, x)[0], **CLOSE)


def test_sines_of_one_layer_have_a_known_laplacian():
    instance, x = small("sines")
    (weights, bias), last = instance.params[0], instance.params[-1]
    angles = surrogates.FREQUENCY * (x @ weights + bias)
    curvature = -np.sin(angles) * surrogates.FREQUENCY**2 * np.sum(weights**2, axis=0)
    shallow = surrogates.Instance(surrogates.sines, [instance.params[0], last], x[None])
    np.testing.assert_allclose(laplacian(shallow, x), (curvature @ last[0])[0], **CLOSE)


def test_graph_attention_is_dense_attention_under_a_mask():
    instance, x = small("graph_attention")
    nodes = x.shape[0]
    h = x
    for weights, by_receiver, by_sender in instance.params["layers"]:
        z = h @ weights
        scores = jax.nn.leaky_relu((z @ by_receiver)[:, None] + (z @ by_sender)[None], 0.2)
        apart = (np.arange(nodes)[:, None] - np.arange(nodes)[None]) % nodes
        near = (apart <= 2) | (apart >= nodes - 2)
        h = jax.nn.elu(jax.nn.softmax(jnp.where(near, scores, -jnp.inf), axis=1) @ z)
    expected = jnp.sum(surrogates.mlp(instance.params["readout"], h))
    np.testing.assert_allclose(instance.fun(instance.params, x), expected, **CLOSE)


def test_rotary_scores_depend_on_distances_of_positions_only():
    q, k = densities.Draw(2, jnp.float64).normal(2, 1, 1, 4)
    turned_q, turned_k = (attention.turned(jnp.broadcast_to(row, (1, 6, 4)))[0] for row in (q, k))
    scores = turned_q @ turned_k.T
    assert not np.allclose(scores[0, 0], scores[0, 1])
    for offset in range(-5, 6):
        diagonal = np.diagonal(scores, offset)
        np.testing.assert_allclose(diagonal, diagonal[0], **CLOSE)


@pytest.mark.slow
def test_rotary_block_looks_only_backwards():
    instance, x = small("rotary_block")
    whole = attention.rotary_block(instance.params, x, 2)
    start = attention.rotary_block(instance.params, x[:2], 2)
    np.testing.assert_allclose(whole[:2], start, **CLOSE)
