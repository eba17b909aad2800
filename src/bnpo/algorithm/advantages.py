r"""Advantages: BNPO and the methods it is compared with, as pure functions of the rewards of one whole batch.

Rewards are [n, m]: n questions, m answers each; `Batch` carries what some methods need besides. All arithmetic is
float64 on the batch of all ranks, so the result does not depend on how many ranks there are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bnpo.algorithm.beta import MAX_CONCENTRATION, BetaFit, fit_beta, inverse_density


@dataclass(frozen=True)
class Batch:
    """What an estimator sees: rewards in [0, 1], and what some estimators need besides.

    rewards [n, m]; greedy_rewards [n], the reward of each question's greedy answer (ReMax); lengths [n, m], tokens
    of each answer (REINFORCE++); moments and max_concentration as in `fit_beta` (BNPO).
    """

    rewards: np.ndarray
    greedy_rewards: np.ndarray | None = None
    lengths: np.ndarray | None = None
    moments: str = "sample"
    max_concentration: float = MAX_CONCENTRATION


Estimate = tuple[np.ndarray, BetaFit | None]
"""Advantages [n, m] and, from BNPO, the fit that was used."""


def reinforce(batch: Batch) -> Estimate:
    """REINFORCE with baseline (Eq. 5): R minus the mean of the group.

    >>> reinforce(Batch(np.array([[1.0, 0, 0, 1]])))[0]
    array([[ 0.5, -0.5, -0.5,  0.5]])
    """
    return batch.rewards - batch.rewards.mean(axis=1, keepdims=True), None


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
    """GRPO (Eq. 6): R minus the group's mean over the group's standard deviation (divisor m - 1) plus 1e-6.

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
    tokens = batch.lengths.sum()
    centred = batch.rewards - (batch.rewards * batch.lengths).sum() / tokens
    variance = (centred**2 * batch.lengths).sum() / max(1, tokens - 1)
    return centred / np.sqrt(variance + 1e-8), None


def bnpo(batch: Batch) -> Estimate:
    """BNPO (Eq. 11): (R - p) / f(p; alpha, beta), with alpha and beta set from the accuracies p of the batch.

    By hand: two questions with accuracies 1/4 and 3/4 give a = b = 1/2 (see `fit_beta`), alpha = beta = 7/6, and by
    symmetry one weight w = B(7/6, 7/6) (16/3)^(1/6) = 0.9555 for both.

    >>> bnpo(Batch(np.array([[1.0, 0, 0, 0], [1, 1, 1, 0]])))[0].round(4)
    array([[ 0.7166, -0.2389, -0.2389, -0.2389],
           [ 0.2389,  0.2389,  0.2389, -0.7166]])
    """
    accuracies = batch.rewards.mean(axis=1)
    fit = fit_beta(accuracies, batch.rewards.shape[1], batch.moments, batch.max_concentration)
    if fit.edge == "concentrated":
        # The questions are taken to be equally hard, so what differs between their accuracies is noise, and they get
        # one weight. The narrow density would blow the outliers up.
        accuracies_or_mean = np.where((accuracies > 0) & (accuracies < 1), fit.mean, accuracies)
    else:
        accuracies_or_mean = accuracies
    weights = inverse_density(accuracies_or_mean, fit.alpha, fit.beta)
    return (batch.rewards - accuracies[:, None]) * weights[:, None], fit


ALGORITHMS: dict[str, Callable[[Batch], Estimate]] = {
    "bnpo": bnpo,
    "grpo": grpo,
    "reinforce": reinforce,
    "reinforce_pp": reinforce_pp,
    "remax": remax,
    "rloo": rloo,
}


