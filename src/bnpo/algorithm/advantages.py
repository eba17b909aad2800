"""Advantages of a whole batch: check the rewards, map them to [0, 1], sum or separate them, call
the estimator.
"""

from collections.abc import Sequence
from typing import NamedTuple, get_args

import numpy as np

from bnpo.algorithm.beta import BetaFit
from bnpo.algorithm.estimators import (
    ABSENT,
    ALGORITHMS,
    Batch,
    Method,
    NeedsLengths,
    OnUnitInterval,
)

# Advantages up to this size are rounding errors, as where all rewards are 0.1: they are not
# rescaled
ROUNDING = 1e-6


class Advantages(NamedTuple):
    values: np.ndarray  # [n, m] float64
    # From bnpo: one, or one per reward with `decompose`; from other estimators: none
    fits: list[BetaFit]


def compute_advantages(
    method: Method,
    rewards: np.ndarray | Sequence,  # [n, m, K]
    *,
    ranges: np.ndarray | Sequence = (0.0, 1.0),  # [K, 2], or [2] for all rewards
    greedy_rewards: np.ndarray | None = None,  # [n, K]
    lengths: np.ndarray | None = None,  # [n, m]
) -> Advantages:
    """Return the advantages [n, m] of a batch of n questions with m answers each. Each answer has K
    rewards.

    Each reward is mapped from its range [lowest, highest] to [0, 1], as the paper's section on
    limitations allows. With `method.decompose` the advantages of each reward are computed
    separately, then averaged (Eq. 17). Otherwise the rewards of an answer are summed, or averaged
    for the algorithms of `OnUnitInterval`, with `method.reward_weights`. remax needs
    `greedy_rewards`, those of `NeedsLengths` the tokens per answer.

    >>> # One question has two answers, which differ in the first of two rewards.
    >>> rewards = [[[1, 1], [0, 1]]]
    >>> compute_advantages(Method("reinforce", decompose=True), rewards).values
    array([[ 0.25, -0.25]])

    Raises ValueError for ragged rewards, rewards out of range, and missing arguments, InputError
    for wrong settings.
    """
    algo = method.algo
    if algo not in ALGORITHMS:
        raise ValueError(f"unknown algorithm '{algo}'; known: {', '.join(ALGORITHMS)}")
    rewards = _to_unit_interval(rewards, ranges, "answer")  # [n, m, K]
    n, m, k = rewards.shape
    method.check(n, m, k)
    greedy = np.zeros((n, 1, k))  # not used
    if algo == "remax":
        if greedy_rewards is None or np.shape(greedy_rewards) != (n, k):
            raise ValueError(
                f"remax needs greedy_rewards [n, K] = {(n, k)}: grade one greedy answer per "
                "question"
            )
        greedy = _to_unit_interval(np.reshape(greedy_rewards, (n, 1, k)), ranges, "greedy answer")
    if algo in get_args(NeedsLengths) and (lengths is None or np.shape(lengths) != (n, m)):
        raise ValueError(f"{algo} needs lengths [n, m] = {(n, m)}: the tokens of each answer")
    tokens = ABSENT if lengths is None else np.asarray(lengths)  # [n, m]

    # [K]
    weights = np.ones(k) if method.reward_weights is None else np.array(method.reward_weights)
    # With `decompose` each reward is a part; then the weighted average of the parts' advantages.
    parts = [[i] for i in range(k)] if method.decompose else [list(range(k))]
    outer_weights = weights if method.decompose else np.ones(1)  # [parts]
    weighted, fits = [], []  # weighted: parts x [n, m]
    for part, outer_weight in zip(parts, outer_weights, strict=True):
        inner_weights = np.ones(1) if method.decompose else weights
        divisor = inner_weights.sum() if algo in get_args(OnUnitInterval) else 1.0
        combined, combined_greedy = (
            (r[:, :, part] * inner_weights).sum(axis=2) / divisor for r in (rewards, greedy)
        )
        batch = Batch(
            combined, method, rewards[:, :, part], inner_weights, combined_greedy[:, 0], tokens
        )
        weighted.append(outer_weight * ALGORITHMS[algo](batch))
        fits += [batch.fit(method.beta_moments)] if algo == "bnpo" else []
    values = np.sum(weighted, axis=0) / sum(outer_weights)  # [n, m]
    largest = np.abs(values).max()
    if method.rescale_advantages and largest > ROUNDING:
        values = values / largest  # first, so that no square overflows
        values = values / np.sqrt((values**2).mean())
    return Advantages(values, fits)


def _to_unit_interval(
    rewards: np.ndarray | Sequence, ranges: np.ndarray | Sequence, kind: str
) -> np.ndarray:
    """Return `rewards` as float64 [n, m, K], mapped from their ranges to [0, 1]. `kind` of answer
    is for the message.

    Raises ValueError for another shape, and for values outside their range.
    """
    try:
        rewards = np.asarray(rewards, dtype=np.float64)
    except ValueError:  # ragged lists
        rewards = np.empty(0)
    if rewards.ndim != 3 or 0 in rewards.shape:
        cure = "sample the same number of answers to every question, or drop the question"
        raise ValueError(f"rewards must be [questions, answers, rewards], none empty: {cure}")
    # [K] each
    low, high = np.broadcast_to(np.asarray(ranges, dtype=np.float64), (rewards.shape[2], 2)).T
    # A comparison with nan is False, so this also finds rewards that are not finite.
    outside = ~((rewards >= low) & (rewards <= high))  # [n, m, K]
    if outside.any():
        question, answer, k = np.argwhere(outside)[0].tolist()
        found = (
            f"reward {k} of question {question}, {kind} {answer}, is {rewards[question, answer, k]}"
        )
        raise ValueError(
            f"{found}, outside [{low[k]:g}, {high[k]:g}]: fix the reward function or set "
            "--reward-range"
        )
    return (rewards - low) / (high - low)
