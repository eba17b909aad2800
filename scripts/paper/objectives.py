"""What all estimators maximise: their gains [m], as `exact_weight` and `exact_objective` take
them.
"""

import numpy as np
from scipy.stats import betabinom

from bnpo_estimators import Method, beta_of_moments, gains, inverse_density, method_gains, shares

UNBIASED = ("rloo", "remax", "eb", "shrinkage")
"""Estimators that leave the expected gradient as it is, so that their objective is p. The gains of
the last three, which need more than one question's rewards, are those of the first."""
FITS = ((0.3, 0.09), (0.5, 0.02), (0.1, 0.01))
"""Batches for which BNPO and CurveRL are shown, as mean and variance of the accuracies: questions
of all kinds, about equally hard ones, and hard ones."""


def fitted_gains(algo: str, answers: int) -> dict[str, np.ndarray]:
    """Return the gains [m] of `bnpo` or `curverl` by label, for large batches with the moments in
    FITS.
    """
    by_label = {}
    for mean, variance in FITS:
        fit = beta_of_moments(mean, variance)
        if algo == "bnpo":
            weights = inverse_density(shares(answers), fit.alpha, fit.beta)  # [m - 1]
        else:
            counts = betabinom.pmf(np.arange(1, answers), answers, fit.a, fit.b)  # [m - 1]
            weights = counts / np.cumsum(counts)
        by_label[f"{algo} at E[p] = {mean}, Var[p] = {variance}"] = gains(weights)
    return by_label


def atlas(answers: int) -> dict[str, np.ndarray]:
    """Return the gains [m] of all estimators without settings of their own, by label.

    Missing are `opo` and the two REINFORCE++, which leave the expected gradient as it is up to
    terms of order 1/m and one factor of the batch, and `gdpo`, which is for several rewards.
    """
    by_label = {", ".join(UNBIASED): method_gains(Method("rloo"), answers)}
    by_label |= {
        algo: method_gains(Method(algo), answers) for algo in ("reinforce", "grpo", "maxrl")
    }
    return by_label | fitted_gains("bnpo", answers) | fitted_gains("curverl", answers)
