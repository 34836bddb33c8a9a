"""Standard laws against scipy.stats, mpmath quadrature and each other."""

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from residlab.theory import laws

ORACLES = {
    "uniform": stats.uniform(-np.sqrt(3), 2 * np.sqrt(3)),
    "gaussian": stats.norm(),
    "laplace": stats.laplace(scale=1 / np.sqrt(2)),
    "student_t3": stats.t(3, scale=1 / np.sqrt(3)),
}
GRID = np.linspace(-12, 12, 961) + 1e-4  # off the corners of the uniform law


def test_registry_is_complete_and_read_only():
    assert laws.LAWS.keys() == ORACLES.keys()
    with pytest.raises(TypeError):
        laws.LAWS["cauchy"] = laws.LAWS["gaussian"]


@pytest.mark.parametrize("name", ORACLES)
def test_against_scipy(name):
    law, oracle = laws.LAWS[name], ORACLES[name]
    np.testing.assert_allclose(law.density(GRID), oracle.pdf(GRID), rtol=1e-12)
    np.testing.assert_allclose(law.cdf(GRID), oracle.cdf(GRID), rtol=1e-11, atol=1e-16)
    kappa = np.linspace(0, 12, 97)
    np.testing.assert_allclose(law.tail(kappa), 2 * oracle.sf(kappa), rtol=1e-11, atol=1e-16)


@pytest.mark.parametrize("name", ORACLES)
def test_moments_and_tail_by_quadrature(name):
    law = laws.LAWS[name]
    edge = float(np.sqrt(3)) if name == "uniform" else mpmath.inf
    cuts = [0, 1, edge] if name == "uniform" else [0, 1, 4, 16, 64, edge]

    def density(t):
        return law.density(float(t))

    def half(moment):
        return float(mpmath.quad(lambda t: t**moment * density(t), cuts))

    assert 2 * half(0) == pytest.approx(1, rel=1e-7)
    # 64 is far in the tail of all but Student's law, whose second moment still comes slowly: t**2 f ~ t**-2.
    assert 2 * half(2) == pytest.approx(1, rel=1e-6)
    inner = 2 * float(mpmath.quad(density, [0, 0.5, 1.25]))
    assert law.tail(1.25) == pytest.approx(1 - inner, rel=1e-9)


@pytest.mark.parametrize("nu", [2.01, 2.5, 3, 4, 7.5, 30, 1e4])
def test_student_t_has_variance_one_for_every_nu(nu):
    scale = np.sqrt((nu - 2) / nu)
    oracle = stats.t(nu, scale=scale)
    np.testing.assert_allclose(laws.student_t_density(GRID, nu), oracle.pdf(GRID), rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(laws.student_t_cdf(GRID, nu), oracle.cdf(GRID), rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(
        laws.student_t_tail(np.abs(GRID), nu), 2 * oracle.sf(np.abs(GRID)), rtol=1e-9, atol=1e-300
    )
    assert oracle.var() == pytest.approx(1)


def test_closed_form_at_three_degrees_of_freedom():
    np.testing.assert_allclose(laws.student_t3_density(GRID), laws.student_t_density(GRID, 3), rtol=1e-13)
    np.testing.assert_allclose(laws.student_t3_cdf(GRID), laws.student_t_cdf(GRID, 3), rtol=1e-11, atol=1e-15)
    kappa = np.array([0, 0.1, 1, 3, 10, 100, 1000])
    roundoffs = 1e-15 * (1 + kappa**2)
    error = np.abs(laws.student_t3_tail(kappa) / laws.student_t_tail(kappa, 3) - 1)
    assert np.all(error <= roundoffs)
    assert laws.student_t3_tail(100) == pytest.approx(4 / (3 * np.pi * 100**3), rel=1e-3)


def test_student_t_tends_to_the_gaussian():
    np.testing.assert_allclose(laws.student_t_tail([1, 2, 3], 1e7), laws.gaussian_tail([1, 2, 3]), rtol=1e-5)


@pytest.mark.parametrize("name", ORACLES)
@given(t=st.floats(-50, 50))
def test_symmetry_and_consistency(name, t):
    law = laws.LAWS[name]
    assert law.density(t) == law.density(-t) >= 0
    assert law.cdf(t) + law.cdf(-t) == pytest.approx(1, abs=1e-15)
    assert law.tail(abs(t)) == pytest.approx(2 * law.cdf(-abs(t)), rel=1e-9, abs=5e-16)


@pytest.mark.parametrize("name", ORACLES)
def test_shapes_scalars_and_nan(name):
    law = laws.LAWS[name]
    for function in (law.density, law.cdf, law.tail):
        assert isinstance(function(1), np.float64)
        assert function(np.ones((2, 3))).shape == (2, 3)
    assert law.tail(0) == 1
    assert np.isnan(law.density(np.nan))
    assert np.isnan(law.cdf(np.nan))


def test_student_t_broadcasts():
    for function in (laws.student_t_density, laws.student_t_cdf, laws.student_t_tail):
        assert function([[1.0], [2.0]], [3.0, 4.0, 5.0]).shape == (2, 3)


def test_errors():
    for law in laws.LAWS.values():
        with pytest.raises(ValueError, match=r"kappa must be finite and >= 0; got -1.0"):
            law.tail([1, -1])
    for function in (laws.student_t_density, laws.student_t_cdf, laws.student_t_tail):
        with pytest.raises(ValueError, match=r"nu must be finite and > 2, for a finite variance; got 2.0"):
            function(1.0, 2)
