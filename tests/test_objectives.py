"""What estimators maximise with m answers: exact weights and objectives, and weights that users
type.
"""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom

from bnpo.algorithm.advantages import compute_advantages
from bnpo.algorithm.beta import inverse_density
from bnpo.algorithm.estimators import Method
from bnpo.algorithm.weights import exact_objective, exact_weight, gains, shares, weight_values
from bnpo.config import check_config, parse_train_config
from conftest import refused
from paper.objectives import FITS, atlas, beta_moments, group_gains
from planner.dry_run import objective_lines
from test_estimators import slope


@pytest.mark.parametrize("m", [2, 3, 16])
@pytest.mark.parametrize("p", [0.02, 0.3, 0.95])
def test_weights_are_the_slopes_of_the_advantages(m, p):
    for algo in ("reinforce", "rloo", "grpo", "maxrl"):
        found = group_gains(algo, m)
        assert exact_weight(np.array([p]), found)[0] == pytest.approx(slope(algo, m, p)), algo
        label = "rloo, remax, eb, shrinkage" if algo == "rloo" else algo
        assert atlas(m)[label] == pytest.approx(found)
    for mean, variance in FITS:
        fit = beta_moments(mean, variance)
        expected = slope("beta", m, p, beta_parameters=(fit.alpha, fit.beta))
        weights = atlas(m)[f"bnpo at E[p] = {mean}, Var[p] = {variance}"]
        assert exact_weight(np.array([p]), weights)[0] == pytest.approx(expected)


@pytest.mark.parametrize("m", [2, 5, 16])
def test_other_forms_of_the_weight_and_its_integral(m):
    """docs/theory.md, 5: the polynomials of degree m - 2 and m - 1 that one weight for all
    answers gives.
    """
    weights = np.random.default_rng(0).random(m - 1)
    for p in (0.1, 0.6):
        expected = (m - 1) / m * binom.pmf(np.arange(m - 1), m - 2, p) @ weights
        assert exact_weight(np.array([p]), gains(weights))[0] == pytest.approx(expected)
        expected = binom.sf(np.arange(m - 1), m - 1, p) @ weights / m
        assert exact_objective(np.array([p]), gains(weights))[0] == pytest.approx(expected)


@pytest.mark.parametrize("m", [2, 5, 16])
@pytest.mark.parametrize("p", [0.02, 0.6])
def test_two_weights_are_the_slope_of_their_objective(m, p):
    """From the advantages themselves, over all outcomes; and the objective is the integral of
    the slope.
    """
    texts = {"weight": "1 / sqrt(p)", "weight_wrong": "2 * (1 - p) + m / 10"}
    gain = gains(*(weight_values(text, shares(m), m, 32) for text in texts.values()))
    assert exact_weight(np.array([p]), gain)[0] == pytest.approx(slope("weight", m, p, **texts))
    integral, _ = quad(lambda t: exact_weight(np.array([t]), gain)[0], 0, p)
    assert exact_objective(np.array([p]), gain)[0] == pytest.approx(integral)


def test_typed_weights_and_names_that_beta_covers():
    """docs/estimators.md: MaxRL, the Tsallis family and F-GRPO's weight are Beta densities up to a
    factor.
    """
    p = shares(16)
    found = weight_values(" 3 - -2 * (1 - p) / p - p + sqrt(exp(log(m))) / n**2", p, 16, 32)
    np.testing.assert_allclose(found, 3 + 2 * (1 - p) / p - p + 4 / 32**2)
    for text, parameters in (
        ("p**-0.75", (1.75, 1)),
        ("1/p", (2, 1)),
        ("(1 - p)**0.5 / sqrt(p*(1-p))", (1.5, 1)),
        ("(1 - p)**(0.3 - 1)", (1, 1.7)),
    ):
        ratio = weight_values(text, p, 16, 32) / inverse_density(p, *parameters)
        np.testing.assert_allclose(ratio, ratio[0])


@pytest.mark.parametrize("text", ["1 / (p * (1 - p))**8", "-log(p) / (1 - p)"])
def test_no_signal_gives_no_advantage_with_any_weight(text):
    rewards = np.repeat([[0.0], [1], [0.7]], 7, axis=1)[:, :, None]
    for options in (
        {"weight": text},
        {"weight": "1", "weight_wrong": text},
        {"weight": text, "decompose": True},
    ):
        method = Method("weight", **options)
        result = compute_advantages(method, np.repeat(rewards, 2, axis=2)).values
        np.testing.assert_array_equal(result[:2], 0)
        np.testing.assert_allclose(result[2], 0, atol=1e-9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__import__('os').getcwd()", r'getcwd\(\)" is not allowed. Use p, m, n, numbers'),
        ("p if p else 1", "is not allowed"),
        ("", "is not a valid expression"),
        ("log(p)", "is -7.37776 at p = 0.000625, must be from 0 to"),
        ("0.3 - p", r"is -0.000625 at p = 0.300625, must be from 0 to 1e\+30 for 0 < p < 1"),
        ("9**9**9**9", "is inf at p"),
        ("1" + "0" * 400, "is too large"),
        ("-" * 5000 + "p", "is too large"),
        ("+".join("p" * 5000), "is too large"),
    ],
)
@pytest.mark.parametrize("flag", ["--weight", "--weight-wrong"])
def test_other_texts_are_refused_in_one_line(flag, text, message):
    flags = ["--algo", "weight", "--weight", "1", f"{flag}={text}", "--samples-per-question", "16"]
    with refused(f"^{flag} .*({message})"):
        check_config(parse_train_config(flags, has_cuda=False)[0], ranks=1)


def test_a_dry_run_says_what_a_weight_maximises():
    """By hand: two answers differ with probability 2 p (1 - p), so the weight 4 counts half: the
    objective is 2 p.
    """
    flags = ["--preset", "tiny", "--algo", "weight", "--weight", "4", "--samples-per-question", "2"]
    lines = objective_lines(parse_train_config(flags, has_cuda=False)[0])[1:]
    accuracies, weights, objective = (map(float, line.split()[-9:]) for line in lines)
    assert set(weights) == {2.0}
    assert list(objective) == pytest.approx([2 * p for p in accuracies])
