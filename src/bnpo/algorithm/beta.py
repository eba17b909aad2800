r"""The Beta distribution of the accuracies p(q): moments -> (a, b) -> (alpha, beta) -> weights (Section 3).

The accuracies of a batch are modelled as draws from Beta(a, b), fitted by moments (Eq. 13). The advantage of an
answer is divided by the density of another one, Beta(alpha, beta) with alpha = 1 + a/3 and beta = 1 + b/3, which
minimises the variance of the gradient estimate (Theorem 1).
"""

from dataclasses import dataclass

import numpy as np
import scipy  # its parts are imported when they are used: flags are refused without

MAX_CONCENTRATION = 100.0
"""Largest a + b. Binomial noise alone keeps a + b below about m, the number of answers, so with the usual 8 to 64
answers this bound acts only where the accuracies of a batch (nearly) coincide or, with corrected moments, differ by no
more than sampling noise. Their spread is no estimate then, and `bnpo` gives all questions the same weight."""


@dataclass(frozen=True)
class BetaFit:
    """Beta(a, b) fitted to a batch of accuracies, and the normalising Beta(alpha, beta) of Theorem 1.

    `edge` says which special case was met: "" (none), "constant" (all accuracies 0 or all 1: nothing to fit),
    "dispersed" (variance at or above that of a coin, where no Beta fits: a = b = 0), "concentrated" (variance so
    small that a + b was bounded).
    """

    mean: float
    variance: float
    a: float
    b: float
    edge: str

    @property
    def alpha(self) -> float:
        return 1 + self.a / 3

    @property
    def beta(self) -> float:
        return 1 + self.b / 3


def fit_beta(
    accuracies: np.ndarray,
    answers: int,
    moments: str = "sample",
    max_concentration: float = MAX_CONCENTRATION,
) -> BetaFit:
    """Fit Beta(a, b) to `accuracies` [n], each a mean over `answers` = m answers, by moments (Eqs. 13 and 14).

    The variance has divisor n - 1 (for n = 1 it is taken as 0). `moments="sample"` is the paper's: the variance of
    the estimated accuracies. It includes the noise of m answers: Var[p_hat] = Var[p] + E[p (1 - p)] / m.
    `moments="corrected"` subtracts an unbiased estimate of that term, mean(p_hat (1 - p_hat)) / (m - 1), which
    leaves the moments of the Beta-binomial distribution.

    By hand: accuracies 1/4 and 3/4 have E = 1/2 and V = 1/8; E(1-E)/V - 1 = 1, so a = b = 1/2.

    >>> fit = fit_beta(np.array([0.25, 0.75]), answers=4)
    >>> fit.a, fit.b, round(fit.alpha, 4), round(fit.beta, 4)
    (0.5, 0.5, 1.1667, 1.1667)

    Corrected, V = 1/8 - (3/16)/3 = 1/16 and E(1-E)/V - 1 = 3, so a = b = 3/2:

    >>> fit = fit_beta(np.array([0.25, 0.75]), answers=4, moments="corrected")
    >>> fit.a, fit.b, fit.alpha, fit.beta
    (1.5, 1.5, 1.5, 1.5)
    """
    mean = float(accuracies.mean())
    variance = float(accuracies.var(ddof=1)) if len(accuracies) > 1 else 0.0
    if moments == "corrected" and answers > 1:
        variance = max(0.0, variance - float((accuracies * (1 - accuracies)).mean()) / (answers - 1))
    spread = mean * (1 - mean)
    if spread <= 0:
        return BetaFit(mean, variance, 0.0, 0.0, "constant")
    if variance >= spread:
        return BetaFit(mean, variance, 0.0, 0.0, "dispersed")
    if spread >= (max_concentration + 1) * variance:
        return BetaFit(mean, variance, max_concentration * mean, max_concentration * (1 - mean), "concentrated")
    concentration = spread / variance - 1
    return BetaFit(mean, variance, concentration * mean, concentration * (1 - mean), "")


def inverse_density(p: np.ndarray, alpha: float, beta: float) -> np.ndarray:
    """1 / f(p; alpha, beta) with f the Beta density (Eq. 1), and 0 where p is 0 or 1.

    At p in {0, 1} every answer of the question has the same reward, so R - p is 0 and so is the advantage,
    whatever f is; the 0 spares the product 0 * inf.

    Beta(1, 1) is uniform; Beta(2, 2) has density 6 p (1 - p):

    >>> inverse_density(np.array([0.0, 0.2, 0.5, 1.0]), 1, 1)
    array([0., 1., 1., 0.])
    >>> inverse_density(np.array([0.5]), 2, 2).round(12)
    array([0.66666667])
    """
    inside = (p > 0) & (p < 1)
    q = np.where(inside, p, 0.5)
    special = scipy.special
    logarithm = special.betaln(alpha, beta) - special.xlogy(alpha - 1, q) - special.xlog1py(beta - 1, -q)
    return np.where(inside, np.exp(logarithm), 0.0)
