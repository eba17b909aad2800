import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bnpo.algorithm.beta import MAX_CONCENTRATION, fit_beta, inverse_density


@given(a=st.floats(0.05, 20), b=st.floats(0.05, 20))
def test_fit_recovers_the_parameters_from_their_moments(a, b):
    """Two points at mean -+ sd/sqrt(2) have, with divisor n - 1, exactly the mean and variance of Beta(a, b)."""
    mean, variance = stats.beta.stats(a, b, moments="mv")
    spread = np.sqrt(variance / 2)
    fit = fit_beta(np.array([mean - spread, mean + spread]), answers=16)
    np.testing.assert_allclose([fit.a, fit.b], [a, b], rtol=1e-6)
    np.testing.assert_allclose([fit.alpha, fit.beta], [1 + a / 3, 1 + b / 3], rtol=1e-6)


@pytest.mark.parametrize(
    ("accuracies", "edge", "a_plus_b"),
    [
        ([0.0, 0, 0], "constant", 0),
        ([1.0, 1, 1], "constant", 0),
        ([0.0, 1, 0, 1], "dispersed", 0),  # variance 1/3 with divisor n - 1, above E(1 - E) = 1/4
        ([0.5, 0.5, 0.5], "concentrated", MAX_CONCENTRATION),
        ([0.25], "concentrated", MAX_CONCENTRATION),
        ([0.0], "constant", 0),
        ([0.25, 0.75], "", 1),
    ],
)
def test_edges(accuracies, edge, a_plus_b):
    fit = fit_beta(np.array(accuracies), answers=4)
    assert fit.edge == edge
    assert fit.a + fit.b == pytest.approx(a_plus_b)
    weights = inverse_density(np.array([0.25, 0.5, 0.75]), fit.alpha, fit.beta)
    assert np.isfinite(weights).all()
    assert (weights > 0).all()


def test_max_concentration_is_a_parameter():
    fit = fit_beta(np.array([0.5, 0.5]), answers=4, max_concentration=30)
    assert (fit.a, fit.b) == (15, 15)


def test_corrected_moments_are_those_of_the_accuracies_without_sampling_noise():
    """Accuracies from Beta(2, 3), estimated by 8 answers: `sample` overstates the variance, `corrected` does not."""
    rng = np.random.default_rng(0)
    seen = rng.binomial(8, rng.beta(2, 3, size=200_000)) / 8
    true_variance = stats.beta.var(2, 3)
    assert fit_beta(seen, answers=8).variance > 1.4 * true_variance
    corrected = fit_beta(seen, answers=8, moments="corrected")
    assert corrected.variance == pytest.approx(true_variance, rel=0.01)
    assert corrected.a == pytest.approx(2, rel=0.03)
    assert corrected.b == pytest.approx(3, rel=0.03)


def test_corrected_moments_with_one_answer_fall_back_to_the_dispersed_edge():
    assert fit_beta(np.array([0.0, 1.0]), answers=1, moments="corrected").edge == "dispersed"


@given(p=st.floats(1e-3, 1 - 1e-3), alpha=st.floats(1, 40), beta=st.floats(1, 40))
def test_inverse_density_is_scipys(p, alpha, beta):
    np.testing.assert_allclose(
        inverse_density(np.array([p]), alpha, beta)[0], np.exp(-stats.beta.logpdf(p, alpha, beta)), rtol=1e-8
    )


def test_inverse_density_is_zero_where_every_answer_agrees():
    np.testing.assert_array_equal(inverse_density(np.array([0.0, 1.0]), 3.0, 7.0), [0, 0])
