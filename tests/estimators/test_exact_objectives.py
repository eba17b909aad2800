"""What methods maximise with m answers, exactly, and weights that users type."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom
from test_estimators import ROOT, slope

from bnpo_estimators import (
    AS_THEY_ARE,
    Method,
    SettingError,
    advantages,
    beta_of_moments,
    exact_objective,
    exact_weight,
    fit_beta,
    gains,
    inverse_density,
    method_gains,
    shares,
    weight_values,
)

POINTS = np.linspace(0.01, 0.99, 25)
EXACT_PASS_AT_2 = "2*m/(m-1)*(m-1-m*p)/(m-2)"
EXACT_PASS_AT_4 = "4*m/(m-1)*max(0,m-1-m*p)*max(0,m-2-m*p)*max(0,m-3-m*p)/((m-2)*(m-3)*(m-4))"


@pytest.mark.parametrize(
    ("algo", "settings"),
    [
        ("reinforce", {}),
        ("rloo", {}),
        ("grpo", {}),
        ("maxrl", {}),
        ("beta", {"beta_parameters": (1.3, 2)}),
        ("weight", {"weight": "1 / sqrt(p)", "weight_wrong": "2 * (1 - p) + m / 10"}),
        ("pass_at_k", {"k": 1}),
    ],
)
@pytest.mark.parametrize("m", [2, 3, 16])
def test_weights_are_the_slopes_of_the_advantages_and_objectives_their_integrals(algo, settings, m):
    """The slopes come from all outcomes of m answers."""
    gain = method_gains(Method(algo, **settings), m)
    for p in (0.02, 0.3, 0.95):
        found = exact_weight(np.array([p]), gain)[0]
        assert found == pytest.approx(slope(algo, m, p, **settings))
        integral, _ = quad(lambda t: exact_weight(np.array([t]), gain)[0], 0, p)
        assert exact_objective(np.array([p]), gain)[0] == pytest.approx(integral)


@pytest.mark.parametrize("k", [2, 4])
def test_pass_at_k_is_exact(k):
    """Its slope, over all outcomes of 16 answers, is the slope of 1 - (1 - p)^K."""
    found = [slope("pass_at_k", 16, p, k=k) for p in POINTS]
    np.testing.assert_allclose(found, k * (1 - POINTS) ** (k - 1), rtol=0, atol=1e-12)
    gain = method_gains(Method("pass_at_k", k=k), 16)
    objective = exact_objective(POINTS, gain)
    np.testing.assert_allclose(objective, 1 - (1 - POINTS) ** k, rtol=0, atol=1e-12)
    text = EXACT_PASS_AT_2 if k == 2 else EXACT_PASS_AT_4
    np.testing.assert_allclose(method_gains(Method("weight", weight=text), 16), gain, atol=1e-12)


def test_dgpo_and_pkpo_are_exactly_what_the_page_says():
    """DGPO's slope is 1 / (2 p (1 - p)) times the chance that answers differ, PKPO's is that of
    pass@2.
    """
    for m in (2, 3, 16):
        found = [slope("weight", m, p, weight="1/(2*p*(1-p))") for p in POINTS]
        unequal = 1 - POINTS**m - (1 - POINTS) ** m
        np.testing.assert_allclose(found, unequal / (2 * POINTS * (1 - POINTS)))
        pkpo = {"weight": "2*m/(m-1)", "weight_wrong": "0"}
        found = [slope("weight", m, p, **pkpo) for p in POINTS]
        np.testing.assert_allclose(found, 2 * (1 - POINTS))


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


@pytest.mark.parametrize("algo", ["bnpo", "eb", "shrinkage", "curverl", "gdpo", "opo", "remax"])
@pytest.mark.parametrize("questions", [2, 3, 32])
def test_methods_without_an_objective_of_their_own_are_refused(algo, questions):
    with pytest.raises(SettingError, match=f"`algo`: {algo} has no objective of its own: it "):
        method_gains(algo, 8, questions)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: exact_objective(1.5, np.ones(4)), "accuracies p must be numbers from 0 to 1"),
        (lambda: exact_weight([np.nan], np.ones(4)), "accuracies p must be numbers from 0 to 1"),
        (lambda: method_gains("grpo", 0), "`questions` and `answers` must be at least 1"),
        (lambda: fit_beta([20.0, 70.0], 4), "accuracies must be numbers from 0 to 1"),
        (lambda: fit_beta([0.2, 0.7], 0), "answers must be at least 1"),
        (lambda: beta_of_moments(0.5, -1.0), "mean 0.5 must be from 0 to 1, and variance -1 at"),
    ],
)
def test_wrong_numbers_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_accuracies_may_be_numbers_and_lists():
    gain = method_gains("grpo", 16)
    assert exact_objective(0.5, gain) == exact_objective([0.5], gain)[0]
    assert exact_weight([[0.5, 0.6]], gain).shape == (1, 2)
    assert fit_beta([0.25, 0.75], 4) == fit_beta(np.array([0.25, 0.75]), 4)
    assert fit_beta([1.0, 1 + 1e-10], 4).mean == 1


def test_typed_weights_and_names_that_beta_covers():
    """docs/estimators.md: MaxRL, the Tsallis family, F-GRPO's and DGPO's weight are Beta densities
    up to a factor.
    """
    p = shares(16)
    found = weight_values(" 3 - -2 * (1 - p) / p - p + sqrt(exp(log(m))) / n**2", p, 16, 32)
    np.testing.assert_allclose(found, 3 + 2 * (1 - p) / p - p + 4 / 32**2)
    np.testing.assert_array_equal(weight_values("max(0, p - 0.5)", p, 16, 32), (p - 0.5).clip(0))
    for text, parameters in (
        ("p**-0.75", (1.75, 1)),
        ("1/p", (2, 1)),
        ("(1 - p)**0.5 / sqrt(p*(1-p))", (1.5, 1)),
        ("(1 - p)**(0.3 - 1)", (1, 1.7)),
        ("1/(2*p*(1-p))", (2, 2)),
    ):
        ratio = weight_values(text, p, 16, 32) / inverse_density(p, *parameters)
        np.testing.assert_allclose(ratio, ratio[0])
    assert ratio[0] == pytest.approx(3)


def test_a_weight_need_only_be_defined_where_accuracies_are():
    """For one reward of 0 and 1. The mean of several, and graded rewards, have other accuracies."""
    method, right = Method("weight", weight=EXACT_PASS_AT_2), [[1, 0, 0, 0], [1, 1, 1, 0]]
    expected = advantages(Method("pass_at_k", k=2), right)
    np.testing.assert_allclose(advantages(method, right), expected, atol=1e-15)
    poles = "1 / (p - 0.5)**2"  # three answers cannot be half right
    assert np.isfinite(advantages(Method("weight", weight=poles), [[1, 0, 0], [1, 1, 1]])).all()
    cure = r"must be from 0 to 1e\+30; write max\(0, ...\) around what may be negative"
    two = np.repeat(np.array(right)[:, :, None], 2, axis=2)
    for arguments in ((2, 4, 1, True), (2, 4, 2)):
        with pytest.raises(SettingError, match=f"at p = 0.7525 and m = 4, {cure}"):
            method.check(*arguments)
    with pytest.raises(SettingError, match=cure):
        advantages(method, two)
    with pytest.raises(SettingError, match=f"is -.* at p = 0.8 and m = 4, {cure}"):
        advantages(method, [[0.8, 0.8, 0.8, 0.8], [0.9, 0.7, 0.8, 0.8]])
    advantages(Method("weight", weight=EXACT_PASS_AT_2, decompose=True), two)


@pytest.mark.parametrize("text", ["1 / (p * (1 - p))**8", "-log(p) / (1 - p)"])
def test_no_signal_gives_no_advantage_with_any_weight(text):
    rewards = np.repeat([[0.0], [1], [0.7]], 7, axis=1)[:, :, None]
    for options in (
        {"weight": text},
        {"weight": "1", "weight_wrong": text},
        {"weight": text, "decompose": True},
    ):
        found = advantages(Method("weight", **options), np.repeat(rewards, 2, axis=2))
        np.testing.assert_array_equal(found[:2], 0)
        np.testing.assert_allclose(found[2], 0, atol=1e-9)


def test_the_example_subtracts_the_median():
    rewards = np.array([[[0.0], [0.2], [1.0]], [[0.0], [0.4], [9.0]]])
    failed, example = [[False] * 3, [False, False, True]], f"{ROOT}/examples/estimator.py:median"
    found = advantages(example, rewards, failed=failed)
    np.testing.assert_allclose(found, [[-0.2, 0, 0.8], [-0.2, 0.2, 0]])
    any_range = advantages(example, rewards[:1] * -7, ranges=AS_THEY_ARE)
    np.testing.assert_allclose(any_range, [[1.4, 0, -5.6]])
