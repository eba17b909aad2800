"""BNPO's Beta distributions: from the accuracies of a batch to the weights of its questions
(Section 3 of the paper).

The accuracies p(q) of a batch are modelled as draws from Beta(a, b), which has their mean and
variance. The advantage of an answer is divided by the density f of Beta(1 + a/3, 1 + b/3). These
parameters minimise the variance of the gradient estimate (Theorem 1).
"""

from typing import NamedTuple

import numpy as np

# `scipy.special` is loaded on first use, so that flags are checked without waiting for it
import scipy
from numpy.typing import ArrayLike

MAX_CONCENTRATION = 100.0
"""Largest a + b of a fit. With rewards of 0 and 1 it acts only where the accuracies of a batch
nearly coincide: elsewhere the noise of m answers (8 to 64) keeps a + b below about m. Accuracies of
graded rewards have less noise, so they reach it more often."""


class BetaFit(NamedTuple):
    """Beta(a, b) fitted to the accuracies of a batch, and Beta(alpha, beta) of Theorem 1."""

    mean: float
    variance: float
    a: float
    b: float
    alpha: float
    beta: float
    edge: str
    """`constant` if all accuracies are 0 or all are 1: there is nothing to fit. `dispersed` if
    their variance is that of a coin flip or larger: no Beta distribution fits, and a = b = 0.
    `concentrated` if it is so small that a + b was limited. Otherwise empty."""


def beta_of_moments(mean: float, variance: float) -> BetaFit:
    """Return the Beta(a, b) with this mean and variance (Eqs. 13 and 14), which may be any
    moments of accuracies. Raises ValueError for a mean outside [0, 1] or a negative variance.

    By hand: E = 1/2 and V = 1/8 give a + b = E(1-E)/V - 1 = 1, so a = b = 1/2.

    >>> beta_of_moments(0.5, 0.125)[2:4]
    (0.5, 0.5)
    """
    if not (0 <= mean <= 1 and variance >= 0):
        raise ValueError(f"mean {mean:g} must be from 0 to 1, and variance {variance:g} at least 0")
    largest = mean * (1 - mean)  # variance on [0, 1] with this mean: that of rewards of 0 and 1
    concentration, edge = 0.0, ""  # a + b
    if largest <= 0:
        edge = "constant"
    elif variance >= largest:
        edge = "dispersed"
    elif largest >= (MAX_CONCENTRATION + 1) * variance:  # the variance may be 0
        concentration, edge = MAX_CONCENTRATION, "concentrated"
    else:
        concentration = largest / variance - 1
    a, b = concentration * mean, concentration * (1 - mean)
    return BetaFit(mean, variance, a, b, 1 + a / 3, 1 + b / 3, edge)


def fit_beta(accuracies: ArrayLike, answers: ArrayLike, moments: str = "sample") -> BetaFit:
    """Return the Beta(a, b) that has the mean and variance of `accuracies` [n].

    Each accuracy is a mean over `answers` = m answers, one number or [n]. The variance has divisor
    n - 1, and is 0 for n = 1. `moments="sample"` takes it as it is, like the paper. It includes the
    sampling noise of m answers, of which `moments="corrected"` subtracts mean(p (1 - p) / (m - 1)).
    This estimate is unbiased for rewards of 0 and 1. For graded rewards, which vary less, it is the
    most that the noise can be. Raises ValueError for no accuracies, for values outside [0, 1], and
    for fewer than one answer.

    Accuracies 1/4 and 3/4 have E = 1/2 and V = 1/8:

    >>> fit = fit_beta(np.array([0.25, 0.75]), answers=4)
    >>> fit.a, fit.b, round(fit.alpha, 4), round(fit.beta, 4)
    (0.5, 0.5, 1.1667, 1.1667)
    """
    accuracies, answers = np.ravel(accuracies), np.ravel(answers)  # [n], [n] or [1]
    tolerance = 1e-9  # for rounding errors, as in the mean of weighted rewards
    if not len(accuracies) or not (np.abs(accuracies - 0.5) <= 0.5 + tolerance).all():
        raise ValueError("accuracies must be numbers from 0 to 1, at least one")
    if answers.min() < 1:
        raise ValueError("answers must be at least 1")
    if moments not in ("sample", "corrected"):
        raise ValueError(f"moments is {moments!r}, must be 'sample' or 'corrected'")
    mean = float(accuracies.mean().clip(0, 1))
    variance = float(accuracies.var(ddof=1)) if len(accuracies) > 1 else 0.0
    most = int(answers.max())  # m
    if moments == "corrected" and most > 1:  # one answer has noise that nobody can estimate
        if answers.min() < 2:
            raise ValueError("moments='corrected' needs at least two answers to each question")
        # The factor is exactly 1 for questions with all m answers, of which no reward failed.
        factor = (most - 1) / (answers - 1)
        noise = float((accuracies * (1 - accuracies) * factor).mean()) / (most - 1)
        variance = max(0.0, variance - noise)
    return beta_of_moments(mean, variance)


def inverse_density(p: np.ndarray, alpha: float, beta: float) -> np.ndarray:
    """Return 1 / f(p; alpha, beta), of the shape of `p`. f is the Beta density (Eq. 1). Where p is
    0 or 1, R - p is 0 for all answers with rewards in [0, 1]; there return 0, since 0 * inf would
    be nan.

    >>> inverse_density(np.array([0.0, 0.5]), 2, 2).round(4)  # the density is 6 p (1 - p)
    array([0.    , 0.6667])
    """
    inside = (p > 0) & (p < 1)
    q = np.where(inside, p, 0.5)  # 0.5 is a placeholder
    special = scipy.special
    # In logarithms, because the Beta function underflows for large alpha and beta.
    log_inverse = (
        special.betaln(alpha, beta) - special.xlogy(alpha - 1, q) - special.xlog1py(beta - 1, -q)
    )
    return np.where(inside, np.exp(log_inverse), 0.0)
