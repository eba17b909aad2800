"""Each estimator against its formula, written again in plain Python, and against the slope of
its objective.
"""

from itertools import combinations
from math import comb, exp, lgamma, sqrt
from pathlib import Path
from statistics import fmean, stdev, variance

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import binom
from test_advantages import advantages, batches

from bnpo_estimators import AS_THEY_ARE, Method, compute_advantages, fit_beta, inverse_density
from bnpo_estimators.beta import MAX_CONCENTRATION
from bnpo_estimators.registry import SettingError

ROOT = Path(__file__).resolve().parents[2]


def whitened(values, lengths):
    """Each value stands for as many tokens as its answer has."""
    rows = zip(values, lengths, strict=True)
    tokens = [value for row, counts in rows for value in np.repeat(row, counts)]
    mean, spread = sum(tokens), 1e-4
    if len(tokens) > 1:
        mean, spread = fmean(tokens), sqrt(variance(tokens) + 1e-8)
    return [[(value - mean) / spread for value in row] for row in values]


def minus_mean(group):
    return [reward - fmean(group) for reward in group]


def rloo(group):
    others = max(1, len(group) - 1)
    return [len(group) / others * value for value in minus_mean(group)]


def maxrl(group):
    return [reward / fmean(group) - 1 if any(group) else 0 for reward in group]


def opo(group, lengths):
    tokens = [reward for reward, length in zip(group, lengths, strict=True) for _ in range(length)]
    return [reward - (fmean(tokens) if tokens else 0) for reward in group]


def grpo(group):
    deviation = stdev(group) if len(group) > 1 else 0
    return [(reward - fmean(group)) / (deviation + 1e-6) for reward in group]


def gdpo(groups):
    """Advantages [n][m] of rewards [n][m][K]."""
    parts = [[grpo(rewards) for rewards in zip(*group, strict=True)] for group in groups]
    sums = [[sum(answer) for answer in zip(*part, strict=True)] for part in parts]
    return whitened(sums, [[1] * len(row) for row in sums])


def empirical_bayes(groups):
    """The prior from the moments of a Beta-binomial distribution."""
    n, m, shares = len(groups), len(groups[0]), [fmean(group) for group in groups]
    mean, spread = fmean(shares), variance(shares) if n > 1 else 0
    if m > 1:
        spread = max(0, spread - fmean([p * (1 - p) for p in shares]) / (m - 1))
    total = 0
    if 0 < mean < 1 and spread < mean * (1 - mean):
        total = min(100, mean * (1 - mean) / spread - 1) if spread else 100
    if total + m == 1:
        return [[reward - mean for reward in group] for group in groups]
    divisor = total + m - 1
    return [[r - (total * mean + sum(group) - r) / divisor for r in group] for group in groups]


def shrinkage(groups):
    """Eqs. 10 to 16 of the paper, answer by answer."""
    n, m, result = len(groups), len(groups[0]), []
    for i, group in enumerate(groups):
        others = groups[:i] + groups[i + 1 :]
        share = target = 0
        if others and m > 1:
            means = [fmean(other) for other in others]
            v, target = fmean([variance(other) / m for other in others]), fmean(means)
            s = fmean([(p - target) ** 2 for p in means])
            share = (n - 1) / n * v / (v + s) if v + s > 1e-15 else 0
        left_out = [(sum(group) - reward) / (m - 1) if m > 1 else reward for reward in group]
        pairs = zip(group, left_out, strict=True)
        result.append([r - (1 - share) * one - share * target for r, one in pairs])
    return result


def curverl(groups):
    """The share of questions as hard over the share of questions at least as hard."""
    m, shares = len(groups[0]), [fmean(group) for group in groups]
    bins = [int(p * (m + 1) + 1e-9) for p in shares if 0 < p < 1]
    result = []
    for group, p in zip(groups, shares, strict=True):
        own = int(p * (m + 1) + 1e-9)
        weight = bins.count(own) / sum(other <= own for other in bins) if 0 < p < 1 else 0
        result.append([weight * (reward - p) for reward in group])
    return result


