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
from bnpo.planning import objective_lines
from conftest import refused
from paper.objectives import FITS, atlas, beta_moments, group_gains
from test_estimators import slope


@pytest.mark.parametrize("m", [2, 3, 16])
@pytest.mark.parametrize("p", [0.02, 0.3, 0.95])
def test_weights_are_the_slopes_of_the_advantages(m, p):
    for algo in ("reinforce", "rloo", "grpo", "maxrl"):
        expected = slope(algo, m, p)
        assert exact_weight(np.array([p]), group_gains(algo, m))[0] == pytest.approx(expected), algo
        assert atlas(m)["rloo, remax, eb, shrinkage" if algo == "rloo" else algo] == pytest.approx(
            group_gains(algo, m)
        )
    for mean, variance in FITS:
        fit = beta_moments(mean, variance)
        expected = slope("beta", m, p, beta_parameters=(fit.alpha, fit.beta))
        weights = atlas(m)[f"bnpo at E[p] = {mean}, Var[p] = {variance}"]
        assert exact_weight(np.array([p]), weights)[0] == pytest.approx(expected)


def test_grpo_at_the_divisors_of_its_deviation():
    """docs/theory.md: ours divides by m - 1; with many answers both tend to 1 / sqrt(p (1
    - p)).
    """
    p, k = np.array([0.05]), shares(16)
    assert exact_weight(p, group_gains("grpo", 16))[0] == pytest.approx(3.163, abs=5e-4)
    assert exact_weight(p, gains(1 / np.sqrt(k * (1 - k))))[0] == pytest.approx(3.267, abs=5e-4)
    assert exact_weight(p, gains(1 / np.sqrt(shares(1000) * (1 - shares(1000)))))[
        0
    ] == pytest.approx(0.0475**-0.5, rel=0.02)


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


def test_curverl_in_a_large_batch():
    """The real estimator on 20,000 questions has the weights of the atlas."""
    m, (mean, variance) = 8, FITS[1]
    fit, rng = beta_moments(mean, variance), np.random.default_rng(0)
    rewards = (rng.random((20_000, m)) < rng.beta(fit.a, fit.b, size=(20_000, 1))).astype(float)
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    advantages = compute_advantages(Method("curverl"), rewards[:, :, None]).values
    right = rewards.sum(axis=1)
    found = [(advantages[right == k] / centred[right == k])[0, 0] for k in range(1, m)]
    np.testing.assert_allclose(
        gains(found), atlas(m)[f"curverl at E[p] = {mean}, Var[p] = {variance}"], rtol=0.1
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("p**-0.5", lambda p: p**-0.5),
        (" 3 - -2 * (1 - p) / p - p", lambda p: 3 + 2 * (1 - p) / p - p),
        ("sqrt(p) * exp(-p) - log(p)", lambda p: np.sqrt(p) * np.exp(-p) - np.log(p)),
        ("m / n + 0 * p", lambda p: np.full_like(p, 0.5)),
        ("3", lambda p: np.full_like(p, 3)),
    ],
)
def test_weights_that_users_type(text, expected):
    np.testing.assert_allclose(weight_values(text, shares(16), 16, 32), expected(shares(16)))


def test_names_that_beta_covers():
    """docs/estimators.md: MaxRL, the Tsallis family and F-GRPO's focal weight are Beta densities
    up to a factor.
    """
    p, q, g, alpha = shares(16), 0.75, 0.5, 0.3
    for text, parameters in (
        (f"p**-{q}", (1 + q, 1)),
        ("1/p", (2, 1)),
        (f"(1 - p)**{g} / sqrt(p*(1-p))", (1.5, 1.5 - g)),
        (f"(1 - p)**({alpha} - 1)", (1, 2 - alpha)),
        ("1/(1-p)", (1, 2)),
    ):
        ratio = weight_values(text, p, 16, 32) / inverse_density(p, *parameters)
        np.testing.assert_allclose(ratio, ratio[0])


@pytest.mark.parametrize(
    "text", ["1 / (p * (1 - p))**8", "1 / p", "1 / (1 - p)", "-log(p) / (1 - p)"]
)
def test_no_signal_gives_no_advantage_with_any_weight(text):
    rewards = np.repeat([[0.0], [1], [0.7]], 7, axis=1)[:, :, None]
    for options in (
        {"weight": text},
        {"weight": "1", "weight_wrong": text},
        {"weight": text, "decompose": True},
    ):
        result = compute_advantages(
            Method("weight", **options), np.repeat(rewards, 2, axis=2)
        ).values
        np.testing.assert_array_equal(result[:2], 0)
        np.testing.assert_allclose(result[2], 0, atol=1e-9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__import__('os').getcwd()", r'getcwd\(\)" is not allowed. Use p, m, n, numbers'),
        ("p if p else 1", "is not allowed"),
        ("", "is no expression"),
        ("log(p)", "is -7.37776 at p = 0.000625, must be from 0 to"),
        ("1 / (p - 0.5)**2", "is inf at p = 0.5, must be from 0 to"),
        ("0.3 - p", r"is -0.000625 at p = 0.300625, must be from 0 to 1e\+30 for 0 < p < 1"),
        ("9**9**9**9", "is inf at p"),
        ("1" + "0" * 400, "is too large"),
        ("-" * 5000 + "p", "is no expression|is too large"),
        ("+".join("p" * 5000), "is no expression|is too large"),
    ],
)
@pytest.mark.parametrize("flag", ["--weight", "--weight-wrong"])
def test_other_texts_are_refused_in_one_line(flag, text, message):
    flags = ["--algo", "weight", "--weight", "1", f"{flag}={text}", "--samples-per-question", "16"]
    with refused(f"^{flag} .*({message})"):
        check_config(parse_train_config(flags, has_cuda=False)[0], ranks=1)


def test_eb_leaves_the_expected_gradient_as_it_is_in_a_large_batch():
    """Its fit hardly depends on a single answer there: the slope is 1 at every accuracy, up to
    chance.
    """
    rng = np.random.default_rng(0)
    p = rng.beta(2, 2, size=(50_000, 1)).clip(0.05, 0.95)
    rewards = (rng.random((50_000, 8)) < p).astype(float)
    scores = np.where(rewards > 0, 1 / p, -1 / (1 - p))
    slopes = (compute_advantages(Method("eb"), rewards[:, :, None]).values * scores).mean(axis=1)
    for low in (0.05, 0.2, 0.5, 0.8):
        inside = slopes[(p[:, 0] >= low) & (p[:, 0] < low + 0.15)]
        assert abs(inside.mean() - 1) < 4 * inside.std() / np.sqrt(len(inside))


def test_a_dry_run_says_what_a_weight_maximises():
    """By hand: two answers differ with probability 2 p (1 - p), so the weight 4 counts half: the
    objective is 2 p.
    """
    flags = ["--preset", "tiny", "--algo", "weight", "--weight", "4", "--samples-per-question", "2"]
    config, _ = parse_train_config(flags, has_cuda=False)
    accuracies, weights, objective = (
        map(float, line.split()[-9:]) for line in objective_lines(config)[1:]
    )
    assert set(weights) == {2.0}
    assert list(objective) == pytest.approx([2 * p for p in accuracies])
