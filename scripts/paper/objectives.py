"""What all estimators maximise: their gains [m], as `exact_weight` and `exact_objective` take
them.
"""

import numpy as np
from scipy.stats import betabinom

from bnpo.algorithm.beta import BetaFit, inverse_density
from bnpo.algorithm.estimators import RewardBatch
from bnpo.algorithm.registry import ESTIMATORS
from bnpo.algorithm.weights import gains, shares

FITS = ((0.3, 0.09), (0.5, 0.02), (0.1, 0.01))
"""Batches for which BNPO and CurveRL are shown, as mean and variance of the accuracies: questions
of all kinds, about equally hard ones, and hard ones."""


def group_gains(algo: str, answers: int) -> np.ndarray:
    """Return the gains [m] of an estimator that sees one question at a time, from its advantages
    themselves.
    """
    # [m + 1, m], right answers first
    rewards = (np.arange(answers) < np.arange(answers + 1)[:, None]).astype(float)
    advantages = ESTIMATORS[algo].function(RewardBatch(rewards))
    return advantages[1:, 0] - advantages[:-1, -1]


def beta_moments(mean: float, variance: float) -> BetaFit:
    """Return the Beta distribution with this mean and variance."""
    concentration = mean * (1 - mean) / variance - 1
    a, b = concentration * mean, concentration * (1 - mean)
    return BetaFit(mean, variance, a, b, 1 + a / 3, 1 + b / 3, "")


def atlas(answers: int) -> dict[str, np.ndarray]:
    """Return the gains [m] of all estimators by label. BNPO and CurveRL are shown for the batches
    in FITS.

    `remax`, `eb` and `shrinkage` leave the expected gradient as it is, as `rloo` does. `opo` and
    the two REINFORCE++ do so up to terms of order 1/m.
    """
    by_label = {"rloo, remax, eb, shrinkage": group_gains("rloo", answers)}
    by_label |= {algo: group_gains(algo, answers) for algo in ("reinforce", "grpo", "maxrl")}
    fits = {
        f"E[p] = {mean}, Var[p] = {variance}": beta_moments(mean, variance)
        for mean, variance in FITS
    }
    for batch, fit in fits.items():
        weights = inverse_density(shares(answers), fit.alpha, fit.beta)  # [m - 1]
        by_label[f"bnpo at {batch}"] = gains(weights)
    for batch, fit in fits.items():
        # [m - 1], of a large batch
        counts = betabinom.pmf(np.arange(1, answers), answers, fit.a, fit.b)
        by_label[f"curverl at {batch}"] = gains(counts / np.cumsum(counts))
    return by_label