def frozen(group, a, b):
    p = fmean(group)
    if p in (0, 1):
        return [0.0] * len(group)
    density = exp(lgamma(a + b) - lgamma(a) - lgamma(b)) * p ** (a - 1) * (1 - p) ** (b - 1)
    return [(reward - p) / density for reward in group]


def typed(group, n):
    """The weight n / (p + 1) for right answers, exp(-m p) for wrong ones."""
    m, p = len(group), fmean(group)
    return [(r - p) * (n / (p + 1) if r > p else exp(-m * p)) for r in group]


@given(batch=batches(), alpha=st.floats(0.3, 9), beta=st.floats(0.3, 9))
def test_formulas_written_again(batch, alpha, beta):
    rewards, extra = batch
    shares = rewards.mean(axis=(1, 2))  # [n]
    if rewards.shape[1] == 1 and len(shares) > 1:
        # With one answer to a question, `eb` has a jump where the variance is that of a coin
        coin = shares.mean() * (1 - shares.mean())
        assume(shares.std() == 0 or abs(shares.var(ddof=1) - coin) > 1e-9)
    summed, averaged = rewards.sum(axis=2).tolist(), rewards.mean(axis=2).tolist()
    lengths, greedy = extra["lengths"].tolist(), extra["greedy_rewards"].tolist()
    expected = {
        "maxrl": [maxrl(group) for group in summed],
        "opo": [opo(*pair) for pair in zip(summed, lengths, strict=True)],
        "gdpo": gdpo(rewards.tolist()),
        "grpo": [grpo(group) for group in summed],
        "rloo": [rloo(group) for group in summed],
        "reinforce": [minus_mean(group) for group in summed],
        "remax": [[r - sum(g) for r in group] for group, g in zip(summed, greedy, strict=True)],
        "reinforce_pp": whitened(summed, lengths),
        "reinforce_pp_baseline": whitened([minus_mean(group) for group in summed], lengths),
        "beta": [frozen(group, alpha, beta) for group in averaged],
        "eb": empirical_bayes(averaged),
        "shrinkage": shrinkage(summed),
        "curverl": curverl(averaged),
        "weight": [typed(group, len(averaged)) for group in averaged],
    }
    settings = {"beta": {"beta_parameters": (alpha, beta)}}
    settings["weight"] = {"weight": "n / (p + 1)", "weight_wrong": "exp(-m*p)"}
    for algo, values in expected.items():
        result = advantages(algo, rewards, extra, **settings.get(algo, {}))
        np.testing.assert_allclose(result, values, rtol=1e-9, atol=1e-11, err_msg=algo)


@pytest.mark.parametrize(
    ("algo", "rewards", "expected"),
    [
        # Accuracies 1/4 and 3/4: V = 1/8 - (3/16) / 3, so a = b = 3/2. A right answer of the first
        # gets 1 - (3/2) / 6.
        ("eb", [[1, 0, 0, 0], [1, 1, 1, 0]], [[3 / 4, *[-5 / 12] * 3], [*[5 / 12] * 3, -3 / 4]]),
        # For the second question, the others have v = (1/4 + 0) / 2, the mean 1/4, s = 1/16 and l =
        # 4/9.
        ("shrinkage", [[1, 0], [1, 1], [0, 0]], [[1, -1], [1 / 3, 1 / 3], [-1 / 3, -1 / 3]]),
        # Each bin of the histogram has half of the questions: f = 1/2 for both, F = 1/2 and 1.
        ("curverl", [[1, 0, 0, 0], [1, 1, 1, 0]], [[3 / 4, *[-1 / 4] * 3], [*[1 / 8] * 3, -3 / 8]]),
    ],
)
def test_advantages_by_hand(algo, rewards, expected):
    found = compute_advantages(Method(algo), np.array(rewards)[:, :, None]).values
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("decompose", [False, True])
def test_every_method_returns_the_fit_of_bnpo(decompose):
    """It describes the accuracies, and needs a range of all rewards."""
    rewards = np.random.default_rng(0).random((6, 4, 2))
    weights = {"reward_weights": (1, 3), "decompose": decompose}
    expected = compute_advantages(Method("bnpo", **weights), rewards).fits
    found = compute_advantages(Method("grpo", **weights), rewards).fits
    np.testing.assert_allclose(
        [fit[:6] for fit in found], [fit[:6] for fit in expected], rtol=1e-12
    )
    without = compute_advantages(Method("grpo", **weights), rewards, ranges=AS_THEY_ARE)
    assert without.fits == []


