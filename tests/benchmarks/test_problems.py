"""The benchmark problems say what their sources say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.problems import (
    PROBLEMS,
    black_scholes,
    brusselator,
    chain,
    helmholtz_energy,
    human_heart_dipole,
    kerr_sen,
    lighthouse,
    propane_combustion,
    robot_arm,
    roe_flux,
    training,
)
from benchmarks.problems.problem import first_sample, over_batch

problems = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=str)


def drawn(problem, seed, batch, dtype):
    """Inputs of a problem, compiled as a whole."""
    return jax.jit(lambda key: problem.sample(key, batch, dtype))(jax.random.key(seed))


@problems
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64], ids=["float32", "float64"])
def test_finite_and_in_the_dtype_of_its_inputs(problem, dtype):
    arguments = drawn(problem, 1, (), dtype)
    value = jax.jit(problem.fun)(*arguments)
    for leaf in jax.tree.leaves(value):
        assert leaf.dtype == dtype
        assert np.isfinite(leaf).all()


@problems
def test_batch_is_made_of_single_inputs(problem):
    batch = drawn(problem, 2, (5,), jnp.float64)
    values = jax.jit(over_batch(problem.fun, problem.shared))(*batch)
    first = jax.jit(lambda *batch: problem.fun(*first_sample(batch, problem.shared)))(*batch)
    jax.tree.map(
        lambda many, one: np.testing.assert_allclose(many[0], one, rtol=1e-11, atol=1e-14),
        values,
        first,
    )


@problems
def test_jacobian_is_finite_on_a_batch(problem):
    batch = drawn(problem, 3, (8,), jnp.float64)
    jacobian = jax.jit(over_batch(jax.jacrev(problem.fun, problem.argnums), problem.shared))(*batch)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jacobian))


def test_same_key_same_inputs():
    one, two, other = (roe_flux.sample(jax.random.key(k), (3,)) for k in (0, 0, 1))
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("name", ["roe_flux", "robot_arm"])
def test_packed_form_agrees(name):
    key = jax.random.key(4)
    scalars, packed = PROBLEMS[name], PROBLEMS[f"{name}_packed"]
    expected = scalars.fun(*scalars.sample(key, (), jnp.float64))
    np.testing.assert_allclose(packed.fun(*packed.sample(key, (), jnp.float64)), expected)


def test_roe_flux_of_equal_states_is_the_physical_flux():
    left = roe_flux.sample(jax.random.key(5), (20,), jnp.float64)[:3]
    np.testing.assert_allclose(
        roe_flux.roe_flux(*left, *left), roe_flux.euler_flux(*left), rtol=1e-12
    )


def test_roe_flux_upwinds_a_supersonic_flow():
    # All waves move to the right, so the flux is that of the left state.
    left, right = _state(1.0, 3.0, 1.0), _state(0.8, 3.2, 0.9)
    np.testing.assert_allclose(
        roe_flux.roe_flux(*left, *right), roe_flux.euler_flux(*left), rtol=1e-12
    )


def test_roe_flux_keeps_a_contact_discontinuity_at_rest():
    # Equal pressure, no velocity, a jump in density: only pressure acts on the interface.
    left, right = _state(1.0, 0.0, 0.7), _state(0.3, 0.0, 0.7)
    np.testing.assert_allclose(roe_flux.roe_flux(*left, *right), (0.0, 0.7, 0.0), atol=1e-12)


def test_roe_linearisation_fulfils_the_jump_condition():
    # For a single shock between the states, F = F_left when it moves right: Rankine-Hugoniot.
    # Shock of Mach number 2 into gas at rest (rho, p) = (1, 1), seen from a frame where the gas
    # streams in from the left at twice the speed of sound: a standing shock.
    gamma, mach = roe_flux.GAMMA, 2.0
    u1 = mach * gamma**0.5
    density = (gamma + 1) * mach**2 / ((gamma - 1) * mach**2 + 2)
    pressure = 1 + 2 * gamma / (gamma + 1) * (mach**2 - 1)
    left, right = _state(1.0, u1, 1.0), _state(density, u1 / density, pressure)
    expected = roe_flux.euler_flux(*left)
    np.testing.assert_allclose(roe_flux.euler_flux(*right), expected, rtol=1e-12)
    np.testing.assert_allclose(roe_flux.roe_flux(*left, *right), expected, rtol=1e-12)


def _state(rho, u, p):
    m = rho * u
    return tuple(jnp.float64(x) for x in (rho, m, p / (roe_flux.GAMMA - 1) + 0.5 * m * u))


def test_roe_flux_in_three_dimensions_is_that_of_one_without_sideways_motion():
    flat = roe_flux.sample(jax.random.key(12), (), jnp.float64)
    sideways = [jnp.array([m, 0.0, 0.0]) if k in (1, 4) else m for k, m in enumerate(flat)]
    mass, momentum, energy = roe_flux.roe_flux_3d(*sideways)
    np.testing.assert_allclose((mass, momentum[0], energy), roe_flux.roe_flux(*flat), rtol=1e-12)
    np.testing.assert_array_equal(momentum[1:], 0.0)


def test_roe_flux_in_three_dimensions_does_not_see_the_frame_sliding_sideways():
    # In a frame that slides with velocity s along the interface, momentum and energy transform as
    # the flux of mass says.
    rho_l, m_l, e_l, rho_r, m_r, e_r = roe_flux.sample_3d(jax.random.key(13), (), jnp.float64)
    slide = jnp.array([0.0, 0.4, -0.7])

    def seen(rho, m, e):
        return rho, m + rho * slide, e + m @ slide + 0.5 * rho * slide @ slide

    mass, momentum, energy = roe_flux.roe_flux_3d(rho_l, m_l, e_l, rho_r, m_r, e_r)
    moved = roe_flux.roe_flux_3d(*seen(rho_l, m_l, e_l), *seen(rho_r, m_r, e_r))
    np.testing.assert_allclose(moved[0], mass, rtol=1e-10)
    np.testing.assert_allclose(moved[1], momentum + mass * slide, rtol=1e-10)
    expected = energy + momentum @ slide + 0.5 * mass * slide @ slide
    np.testing.assert_allclose(moved[2], expected, rtol=1e-10)


def test_chain_equals_the_product_of_its_matrices():
    (angles,) = chain.sample(jax.random.key(14), (), jnp.float64)
    pose = np.eye(4)
    for theta in np.asarray(angles):
        c, s = np.cos(theta), np.sin(theta)
        a = chain.LENGTH
        pose = pose @ np.array([[c, 0, s, a * c], [s, 0, -c, a * s], [0, 1, 0, 0], [0, 0, 0, 1]])
    np.testing.assert_allclose(chain.chain(angles), pose[:3, 3], rtol=1e-10)


@pytest.mark.slow
def test_losses_are_those_of_the_likelihood():
    # Without weights in the last layer all classes are equally likely.
    arguments = training.sample_perceptron(jax.random.key(15), (), jnp.float64)
    arguments = [0.0 * a if k in (4, 5) else a for k, a in enumerate(arguments)]
    np.testing.assert_allclose(training.perceptron(*arguments), np.log(training.CLASSES))
    blocks, readout, x, label = training.sample_encoder(jax.random.key(16), (), jnp.float64)
    value = training.encoder(blocks, 0.0 * readout, x, label)
    np.testing.assert_allclose(value, np.log(training.CLASSES))


@pytest.mark.slow
def test_encoder_does_not_see_the_order_of_tokens():
    blocks, readout, x, label = training.sample_encoder(jax.random.key(17), (), jnp.float64)
    expected = training.encoder(blocks, readout, x, label)
    np.testing.assert_allclose(training.encoder(blocks, readout, x[::-1], label), expected)


def test_robot_arm_equals_the_product_of_its_matrices():
    angles = robot_arm.sample(jax.random.key(6), (), jnp.float64)
    pose = np.eye(4)
    for theta, d, a, twist in zip(angles, robot_arm.D, robot_arm.A, robot_arm.TWIST, strict=True):
        c, s, alpha = np.cos(theta), np.sin(theta), twist * np.pi / 2
        ca, sa = np.cos(alpha), np.sin(alpha)
        pose = pose @ np.array(
            [
                [c, -s * ca, s * sa, a * c],
                [s, c * ca, -c * sa, a * s],
                [0, sa, ca, d],
                [0, 0, 0, 1],
            ]
        )
    x, y, z, roll, pitch, yaw = robot_arm.robot_arm(*angles)
    np.testing.assert_allclose((x, y, z), pose[:3, 3], atol=1e-12)
    rotation = _turn(2, yaw) @ _turn(1, pitch) @ _turn(0, roll)
    np.testing.assert_allclose(rotation, pose[:3, :3], atol=1e-12)


def _turn(axis, angle):
    matrix = np.eye(3)
    i, j = [k for k in range(3) if k != axis]
    sign = -1 if axis == 1 else 1
    matrix[i, i] = matrix[j, j] = np.cos(angle)
    matrix[i, j], matrix[j, i] = -sign * np.sin(angle), sign * np.sin(angle)
    return matrix


def test_brusselator_versions_agree():
    (state,) = brusselator.sample(jax.random.key(7), (), jnp.float64, n=8)
    expected = brusselator.brusselator(state)
    np.testing.assert_allclose(brusselator.brusselator_slices(state), expected, rtol=1e-12)
    flat = brusselator.brusselator_flat(state.reshape(-1))
    np.testing.assert_allclose(flat, expected.reshape(-1), rtol=1e-12)


def test_brusselator_rests_at_its_steady_state():
    state = jnp.stack([jnp.full((4, 4), brusselator.B), jnp.full((4, 4), 3.4)])
    np.testing.assert_allclose(brusselator.brusselator(state), 0.0, atol=1e-12)


@pytest.mark.parametrize("n", [3, 4])
def test_brusselator_jacobian_has_twelve_nonzeros_per_grid_point(n):
    (state,) = brusselator.sample(jax.random.key(8), (), jnp.float64, n=n)
    jacobian = jax.jit(jax.jacfwd(brusselator.brusselator))(state)
    assert np.count_nonzero(jacobian) == brusselator.nonzeros(n) == 12 * n * n


def test_human_heart_dipole_in_complex_form():
    # The eight equations are sums of z, z^1, z^2, z^3 moments of two complex dipoles.
    a, b, c, d, t, u, v, w = human_heart_dipole.sample(jax.random.key(9), (), jnp.float64)
    moments = [
        complex(a, c) * complex(t, v) ** k + complex(b, d) * complex(u, w) ** k for k in range(4)
    ]
    values = human_heart_dipole.human_heart_dipole(a, b, c, d, t, u, v, w)
    sums = [
        (human_heart_dipole.SUM_MX, human_heart_dipole.SUM_MY),
        (human_heart_dipole.SUM_A, human_heart_dipole.SUM_B),
        (human_heart_dipole.SUM_C, human_heart_dipole.SUM_D),
        (human_heart_dipole.SUM_E, human_heart_dipole.SUM_F),
    ]
    residuals = [
        x for m, (re, im) in zip(moments, sums, strict=True) for x in (m.real - re, m.imag - im)
    ]
    np.testing.assert_allclose(values, residuals, rtol=1e-12)


def test_propane_combustion_at_a_point_worked_out_by_hand():
    x = [jnp.float64(value) for value in (1, 1, 4, 1, 1, 1, 1, 1, 1, 1, 10)]
    k = propane_combustion
    expected = [
        -1,
        -1,
        -2,
        -31,
        k.K5 - 1,
        k.K6 - 2,
        k.K7 - 2,
        k.K8 - 4,
        2 * k.K9 - 2,
        k.K10 - 4,
        -3,
    ]
    np.testing.assert_allclose(k.propane_combustion(*x), expected, rtol=1e-12)


def test_black_scholes_price_of_a_textbook_option():
    # Hull, "Options, Futures, and Other Derivatives", example 15.6: 4.76.
    price = black_scholes.black_scholes(*(jnp.float64(v) for v in (42, 40, 0.1, 0.2, 0.5)))
    assert float(price) == pytest.approx(4.7594, abs=1e-4)


def test_black_scholes_greeks_start_with_delta():
    arguments = [jnp.float64(v) for v in (42, 40, 0.1, 0.2, 0.5)]
    delta = black_scholes.black_scholes_greeks(*arguments)[0]
    assert float(delta) == pytest.approx(0.7791, abs=1e-4)  # Phi(d1), d1 = 0.7693


def test_lighthouse_point_lies_on_the_beam_and_on_the_quay():
    nu, gamma, omega, t = lighthouse.sample(jax.random.key(10), (), jnp.float64)
    y1, y2 = lighthouse.lighthouse(nu, gamma, omega, t)
    np.testing.assert_allclose(y2, gamma * y1, rtol=1e-12)
    # The lighthouse stands at (-nu, 0).
    np.testing.assert_allclose(y2, (y1 + nu) * np.tan(omega * t), rtol=1e-12)


def test_helmholtz_energy_is_extensive_entropy_minus_attraction():
    # One species: the formula written out with plain numbers.
    a, b = (float(table.squeeze()) for table in helmholtz_energy.parameters(1))
    x, root = 0.7, 2**0.5
    expected = x * np.log(x / (1 - b * x)) - a * x / (8**0.5 * b) * np.log(
        (1 + (1 + root) * b * x) / (1 + (1 - root) * b * x)
    )
    value = helmholtz_energy.helmholtz_energy(jnp.array([x]))
    assert float(value) == pytest.approx(expected, rel=1e-12)


def test_kerr_sen_without_spin_and_charge_is_schwarzschild():
    r, theta, mass, zero = (jnp.float64(v) for v in (5.0, 0.9, 1.0, 0.0))
    metric = kerr_sen.kerr_sen(r, theta, mass, zero, zero)
    expected = (-0.6, 1 / 0.6, 25.0, 0.0, 25.0 * np.sin(0.9) ** 2)
    np.testing.assert_allclose(metric, expected, rtol=1e-12)


def test_kerr_sen_determinant_of_the_t_phi_block():
    # g_tt g_phiphi - g_tphi^2 = -Delta sin^2 theta, as for every metric of the Kerr family.
    r, theta, mass, a, b = kerr_sen.sample(jax.random.key(11), (), jnp.float64)
    g_tt, _, _, g_tphi, g_phiphi = kerr_sen.kerr_sen(r, theta, mass, a, b)
    delta = r * (r + 2 * b) - 2 * mass * r + a * a
    np.testing.assert_allclose(g_tt * g_phiphi - g_tphi**2, -delta * np.sin(theta) ** 2, rtol=1e-12)
