"""Does a Beta distribution fit the accuracies of a batch? A test of the counts of right answers to its questions."""

import numpy as np
import scipy

from bnpo.algorithm.beta import fit_beta

LEAST_CONCENTRATION = 1e-6
"""The a + b that stands for 0: nearly all accuracies are 0 or 1."""


def fitted_counts(right: np.ndarray, answers: int) -> np.ndarray:
    """Return the probabilities [m + 1] of 0 to m right answers by the beta-binomial distribution fitted to `right`.

    `right` [n] are the counts of right answers to n questions with `answers` = m answers each. a and b are fitted with
    corrected moments, which are those of a beta-binomial distribution (`fit_beta`).

    With counts 1 and 3 of 4, a = b = 3/2 (see `fit_beta`). For example, B(3/2, 11/2) / B(3/2, 3/2) = 0.1641:

    >>> fitted_counts(np.array([1, 3]), answers=4).round(4)
    array([0.1641, 0.2188, 0.2344, 0.2188, 0.1641])
    """
    fit = fit_beta(right / answers, answers, "corrected")
    counts = np.arange(answers + 1)
    if fit.edge == "constant":
        return (counts == right[0]).astype(float)
    total = max(fit.a + fit.b, LEAST_CONCENTRATION)
    return scipy.stats.betabinom.pmf(counts, answers, total * fit.mean, total * (1 - fit.mean))


def distance(right: np.ndarray, probabilities: np.ndarray) -> float:
    """Return how far counts [n] are from `probabilities` [m + 1]: the Cramer-von Mises distance of discrete data.

    It is n times the sum of P(k) (share of counts up to k - P(up to k))^2. By hand: n = 2, and both counts are 0, so
    the shares are 1 and 1, against 1/2 and 1. The distance is 2 * 1/2 * (1/2)^2.

    >>> distance(np.array([0, 0]), np.array([0.5, 0.5]))
    0.25
    """
    shares = np.bincount(right, minlength=len(probabilities)).cumsum() / len(right)
    return float(len(right) * (probabilities * (shares - probabilities.cumsum()) ** 2).sum())


def beta_p_value(right: np.ndarray, answers: int, resamples: int = 199, seed: int = 0) -> float | None:
    """Return the p-value of the hypothesis that accuracies have a Beta distribution, or None if all are 0 or all 1.

    Parametric bootstrap: counts are drawn from the fitted beta-binomial distribution `resamples` times, fitted again,
    and compared with their own fit. So the p-value allows for discrete counts and for the fit. Few questions give the
    test little power: it finds gross misfits only.

    >>> beta_p_value(np.array([8] * 16 + [0, 16] * 8), answers=16)  # half of the accuracies are 1/2
    0.005
    >>> beta_p_value(np.array([16, 16]), answers=16) is None
    True
    """
    if (right == right[0]).all() and right[0] in (0, answers):
        return None
    rng = np.random.default_rng(seed)
    probabilities = fitted_counts(right, answers)
    observed = distance(right, probabilities)
    as_far = 1
    for _ in range(resamples):
        sample = rng.choice(answers + 1, size=len(right), p=probabilities / probabilities.sum())
        as_far += distance(sample, fitted_counts(sample, answers)) >= observed - 1e-12
    return as_far / (resamples + 1)