@pytest.mark.parametrize("limits", [(2, np.inf), (-np.inf, 3), (1, np.inf), AS_THEY_ARE])
def test_rewards_without_both_ends_of_a_range_are_not_mapped(limits):
    found = compute_advantages(Method("reinforce"), [[2, 3]], ranges=limits)
    assert found.values.tolist() == [[-0.5, 0.5]]
    assert found.fits == []


@pytest.mark.parametrize("decompose", [False, True])
@given(batch=batches())
def test_bnpo_is_beta_with_the_parameters_of_its_fit(batch, decompose):
    """Where BNPO takes all questions as equally hard (`concentrated`), it gives all one weight,
    and `beta` does not.
    """
    rewards, extra = batch
    parts = np.split(rewards, rewards.shape[2], axis=2) if decompose else [rewards]
    adaptive, fits = compute_advantages(Method("bnpo", decompose), rewards)
    if all(fit.edge != "concentrated" for fit in fits):
        frozen_parts = [
            advantages("beta", part, extra, beta_parameters=(fit.alpha, fit.beta))
            for part, fit in zip(parts, fits, strict=True)
        ]
        np.testing.assert_allclose(adaptive, np.mean(frozen_parts, axis=0), rtol=1e-12, atol=1e-15)


def slope(algo, m, p, **options):
    """Return the expected gradient estimate of one question, divided by the gradient of p: the
    slope of its objective.

    Right answers have the mean score grad p / p, wrong answers -grad p / (1 - p). The arrays have
    one row for each possible number of right answers.
    """
    chances = binom.pmf(np.arange(m + 1), m, p)
    right = np.flatnonzero(chances > 1e-18)  # the others add nothing to the sum
    rewards = (np.arange(m) < right[:, None]).astype(float)[:, :, None]
    scores = np.where(rewards[:, :, 0] > 0, 1 / p, -1 / (1 - p))
    estimates = (advantages(algo, rewards, {}, **options) * scores).mean(axis=1)
    return float((chances[right] * estimates).sum())


@pytest.mark.parametrize("p", [0.01, 0.3, 0.95])
def test_objective_of_each_estimator(p):
    """docs/estimators.md: exactly with m answers, and in the limit of many."""
    for m in (2, 3, 16):
        assert slope("rloo", m, p) == pytest.approx(1)
        assert slope("reinforce", m, p) == pytest.approx((m - 1) / m)
        assert slope("maxrl", m, p) == pytest.approx(sum((1 - p) ** (k - 1) for k in range(1, m)))
        shares = np.arange(1, m) / m
        weights = binom.pmf(np.arange(1, m), m, p) * shares * (1 - shares) / (p * (1 - p))
        expected = (weights * inverse_density(shares, 2, 3)).sum()
        assert slope("beta", m, p, beta_parameters=(2, 3)) == pytest.approx(expected)
    many = 5000
    assert slope("maxrl", many, p) == pytest.approx(1 / p)
    assert slope("grpo", many, p) == pytest.approx(1 / sqrt(p * (1 - p)), rel=0.01)
    expected = inverse_density(np.array([p]), 1.5, 2)[0]
    assert slope("beta", many, p, beta_parameters=(1.5, 2)) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("k", [1, 2, 4, 5])
