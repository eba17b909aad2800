"""The estimators: BNPO and the methods it is compared with, as pure functions of the rewards of one whole batch.

Rewards are [n, m]: n questions, m answers each; `Batch` carries what some methods need besides. All arithmetic is
float64 on the batch of all ranks, so the result does not depend on how many ranks there are. p is a question's
accuracy, the mean reward of its answers. What each of them climbs, and under which names they go: docs/estimators.md.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bnpo.algorithm.beta import MAX_CONCENTRATION, BetaFit, fit_beta, inverse_density


@dataclass(frozen=True)
class Batch:
    """What an estimator sees: rewards in [0, 1], and what some estimators need besides.

    rewards [n, m]; each [n, m, K], the rewards that they combine (GDPO); greedy_rewards [n], the reward of each
    question's greedy answer (ReMax); lengths [n, m], tokens of each answer (REINFORCE++, OPO); beta_parameters, alpha
    and beta of a fixed density; moments and max_concentration as in `fit_beta` (BNPO).
    """

    rewards: np.ndarray
    each: np.ndarray | None = None
    greedy_rewards: np.ndarray | None = None
    lengths: np.ndarray | None = None
    beta_parameters: tuple[float, float] | None = None
    moments: str = "sample"
    max_concentration: float = MAX_CONCENTRATION


Estimate = tuple[np.ndarray, BetaFit | None]
"""Advantages [n, m] and, from BNPO, the fit that was used."""


def reinforce(batch: Batch) -> Estimate:
    """REINFORCE with baseline (Eq. 6): R minus the mean of the group.

    >>> reinforce(Batch(np.array([[1.0, 0, 0, 1]])))[0]
    array([[ 0.5, -0.5, -0.5,  0.5]])
    """
    return batch.rewards - batch.rewards.mean(axis=1, keepdims=True), None


def maxrl(batch: Batch) -> Estimate:
    """MaxRL (Tajwar et al. 2026, arXiv:2602.02710): (R - p) / p, and 0 where p is 0.

    For binary rewards its expectation is the gradient of log p = -sum_k (1 - p)^k / k, cut off after k = m - 1.

    >>> maxrl(Batch(np.array([[1.0, 0, 0, 0], [0, 0, 0, 0]])))[0]
    array([[ 3., -1., -1., -1.],
           [ 0.,  0.,  0.,  0.]])
    """
    accuracies = batch.rewards.mean(axis=1, keepdims=True)
    return reinforce(batch)[0] / np.where(accuracies > 0, accuracies, 1), None


def rloo(batch: Batch) -> Estimate:
    """Leave-one-out baseline (Kool et al. 2019): R minus the mean of the other answers; with m = 1 there are none, and
    the advantage is 0. It equals m / (m - 1) times `reinforce`.

    >>> rloo(Batch(np.array([[1.0, 0, 0]])))[0]
    array([[ 1. , -0.5, -0.5]])
    """
    answers = batch.rewards.shape[1]
    return reinforce(batch)[0] * (answers / max(1, answers - 1)), None


def remax(batch: Batch) -> Estimate:
    """ReMax (Li et al. 2024): R minus the reward of the greedy answer to the same question.

    >>> remax(Batch(np.array([[1.0, 0], [1, 0]]), greedy_rewards=np.array([1.0, 0])))[0]
    array([[ 0., -1.],
           [ 1.,  0.]])
    """
    assert batch.greedy_rewards is not None
    return batch.rewards - batch.greedy_rewards[:, None], None


def grpo(batch: Batch) -> Estimate:
    """GRPO (Eq. 7): R minus the group's mean over the group's standard deviation (divisor m - 1) plus 1e-6.

    >>> grpo(Batch(np.array([[1.0, 0, 0, 0], [1, 1, 1, 1]])))[0].round(4)
    array([[ 1.5, -0.5, -0.5, -0.5],
           [ 0. ,  0. ,  0. ,  0. ]])
    """
    centred = reinforce(batch)[0]
    answers = centred.shape[1]
    deviation = np.sqrt((centred**2).sum(axis=1, keepdims=True) / max(1, answers - 1))
    return centred / (deviation + 1e-6), None


def reinforce_pp(batch: Batch) -> Estimate:
    """REINFORCE++ (Hu 2025): whitened over all response tokens of the batch, each carrying its answer's reward.

    The variance has divisor (tokens - 1), and 1e-8 is added to it. By hand: one right answer of 3 tokens and one
    wrong answer of 1 token have mean 3/4 and variance (3/16 + 9/16) / 3 = 1/4.

    >>> reinforce_pp(Batch(np.array([[1.0, 0]]), lengths=np.array([[3, 1]])))[0].round(4)
    array([[ 0.5, -1.5]])
    """
    assert batch.lengths is not None
    return _whiten(batch.rewards, batch.lengths), None


def reinforce_pp_baseline(batch: Batch) -> Estimate:
    """REINFORCE++ with baseline (Hu 2025, arXiv:2501.03262): R - p, whitened over all response tokens of the batch.

    As in the implementations of verl and OpenRLHF the mean over tokens is subtracted too, which is not 0 where right
    and wrong answers differ in length: so groups whose answers have all the same reward get an advantage. By hand:
    R - p is 1/2, -1/2, 0, 0, its mean over the 8 tokens 1/8, its variance (3 * 9 + 25 + 4) / 64 / 7 = 1/8.

    >>> rewards, lengths = np.array([[1.0, 0], [0, 0]]), np.array([[3, 1], [2, 2]])
    >>> reinforce_pp_baseline(Batch(rewards, lengths=lengths))[0].round(4)
    array([[ 1.0607, -1.7678],
           [-0.3536, -0.3536]])
    """
    assert batch.lengths is not None
    return _whiten(reinforce(batch)[0], batch.lengths), None


def opo(batch: Batch) -> Estimate:
    """OPO (Hao et al. 2025, arXiv:2505.23585): R minus the mean of the group weighted by the answers' lengths.

    This baseline has the least variance where the squared norm of an answer's score grows as its length. One answer to
    a question is its own baseline, and gets 0.

    >>> opo(Batch(np.array([[1.0, 0, 0]]), lengths=np.array([[2, 1, 1]])))[0]
    array([[ 0.5, -0.5, -0.5]])
    """
    assert batch.lengths is not None
    tokens = np.maximum(1, batch.lengths.sum(axis=1, keepdims=True))
    return batch.rewards - (batch.rewards * batch.lengths).sum(axis=1, keepdims=True) / tokens, None


def gdpo(batch: Batch) -> Estimate:
    """GDPO (Liu et al. 2026, arXiv:2601.05242): the GRPO advantages of each reward, summed, whitened over the batch.

    Whitened over answers, as in the paper (Eq. 6); verl whitens over tokens. By hand: of two rewards the first question
    has both at once, the second only one that differs. GRPO's advantages are 0.7071 or 0, so the sums are 1.4142 and
    0.7071, of either sign, and their variance (2 + 2 + 1/2 + 1/2) / 3 = 5/3.

    >>> rewards = np.array([[[1.0, 1], [0, 0]], [[1, 1], [0, 1]]])
    >>> gdpo(Batch(rewards.sum(axis=2), each=rewards))[0].round(4)
    array([[ 1.0954, -1.0954],
           [ 0.5477, -0.5477]])
    """
    assert batch.each is not None
    parts = [grpo(Batch(rewards))[0] for rewards in np.moveaxis(batch.each, 2, 0)]
    return _whiten(np.sum(parts, axis=0), np.ones(batch.rewards.shape)), None


def _whiten(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """`values` [n, m] less their mean, over their standard deviation, when each stands for `counts` [n, m] things.

    The variance has divisor (things - 1), and 1e-8 is added to it.
    """
    things = counts.sum()
    centred = values - (values * counts).sum() / max(1, things)
    variance = (centred**2 * counts).sum() / max(1, things - 1)
    return centred / np.sqrt(variance + 1e-8)


def beta(batch: Batch) -> Estimate:
    """BNPO (Eq. 11) without its fit: (R - p) / f(p; alpha, beta), with alpha and beta as given.

    (1, 1) is `reinforce` exactly; (3/2, 3/2) is pi/8 times GRPO with the population's standard deviation, which is
    pi/8 sqrt(m / (m - 1)) times `grpo` up to its 1e-6. By hand: f(1/4; 2, 2) = 6 * 1/4 * 3/4 = 9/8.

    >>> beta(Batch(np.array([[1.0, 0, 0, 0]]), beta_parameters=(2, 2)))[0].round(4)
    array([[ 0.6667, -0.2222, -0.2222, -0.2222]])
    """
    assert batch.beta_parameters is not None
    accuracies = batch.rewards.mean(axis=1, keepdims=True)
    return (batch.rewards - accuracies) * inverse_density(accuracies, *batch.beta_parameters), None


def bnpo(batch: Batch) -> Estimate:
    """BNPO (Eq. 11): (R - p) / f(p; alpha, beta), with alpha and beta set from the accuracies p of the batch.

    By hand: two questions with accuracies 1/4 and 3/4 give a = b = 1/2 (see `fit_beta`), alpha = beta = 7/6, and by
    symmetry one weight w = B(7/6, 7/6) (16/3)^(1/6) = 0.9555 for both.

    >>> bnpo(Batch(np.array([[1.0, 0, 0, 0], [1, 1, 1, 0]])))[0].round(4)
    array([[ 0.7166, -0.2389, -0.2389, -0.2389],
           [ 0.2389,  0.2389,  0.2389, -0.7166]])
    """
    accuracies = batch.rewards.mean(axis=1)
    fit, at = fit_beta(accuracies, batch.rewards.shape[1], batch.moments, batch.max_concentration), accuracies
    if fit.edge == "concentrated":
        # The questions are taken to be equally hard, so what differs between their accuracies is noise, and they get
        # one weight. The narrow density would blow the outliers up.
        at = np.where((accuracies > 0) & (accuracies < 1), fit.mean, accuracies)
    weights = inverse_density(at, fit.alpha, fit.beta)
    return (batch.rewards - accuracies[:, None]) * weights[:, None], fit


ALGORITHMS: dict[str, Callable[[Batch], Estimate]] = {
    "bnpo": bnpo,
    "beta": beta,
    "gdpo": gdpo,
    "grpo": grpo,
    "maxrl": maxrl,
    "opo": opo,
    "reinforce": reinforce,
    "reinforce_pp": reinforce_pp,
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "remax": remax,
    "rloo": rloo,
}

OF_LENGTHS = ("opo", "reinforce_pp", "reinforce_pp_baseline")
"""Those that need `Batch.lengths`."""

ON_UNIT_INTERVAL = ("bnpo", "beta")
"""Those whose density lives on [0, 1]: rewards are averaged for them, and summed for others."""