def compute_advantages(
    algo: str,
    rewards: np.ndarray | Sequence,
    *,
    decompose: bool = False,
    ranges: np.ndarray | Sequence = (0.0, 1.0),
    greedy_rewards: np.ndarray | None = None,
    lengths: np.ndarray | None = None,
    moments: str = "sample",
    max_concentration: float = MAX_CONCENTRATION,
) -> tuple[np.ndarray, list[BetaFit]]:
    """Advantages [n, m] of the K rewards [n, m, K] of a whole batch, and the Beta fits (BNPO: one, or K).

    `ranges` [K, 2] has the lowest and the highest value of each reward, or of all ([2]). They are first mapped to
    [0, 1] by (R - lo) / (hi - lo), as the paper's section on limitations allows. With `decompose` every reward gets
    its own advantage, and these are averaged (Eq. 17). Without it the rewards are summed first, and for BNPO, whose
    Beta lives on [0, 1], averaged.
    `greedy_rewards` [n, K] is needed by remax, `lengths` [n, m] by reinforce_pp.

    One question, two answers, two rewards; the second reward tells the answers not apart:

    >>> compute_advantages("reinforce", [[[1, 1], [0, 1]]], decompose=True)[0]
    array([[ 0.25, -0.25]])
    >>> compute_advantages("reinforce", [[[1, 1], [0, 1]]])[0]
    array([[ 0.5, -0.5]])

    Raises ValueError naming the question where groups differ in size, a reward is not finite or leaves its range,
    or what the algorithm needs is absent.
    """
    if algo not in ALGORITHMS:
        raise ValueError(f"unknown algorithm '{algo}'; known: {', '.join(ALGORITHMS)}")
    rewards = _unit_rewards(_as_array(rewards), ranges, "answer")
    if algo == "remax":
        if greedy_rewards is None:
            raise ValueError("remax needs greedy_rewards [n, K]: sample one greedy answer a question and grade it")
        greedy_rewards = np.asarray(greedy_rewards, dtype=np.float64)
        if greedy_rewards.shape != rewards.shape[::2]:
            raise ValueError(f"greedy_rewards has shape {greedy_rewards.shape}, not [n, K] = {rewards.shape[::2]}")
        greedy_rewards = _unit_rewards(greedy_rewards[:, None], ranges, "greedy answer")[:, 0]
    if algo == "reinforce_pp":
        if lengths is None or np.shape(lengths) != rewards.shape[:2]:
            raise ValueError(f"reinforce_pp needs lengths [n, m] = {rewards.shape[:2]}: the tokens of each answer")
        lengths = np.asarray(lengths)

    if decompose:
        parts = list(np.moveaxis(rewards, 2, 0))
        greedy_parts = [None] * len(parts) if greedy_rewards is None else list(greedy_rewards.T)
    else:
        combine = np.mean if algo == "bnpo" else np.sum
        parts = [combine(rewards, axis=2)]
        greedy_parts = [None if greedy_rewards is None else combine(greedy_rewards, axis=1)]
    estimates = [
        ALGORITHMS[algo](Batch(part, greedy, lengths, moments, max_concentration))
        for part, greedy in zip(parts, greedy_parts, strict=True)
    ]
    advantages = np.mean([advantages for advantages, _ in estimates], axis=0)
    return advantages, [fit for _, fit in estimates if fit is not None]


def _as_array(rewards: np.ndarray | Sequence) -> np.ndarray:
    if not isinstance(rewards, np.ndarray):
        sizes = [len(group) for group in rewards]
        odd = next((i for i, size in enumerate(sizes) if size != sizes[0]), None)
        if odd is not None:
            raise ValueError(
                f"question {odd} has {sizes[odd]} answers, question 0 has {sizes[0]}: "
                "sample the same number for every question, or drop the question"
            )
    rewards = np.asarray(rewards, dtype=np.float64)
    if rewards.ndim != 3 or 0 in rewards.shape:
        raise ValueError(f"rewards have shape {rewards.shape}; they must be [questions, answers, rewards], none empty")
    return rewards


def _unit_rewards(rewards: np.ndarray, ranges: np.ndarray | Sequence, what: str) -> np.ndarray:
    low, high = np.broadcast_to(np.asarray(ranges, dtype=np.float64), (rewards.shape[2], 2)).T
    # A comparison with nan is False, so this catches rewards that are not finite too.
    bad = ~((rewards >= low) & (rewards <= high))
    if bad.any():
        question, answer, reward = (int(i) for i in np.argwhere(bad)[0])
        raise ValueError(
            f"reward {reward} of question {question}, {what} {answer}, is {rewards[question, answer, reward]}, outside "
            f"[{low[reward]:g}, {high[reward]:g}]: mend the reward function or declare its range (--reward-range)"
        )
    return (rewards - low) / (high - low)