def test_pass_at_k_has_maxpos_leave_two_out_baseline(k):
    """Over all sets of answers that are left out, with rewards of 0 and 1."""
    m = 6
    for right in range(m + 1):
        group, expected = [1] * right + [0] * (m - right), []
        for i, own in enumerate(group):
            differences = []
            for j in set(range(m)) - {i}:
                rest = [group[other] for other in range(m) if other not in (i, j)]
                for chosen in combinations(rest, k - 1):
                    differences.append(max([own, *chosen]) - max([group[j], *chosen]))
            expected.append(k * fmean(differences))
        found = advantages("pass_at_k", [group], {}, k=k)
        np.testing.assert_allclose(found, [expected], atol=1e-15)


def test_pass_at_k_of_few_answers_is_that_of_one_less():
    """Where three of five answers are left, K is 2."""
    failed = [[False] * 3 + [True] * 2]
    found = advantages("pass_at_k", [[1, 0, 0, 1, 1]], {"failed": failed}, k=4)
    np.testing.assert_allclose(found[:, :3], advantages("pass_at_k", [[1, 0, 0]], {}, k=2))


def test_shrinkage_leaves_the_expected_gradient_as_it_is():
    """Its baseline depends on nothing of the answer itself. Two questions, three answers."""
    p, m = np.array([0.2, 0.7]), 3
    outcomes = ((np.arange(64)[:, None] >> np.arange(6)) & 1).reshape(64, 2, m)  # all batches
    chances = np.where(outcomes, p[:, None], 1 - p[:, None]).prod(axis=(1, 2))
    scores = np.where(outcomes, 1 / p[:, None], -1 / (1 - p[:, None]))
    batches = outcomes[..., None].astype(float)
    estimates = np.array([advantages("shrinkage", rewards, {}) for rewards in batches])
    np.testing.assert_allclose(chances @ (estimates * scores).mean(axis=2), 1)


def test_empirical_bayes_in_a_large_batch():
    """Its slope is 1 at every accuracy, up to chance."""
    rng = np.random.default_rng(0)
    p = rng.beta(2, 6, size=(50_000, 1)).clip(0.05, 0.95)
    rewards = (rng.random((50_000, 8)) < p).astype(float)
    scores = np.where(rewards > 0, 1 / p, -1 / (1 - p))
    slopes = (advantages("eb", rewards[:, :, None], {}) * scores).mean(axis=1)
    for low in (0.05, 0.2, 0.5):
        inside = slopes[(p[:, 0] >= low) & (p[:, 0] < low + 0.15)]
        assert abs(inside.mean() - 1) < 4 * inside.std() / np.sqrt(len(inside))


@pytest.mark.parametrize(("parameters", "m"), [((20, 20), 16), ((100, 100), 2)])
def test_extreme_parameters_of_the_density_stay_finite_in_fp32(parameters, m):
    rewards = (np.arange(m) < np.arange(m + 1)[:, None]).astype(float)[:, :, None]
    for rescale in (False, True):
        options = {"beta_parameters": parameters, "rescale_advantages": rescale}
        values = advantages("beta", rewards, {}, **options)
        assert np.isfinite(values.astype(np.float32)).all()
        assert values.any()


@pytest.mark.parametrize("parameters", [(100, 100), (100, 1e-9), (1e300, 1e300)])
def test_parameters_with_weights_too_large_for_fp32_are_refused(parameters):
    method = Method("beta", beta_parameters=parameters)
    method.check(1, 1, 1)
    with pytest.raises(SettingError, match=r"which gives a question a weight of up to \S+, must"):
        method.check(1, 16, 1)


def rows_of_docs(begin, end):
    """The cells of the tables in a part of docs/estimators.md."""
    text = (ROOT / "docs" / "estimators.md").read_text(encoding="utf-8")
    lines = text.partition(begin)[2].partition(end)[0].splitlines()
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]


PUBLISHED = {
    "REINFORCE with baseline": minus_mean,
    "RLOO": rloo,
    "GRPO": grpo,
    "MaxRL": maxrl,
    "Tsallis family, q = 0.75": lambda group: [
        v * fmean(group) ** -0.75 for v in minus_mean(group)
    ],
    "F-GRPO, g = 0.5": lambda group: [value * sqrt(1 - fmean(group)) for value in grpo(group)],
    "SignBalance": lambda group: [1 if r else -sum(group) / group.count(0) for r in group],
    "Power-alpha, alpha = 0.5": lambda group: [
        (r - fmean(group)) * (1 - fmean(group)) ** (0.5 - 1) for r in group
    ],
    "AsymGRPO, delta = 2": lambda group: [v if v > 0 else v / 2 for v in minus_mean(group)],
    "WAPO": lambda group: [max(value, 0) for value in minus_mean(group)],
    "DGPO": lambda group: [v / fmean(map(abs, minus_mean(group))) for v in minus_mean(group)],
    "Sqrt-REINFORCE": lambda group: [v / sqrt(fmean(group)) for v in minus_mean(group)],
    # One less the chance that one of K - 1 other answers is right, too, for the mean over answers
    "PKPO, K = 2": lambda group: [
        2 * r * comb(group.count(0), 1) / comb(len(group) - 1, 1) for r in group
    ],
}


def test_weights_of_published_methods():
    """The table of docs/estimators.md, for all numbers of right answers but 0 and m."""
    rows = [
        row for row in rows_of_docs("## Weights of published methods", "\n## ") if len(row) == 4
    ]
    weights = {row[0].partition(" (")[0]: row[1:3] for row in rows[2:]}
    assert weights.keys() == PUBLISHED.keys()
    for m in (2, 5, 16):
        rewards = (np.arange(m) < np.arange(1, m)[:, None]).astype(float)
        for name, (right, wrong) in weights.items():
            options = {"weight": right, "weight_wrong": wrong or None}
            values = advantages("weight", rewards[:, :, None], {}, **options)
            expected = [PUBLISHED[name](group) for group in rewards.tolist()]
            np.testing.assert_allclose(values, expected, rtol=1e-5, err_msg=name)


@given(a=st.floats(0.5, 20), b=st.floats(0.5, 20))
def test_fit_recovers_the_parameters_from_their_moments(a, b):
    """Two points at mean -+ sd/sqrt(2) have, with divisor n - 1, exactly the mean and variance
    of Beta(a, b). They lie in [0, 1] if a and b are at least 1/2.
    """
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
        ([0.25, 0.75], "", 1),
    ],
)
def test_edges(accuracies, edge, a_plus_b):
    fit = fit_beta(np.array(accuracies), answers=4)
    assert (fit.edge, fit.a + fit.b) == (edge, pytest.approx(a_plus_b))
    weights = inverse_density(np.array([0.25, 0.5, 0.75]), fit.alpha, fit.beta)
    assert (np.isfinite(weights) & (weights > 0)).all()


def test_corrected_moments_are_those_of_the_accuracies_without_sampling_noise():
    """Accuracies from Beta(2, 3), estimated by 8 answers: `sample` overstates the variance."""
    rng = np.random.default_rng(0)
    seen = rng.binomial(8, rng.beta(2, 3, size=200_000)) / 8
    true_variance = stats.beta.var(2, 3)
    assert fit_beta(seen, answers=8).variance > 1.4 * true_variance
    corrected = fit_beta(seen, answers=8, moments="corrected")
    assert corrected.variance == pytest.approx(true_variance, rel=0.01)
    assert (corrected.a, corrected.b) == pytest.approx((2, 3), rel=0.03)
    assert fit_beta(np.array([0.0, 1.0]), answers=1, moments="corrected").edge == "dispersed"
    with pytest.raises(ValueError, match="needs at least two answers to each question"):
        fit_beta(np.array([1, 0.5]), np.array([1, 4]), moments="corrected")


@given(p=st.floats(1e-3, 1 - 1e-3), alpha=st.floats(1, 40), beta=st.floats(1, 40))
def test_inverse_density_is_scipys_and_zero_at_the_ends(p, alpha, beta):
    found = inverse_density(np.array([0.0, p, 1.0]), alpha, beta)
    expected = [0, np.exp(-stats.beta.logpdf(p, alpha, beta)), 0]
    np.testing.assert_allclose(found, expected, rtol=1e-8)
